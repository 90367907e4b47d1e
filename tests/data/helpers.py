"""Small trajectories that the data tests share."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from pibert.data.readers.recordings import Recordings
from pibert.fields import Batch, Boundary, FieldSpec, Grid, Parameter, Sides, Trajectory

SHAPE = (5, 7)
SHARED = Path(__file__).parents[2] / ".." / "shared" / "data"
needs_shared = pytest.mark.skipif(not SHARED.is_dir(), reason="no ../shared/data in this checkout")


def random_states(frames: int, *shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(frames, *shape, generator=generator)


def make_trajectory(
    name: str = "a",
    frames: int = 6,
    *,
    states: Tensor | None = None,
    channels: tuple[str, ...] = ("u", "v"),
    re: float | None = 1800.0,
    seed: int = 0,
    dt: float | None = 0.05,
    **changes: Any,
) -> Trajectory:
    """Random velocities on a small non-square grid with non-square cells."""
    if states is None:
        states = random_states(frames, len(channels), *SHAPE, seed=seed)
    spec = FieldSpec(
        family="incompressible",
        channels=channels,
        units=("m/s",) * len(channels),
        parameters=(Parameter(name="Re", scaling="log"), Parameter(name="damping")),
        dt=dt,
        grid=Grid(
            (states.shape[2], states.shape[3]),
            dx=0.1,
            dy=0.3,
            sides=Sides(Boundary.INFLOW, Boundary.OUTFLOW, Boundary.SLIP, Boundary.WALL),
            origin=(-1.0, 2.0),
        ),
        reference_velocity=0.06,
        reference_length=0.03,
    )
    fields: dict[str, Any] = {
        "name": name,
        "states": states,
        "time": 1.0 + (dt or 1.0) * torch.arange(len(states), dtype=torch.float64),
        "spec": spec,
        "parameters": {} if re is None else {"Re": re},
        "source": {"title": "a wake in a tank", "licence": None},
        "local": {"stride": 1},
        "length_unit": "m",
        "time_unit": "s",
    }
    return Trajectory(**(fields | changes))


def disc(shape: tuple[int, int] = SHAPE) -> Tensor:
    """A small body off the centre."""
    body = torch.zeros(shape, dtype=torch.bool)
    body[1:3, 2:4] = True
    return body


def recorded(
    *trajectories: Trajectory, kind: str = "arrays", path: Path = Path("flow.h5")
) -> Recordings:
    """Trajectories in memory as a reader would give them."""
    table = {trajectory.name: trajectory for trajectory in trajectories}
    return Recordings(kind=kind, path=path, names=tuple(table), load=table.__getitem__)


class Lazy:
    """Frames that are read on request, in the type of the source."""

    def __init__(self, frames: Tensor) -> None:
        self.frames = frames

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.frames.shape)

    def read(self, frames: slice, channels: Sequence[int] | None = None) -> Tensor:
        chosen = self.frames[frames]
        return chosen if channels is None else chosen[:, list(channels)]


def assert_same_batch(found: Batch, wanted: Batch) -> None:
    for name in ("x", "y", "parameters", "mask", "target_mask"):
        a, b = getattr(found, name), getattr(wanted, name)
        torch.testing.assert_close(a, b, rtol=0, atol=0, equal_nan=True, msg=name)
