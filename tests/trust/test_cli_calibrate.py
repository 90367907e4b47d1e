"""The command calibrates a run on the share that its plan set aside, or tells how to have one."""

from pathlib import Path

import numpy as np
import pytest
from typer.testing import CliRunner, Result

import pibert.trust
from pibert.cli import app
from pibert.data.dataset import Window
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
    trusted = pibert.trust.load(folder)
    flows = prepare(experiment.data)
    samples = flows.samples("test", Window(horizon=2))
    index, first = samples.locate(0)
    fields = flows.trajectories[index].read(slice(first, first + 1))[None].numpy()
    bars = trusted.rollout(fields, 2, dict(flows.trajectories[index].parameters), level=0.8)
    assert bars.high.shape == (1, 2, *fields.shape[2:]) and bars.consistency is None
    assert bars.alarm.rate == 1 / 13  # the least that twelve windows can tell
    assert (np.asarray(bars.high) > np.asarray(bars.low)).all()


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
