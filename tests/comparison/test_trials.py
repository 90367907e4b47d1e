"""Tuning trials: what is chosen, on which data, at what cost, and what happens when one fails."""

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from pibert.comparison import trials
from pibert.comparison.jobs import carry_out
from pibert.comparison.plan import Comparison, Job, Setting, Tuning
from pibert.comparison.results import gather
from pibert.comparison.trials import Trial, all_trials, choose, perform, with_chosen
from pibert.data.format import write
from pibert.experiments.flows import prepare
from pibert.experiments.run_folder import curves_of
from tests.comparison.setups import (
    MemoryWatcher,
    comparison_of,
    quickly,
    wave,
    write_waves,
)
from tests.helpers import refused

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
    return replace(
        plan, candidates={name: plan.candidates[name] for name in (*names, "persistence")}
    )


class Tuned:
    """A comparison that was tuned once for several tests."""

    def __init__(self, folder: Path) -> None:
        plan = only(plan_of(folder, HOPELESS, GOOD), "pibert", "fno2d")
        self.plan, self.out, self.watcher = plan, folder / "out", MemoryWatcher()
        self.failed = carry_out(plan, self.out, self.watcher)
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


def test_another_comparison_takes_over_the_choice(tuned: Tuned) -> None:
    plan = replace(tuned.plan, tuning=None, seeds=(4, 5))
    taken = with_chosen(plan, tuned.results, "tuned").candidates
    for model in ("pibert", "fno2d"):
        assert (taken[model].optimizer, taken[model].learning_rate) == ("adamw", GOOD)
        assert taken[model].model == plan.candidates[model].model
    assert taken["persistence"] == plan.candidates["persistence"]
    unknown = replace(plan, candidates={**plan.candidates, "new": plan.candidates["pibert"]})
    with refused("tuned", "new", "pibert, fno2d", "--tune"):
        with_chosen(unknown, tuned.results, "tuned")
    with refused("another", "was not tuned", "--tune"):
        with_chosen(plan, {"tuning": []}, "another")
    with refused("tuning", "tuned"):
        with_chosen(tuned.plan, tuned.results, "tuned")


def test_trials_have_equal_budgets_anneal_within_them_and_count_by_their_best_epoch(
    tuned: Tuned,
) -> None:
    for own in tuned.results["tuning"]:
        for trial in own["trials"]:
            epochs = list(curves_of(tuned.out / trial["folder"]))
            stages = [epoch["stage"] for epoch in epochs]
            assert stages.count("pretraining") == (1 if own["model"] == "pibert" else 0)
            assert trial["samples"] == epochs[-1]["samples"] == 84  # half of 168
            lowest = min(tuned.plan.training.min_learning_rate, trial["learning_rate"])
            assert epochs[-1]["learning_rate"] == lowest
            training = [epoch for epoch in epochs if epoch["stage"] == "training"]
            best = min(training, key=lambda epoch: epoch["valid_error"])
            assert (trial["epoch"], trial["valid_error"]) == (best["epoch"], best["valid_error"])


def test_the_test_split_is_not_used_in_the_choice(tmp_path: Path, quick: None) -> None:
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


def test_a_killed_comparison_resumes_within_its_trial(tmp_path: Path, quick: None) -> None:
    plan = only(plan_of(tmp_path, HOPELESS, GOOD), "fno2d")
    first, second = all_trials(plan)
    flows = prepare(plan.data["waves"])
    whole = perform(plan, second, tmp_path / "whole", flows)

    class Killer(MemoryWatcher):
        def update(self, item: Job | Trial, state: str, error: float | None = None) -> None:
            super().update(item, state, error)
            if item == second and state == "training 75 %":
                raise KeyboardInterrupt

    out = tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        carry_out(plan, out, Killer())
    done, begun = (trial.folder(out) / trials.FILE for trial in (first, second))
    assert done.exists() and not begun.exists()
    before, watcher = done.stat().st_mtime_ns, MemoryWatcher()
    assert carry_out(plan, out, watcher) == {}
    assert done.stat().st_mtime_ns == before and watcher.trials[first] == ["waiting", "done"]
    steps = [state for state in watcher.trials[second] if state.startswith("training")]
    assert 0 < len(steps) < 12  # of 12 steps, those of finished epochs are not repeated
    assert json.loads(begun.read_text()) == whole


def test_a_trial_that_diverges_loses_and_is_not_repeated(tmp_path: Path, quick: None) -> None:
    plan, out = only(plan_of(tmp_path, GOOD, EXPLOSIVE), "fno2d"), tmp_path / "out"
    assert carry_out(plan, out, MemoryWatcher()) == {}
    (record,) = gather(plan, out, {})["tuning"]
    good, bad = record["trials"]
    assert record["chosen"]["learning_rate"] == GOOD and good["diverged"] is None
    assert bad["valid_error"] is None and bad["diverged"].startswith("a loss of ")
    assert record["edge"] == "lowest"
    again = MemoryWatcher()
    assert carry_out(plan, out, again) == {}
    assert set(map(tuple, again.trials.values())) == {("waiting", "done"), ("waiting", "diverged")}


def test_a_model_whose_trials_all_diverge_fails_and_the_others_continue(
    tmp_path: Path, quick: None
) -> None:
    plan, out = only(plan_of(tmp_path, EXPLOSIVE, 10 * EXPLOSIVE), "fno2d"), tmp_path / "out"
    failed = carry_out(plan, out, MemoryWatcher())
    ((job, message),) = failed.items()
    assert job.candidate == "fno2d"
    assert "adamw at 1e+30" in message and "try lower tuning.learning_rates" in message
    results = gather(plan, out, failed)
    assert results["tuning"][0]["chosen"] is None
    assert [row["model"] for row in results["data"]["waves"]["ranking"]] == ["persistence"]


@pytest.mark.parametrize(
    ("errors", "rate", "edge"),
    [
        ({4e-3: 0.1, 1e-3: 0.2, 2e-3: 0.1}, 2e-3, None),  # of equal ones the lower
        ({1e-3: 0.1, 2e-3: 0.2, 4e-3: 0.3}, 1e-3, "lowest"),
        ({4e-3: 0.1, 2e-3: 0.2, 1e-3: 0.3}, 4e-3, "highest"),
        ({1e-3: 0.1}, 1e-3, None),
    ],
)
def test_the_rate_with_the_least_error_wins_and_an_edge_is_reported(
    tmp_path: Path, errors: dict[float, float], rate: float, edge: str | None
) -> None:
    plan = only(plan_of(tmp_path, *errors), "fno2d")
    for trial in all_trials(plan):
        folder = trial.folder(tmp_path)
        folder.mkdir(parents=True)
        result = vars(trial.setting) | {"valid_error": errors[trial.setting.learning_rate]}
        (folder / trials.FILE).write_text(json.dumps(result))
    choice = choose(plan, tmp_path, "waves", "fno2d")
    assert choice is not None and choice.setting == Setting("adamw", rate)
    assert choice.edge == edge


@pytest.mark.slow
def test_several_processes_choose_what_one_does(tuned: Tuned, tmp_path: Path) -> None:
    plan = replace(tuned.plan, seeds=(3,))
    torch.manual_seed(0)
    watcher = MemoryWatcher()
    assert carry_out(plan, tmp_path, watcher, workers=2) == {}
    assert {own[-1] for own in watcher.trials.values()} == {"done"}
    results = gather(plan, tmp_path, {})
    for mine, theirs in zip(results["tuning"], tuned.results["tuning"], strict=True):
        assert mine["chosen"]["learning_rate"] == theirs["chosen"]["learning_rate"]
