"""The physics bias: which residual each token gets, in which units, and what does not count."""

import math

import pytest
import torch

from pibert import FieldSpec, Grid, Normalizer, Parameter
from pibert.models.bias import PhysicsBias, at_resolution
from pibert.physics import find_family
from tests.helpers import randomise, tiny_model, tiny_spec


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


def test_changing_the_units_changes_nothing_after_calibration() -> None:
    """Metres or millimetres: each residual is measured against its own scale."""
    x = torch.randn(4, 2, 16, 16)
    results = []
    for length, speed in ((1.0, 1.0), (1e-3, 40.0)):
        spec = FieldSpec(
            family="incompressible", grid=Grid((16, 16), dx=0.5 * length, dy=0.25 * length)
        )
        bias = PhysicsBias(spec, 4)
        bias.set_normalizer(Normalizer((0.3 * speed, 0.1 * speed), (1.0 * speed, 2.0 * speed)))
        bias.calibrate(x)
        results.append(bias(x))
    assert torch.allclose(results[0], results[1], rtol=1e-3)


def test_before_calibration_the_scales_have_the_right_units() -> None:
    """A model in millimetres must not be swamped by residuals of a million per second."""
    spec = FieldSpec(family="incompressible", grid=Grid((16, 16), dx=1e-3, dy=1e-3))
    bias = PhysicsBias(spec, 4)
    x = torch.randn(2, 2, 16, 16)
    assert bias(x).mean() < 5
    bias.set_normalizer(Normalizer((3.0, 0.0), (40.0, 20.0)))
    assert bias(x).mean() < 5


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


def test_the_body_does_not_count() -> None:
    body = torch.zeros(16, 16, dtype=torch.bool)
    body[6:9, 6:9] = True
    spec = FieldSpec(family="incompressible", grid=Grid((16, 16), body=body))
    bias = PhysicsBias(spec, 4)
    x = torch.randn(1, 2, 16, 16)
    spoiled = torch.where(body, 1e4, x)
    assert torch.equal(bias(x), bias(spoiled))
    masked = PhysicsBias(FieldSpec(family="incompressible", grid=Grid((16, 16))), 4)
    masked.scales.copy_(bias.scales)
    assert torch.allclose(bias(x), masked(x, mask=~body))


