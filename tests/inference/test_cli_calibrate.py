"""``pibert calibrate`` on the calibration split of a run and on other flows."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

import pibert.inference
from pibert.data.dataset import Window
from pibert.data.format import write
from pibert.experiments import load_experiment, run
from pibert.experiments.flows import prepare
from tests.command import refusal, well
from tests.command import run as call

PLAN = """
[data]
case = "turbulence"
recipe = { samples = 12, frames = 8, shape = [12, 16] }
shares = { train = 0.25, valid = 0.1, calibration = 0.5 }
[model]
name = "persistence"
"""


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("plan") / "plan.toml"
    path.write_text(PLAN)
    return path


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, plan: Path) -> None:
    monkeypatch.setenv("PIBERT_CACHE", str(plan.parent / "cache"))


def test_a_calibrated_run_returns_intervals(plan: Path, tmp_path: Path):
    experiment = load_experiment(plan)
    folder = run(experiment, tmp_path / "run").folder
    given = ("calibrate", folder, "--leads", "2", "--starts", "3")
    output = " ".join(well(*given).output.split())
    assert "12 windows of 4 trajectories" in output
    # Twelve windows cannot tell one in twenty: nothing is raised, and that is said.
    assert "accepted rate of 0.05" in output and "(--starts, here 3)" in output
    before = (folder / "calibration.json").read_bytes()
    assert "--overwrite" in refusal(*given)
    assert (folder / "calibration.json").read_bytes() == before
    found = json.loads(well(*given, "--json", "--overwrite").stdout)
    assert found["rests_on"] in output and {row["lead"] for row in found["coverage"]} <= {1, 2}
    assert all(Path(path).is_file() for path in found["written"])
    flows = prepare(experiment.data)
    index, first = flows.samples("test", Window(horizon=2)).locate(0)
    fields = flows.trajectories[index].read(slice(first, first + 1))[None].numpy()
    prediction = pibert.inference.load_calibrated(folder).rollout(
        fields, 2, dict(flows.trajectories[index].parameters), level=0.8
    )
    (note,) = (note for note in prediction.notes if note.code == "ood-unresolved")
    assert "12 calibration units" in note.text and "a rate of 0.077 " in note.remedy
    assert not prediction.ood.flagged.any() and prediction.ood.lowest_p == 1 / 13
    assert prediction.intervals is not None and prediction.consistency is None
    assert (np.asarray(prediction.intervals.high) > np.asarray(prediction.intervals.low)).all()


def test_unsuitable_runs_are_refused_with_the_remedy(plan: Path, tmp_path: Path):
    one = run(load_experiment(plan), tmp_path / "one").folder
    other = run(load_experiment(plan, ("data.split_seed=1",)), tmp_path / "other").folder
    cases: dict[tuple[str | Path, ...], str] = {
        (one, "--member", other): "same [data]",
        (one, "--difficulty", "guess"): "constant, residual, ensemble",
        (one, "--independent", "points"): "'points'",
        (one, "--units", "mm/s"): "--data",  # as everywhere: the unit of velocities
        (one, "--leads", "0"): "at least 1 lead time",
        (tmp_path,): "config.json",
        ("cylinder-base", "--data", tmp_path / "none.h5"): "--out FOLDER",
    }
    for words, named in cases.items():
        assert named in refusal("calibrate", *words)
    assert not list(tmp_path.glob("*/calibration.json"))


def test_the_training_data_do_not_calibrate(plan: Path, tmp_path: Path):
    experiment = load_experiment(plan)
    folder = run(experiment, tmp_path / "run").folder
    copy = tmp_path / "copy.h5"
    write(copy, prepare(experiment.data).trajectories)
    result = call("calibrate", folder, "--data", copy, "--out", tmp_path / "out")
    output = " ".join(result.output.split())
    assert result.exit_code == 2 and "the same recipe_hash" in output
    assert "was trained on" in output
    by_file = replace(
        experiment, data=replace(experiment.data, path=str(copy), case=None, recipe={})
    )
    trained = run(by_file, tmp_path / "by-file").folder
    result = call("calibrate", trained, "--data", copy, "--out", tmp_path / "out")
    output = " ".join(result.output.split())
    assert result.exit_code == 2 and "the same fingerprint" in output
    assert not (tmp_path / "out").exists()


def test_a_run_without_a_calibration_split_is_calibrated_on_its_test_split(
    plan: Path, tmp_path: Path
):
    experiment = load_experiment(plan, ("data.shares.calibration=0",))
    folder = run(experiment, tmp_path / "run").folder
    result = call("calibrate", folder, "--leads", "2")
    assert result.exit_code == 0, result.output
    assert "test split" in result.stderr and "data.shares.calibration" in result.stderr
    assert json.loads((folder / "calibration.json").read_text())["provenance"]["subset"] == "test"
    assert f"pibert predict FILE --model {folder} --level" in result.output
    long = " ".join(call("calibrate", folder, "--overwrite").output.split())
    assert "--leads 8" in long and "found at most 8" in long and "--leads 7" in long
