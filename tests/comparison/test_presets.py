"""Comparisons by name and in files: complete, fair, and of models that can be built."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pibert import config
from pibert.comparison.plan import Comparison, Job, experiment_of, load_comparison
from pibert.comparison.presets import PRESETS, REFERENCES, find_comparison
from pibert.data.generate import change
from pibert.data.readers.recordings import Hints
from pibert.experiments.flows import as_hints
from pibert.models import MODELS, build_model, count_parameters
from pibert.models import PRESETS as MODEL_PRESETS
from pibert.models.references.simple import Reference
from pibert.solver.presets import find_preset
from tests.helpers import tiny_spec

FILES = {path.stem: path for path in (Path(__file__).parents[2] / "configs/comparisons").iterdir()}
PLANS = PRESETS | {name: load_comparison(path) for name, path in FILES.items()}
STUDIES = [name for name in FILES if "jet" not in name]
SUPPLEMENT = [name for name in FILES if name.startswith(("cfdbench", "eagle", "plasma"))]
"""The paper's supplement, small enough for a CPU."""
STUDIED = ("masking", "pretraining", "ablations")
"""Plans about pretraining itself, also small ones."""
HISTORY = {
    "apebench-kolmogorov": 1,
    "fno-navier-stokes": 10,
    "realpdebench-official": 20,
    "realpde-competition": 20,
}
"""Benchmarks that others defined, and the input frames of their protocol."""


@pytest.mark.parametrize("name", PLANS)
def test_a_plan_has_persistence_and_data_to_train_validate_and_test_on(name: str) -> None:
    assert config.parse(Comparison, config.as_plain(PLANS[name])) == PLANS[name]
    assert PLANS[name].reference == "persistence"
    for data in PLANS[name].data.values():
        parts = {"train", "valid"} | ({"test"} if data.test is None else set())
        assert set(data.shares.positive()) - {"calibration"} >= parts
        Hints(**as_hints(data.hints))
        if data.case is not None:
            recipe = change(find_preset(data.case, data.preset), data.recipe)
            counts = data.shares.counts(recipe.samples)
            assert min(counts[split] for split in parts) >= 1


@pytest.mark.parametrize("name", PRESETS)
def test_all_references_and_the_papers_baselines_take_part(name: str) -> None:
    models = {candidate.model.name for candidate in PRESETS[name].candidates.values()}
    wanted = set(REFERENCES)
    if name in ("demo", "cylinder", "fsi", "jet", "turbulence", "euler", "reaction-diffusion"):
        wanted |= set(MODELS) - {"neuraloperator", "pitt-constant"}
    if name == "fsi" or name in HISTORY:
        wanted -= {"linear-extrapolation"}  # it takes two frames
    if name in HISTORY:
        wanted -= {"mean-advection"}  # it takes a velocity
    assert wanted <= models
    references = {n for n, k in MODELS.items() if isinstance(k, type) and issubclass(k, Reference)}
    assert references == set(REFERENCES)


@pytest.mark.parametrize("name", [name for name in HISTORY if name in PRESETS])
def test_a_rollout_of_a_published_benchmark_starts_at_the_first_frame_of_every_test_flow(
    name: str,
) -> None:
    plan = PRESETS[name]
    (data,) = plan.data.values()
    recipe: Any = find_preset(str(data.case), data.preset)
    assert data.split == "stated"
    assert recipe.frames == HISTORY[name] + plan.rollout.steps
    assert plan.rollout.starts == recipe.samples - recipe.train - recipe.valid


@pytest.mark.parametrize("name", PLANS)
def test_models_get_all_inputs_that_they_support_and_few_are_pretrained(
    name: str,
) -> None:
    for key, candidate in PLANS[name].candidates.items():
        model, weights = candidate.model, candidate.pretraining_weights
        known = next(iter(MODEL_PRESETS[model.name].values())).__dataclass_fields__
        without = ("plasma", "eagle", "jet-history")  # they state no parameters
        facts = {"mask", "coordinates"} | ({"parameters"} if name not in without else set())
        for fact in facts & set(known):
            if fact == "coordinates" and getattr(MODEL_PRESETS[model.name]["base"], fact):
                continue
            assert model.options.get(fact) is True, (key, fact)
        if model.name == "fourierflow":  # its auto-encoder
            assert candidate.pretraining > 0 and (weights.mpp, weights.ecp) == (1.0, 0.0)
        elif candidate.pretraining and name.removesuffix("-small") not in STUDIED:
            assert model.name == "pibert" and weights.ecp > 0


@pytest.mark.parametrize("name", [*PRESETS, *STUDIES])
def test_all_candidates_have_the_same_skip_and_history_and_equally_chosen_rates(name: str) -> None:
    """What a model gains by another skip or more frames would not be the model's."""
    trained = [c for c in PLANS[name].candidates.values() if c.is_trained]
    # All share one rate (or are tuned), or each has the one that earlier trials selected.
    assert len({candidate.learning_rate is None for candidate in trained}) <= 1
    for key, candidate in PLANS[name].candidates.items():
        assert "residual" not in candidate.model.options, key
        assert bool(candidate.model.options.get("dmd_modes")) is key.endswith("-dmd")
        if name == "ablations" and key.startswith("history-"):
            continue  # what more frames gain is their question
        expected = HISTORY.get(name, 1) if candidate.is_trained else 1
        assert candidate.history == (2 if key == "linear-extrapolation" else expected), key


@pytest.mark.parametrize("name", ["demo", "quick", "jet", *STUDIES])
def test_every_candidate_can_be_built(name: str) -> None:
    sizes: dict[str, Any] = {}
    for key, candidate in PLANS[name].candidates.items():
        chosen = candidate.model
        model = build_model(
            chosen.name, preset=chosen.preset, spec=tiny_spec((64, 64)), **chosen.options
        )
        sizes[key] = count_parameters(model)
    assert all(sizes.get(reference, 0) == 0 for reference in REFERENCES)
    if name in SUPPLEMENT:
        assert max(sizes.values()) < 1_000_000
    if name == "jet":
        # Rivals have about as many weights as PIBERT: nobody wins by size.
        for rival in ("unet", "transolver", "mwt"):
            assert sizes[rival] == pytest.approx(sizes["pibert"], rel=0.15), rival


def test_the_trials_of_quick_have_enough_samples() -> None:
    plan = find_comparison("quick", tune=True)
    assert plan.tuning is not None
    trial = replace(plan, tuning=None, samples=plan.tuning.samples(plan.samples))
    windows = 3 * (24 - 1)  # of half of its six flows
    for name, candidate in plan.candidates.items():
        if candidate.is_trained:
            planned = experiment_of(trial, Job("wakes", name, 0), windows)
            assert planned.training.epochs >= 1, name
