"""PIBERT itself: size, persistence at the start, switches, grids, masks, parameters, errors."""

import math
from typing import Any

import pytest
import torch

from pibert import FieldSpec, Grid, Parameter, build_model
from pibert.models import PRESETS, count_parameters
from pibert.models.folding import _patches
from tests.helpers import randomise, tiny_model, tiny_spec


@pytest.mark.parametrize(("preset", "count"), [("base", 1_560_232), ("large", 8_714_248)])
def test_presets_have_the_published_number_of_parameters(preset: str, count: int) -> None:
    assert count_parameters(build_model("pibert", preset=preset)) == count


def test_a_complex_parameter_counts_as_two() -> None:
    layer = torch.nn.Module()
    layer.weight = torch.nn.Parameter(torch.zeros(3, 4, dtype=torch.complex64))
    assert count_parameters(layer) == 24


@pytest.mark.parametrize("preset", list(PRESETS["pibert"]))
def test_an_untrained_model_is_persistence_exactly(preset: str) -> None:
    x = torch.randn(2, 2, 64, 64)
    assert torch.equal(build_model("pibert", preset=preset).eval()(x), x)


def test_persistence_repeats_the_newest_frame_for_every_frame_ahead() -> None:
    model = tiny_model(history=3, horizon=2)
    x = torch.randn(2, 6, 16, 16)
    assert torch.equal(model(x), x[:, -2:].repeat(1, 2, 1, 1))


@pytest.mark.parametrize(("channels_in", "channels_out"), [(1, 1), (3, 1), (2, 3), (5, 5)])
def test_any_number_of_channels_goes_in_and_out(channels_in: int, channels_out: int) -> None:
    model = build_model(
        "pibert", width=32, depth=1, modes=4, in_channels=channels_in, out_channels=channels_out
    )
    x = torch.randn(2, channels_in, 64, 64)
    shared = min(channels_in, channels_out)
    y = model(x)
    assert y.shape == (2, channels_out, 64, 64)
    assert torch.equal(y[:, :shared], x[:, :shared])
    assert not y[:, shared:].any()
    assert torch.isfinite(randomise(model)(x)).all()


@pytest.mark.parametrize("shape", [(16, 16), (12, 20), (15, 22), (32, 16), (9, 7)])
def test_other_grids_than_the_models_own_work(shape: tuple[int, int]) -> None:
    model = randomise(tiny_model())
    assert model(torch.randn(2, 2, *shape)).shape == (2, 2, *shape)


def test_a_grid_that_is_no_multiple_of_the_patch_is_padded_by_repetition_and_cropped() -> None:
    spec = FieldSpec(family="incompressible", grid=Grid((14, 18)))
    model = randomise(tiny_model(spec=spec, attention_bias=0.0, refine=False))
    x = torch.randn(2, 2, 14, 18)
    padded = torch.nn.functional.pad(x, (0, 2, 0, 2), mode="replicate")
    assert torch.allclose(model(x), model(padded)[..., :14, :18], atol=1e-6)


SWITCHES: dict[str, dict[str, Any]] = {
    "fourier only": {"branches": "fourier"},
    "frame only": {"branches": "frame"},
    "no bias": {"attention_bias": 0.0},
    "no skip": {"residual": False},
    "no refinement": {"refine": False},
    "no parameter token": {"parameter_token": False},
    "spatial gate": {"gate": "spatial"},
    "unitary": {"unitary": True},
    "trainable angle": {"frame": "angle", "frame_levels": 2},
    "renormalised frame": {"frame": "renormalised", "frame_levels": 3},
    "momentum bias": {"family": "incompressible-momentum"},
    "relative bias": {"relative_bias": True},
}


@pytest.mark.parametrize("switch", SWITCHES)
def test_every_switch_changes_the_function_and_trains(switch: str) -> None:
    x, parameters = torch.randn(2, 2, 16, 16), torch.randn(2, 1)
    plain = randomise(tiny_model())
    model = randomise(tiny_model(**SWITCHES[switch]))
    shared = {k: v for k, v in plain.state_dict().items() if k in model.state_dict()}
    shared = {k: v for k, v in shared.items() if v.shape == model.state_dict()[k].shape}
    model.load_state_dict(shared, strict=False)
    with torch.no_grad():
        assert not torch.allclose(model(x, parameters), plain(x, parameters), atol=1e-6)
    model(x, parameters).square().mean().backward()
    heads = ("mpp_head", "ecp_head")
    for name, parameter in model.named_parameters():
        if not name.startswith(heads):
            assert parameter.grad is not None and parameter.grad.abs().sum() > 0, name


