"""Settings of tuning, and plans that would not give every model the same trials."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pibert import config
from pibert.comparison.folder import refuse_other
from pibert.comparison.plan import Comparison, Job, experiment_of, load_comparison
from pibert.comparison.presets import PRESETS
from pibert.comparison.trials import Trial, all_trials, trials_of
from pibert.comparison.tuning import Setting, Tuning, check_optimizer
from pibert.data.splits import Shares
from pibert.experiments.experiment import DataConfig
from tests.comparison.setups import comparison_of, entrant

DATA = DataConfig(path="flows.h5", shares=Shares(train=0.5, valid=0.2))
SETS = {name: replace(DATA, path=f"{name}.h5") for name in ("a", "b", "c")}


@pytest.mark.parametrize("name", PRESETS)
def test_presets_do_not_tune_unless_asked(name: str) -> None:
    assert PRESETS[name].tuning is None


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"learning_rates": ()}, r"different learning rates to try, found \[\]"),
        ({"learning_rates": (1e-3, 1e-3)}, "different learning rates"),
        ({"learning_rates": (0.0, 1e-3)}, "positive learning rates"),
        ({"learning_rates": (float("inf"),)}, "positive learning rates"),
        ({"optimizers": ()}, "different optimizers to try"),
        ({"optimizers": ("muon", "muon")}, "different optimizers"),
        ({"budget": 0.0}, "budget above 0 and at most 1"),
        ({"budget": 1.5}, "found 1.5"),
        ({"seed": -1}, "seed of at least 0"),
    ],
)
def test_tuning_that_makes_no_sense_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Tuning(**options)


@pytest.mark.parametrize(
    ("reuse", "message"),
    [
        ({"b": "d"}, "unknown data set 'd'; choose from: a, b, c"),
        ({"d": "a"}, "unknown data set 'd'"),
        ({"b": "a", "c": "b"}, "'c' takes the choice of 'b', which is not tuned on.*'a'"),
        ({"b": "b"}, "which is not tuned on"),
    ],
)
def test_a_choice_is_taken_only_from_a_data_set_that_is_tuned_on(
    reuse: dict[str, str], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        replace(comparison_of(DATA), data=SETS, tuning=Tuning(reuse=reuse))


def test_every_trained_entrant_gets_the_same_trials_and_others_none() -> None:
    plan = comparison_of(DATA, tuning=Tuning(learning_rates=(1e-3, 4e-3)))
    found = {name: trials_of(plan, "waves", name) for name in plan.entrants}
    assert found["persistence"] == found["linear-extrapolation"] == ()
    for name in ("pibert", "fno2d"):
        settings = [(own.setting.optimizer, own.setting.learning_rate) for own in found[name]]
        assert settings == [("muon", 1e-3), ("muon", 4e-3)]
    both = replace(plan, tuning=Tuning(learning_rates=(1e-3,), optimizers=("adamw", "muon")))
    assert [str(own.setting) for own in trials_of(both, "waves", "fno2d")] == [
        "adamw at 0.001",
        "muon at 0.001",
    ]
    assert all_trials(replace(plan, tuning=None)) == ()


def test_data_sets_that_reuse_a_choice_have_no_trials_of_their_own() -> None:
    tuning = Tuning(learning_rates=(1e-3, 2e-3), reuse={"c": "b"})
    plan = replace(comparison_of(DATA), data=SETS, tuning=tuning)
    assert {own.data for own in all_trials(plan)} == {"a", "b"}
    assert len(all_trials(plan)) == 2 * 2 * 2
    assert trials_of(plan, "c", "fno2d") == trials_of(plan, "b", "fno2d")


def test_folders_of_trials_differ_from_each_other_and_from_those_of_runs() -> None:
    rates = (0.001, 0.0010000001, 5e-05)
    plan = comparison_of(DATA, tuning=Tuning(learning_rates=rates))
    trials, out = all_trials(plan), Path("out")
    folders = {own.folder(out) for own in trials} | {own.folder(out) for own in plan.jobs()}
    assert len(folders) == len(trials) + len(plan.jobs())
    first = Trial("waves", "fno2d", Setting("muon", 5e-05)).folder(out)
    assert first == out / "runs" / "waves" / "fno2d-tuning" / "muon-5e-05"


def test_an_entrant_may_have_an_optimizer_of_its_own() -> None:
    own = replace(entrant("fno2d"), optimizer="muon")
    plan = comparison_of(DATA, entrants={"own": own, "persistence": entrant("persistence")})
    assert plan.training.optimizer == "adamw"
    assert experiment_of(plan, Job("waves", "own", 3), 100).training.optimizer == "muon"


def test_an_unknown_optimizer_is_told_the_known_ones() -> None:
    with pytest.raises(ValueError, match="unknown optimizer 'sgd'; choose from: adamw, muon"):
        check_optimizer("sgd")
    with pytest.raises(ValueError, match=r'optimizers\[0\]: expected one of "adamw", "muon"'):
        config.parse(Tuning, {"optimizers": ["sgd"]})


def test_own_settings_that_would_make_trials_unequal_are_refused() -> None:
    reference = {"persistence": entrant("persistence")}
    rate = {"own": replace(entrant("fno2d"), learning_rate=1e-4), **reference}
    with pytest.raises(ValueError, match=r"'own' has a learning_rate of its own \(0.0001\)"):
        comparison_of(DATA, entrants=rate, tuning=Tuning())
    adamw = {"own": replace(entrant("fno2d"), optimizer="adamw"), **reference}
    both = Tuning(optimizers=("adamw", "muon"))
    with pytest.raises(ValueError, match="adamw, muon would give it fewer trials"):
        comparison_of(DATA, entrants=adamw, tuning=both)
    plan = comparison_of(DATA, entrants=adamw, tuning=Tuning(learning_rates=(1e-3,)))
    assert [own.setting.optimizer for own in all_trials(plan)] == ["adamw"]


def test_tuning_is_read_from_a_file_and_from_settings_of_a_preset(tmp_path: Path) -> None:
    (tmp_path / "plan.toml").write_text(
        """
[data.waves]
path = "flows.h5"
[entrants.persistence.model]
name = "persistence"
[entrants.fno2d]
optimizer = "adamw"
[entrants.fno2d.model]
name = "fno2d"
[tuning]
learning_rates = [1e-3, 2e-3]
budget = 0.25
"""
    )
    plan = load_comparison(tmp_path / "plan.toml", ("tuning.seed=7",))
    assert plan.tuning == Tuning(learning_rates=(1e-3, 2e-3), budget=0.25, seed=7)
    assert config.parse(Comparison, config.as_plain(plan)) == plan
    changed = config.with_overrides(PRESETS["demo"], ("tuning.optimizers=[adamw,muon]",))
    assert changed.tuning == Tuning(optimizers=("adamw", "muon"))


def test_a_folder_from_before_there_was_tuning_goes_on(tmp_path: Path) -> None:
    plan = comparison_of(DATA)
    old = config.as_plain(plan)
    del old["tuning"]
    for own in old["entrants"].values():
        del own["optimizer"]
    (tmp_path / "comparison.json").write_text(json.dumps(old))
    assert refuse_other(plan, tmp_path) == config.as_plain(plan)
    with pytest.raises(ValueError, match="tuning is None there and"):
        refuse_other(replace(plan, tuning=Tuning()), tmp_path)
    fno = replace(plan.entrants["fno2d"], optimizer="muon")
    with pytest.raises(ValueError, match="entrant 'fno2d' was another one there"):
        refuse_other(replace(plan, entrants={**plan.entrants, "fno2d": fno}), tmp_path)
