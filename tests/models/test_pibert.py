"""PIBERT: switches, grids, masks, parameters, errors, and the folded form."""

import math
from typing import Any

import pytest
import torch

from pibert import FieldSpec, Grid, Parameter, build_model
from tests.helpers import assert_close, randomise, refused, tiny_model


def test_grids_that_are_not_a_multiple_of_the_patch_are_padded_by_repetition_and_cropped() -> None:
    spec = FieldSpec(family="incompressible", grid=Grid((14, 18)))
    model = randomise(tiny_model(spec=spec, attention_bias=0.0, refine=False))
    x = torch.randn(2, 2, 14, 18)
    padded = torch.nn.functional.pad(x, (0, 2, 0, 2), mode="replicate")
    assert torch.allclose(model(x), model(padded)[..., :14, :18], atol=1e-6)


SWITCHES: dict[str, dict[str, Any]] = {
    "fourier only": {"branches": "fourier"},
    "wavelets only": {"branches": "wavelet"},
    "no bias": {"attention_bias": 0.0},
    "no skip": {"residual": False},
    "no refinement": {"refine": False},
    "no parameter token": {"parameter_token": False},
    "spatial gate": {"gate": "spatial"},
    "unitary": {"unitary": True},
    "trained wavelets": {"wavelet": "trained", "wavelet_levels": 2},
    "momentum bias": {"family": "incompressible-momentum"},
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


def test_heads_read_their_tokens() -> None:
    model = randomise(tiny_model()).eval()
    x, parameters = torch.randn(2, 2, 16, 16), torch.randn(2, 1)
    tokens = model.encode(x, parameters)
    assert tokens.shape == (2, 17, 32)
    logit = model.ecp_head(tokens.mean(1)).squeeze(-1)
    assert torch.allclose(model.consistency(x, parameters), logit)
    correction = model.reconstruct(x, parameters) - x
    first = correction[:, :, :4, :4].permute(0, 2, 3, 1).flatten(1)
    assert torch.allclose(first, model.mpp_head(tokens[:, 0]), atol=1e-5)


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


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"name": "pibret"}, ("'pibret'", "pibert")),
        ({"depht": 3}, ("'depht'", "'depth'")),
        ({"fourier_modes": 33}, ("fourier_modes", 32, 33)),
        ({"branches": "haar"}, ("branches", "'wavelet'", "'haar'")),
        ({"family": "magnetic"}, ("'magnetic'", "incompressible")),
        ({"width": 130}, ("heads", 130, 4)),
        ({"spec": FieldSpec(family="incompressible", channels=("p",))}, (["u", "v"], ["p"])),
        ({"spec": FieldSpec(family="incompressible", grid=Grid((30, 30)))}, ("30 x 30", 15)),
        ({"family_weights": (1.0, -1.0)}, ("weight", -1.0)),
    ],
)
@pytest.mark.usefixtures("no_shape_checks")
def test_wrong_options_are_named(arguments: dict[str, Any], named: tuple[object, ...]) -> None:
    with refused(*named):
        build_model(**({"name": "pibert"} | arguments))


def test_wrong_input_is_refused() -> None:
    model = tiny_model()
    x = torch.randn(2, 2, 16, 16)
    with refused("4 x 4", "3 x 16"):
        model(torch.randn(2, 2, 3, 16))
    with refused("at most 16", (2, 17)):
        model(x, torch.zeros(2, 17))
    with refused("mask", (16, 16), (8, 8)):
        model(x, mask=torch.ones(8, 8))
    with refused("finite parameters"):
        model(x, torch.full((2, 1), math.inf))
    with refused(torch.bfloat16, "torch.autocast"):
        tiny_model().bfloat16()(x.bfloat16())
    x[1, 0, 3, 5] = math.nan
    with refused("nan", (1, 0, 3, 5)):
        model(x)


CASES: dict[str, dict[str, Any]] = {
    "default": {},
    "fourier only": {"branches": "fourier"},
    "wavelets only": {"branches": "wavelet"},
    "unitary": {"unitary": True},
    "trained wavelets of three levels": {"wavelet": "trained", "wavelet_levels": 3},
    "two frames": {"history": 2},
    "all modes": {"fourier_modes": 8},
    "odd number of tokens": {
        "spec": FieldSpec(family="incompressible", grid=Grid((20, 12))),
        "fourier_modes": 5,
    },
    "grid that is not a multiple of the patch": {
        "spec": FieldSpec(family="incompressible", grid=Grid((18, 13))),
        "fourier_modes": 6,
    },
}


@pytest.mark.parametrize("case", CASES)
def test_folded_and_plain_agree_in_value_and_every_gradient(case: str) -> None:
    changes = CASES[case]
    outputs, gradients = [], []
    for folds in (True, False):
        model = randomise(tiny_model(**changes)).double()
        assert model.folds
        model.folds = folds
        torch.manual_seed(1)
        x = torch.randn(3, model.in_channels, *model.spec.grid.shape, dtype=torch.float64)
        y = model(x.requires_grad_())
        y.square().sum().backward()
        outputs.append(y)
        used = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
        gradients.append(used | {"x": x.grad})
    assert_close(outputs[1], outputs[0], rtol=1e-9)
    assert gradients[1].keys() == gradients[0].keys()
    for name, expected in gradients[0].items():
        assert_close(gradients[1][name], expected, rtol=1e-9)
