"""One flow with a different value at every point and time, for the readers of foreign files.

Seven columns and five rows with unequal spacing, six frames: a wrong order of the axes cannot pass.
"""

import numpy as np
import torch

from pibert.fields import Trajectory

X, Y = -1.0 + 0.1 * np.arange(7), 2.0 + 0.3 * np.arange(5)
T = 0.05 * np.arange(6)


def velocity(
    x: np.ndarray, y: np.ndarray, t: np.ndarray | float = 0.0
) -> tuple[np.ndarray, np.ndarray]:
    return 1 + 3 * x - 10 * y + 100 * t, x * y - t


def fields(x: np.ndarray = X, y: np.ndarray = Y, t: np.ndarray = T) -> dict[str, np.ndarray]:
    """Both components as (t, y, x) in float32."""
    u, v = velocity(x[None, None, :], y[None, :, None], t[:, None, None])
    return {"u": u.astype(np.float32), "v": v.astype(np.float32)}


def vectors(t: float = 0.0) -> np.ndarray:
    """One frame as (z, y, x, 3), as files of flows in space have it."""
    u, v = velocity(X[None, None, :], Y[None, :, None], t)
    return np.stack([u, v, 0 * u], -1)


def assert_flow(trajectory: Trajectory, *, frames: int = 6, dt: float | None = 0.05) -> None:
    """All values are those of their coordinates and times, read at once and in pieces."""
    grid = trajectory.spec.grid
    assert (trajectory.num_frames, grid.shape) == (frames, (5, 7))
    np.testing.assert_allclose([grid.dx, grid.dy, *grid.origin], [0.1, 0.3, -1.0, 2.0], atol=1e-6)
    if dt is None:
        assert trajectory.spec.dt is None
    else:
        assert trajectory.spec.dt is not None
        np.testing.assert_allclose(trajectory.spec.dt, dt)
    x, y = (axis.numpy() for axis in grid.coordinates(torch.float64))
    states = trajectory.read()
    assert states.dtype == torch.float32
    channels = [trajectory.spec.channels.index(name) for name in ("u", "v")]
    for frame in range(frames):
        wanted = velocity(x, y, 0.05 * frame)
        for channel, values in zip(channels, wanted, strict=True):
            np.testing.assert_allclose(states[frame, channel].numpy(), values, rtol=1e-5, atol=1e-5)
    last = trajectory.read(slice(frames - 1, None), channels[::-1])
    assert torch.equal(last, states[frames - 1 :, channels[::-1]])
    assert torch.equal(trajectory.read(slice(0, frames, 2)), states[::2])
