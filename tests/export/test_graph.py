"""The step in physical units that is exported, before any file is written."""

import math
from dataclasses import replace
from pathlib import Path
from typing import cast

import pytest
import torch

from pibert.export.check import draw_samples, measure, read_samples
from pibert.export.graph import PhysicalStep
from pibert.fields import FieldSpec, Grid, Normalizer, Parameter
from pibert.inference import Predictor, SavedModel
from pibert.models import MODELS
from pibert.models.baselines.fourierflow import FourierFlow
from tests.export.models import save_tiny
from tests.helpers import tiny_model

TWO = (Parameter(name="Re", scaling="log", mean=3.0, std=0.5), Parameter(name="angle", mean=5.0))


def step_of(saved: SavedModel) -> PhysicalStep:
    return PhysicalStep(saved.model, saved.normalizer)


@pytest.mark.parametrize("name", [name for name in MODELS if name != "neuraloperator"])
def test_the_graph_agrees_with_the_predictor(
    name: str, tmp_path: Path, flows: Path, spec: FieldSpec
) -> None:
    saved = save_tiny(tmp_path, name, spec)
    predictor = Predictor(saved.model, saved.normalizer)
    samples = read_samples(flows, predictor)
    mask = samples.mask.clone()
    mask[1:3, 2:6, 4:9] = False
    fields = torch.where(mask[:, None, None], samples.fields, math.nan)
    expected = predictor.step(fields, {"viscosity": samples.parameters[:, 0]}, mask)
    with torch.no_grad():
        found = step_of(saved)(fields, mask, samples.parameters)
    assert found.shape == expected.shape and bool(expected.isfinite().all())
    assert (found - expected).abs().max() < 1e-5 * expected.abs().max()


def test_export_does_not_change_the_model(tmp_path: Path, spec: FieldSpec) -> None:
    saved = save_tiny(tmp_path, "fourierflow", spec)
    before = {name: value.clone() for name, value in saved.model.state_dict().items()}
    step = step_of(saved)
    assert cast(FourierFlow, saved.model).held_noise is None
    after = saved.model.state_dict()
    assert before.keys() == after.keys() == step.model.state_dict().keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_parameters_gaps_and_bodies_agree_with_the_predictor(
    tmp_path: Path, spec: FieldSpec
) -> None:
    body = torch.zeros(16, 24, dtype=torch.bool)
    body[5:8, 9:12] = True
    spec = replace(spec, parameters=TWO, grid=Grid((16, 24), dx=0.3, dy=0.2, body=body))
    saved = save_tiny(tmp_path, "pibert", spec)
    predictor = Predictor(saved.model, saved.normalizer)
    samples = draw_samples(predictor)
    fields = samples.fields.clone()
    fields[..., body] = math.nan
    values = torch.tensor([[100.0, -2.0], [math.nan, 7.0], [1e4, math.nan], [5.0, 0.0]])
    known = {"Re": values[:, 0], "angle": values[:, 1]}
    expected = predictor.step(fields, known, samples.mask)
    with torch.no_grad():
        step = step_of(saved)
        found = step(fields, samples.mask, values)
        other = step(fields, samples.mask, values.flip(0))
    assert torch.allclose(found, expected, atol=1e-5)
    assert not torch.allclose(other, expected, atol=1e-3)


@pytest.mark.parametrize("bad", [0.0, -3.0, math.inf])
def test_a_sample_that_the_predictor_refuses_comes_out_as_nan(
    bad: float, tmp_path: Path, spec: FieldSpec
) -> None:
    saved = save_tiny(tmp_path, "pinn", replace(spec, parameters=TWO))
    predictor = Predictor(saved.model, saved.normalizer)
    samples = draw_samples(predictor)
    values, fields = samples.parameters.clone(), samples.fields.clone()
    values[0, 0] = bad
    fields[2, 0, 1, 0, 0] = math.inf
    with pytest.raises(ValueError, match="Re"):
        predictor.step(fields[:1], {"Re": values[:1, 0]}, samples.mask[:1])
    with torch.no_grad():
        found = step_of(saved)(fields, samples.mask, values)
    assert bool(found[[0, 2]].isnan().all()) and bool(found[[1, 3]].isfinite().all())


@pytest.fixture
def predictor() -> Predictor:
    return Predictor(tiny_model("persistence"), Normalizer((1e5, 0.0), (2.0, 0.5)))


def frames(predictor: Predictor) -> torch.Tensor:
    z = torch.randn(3, 1, 2, 16, 16, generator=torch.Generator().manual_seed(0)).clamp(-3, 3)
    return predictor.normalizer.invert(z)


def test_a_difference_counts_against_the_fluctuations(predictor: Predictor) -> None:
    expected = frames(predictor)
    expected[0, 0, 1, 0, 0] = 2.0  # the largest of v
    found = expected.clone()
    found[2, 0, 1, 3, 4] -= 0.01
    difference = measure(found, expected, predictor)
    assert difference.absolute["u"] == 0 and math.isclose(
        difference.absolute["v"], 0.01, rel_tol=1e-4
    )
    assert math.isclose(difference.relative, 0.005, rel_tol=1e-4)
    assert math.isclose(difference.excess, difference.relative, rel_tol=1e-3)
