"""FNO2d: size, persistence at the start, both row blocks, resolution, reach, grids, options."""

import math
from typing import Any, cast

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from pibert.fields import FieldSpec, Grid
from pibert.models import count_parameters
from pibert.models.baselines.fno2d import PRESETS, FNO2d, FNO2dConfig, SpectralConvolution
from pibert.models.stepper import with_places
from tests.helpers import tiny_spec
from tests.models.stepping import (
    check_every_parameter_of_the_spec_enters,
    check_other_channels_train_in_every_part,
)

SMALL: dict[str, Any] = {"width": 6, "modes": 3, "depth": 2, "head_width": 5}


def make(spec: FieldSpec | None = None, seed: int = 0, **options: Any) -> FNO2d:
    """A small one whose last layer is not zero, so that there is something to see."""
    torch.manual_seed(seed)
    model = FNO2d(FNO2dConfig(**(SMALL | options)), spec or tiny_spec((12, 20))).double()
    torch.nn.init.normal_(model.read_out.weight)
    return model


def fields(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


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


@pytest.mark.parametrize(
    ("preset", "count"), [("base", 1_054_082), ("modes12", 2_368_162), ("modes16", 4_203_170)]
)
def test_presets_have_the_stated_number_of_parameters(preset: str, count: int) -> None:
    spec = FieldSpec(grid=Grid((64, 64)))
    model = FNO2d(PRESETS[preset], spec)
    assert count_parameters(model) == count
    x = torch.randn(1, 2, 64, 64)
    assert torch.equal(model(x), x)  # and starts as persistence


def test_persistence_at_the_start_is_for_the_skip_alone() -> None:
    spec, x = tiny_spec((12, 20)), torch.randn(2, 6, 12, 20)
    model = FNO2d(FNO2dConfig(**SMALL, history=3, horizon=2), spec)
    assert torch.equal(model(x), x[:, -2:].repeat(1, 2, 1, 1))
    plain = FNO2d(FNO2dConfig(**SMALL, history=3, horizon=2, residual=False), spec)
    assert plain.read_out.weight.any()


@pytest.mark.parametrize("shape", [(12, 20), (13, 9), (6, 5), (5, 6), (4, 7), (7, 4), (2, 3)])
def test_the_spectral_product_is_that_of_the_fourier_transform(shape: tuple[int, int]) -> None:
    """Also where a grid has fewer modes than were asked for, and at Nyquist's."""
    torch.manual_seed(0)
    layer = SpectralConvolution(4, 3).double()
    z = fields(2, 4, *shape)
    assert torch.allclose(layer(z), by_fft(layer, z), atol=1e-12)


def unit_axes(ny: int, nx: int) -> tuple[Tensor, Tensor]:
    y, x = (torch.arange(n, dtype=torch.float64) / n for n in (ny, nx))
    return y[:, None], x


def wave(ky: int, kx: int, ny: int = 12, nx: int = 20) -> Tensor:
    y, x = unit_axes(ny, nx)
    return (2 * math.pi * (kx * x + ky * y)).cos()[None, None]


def test_waves_that_run_up_and_down_have_weights_of_their_own() -> None:
    layer = SpectralConvolution(1, 3).double()
    with torch.no_grad():
        layer.weight.zero_()
        layer.weight[6 - 2, 1, 0, 0, 0] = 3.0  # k_y = -2, k_x = 1
    assert torch.allclose(layer(wave(-2, 1)), 3 * wave(-2, 1), atol=1e-12)
    assert layer(wave(2, 1)).abs().max() < 1e-12
    (gradient,) = torch.autograd.grad(layer(wave(-2, 1)).square().sum(), layer.weight)
    assert gradient[4, 1].abs().max() > 1
    gradient[4, 1] = 0
    assert gradient.abs().max() < 1e-10


def test_a_shift_of_waves_with_negative_ky_is_learned() -> None:
    """A quarter of a wave along y: +i for one sign of k_y, -i for the other."""
    torch.manual_seed(0)
    layer = SpectralConvolution(1, 3).double()
    x = torch.cat([wave(ky, kx) for ky in (-3, -2, -1) for kx in (1, 2)])
    y = x.roll(3, 2)
    optimiser = torch.optim.LBFGS(layer.parameters(), max_iter=60, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimiser.zero_grad()
        loss = (layer(x) - y).square().mean()
        loss.backward()
        return loss

    optimiser.step(closure)
    assert closure() < 1e-10


def test_the_model_turned_over_steps_the_field_turned_over() -> None:
    """With rows of weights exchanged; they have no partner at k_y = -M, nor anything at k_x = 0."""
    layer = SpectralConvolution(3, 3).double()
    with torch.no_grad():
        layer.weight[3] = 0
        layer.weight[:, 0] = 0
    turned = SpectralConvolution(3, 3).double()
    with torch.no_grad():
        turned.weight.copy_(layer.weight.roll(-1, 0).flip(0))  # k_y to -k_y
    z = fields(1, 3, 12, 20)

    def over(z: Tensor) -> Tensor:
        return z.flip(2).roll(1, 2)  # row y to -y

    assert torch.allclose(over(layer(z)), turned(over(z)), atol=1e-12)


def low_waves(ny: int, nx: int) -> Tensor:
    y, x = unit_axes(ny, nx)
    return 0.5 * (2 * math.pi * torch.stack((x - y, x + 0.2 + 2 * y))).sin()[None]


def test_twice_the_resolution_gives_the_same_function_of_a_band_limited_field() -> None:
    model = make(tiny_spec((24, 32)), residual=False)
    with torch.no_grad():
        model.lift.weight[:, 2:] = 0  # places are no band-limited field
    coarse, fine = model(low_waves(24, 32)), model(low_waves(48, 64))
    assert (fine[..., ::2, ::2] - coarse).abs().max() < 1e-4 * coarse.abs().max()
    # And one layer alone does so to rounding.
    layer = model.spectral[0]
    z = low_waves(24, 32).repeat(1, 3, 1, 1), low_waves(48, 64).repeat(1, 3, 1, 1)
    assert torch.allclose(layer(z[1])[..., ::2, ::2], layer(z[0]), atol=1e-12)


def test_a_far_pixel_reaches_every_output() -> None:
    model = make()
    x = fields(1, 2, 12, 20).requires_grad_()
    model(x)[0, 0, 1, 1].backward()
    assert x.grad is not None and x.grad[0, :, 7, 12].abs().min() > 1e-6


@pytest.mark.parametrize("shape", [(12, 20), (11, 7), (3, 5), (1, 1), (40, 30)])
def test_any_grid_goes_through(shape: tuple[int, int]) -> None:
    y = make(modes=8)(fields(2, 2, *shape))
    assert y.shape == (2, 2, *shape) and torch.isfinite(y).all()


def test_padding_is_zeros_of_the_latent_field_that_are_cropped() -> None:
    model, padded = make(residual=False), make(residual=False, padding=4)
    assert count_parameters(model) == count_parameters(padded)
    x = fields(2, 2, 12, 20)
    z = F.pad(padded.lift(with_places(x)), (0, 4, 0, 4))
    z = F.gelu(padded.spectral[0](z) + padded.skips[0](z))
    z = (padded.spectral[1](z) + padded.skips[1](z))[..., :12, :20]
    expected = padded.read_out(F.gelu(padded.hidden(z)))
    assert torch.allclose(padded(x), expected, atol=1e-12)
    assert not torch.allclose(padded(x), model(x))


@pytest.mark.parametrize("grid", [Grid((12, 20)), Grid.periodic((12, 20))])
def test_padding_keeps_sides_apart_that_are_not_periodic(grid: Grid) -> None:
    """An impulse at the right and the top, seen at the left and at the bottom.

    The kernel is a bump, equal and real weights that fade with the wave number: what comes around
    the corner is as strong as at a neighbour, unless zeros lie between.
    """

    def reach(padding: int) -> tuple[float, float]:
        model = make(FieldSpec(grid=grid), residual=False, modes=6, depth=1, padding=padding)
        rows = torch.tensor([*range(6), *range(-6, 0)]).double()[:, None]
        fade = torch.exp(-0.15 * (rows.square() + torch.arange(6).double().square()))
        with torch.no_grad():
            spectral, skip = (cast(Any, own[0]) for own in (model.spectral, model.skips))
            spectral.weight.zero_()
            spectral.weight[..., 0] = fade[..., None, None] * torch.eye(6).double()
            skip.weight.zero_()
        x = torch.zeros(3, 2, 12, 20).double()
        x[1, :, 6, -1] = x[2, :, -1, 10] = 1.0
        felt = (model(x) - model(x)[:1]).detach().abs().sum(1)
        return float(felt[1, 6, 0] / felt[1].max()), float(felt[2, 0, 10] / felt[2].max())

    wrapped, padded = reach(0), reach(6)
    assert min(wrapped) > 0.3
    if grid.periodic_x:
        assert padded == wrapped
    else:
        assert padded[0] < 0.2 * wrapped[0] and padded[1] < 0.2 * wrapped[1]


def test_parameters_enter_as_many_as_the_spec_has_if_asked() -> None:
    check_every_parameter_of_the_spec_enters(make, added=2 * SMALL["width"])


@pytest.mark.parametrize("channels", [1, 3])
def test_other_numbers_of_channels_and_frames_train_in_every_part(channels: int) -> None:
    check_other_channels_train_in_every_part(make, channels)


def test_autocast_keeps_spectral_sums_in_full_precision() -> None:
    model, x = make(residual=False).float(), fields(2, 2, 12, 20).float()
    z = torch.randn(1, 6, 12, 20)
    layer = model.spectral[0]
    with torch.no_grad():
        full, exact = model(x), layer(z)
        with torch.autocast("cpu", torch.bfloat16):
            half = model(x)
            assert torch.equal(layer(z), exact)
    assert (half - full).norm() < 2e-2 * full.norm()


def test_the_model_is_captured_as_one_graph(no_shape_checks: None) -> None:
    model, x = make().eval(), fields(2, 2, 12, 20)
    program = torch.export.export(model, (x,))
    assert torch.allclose(program.module()(x), model(x), atol=1e-12)


def test_sizes_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ValueError, match="modes must be at least 1, found 0"):
        FNO2dConfig(modes=0)
    with pytest.raises(ValueError, match="padding must be 0 or more cells, found -1"):
        FNO2dConfig(padding=-1)
