"""The plan of a comparison: equal budgets, jobs, and what is refused before anything runs."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from pibert import config
from pibert.comparison.plan import (
    Comparison,
    Entrant,
    Job,
    RolloutPlan,
    experiment_of,
    load_comparison,
)
from pibert.data.splits import Shares
from pibert.experiments.experiment import DataConfig, ModelConfig
from pibert.training.losses import LossWeights
from tests.comparison.setups import comparison_of, entrant

DATA = DataConfig(path="flows.h5", shares=Shares(train=0.5, valid=0.2))


@pytest.mark.parametrize("train_samples", [37, 240, 1999])
@pytest.mark.parametrize("share", [0.0, 0.2, 0.5, 0.7])
def test_every_entrant_sees_the_budget_pretraining_included(
    share: float, train_samples: int
) -> None:
    one = replace(entrant("pibert"), pretraining=share)
    plan = comparison_of(DATA, entrants={"persistence": one}, samples=8000)
    found = experiment_of(plan, Job("waves", "persistence", 3), train_samples)
    epochs = found.training.epochs
    if share:
        assert found.pretraining is not None
        assert abs(found.pretraining.epochs * train_samples - share * 8000) <= train_samples / 2
        epochs += found.pretraining.epochs
    else:
        assert found.pretraining is None
    assert abs(epochs * train_samples - 8000) <= train_samples / 2


def test_few_labels_take_more_epochs_of_training() -> None:
    plan = comparison_of(DATA, samples=8000)
    found = experiment_of(plan, Job("waves", "fno2d", 3), 1000, 100)
    assert found.training.epochs == 80


def test_a_budget_below_one_epoch_is_one_epoch_or_too_little_to_pretrain() -> None:
    plan = comparison_of(DATA, samples=10)
    assert experiment_of(plan, Job("waves", "fno2d", 3), 1000).training.epochs == 1
    with pytest.raises(ValueError, match="10 samples are too few for 'pibert'.*raise samples"):
        experiment_of(plan, Job("waves", "pibert", 3), 1000)


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


def test_an_entrant_may_have_a_rate_an_average_and_losses_of_its_own() -> None:
    losses = LossWeights(reg=1.0, div=0.5)
    own = replace(entrant("fno2d"), learning_rate=5e-5, ema=0.9, losses=losses)
    plan = comparison_of(DATA, entrants={"own": own, "persistence": entrant("persistence")})
    found = experiment_of(plan, Job("waves", "own", 3), 100)
    assert (found.training.learning_rate, found.training.ema) == (5e-5, 0.9)
    assert found.training.min_learning_rate <= 5e-5 and found.losses == losses


def test_references_run_once_and_models_with_every_seed() -> None:
    found = comparison_of(DATA).jobs()
    assert [(job.entrant, job.seed) for job in found] == [
        ("pibert", 3),
        ("pibert", 1),
        ("fno2d", 3),
        ("fno2d", 1),
        ("persistence", 3),
        ("linear-extrapolation", 3),
    ]
    assert Job("waves", "fno2d", 1).folder(Path("out")) == Path("out/runs/waves/fno2d-1")
    assert len({job.folder(Path()) for job in found}) == len(found)


def test_the_history_is_the_longest_of_all_entrants() -> None:
    assert comparison_of(DATA).history == 2
    long = entrant("fno2d", history=5)
    plan = comparison_of(DATA, entrants={"persistence": entrant("persistence"), "long": long})
    assert plan.history == 5
    assert comparison_of(DATA, entrants={"persistence": entrant("persistence")}).history == 1


def test_data_without_a_validation_part_are_refused() -> None:
    data = replace(DATA, shares=Shares(train=0.7, valid=0.0))
    with pytest.raises(ValueError, match=r"'waves' has no validation part.*chosen on test data"):
        comparison_of(data)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"entrants": {}}, "at least one data set, one entrant"),
        ({"seeds": ()}, "found 1, 4 and 0"),
        ({"reference": "nobody"}, "'nobody' among the entrants, found pibert"),
        ({"samples": 0}, "at least 1 sample"),
        ({"entrants": {"a/b": entrant("persistence")}, "reference": "a/b"}, "can be folders"),
        ({"entrants": {".a": entrant("persistence")}, "reference": ".a"}, "can be folders"),
    ],
)
def test_plans_that_make_no_sense_are_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        comparison_of(DATA, **changes)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"pretraining": 1.0}, "at least 0 and below 1, found 1.0"),
        ({"pretraining": -0.1}, "share of pretraining"),
        ({"model": ModelConfig(name="fno3d")}, "unknown model 'fno3d'; choose from: pibert, pib"),
        ({"model": ModelConfig(name="fno2d", preset="big")}, "unknown preset 'big' of fno2d"),
    ],
)
def test_entrants_that_make_no_sense_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Entrant(**options)


def test_rollouts_need_starts() -> None:
    assert RolloutPlan(steps=0).steps == 0
    with pytest.raises(ValueError, match="starts >= 1, found 3 and 0"):
        RolloutPlan(steps=3, starts=0)


def test_a_plan_survives_its_plain_form() -> None:
    plan = comparison_of(DATA)
    assert config.parse(Comparison, config.as_plain(plan)) == plan


def test_a_plan_is_read_from_a_file_with_changes(tmp_path: Path) -> None:
    (tmp_path / "plan.toml").write_text(
        """
samples = 100
seeds = [4, 5]
[data.waves]
path = "flows.h5"
[entrants.persistence.model]
name = "persistence"
[entrants.small]
pretraining = 0.25
[entrants.small.model]
options = { width = 16 }
"""
    )
    plan = load_comparison(tmp_path / "plan.toml", ("samples=300", "rollout.steps=0"))
    assert (plan.samples, plan.seeds, plan.rollout.steps) == (300, (4, 5), 0)
    assert plan.entrants["small"].pretraining == 0.25
    assert plan.entrants["small"].model == ModelConfig(options={"width": 16})
