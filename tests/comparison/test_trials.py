"""Tuning trials: what is chosen, on which data, at what cost, and what happens when one fails."""

import csv
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from pibert.comparison import trials
from pibert.comparison.curves import curves_of
from pibert.comparison.jobs import carry_out
from pibert.comparison.plan import Comparison, Entrant, Job
from pibert.comparison.results import gather
from pibert.comparison.trials import Trial, all_trials, choose, perform
from pibert.comparison.tuning import Setting, Tuning
from pibert.data.format import write
from pibert.evaluation.scores import read_scores
from pibert.experiments.flows import prepare
from pibert.report.comparison.board import Board
from pibert.report.comparison.page import write_report
from pibert.report.comparison.tuning import tuning
from tests.comparison.setups import Told, comparison_of, entrant, quickly, wave, write_waves

HOPELESS, GOOD, EXPLOSIVE = 1e-6, 1e-2, 1e30
FLOWS, FRAMES, SEED = 10, 8, 5


def plan_of(folder: Path, *rates: float, **changes: Any) -> Comparison:
    """Short flows (an epoch has 28 samples), two trained models, trials of three epochs."""
    waves = write_waves(folder / "waves.h5", FLOWS, frames=FRAMES)
    plan = comparison_of(waves, samples=168, seeds=(3,))
    given: dict[str, Any] = {
        "training": replace(plan.training, batch_size=8),
        "rollout": replace(plan.rollout, steps=0),
        "tuning": Tuning(learning_rates=rates, optimizers=("adamw",), budget=0.5, seed=SEED),
    }
    return replace(plan, **(given | changes))


def only(plan: Comparison, *names: str) -> Comparison:
    return replace(plan, entrants={name: plan.entrants[name] for name in (*names, "persistence")})


class Tuned:
    """A comparison that was tuned once for several tests."""

    def __init__(self, folder: Path) -> None:
        plan = only(plan_of(folder, HOPELESS, GOOD), "pibert", "fno2d")
        self.plan, self.out, self.told = plan, folder / "out", Told()
        self.failed = carry_out(plan, self.out, self.told)
        self.results = gather(plan, self.out, self.failed)


@pytest.fixture(scope="module")
def tuned(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Tuned]:
    with pytest.MonkeyPatch.context() as patch:
        quickly(patch)
        yield Tuned(tmp_path_factory.mktemp("tuned"))


def test_a_hopeless_rate_is_not_chosen_and_models_are_trained_with_the_choice(tuned: Tuned) -> None:
    assert tuned.failed == {}
    records = {own["model"]: own for own in tuned.results["tuning"]}
    assert set(records) == {"pibert", "fno2d"}  # nothing of persistence is trained
    for model, own in records.items():
        slow, fast = own["trials"]
        assert (slow["learning_rate"], fast["learning_rate"]) == (HOPELESS, GOOD)
        assert fast["valid_error"] < slow["valid_error"]
        assert own["chosen"] == {
            "optimizer": "adamw", "learning_rate": GOOD, "valid_error": fast["valid_error"],
        }  # fmt: skip
        run = json.loads((Job("waves", model, 3).folder(tuned.out) / "config.json").read_text())
        stages = [run["experiment"]["training"]]
        stages += [run["experiment"]["pretraining"]] if model == "pibert" else []
        assert all(own["learning_rate"] == GOOD for own in stages)


def test_every_trained_model_gets_the_same_number_of_samples(tuned: Tuned) -> None:
    for own in tuned.results["tuning"]:
        assert [trial["samples"] for trial in own["trials"]] == [84, 84]  # half of 168
    for trial in all_trials(tuned.plan):
        epochs = list(curves_of(trial.folder(tuned.out)))
        assert epochs[-1]["samples"] == 84
        stages = [epoch["stage"] for epoch in epochs]
        assert stages.count("pretraining") == (1 if trial.entrant == "pibert" else 0)


def test_a_trial_anneals_within_its_budget_and_counts_by_its_best_epoch(tuned: Tuned) -> None:
    for own in tuned.results["tuning"]:
        for trial in own["trials"]:
            epochs = [e for e in curves_of(tuned.out / trial["folder"]) if e["stage"] == "training"]
            assert epochs[-1]["learning_rate"] == min(
                tuned.plan.training.min_learning_rate, trial["learning_rate"]
            )
            best = min(epochs, key=lambda epoch: epoch["valid_error"])
            assert (trial["epoch"], trial["valid_error"]) == (best["epoch"], best["valid_error"])


