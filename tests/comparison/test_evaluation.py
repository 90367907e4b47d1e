"""Judging runs of a comparison: where rollouts begin, and what is said of the training."""

from pathlib import Path

import pytest
import torch

from pibert.comparison import evaluation
from pibert.comparison.jobs import carry_out
from pibert.comparison.plan import Job, RolloutPlan
from pibert.evaluation.scores import read_scores
from tests.comparison.conftest import Carried
from tests.comparison.setups import FRAMES, Told, comparison_of, entrant, value_of, write_waves


@pytest.mark.usefixtures("quick")
def test_rollouts_of_all_histories_begin_at_the_same_frames_where_time_has_gaps(
    tmp_path: Path,
) -> None:
    time = 0.05 * torch.arange(FRAMES, dtype=torch.float64)
    time[9:] += 1.0
    plan = comparison_of(
        write_waves(tmp_path / "waves.h5", count=5, time=time),
        entrants={name: entrant(name) for name in ("persistence", "linear-extrapolation")},
        seeds=(0,),
        rollout=RolloutPlan(steps=3, starts=100),
    )
    assert not carry_out(plan, tmp_path / "out", Told())
    first, second = (read_scores(job.folder(tmp_path / "out")) for job in plan.jobs())
    for name in ("rollout/trajectory", "rollout/frame"):
        assert torch.equal(first.arrays[name], second.arrays[name])
    # Windows of two frames and three to predict, on either side of the gap before frame 9.
    assert set(first.arrays["rollout/frame"].tolist()) == {*range(5), *range(9, 16)}
    # Persistence goes on from the last frame of the window, which is its only one.
    assert first.card["rollout"]["starts"] == second.card["rollout"]["starts"]
    lead_one = [scores.arrays["rollout/curves"][0] for scores in (first, second)]
    assert not torch.equal(*lead_one)


def test_runs_tell_how_many_samples_they_saw(carried: Carried) -> None:
    windows = 10 * 19
    for name, epochs in (("fno2d", {"training": 5}), ("pibert", {"pretraining": 2, "training": 3})):
        run = value_of(carried.results["runs"], model=name, seed=3)
        seen = {stage: facts["samples"] for stage, facts in run["training"].items()}
        assert seen == {stage: count * windows for stage, count in epochs.items()}


def test_a_log_without_the_size_of_an_epoch_tells_no_samples(
    carried: Carried, tmp_path: Path
) -> None:
    log = (Job("waves", "fno2d", 3).folder(carried.out) / "log.jsonl").read_text()
    (tmp_path / "log.jsonl").write_text(log.replace('"samples_per_epoch"', '"of_old"'))
    assert evaluation._training(tmp_path)["training"]["samples"] is None
