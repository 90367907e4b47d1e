"""Analytic flows: properties beyond their equations, which test_families checks."""

import math

import pytest
import torch

from pibert.fields import Boundary, Grid, Sides
from pibert.physics.derivatives import divergence, vorticity
from tests.physics import exact
from tests.physics.helpers import measured_order

BOX = Grid.periodic((24, 16), 2 / 16, 3 / 24)


def test_taylor_green_decays_and_moves_with_the_stream() -> None:
    rate = 0.1 * ((2 * math.pi / 2) ** 2 + (2 * math.pi / 3) ** 2)
    u0, v0, p0 = exact.taylor_green(BOX, 0.0, 0.1)
    u, v, p = exact.taylor_green(BOX, 0.5, 0.1, stream=(4 * BOX.dx, -6 * BOX.dy))
    carried = [f.roll((-3, 2), (0, 1)) for f in (u0, v0, p0)]
    torch.testing.assert_close(u - 4 * BOX.dx, math.exp(-rate * 0.5) * carried[0])
    torch.testing.assert_close(v + 6 * BOX.dy, math.exp(-rate * 0.5) * carried[1])
    torch.testing.assert_close(p, math.exp(-2 * rate * 0.5) * carried[2])
    assert p0.mean().abs() < 1e-15


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