def test_trials_have_a_seed_of_their_own_and_no_scores(tuned: Tuned) -> None:
    for trial in all_trials(tuned.plan):
        folder = trial.folder(tuned.out)
        assert json.loads((folder / "config.json").read_text())["experiment"]["seed"] == SEED
        assert not list(folder.rglob("scores.*"))


def test_results_tell_rate_and_optimizer_of_every_run(tuned: Tuned) -> None:
    runs = {own["model"]: (own["optimizer"], own["learning_rate"]) for own in tuned.results["runs"]}
    assert runs == {
        "pibert": ("adamw", GOOD), "fno2d": ("adamw", GOOD), "persistence": (None, None),
    }  # fmt: skip
    with (tuned.out / "results.csv").open() as file:
        rows = {(r["model"], r["optimizer"], r["learning_rate"]) for r in csv.DictReader(file)}
    assert rows == {
        ("pibert", "adamw", "0.01"), ("fno2d", "adamw", "0.01"), ("persistence", "", ""),
    }  # fmt: skip


def test_a_choice_at_the_edge_of_the_rates_says_so(tuned: Tuned) -> None:
    assert {own["edge"] for own in tuned.results["tuning"]} == {"highest"}
    for rates, chosen, edge in (
        ((1e-3, 2e-3, 4e-3), 1e-3, "lowest"),
        ((1e-3, 2e-3, 4e-3), 2e-3, None),
        ((4e-3, 2e-3, 1e-3), 4e-3, "highest"),
        ((1e-3,), 1e-3, None),
    ):
        assert trials._edge(chosen, rates) == edge


def test_the_report_shows_trials_choice_budget_and_edge(tuned: Tuned, tmp_path: Path) -> None:
    scores = {
        (job.entrant, job.seed): read_scores(job.folder(tuned.out)) for job in tuned.plan.jobs()
    }
    board = Board("waves", tuned.results, scores)
    page = write_report(tmp_path, tuned.results, [board], [("Convergence", tuning)]).read_text()
    assert "2 trials of 84 samples (50 % of the budget" in page.replace("&nbsp;", " ")
    assert "a better one may lie beyond" in page and "highest tried" in page
    assert "Not tuned: persistence." in page
    assert page.count("data:image/webp;base64") == 1
    tables = (tmp_path / "tables.md").read_text().split("### ")
    (table,) = [own for own in tables if own.startswith("Tuning")]
    rows = [line.split(" | ") for line in table.splitlines() if line.startswith("| ")]
    cells = {row[0].strip("| "): [cell.strip("| ") for cell in row[1:]] for row in rows}
    assert cells["fno2d"][:2] == ["adamw", "0.01 highest tried"]
    assert cells["fno2d"][3].startswith("**") and not cells["fno2d"][2].startswith("**")
    assert cells["persistence"][0] == "not tuned"


def test_what_is_done_is_not_tried_again(
    tuned: Tuned, monkeypatch: pytest.MonkeyPatch, quick: None
) -> None:
    def never(*_: Any, **__: Any) -> Any:
        raise AssertionError("tried again")

    monkeypatch.setattr(trials, "run", never)
    told = Told()
    assert carry_out(tuned.plan, tuned.out, told) == {}
    assert set(map(tuple, told.trials.values())) == {("waiting", "done")}


def test_other_tuning_in_the_same_folder_is_refused(tuned: Tuned) -> None:
    assert tuned.plan.tuning is not None
    for other in (None, replace(tuned.plan.tuning, seed=SEED + 1)):
        with pytest.raises(ValueError, match="another comparison: tuning is"):
            carry_out(replace(tuned.plan, tuning=other), tuned.out, Told())


