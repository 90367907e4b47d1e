"""Options and weights of earlier versions, under their present names."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open

import pibert
from pibert.models import MODELS, make_config
from pibert.models.compatibility import current_options, current_weights
from tests.helpers import refused

SHIPPED = Path(pibert.__file__).parent / "weights" / "cylinder-base"


def test_the_shipped_model_has_the_names_of_an_earlier_version_and_loads() -> None:
    card = json.loads((SHIPPED / "model.json").read_text())
    assert card["model"]["config"]["frame"] == "fixed"
    with safe_open(SHIPPED / "model.safetensors", "pt") as file:
        stored = {name: file.get_tensor(name) for name in file.keys()}
    assert "encoder.frame.mix.weight" in stored
    model: Any = pibert.load("cylinder-base").model
    state = model.state_dict()
    renamed = current_weights("pibert", stored)
    assert renamed.keys() == state.keys()
    assert all(torch.equal(state[name], tensor) for name, tensor in renamed.items())
    assert model.config.fourier_modes == card["model"]["config"]["modes"]


def test_old_options_give_the_same_configuration() -> None:
    old: dict[str, Any] = {"modes": 3, "branches": "frame", "frame": "angle", "frame_levels": 2}
    gone = {"evaluation": "fft", "relative_bias": False, "fold": False, "in_channels": None}
    new: dict[str, Any] = {
        "fourier_modes": 3,
        "branches": "wavelet",
        "wavelet": "trained",
        "wavelet_levels": 2,
    }
    assert current_options("pibert", old | gone) == new
    assert make_config("pibert", **current_options("pibert", old)) == make_config("pibert", **new)


def test_modes_of_reconstruction_and_trained_wavelets_keep_their_weights() -> None:
    old = {"modes.mean": torch.ones(1), "encoder.frame.frame.harmonics": torch.zeros(1)}
    names = {"pod_modes.mean", "encoder.wavelet.transform.harmonics"}
    assert set(current_weights("pibert", old)) == names


@pytest.mark.parametrize("name", MODELS)
def test_only_options_and_weights_of_pibert_are_renamed(name: str) -> None:
    is_pibert = name.startswith("pibert")
    option, weight = ("fourier_modes", "pod_modes.mean") if is_pibert else ("modes", "modes.mean")
    assert current_options(name, {"modes": 3}) == {option: 3}
    assert set(current_weights(name, {"modes.mean": torch.ones(1)})) == {weight}


def test_removed_options_are_accepted_only_at_values_that_change_nothing() -> None:
    old = {"kernel": 7, "expansion": 4, "layer_scale": 1.0, "width": 8}
    assert current_options("unet", old) == {"width": 8}
    with refused("relative_bias"):
        make_config("pibert", relative_bias=True)
    with refused("kernel"):
        make_config("unet", kernel=5)
