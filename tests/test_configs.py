"""Every experiment in configs/ loads, names a model that can be built, and states its purpose."""

from pathlib import Path

import pytest

from pibert.data.generate import change
from pibert.experiments import load_experiment
from pibert.models import MODELS, PRESETS, build_model
from pibert.solver.presets import find_preset

FILES = sorted((Path(__file__).parents[1] / "configs").glob("*.toml"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_an_experiment_loads_and_its_model_and_recipe_exist(path: Path):
    experiment = load_experiment(path)
    assert path.read_text().startswith("# "), "state the purpose of the experiment in a comment"
    model = experiment.model
    assert model.name in MODELS and (model.preset or "base") in PRESETS[model.name]
    build_model(model.name, preset=model.preset, **model.options)
    data = experiment.data
    if data.case is not None:
        change(find_preset(data.case, data.preset), data.recipe)
