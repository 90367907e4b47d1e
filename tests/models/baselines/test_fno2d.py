"""FNO2d: the spectral product, resolution, padding."""

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from pibert.fields import FieldSpec, Grid
from pibert.models import count_parameters
from pibert.models.baselines.fno2d import FNO2d, FNO2dConfig, SpectralConvolution
from tests.helpers import assert_close, tiny_spec
from tests.physics.helpers import noise

SMALL: dict[str, Any] = {"width": 6, "modes": 3, "depth": 2, "head_width": 5}


def make(spec: FieldSpec | None = None, seed: int = 0, **options: Any) -> FNO2d:
    """A small model whose last layer is not zero."""
    torch.manual_seed(seed)
    model = FNO2d(FNO2dConfig(**(SMALL | options)), spec or tiny_spec((12, 20))).double()
    torch.nn.init.normal_(model.read_out.weight)
    return model


def by_fft(layer: SpectralConvolution, z: Tensor) -> Tensor:
    """The definition, mode by mode."""
    ny, nx = z.shape[-2:]
    spectrum = torch.fft.rfft2(z)
    mixed = torch.zeros_like(spectrum)
    weight = torch.view_as_complex(layer.weight.detach())
    for ky in range(-(ny // 2), (ny + 1) // 2):
        for kx in range(nx // 2 + 1):
            if -layer.modes <= ky < layer.modes and kx < layer.modes:
                block = weight[ky if ky >= 0 else 2 * layer.modes + ky, kx]
                mixed[..., ky, kx] = spectrum[..., ky, kx] @ block
    return torch.fft.irfft2(mixed, s=(ny, nx))


@pytest.mark.parametrize("shape", [(12, 20), (13, 9), (6, 5), (5, 6), (4, 7), (7, 4), (2, 3)])
def test_the_spectral_product_is_that_of_the_fourier_transform(shape: tuple[int, int]) -> None:
    """Also for grids with fewer modes than the layer, and at Nyquist."""
    torch.manual_seed(0)
    layer = SpectralConvolution(4, 3).double()
    z = noise(2, 4, *shape)
    assert torch.allclose(layer(z), by_fft(layer, z), atol=1e-12)


def test_a_fresh_kept_mode_keeps_its_size_on_average() -> None:
    torch.manual_seed(0)
    weight = SpectralConvolution(20, 6).weight
    assert_close(weight.square().sum(-1).mean(), 1 / 20, rtol=0.05)


def unit_axes(ny: int, nx: int) -> tuple[Tensor, Tensor]:
    y, x = (torch.arange(n, dtype=torch.float64) / n for n in (ny, nx))
    return y[:, None], x


def low_waves(ny: int, nx: int) -> Tensor:
    y, x = unit_axes(ny, nx)
    return 0.5 * (2 * math.pi * torch.stack((x - y, x + 0.2 + 2 * y))).sin()[None]


def test_twice_the_resolution_gives_the_same_function_of_a_band_limited_field() -> None:
    model = make(tiny_spec((24, 32)), residual=False)
    with torch.no_grad():
        model.lift.weight[:, 2:] = 0  # coordinates are not band-limited
    coarse, fine = model(low_waves(24, 32)), model(low_waves(48, 64))
    assert (fine[..., ::2, ::2] - coarse).abs().max() < 1e-4 * coarse.abs().max()
    # One layer alone agrees to rounding.
    layer = model.spectral[0]
    z = low_waves(24, 32).repeat(1, 3, 1, 1), low_waves(48, 64).repeat(1, 3, 1, 1)
    assert torch.allclose(layer(z[1])[..., ::2, ::2], layer(z[0]), atol=1e-12)


def test_padding_is_zeros_of_the_latent_field_that_are_cropped() -> None:
    model, padded = make(residual=False), make(residual=False, padding=4)
    assert count_parameters(model) == count_parameters(padded)
    x = noise(2, 2, 12, 20)
    z = F.pad(padded.lift(padded.with_coordinates(x)), (0, 4, 0, 4))
    z = F.gelu(padded.spectral[0](z) + padded.skips[0](z))
    z = (padded.spectral[1](z) + padded.skips[1](z))[..., :12, :20]
    expected = padded.read_out(F.gelu(padded.hidden(z)))
    assert torch.allclose(padded(x), expected, atol=1e-12)
    assert not torch.allclose(padded(x), model(x))
    # Periodic sides are not padded.
    periodic = FieldSpec(grid=Grid.periodic((12, 20)))
    assert torch.equal(make(periodic, padding=4)(x), make(periodic)(x))
