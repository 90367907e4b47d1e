"""The amortised PINN: size, one point at a time, total derivatives by brute force and exactly."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pibert.fields import FieldSpec, Grid
from pibert.models import count_parameters
from pibert.models.baselines.pinn import PINN, PRESETS, PINNConfig
from pibert.physics.derivatives import ddx, ddy
from pibert.physics.exact import taylor_green
from tests.helpers import randomise, tiny_spec

SMALL: dict[str, Any] = {"width": 12, "depth": 3}


def make(spec: FieldSpec | None = None, **options: Any) -> Any:
    model: Any = PINN(PINNConfig(**(SMALL | options)), spec or tiny_spec((9, 13)))
    return randomise(model).double()


def fields(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def test_the_base_preset_has_the_published_number_of_parameters() -> None:
    assert count_parameters(PINN(PRESETS["base"], FieldSpec())) == 21_250
    assert PINN.objective == "pde_residual"


def test_an_untrained_model_is_persistence_exactly() -> None:
    model = PINN(PINNConfig(history=2, horizon=2), tiny_spec((9, 13)))
    x = fields(2, 4, 9, 13).float()
    assert torch.equal(model(x), x[:, 2:].repeat(1, 2, 1, 1))


@pytest.mark.parametrize("residual", [True, False])
def test_the_answer_at_a_point_depends_on_that_point_alone(residual: bool) -> None:
    model = make(residual=residual)
    x = fields(2, 2, 9, 13).requires_grad_()
    model(x)[1, :, 4, 7].sum().backward()
    assert x.grad is not None
    touched = x.grad.abs().sum(1).nonzero().tolist()
    assert touched == [[1, 4, 7]]


def test_the_same_values_at_another_place_give_another_answer() -> None:
    x = torch.ones(1, 2, 9, 13, dtype=torch.float64)
    y = make(residual=False)(x)
    assert y[0, 0, 0].unique().numel() == 13 and y[0, 0, :, 0].unique().numel() == 9


def test_parameters_enter_where_asked() -> None:
    x, a, b = fields(1, 2, 9, 13), torch.zeros(1, 1), torch.ones(1, 1)
    assert torch.equal(make()(x, a), make()(x, b))
    model = make(parameters=True)
    assert not torch.allclose(model(x, a), model(x, b))
    assert torch.equal(model(x), model(x, torch.full((1, 1), math.nan)))


@pytest.mark.parametrize("options", [{}, {"residual": False}, {"history": 2, "horizon": 2}])
def test_total_derivatives_by_brute_force(options: dict[str, Any]) -> None:
    """f_x / extent + sum over inputs of f_z D_x z, with the Jacobian of reverse mode at a point."""
    spec = tiny_spec((5, 6), grid=Grid((5, 6), dx=0.3, dy=0.7))
    model = make(spec, **options)
    x = fields(1, model.in_channels, 5, 6)
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


def test_total_derivatives_are_those_of_the_field_on_the_grid() -> None:
    """Stencils on the output differ from them by an error of second order in the spacing."""
    errors = []
    for n in (24, 48):
        grid = Grid.periodic((n, 2 * n), dx=1 / n, dy=1.5 / n)
        model = make(FieldSpec(grid=grid))
        with torch.no_grad():
            model.network[0].weight[:, 2:] = 0.0  # periodic, as the coordinates are not
        u, v, _ = taylor_green(grid, 0.0, 0.0)
        x = torch.stack((u, v))[None]
        found = model.total_derivatives(x)
        error = (found.along_x - ddx(model(x), grid)).norm() / found.along_x.norm()
        errors.append(error.item())
    assert errors[1] < 0.27 * errors[0] and errors[1] < 0.02


class _HalfKnown(nn.Module):
    """The vortices again: u as a function of the coordinates, v as it went in."""

    def forward(self, inputs: Tensor) -> Tensor:
        _, v, x, y = inputs.unbind(-1)
        return torch.stack((torch.cos(2 * math.pi * x) * torch.sin(2 * math.pi * y), v), dim=-1)

    def push(self, inputs: Tensor, tangents: Tensor) -> tuple[Tensor, Tensor]:
        (_, _, x, y), (_, v_way, x_way, y_way) = inputs.unbind(-1), tangents.unbind(-1)
        x, y, k = 2 * math.pi * x, 2 * math.pi * y, 2 * math.pi
        u_way = -torch.sin(x) * torch.sin(y) * k * x_way + torch.cos(x) * torch.cos(y) * k * y_way
        return self(inputs), torch.stack((u_way, v_way), dim=-1)


def test_taylor_green_is_free_of_divergence_by_total_derivatives_and_not_by_partial_ones() -> None:
    totals, partials = [], []
    for n in (16, 32):
        # The network's places are those of cell centres.
        grid = Grid.periodic((n, 2 * n), dx=0.5 / n, dy=0.8 / n)
        origin = (grid.dx / 2, grid.dy / 2)
        grid = Grid(grid.shape, grid.dx, grid.dy, grid.sides, origin=origin)
        model: Any = PINN(PINNConfig(residual=False), FieldSpec(grid=grid)).double()
        model.network = _HalfKnown()
        u, v, _ = taylor_green(grid, 0.0, 0.0)
        x = torch.stack((u, v))[None]
        found = model.total_derivatives(x)
        torch.testing.assert_close(found.field, x)
        size = found.along_x[:, 0].norm()
        totals.append(float((found.along_x[:, 0] + found.along_y[:, 1]).norm() / size))
        # What automatic differentiation gives by the coordinates alone: the input field is held.
        inputs = model._inputs(x, torch.zeros(1, 16)).requires_grad_()
        partial = torch.zeros(())
        for channel, extent in ((0, 2 * n * grid.dx), (1, n * grid.dy)):
            output = model.network(inputs)[..., channel].sum()
            (slope,) = torch.autograd.grad(output, inputs)
            partial = partial + slope[..., 2 + channel] / extent
        partials.append(float(partial.norm() / size))
    assert totals[0] < 0.03 and totals[1] < 0.26 * totals[0]
    assert min(partials) > 0.9


def test_stencils_that_touch_unknown_points_are_marked_and_silent() -> None:
    model = make()
    x, mask = fields(2, 2, 9, 13), torch.ones(2, 9, 13, dtype=torch.bool)
    mask[0, 4, 6] = False
    found = model.total_derivatives(torch.where(mask[:, None], x, math.nan), mask=mask)
    expected = torch.ones_like(mask)
    for row, column in ((3, 6), (5, 6), (4, 5), (4, 7)):
        expected[0, row, column] = False
    # A central difference skips its own point.
    assert torch.equal(found.defined, expected)
    for values in found[:3]:
        assert torch.isfinite(values).all()
    whole = model.total_derivatives(x)
    agree = expected & mask
    for values, others in zip(found[1:3], whole[1:3], strict=True):
        torch.testing.assert_close(values.movedim(1, -1)[agree], others.movedim(1, -1)[agree])


def test_derivatives_can_be_learned_from_and_stay_exact_under_autocast() -> None:
    model = make().float()
    x = fields(2, 2, 9, 13).float()
    plain = model.total_derivatives(x)
    plain.along_x.square().mean().backward()
    for name, parameter in model.named_parameters():
        if name != "network.6.bias":  # which no derivative feels
            assert parameter.grad is not None and parameter.grad.abs().sum() > 0, name
    with torch.autocast("cpu", torch.bfloat16), torch.inference_mode():
        half = model.total_derivatives(x)
    torch.testing.assert_close(half.along_y, plain.along_y.detach())


def test_wrong_choices_are_named() -> None:
    with pytest.raises(ValueError, match="pde_weight must be zero or positive, found -1"):
        PINNConfig(pde_weight=-1.0)
    with pytest.raises(ValueError, match="depth must be at least 1, found 0"):
        PINNConfig(depth=0)
