"""Waves against exact ones, at any interval and on cells that are not square."""

import pytest
import torch

from pibert.fields import Grid
from pibert.physics import exact
from pibert.physics.derivatives import gradient
from pibert.physics.families.wave import dispersion
from pibert.solver.wave import propagate
from tests.physics.helpers import noise

GRID = Grid.periodic((18, 25), dx=0.07, dy=0.11)


@pytest.mark.parametrize("time", [1e-3, 0.4, 30.0])
def test_waves_run_exactly(time: float) -> None:
    speed = torch.tensor([0.3, 2.0], dtype=torch.float64)
    begin = [exact.travelling_wave(GRID, 0.0, c, modes=(2, -3)) for c in speed.tolist()]
    u, u_t = (torch.stack(parts) for parts in zip(*begin, strict=True))
    found = propagate(u, u_t, GRID, speed, time)
    for sample, c in enumerate(speed.tolist()):
        expected = exact.travelling_wave(GRID, time, c, modes=(2, -3))
        for part, value in zip(found, expected, strict=True):
            torch.testing.assert_close(part[sample], value, atol=1e-10, rtol=0)


def test_the_mean_drifts_at_its_own_rate() -> None:
    u, rate = torch.full((1, 18, 25), 2.0).double(), torch.full((1, 18, 25), -0.5).double()
    later, still = propagate(u, rate, GRID, torch.tensor([1.0], dtype=torch.float64), 3.0)
    torch.testing.assert_close(later, torch.full_like(u, 0.5))
    torch.testing.assert_close(still, rate)


def test_energy_is_kept_and_time_runs_backwards() -> None:
    speed = torch.tensor([1.3], dtype=torch.float64)
    start = noise(1, 18, 25), noise(1, 18, 25, seed=1)

    def energy(u: torch.Tensor, u_t: torch.Tensor) -> float:
        u_x, u_y = gradient(u, GRID, "spectral")
        return float((u_t**2 + 1.3**2 * (u_x**2 + u_y**2)).mean())

    # An odd number of columns, and rows without their Nyquist wave, whose gradient is not seen.
    spectrum = torch.fft.rfft2(torch.stack(start))
    spectrum[..., 9, :] = 0
    u, u_t = torch.fft.irfft2(spectrum, s=(18, 25))
    later = propagate(u, u_t, GRID, speed, 0.7)
    assert energy(*later) == pytest.approx(energy(u, u_t), rel=1e-12)
    back = propagate(later[0], -later[1], GRID, speed, 0.7)
    torch.testing.assert_close(back[0], u)
    torch.testing.assert_close(back[1], -u_t)


def test_every_wave_has_the_frequency_of_its_length() -> None:
    speed = torch.tensor([1.3], dtype=torch.float64)
    frames = [(noise(1, 18, 25), noise(1, 18, 25, seed=1))]
    for _ in range(5):
        frames.append(propagate(*frames[-1], GRID, speed, 0.02))
    measured = dispersion(torch.stack([u[0] for u, _ in frames]), GRID, 0.02, 1.3)
    waves = measured.wavenumber > 0
    torch.testing.assert_close(measured.measured[waves], measured.exact[waves], rtol=1e-6, atol=0)
