"""Classical fillings against polynomials and brute force, and the comparison with a model."""

import math

import pytest
import torch
from torch import Tensor, nn

from pibert.fields import FieldSpec, Grid, Normalizer
from studies.filling_metrics import (
    FILLINGS,
    fill_biharmonic,
    fill_laplace,
    fill_mean,
    filling_errors,
)
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


def test_the_plate_keeps_cubic_polynomials_away_from_the_sides() -> None:
    field, known = polynomial(3)[None], gaps(margin=2)
    torch.testing.assert_close(fill_biharmonic(field, known, GRID), field, rtol=1e-8, atol=1e-8)
    assert float((fill_laplace(field, known, GRID) - field).abs().max()) > 1e-3


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
