"""The amortised PINN: total derivatives by brute force, and unknown points."""

import math
from typing import Any

import pytest
import torch

from pibert.fields import FieldSpec, Grid
from pibert.models.baselines.pinn import PINN, PINNConfig
from pibert.physics.derivatives import ddx, ddy
from tests.helpers import randomise, tiny_spec
from tests.physics.helpers import noise

SMALL: dict[str, Any] = {"width": 12, "depth": 3}


def make(spec: FieldSpec | None = None, **options: Any) -> Any:
    model: Any = PINN(PINNConfig(**(SMALL | options)), spec or tiny_spec((9, 13)))
    return randomise(model).double()


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