def test_the_same_flow_at_twice_the_resolution_has_nearly_the_same_residual() -> None:
    spec = FieldSpec(
        family="incompressible",
        grid=Grid.periodic((32, 32), dx=2 * math.pi / 32, dy=2 * math.pi / 32),
    )
    bias = PhysicsBias(spec, 8)
    results = []
    for n in (32, 64):
        angle = torch.arange(n) * (2 * math.pi / n)
        u = torch.sin(angle)[:, None] + torch.cos(angle)
        v = torch.cos(2 * angle)[:, None] * torch.sin(angle)
        r = bias(torch.stack((u, v))[None])
        results.append(r.view(n // 8, n // 8))
    coarse = torch.nn.functional.avg_pool2d(results[1][None], 2)[0]
    assert (coarse - results[0]).abs().max() < 0.1 * results[0].max()  # wrong spacing: a factor 2


def test_an_unknown_coefficient_that_has_no_term_of_its_own_takes_its_usual_value() -> None:
    spec = FieldSpec(
        channels=("rho", "u", "v", "p"),
        family="euler",
        grid=Grid.periodic((16, 16)),
        parameters=(Parameter(name="gamma"),),
    )
    bias = PhysicsBias(spec, 4)
    x = torch.rand(2, 4, 16, 16) + 1.0
    unknown = bias(x, spec.encode_parameters({}).expand(2, -1))
    assert torch.allclose(unknown, bias(x), rtol=1e-4)
    other = bias(x, spec.encode_parameters({"gamma": 1.6}).expand(2, -1))
    assert not torch.allclose(other, bias(x))


def test_calibration_takes_one_mask_for_all_samples() -> None:
    x, mask = torch.randn(300, 2, 16, 16), torch.rand(16, 16) > 0.1
    one, each = PhysicsBias(tiny_spec(), 4), PhysicsBias(tiny_spec(), 4)
    one.calibrate(x, mask=mask)
    each.calibrate(x, mask=mask.expand(300, 16, 16))
    assert torch.equal(one.scales, each.scales)


def test_buffers_travel_with_the_weights() -> None:
    model = randomise(tiny_model(spec=tiny_spec()))
    model.calibrate(torch.randn(8, 2, 16, 16), Normalizer((0.1, 0.2), (2.0, 3.0)))
    other = tiny_model(spec=tiny_spec())
    other.load_state_dict(model.state_dict())
    x = torch.randn(2, 2, 16, 16)
    assert other.physics_bias is not None and model.physics_bias is not None
    assert torch.equal(other.physics_bias(x), model.physics_bias(x))
    assert {"scales", "spacing", "mean", "std", "weights"} <= {
        name.removeprefix("physics_bias.") for name, _ in model.named_buffers()
    }


def test_weights_from_another_grid_are_told_and_the_spec_holds() -> None:
    model = tiny_model(spec=tiny_spec())
    other = tiny_model(spec=tiny_spec(grid=Grid((16, 16), dx=2.0)))
    x = torch.randn(2, 2, 16, 16)
    assert other.physics_bias is not None
    with pytest.warns(UserWarning, match="keeps its own; calibrate it"):
        other.load_state_dict(model.state_dict())
    fresh = tiny_model(spec=tiny_spec(grid=Grid((16, 16), dx=2.0)))
    assert fresh.physics_bias is not None
    for bias in (other.physics_bias, fresh.physics_bias):
        bias.calibrate(x)
    assert torch.equal(other.physics_bias(x), fresh.physics_bias(x))


def test_keys_get_minus_lambda_r_and_the_parameter_token_nothing() -> None:
    model = randomise(tiny_model(attention_bias=0.3))
    x = torch.randn(2, 2, 16, 16)
    bias = model._logit_bias(x, None, None, (4, 4))
    assert model.physics_bias is not None
    assert bias is not None and bias.shape == (2, 17)
    assert (bias[:, -1] == 0).all()
    assert torch.allclose(bias[:, :-1], -0.3 * model.physics_bias(x))


def test_the_pairwise_bias_is_added_and_weighed_by_lambda() -> None:
    model = randomise(tiny_model(attention_bias=0.3, relative_bias=True))
    bias = model._logit_bias(torch.randn(2, 2, 16, 16), None, None, (4, 4))
    assert model.relative_bias is not None and bias is not None
    pairwise = bias - bias[:, :, -1:, :]  # the parameter token's row has the key-wise part alone
    assert torch.allclose(pairwise[0, 0, :16, :16], -0.3 * model.relative_bias(), atol=1e-6)


def test_the_bias_takes_the_newest_frames_their_time_step_and_optional_channels() -> None:
    spec = tiny_spec(channels=("p", "u", "v"), units=(), parameters=(), viscosity=0.1)
    bias = PhysicsBias(spec, 4, history=3, family="incompressible-momentum")
    x = torch.randn(2, 9, 16, 16)
    frames = x.view(2, 3, 3, 16, 16)[:, -2:]
    fields = {name: frames[:, :, index] for index, name in enumerate(spec.channels)}
    residuals = find_family("incompressible-momentum").residuals(
        fields, spec.grid, dt=spec.dt, viscosity=0.1
    )
    parts = [r.norm(dim=1) / s for r, s in zip(residuals.values(), bias.scales, strict=True)]
    expected = torch.nn.functional.avg_pool2d(parts[0] + parts[1], 4).flatten(1)
    assert torch.allclose(bias(x), expected, rtol=1e-4)


def test_on_another_resolution_each_spacing_scales_by_itself_and_the_body_stays() -> None:
    body = torch.zeros(64, 64, dtype=torch.bool)
    body[0, 0] = body[33, 35] = True
    grid = at_resolution(Grid((64, 64), dx=0.5, dy=0.25, body=body), (16, 32))
    assert (grid.dx, grid.dy) == (1.0, 1.0)
    assert grid.body is not None and grid.body.nonzero().tolist() == [[0, 0], [8, 17]]


def test_calibration_heeds_mask_and_parameters() -> None:
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
    with pytest.raises(ValueError, match="expected finite training samples"):
        clean.calibrate(spoiled)


def test_autocast_does_not_round_the_residual() -> None:
    bias = PhysicsBias(tiny_spec(), 4)
    x = torch.randn(2, 2, 16, 16)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(bias(x), PhysicsBias(tiny_spec(), 4)(x))
        assert bias(x).dtype == torch.float32


@pytest.mark.parametrize(
    ("family", "channels"), [("heat", ("u",)), ("wave", ("u",)), ("euler", ("rho", "u", "v", "p"))]
)
def test_another_family_needs_no_change_of_the_model(
    family: str, channels: tuple[str, ...]
) -> None:
    spec = FieldSpec(
        channels=channels,
        family=family,
        dt=0.1,
        grid=Grid.periodic((16, 16)),
        parameters=(Parameter(name="diffusivity"), Parameter(name="speed")),
    )
    model = randomise(tiny_model(spec=spec, history=3))
    x = torch.rand(2, 3 * len(channels), 16, 16) + 1.0
    y = model(x, torch.rand(2, 2) + 0.5)
    assert y.shape == (2, len(channels), 16, 16) and torch.isfinite(y).all()
    assert model.physics_bias is not None
    assert (model.physics_bias(x, torch.rand(2, 2) + 0.5) > 0).any()
