import pytest
import torch
from torch import Tensor

from pibert.draws import sample_seeds
from pibert.pretraining import phases


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


@pytest.mark.parametrize("shape", [(12, 18), (13, 18), (12, 17), (9, 15)])
def test_turned_modes_keep_mean_variance_and_every_amplitude(shape: tuple[int, int]) -> None:
    x = rough(3, 2, *shape)
    y = noise_of(x, 0.3)
    assert (y - x).abs().amin((0, 2, 3)).max() < 1  # the same scale of numbers
    torch.testing.assert_close(torch.fft.fft2(y).abs(), torch.fft.fft2(x).abs())
    torch.testing.assert_close(y.mean((-2, -1)), x.mean((-2, -1)))
    torch.testing.assert_close(y.var((-2, -1)), x.var((-2, -1)))


@pytest.mark.parametrize("shape", [(12, 18), (9, 15)])
def test_angles_are_those_of_a_real_field(shape: tuple[int, int]) -> None:
    """Turning the half spectrum is the same as turning the whole one, whose inverse is real."""
    x = rough(2, 1, *shape)
    ny, nx = shape
    half = phases.random_angles(torch.arange(2), "test", x)
    ky, kx = torch.meshgrid(torch.arange(ny), torch.arange(nx), indexing="ij")
    mirrored = kx > nx // 2
    source_y = torch.where(mirrored, -ky % ny, ky)
    source_x = torch.where(mirrored, nx - kx, kx)
    whole = torch.where(mirrored, -1.0, 1.0) * half[:, :, source_y, source_x]
    turned = torch.fft.ifft2(torch.fft.fft2(x) * torch.exp(1j * whole))
    assert turned.imag.abs().max() < 1e-12
    known = torch.ones(2, *shape, dtype=torch.bool)
    torch.testing.assert_close(phases.turned(x, half, known), turned.real)


@pytest.mark.parametrize("amplitude", [0.03, 0.1, 0.3])
def test_the_change_has_the_size_that_was_asked_for(amplitude: float) -> None:
    x = rough(3, 2, 16, 24)
    change = (noise_of(x, amplitude) - x).square().mean((-2, -1)).sqrt()
    torch.testing.assert_close(
        change / x.std((-2, -1), correction=0),
        torch.full((3, 2), amplitude).double(),
        rtol=2e-3,
        atol=0.0,
    )


def test_channels_are_turned_independently() -> None:
    x = rough(4, 1, 16, 24).repeat(1, 2, 1, 1)
    change = noise_of(x, 0.2) - x
    both = torch.stack([torch.corrcoef(pair.flatten(1))[0, 1] for pair in change])
    assert both.abs().max() < 0.5


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


def test_a_field_without_fluctuation_stays() -> None:
    x = torch.full((1, 1, 8, 12), 2.5)
    torch.testing.assert_close(noise_of(x, 0.3), x)
