"""Attention with a bias, and the physics bias of the tokens."""

import math

import pytest
import torch

from pibert import Grid, Normalizer
from pibert.models.attention import (
    CPU_FEATURES,
    GPU_FEATURES,
    Attention,
    PhysicsBias,
    append_bias,
    at_resolution,
)
from pibert.physics import find_family
from tests.helpers import randomise, refused, tiny_model, tiny_spec


@pytest.mark.parametrize("features", [CPU_FEATURES, GPU_FEATURES])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
def test_appended_features_add_the_bias_to_every_logit(features: int, dtype: torch.dtype) -> None:
    generator = torch.Generator().manual_seed(0)
    q, k = (torch.randn(2, 3, 7, 16, generator=generator, dtype=dtype) for _ in range(2))
    bias = -5 * torch.rand(2, 7, generator=generator)
    wide_q, wide_k = append_bias(q, k, bias, features)
    assert wide_q.shape == wide_k.shape == (2, 3, 7, 16 + features)
    logits = wide_q.double() @ wide_k.double().mT / 16**0.5
    expected = q.double() @ k.double().mT / 16**0.5 + bias.double()[:, None, None, :]
    # Two features hold the bias to about twice the digits of the type.
    assert (logits - expected).abs().max() < 4 * torch.finfo(dtype).eps ** 2 + 1e-6


@pytest.mark.parametrize("dense", [False, True])
def test_weights_of_keys_are_those_that_attention_applies(dense: bool) -> None:
    layer, x = Attention(8, 2).double(), torch.randn(2, 7, 8, dtype=torch.float64)
    bias = -torch.rand(2, 2, 7, 7).double() if dense else -torch.rand(2, 7).double()
    values = layer.qkv(x).view(2, 7, 3, 2, 4)[:, :, 2].transpose(1, 2)
    mixed = (layer.weights(x, bias) @ values).transpose(1, 2).flatten(2)
    torch.testing.assert_close(layer(x, bias), layer.out(mixed))


def test_tokens_get_the_mean_residual_of_their_patch() -> None:
    spec = tiny_spec((12, 20), parameters=(), reference_velocity=None)
    bias = PhysicsBias(spec, 4, weights=(0.5, 2.0))
    normalizer = Normalizer((0.3, -0.2), (2.0, 3.0))
    bias.set_normalizer(normalizer)
    bias.scales.copy_(torch.tensor([3.0, 7.0]))
    x = torch.randn(2, 2, 12, 20)
    u, v = normalizer.invert(x)[:, None].unbind(2)
    residuals = find_family("incompressible").residuals({"u": u, "v": v}, spec.grid)
    field = 0.5 * residuals["divergence"].abs() / 3 + 2.0 * residuals["vorticity"].abs() / 7
    expected = torch.nn.functional.avg_pool2d(field, 4).flatten(1)
    found = bias(x)
    assert found.shape == (2, 15) and (found >= 0).all()
    assert torch.allclose(found, expected, rtol=1e-4)


def test_scales_are_the_rms_over_the_training_samples() -> None:
    spec = tiny_spec((16, 16), parameters=())
    bias = PhysicsBias(spec, 4)
    x = torch.randn(300, 2, 16, 16)
    bias.calibrate(x)
    residuals = find_family("incompressible").residuals({"u": x[:, :1], "v": x[:, 1:]}, spec.grid)
    rms = torch.stack([r.square().mean().sqrt() for r in residuals.values()])
    assert torch.allclose(bias.scales, rms, rtol=1e-4)


def test_viscosity_comes_from_the_reynolds_number_and_is_dropped_where_unknown() -> None:
    spec = tiny_spec((16, 16))
    bias = PhysicsBias(spec, 4)
    x = torch.randn(3, 2, 16, 16)
    reynolds = spec.encode_parameters({"Re": torch.tensor([100.0, 1000.0, 10.0])})
    reynolds[2] = math.nan
    found = bias(x, reynolds)
    for sample, viscosity in enumerate((1 / 100, 1 / 1000, None)):
        fixed = PhysicsBias(tiny_spec((16, 16), parameters=(), viscosity=viscosity), 4)
        fixed.scales.copy_(bias.scales)
        assert torch.allclose(found[sample], fixed(x)[sample], rtol=1e-4)
    assert torch.equal(bias(x), PhysicsBias(tiny_spec((16, 16), parameters=()), 4)(x))


