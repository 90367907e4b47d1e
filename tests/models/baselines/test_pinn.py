"""The amortised PINN: total derivatives by brute force, and unknown points."""

import math
from typing import Any

import pytest
import torch

from pibert.fields import Boundary, FieldSpec, Grid, Sides
from pibert.models.baselines.pinn import PINN, PINNConfig
from pibert.physics.derivatives import ddx, ddy
from tests.helpers import assert_close, randomise, tiny_spec
from tests.physics.helpers import noise

SMALL: dict[str, Any] = {"width": 12, "depth": 3}
PERIODIC, OPEN = Boundary.PERIODIC, Boundary.OPEN
WALLS, ROUND = Sides(*[OPEN] * 4), Sides(*[PERIODIC] * 4)


def make(spec: FieldSpec | None = None, **options: Any) -> Any:
    model: Any = PINN(PINNConfig(**(SMALL | options)), spec or tiny_spec((9, 13)))
    return randomise(model).double()


@pytest.mark.parametrize("sides", [WALLS, ROUND, Sides(PERIODIC, PERIODIC, OPEN, OPEN)])
def test_derivatives_of_the_coordinates_are_those_along_the_axes(sides: Sides) -> None:
    """Of a network that reads the coordinates alone, against differences on a fine grid."""
    n = 400
    model = make(tiny_spec((n, n), grid=Grid((n, n), dx=0.3, dy=0.7, sides=sides)), residual=False)
    with torch.no_grad():
        model.network[0].weight[:, :2] = 0.0
    found = model.total_derivatives(torch.zeros(1, 2, n, n, dtype=torch.float64))
    inner = (..., slice(1, -1), slice(1, -1))
    for derivative, (axis, step) in ((found.along_x, (3, 0.3)), (found.along_y, (2, 0.7))):
        ahead, behind = found.field.roll(-1, axis), found.field.roll(1, axis)
        assert_close(derivative[inner], ((ahead - behind) / (2 * step))[inner], rtol=1e-3)


@pytest.mark.parametrize("options", [{}, {"residual": False}, {"history": 2, "horizon": 2}])
def test_total_derivatives_by_brute_force(options: dict[str, Any]) -> None:
    """f_x / extent + sum over inputs of f_z D_x z, with the Jacobian of reverse mode at a point."""
    spec = tiny_spec((5, 6), grid=Grid((5, 6), dx=0.3, dy=0.7))
    model = make(spec, **options)
    x = noise(1, model.in_channels, 5, 6)
    found = model.total_derivatives(x)
    torch.testing.assert_close(found.field, model(x))
    inputs = model._inputs(x, torch.zeros(1, 16).double())[0]
    slopes = (ddx(x, spec.grid)[0], ddy(x, spec.grid)[0])
    extents, last = (6 * 0.3, 5 * 0.7), range(x.shape[1] - 2, x.shape[1])
    for axis, derivative in enumerate((found.along_x, found.along_y)):
        for row, column in ((0, 0), (2, 3), (4, 5)):
            jacobian = torch.autograd.functional.jacobian(model.network, inputs[row, column])
            slope = slopes[axis][:, row, column]
            expected = jacobian[:, : len(slope)] @ slope
            expected = expected + jacobian[:, len(slope) + axis] / extents[axis]
            if model.config.residual:
                expected = expected + slope[list(last)].repeat(model.config.horizon)
            torch.testing.assert_close(derivative[0, :, row, column], expected)


def test_stencils_that_touch_unknown_points_are_not_defined() -> None:
    model = make()
    x, mask = noise(2, 2, 9, 13), torch.ones(2, 9, 13, dtype=torch.bool)
    mask[0, 4, 6] = False
    found = model.total_derivatives(torch.where(mask[:, None], x, math.nan), mask=mask)
    expected = torch.ones_like(mask)
    for row, column in ((3, 6), (5, 6), (4, 5), (4, 7)):
        expected[0, row, column] = False
    # A central difference does not use its centre.
    assert torch.equal(found.defined, expected)
    for values in found[:3]:
        assert torch.isfinite(values).all()
    whole = model.total_derivatives(x)
    agree = expected & mask
    for values, others in zip(found[1:3], whole[1:3], strict=True):
        torch.testing.assert_close(values.movedim(1, -1)[agree], others.movedim(1, -1)[agree])