def test_the_test_part_has_no_say_in_the_choice(tmp_path: Path, quick: None) -> None:
    plan = only(plan_of(tmp_path, HOPELESS, GOOD), "fno2d")
    flows = prepare(plan.data["waves"])
    homes = {segment.trajectory for segment in flows.split.test}
    assert 0 < len(homes) < FLOWS
    waves = [wave(number, FRAMES) for number in range(FLOWS)]
    poisoned = [
        replace(own, states=own.read() * 1e6) if number in homes else own
        for number, own in enumerate(waves)
    ]
    write(tmp_path / "poisoned.h5", poisoned)
    data = {"waves": replace(plan.data["waves"], path=str(tmp_path / "poisoned.h5"))}
    other = replace(plan, data=data)
    bad = prepare(data["waves"])
    assert {segment.trajectory for segment in bad.split.test} == homes
    found = []
    for own, given, out in ((plan, flows, tmp_path / "a"), (other, bad, tmp_path / "b")):
        results = [perform(own, trial, out, given) for trial in all_trials(own)]
        choice = choose(own, out, "waves", "fno2d")
        assert choice is not None
        found.append((choice.setting, [result["valid_error"] for result in results]))
    assert found[0] == found[1]


def test_a_killed_comparison_goes_on_within_the_trial_that_it_was_in(
    tmp_path: Path, quick: None
) -> None:
    plan = only(plan_of(tmp_path, HOPELESS, GOOD), "fno2d")
    first, second = all_trials(plan)
    flows = prepare(plan.data["waves"])
    whole = perform(plan, second, tmp_path / "whole", flows)

    class Killer(Told):
        def update_trial(self, trial: Trial, state: str, error: float | None = None) -> None:
            super().update_trial(trial, state, error)
            if trial == second and state == "training 75 %":
                raise KeyboardInterrupt

    out = tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        carry_out(plan, out, Killer())
    done, begun = (trial.folder(out) / trials.FILE for trial in (first, second))
    assert done.exists() and not begun.exists()
    before, told = done.stat().st_mtime_ns, Told()
    assert carry_out(plan, out, told) == {}
    assert done.stat().st_mtime_ns == before and told.trials[first] == ["waiting", "done"]
    steps = [state for state in told.trials[second] if state.startswith("training")]
    assert 0 < len(steps) < 12  # of 12 steps, those of finished epochs are not repeated
    assert json.loads(begun.read_text()) == whole


def test_a_trial_that_diverges_loses(tmp_path: Path, quick: None) -> None:
    plan = only(plan_of(tmp_path, GOOD, EXPLOSIVE), "fno2d")
    told, out = Told(), tmp_path / "out"
    assert carry_out(plan, out, told) == {}
    assert {own[-1] for own in told.trials.values()} == {"done", "diverged"}
    (record,) = gather(plan, out, {})["tuning"]
    good, bad = record["trials"]
    assert record["chosen"]["learning_rate"] == GOOD and good["diverged"] is None
    assert bad["valid_error"] is None and bad["diverged"].startswith("a loss of ")
    assert record["edge"] == "lowest"
    again = Told()
    assert carry_out(plan, out, again) == {}
    assert set(map(tuple, again.trials.values())) == {("waiting", "done"), ("waiting", "diverged")}


def test_a_model_all_of_whose_trials_diverge_fails_and_the_others_go_on(
    tmp_path: Path, quick: None
) -> None:
    plan = only(plan_of(tmp_path, EXPLOSIVE, 10 * EXPLOSIVE), "fno2d")
    out = tmp_path / "out"
    failed = carry_out(plan, out, Told())
    assert {job.entrant for job in failed} == {"fno2d"}
    (message,) = failed.values()
    assert "all 2 tuning trials of 'fno2d' on 'waves' diverged" in message
    assert "adamw at 1e+30" in message and "try lower tuning.learning_rates" in message
    results = gather(plan, out, failed)
    assert results["tuning"][0]["chosen"] is None
    assert [row["model"] for row in results["data"]["waves"]["ranking"]] == ["persistence"]


def test_a_trial_that_fails_otherwise_is_no_divergence_and_is_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quick: None
) -> None:
    plan = only(plan_of(tmp_path, HOPELESS, GOOD), "fno2d")
    out, run = tmp_path / "out", trials.run

    def full(experiment: Any, *given: Any, **options: Any) -> Any:
        if experiment.training.learning_rate == GOOD:
            raise OSError("no space left")
        return run(experiment, *given, **options)

    with monkeypatch.context() as patch:
        patch.setattr(trials, "run", full)
        failed = carry_out(plan, out, Told())
    assert failed == {Job("waves", "fno2d", 3): "tuning with adamw at 0.01 failed: no space left"}
    told = Told()
    assert carry_out(plan, out, told) == {}
    assert [own[-1] for own in told.trials.values()] == ["done", "done"]


