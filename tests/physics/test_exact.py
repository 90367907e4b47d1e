"""Analytic solutions: what they must be besides solving their equations (test_families)."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from pibert.fields import Boundary, Grid, Sides
from pibert.physics import exact, find_family
from pibert.physics.derivatives import divergence, vorticity
from tests.physics.helpers import measured_order

BOX = Grid.periodic((24, 16), 2 / 16, 3 / 24)

FLOWS: dict[str, Callable[[Grid, float | Tensor], tuple[Tensor, ...]]] = {
    "taylor_green": lambda g, t: exact.taylor_green(g, t, 0.1),
    "travelling_wave": lambda g, t: exact.travelling_wave(g, t, 0.8),
    "standing_wave": lambda g, t: exact.standing_wave(g, t, 0.8),
    "heat_mode": lambda g, t: (exact.heat_mode(g, t, 0.1),),
    "heat_kernel": lambda g, t: (exact.heat_kernel(g, t, 0.1),),
    "fisher_front": lambda g, t: (exact.fisher_front(g, t, 0.1, 2.0),),
    "isentropic_vortex": exact.isentropic_vortex,
    "vortex_street": lambda g, t: exact.vortex_street(g, t, spacing=2.0),
}


@pytest.mark.parametrize("name", FLOWS)
def test_many_times_at_once_equal_single_times(name: str) -> None:
    times = torch.tensor([0.2, 0.7], dtype=torch.float64)
    many = FLOWS[name](BOX, times)
    for k, field in enumerate(many):
        assert field.shape == (2, 24, 16) and field.dtype == torch.float64
        for i, t in enumerate(times.tolist()):
            torch.testing.assert_close(field[i], FLOWS[name](BOX, t)[k])


def test_taylor_green_decays_and_moves_with_the_stream() -> None:
    rate = 0.1 * ((2 * math.pi / 2) ** 2 + (2 * math.pi / 3) ** 2)
    u0, v0, p0 = exact.taylor_green(BOX, 0.0, 0.1)
    u, v, p = exact.taylor_green(BOX, 0.5, 0.1, stream=(4 * BOX.dx, -6 * BOX.dy))
    carried = [f.roll((-3, 2), (0, 1)) for f in (u0, v0, p0)]
    torch.testing.assert_close(u - 4 * BOX.dx, math.exp(-rate * 0.5) * carried[0])
    torch.testing.assert_close(v + 6 * BOX.dy, math.exp(-rate * 0.5) * carried[1])
    torch.testing.assert_close(p, math.exp(-2 * rate * 0.5) * carried[2])
    assert p0.mean().abs() < 1e-15


def test_the_heat_kernel_spreads_a_unit_of_heat() -> None:
    grid = Grid((121, 81), 0.1, 0.1, origin=(-4.0, -6.0))
    x, y = grid.coordinates(torch.float64)
    centre = (0.5, -1.0)
    heat = exact.heat_kernel(grid, 1.5, 0.1, centre=centre) * grid.dx * grid.dy
    assert heat.sum().item() == pytest.approx(1)
    spread = (heat * ((x - centre[0]) ** 2 + (y - centre[1]) ** 2)).sum()
    assert spread.item() == pytest.approx(4 * 0.1 * 1.5)
    frames = exact.heat_kernel(grid, torch.tensor([1.49, 1.5], dtype=torch.float64), 0.1)
    residual = find_family("heat").residuals({"u": frames}, grid, dt=0.01, order=4, diffusivity=0.1)
    assert residual["heat"].abs().max() < 2e-3 * (frames[1] - frames[0]).abs().max() / 0.01


def test_the_fisher_front_runs_into_the_empty_side_with_its_speed() -> None:
    grid = Grid((3, 401), 0.05, 1.0, origin=(-10.0, 0.0))
    speed = 5 * math.sqrt(0.5 * 2.0 / 6)
    front = exact.fisher_front(grid, 0.0, 0.5, 2.0)
    later = exact.fisher_front(grid, 10 * grid.dx / speed, 0.5, 2.0)
    torch.testing.assert_close(later[:, 10:], front[:, :-10])
    assert front[0, 0] > 0.999 and front[0, -1] < 1e-3 and front[0, 200] == 0.25


def test_the_isentropic_vortex_keeps_its_entropy_and_comes_back() -> None:
    start = exact.isentropic_vortex(BOX, 0.0, stream=(1.0, 1.5))
    rho, u, v, p = start
    torch.testing.assert_close(p, rho**1.4)
    for before, after in zip(
        start, exact.isentropic_vortex(BOX, 2.0, stream=(1.0, 1.5)), strict=True
    ):
        torch.testing.assert_close(after, before)
    carried = exact.isentropic_vortex(BOX, 4 * BOX.dx, stream=(1.0, 0.0))[0]
    torch.testing.assert_close(carried, exact.isentropic_vortex(BOX, 0.0)[0].roll(4, 1))
    assert vorticity(u, v, BOX)[12, 8] > 1
    assert rho[12, 8] < 0.9 and (rho[0] - 1).abs().max() < 1e-6


def street_grid(n: int) -> Grid:
    sides = Sides(*[Boundary.PERIODIC] * 2, *[Boundary.OPEN] * 2)
    return Grid((n + 1, 2 * n), 4 / (2 * n), 2 / n, sides)


def test_the_vortex_street_is_divergence_free_and_periodic() -> None:
    errors = []
    for n in (32, 64, 128):
        grid = street_grid(n)
        u, v = exact.vortex_street(grid, 0.4, spacing=2.0)
        errors.append(divergence(u, v, grid, 4).abs().max().item())
    assert 3.5 < measured_order(errors) and errors[-1] < 1e-3 * vorticity(u, v, grid).abs().max()


def test_the_vortex_street_drifts_as_its_vortices_carry_each_other() -> None:
    grid = street_grid(32)
    slip = 1.0 / (2 * 2.0) * math.tanh(math.pi * 0.281)
    start = exact.vortex_street(grid, 0.0, spacing=2.0)
    later = exact.vortex_street(grid, 5 * grid.dx / (1 - slip), spacing=2.0)
    for k in (0, 1):
        torch.testing.assert_close(later[k], start[k].roll(5, 1))
    # A vortex of the upper row, at its centre, feels the stream less the slip of the lower row.
    tiny = Grid((3, 1), 1.0, 0.281, origin=(0.0, -0.281))
    u, v = exact.vortex_street(tiny, 0.0, spacing=2.0, core=1e-3)
    assert v[2, 0].abs() < 1e-12
    assert u[2, 0].item() == pytest.approx(1 - slip, rel=1e-4)
