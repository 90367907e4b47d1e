"""The comparisons by name: complete, fair, and of models that can be built."""

import importlib.util
from dataclasses import replace
from typing import Any

import pytest
import torch

from pibert import config
from pibert.comparison.plan import Comparison
from pibert.comparison.presets import PRESETS, REFERENCES, find_comparison
from pibert.data.generate import change
from pibert.data.sources.recordings import Hints
from pibert.fields import FieldSpec, Grid, Parameter
from pibert.models import MODELS, build_model, count_parameters
from pibert.models import PRESETS as MODEL_PRESETS
from pibert.models.references.simple import Reference
from pibert.solver.presets import find_preset


@pytest.mark.parametrize("name", PRESETS)
def test_a_comparison_by_name_survives_its_plain_form(name: str) -> None:
    plan = find_comparison(name)
    assert config.parse(Comparison, config.as_plain(plan)) == plan


def test_an_unknown_name_is_told_the_known_ones() -> None:
    with pytest.raises(ValueError, match="'demos'; choose from: demo, tour, quick"):
        find_comparison("demos")


@pytest.mark.parametrize("name", PRESETS)
def test_all_references_take_part_and_the_reference_is_persistence(name: str) -> None:
    plan = PRESETS[name]
    models = {entrant.model.name for entrant in plan.entrants.values()}
    wanted = set(REFERENCES) - ({"linear-extrapolation"} if name == "fsi" else set())
    assert wanted <= models and plan.reference == "persistence"
    references = {n for n, k in MODELS.items() if isinstance(k, type) and issubclass(k, Reference)}
    assert references == set(REFERENCES)


@pytest.mark.parametrize("name", ["demo", "cylinder", "fsi", "jet"])
def test_the_papers_baselines_and_the_rivals_take_part(name: str) -> None:
    models = {entrant.model.name for entrant in PRESETS[name].entrants.values()}
    wanted = set(MODELS) - {"neuraloperator", "pitt-constant"}
    if name == "fsi":
        wanted -= {"linear-extrapolation"}  # it takes two frames, and they come in pairs
    assert wanted <= models


@pytest.mark.parametrize("name", PRESETS)
def test_models_that_can_take_parameters_and_coordinates_are_given_them(name: str) -> None:
    for key, entrant in PRESETS[name].entrants.items():
        model, chosen = entrant.model, entrant.model.options
        known = next(iter(MODEL_PRESETS[model.name].values())).__dataclass_fields__
        for fact in {"parameters", "coordinates"} & set(known):
            assert chosen.get(fact) is True, (key, fact)


@pytest.mark.parametrize("name", PRESETS)
def test_all_entrants_keep_the_skip_and_the_plans_history(name: str) -> None:
    """What a model gains by another skip or more frames would not be the model's."""
    plan = PRESETS[name]
    for key, entrant in plan.entrants.items():
        assert "residual" not in entrant.model.options, key
        assert entrant.history == (2 if key == "linear-extrapolation" else 1), key
        assert entrant.learning_rate is None, key


@pytest.mark.parametrize("name", PRESETS)
def test_the_flow_trains_its_auto_encoder_first_and_no_other_part_of_it(name: str) -> None:
    for entrant in PRESETS[name].entrants.values():
        weights = entrant.pretraining_weights
        if entrant.model.name == "fourierflow":
            assert entrant.pretraining > 0 and (weights.mpp, weights.ecp) == (1.0, 0.0)
        elif entrant.pretraining:
            assert entrant.model.name == "pibert" and weights.ecp > 0


def _spec(channels: int = 2) -> FieldSpec:
    body = torch.zeros(64, 64, dtype=torch.bool)
    return FieldSpec(
        family="incompressible",
        grid=Grid((64, 64), dx=0.3, dy=0.2, body=body),
        parameters=(Parameter(name="Re", scaling="log"),),
        dt=0.1,
    )


@pytest.mark.parametrize("name", ["demo", "quick", "jet"])
def test_every_entrant_can_be_built(name: str) -> None:
    sizes: dict[str, Any] = {}
    for key, entrant in PRESETS[name].entrants.items():
        chosen = entrant.model
        model = build_model(chosen.name, preset=chosen.preset, spec=_spec(), **chosen.options)
        sizes[key] = count_parameters(model)
    assert all(sizes[name] == 0 for name in REFERENCES)
    if name == "jet":
        # Rivals have about as many weights as PIBERT: nobody wins by size.
        for rival in ("unet", "transolver", "mwt"):
            assert sizes[rival] == pytest.approx(sizes["pibert"], rel=0.15), rival


def test_controls_differ_from_their_model_in_one_thing() -> None:
    entrants = PRESETS["cylinder"].entrants

    def built(name: str) -> Any:
        own = entrants[name].model
        return build_model(own.name, preset=own.preset, spec=_spec(), **own.options)

    whole, base = built("pitt"), built("pitt-base")
    assert base.corrector is None and base.base.config == whole.base.config
    assert count_parameters(base) == count_parameters(whole.base) < count_parameters(whole)
    plain, padded = built("fno2d"), built("fno2d-padded")
    assert padded.config == replace(plain.config, padding=8)
    assert count_parameters(padded) == count_parameters(plain)
    assert not {"pitt-base", "fno2d-padded"} & set(PRESETS["demo"].entrants)


@pytest.mark.parametrize("name", PRESETS)
def test_the_data_can_be_had_and_part_into_training_validation_and_test(name: str) -> None:
    for data in PRESETS[name].data.values():
        assert set(data.shares.positive()) == {"train", "valid", "test"}
        if data.case is not None:
            recipe = change(find_preset(data.case, data.preset), data.recipe)
            counts = data.shares.counts(recipe.samples)
            assert min(counts[part] for part in ("train", "valid", "test")) >= 1
        else:
            Hints(**data.hints)


def test_the_package_that_a_preset_does_not_need_is_not_asked_for() -> None:
    if importlib.util.find_spec("neuralop") is None:
        names = {e.model.name for plan in PRESETS.values() for e in plan.entrants.values()}
        assert "neuraloperator" not in names


@pytest.mark.parametrize("name", PRESETS)
def test_either_all_models_are_told_the_parameters_or_none(name: str) -> None:
    for key, entrant in PRESETS[name].entrants.items():
        options = next(iter(MODEL_PRESETS[entrant.model.name].values())).__dataclass_fields__
        if "parameters" in options:
            assert entrant.model.options["parameters"] is True, key
