"""The folded ends compute the plain form's function, gradients included."""

from typing import Any

import pytest
import torch

from pibert import FieldSpec, Grid, build_model
from tests.helpers import randomise, tiny_model

CASES: dict[str, dict[str, Any]] = {
    "default": {},
    "fourier only": {"branches": "fourier"},
    "frame only": {"branches": "frame"},
    "unitary": {"unitary": True},
    "trainable frame of three levels": {"frame": "angle", "frame_levels": 3},
    "renormalised frame": {"frame": "renormalised"},
    "three channels of two frames": {"history": 2},
    "all modes": {"modes": 8},
    "odd number of tokens": {
        "spec": FieldSpec(family="incompressible", grid=Grid((20, 12))),
        "modes": 5,
    },
    "grid no multiple of the patch": {
        "spec": FieldSpec(family="incompressible", grid=Grid((18, 13))),
        "modes": 6,
    },
}


@pytest.mark.parametrize("case", CASES)
def test_folded_and_plain_agree_in_value_and_every_gradient(case: str) -> None:
    changes = CASES[case]
    outputs, gradients = [], []
    for form in ({}, {"fold": False}, {"fold": False, "evaluation": "fft"}):
        model = randomise(tiny_model(**(changes | form))).double()
        assert model.folds == (not form)
        torch.manual_seed(1)
        x = torch.randn(3, model.in_channels, *model.spec.grid.shape, dtype=torch.float64)
        y = model(x.requires_grad_())
        y.square().sum().backward()
        outputs.append(y)
        used = {n: p.grad for n, p in model.named_parameters() if p.grad is not None}
        assert x.grad is not None
        gradients.append(used | {"x": x.grad})
    for output, gradient in zip(outputs[1:], gradients[1:], strict=True):
        assert torch.allclose(
            output, outputs[0], rtol=1e-9, atol=1e-9 * outputs[0].abs().max().item()
        )
        assert gradient.keys() == gradients[0].keys()
        for name, expected in gradients[0].items():
            scale = expected.abs().max()
            assert (gradient[name] - expected).abs().max() <= 1e-9 * scale, name


def test_a_spatial_gate_falls_back_to_the_plain_form() -> None:
    assert not tiny_model(gate="spatial").folds


@pytest.mark.parametrize("preset", ["base", "large"])
def test_the_presets_agree_in_single_precision(preset: str) -> None:
    plain = randomise(build_model("pibert", preset=preset, fold=False)).eval()
    folded = build_model("pibert", preset=preset).eval()
    folded.load_state_dict(plain.state_dict())
    x = torch.randn(2, 2, 64, 64)
    with torch.no_grad():
        expected, found = plain(x), folded(x)
    assert (found - expected).abs().max() < 1e-4 * expected.abs().max()
