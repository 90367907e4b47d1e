"""Classical fillings against polynomials and brute force, and the comparison with a model."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from pibert.evaluation.filling import (
    FILLINGS,
    FillingError,
    fill_biharmonic,
    fill_cubic,
    fill_laplace,
    fill_mean,
    filling_errors,
)
from pibert.fields import Boundary, FieldSpec, Grid, Normalizer, Sides
from tests.pretraining.batches import make_batch

GRID = Grid((18, 25), dx=0.3, dy=0.2)


def gaps(shape: tuple[int, int] = GRID.shape, margin: int = 0, seed: int = 0) -> Tensor:
    """Known points: a block is missing and every fifth point."""
    known = torch.rand(shape, generator=torch.Generator().manual_seed(seed)) > 0.2
    known[6:12, 8:15] = False
    if margin:
        inner = torch.zeros(shape, dtype=torch.bool)
        inner[margin:-margin, margin:-margin] = True
        known |= ~inner
    return known


def polynomial(degree: int) -> Tensor:
    """All products x^i y^j up to a total degree, added up."""
    x, y = GRID.coordinates(torch.float64)
    x, y = x - 3.0, y - 1.5
    terms = [
        math.cos(3 * i + j) * x**i * y**j for i in range(4) for j in range(4) if i + j <= degree
    ]
    return sum(terms, torch.zeros_like(x))


@pytest.mark.parametrize("name", FILLINGS)
def test_known_values_stay_and_every_frame_and_channel_is_filled_by_itself(name: str) -> None:
    generator = torch.Generator().manual_seed(0)
    fields = torch.randn(2, 3, 2, *GRID.shape, generator=generator)
    known = torch.stack([gaps(seed=i) for i in range(6)]).view(2, 3, *GRID.shape)
    poisoned = torch.where(known[:, :, None], fields, math.nan)
    filled = FILLINGS[name](poisoned, known, GRID)
    assert bool(filled.isfinite().all())
    kept = known[:, :, None].expand_as(fields)
    assert torch.equal(filled[kept], fields[kept])
    alone = FILLINGS[name](poisoned[1, 2, 1:], known[1, 2], GRID)
    torch.testing.assert_close(alone[0], filled[1, 2, 1])
    scaled = FILLINGS[name](3 * poisoned + 7, known, GRID)
    torch.testing.assert_close(scaled, 3 * filled + 7, rtol=1e-4, atol=1e-4)


def test_the_mean_is_that_of_the_known_points() -> None:
    fields = torch.arange(12.0).view(1, 3, 4) + 1e6
    known = torch.zeros(3, 4, dtype=torch.bool)
    known[0, 1] = known[2, 3] = True
    expected = torch.where(known, fields, 1e6 + 6.0)
    torch.testing.assert_close(fill_mean(fields, known, GRID), expected, rtol=0, atol=0)


def test_the_plate_keeps_cubic_polynomials_away_from_the_sides() -> None:
    field, known = polynomial(3)[None], gaps(margin=2)
    torch.testing.assert_close(fill_biharmonic(field, known, GRID), field, rtol=1e-8, atol=1e-8)
    assert float((fill_laplace(field, known, GRID) - field).abs().max()) > 1e-3


def test_the_plate_keeps_linear_polynomials_up_to_the_sides() -> None:
    field, known = polynomial(1)[None], gaps()
    known[:3, :3] = known[-2:] = False
    torch.testing.assert_close(fill_biharmonic(field, known, GRID), field, rtol=1e-7, atol=1e-7)


def test_the_membrane_solves_the_laplace_equation_with_no_flux_at_the_sides() -> None:
    field = polynomial(3)
    known = torch.ones(GRID.shape, dtype=torch.bool)
    known[4:9, 5:11] = False
    known[0, 7] = False
    filled = fill_laplace(field[None], known, GRID)[0].numpy()
    dx, dy = GRID.dx, GRID.dy
    for row, column in np.argwhere(~known.numpy()):
        if row:
            flux = (filled[row + 1, column] + filled[row - 1, column] - 2 * filled[row, column]) / (
                dy * dy
            )
        else:
            flux = (filled[1, column] - filled[0, column]) / (dy * dy)
        flux += (filled[row, column + 1] + filled[row, column - 1] - 2 * filled[row, column]) / (
            dx * dx
        )
        assert abs(flux) < 1e-7


def test_the_plate_has_the_least_bending_energy() -> None:
    field, known = polynomial(3)[None] + torch.randn(1, *GRID.shape).double(), gaps()
    filled = fill_biharmonic(field, known, GRID)

    def energy(f: Tensor) -> Tensor:
        f_x, f_y = f.diff(dim=-1) / GRID.dx, f.diff(dim=-2) / GRID.dy
        f_xx, f_yy = f_x.diff(dim=-1) / GRID.dx, f_y.diff(dim=-2) / GRID.dy
        f_xy = f_x.diff(dim=-2) / GRID.dy
        return f_xx.square().sum() + 2 * f_xy.square().sum() + f_yy.square().sum()

    variable = filled.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(energy(variable), variable)
    scale = float(gradient[:, known].abs().max())
    assert float(gradient[:, ~known].abs().max()) < 1e-8 * scale


@pytest.mark.parametrize("name", ["laplace", "biharmonic"])
def test_periodic_sides_are_no_sides(name: str) -> None:
    grid = Grid.periodic(GRID.shape, dx=0.3, dy=0.2)
    generator = torch.Generator().manual_seed(3)
    field = torch.randn(1, *GRID.shape, generator=generator).double()
    known = gaps()
    known[:3] = False
    known[:, :2] = False
    filled = FILLINGS[name](field, known, grid)
    moved = FILLINGS[name](field.roll((7, 11), (1, 2)), known.roll((7, 11), (0, 1)), grid)
    torch.testing.assert_close(moved, filled.roll((7, 11), (1, 2)))


def test_a_membrane_closes_over_those_sides_that_are_periodic() -> None:
    around = Sides(left=Boundary.PERIODIC, right=Boundary.PERIODIC)
    grid = Grid((6, 9), dx=0.3, dy=0.2, sides=around)
    known = torch.ones(6, 9, dtype=torch.bool)
    known[:, 0] = False
    filled = fill_laplace(torch.arange(9.0).expand(1, 6, 9), known, grid)
    torch.testing.assert_close(filled[0, :, 0], torch.full((6,), 4.5))  # between 8 and 1
    known = torch.ones(6, 9, dtype=torch.bool)
    known[0] = False
    rising = torch.arange(6.0)[:, None].expand(1, 6, 9)
    filled = fill_laplace(rising, known, grid)
    torch.testing.assert_close(filled[0, 0], torch.ones(9))  # the neighbour's, not that of the top


def test_cubic_filling_is_third_order_inside_and_nearest_outside() -> None:
    known = gaps(margin=1)
    smooth = polynomial(2)[None]
    error = (fill_cubic(smooth, known, GRID) - smooth).abs().max()
    assert float(error) < 0.02 * float(smooth.std())
    known = torch.ones(GRID.shape, dtype=torch.bool)
    known[:, -2:] = False
    filled = fill_cubic(smooth, known, GRID)
    torch.testing.assert_close(filled[..., -1], smooth[..., -3])
    known[1:] = False  # one row alone spans no triangle
    assert bool(fill_cubic(smooth, known, GRID).isfinite().all())


@pytest.mark.parametrize("name", ["laplace", "cubic", "biharmonic"])
def test_nothing_known_and_values_that_are_not_finite_are_refused(name: str) -> None:
    field = torch.zeros(1, *GRID.shape)
    with pytest.raises(ValueError, match="at least one known point"):
        FILLINGS[name](field, torch.zeros(GRID.shape, dtype=torch.bool), GRID)
    known = gaps()
    field[0, known] = math.nan
    with pytest.raises(ValueError, match="finite values"):
        FILLINGS[name](field, known, GRID)


@pytest.mark.parametrize("name", ["laplace", "biharmonic"])
def test_one_known_point_gives_a_level_field(name: str) -> None:
    known = torch.zeros(GRID.shape, dtype=torch.bool)
    known[4, 5] = True
    filled = FILLINGS[name](torch.full((1, *GRID.shape), 3.0), known, GRID)
    torch.testing.assert_close(filled, torch.full_like(filled, 3.0))


class Answers(nn.Module):
    """A model whose reconstruction is off by one everywhere, and that keeps what it was shown."""

    def __init__(self, truth: Tensor) -> None:
        super().__init__()
        self.truth = truth

    def reconstruct(self, x: Tensor, parameters: Tensor, mask: Tensor) -> Tensor:
        assert not self.training
        self.x, self.mask = x, mask
        return self.truth + 1


def test_all_methods_are_compared_at_the_same_points_in_both_units() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(3, 4, *GRID.shape, generator=generator)
    known = gaps(seed=5)
    batch = make_batch(x, known)
    hidden = torch.rand(3, *GRID.shape, generator=generator) < 0.2
    spec, normalizer = FieldSpec(grid=GRID), Normalizer((5.0, -1.0), (2.0, 0.5))
    model = Answers(batch.x)
    errors = filling_errors(model, batch, hidden, spec, normalizer)
    assert model.training
    assert list(errors) == ["model", "mean", "laplace", "cubic", "biharmonic"]
    assert torch.equal(model.mask, known & ~hidden)
    assert not bool(model.x[~model.mask[:, None].expand_as(x)].any())
    assert errors["model"].standardised == pytest.approx(1.0)
    assert errors["model"].physical == pytest.approx((2.0, 0.5))
    counted = hidden & known
    assert errors["mean"].count == 2 * int(counted.sum())
    filled = fill_mean(batch.x, known & ~hidden, GRID)
    wrong = (filled - x).movedim(1, 0)[:, counted]
    assert errors["mean"].standardised == pytest.approx(float(wrong.square().mean().sqrt()))
    shifted = filling_errors(model, batch, hidden, spec, normalizer, truth=batch.x + 1, methods={})
    assert shifted["model"].standardised == pytest.approx(0.0)


def test_errors_of_batches_add_up() -> None:
    a = FillingError(squares=(4.0, 0.0), count=2, scales=(1.0, 3.0))
    b = FillingError(squares=(0.0, 6.0), count=1, scales=(1.0, 3.0))
    both = a + b
    assert both.count == 3
    assert both.standardised == pytest.approx(math.sqrt(10 / 6))
    assert both.physical == pytest.approx((math.sqrt(4 / 3), 3 * math.sqrt(2)))
    with pytest.raises(ValueError, match="equal scales"):
        a + replace(b, scales=(1.0, 1.0))
