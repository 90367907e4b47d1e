import pytest
import torch
from torch import Tensor

from pibert.pretraining import phases
from pibert.sample_rng import sample_seeds


def rough(b: int, f: int, ny: int, nx: int, dtype: torch.dtype = torch.float64) -> Tensor:
    """Fields with a mean and energy in every mode."""
    generator = torch.Generator().manual_seed(1)
    noise = torch.randn(b, f, ny, nx, dtype=dtype, generator=generator)
    smooth = noise.cumsum(-1) + noise.cumsum(-2)
    return 1.5 + smooth / smooth.std() + 0.1 * noise


def noise_of(x: Tensor, amplitude: float, known: Tensor | None = None, seed: int = 0) -> Tensor:
    seeds = sample_seeds(seed, 0, torch.arange(len(x)))
    angles = phases.random_angles(seeds, "test", x)
    angles = phases.angles_of_size(x, angles, torch.full((len(x),), amplitude, dtype=x.dtype))
    known = torch.ones(len(x), *x.shape[-2:], dtype=torch.bool) if known is None else known
    return phases.turned(x, angles, known)


@pytest.mark.parametrize("shape", [(12, 18), (9, 15)])
def test_turned_modes_keep_mean_variance_and_every_amplitude(shape: tuple[int, int]) -> None:
    x = rough(3, 2, *shape)
    y = noise_of(x, 0.3)
    assert (y - x).abs().amin((0, 2, 3)).max() < 1  # the same scale of numbers
    torch.testing.assert_close(torch.fft.fft2(y).abs(), torch.fft.fft2(x).abs())
    torch.testing.assert_close(y.mean((-2, -1)), x.mean((-2, -1)))
    torch.testing.assert_close(y.var((-2, -1)), x.var((-2, -1)))


def test_unknown_points_stay_zero_and_known_ones_keep_their_moments() -> None:
    x = rough(3, 2, 20, 24)
    known = torch.ones(3, 20, 24, dtype=torch.bool)
    known[:, 6:12, 4:9] = False
    x = torch.where(known[:, None], x, 0.0)
    y = noise_of(x, 0.2, known)
    assert bool((y[:, :, 6:12, 4:9] == 0).all())
    for mine, theirs in zip(phases.moments(y, known), phases.moments(x, known), strict=True):
        torch.testing.assert_close(mine, theirs)
    change = phases.moments(y - x, known)[1] / phases.moments(x, known)[1]
    assert 0.15 < change.min() and change.max() < 0.22
    before, after = torch.fft.rfft2(x).abs(), torch.fft.rfft2(y).abs()
    once = phases.turned(x, phases.random_angles(torch.arange(3), "t", x) * 0.2, known, rounds=0)
    naive = (torch.fft.rfft2(once).abs() - before).square().sum()
    assert (after - before).square().sum() < naive / 50
