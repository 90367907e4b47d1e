"""Heat against exact modes, at any interval and on cells that are not square."""

import pytest
import torch

from pibert.fields import Grid
from pibert.physics import exact
from pibert.solver.heat import Heat, diffuse
from tests.physics.helpers import noise

GRID = Grid.periodic((18, 25), dx=0.07, dy=0.11)


@pytest.mark.parametrize("time", [1e-3, 0.4, 3.0])
def test_every_mode_decays_exactly(time: float) -> None:
    diffusivity = torch.tensor([0.01, 0.3], dtype=torch.float64)
    start = exact.heat_mode(GRID, 0.0, 1.0, modes=(2, 3)) + 0.7
    found = diffuse(torch.stack((start, start)), GRID, diffusivity, time)
    for sample, alpha in zip(found, diffusivity.tolist(), strict=True):
        expected = exact.heat_mode(GRID, time, alpha, modes=(2, 3)) + 0.7
        torch.testing.assert_close(sample, expected, atol=1e-14, rtol=0)


def test_a_point_of_heat_becomes_the_heat_kernel() -> None:
    grid = Grid.periodic((60, 80), dx=0.05, dy=0.06)
    start = torch.zeros(1, 60, 80, dtype=torch.float64)
    start[0, 30, 40] = 1 / (0.05 * 0.06)
    found = diffuse(start, grid, torch.tensor([0.5], dtype=torch.float64), 0.05)
    kernel = exact.heat_kernel(grid, 0.05, 0.5, centre=(40 * 0.05, 30 * 0.06))
    torch.testing.assert_close(found[0], kernel, atol=1e-8, rtol=0)


def test_one_long_interval_is_many_short_ones() -> None:
    u, diffusivity = noise(2, 18, 25), torch.tensor([0.01, 0.02], dtype=torch.float64)
    whole = diffuse(u, GRID, diffusivity, 0.5)
    for _ in range(5):
        u = diffuse(u, GRID, diffusivity, 0.1)
    torch.testing.assert_close(u, whole, atol=1e-13, rtol=0)


def test_the_first_state_varies_over_its_scale() -> None:
    """With the power exp(-(k l)^2), the mean square of the gradient is 1 / l^2."""
    recipe = Heat(
        samples=1, interval=1.0, shape=(90, 128), size=(3.0, 4.0), diffusivity=(1.0, 1.0),
        scale=(0.2, 0.2),
    )  # fmt: skip
    field = recipe.draw(0).start[0]
    assert float(field.mean()) == pytest.approx(0, abs=1e-12)
    assert float(field.square().mean()) == pytest.approx(1)
    spectrum = torch.fft.fft2(field).abs().square()
    ky = torch.fft.fftfreq(90, 3 / 90)[:, None] * 2 * torch.pi
    kx = torch.fft.fftfreq(128, 4 / 128) * 2 * torch.pi
    mean_square = (spectrum * (kx**2 + ky**2)).sum() / spectrum.sum()
    assert float(mean_square) == pytest.approx(1 / 0.2**2, rel=0.05)
