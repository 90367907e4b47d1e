"""The plan of a comparison: equal budgets, jobs, and what is refused before anything runs."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pibert import config
from pibert.comparison import read_results, refuse_other
from pibert.comparison.plan import (
    Candidate,
    Comparison,
    Job,
    Tuning,
    experiment_of,
    load_comparison,
)
from pibert.comparison.presets import PRESETS
from pibert.comparison.trials import all_trials, trials_of
from pibert.data.splits import Shares
from pibert.experiments.experiment import DataConfig, ModelConfig
from pibert.training.losses import LossWeights
from tests.comparison.setups import candidate, comparison_of
from tests.helpers import refused

DATA = DataConfig(path="flows.h5", shares=Shares(train=0.5, valid=0.2))
REFERENCE = {"persistence": candidate("persistence")}


@pytest.mark.parametrize("train_samples", [37, 240, 1999])
@pytest.mark.parametrize("share", [0.0, 0.2, 0.5, 0.7])
def test_every_candidate_sees_the_budget_pretraining_included(
    share: float, train_samples: int
) -> None:
    one = replace(candidate("pibert"), pretraining=share)
    plan = comparison_of(DATA, candidates={"persistence": one}, samples=8000)
    found = experiment_of(plan, Job("waves", "persistence", 3), train_samples)
    epochs = found.training.epochs
    if share:
        assert found.pretraining is not None
        assert abs(found.pretraining.epochs * train_samples - share * 8000) <= train_samples / 2
        epochs += found.pretraining.epochs
    else:
        assert found.pretraining is None
    assert abs(epochs * train_samples - 8000) <= train_samples / 2


def test_few_labels_take_more_epochs_and_a_small_budget_one() -> None:
    job = Job("waves", "fno2d", 3)
    assert experiment_of(comparison_of(DATA, samples=8000), job, 1000, 100).training.epochs == 80
    plan = comparison_of(DATA, samples=10)
    assert experiment_of(plan, job, 1000).training.epochs == 1
    with refused("10 samples", "'pibert'", "raise samples"):
        experiment_of(plan, Job("waves", "pibert", 3), 1000)


def test_noise_on_the_input_is_the_same_in_both_stages_of_every_model_that_takes_it() -> None:
    plan = comparison_of(DATA, samples=8000, rollout_share=0.5, noise=0.03, noise_spread=4.0)
    found = experiment_of(plan, Job("waves", "fno2d", 3), 100)
    assert found.rollout_training is not None
    for stage in (found.rollout, found.rollout_training.rollout):
        assert (stage.noise, stage.noise_spread) == (0.03, 4.0)
    assert experiment_of(plan, Job("waves", "persistence", 3), 100).rollout.noise == 0
    assert config.identity(replace(plan, noise=0.0, noise_spread=1.0)) == config.identity(
        comparison_of(DATA, samples=8000, rollout_share=0.5)
    )


def test_all_share_batches_schedule_data_and_augmentation() -> None:
    plan = comparison_of(DATA, warmup=0.1, samples=50_000)
    first, second = (
        experiment_of(plan, Job("waves", name, 1), 500) for name in ("fno2d", "pibert")
    )
    assert first.data == second.data == DATA and first.seed == second.seed == 1
    assert first.augmentation == second.augmentation and first.hardware == second.hardware
    alike = replace(second.training, epochs=first.training.epochs)
    alike = replace(alike, warmup_epochs=first.training.warmup_epochs)
    assert replace(alike, validate_every=4) == first.training
    assert first.training.epochs == 100 and first.training.warmup_epochs == pytest.approx(10)
    assert first.training.validate_every == 4  # 25 times in all
    assert first.training.monitor == "reconstruction" and first.training.patience is None
    assert second.pretraining is not None and second.pretraining.monitor == "loss"


def test_a_candidate_may_have_settings_of_its_own() -> None:
    losses = LossWeights(reg=1.0, div=0.5)
    own = replace(candidate("fno2d"), learning_rate=5e-5, ema=0.9, losses=losses, optimizer="muon")
    plan = comparison_of(DATA, candidates={"own": own, **REFERENCE})
    found = experiment_of(plan, Job("waves", "own", 3), 100)
    assert (found.training.learning_rate, found.training.ema) == (5e-5, 0.9)
    assert found.training.min_learning_rate <= 5e-5 and found.losses == losses
    assert (plan.training.optimizer, found.training.optimizer) == ("adamw", "muon")


def test_references_run_once_and_models_with_every_seed() -> None:
    found = comparison_of(DATA).jobs()
    assert [(job.candidate, job.seed) for job in found] == [
        ("pibert", 3),
        ("pibert", 1),
        ("fno2d", 3),
        ("fno2d", 1),
        ("persistence", 3),
        ("linear-extrapolation", 3),
    ]
    assert Job("waves", "fno2d", 1).folder(Path("out")) == Path("out/runs/waves/fno2d-1")
    assert len({job.folder(Path()) for job in found}) == len(found)


def with_own(**settings: Any) -> dict[str, Candidate]:
    return {"own": replace(candidate("fno2d"), **settings), **REFERENCE}


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: comparison_of(DATA, reference="nobody"), ("'nobody'", "pibert")),
        (
            lambda: comparison_of(replace(DATA, shares=Shares(train=0.7, valid=0.0))),
            ("'waves'", "valid"),
        ),
        (lambda: Tuning(learning_rates=(1e-3, 1e-3)), ("learning_rates", 0.001)),
        (lambda: tuned(reuse={"b": "a", "c": "b"}), ("'c'", "'b'", "'a'")),
        (
            lambda: comparison_of(DATA, candidates=with_own(learning_rate=1e-4), tuning=Tuning()),
            ("'own'", 0.0001),
        ),
        (
            lambda: comparison_of(
                DATA,
                candidates=with_own(optimizer="adamw"),
                tuning=Tuning(optimizers=("adamw", "muon")),
            ),
            ("adamw, muon", "fewer trials"),
        ),
    ],
)
def test_plans_that_make_no_sense_are_refused(
    make: Callable[[], object], named: tuple[object, ...]
) -> None:
    with refused(*named):
        make()


def test_a_plan_is_read_from_a_file_with_changes(tmp_path: Path) -> None:
    (tmp_path / "plan.toml").write_text(
        """
