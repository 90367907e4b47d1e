"""The smooth guess at unknown pixels."""

import pytest
import torch

from pibert.evaluation.filling import fill_biharmonic
from pibert.fields import Grid
from pibert.models import smoothing
from pibert.models.smoothing import fill_smoothly
from tests.helpers import tiny_model


def gap(shape: tuple[int, int], rows: slice, columns: slice) -> torch.Tensor:
    known = torch.ones(2, *shape, dtype=torch.bool)
    known[:, rows, columns] = False
    return known


@pytest.mark.parametrize("shape", [(16, 24), (13, 19), (1, 7)])
def test_known_pixels_stay_and_a_constant_is_filled_exactly(shape):
    known = gap(shape, slice(0, max(1, shape[0] // 2)), slice(3, 6))
    x = torch.where(known[:, None], 2.5, 0.0).double().expand(2, 3, *shape)
    torch.testing.assert_close(fill_smoothly(x, known), torch.full_like(x, 2.5))
    noisy = torch.where(known[:, None], torch.randn(2, 3, *shape).double(), 0.0)
    filled = fill_smoothly(noisy, known)
    assert torch.equal(
        filled[known[:, None].expand_as(filled)], noisy[known[:, None].expand_as(noisy)]
    )


def test_a_gap_in_a_slope_is_filled_better_than_by_the_mean():
    y, x = torch.meshgrid(torch.arange(32.0), torch.arange(48.0), indexing="ij")
    field = (0.1 * x - 0.05 * y).expand(2, 1, 32, 48)
    known = gap((32, 48), slice(10, 18), slice(20, 28))
    hidden = ~known[:, None]
    filled = fill_smoothly(torch.where(hidden, 0.0, field), known)
    error = (filled - field)[hidden].square().mean().sqrt()
    by_mean = (field[~hidden].mean() - field)[hidden].square().mean().sqrt()
    assert error < 0.25 * by_mean


def test_with_enough_steps_a_gap_is_filled_as_by_a_thin_plate(monkeypatch):
    pytest.importorskip("scipy")
    grid = Grid((20, 26), dx=0.3, dy=0.2)
    x, y = grid.coordinates(torch.float64)
    field = (torch.sin(0.9 * x) * torch.cos(1.3 * y) + x * y).expand(2, 1, 20, 26)
    known = gap((20, 26), slice(7, 12), slice(9, 14))
    known[:, 0, :3] = False
    seen = torch.where(known[:, None], field, 0.0)
    plate = fill_biharmonic(seen, known, grid)
    soon = (fill_smoothly(seen, known, (0.2, 0.3)) - plate).abs().max()
    monkeypatch.setattr(smoothing, "STEPS", 120)
    assert soon < 0.02
    assert (fill_smoothly(seen, known, (0.2, 0.3)) - plate).abs().max() < 1e-6
    assert (fill_smoothly(seen, known) - plate).abs().max() > 5e-3  # the spacing matters


def test_a_slope_is_filled_exactly_in_a_small_gap():
    y, x = torch.meshgrid(*(torch.arange(n).double() for n in (12, 16)), indexing="ij")
    field = (0.7 * x - 0.2 * y + 3).expand(2, 1, 12, 16)
    known = gap((12, 16), slice(4, 7), slice(5, 8))
    filled = fill_smoothly(torch.where(known[:, None], field, 0.0), known)
    torch.testing.assert_close(filled, field, rtol=1e-6, atol=1e-6)


def test_nothing_known_gives_zero():
    assert not fill_smoothly(torch.zeros(1, 2, 8, 8), torch.zeros(1, 8, 8).bool()).any()


def test_an_untrained_model_reconstructs_by_the_smooth_guess():
    model = tiny_model().eval()
    x, known = torch.randn(2, 2, 16, 16), gap((16, 16), slice(4, 9), slice(2, 11))
    grid = model.spec.grid
    seen = torch.where(known[:, None], x, 0.0)
    guess = fill_smoothly(seen, known, (grid.dy, grid.dx))
    torch.testing.assert_close(model.reconstruct(x, mask=known), guess)
    torch.testing.assert_close(model.reconstruct(x), x)
