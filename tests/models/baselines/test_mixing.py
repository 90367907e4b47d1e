"""Fourier mixing against brute force on an odd, non-square lattice, and its weights of waves."""

import math
from typing import cast

import pytest
import torch
from torch import Tensor

from pibert.models.baselines.mixing import BlockLinear, FourierMixing, FreqWeight, wavenumbers

SHAPE = (3, 5)


def waves(n: int) -> Tensor:
    """The orthonormal DFT matrix."""
    places = torch.arange(n, dtype=torch.float64)
    return torch.exp(-2j * math.pi * places[:, None] * places / n) / math.sqrt(n)


@pytest.mark.parametrize("kind", ["magnitude", "wavenumber"])
def test_mixing_is_two_weighted_maps_of_the_waves(kind: FreqWeight) -> None:
    torch.manual_seed(0)
    layer = FourierMixing(4, 2, freq_weight=kind).double()
    with torch.no_grad():
        layer.gain.copy_(torch.tensor([0.7, -0.4], dtype=torch.float64))
        for matrix in layer.maps:
            torch.nn.init.normal_(cast(BlockLinear, matrix).bias)
    x = torch.randn(2, 15, 4, dtype=torch.float64)
    spectrum = torch.einsum(
        "ky,lx,byxd->bkld", waves(3), waves(5), x.view(2, 3, 5, 4).to(torch.complex128)
    )
    frequency = spectrum.abs()
    if kind == "wavenumber":
        ky, kx = torch.tensor([0, 1, 1]).double() / 3, torch.tensor([0, 1, 2, 2, 1]).double() / 5
        frequency = 2 * (ky[:, None] ** 2 + kx**2).sqrt()[..., None]
    first, second = (matrix_of(part) for part in layer.maps)
    hidden = spectrum @ first[0] * (1 + 0.7 * frequency) + first[1]
    hidden = torch.complex(hidden.real.relu(), hidden.imag.relu())
    mixed = hidden @ second[0] * (1 - 0.4 * frequency) + second[1]
    mixed = torch.complex(shrunk(mixed.real), shrunk(mixed.imag))
    # A real field is made of the waves of half the plane; the others are their conjugates.
    half = mixed[:, :, :3]
    half = torch.cat((half, mirrored(half)[:, :, 1:].flip(2)), 2)
    half[:, :, 0] = (half[:, :, 0] + mirrored(half[:, :, :1])[:, :, 0]) / 2
    field = torch.einsum("ky,lx,bkld->byxd", waves(3).conj(), waves(5).conj(), half)
    assert field.imag.abs().max() < 1e-12
    assert torch.allclose(layer.mix(x, SHAPE), field.real.reshape(2, 15, 4), atol=1e-10)


def matrix_of(part: torch.nn.Module) -> tuple[Tensor, Tensor]:
    """The whole block-diagonal matrix, and the bias."""
    part = cast(BlockLinear, part)
    weight = torch.view_as_complex(part.weight.detach())
    return torch.block_diag(*weight), torch.view_as_complex(part.bias.detach()).flatten()


def shrunk(values: Tensor) -> Tensor:
    return values.sign() * (values.abs() - 0.01).clamp(min=0)


def mirrored(spectrum: Tensor) -> Tensor:
    """Conjugates of the waves with -ky."""
    return spectrum[:, [0, 2, 1]].conj()


def test_wavenumbers_are_one_at_the_nyquist_limit_of_an_axis() -> None:
    k = wavenumbers(4, 6, device=torch.device("cpu"), dtype=torch.float64)[..., 0]
    assert k.shape == (4, 4) and k[0, 0] == 0
    assert k[2, 0].item() == pytest.approx(1) and k[0, 3].item() == pytest.approx(1)
    assert k[1, 0] == k[3, 0] and k[1, 1].item() == pytest.approx(math.hypot(0.5, 1 / 3))


def test_weights_of_frequencies_start_at_one_and_learn() -> None:
    torch.manual_seed(0)
    layer = FourierMixing(8, 2)
    assert not layer.gain.any()
    layer(torch.randn(2, 15, 8), SHAPE).square().mean().backward()
    assert layer.gain.grad is not None and layer.gain.grad.all()


def test_a_field_without_waves_has_finite_gradients() -> None:
    layer = FourierMixing(8, 2)
    x = torch.zeros(1, 15, 8, requires_grad=True)
    layer(x, SHAPE).sum().backward()
    assert x.grad is not None and x.grad.isfinite().all()


@pytest.mark.parametrize("shape", [(3, 5), (4, 6), (1, 7), (8, 2)])
@pytest.mark.parametrize("kind", ["magnitude", "wavenumber"])
def test_both_evaluations_agree(kind: FreqWeight, shape: tuple[int, int]) -> None:
    torch.manual_seed(0)
    layer = FourierMixing(4, 2, freq_weight=kind).double()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.normal_()
    x = torch.randn(2, shape[0] * shape[1], 4, dtype=torch.float64)
    by_fft = layer.mix(x, shape)
    layer.evaluation = "dft"
    assert torch.allclose(layer.mix(x, shape), by_fft, atol=1e-12, rtol=1e-12)