samples = 100
seeds = [4, 5]
[data.waves]
path = "flows.h5"
[candidates.persistence.model]
name = "persistence"
[candidates.small]
pretraining = 0.25
optimizer = "adamw"
[candidates.small.model]
options = { width = 16 }
[tuning]
learning_rates = [1e-3, 2e-3]
"""
    )
    settings = ("samples=300", "rollout.steps=0", "tuning.seed=7")
    plan = load_comparison(tmp_path / "plan.toml", settings)
    assert (plan.samples, plan.seeds, plan.rollout.steps) == (300, (4, 5), 0)
    assert plan.candidates["small"].pretraining == 0.25
    assert plan.candidates["small"].model == ModelConfig(options={"width": 16})
    assert plan.tuning == Tuning(learning_rates=(1e-3, 2e-3), seed=7)
    assert config.parse(Comparison, config.as_plain(plan)) == plan
    changed = config.with_overrides(PRESETS["demo"], ("tuning.optimizers=[adamw,muon]",))
    assert changed.tuning == Tuning(optimizers=("adamw", "muon"))


def test_the_key_of_earlier_versions_is_read_in_plans_folders_and_results(tmp_path: Path) -> None:
    path = tmp_path / "plan.toml"
    text = '[data.waves]\npath = "flows.h5"\n[KEY.persistence.model]\nname = "persistence"\n'
    plans = []
    for key in ("entrants", "candidates"):
        path.write_text(text.replace("KEY", key))
        plans.append(load_comparison(path, (f"{key}.persistence.ema=0.5",)))
    assert plans[0] == plans[1] and plans[0].candidates["persistence"].ema == 0.5
    path.write_text(text.replace("KEY", "entrants") + "[candidates.other]\n")
    with pytest.raises(ValueError, match=r"plan.toml: .*candidates.*entrants"):
        load_comparison(path)
    old = config.as_plain(plans[0])
    old["entrants"] = old.pop("candidates")
    (tmp_path / "comparison.json").write_text(json.dumps(old))
    assert set(refuse_other(plans[0], tmp_path)["candidates"]) == {"persistence"}
    (tmp_path / "results.json").write_text(json.dumps({"format": 1, "comparison": old}))
    assert "persistence" in read_results(tmp_path)["comparison"]["candidates"]


SETS = {name: replace(DATA, path=f"{name}.h5") for name in ("a", "b", "c")}


def tuned(**options: Any) -> Comparison:
    return replace(comparison_of(DATA), data=SETS, tuning=Tuning(**options))


def test_every_trained_candidate_gets_the_same_trials_and_others_none() -> None:
    plan = comparison_of(DATA, tuning=Tuning(learning_rates=(1e-3, 4e-3)))
    found = {name: trials_of(plan, "waves", name) for name in plan.candidates}
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
    plan = tuned(learning_rates=(1e-3, 2e-3), reuse={"c": "b"})
    assert {own.data for own in all_trials(plan)} == {"a", "b"}
    assert len(all_trials(plan)) == 2 * 2 * 2
    assert trials_of(plan, "c", "fno2d") == trials_of(plan, "b", "fno2d")


def older(plan: Comparison, folder: Path, **rollout: Any) -> None:
    """Leave the record of a plan as earlier versions wrote it, without what came later."""
    record = config.as_plain(plan)
    del record["tuning"], record["published"], record["noise"], record["rollout"]["windows"]
    for own in record["candidates"].values():
        del own["optimizer"]
    record["rollout"] |= {"free_run": 0} | rollout
    (folder / "comparison.json").write_text(json.dumps(record))


def test_a_folder_of_an_earlier_version_is_continued(tmp_path: Path) -> None:
    plan = comparison_of(DATA)
    older(plan, tmp_path)
    assert refuse_other(plan, tmp_path) == config.as_plain(plan)
    # What only changes the report may differ.
    shown = replace(plan, published={"waves": "cylinder-real"}, tested="fno2d")
    found = refuse_other(shown, tmp_path)
    assert (found["published"], found["tested"]) == ({"waves": "cylinder-real"}, "fno2d")
    fno = replace(plan.candidates["fno2d"], optimizer="muon")
    for other, named in (
        (replace(plan, tuning=Tuning()), "tuning is None there and"),
        (replace(plan, candidates={**plan.candidates, "fno2d": fno}), "candidate 'fno2d'"),
        (replace(plan, rollout=replace(plan.rollout, steps=99)), "rollout is"),
        (replace(plan, noise=0.05), "noise"),
    ):
        with refused(named):
            refuse_other(other, tmp_path)
    older(plan, tmp_path, free_run=50)  # asked for
    with refused("rollout is"):
        refuse_other(plan, tmp_path)
