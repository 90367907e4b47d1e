"""What the model looked at: residuals by hand, and maps that agree with the model's own parts."""

import dataclasses
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from pibert import Grid, Normalizer
from pibert.data.resample import Resizer
from pibert.evaluation.tokens import token_diagnostics
from pibert.models.pibert import PIBERT
from pibert.predictor import InputWarning, Predictor
from tests.helpers import assert_close, randomise, tiny_model, tiny_spec
from tests.predictor.small import NORMALIZER, SHAPE, frames, predictor

GRID = Grid(SHAPE, dx=0.3, dy=0.2)


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


def test_maps_of_points_hold_the_number_of_their_patch() -> None:
    found = predictor().explain(frames())
    for row, column in ((0, 0), (5, 19), (11, 7)):
        token = row // 4, column // 4
        assert torch.equal(found.bias_map[:, row, column], found.bias[:, *token])
        layers = found.attention[:, :, *token].mean(1)
        assert torch.allclose(found.attention_map[:, row, column], layers)
    total = found.attention.sum((-2, -1)) + found.parameter_attention
    assert torch.allclose(total, torch.ones(3, 2))
    assert found.gate is not None and 0 < found.gate < 1 and found.gate_map is None


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


def test_other_models_have_residuals_alone() -> None:
    predict = Predictor(tiny_model("fno2d", spec=tiny_spec(SHAPE)), NORMALIZER)
    found = predict.explain(frames())
    assert found.input_residuals and found.prediction_residuals
    nothing = ("bias", "bias_map", "attention", "attention_map", "gate", "gate_map", "consistency")
    assert all(getattr(found, name) is None for name in nothing)
    without = replace(tiny_spec(SHAPE), family=None)
    predict = Predictor(tiny_model("fno2d", spec=without), NORMALIZER)
    assert predict.explain(frames()).input_residuals == {}


def test_a_model_without_bias_or_parameter_token_says_so() -> None:
    found = predictor(attention_bias=0.0, parameter_token=False).explain(frames())
    assert found.bias is None and found.bias_map is None and found.parameter_attention is None
    assert torch.allclose(found.attention.sum((-2, -1)), torch.ones(3, 2))


def test_a_head_that_was_not_trained_judges_nothing() -> None:
    predict = predictor()
    predict.card = {"trained": {"forward": True}}
    assert predict.explain(frames()).consistency is None


@pytest.mark.parametrize("batch", [3, 19])
def test_an_explanation_is_of_the_callers_kind(batch: int) -> None:
    predict, x = predictor(chunk=4), frames(batch)
    whole = predict.explain(x)
    one = predict.explain(x[1, 0].numpy())
    for field in dataclasses.fields(whole):
        pairs: Any = [(getattr(whole, field.name), getattr(one, field.name))]
        if isinstance(pairs[0][0], dict):
            pairs = [(pairs[0][0][key], pairs[0][1][key]) for key in pairs[0][0]]
        for all_, single in pairs:
            if isinstance(all_, torch.Tensor):
                assert isinstance(single, np.ndarray) and single.dtype == np.float32
                assert_close(single, all_[1], rtol=1e-4, equal_nan=True)


def test_points_are_those_of_the_callers_grid() -> None:
    predict = predictor()
    fine = Resizer(GRID, (24, 40)).new_grid
    x = frames().repeat_interleave(2, -1).repeat_interleave(2, -2)
    with pytest.warns(InputWarning, match="resampled"):
        found = predict.explain(x, grid=fine)
    assert found.bias.shape == (3, 3, 5) and found.bias_map.shape == (3, 24, 40)
    assert torch.allclose(found.bias_map[:, 4, 4], found.bias[:, 0, 0])
    assert found.input_residuals["divergence"].shape == (3, 24, 40)


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


def test_residuals_in_time_take_as_many_frames_before_and_after() -> None:
    """A field that only grows in time is steady to a model that sees a single frame."""
    spec = replace(tiny_spec(SHAPE), family="heat", channels=("u",), units=("K",))
    grows = torch.ones(2, 1, *SHAPE, dtype=torch.float64)
    grows[1] = 1.5
    for history, expected in ((1, 0.0), (2, 5.0)):  # 0.5 in a time step of 0.1
        model = tiny_model("fno2d", spec=spec, history=history)
        predict = Predictor(model, Normalizer.identity(1))
        found = predict.explain(grows[-history:])
        (before,) = found.input_residuals.values()
        (after,) = found.prediction_residuals.values()
        assert np.allclose(before, expected, atol=1e-5)
        assert np.allclose(after, 0.0, atol=1e-5)  # an untrained model repeats the last frame