def test_of_equal_trials_the_lower_rate_wins(tmp_path: Path) -> None:
    plan = only(plan_of(tmp_path, 4e-3, 1e-3, 2e-3), "fno2d")
    errors = {4e-3: 0.1, 1e-3: 0.2, 2e-3: 0.1}
    for trial in all_trials(plan):
        folder = trial.folder(tmp_path)
        folder.mkdir(parents=True)
        result = vars(trial.setting) | {"valid_error": errors[trial.setting.learning_rate]}
        (folder / trials.FILE).write_text(json.dumps(result))
    choice = choose(plan, tmp_path, "waves", "fno2d")
    assert choice is not None and choice.setting == Setting("adamw", 2e-3)
    assert choice.edge is None


def test_another_data_set_takes_the_choice_without_trials(tmp_path: Path, quick: None) -> None:
    plan = only(plan_of(tmp_path, HOPELESS, GOOD), "fno2d")
    assert plan.tuning is not None
    other = write_waves(tmp_path / "other.h5", 6, frames=FRAMES)
    data = {"other": other, **plan.data}
    plan = replace(plan, data=data, tuning=replace(plan.tuning, reuse={"other": "waves"}))
    out = tmp_path / "out"
    assert carry_out(plan, out, Told()) == {}
    assert not list((out / "runs" / "other").glob("*-tuning"))
    records = {own["data"]: own for own in gather(plan, out, {})["tuning"]}
    assert records["other"]["tuned_on"] == "waves"
    assert records["other"]["chosen"] == records["waves"]["chosen"]
    run = json.loads((Job("other", "fno2d", 3).folder(out) / "config.json").read_text())
    assert run["experiment"]["training"]["learning_rate"] == GOOD


def test_a_finished_run_is_not_tuned(tuned: Tuned, tmp_path: Path, quick: None) -> None:
    taken = Entrant(run=str(Job("waves", "fno2d", 3).folder(tuned.out)))
    entrants = {"taken": taken, "persistence": entrant("persistence")}
    plan = replace(tuned.plan, entrants=entrants)
    assert carry_out(plan, tmp_path, Told()) == {}
    results = gather(plan, tmp_path, {})
    assert results["tuning"] == []
    runs = {own["model"]: own["learning_rate"] for own in results["runs"]}
    assert runs == {"taken": GOOD, "persistence": None}


@pytest.mark.parametrize(("budget", "model"), [(0.08, "fno2d"), (0.2, "pibert")])
def test_a_budget_below_half_an_epoch_is_refused_before_anything_is_written(
    budget: float, model: str, tmp_path: Path
) -> None:
    plan = only(plan_of(tmp_path, HOPELESS, GOOD), model)
    assert plan.tuning is not None
    plan = replace(plan, tuning=replace(plan.tuning, budget=budget))
    samples = round(budget * 168)
    with pytest.raises(
        ValueError, match=rf"{samples} samples are too few for '{model}'.*or tuning\.budget"
    ):
        carry_out(plan, tmp_path / "out", Told())
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_several_processes_choose_what_one_does(tuned: Tuned, tmp_path: Path) -> None:
    plan = replace(tuned.plan, seeds=(3,))
    torch.manual_seed(0)
    told = Told()
    assert carry_out(plan, tmp_path, told, workers=2) == {}
    assert {own[-1] for own in told.trials.values()} == {"done"}
    results = gather(plan, tmp_path, {})
    for mine, theirs in zip(results["tuning"], tuned.results["tuning"], strict=True):
        assert mine["chosen"]["learning_rate"] == theirs["chosen"]["learning_rate"]


@pytest.mark.parametrize("text", ["", "{", "[1]", "5", "[" * 10_000])
def test_a_damaged_result_counts_as_none(text: str, tmp_path: Path) -> None:
    (tmp_path / trials.FILE).write_text(text)
    assert trials._read(tmp_path) is None
