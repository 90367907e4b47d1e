"""Explanations: residuals computed by hand, and maps that agree with the model's modules."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from pibert.evaluation.insight import token_diagnostics
from pibert.inference import Predictor
from pibert.models.pibert import PIBERT
from tests.helpers import assert_close, randomise, tiny_model, tiny_spec
from tests.inference.small import NORMALIZER, SHAPE, frames, predictor


def test_maps_are_those_of_the_token_diagnostics() -> None:
    predict, x = predictor(gate="spatial"), frames()
    mask = torch.rand(3, *SHAPE, generator=torch.Generator().manual_seed(2)) > 0.1
    found = predict.explain(x, {"Re": 800.0}, mask)
    z = torch.where(mask[:, None], NORMALIZER.apply(x[:, 0]), 0.0)
    model = predict.model
    assert isinstance(model, PIBERT)
    parameters = predict.spec.encode_parameters({"Re": 800.0}).expand(3, -1)
    expected = token_diagnostics(model, z, parameters, mask)
    assert torch.allclose(found.bias, expected["residual"], atol=1e-5)
    assert torch.allclose(found.attention, expected["received"], atol=1e-6)
    assert torch.allclose(found.parameter_attention, expected["parameter_received"], atol=1e-6)
    assert torch.allclose(found.gate_map, expected["gate_map"], atol=1e-6)
    assert found.gate == pytest.approx(float(expected["gate"][0]), abs=1e-6)
    assert torch.equal(found.prediction, predict.step(x, {"Re": 800.0}, mask))
    assert torch.equal(found.consistency, predict.consistency(x, {"Re": 800.0}, mask))


def test_the_multiresolution_model_is_explained_by_its_tokens_of_every_cycle() -> None:
    model = randomise(tiny_model("pibert-mr", spec=tiny_spec(SHAPE), levels=2)).eval()
    found = Predictor(model, NORMALIZER).explain(frames())
    assert found.attention.shape == (3, 2, 3, 5) and found.gate is None
    total = found.attention.sum((-2, -1)) + found.parameter_attention
    assert_close(total, torch.ones(3, 2))
    assert torch.equal(found.bias_map[:, 5, 19], found.bias[:, 1, 4])


def test_residuals_are_those_of_the_fields_and_nan_next_to_gaps() -> None:
    predict, x = predictor(), frames().double()
    mask = torch.ones(SHAPE, dtype=torch.bool)
    mask[6, 9] = False
    found = predict.explain(x, mask=mask)
    name = "divergence"
    assert name in found.input_residuals
    u, v = x[:, -1].unbind(1)
    # Central differences inside, written out.
    divergence = (u[:, 2:4, 3:6] - u[:, 2:4, 1:4]) / 0.6 + (v[:, 3:5, 2:5] - v[:, 1:3, 2:5]) / 0.4
    assert torch.allclose(found.input_residuals[name][:, 2:4, 2:5], divergence.abs(), atol=1e-5)
    for row, column in ((6, 9), (6, 8), (6, 10), (5, 9), (7, 9)):
        assert bool(found.input_residuals[name][:, row, column].isnan().all())
    assert int(found.input_residuals[name][0].isnan().sum()) == 5
    y = found.prediction[:, 0]
    after = (y[:, 0, 2, 3] - y[:, 0, 2, 1]) / 0.6 + (y[:, 1, 3, 2] - y[:, 1, 1, 2]) / 0.4
    assert torch.allclose(found.prediction_residuals[name][:, 2, 2], after.abs(), atol=1e-4)


def test_missing_members_of_an_explanation_are_none() -> None:
    found = Predictor(tiny_model("fno2d", spec=tiny_spec(SHAPE)), NORMALIZER).explain(frames())
    assert found.input_residuals and found.prediction_residuals
    nothing = ("bias", "bias_map", "attention", "attention_map", "gate", "gate_map", "consistency")
    assert all(getattr(found, name) is None for name in nothing)
    without = replace(tiny_spec(SHAPE), family=None)
    predict = Predictor(tiny_model("fno2d", spec=without), NORMALIZER)
    assert predict.explain(frames()).input_residuals == {}
    plain = predictor(attention_bias=0.0, parameter_token=False)
    plain.card = {"trained": {"forward": True}}
    found = plain.explain(frames())
    assert found.bias is None and found.bias_map is None and found.parameter_attention is None
    assert found.consistency is None  # its head was not trained
    assert torch.allclose(found.attention.sum((-2, -1)), torch.ones(3, 2))


def test_labels_go_with_the_maps() -> None:
    xr = pytest.importorskip("xarray")
    predict, x = predictor(), frames().numpy()
    coords = {"y": 0.2 * np.arange(12), "x": 0.3 * np.arange(20)}
    data = {name: (("run", "time", "y", "x"), x[:, :, i]) for i, name in enumerate("uv")}
    fields = xr.Dataset(data, coords=coords).isel(y=slice(None, None, -1))
    plain, found = predict.explain(x), predict.explain(fields)
    assert found.bias_map.dims == ("run", "y", "x")
    assert np.allclose(found.bias_map.sortby("y"), plain.bias_map, atol=1e-5)
    name = "divergence"
    assert np.allclose(found.input_residuals[name].sortby("y"), plain.input_residuals[name])
    assert found.attention.dims == ("run", "layer", "token_y", "token_x")
    assert found.parameter_attention.dims == ("run", "layer")
    assert found.consistency.dims == ("run",)