def test_stencils_that_touch_a_masked_pixel_do_not_count() -> None:
    bias = PhysicsBias(tiny_spec((16, 16), parameters=()), 4)
    mask = torch.ones(16, 16)
    mask[5:7, 9] = 0
    x = torch.randn(1, 2, 16, 16)
    spoiled = x.clone()
    spoiled[..., 5:7, 9] = 1e4
    assert torch.equal(bias(x, mask=mask), bias(spoiled, mask=mask))
    assert not torch.allclose(bias(x), bias(x, mask=mask))
    nothing = bias(x, mask=torch.zeros(16, 16))
    assert not nothing.any()


def test_weights_of_another_grid_warn_and_the_spec_holds() -> None:
    model = tiny_model(spec=tiny_spec())
    other = tiny_model(spec=tiny_spec(grid=Grid((16, 16), dx=2.0)))
    x = torch.randn(2, 2, 16, 16)
    assert other.physics_bias is not None
    with pytest.warns(UserWarning, match="keeps it; calibrate the model"):
        other.load_state_dict(model.state_dict())
    fresh = tiny_model(spec=tiny_spec(grid=Grid((16, 16), dx=2.0)))
    assert fresh.physics_bias is not None
    for bias in (other.physics_bias, fresh.physics_bias):
        bias.calibrate(x)
    assert torch.equal(other.physics_bias(x), fresh.physics_bias(x))


def test_the_bias_of_keys_is_minus_lambda_r_and_zero_for_the_parameter_token() -> None:
    model = randomise(tiny_model(attention_bias=0.3))
    x = torch.randn(2, 2, 16, 16)
    bias = model._logit_bias(x, None, None)
    assert model.physics_bias is not None
    assert bias is not None and bias.shape == (2, 17)
    assert (bias[:, -1] == 0).all()
    assert torch.allclose(bias[:, :-1], -0.3 * model.physics_bias(x))


def test_the_bias_uses_the_newest_frames_their_time_step_and_optional_channels() -> None:
    spec = tiny_spec(channels=("p", "u", "v"), units=(), parameters=(), viscosity=0.1)
    bias = PhysicsBias(spec, 4, history=3, family="incompressible-momentum")
    x = torch.randn(2, 9, 16, 16)
    frames = x.view(2, 3, 3, 16, 16)[:, -2:]
    fields = {name: frames[:, :, index] for index, name in enumerate(spec.channels)}
    residuals = find_family("incompressible-momentum").residuals(
        fields, spec.grid, dt=spec.dt, viscosity=0.1
    )
    terms = [r.norm(dim=1) / s for r, s in zip(residuals.values(), bias.scales, strict=True)]
    expected = torch.nn.functional.avg_pool2d(terms[0] + terms[1], 4).flatten(1)
    assert torch.allclose(bias(x), expected, rtol=1e-4)


def test_another_resolution_scales_both_spacings_and_keeps_the_body() -> None:
    body = torch.zeros(64, 64, dtype=torch.bool)
    body[0, 0] = body[33, 35] = True
    grid = at_resolution(Grid((64, 64), dx=0.5, dy=0.25, body=body), (16, 32))
    assert (grid.dx, grid.dy) == (1.0, 1.0)
    assert grid.body is not None and grid.body.nonzero().tolist() == [[0, 0], [8, 17]]


def test_calibration_uses_mask_and_parameters() -> None:
    spec = tiny_spec()
    x = torch.randn(4, 2, 16, 16)
    mask = torch.ones(16, 16)
    mask[4:6] = 0
    spoiled = torch.where(mask.bool(), x, math.nan)
    clean, masked, viscous = (PhysicsBias(spec, 4) for _ in range(3))
    masked.calibrate(spoiled, mask=mask)
    viscous.calibrate(x, spec.encode_parameters({"Re": torch.full((4,), 2.0)}))
    clean.calibrate(x)
    assert (masked.scales / clean.scales - 1).abs().max() < 0.2
    assert viscous.scales[1] > 1.5 * clean.scales[1]
    with refused("finite training samples"):
        clean.calibrate(spoiled)
