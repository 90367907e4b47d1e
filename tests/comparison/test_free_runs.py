"""Free runs in a comparison: from the plan to results, tables and figures."""

import csv
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch

from pibert.comparison.rows import free_run_weights
from pibert.data.dataset import Window
from pibert.evaluation.scores import read_scores, start_weights
from pibert.experiments import evaluation
from pibert.experiments.evaluation import RolloutPlan, _free_run_frames
from pibert.experiments.flows import prepare
from tests.command import run
from tests.comparison.setups import quickly, write_waves

FRAMES = 60
PLAN = """
samples = 64
[data.waves]
path = "{path}"
shares = {{train = 0.4, valid = 0.2}}
[candidates]
fno2d = {{model = {{name = "fno2d", options = {{width = 8, modes = 3, depth = 1}}}}}}
persistence = {{model = {{name = "persistence"}}}}
training-mean = {{model = {{name = "training-mean"}}}}
linear-extrapolation = {{model = {{name = "linear-extrapolation"}}}}
[training]
batch_size = 32
[rollout]
steps = 3
starts = 20
[hardware]
accelerator = "cpu"
"""


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A comparison through the command line; nobody asked for free runs."""
    folder = tmp_path_factory.mktemp("free-runs")
    write_waves(folder / "waves.h5", frames=FRAMES)
    (folder / "plan.toml").write_text(PLAN.format(path=folder / "waves.h5"))
    with pytest.MonkeyPatch.context() as patch:
        quickly(patch)
        words = ["compare", "--config", str(folder / "plan.toml"), "--out", str(folder / "out")]
        result = run(*words)
    assert result.exit_code == 0, result.output
    assert "truth against itself" in result.output
    return folder / "out"


def records(out: Path, metric: str) -> dict[str, dict[str, Any]]:
    rows = json.loads((out / "results.json").read_text())["records"]
    return {row["model"]: row for row in rows if row["metric"] == f"free_run_{metric}"}


def test_every_model_has_statistics_with_intervals_beside_the_sampling_error(out: Path) -> None:
    facts = json.loads((out / "results.json").read_text())["data"]["waves"]["free_run"]
    # Models see up to two frames: one frame less can be predicted than with one.
    assert facts["runs"] == facts["flows"] == 10 and facts["frames"] == [FRAMES - 2] * 2
    assert facts["intervals"] == "10 flows"
    stress = records(out, "stress_error")
    assert set(stress) == {
        "fno2d", "persistence", "training-mean", "linear-extrapolation", "truth",
    }  # fmt: skip
    for model in ("persistence", "training-mean"):
        assert stress[model]["value"] == pytest.approx(1, abs=1e-6)
    mean = records(out, "mean_error")
    row = mean["persistence"]
    assert 0 < row["low"] < row["value"] < row["high"]
    assert 0 < mean["truth"]["value"] < 0.1 * row["value"]
    with (out / "results.csv").open() as file:
        models = {row["model"] for row in csv.DictReader(file)}
    assert "truth" in models


def test_a_model_that_runs_away_is_counted_and_its_survival_kept(out: Path) -> None:
    """Linear extrapolation grows without bound."""
    assert records(out, "diverged")["linear-extrapolation"]["value"] == 1
    assert records(out, "diverged")["persistence"]["value"] == 0
    assert records(out, "stress_error")["linear-extrapolation"]["value"] is None
    survived = records(out, "survival")["linear-extrapolation"]
    assert 1 <= survived["value"] < FRAMES / 2 and survived["low"] <= survived["value"]
    scores = read_scores(out / "runs" / "waves" / "linear-extrapolation-0")
    assert math.fsum(scores.card["free_run"]["survived"]) == pytest.approx(10 * survived["value"])
    assert scores.arrays["free_run/shown/survived"] < FRAMES / 2


def test_rollouts_have_intervals_at_every_lead_time(out: Path) -> None:
    rows = json.loads((out / "results.json").read_text())["records"]
    rolled = [row for row in rows if row["metric"] == "rollout_nmse"]
    assert {row["component"] for row in rolled} == {"lead 1", "lead 2"}
    assert all(0 < row["low"] <= row["value"] <= row["high"] for row in rolled)
    assert {row["against_best"] for row in rolled} >= {"best", "different"}
    (horizon,) = (
        row
        for row in rows
        if row["metric"] == "rollout_correlated_horizon" and row["model"] == "training-mean"
    )
    assert horizon["value"] < 3 and horizon["high"] <= 3


def test_short_flows_have_no_free_runs_unless_asked(tmp_path: Path) -> None:
    short = prepare(write_waves(tmp_path / "a.h5", frames=40)).samples("test", Window())
    assert _free_run_frames(RolloutPlan(), short) == 0
    assert _free_run_frames(RolloutPlan(free_run=25), short) == 25
    long = prepare(write_waves(tmp_path / "b.h5", count=12, frames=260)).samples("test", Window())
    assert _free_run_frames(RolloutPlan(), long) == evaluation.FREE_RUN
    assert _free_run_frames(RolloutPlan(free_run=0), long) == 0


def test_few_flows_are_resampled_by_stretches_of_time() -> None:
    trajectories = torch.arange(2).repeat_interleave(6)
    frames = torch.arange(6).repeat(2) * 50 + 3

    def resampled(memory: float | None) -> tuple[torch.Tensor | None, str]:
        facts = {"names": ["a", "b"], "source": {}, "parameters": [{}, {}]}
        card = {"data": facts, "correlation_frames": memory}
        return start_weights(card, trajectories, frames, span=50)

    weights, method = resampled(4.0)
    assert weights is not None and method.startswith("12 stretches of 50 frames")
    assert "these 2 flows, not for other flows" in method
    assert torch.equal(weights.sum(1), torch.full((1000,), 12.0, dtype=torch.float64))
    # Stretches shorter than three correlation times are not independent.
    weights, method = resampled(40.0)
    assert weights is None and method.startswith("none")
    assert resampled(None)[0] is None


def test_repetitions_of_a_condition_are_resampled_together(out: Path) -> None:
    scores = read_scores(out / "runs" / "waves" / "persistence-0")
    weights, method = free_run_weights(scores)
    assert weights is not None and method == "10 flows"
    facts = dict(scores.card["data"])
    facts["source"] = {**facts["source"], "group_by": ["Re"]}
    facts["parameters"] = [{"Re": float(n // 5)} for n in range(len(facts["names"]))]
    card = {"data": facts, "correlation_frames": None}
    starts = (scores.arrays[f"free_run/{name}"] for name in ("trajectory", "frame"))
    assert start_weights(card, *starts, span=58)[0] is None
