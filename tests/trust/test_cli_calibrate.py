"""The command calibrates a run on the share that its plan set aside, or tells how to have one."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner, Result

import pibert.trust
from pibert.cli import app
from pibert.data.dataset import Window
from pibert.data.format import write
from pibert.experiments import load_experiment, run
from pibert.experiments.flows import prepare

PLAN = """
[data]
case = "turbulence"
recipe = { samples = 12, frames = 8, shape = [12, 16] }
shares = { train = 0.25, valid = 0.1, calibration = 0.5 }
[model]
name = "persistence"
"""


def call(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("plan") / "plan.toml"
    path.write_text(PLAN)
    return path


@pytest.fixture(autouse=True)
def cache(monkeypatch: pytest.MonkeyPatch, plan: Path) -> None:
    monkeypatch.setenv("PIBERT_CACHE", str(plan.parent / "cache"))


def test_a_run_is_calibrated_and_gives_bars(plan: Path, tmp_path: Path):
    experiment = load_experiment(plan)
    folder = run(experiment, tmp_path / "run").folder
    result = call("calibrate", folder, "--leads", "2", "--starts", "3")
    assert result.exit_code == 0, result.output
    told = " ".join(result.output.split())
    assert "12 windows of 4 trajectories taken for independent" in told
    again = ("calibrate", folder, "--leads", "2", "--starts", "3", "--json")
    before = (folder / "calibration.json").read_bytes()
    refused = call(*again)
    assert refused.exit_code == 2 and "calibration.json exists; add --overwrite" in refused.stderr
    assert (folder / "calibration.json").read_bytes() == before
    found = json.loads(call(*again, "--overwrite").stdout)
    assert found["rests_on"] in told and {row["lead"] for row in found["coverage"]} <= {1, 2}
    assert all(Path(path).is_file() for path in found["written"])
    trusted = pibert.trust.load(folder)
    flows = prepare(experiment.data)
    samples = flows.samples("test", Window(horizon=2))
    index, first = samples.locate(0)
    fields = flows.trajectories[index].read(slice(first, first + 1))[None].numpy()
    with pytest.warns(UserWarning, match=r"no alarm can be raised: 12 .*a rate of 0.077 "):
        bars = trusted.rollout(fields, 2, dict(flows.trajectories[index].parameters), level=0.8)
    assert bars.high.shape == (1, 2, *fields.shape[2:]) and bars.consistency is None
    # Twelve windows cannot tell one in twenty: nothing is raised, and that is said.
    assert bars.alarm.rate == 0.05 and bars.alarm.lowest == 1 / 13
    assert not bars.alarm.raised.any()
    assert "No alarm can be raised at the accepted rate of 0.05" in told
    assert "calibrate on more flows or windows of each trajectory (--starts, here 3)" in told
    assert (np.asarray(bars.high) > np.asarray(bars.low)).all()


def test_a_run_that_was_stopped_is_remarked_on(plan: Path, tmp_path: Path):
    folder = run(load_experiment(plan), tmp_path / "run").folder
    path = folder / "config.json"
    record = json.loads(path.read_text())
    path.write_text(json.dumps({**record, "schedule": {"epochs": 40}}))
    line = {"kind": "epoch", "epoch": 32, "best_epoch": 30, "valid": None}
    (folder / "log.jsonl").write_text(json.dumps(line) + "\n")
    for command in (("calibrate", folder, "--leads", "2"), ("evaluate", folder)):
        told = call(*command)
        assert told.exit_code == 0, told.output
        assert "this run is not finished, epoch 32 of 40" in told.stderr


def test_a_plan_without_a_calibration_share_is_told_how_to_set_it(plan: Path, tmp_path: Path):
    experiment = load_experiment(plan, ("data.shares.calibration=0",))
    folder = run(experiment, tmp_path / "run").folder
    result = call("calibrate", folder)
    assert result.exit_code == 2
    assert "--set data.shares.calibration=0.2" in " ".join(result.output.split())
    assert not (folder / "calibration.json").exists()


def test_members_must_have_the_same_data(plan: Path, tmp_path: Path):
    one = run(load_experiment(plan), tmp_path / "one").folder
    other = run(load_experiment(plan, ("data.split_seed=1",)), tmp_path / "other").folder
    result = call("calibrate", one, "--member", other)
    assert result.exit_code == 2 and "same [data]" in " ".join(result.output.split())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--difficulty", "guess"), "expected one of constant, residual, ensemble, found 'guess'"),
        (("--units", "points"), "expected trajectories or windows, found 'points'"),
        (("--leads", "0"), "at least 1 lead time"),
        ((), "expected a run folder with config.json, found none"),
    ],
)
def test_what_is_wrong_is_told_in_one_line(
    tmp_path: Path, arguments: tuple[str, ...], message: str
):
    result = call("calibrate", tmp_path, *arguments)
    assert result.exit_code == 2 and message in " ".join(result.output.split())


def test_any_model_is_calibrated_on_flows_that_it_has_not_seen(plan: Path, tmp_path: Path):
    alone = ("data.shares.calibration=0",)
    folder = run(load_experiment(plan, alone), tmp_path / "run").folder
    other = load_experiment(plan, (*alone, "data.recipe.seed=5")).data
    write(tmp_path / "new.h5", prepare(other).trajectories)
    out = tmp_path / "calibrated"
    given = ("calibrate", folder, "--leads", "2", "--starts", "3", "--out", out)
    result = call(*given, "--data", tmp_path / "new.h5")
    assert result.exit_code == 0, result.output
    assert not (folder / "calibration.json").exists()
    fields = prepare(other).trajectories[0].read(slice(0, 1))[None]
    bars = pibert.trust.load(folder, calibration=out).step(fields, level=0.8)
    assert bool((bars.high > bars.low).all())
    with pytest.raises(FileNotFoundError, match="pibert calibrate"):
        pibert.trust.load(folder)


def test_the_training_data_do_not_calibrate(plan: Path, tmp_path: Path):
    experiment = load_experiment(plan)
    folder = run(experiment, tmp_path / "run").folder
    copy = tmp_path / "copy.h5"
    write(copy, prepare(experiment.data).trajectories)
    result = call("calibrate", folder, "--data", copy, "--out", tmp_path / "out")
    told = " ".join(result.output.split())
    assert result.exit_code == 2 and "the same recipe_hash" in told
    assert "saw, found flows of the data set that the model was trained on" in told
    by_file = replace(
        experiment, data=replace(experiment.data, path=str(copy), case=None, recipe={})
    )
    trained = run(by_file, tmp_path / "by-file").folder
    result = call("calibrate", trained, "--data", copy, "--out", tmp_path / "out")
    told = " ".join(result.output.split())
    assert result.exit_code == 2 and "the same fingerprint" in told
    assert not (tmp_path / "out").exists()


def test_a_shipped_model_is_calibrated_into_a_folder_of_its_own(tmp_path: Path):
    result = call("calibrate", "cylinder-base", "--data", tmp_path / "none.h5")
    assert result.exit_code == 2 and "--out FOLDER" in " ".join(result.output.split())
