"""``pibert evaluate --rollout``: what the rollouts of a run came to, as a table and as JSON."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner, Result

from pibert.cli import app
from pibert.data.dataset import Window
from pibert.data.format import write
from pibert.data.provenance import predicted_source
from pibert.data.resample import represent
from pibert.evaluation.rollouts import score_rollouts, spread_starts
from pibert.experiments import load_experiment, run
from pibert.experiments.flows import prepare
from pibert.predictor import load, shipped

PLAN = """
[data]
case = "turbulence"
recipe = { samples = 6, frames = 9, shape = [12, 16] }
shares = { train = 0.5, valid = 0.2 }
[model]
name = "persistence"
"""


def call(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("run")
    (place / "plan.toml").write_text(PLAN)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PIBERT_CACHE", str(place / "cache"))
        return run(load_experiment(place / "plan.toml"), place / "run").folder


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    monkeypatch.setenv("PIBERT_CACHE", str(folder.parent / "cache"))


def test_rollouts_are_told_by_lead_time(folder: Path, tmp_path: Path) -> None:
    result = call("evaluate", folder, "--out", tmp_path, "--rollout", "3", "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)["rollout"]
    flows, predictor = prepare(load_experiment(folder.parent / "plan.toml").data), load(folder)
    samples = flows.samples("test", Window(horizon=3))
    starts = spread_starts(samples, found["starts"])
    expected = score_rollouts(predictor, samples, starts)
    names = [(entry.metric, entry.component) for entry in expected.measure.entries]
    for step in (1, 3):
        row = dict(zip(names, expected.curves()[step - 1].tolist(), strict=True))
        values = found["by_step"][str(step)]
        assert values["nmse"]["u"] == pytest.approx(row["nmse", "u"], rel=1e-5)
        assert values["skill"]["all"] == pytest.approx(0.0, abs=1e-5)
    assert found["steps"] == 3 and found["by_step"].keys() == {"1", "2", "3"}
    horizon = float(expected.summary()[0])
    assert found["summary"]["stable_horizon"] == pytest.approx(horizon)
    told = call("evaluate", folder, "--out", tmp_path, "--rollout", "3").stdout
    assert "Rollouts from" in told and "fluctuation" in told and "of 3 steps" in told
    assert "Rollouts" not in call("evaluate", folder, "--out", tmp_path).stdout
    plain = json.loads(call("evaluate", folder, "--out", tmp_path, "--json").stdout)
    assert plain["rollout"] is None


def test_any_model_is_judged_on_flows_that_are_given(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bare = tmp_path / "bare"
    bare.mkdir()
    for name in ("model.safetensors", "model.json"):
        (bare / name).write_bytes((folder / name).read_bytes())
    trajectories = prepare(load_experiment(folder.parent / "plan.toml").data).trajectories[:2]
    data = tmp_path / "flows.h5"
    write(data, [replace(trajectory, local={}) for trajectory in trajectories])
    of_run, of_model = (
        json.loads(call("evaluate", own, "--data", data, "--rollout", "3", "--json").stdout)
        for own in (folder, bare)
    )
    assert of_run["values"] == of_model["values"]
    assert of_model["written"] == [str(bare / "evaluation" / "scores.json")]
    coarse = tmp_path / "coarse.h5"
    halved = [represent(trajectory, size=(6, 8)) for trajectory in trajectories]
    write(coarse, [replace(trajectory, local={}) for trajectory in halved])
    resampled = call("evaluate", bare, "--data", coarse)
    assert resampled.exit_code == 0, resampled.output
    assert "judged on 12 x 16 points, to which flows on 6 x 8 were resampled" in resampled.stderr
    monkeypatch.setattr(shipped, "FOLDER", tmp_path)
    (tmp_path / "bare").rename(tmp_path / "other")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    named = json.loads(call("evaluate", "other", "--data", data, "--json").stdout)
    assert named["written"] == [str(Path("other-evaluation") / "scores.json")]
    refused = call("evaluate", "other")
    assert refused.exit_code == 2 and "expected a run folder with config.json" in refused.stderr
    assert "--data FILE" in refused.stderr


def test_scores_on_predicted_flows_are_told_to_be_no_truth(folder: Path, tmp_path: Path) -> None:
    trajectories = prepare(load_experiment(folder.parent / "plan.toml").data).trajectories[:2]
    made = [
        replace(t, source=predicted_source(t.source, "other", "ab" * 32, None), local={})
        for t in trajectories
    ]
    assert torch.equal(made[0].read(), trajectories[0].read())
    write(tmp_path / "made.h5", made)
    result = call("evaluate", folder, "--data", tmp_path / "made.h5", "--out", tmp_path)
    assert result.exit_code == 0, result.output
    assert "no truth, but predicted by other (weights abababababab)" in result.stderr
    refused = call("calibrate", folder, "--data", tmp_path / "made.h5", "--out", tmp_path / "c")
    assert refused.exit_code == 2 and "measured or simulated flows" in refused.stderr
    assert not (tmp_path / "c").exists()
