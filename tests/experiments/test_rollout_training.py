"""Training on rollouts: a stage after training on single steps, really trained."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import pibert
from pibert.comparison.plan import Job, experiment_of
from pibert.experiments import Experiment, Finished, resume, run
from pibert.experiments.experiment import DataConfig, ModelConfig, RolloutTraining
from pibert.experiments.run_folder import curves_of
from pibert.training.objectives import RolloutConfig
from pibert.training.settings import FitConfig
from tests.comparison.setups import candidate, comparison_of
from tests.helpers import refused

STAGE = RolloutTraining(
    epochs=2,
    batch_size=4,
    learning_rate=1e-3,
    rollout=RolloutConfig(steps=3, first=2, curriculum_epochs=1),
)
EXPERIMENT = Experiment(
    data=DataConfig(case="turbulence", recipe={"samples": 8, "frames": 6, "shape": [12, 16]}),
    model=ModelConfig(name="pibert-mr", preset="small", options={"width": 8, "levels": 1}),
    training=FitConfig(epochs=1, batch_size=8, monitor="reconstruction"),
    rollout_training=STAGE,
)


@pytest.fixture(autouse=True, scope="module")
def _cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PIBERT_CACHE", str(tmp_path_factory.mktemp("flows")))
        yield


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory, _cache: None) -> Finished:
    """A run that was never stopped."""
    return run(EXPERIMENT, tmp_path_factory.mktemp("whole") / "run")


def weights(folder: Path) -> dict[str, torch.Tensor]:
    return pibert.load(folder).model.state_dict()


def same(a: Path, b: Path) -> bool:
    mine, theirs = weights(a), weights(b)
    return all(torch.equal(mine[name], theirs[name]) for name in mine)


def test_rollout_training_starts_from_the_training_on_single_steps(
    whole: Finished, tmp_path: Path
) -> None:
    run(replace(EXPERIMENT, rollout_training=None), tmp_path / "single")
    assert same(whole.folder / "training", tmp_path / "single")
    assert not same(whole.folder, tmp_path / "single")
    assert whole.metrics["first_step"] < whole.metrics["reconstruction"]
    curves = list(curves_of(whole.folder))
    assert [line["stage"] for line in curves] == ["training", "rollouts", "rollouts"]
    one = curves[0]["samples"]
    assert one > 0 and all(line["valid_error"] > 0 for line in curves)
    log = [json.loads(line) for line in (whole.folder / "log.jsonl").read_text().splitlines()]
    (size,) = {line["samples_per_epoch"] for line in log if line["kind"] == "start"}
    assert [line["samples"] for line in curves] == [one, one + 2 * size, one + 5 * size]


@pytest.mark.parametrize("after", ["training", "."])
def test_a_run_that_was_stopped_in_any_stage_ends_with_the_same_weights(
    whole: Finished, tmp_path: Path, after: str
) -> None:
    stopped = tmp_path / "stopped"

    class Stopper(pibert.training.engine.Silent):
        def epoch(self, record: Mapping[str, Any]) -> None:
            if (stopped / after / "log.jsonl").exists():
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(EXPERIMENT, stopped, reporter=Stopper())
    resume(stopped)
    assert same(whole.folder, stopped)


def test_flows_that_are_too_short_for_the_rollouts_cost_nothing(tmp_path: Path) -> None:
    long = replace(STAGE, rollout=RolloutConfig(steps=9))
    with refused("10 frames", "rollout_training.rollout.steps is 9"):
        run(replace(EXPERIMENT, rollout_training=long), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("name", ["persistence", "fourierflow"])
def test_a_model_without_a_loss_of_rollouts_is_refused(name: str, tmp_path: Path) -> None:
    other = replace(EXPERIMENT, model=ModelConfig(name=name))
    with pytest.raises(ValueError, match=rf"{name}.*rollout_training=none"):
        run(other, tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("size", [37, 240, 900])
def test_rollouts_are_paid_from_the_budget_of_a_comparison(size: int) -> None:
    names = ("fno2d", "persistence", "fourierflow")
    plan = comparison_of(
        DataConfig(path="flows.h5"),
        candidates={name: candidate(name) for name in names},
        samples=20_000,
        rollout_share=0.5,
    )
    found = experiment_of(plan, Job("waves", "fno2d", 0), size)
    stage = found.rollout_training
    assert stage is not None and stage.rollout.steps == 8
    assert stage.learning_rate == pytest.approx(found.training.learning_rate / 8)
    assert 0.5 * 20_000 - 8 * size < stage.calls * size <= 0.5 * 20_000
    whole = (found.training.epochs + stage.calls) * size
    assert abs(whole - 20_000) <= size / 2
    assert experiment_of(plan, Job("waves", "fourierflow", 0), size).rollout_training is None
