"""Wave diagnostics: dispersion and reflection on cases whose answer is known."""

import math

import pytest
import torch
from torch import Tensor

from pibert.fields import Grid
from pibert.physics import exact
from pibert.physics.derivatives import d2dx2
from pibert.physics.families.wave import Side, boundary_reflection, dispersion

BOX = Grid.periodic((12, 16), 2 / 16, 3 / 12)


def times(count: int, dt: float) -> Tensor:
    return dt * torch.arange(count, dtype=torch.float64)


def test_exact_waves_disperse_with_the_speed_times_the_wavenumber() -> None:
    t = times(9, 0.05)
    waves = [
        exact.travelling_wave(BOX, t, 0.8, modes=(1, 0))[0],
        exact.travelling_wave(BOX, t, 0.8, modes=(2, -1), amplitude=0.5)[0],
        exact.standing_wave(BOX, t, 0.8, modes=(0, 3), amplitude=0.3)[0],
    ]
    found = dispersion(torch.stack(waves).sum(0), BOX, 0.05, 0.8)
    strong = torch.isfinite(found.measured)
    assert strong.nonzero().tolist() == [[0, 1], [3, 0], [9, 0], [11, 2]]
    torch.testing.assert_close(found.measured[strong], found.exact[strong], rtol=1e-9, atol=0)
    expected = 0.8 * math.hypot(2 * math.pi * 2 / 2, 2 * math.pi / 3)
    assert found.exact[11, 2].item() == pytest.approx(expected)


def test_a_wave_of_another_speed_shows_in_the_ratio() -> None:
    waves = exact.travelling_wave(BOX, times(5, 0.05), 0.6, modes=(1, 1))[0]
    found = dispersion(torch.stack((waves, 2 * waves)), BOX, 0.05, torch.tensor([0.8, 0.6]))
    ratio = found.measured[:, 1, 1] / found.exact[:, 1, 1]
    assert ratio.tolist() == pytest.approx([0.6 / 0.8, 1.0])


def test_the_lag_of_the_leapfrog_scheme_is_measured() -> None:
    dt, k = 0.05, 2 * math.pi * 5 / 2
    first, second = exact.travelling_wave(BOX, times(2, dt), 1.0, modes=(5, 0))[0]
    frames = [first, second]
    for _ in range(6):
        frames.append(2 * frames[-1] - frames[-2] + dt**2 * d2dx2(frames[-1], BOX))
    measured = dispersion(torch.stack(frames), BOX, dt, 1.0).measured[0, 5].item()
    scheme = 2 / dt * math.asin(dt / BOX.dx * math.sin(k * BOX.dx / 2))
    assert measured == pytest.approx(scheme, rel=1e-9)
    assert measured < 0.95 * k


def test_dispersion_needs_a_periodic_box_and_three_frames() -> None:
    frames = torch.zeros(2, 12, 16)
    with pytest.raises(ValueError, match="at least 3 frames, found 2"):
        dispersion(frames, BOX, 0.1, 1.0)
    with pytest.raises(ValueError, match="doubly periodic"):
        dispersion(frames, Grid((12, 16)), 0.1, 1.0)


def pulse_against_a_side(side: Side, echo: float, speed: float = 1.5) -> tuple[Tensor, Grid, float]:
    """A pulse that runs out through the side and returns ``echo`` times as high."""
    dt, step = 0.004, 0.01
    s = step * torch.arange(101, dtype=torch.float64)
    t = dt * torch.arange(int(2 / (speed * dt)), dtype=torch.float64)[:, None]

    def pulse(z: Tensor) -> Tensor:
        return torch.exp(-(((z - 0.4) / 0.08) ** 2))

    line = pulse(s - speed * t) + echo * pulse(2 - s - speed * t)  # (t, s)
    if side in ("left", "bottom"):
        line = line.flip(-1)
    if side in ("left", "right"):
        return line[:, None, :].expand(-1, 5, -1), Grid((5, 101), step, 0.3), dt
    return line[:, :, None].expand(-1, -1, 5), Grid((101, 5), 0.3, step), dt


@pytest.mark.parametrize("side", ["left", "right", "bottom", "top"])
@pytest.mark.parametrize("echo", [-1.0, 1.0, 0.5, 0.0])
def test_reflection_is_the_energy_share_of_the_echo(side: Side, echo: float) -> None:
    frames, grid, dt = pulse_against_a_side(side, echo)
    found = boundary_reflection(frames, grid, dt, 1.5, side)
    assert found.item() == pytest.approx(echo**2, abs=1e-3)


def test_reflection_is_measured_per_sample() -> None:
    hard, grid, dt = pulse_against_a_side("right", -1.0)
    soft, _, _ = pulse_against_a_side("right", 0.3)
    found = boundary_reflection(torch.stack((hard, soft)), grid, dt, torch.full((2,), 1.5))
    assert found.tolist() == pytest.approx([1, 0.09], abs=1e-3)
