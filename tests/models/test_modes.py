"""Mean and modes of fields, and the likeliest field through some points."""

import pytest
import torch

from pibert import build_model
from pibert.models.modes import LEAST_NOISE, FieldModes

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


def fitted(x: torch.Tensor, count: int) -> FieldModes:
    modes = FieldModes(count, SHAPE).double()
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


def test_a_gap_in_a_field_of_few_modes_is_filled_exactly_but_for_the_prior() -> None:
    x, _ = drawn(300, modes=4, noise=0.0, seed=0)
    modes = fitted(x, 4)
    assert modes.noise.item() == pytest.approx(LEAST_NOISE)
    unseen, _ = drawn(5, modes=4, noise=0.0, seed=1)
    known = hidden_points(5)
    filled = modes(torch.where(known[:, None], unseen, 0.0), known)
    assert (filled - unseen).abs().max() < 2e-3 * unseen.std()


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


def test_where_nothing_is_known_the_answer_is_the_mean() -> None:
    x, _ = drawn(50, modes=4, noise=0.1, seed=0)
    modes = fitted(x, 4)
    nothing = torch.zeros(2, *SHAPE[1:], dtype=torch.bool)
    found = modes(torch.zeros(2, *SHAPE, dtype=torch.float64), nothing)
    torch.testing.assert_close(found, modes.mean.expand_as(found))


def test_unknown_points_do_not_enter_the_mean() -> None:
    x, _ = drawn(60, modes=3, noise=0.1, seed=0)
    known = torch.rand(60, *SHAPE[1:], generator=torch.Generator().manual_seed(1)) < 0.7
    modes = FieldModes(3, SHAPE).double()
    modes.fit(torch.where(known[:, None], x, 1e6), known)
    here = known[:, None].double()
    torch.testing.assert_close(modes.mean, (x * here).sum(0) / here.sum(0))


def test_fewer_fields_than_modes_are_refused() -> None:
    with pytest.raises(ValueError, match="more fields than the 8 modes, found 8"):
        FieldModes(8, SHAPE).fit(torch.zeros(8, *SHAPE), torch.ones(8, *SHAPE[1:]).bool())


def test_an_untrained_model_with_modes_fills_with_the_likeliest_field() -> None:
    x = torch.randn(40, 2, 64, 64, generator=torch.Generator().manual_seed(0))
    model = build_model("pibert", fill_modes=5, depth=1, width=16)
    model.calibrate(x)
    known = torch.rand(3, 64, 64, generator=torch.Generator().manual_seed(1)) < 0.8
    filled = model.reconstruct(x[:3], mask=known)
    torch.testing.assert_close(
        filled, torch.where(known[:, None], x[:3], model.modes(x[:3] * known[:, None], known))
    )
    with pytest.raises(ValueError, match=r"modes are of fields on \(64, 64\) points"):
        model.reconstruct(x[:3, :, :32], mask=known[:, :32])
