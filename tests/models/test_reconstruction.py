"""First guesses at unknown points: the thin plate and the POD modes."""

import pytest
import torch

from pibert import build_model
from pibert.fields import Grid
from pibert.models.reconstruction import PODModes, fill_smoothly
from studies.filling_metrics import fill_biharmonic
from tests.helpers import refused, tiny_model


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


def test_with_enough_steps_a_gap_is_filled_as_by_a_thin_plate():
    pytest.importorskip("scipy")
    grid = Grid((20, 26), dx=0.3, dy=0.2)
    x, y = grid.coordinates(torch.float64)
    field = (torch.sin(0.9 * x) * torch.cos(1.3 * y) + x * y).expand(2, 1, 20, 26)
    known = gap((20, 26), slice(7, 12), slice(9, 14))
    known[:, 0, :3] = False
    seen = torch.where(known[:, None], field, 0.0)
    plate = fill_biharmonic(seen, known, grid)
    soon = (fill_smoothly(seen, known, (0.2, 0.3)) - plate).abs().max()
    assert soon < 0.02
    assert (fill_smoothly(seen, known, (0.2, 0.3), steps=120) - plate).abs().max() < 1e-6
    assert (fill_smoothly(seen, known) - plate).abs().max() > 5e-3  # the spacing matters


def test_an_untrained_model_reconstructs_by_the_smooth_guess():
    model = tiny_model().eval()
    x, known = torch.randn(2, 2, 16, 16), gap((16, 16), slice(4, 9), slice(2, 11))
    grid = model.spec.grid
    seen = torch.where(known[:, None], x, 0.0)
    guess = fill_smoothly(seen, known, (grid.dy, grid.dx))
    torch.testing.assert_close(model.reconstruct(x, mask=known), guess)
    torch.testing.assert_close(model.reconstruct(x), x)


SHAPE = (2, 6, 9)


def drawn(count: int, *, modes: int, noise: float, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Fields of a planted Gaussian, and its modes, orthonormal, largest first."""
    generator = torch.Generator().manual_seed(7)
    size = SHAPE[0] * SHAPE[1] * SHAPE[2]
    basis = torch.linalg.qr(torch.randn(size, modes, generator=generator, dtype=torch.float64))[0]
    spread = torch.arange(modes, 0, -1, dtype=torch.float64)
    mean = torch.randn(size, generator=generator, dtype=torch.float64)
    generator = torch.Generator().manual_seed(seed)
    amplitudes = spread * torch.randn(count, modes, generator=generator, dtype=torch.float64)
    rest = noise * torch.randn(count, size, generator=generator, dtype=torch.float64)
    return (mean + amplitudes @ basis.T + rest).view(count, *SHAPE), basis.T


def fitted(x: torch.Tensor, count: int) -> PODModes:
    modes = PODModes(count, SHAPE).double()
    modes.fit(x, torch.ones(len(x), *SHAPE[1:], dtype=torch.bool))
    return modes


def hidden_points(count: int) -> torch.Tensor:
    known = torch.ones(count, *SHAPE[1:], dtype=torch.bool)
    known[:, 1:4, 2:5] = False
    return known


def test_planted_modes_variances_and_noise_are_found() -> None:
    x, basis = drawn(4000, modes=4, noise=0.1, seed=0)
    modes = fitted(x, 4)
    overlap = (modes.modes.flatten(1) @ basis.T).abs()
    torch.testing.assert_close(overlap, torch.eye(4, dtype=torch.float64), atol=0.1, rtol=0.0)
    expected = torch.tensor([16.0, 9.0, 4.0, 1.0], dtype=torch.float64)
    torch.testing.assert_close(modes.variances, expected, rtol=0.1, atol=0.0)
    assert abs(modes.noise.item() - 0.1) < 0.005


def test_the_answer_is_the_conditional_mean_of_the_gaussian() -> None:
    x, _ = drawn(500, modes=4, noise=0.3, seed=0)
    modes = fitted(x, 4)
    unseen, _ = drawn(3, modes=4, noise=0.3, seed=2)
    known = hidden_points(3)
    basis = modes.modes.flatten(1)
    size = basis.shape[1]
    covariance = basis.T @ modes.variances.diag() @ basis
    at = known[0].expand(SHAPE).flatten()
    seen = covariance[at][:, at] + modes.noise.square() * torch.eye(int(at.sum()))
    weights = covariance[:, at] @ torch.linalg.inv(seen)
    expected = modes.mean.flatten() + (unseen - modes.mean).flatten(1)[:, at] @ weights.T
    found = modes(torch.where(known[:, None], unseen, 123.0), known).flatten(1)
    assert size == expected.shape[1]
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-6)


def test_an_untrained_model_with_modes_fills_with_the_likeliest_field() -> None:
    x = torch.randn(40, 2, 64, 64, generator=torch.Generator().manual_seed(0))
    model = build_model("pibert", fill_modes=5, depth=1, width=16)
    model.calibrate(x)
    known = torch.rand(3, 64, 64, generator=torch.Generator().manual_seed(1)) < 0.8
    filled = model.reconstruct(x[:3], mask=known)
    torch.testing.assert_close(
        filled, torch.where(known[:, None], x[:3], model.pod_modes(x[:3] * known[:, None], known))
    )
    with refused((64, 64)):
        model.reconstruct(x[:3, :, :32], mask=known[:, :32])
