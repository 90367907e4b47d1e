"""Flowers: warps move features exactly, around periodic sides, and displacements are learned."""

from typing import Any

import torch

from pibert.fields import Boundary, Grid, Sides
from pibert.models.baselines.flowers import Warp
from tests.helpers import assert_close
from tests.physics.helpers import noise

PERIODIC = Sides(*[Boundary.PERIODIC] * 4)


def moving(shift: tuple[float, float], grid: Grid, heads: int = 2) -> Any:
    """A warp that fetches each value from ``shift`` = (rows, columns) further on."""
    warp: Any = Warp(4, 4, heads, grid).double()
    with torch.no_grad():
        for layer in (warp.displacement[0], warp.displacement[2], warp.value):
            layer.weight.zero_()
            layer.bias.zero_()
        warp.value.weight[:, :, 0, 0] = torch.eye(4)
        ny, nx = grid.shape
        along = torch.tensor([2 * shift[1] / (nx - 1), 2 * shift[0] / (ny - 1)])
        warp.displacement[2].bias.copy_(along.repeat(heads))
    return warp


def test_a_constant_displacement_moves_the_field_around_periodic_sides() -> None:
    u, grid = noise(2, 4, 6, 9), Grid((6, 9), sides=PERIODIC)
    for shift in ((0, 0), (2, 0), (0, 5), (-3, 7), (6, 9)):
        expected = u.roll((-shift[0], -shift[1]), (2, 3))
        assert_close(moving(shift, grid)(u), expected, rtol=1e-6)
    half = moving((0, 0.5), grid)(u)
    assert_close(half, (u + u.roll(-1, 3)) / 2, rtol=1e-6)


def test_beyond_other_sides_there_is_nothing() -> None:
    u = noise(1, 4, 6, 9)
    moved = moving((0, 2), Grid((6, 9)))(u)
    assert_close(moved[..., :7], u[..., 2:], rtol=1e-6)
    assert not moved[..., 7:].any()
    sides = Sides(Boundary.PERIODIC, Boundary.PERIODIC, Boundary.WALL, Boundary.WALL)
    both = moving((2, 2), Grid((6, 9), sides=sides))(u)
    assert_close(both[..., :4, :], u.roll(-2, 3)[..., 2:, :], rtol=1e-6)
    assert not both[..., 4:, :].any()


def test_heads_have_their_own_displacement() -> None:
    u, grid = noise(1, 4, 6, 9), Grid((6, 9), sides=PERIODIC)
    warp = moving((0, 0), grid)
    with torch.no_grad():
        warp.displacement[2].bias[2] = 2 * 3 / 8  # the second head: three columns
    moved = warp(u)
    assert_close(moved[:, :2], u[:, :2])
    assert_close(moved[:, 2:], u[:, 2:].roll(-3, 3), rtol=1e-6)
