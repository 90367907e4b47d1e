"""Training on rollouts: a stage after training on single steps, really trained."""

import itertools
import json
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import pibert
from pibert.comparison.plan import Job, experiment_of
from pibert.data.format import write
from pibert.data.splits import Shares
from pibert.experiments import Experiment, Finished, resume, run
from pibert.experiments.experiment import DataConfig, ModelConfig, RolloutTraining
from pibert.experiments.run_folder import curves_of, unfinished
from pibert.training.engine import Reporter
from pibert.training.journal import read_log
from pibert.training.objectives import RolloutConfig
from pibert.training.settings import FitConfig
from tests.comparison.setups import candidate, comparison_of
from tests.data.helpers import make_trajectory
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


def test_a_run_that_failed_before_its_last_stage_has_the_curves_of_the_others(
    whole: Finished, tmp_path: Path
) -> None:
    shutil.copytree(whole.folder / "training", tmp_path / "run" / "training")
    assert [line["stage"] for line in curves_of(tmp_path / "run")] == ["training"]


@pytest.mark.parametrize("after", ["training", "."])
def test_a_run_that_was_stopped_in_any_stage_ends_with_the_same_weights(
    whole: Finished, tmp_path: Path, after: str
) -> None:
    stopped = tmp_path / "stopped"

    class Stopper(pibert.training.engine.Reporter):
        def epoch(self, record: Mapping[str, Any]) -> None:
            if (stopped / after / "log.jsonl").exists():
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(EXPERIMENT, stopped, reporter=Stopper())
    resume(stopped)
    assert same(whole.folder, stopped)


KILLED = """
import os, signal, sys
from pathlib import Path
from pibert.experiments import run
from pibert.training.engine import Reporter
from tests.experiments.test_rollout_training import EXPERIMENT, STAGE, replace

class Killer(Reporter):
    def step(self, done, loss):
        if done == 7 and (Path(sys.argv[1]) / "log.jsonl").exists():
            os.kill(os.getpid(), signal.SIGKILL)

run(replace(EXPERIMENT, rollout_training=replace(STAGE, checkpoint_minutes=0.0)), sys.argv[1],
    reporter=Killer())
"""


def test_a_process_killed_within_the_stage_resumes_to_identical_weights(
    whole: Finished, tmp_path: Path
) -> None:
    """Every step is saved; the process dies in the second epoch, of longer rollouts."""
    code = subprocess.run([sys.executable, "-c", KILLED, tmp_path / "run"], timeout=300).returncode
    assert code == -signal.SIGKILL
    epochs = [line for line in read_log(tmp_path / "run" / "log.jsonl") if "epoch" in line]
    assert len(epochs) == 1
    finished = resume(tmp_path / "run")
    assert finished.fitted.resumed_from == 6 and finished.fitted.start_metrics
    for name in ("model", "state"):
        a, b = (
            load_file(folder / f"{name}.safetensors") for folder in (whole.folder, tmp_path / "run")
        )
        assert a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a)


def test_weights_of_single_steps_are_kept_if_no_rollout_is_better(tmp_path: Path) -> None:
    idle = replace(STAGE, epochs=1, learning_rate=0.0, min_learning_rate=0.0)
    finished = run(replace(EXPERIMENT, rollout_training=idle), tmp_path / "run")
    assert finished.best_epoch == 0 and finished.metrics == finished.fitted.start_metrics
    assert same(tmp_path / "run", tmp_path / "run" / "training")
    assert unfinished(tmp_path / "run") is None


def test_the_log_has_the_error_before_and_after_the_stage(whole: Finished) -> None:
    start, *epochs = read_log(whole.folder / "log.jsonl")
    assert start["monitor"] == "reconstruction" and start["valid"] == whole.fitted.start_metrics
    values = [start["valid"]["reconstruction"], *(line["valid"]["loss"] for line in epochs)]
    assert whole.best_epoch == values.index(min(values)) > 0
    assert whole.metrics["reconstruction"] == min(values)


def test_flows_that_are_too_short_for_the_rollouts_cost_nothing(tmp_path: Path) -> None:
    long = replace(STAGE, rollout=RolloutConfig(steps=9), shorten=False)
    with refused("10 frames", "rollout_training.rollout.steps is 9", "at most 6"):
        run(replace(EXPERIMENT, rollout_training=long), tmp_path / "run")
    assert not (tmp_path / "run").exists()


class Notes(Reporter):
    def __init__(self) -> None:
        self.notes: list[str] = []

    def say(self, text: str) -> None:
        self.notes.append(text)


def with_gaps(folder: Path, *, lengths: Sequence[int]) -> DataConfig:
    """Flows whose time jumps after each of the lengths."""
    time = torch.arange(float(sum(lengths)))
    for end in itertools.accumulate(lengths[:-1]):
        time[end:] += 7
    flows = [
        make_trajectory(f"f{n}", len(time), time=0.05 * time.double(), seed=n) for n in range(4)
    ]
    write(folder / "flows.h5", flows)
    return DataConfig(path=str(folder / "flows.h5"), shares=Shares(train=0.5, valid=0.25))


@pytest.mark.parametrize(
    ("lengths", "steps", "words"),
    [((5, 3, 5), 4, "too short for rollouts of 8"), ((2, 2, 2), 0, "left out"), ((9,), 8, "")],
)
def test_rollouts_are_as_long_as_recordings_without_gaps_allow(
    tmp_path: Path, lengths: tuple[int, ...], steps: int, words: str
) -> None:
    stage = replace(STAGE, epochs=1, batch_size=64, rollout=RolloutConfig(steps=8))
    experiment = replace(
        EXPERIMENT, data=with_gaps(tmp_path, lengths=lengths), rollout_training=stage
    )
    notes = Notes()
    run(experiment, tmp_path / "run", reporter=notes)
    epochs = [line for line in read_log(tmp_path / "run" / "log.jsonl") if "epoch" in line]
    found = [note for note in notes.notes if "rollouts" in note]
    assert [line["calls"] for line in epochs] == [steps or 1]
    assert (tmp_path / "run" / "training").exists() is bool(steps)
    assert words in found[0] if words else not found
    if steps:  # two flows, and one window in each stretch that is long enough
        (start, *_) = read_log(tmp_path / "run" / "log.jsonl")
        assert start["samples_per_epoch"] == 2 * sum(n > steps for n in lengths)


def test_a_stage_whose_loss_is_not_finite_keeps_the_weights_before(tmp_path: Path) -> None:
    notes, wild = Notes(), replace(STAGE, learning_rate=1e30, clip=None, optimizer="adamw")
    finished = run(replace(EXPERIMENT, rollout_training=wild), tmp_path / "run", reporter=notes)
    assert any("ends early" in note for note in notes.notes)
    assert finished.best_epoch == 0 and same(tmp_path / "run", tmp_path / "run" / "training")
    assert unfinished(tmp_path / "run") is None
    again = run(replace(EXPERIMENT, rollout_training=wild), tmp_path / "run")
    assert again.best_epoch == 0


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