def test_the_heads_reconstruct_fields_and_judge_them() -> None:
    model = randomise(tiny_model(history=2))
    x = torch.randn(3, 4, 15, 18)
    field, logit = model.reconstruct(x), model.consistency(x)
    assert field.shape == x.shape and logit.shape == (3,)
    (field.square().mean() + logit.square().mean()).backward()
    for head in (model.mpp_head, model.ecp_head):
        assert all(p.grad is not None and p.grad.abs().sum() > 0 for p in head.parameters())


@pytest.mark.parametrize("value", [math.nan, 7.0])
def test_unknown_pixels_do_not_reach_the_output(value: float) -> None:
    model = randomise(tiny_model())
    mask = torch.rand(2, 16, 16) > 0.2
    x = torch.randn(2, 2, 16, 16)
    other = torch.where(mask[:, None], x, value)
    expected = model(torch.where(mask[:, None], x, 0.0), mask=mask)
    assert torch.equal(model(other, mask=mask), expected)
    assert torch.equal(model(other, mask=mask[:, None].float()), expected)


def test_pixels_of_a_token_go_back_where_they_came_from() -> None:
    model = tiny_model()
    x = torch.randn(2, 3, 12, 20)
    assert torch.equal(model._to_grid(_patches(x, 4), 3, (12, 20)), x)


def test_each_head_reads_the_tokens_it_should() -> None:
    model = randomise(tiny_model()).eval()
    x, parameters = torch.randn(2, 2, 16, 16), torch.randn(2, 1)
    tokens = model.encode(x, parameters)
    assert tokens.shape == (2, 17, 32)
    judged = model.ecp_head(tokens.mean(1)).squeeze(-1)
    assert torch.allclose(model.consistency(x, parameters), judged)
    correction = model.reconstruct(x, parameters) - x
    first = correction[:, :, :4, :4].permute(0, 2, 3, 1).flatten(1)
    assert torch.allclose(first, model.mpp_head(tokens[:, 0]), atol=1e-5)


def test_the_refinement_sees_the_input_beside_the_prediction() -> None:
    model = randomise(tiny_model()).eval()
    x = torch.randn(2, 2, 16, 16)
    before = model(x)
    assert model.refinement is not None
    with torch.no_grad():
        model.refinement[0].weight[:, 2:] = 0
    assert not torch.allclose(model(x), before, atol=1e-4)


def test_dropout_acts_in_training_alone() -> None:
    model = randomise(tiny_model(dropout=0.5))
    x = torch.randn(2, 2, 16, 16)
    assert not torch.equal(model(x), model(x))
    model.eval()
    assert torch.equal(model(x), model(x))


def test_an_empty_batch_gives_an_empty_batch() -> None:
    assert tiny_model()(torch.randn(0, 2, 16, 16)).shape == (0, 2, 16, 16)


def test_parameters_reach_the_output_and_unknown_ones_are_zero_in_the_token() -> None:
    spec = FieldSpec(
        family="incompressible",
        grid=Grid((16, 16)),
        parameters=(Parameter(name="a"), Parameter(name="b")),
    )
    model = randomise(tiny_model(spec=spec))
    x = torch.randn(2, 2, 16, 16)
    known = spec.encode_parameters({"a": torch.tensor([0.5, -1.0]), "b": 2.0})
    absent = spec.encode_parameters({"a": torch.tensor([0.5, -1.0])})
    zeroed = torch.nan_to_num(absent, nan=0.0)
    assert not torch.allclose(model(x, known), model(x, absent))
    assert torch.equal(model(x, absent), model(x, zeroed))
    assert torch.equal(model(x), model(x, torch.zeros(2, 16)))
    assert torch.equal(model(x, known[:, :2]), model(x, known))


def test_positions_interpolate_to_other_token_grids() -> None:
    model = tiny_model()
    ramp = torch.linspace(0, 1, 4)
    with torch.no_grad():
        model.positions[:16] = ramp.repeat(4)[:, None]  # grows along x only
    resized = model._positions((8, 8))
    assert resized.shape == (65, model.config.width)
    rows = resized[:64, 0].view(8, 8)
    assert torch.allclose(rows, rows[:1].expand(8, 8), atol=1e-6)
    assert (rows.diff(dim=1) > 0).all()
    assert torch.equal(resized[64], model.positions[16])


