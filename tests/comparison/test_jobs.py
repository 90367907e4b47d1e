"""Carrying a comparison out: all runs, once, whatever becomes of one of them."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import pibert
from pibert.comparison import jobs
from pibert.comparison.jobs import carry_out
from pibert.comparison.plan import Entrant, Job
from pibert.comparison.results import gather, shares_device
from pibert.data.dataset import Window
from pibert.data.format import write
from pibert.evaluation.scores import read_card, read_scores
from pibert.experiments.experiment import DataConfig, Experiment
from pibert.experiments.run import run
from pibert.remarks import InputWarning
from pibert.training import engine
from tests.comparison.conftest import Carried
from tests.comparison.setups import Told, comparison_of, entrant, wave, write_waves


def test_every_run_is_trained_judged_and_told(carried: Carried) -> None:
    assert not carried.failed
    assert set(carried.told.states) == set(carried.comparison.jobs())
    for job, states in carried.told.states.items():
        assert states[0] == "waiting" and states[-3:] == ["judging", "timing", "done"]
        card = read_card(job.folder(carried.out))
        assert card["labels"] == {"data": "waves", "model": job.entrant, "seed": job.seed}
        error = carried.told.errors[job]
        assert error is not None and 0 < error < 1
    trained = carried.told.states[Job("waves", "fno2d", 1)]
    assert "training 100 %" in trained


def test_physics_that_is_off_is_told_once_with_the_models_that_it_concerns(
    tmp_path: Path, quick: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    spec = replace(wave(0).spec, family=None)
    data = write_waves(tmp_path / "waves.h5", spec=spec)
    monkeypatch.setattr(jobs, "_one", lambda *_, **__: 0.5)
    monkeypatch.setattr(jobs, "_price", lambda *_: None)
    with pytest.warns(InputWarning) as notes:
        carry_out(comparison_of(data), tmp_path / "out", Told())
    texts = [str(note.message) for note in notes]
    assert len(texts) == 1 and texts[0].startswith("waves, pibert: the attention bias, the div")
    assert "data.hints.family" in texts[0]


def test_all_are_judged_on_frames_that_the_longest_history_allows(carried: Carried) -> None:
    assert carried.comparison.history == 2  # of linear extrapolation
    frames = [read_scores(job.folder(carried.out)) for job in carried.comparison.jobs()]
    for scores in frames:
        assert torch.equal(scores.arrays["rows/frame"], frames[0].arrays["rows/frame"])
    assert set(frames[0].arrays["rows/frame"].tolist()) == set(range(2, 20))
    homes = {segment.trajectory for segment in carried.flows.split.test}
    assert set(frames[0].arrays["rows/trajectory"].tolist()) == homes
    for scores in frames:  # rollouts begin at the same frames too
        assert torch.equal(scores.arrays["rollout/frame"], frames[0].arrays["rollout/frame"])


def test_all_trained_models_see_as_many_samples(carried: Carried) -> None:
    windows = len(carried.flows.samples("train", Window()))
    assert windows == 10 * 19
    seen = {}
    for job in carried.comparison.jobs():
        training = read_card(job.folder(carried.out))["training"]
        stages = [own["epochs"] for own in training.values()]
        seen[job] = sum(stages) * windows
        if job.entrant == "pibert":
            assert stages == [2, 3]  # 40 % of the samples, and the rest
    budget = carried.comparison.samples
    trained = {n: count for job, count in seen.items() if (n := job.entrant) in ("pibert", "fno2d")}
    assert all(abs(count - budget) <= windows for count in trained.values()), trained
    assert sum(seen.values()) == 2 * sum(trained.values())  # references see none


def test_frames_to_look_at_are_the_same_for_all(carried: Carried) -> None:
    scores = [read_scores(job.folder(carried.out)) for job in carried.comparison.jobs()]
    for own in scores:
        assert torch.equal(own.arrays["picks/truth"], scores[0].arrays["picks/truth"])
        assert torch.equal(own.arrays["strip/rows"], scores[0].arrays["strip/rows"])


def test_what_is_done_is_neither_trained_nor_judged_again(
    carried: Carried, monkeypatch: pytest.MonkeyPatch, quick: None
) -> None:
    def never(*_: Any, **__: Any) -> Any:
        raise AssertionError("judged again")

    monkeypatch.setattr(jobs, "evaluate", never)
    files = [
        path
        for job in carried.comparison.jobs()
        for path in job.folder(carried.out).rglob("*.safetensors")
        if path.name in ("model.safetensors", "scores.safetensors")
    ]
    before = {path: path.stat().st_mtime_ns for path in files}
    assert len(before) == 6 + 6 + 2  # models, scores, what pretraining left
    told = Told()
    assert carry_out(carried.comparison, carried.out, told) == {}
    assert {path: path.stat().st_mtime_ns for path in files} == before
    assert not any(state.startswith("training ") for own in told.states.values() for state in own)
    assert told.errors == carried.told.errors


def test_damaged_scores_are_made_anew_and_another_plan_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quick: None
) -> None:
    few = {name: entrant(name) for name in ("persistence", "training-mean")}
    data = write_waves(tmp_path / "waves.h5", 5, frames=8)
    plan = comparison_of(data, entrants=few, seeds=(0,))
    out, judged = tmp_path / "out", list[str]()
    evaluate = jobs.evaluate

    def counted(folder: Path, *given: Any, **options: Any) -> Any:
        judged.append(folder.name)
        return evaluate(folder, *given, **options)

    monkeypatch.setattr(jobs, "evaluate", counted)
    assert not carry_out(plan, out, Told())
    assert judged == ["persistence-0", "training-mean-0"]
    (Job("waves", "training-mean", 0).folder(out) / "scores.json").write_text("damaged")
    assert not carry_out(plan, out, Told())
    assert judged[2:] == ["training-mean-0"]
    (Job("waves", "persistence", 0).folder(out) / "scores.safetensors").unlink()
    assert not carry_out(plan, out, Told())
    assert judged[3:] == ["persistence-0"]
    rollout = replace(plan.rollout, steps=2)
    with pytest.raises(ValueError, match="another comparison: rollout is"):
        carry_out(replace(plan, rollout=rollout), out, Told())


def test_a_run_that_fails_is_reported_and_the_others_go_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quick: None
) -> None:
    def explodes(model: Any, *given: Any, **options: Any) -> Any:
        raise FloatingPointError("the loss is not finite")

    monkeypatch.setattr(engine, "fit", explodes)
    plan = comparison_of(
        write_waves(tmp_path / "waves.h5", 10, frames=6),
        entrants={
            "wrong": entrant("fno2d", widht=3),
            "bursting": entrant("fno2d", width=8),
            "persistence": entrant("persistence"),
        },
        seeds=(0,),
    )
    told = Told()
    failed = carry_out(plan, tmp_path / "out", told)
    messages = {job.entrant: message for job, message in failed.items()}
    assert set(messages) == {"wrong", "bursting"}
    assert "did you mean 'width'" in messages["wrong"]
    assert messages["bursting"] == "the loss is not finite"
    assert told.states[Job("waves", "wrong", 0)][-1] == "failed"
    assert told.states[Job("waves", "persistence", 0)][-1] == "done"


def test_a_run_that_failed_before_it_began_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quick: None
) -> None:
    data = write_waves(tmp_path / "waves.h5", 5, frames=8)
    few = {"fno2d": entrant("fno2d", width=8, modes=3), "persistence": entrant("persistence")}
    plan = comparison_of(data, entrants=few, seeds=(0,), samples=1)
    out, job = tmp_path / "out", Job("waves", "fno2d", 0)

    def full(*_: Any, **__: Any) -> Any:
        raise OSError("no space left")

    with monkeypatch.context() as patch:
        patch.setattr(jobs, "run", full)
        for _ in range(2):
            assert carry_out(plan, out, Told())[job] == "no space left"
    assert "no space left" in (job.folder(out) / "failure.txt").read_text()
    assert carry_out(plan, out, Told()) == {}
    assert not (job.folder(out) / "failure.txt").exists()


def test_predictions_that_are_not_finite_fail_their_run_with_a_clear_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quick: None
) -> None:
    few = {"fno2d": entrant("fno2d", width=8, modes=3), "persistence": entrant("persistence")}
    data = write_waves(tmp_path / "waves.h5", 5, frames=8)
    plan = comparison_of(data, entrants=few, seeds=(0,), samples=1)
    load = pibert.load

    def spoiled(*given: Any, **options: Any) -> Any:
        predictor = load(*given, **options)
        for parameter in predictor.model.parameters():
            parameter.detach().fill_(torch.inf)
        return predictor

    monkeypatch.setattr("pibert.comparison.evaluation.load", spoiled)
    failed = carry_out(plan, tmp_path / "out", Told())
    assert {job.entrant for job in failed} == {"fno2d"}
    (message,) = failed.values()
    assert "expected finite predictions" in message and "samples 0 to" in message


def test_it_is_noted_how_many_runs_shared_the_device(carried: Carried, tmp_path: Path) -> None:
    epoch = '{"kind": "epoch", "epoch": 1, "seconds": 1.0}\n'
    log = tmp_path / "log.jsonl"

    def train(at_a_time: int, text: str) -> int:
        with jobs._noting_company(tmp_path, at_a_time):
            log.write_text(text)
        return jobs._company(tmp_path)

    assert train(2, "") == 1  # nothing was trained
    assert train(3, epoch) == 3
    assert train(1, epoch) == 3  # nothing was trained
    assert train(2, 2 * epoch) == 3  # a part of it was trained beside two others
    with pytest.raises(KeyboardInterrupt), jobs._noting_company(tmp_path, 5):
        raise KeyboardInterrupt
    assert train(1, 3 * epoch) == 5  # begun beside four others, and ended alone
    log.unlink()
    assert train(1, epoch) == 1  # trained anew
    runs = {(own["model"], own["seed"]): own for own in carried.results["runs"]}
    assert runs["pibert", 3]["at_a_time"] == 1 and runs["pibert", 3]["shared_device"] is False
    for count, shared in ((4, True), (1, False), (None, None)):
        assert shares_device({"at_a_time": count}) is shared


def test_a_finished_run_can_enter_as_it_is(carried: Carried, tmp_path: Path, quick: None) -> None:
    run = Job("waves", "fno2d", 1).folder(carried.out)
    entering = {"taken": Entrant(run=str(run)), **carried.comparison.entrants}
    few = {name: entering[name] for name in ("taken", "linear-extrapolation")}
    plan = replace(carried.comparison, entrants=few, reference="linear-extrapolation")
    told = Told()
    assert not carry_out(plan, tmp_path, told)
    job = Job("waves", "taken", 3)
    assert told.errors[job] == carried.told.errors[Job("waves", "fno2d", 1)]
    assert not (job.folder(tmp_path) / "model.safetensors").exists()
    # Under which circumstances it was trained is not known.
    assert read_card(job.folder(tmp_path))["at_a_time"] is None


def test_a_run_whose_start_saw_the_test_part_does_not_enter(
    carried: Carried, tmp_path: Path, quick: None
) -> None:
    data = carried.comparison.data["waves"]
    base = Experiment(
        data=data,
        model=carried.comparison.entrants["fno2d"].model,
        training=replace(carried.comparison.training, epochs=1),
        hardware=carried.comparison.hardware,
    )
    # As many flows as in the comparison train, but other ones.
    run(replace(base, data=replace(data, split_seed=9)), tmp_path / "saw")
    run(replace(base, start=str(tmp_path / "saw")), tmp_path / "leak")
    run(base, tmp_path / "sound")
    run(replace(base, start=str(tmp_path / "sound")), tmp_path / "further")
    few = {name: Entrant(run=str(tmp_path / name)) for name in ("leak", "further")}
    few |= {"persistence": entrant("persistence")}
    plan = replace(carried.comparison, entrants=few, seeds=(3,))
    failed = carry_out(plan, tmp_path / "out", Told())
    assert {job.entrant for job in failed} == {"leak"}
    assert "standardised otherwise" in next(iter(failed.values()))
    results = gather(plan, tmp_path / "out", failed)
    assert {record["model"] for record in results["records"]} == {"further", "persistence"}


@pytest.mark.slow
def test_several_processes_find_what_one_does(carried: Carried, tmp_path: Path) -> None:
    few = {name: entrant(name) for name in ("persistence", "linear-extrapolation")}
    wrong = entrant("fno2d", widht=3)
    plan = replace(carried.comparison, entrants={"wrong": wrong, **few}, seeds=(3,))
    told = Told()
    failed = carry_out(plan, tmp_path, told, workers=2)
    assert {job.entrant for job in failed} == {"wrong"}
    for name in few:
        job = Job("waves", name, 3)
        assert told.errors[job] == pytest.approx(carried.told.errors[job], rel=1e-6)


def test_a_stated_split_without_a_validation_part_is_refused(tmp_path: Path, quick: None) -> None:
    parts = ["train", "train", "test"]
    flows = [wave(i, 6, local={"split": part}) for i, part in enumerate(parts)]
    write(tmp_path / "flows.h5", flows)
    data = DataConfig(path=str(tmp_path / "flows.h5"), split="stated")
    plan = comparison_of(data, entrants={"persistence": entrant("persistence")})
    with pytest.raises(ValueError, match="validation"):
        carry_out(plan, tmp_path / "out", Told())
