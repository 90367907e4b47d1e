"""Carrying a comparison out: all runs, once, whatever becomes of one of them."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import pibert
from pibert.comparison import jobs
from pibert.comparison.checks import refuse_other_training
from pibert.comparison.jobs import carry_out
from pibert.comparison.plan import Candidate, Comparison, Job
from pibert.comparison.results import gather
from pibert.evaluation.scores import read_card, read_scores
from pibert.experiments.experiment import Experiment, OtherFlows
from pibert.experiments.run import run
from pibert.training import engine
from tests.comparison.conftest import Carried
from tests.comparison.setups import MemoryWatcher, candidate, comparison_of, write_waves
from tests.helpers import refused


def test_every_run_is_trained_evaluated_and_reported(carried: Carried) -> None:
    assert not carried.failed
    assert set(carried.watcher.states) == set(carried.comparison.jobs())
    for job, states in carried.watcher.states.items():
        assert states[0] == "waiting"
        assert states[-4:] == ["evaluating", "evaluated", "timing", "done"]
        card = read_card(job.folder(carried.out))
        assert card["labels"] == {"data": "waves", "model": job.candidate, "seed": job.seed}
        error = carried.watcher.errors[job]
        assert error is not None and 0 < error < 1
    trained = carried.watcher.states[Job("waves", "fno2d", 1)]
    assert "training 100 %" in trained


def test_all_are_evaluated_on_frames_that_the_longest_history_allows(carried: Carried) -> None:
    assert carried.comparison.history == 2  # of linear extrapolation
    frames = [read_scores(job.folder(carried.out)) for job in carried.comparison.jobs()]
    for scores in frames:
        assert torch.equal(scores.arrays["rows/frame"], frames[0].arrays["rows/frame"])
    assert set(frames[0].arrays["rows/frame"].tolist()) == set(range(2, 20))
    homes = {segment.trajectory for segment in carried.flows.split.test}
    assert set(frames[0].arrays["rows/trajectory"].tolist()) == homes
    for scores in frames:  # rollouts begin at the same frames too
        assert torch.equal(scores.arrays["rollout/frame"], frames[0].arrays["rollout/frame"])


def test_finished_runs_are_neither_trained_nor_evaluated_again(
    carried: Carried, monkeypatch: pytest.MonkeyPatch, quick: None
) -> None:
    def never(*_: Any, **__: Any) -> Any:
        raise AssertionError("evaluated again")

    monkeypatch.setattr(jobs, "evaluate", never)
    files = [
        path
        for job in carried.comparison.jobs()
        for path in job.folder(carried.out).rglob("*.safetensors")
        if path.name in ("model.safetensors", "scores.safetensors")
    ]
    before = {path: path.stat().st_mtime_ns for path in files}
    assert len(before) == 6 + 6 + 2  # models, scores, what pretraining left
    watcher = MemoryWatcher()
    assert carry_out(carried.comparison, carried.out, watcher) == {}
    assert {path: path.stat().st_mtime_ns for path in files} == before
    assert not any(
        state.startswith("training ") for own in watcher.states.values() for state in own
    )
    assert watcher.errors == carried.watcher.errors


def test_damaged_scores_are_computed_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quick: None
) -> None:
    few = {name: candidate(name) for name in ("persistence", "training-mean")}
    data = write_waves(tmp_path / "waves.h5", 5, frames=8)
    plan = comparison_of(data, candidates=few, seeds=(0,))
    out, evaluated = tmp_path / "out", list[str]()
    evaluate = jobs.evaluate

    def counted(folder: Path, *given: Any, **options: Any) -> Any:
        evaluated.append(folder.name)
        return evaluate(folder, *given, **options)

    monkeypatch.setattr(jobs, "evaluate", counted)
    assert not carry_out(plan, out, MemoryWatcher())
    assert evaluated == ["persistence-0", "training-mean-0"]
    (Job("waves", "training-mean", 0).folder(out) / "scores.json").write_text("damaged")
    assert not carry_out(plan, out, MemoryWatcher())
    assert evaluated[2:] == ["training-mean-0"]
    (Job("waves", "persistence", 0).folder(out) / "scores.safetensors").unlink()
    assert not carry_out(plan, out, MemoryWatcher())
    assert evaluated[3:] == ["persistence-0"]


def test_a_run_that_fails_is_reported_and_the_others_continue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quick: None
) -> None:
    def explodes(model: Any, *given: Any, **options: Any) -> Any:
        raise FloatingPointError("the loss is not finite")

    monkeypatch.setattr(engine, "fit", explodes)
    plan = comparison_of(
        write_waves(tmp_path / "waves.h5", 10, frames=6),
        candidates={
            "wrong": candidate("fno2d", widht=3),
            "bursting": candidate("fno2d", width=8),
            "persistence": candidate("persistence"),
        },
        seeds=(0,),
    )
    watcher = MemoryWatcher()
    failed = carry_out(plan, tmp_path / "out", watcher)
    messages = {job.candidate: message for job, message in failed.items()}
    assert set(messages) == {"wrong", "bursting"}
    assert "did you mean 'width'" in messages["wrong"]
    assert messages["bursting"] == "the loss is not finite"
    assert watcher.states[Job("waves", "wrong", 0)][-1] == "failed"
    assert watcher.states[Job("waves", "persistence", 0)][-1] == "done"


@pytest.fixture
def short(tmp_path: Path, quick: None) -> Comparison:
    """One model that is trained for an epoch, and persistence."""
    few = {"fno2d": candidate("fno2d", width=8, modes=3), "persistence": candidate("persistence")}
    data = write_waves(tmp_path / "waves.h5", 5, frames=8)
    return comparison_of(data, candidates=few, seeds=(0,), samples=1)


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"rollout_share": 0.5, "rollout_steps": 2}, "rollouts"),
        (
            {"candidates": {"pretrained": replace(candidate("fno2d"), pretraining=0.2)}},
            "pretrained",
        ),
    ],
)
def test_a_budget_too_small_for_one_stage_is_refused_before_any_run(
    short: Comparison, tmp_path: Path, changes: dict[str, Any], named: str
) -> None:
    more = {"candidates": {**short.candidates, **changes.get("candidates", {})}}
    with refused("1 samples are too few", named, "raise samples"):
        carry_out(replace(short, **(changes | more)), tmp_path / "out", MemoryWatcher())
    assert not (tmp_path / "out").exists()


def test_a_run_that_failed_before_it_began_is_tried_again(
    short: Comparison, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, job = tmp_path / "out", Job("waves", "fno2d", 0)

    def full(*_: Any, **__: Any) -> Any:
        raise OSError("no space left")

    with monkeypatch.context() as patch:
        patch.setattr(jobs, "run", full)
        for _ in range(2):
            assert carry_out(short, out, MemoryWatcher())[job] == "no space left"
    assert "no space left" in (job.folder(out) / "failure.txt").read_text()
    assert carry_out(short, out, MemoryWatcher()) == {}
    assert not (job.folder(out) / "failure.txt").exists()


def test_predictions_that_are_not_finite_fail_their_run(
    short: Comparison, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load = pibert.load

    def spoiled(*given: Any, **options: Any) -> Any:
        predictor = load(*given, **options)
        for parameter in predictor.model.parameters():
            parameter.detach().fill_(torch.inf)
        return predictor

    monkeypatch.setattr("pibert.experiments.evaluation.load", spoiled)
    ((job, message),) = carry_out(short, tmp_path / "out", MemoryWatcher()).items()
    assert job.candidate == "fno2d"
    assert "expected finite predictions" in message and "samples 0 to" in message


def test_a_finished_run_can_enter_as_it_is(carried: Carried, tmp_path: Path, quick: None) -> None:
    run = Job("waves", "fno2d", 1).folder(carried.out)
    entering = {"taken": Candidate(run=str(run)), **carried.comparison.candidates}
    few = {name: entering[name] for name in ("taken", "linear-extrapolation")}
    plan = replace(carried.comparison, candidates=few, reference="linear-extrapolation")
    watcher = MemoryWatcher()
    assert not carry_out(plan, tmp_path, watcher)
    job = Job("waves", "taken", 3)
    assert watcher.errors[job] == carried.watcher.errors[Job("waves", "fno2d", 1)]
    assert not (job.folder(tmp_path) / "model.safetensors").exists()
    # Under which circumstances it was trained is not known.
    assert read_card(job.folder(tmp_path))["at_a_time"] is None


def test_a_run_whose_start_saw_the_test_split_does_not_enter(
    carried: Carried, tmp_path: Path, quick: None
) -> None:
    data = carried.comparison.data["waves"]
    base = Experiment(
        data=data,
        model=carried.comparison.candidates["fno2d"].model,
        training=replace(carried.comparison.training, epochs=1),
        hardware=carried.comparison.hardware,
    )
    # As many flows as in the comparison train, but other ones.
    run(replace(base, data=replace(data, split_seed=9)), tmp_path / "saw")
    run(replace(base, start=str(tmp_path / "saw")), tmp_path / "leak")
    run(base, tmp_path / "sound")
    run(replace(base, start=str(tmp_path / "sound")), tmp_path / "further")
    few = {name: Candidate(run=str(tmp_path / name)) for name in ("leak", "further")}
    few |= {"persistence": candidate("persistence")}
    plan = replace(carried.comparison, candidates=few, seeds=(3,))
    failed = carry_out(plan, tmp_path / "out", MemoryWatcher())
    assert {job.candidate for job in failed} == {"leak"}
    assert "not standardised by the training split" in next(iter(failed.values()))
    results = gather(plan, tmp_path / "out", failed)
    assert {record["model"] for record in results["records"]} == {"further", "persistence"}


# Which finished runs may enter: what they saw, and what they began with


def copy_of(carried: Carried, folder: Path, **changes: Any) -> Path:
    """A run of the comparison whose record says other things of the experiment or its data."""
    source = Job("waves", "fno2d", 1).folder(carried.out)
    folder.mkdir()
    (folder / "model.safetensors").write_bytes((source / "model.safetensors").read_bytes())
    card = json.loads((source / "model.json").read_text())
    experiment = card["provenance"]["experiment"]
    experiment |= {key: value for key, value in changes.items() if key in experiment}
    experiment["data"] |= changes.get("split", {})
    for key in changes.get("unrecorded", ()):
        del experiment["data"][key]
    card["provenance"]["data"] |= changes.get("source", {})
    (folder / "model.json").write_text(json.dumps(card))
    (folder / "config.json").write_text(json.dumps({"directory": str(folder.parent)}))
    return folder


def enter(carried: Carried, folder: Path) -> None:
    refuse_other_training(folder, carried.comparison.data["waves"], carried.flows)


def test_a_run_enters_with_a_start_of_the_same_split_or_of_other_flows(
    carried: Carried, tmp_path: Path
) -> None:
    copy_of(carried, tmp_path / "same")
    copy_of(carried, tmp_path / "other", source={"fingerprint": "0"}, split={"split_seed": 7})
    for start in ("same", "other", "same/model.safetensors"):
        name = start.replace("/", "-")
        # From where the run was started, wherever that is now.
        enter(carried, copy_of(carried, tmp_path / f"from-{name}", start=start))


def test_finished_runs_enter_a_plan_with_test_flows_of_its_own(
    carried: Carried, tmp_path: Path
) -> None:
    data = replace(carried.comparison.data["waves"], test=OtherFlows(path="new.h5"))
    source = {**carried.flows.source, "test": {"fingerprint": "0"}}
    flows = replace(carried.flows, source=source)
    refuse_other_training(copy_of(carried, tmp_path / "run"), data, flows)
    copy_of(carried, tmp_path / "pretrained", source={"fingerprint": "0"})
    heir = copy_of(carried, tmp_path / "heir", start="pretrained")
    with pytest.raises(ValueError, match="may have seen the test split"):
        refuse_other_training(heir, data, flows)
    enter(carried, heir)  # it does not know the test flows of this plan


def test_a_run_with_a_start_that_saw_the_test_split_or_is_unknown_does_not_enter(
    carried: Carried, tmp_path: Path
) -> None:
    copy_of(carried, tmp_path / "saw", split={"split_seed": 7})
    copy_of(carried, tmp_path / "between", start="saw", source={"fingerprint": "0"})
    silent = copy_of(carried, tmp_path / "silent")
    card = json.loads((silent / "model.json").read_text())
    (silent / "model.json").write_text(json.dumps(card | {"provenance": {}}))
    for start, named in {
        "between": ("saw: ", "split_seed is 7"),  # the first of several starts
        "gone": ("'gone'",),
        "silent": ("silent: ", "model.json"),
    }.items():
        with refused(*named):
            enter(carried, copy_of(carried, tmp_path / f"from-{start}", start=start))