def test_the_model_transfers_to_a_finer_grid() -> None:
    """A smooth field on a doubled grid gives nearly the same tokens' content: finite and close."""
    spec = tiny_spec((32, 32))
    model = randomise(tiny_model(spec=spec, branches="fourier", attention_bias=0.0, refine=False))
    grid = torch.arange(64) / 64 * 2 * math.pi
    wave = (grid.sin()[:, None] * grid.cos()).expand(1, 2, 64, 64)
    coarse, fine = wave[..., ::2, ::2], wave
    branch = model.encoder.fourier
    assert branch is not None
    assert torch.allclose(branch(fine)[..., ::2, ::2], branch(coarse), atol=1e-5)
    assert model(fine).shape == fine.shape


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"name": "pibret"}, "unknown model 'pibret'.*pibert"),
        ({"preset": "huge"}, "unknown preset 'huge'.*base, large"),
        ({"depht": 3}, "unknown option 'depht'.*did you mean 'depth'"),
        ({"modes": 33}, "supports 1 to 32 modes.*found modes=33"),
        ({"attention_bias": -0.1}, "lambda_att.*zero or positive, found -0.1"),
        ({"attention_bias": math.nan}, "lambda_att"),
        ({"branches": "wavelet"}, "'hybrid', 'fourier' or 'frame', found 'wavelet'"),
        ({"gate": "hard"}, "'scalar' or 'spatial', found 'hard'"),
        ({"frame": "haar"}, "'fixed', 'angle' or 'renormalised', found 'haar'"),
        ({"evaluation": "dct"}, "'fft' or 'dft', found 'dct'"),
        ({"family": "magnetic"}, "unknown PDE family 'magnetic'.*incompressible"),
        ({"width": 130}, "multiple of heads, found 130 and 4"),
        ({"depth": 0}, "depth must be at least 1, found 0"),
        ({"dropout": 1.0}, r"dropout must be in \[0, 1\), found 1.0"),
        ({"patch": 65}, "at least one patch of 65 x 65, found 64 x 64"),
        (
            {"spec": FieldSpec(family="incompressible", channels=("p",))},
            r"needs channels \['u', 'v'\], found \['p'\]",
        ),
        ({"family_weights": (1.0,)}, "a weight, zero or positive, for each of"),
        ({"family_weights": (1.0, math.nan)}, "a weight, zero or positive, for each of"),
        ({"relative_bias": True, "attention_bias": 0.0}, "relative_bias needs attention_bias > 0"),
        ({"family": "magnetic", "attention_bias": 0.0}, "unknown PDE family 'magnetic'"),
        ({"in_channels": 3, "history": 2}, r"history x channels = 2 x 2.*found 3"),
        ({"out_channels": 5, "horizon": 2}, "multiple of horizon=2, found 5"),
        (
            {"spec": FieldSpec(family="incompressible", grid=Grid((30, 30)))},
            "a 30 x 30 grid supports 1 to 15 modes",
        ),
        ({"family_weights": (1.0, -1.0)}, "a weight, zero or positive, for each of"),
    ],
)
def test_a_wrong_choice_says_what_was_expected(
    arguments: dict[str, Any], message: str, no_shape_checks: None
) -> None:
    with pytest.raises(ValueError, match=message):
        build_model(**({"name": "pibert"} | arguments))


def test_wrong_input_says_what_was_expected() -> None:
    model = tiny_model()
    x = torch.randn(2, 2, 16, 16)
    with pytest.raises(ValueError, match=r"shape \(b, 2, y, x\), found \(2, 3, 16, 16\)"):
        model(torch.randn(2, 3, 16, 16))
    with pytest.raises(ValueError, match="one patch of 4 x 4, found 3 x 16"):
        model(torch.randn(2, 2, 3, 16))
    with pytest.raises(ValueError, match=r"shape \(2, at most 16\), found \(2, 17\)"):
        model(x, torch.zeros(2, 17))
    with pytest.raises(ValueError, match=r"mask of shape \(16, 16\).*found \(8, 8\)"):
        model(x, mask=torch.ones(8, 8))
    with pytest.raises(ValueError, match="expected finite parameters"):
        model(x, torch.full((2, 1), math.inf))
    with pytest.raises(ValueError, match=r"found torch.bfloat16.*torch.autocast"):
        tiny_model().bfloat16()(x.bfloat16())
    x[1, 0, 3, 5] = math.nan
    with pytest.raises(ValueError, match=r"found nan at \(b, c, y, x\) = \(1, 0, 3, 5\)"):
        model(x)
