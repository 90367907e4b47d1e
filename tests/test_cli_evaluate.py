"""``pibert evaluate --rollout``: what the rollouts of a run came to, as a table and as JSON."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from typer.testing import Result

from pibert.data.dataset import Window
from pibert.data.format import write
from pibert.data.provenance import predicted_source
from pibert.data.resample import represent
from pibert.evaluation.leads import LeadTimes
from pibert.evaluation.rollouts import score_rollouts, spread_starts
from pibert.experiments import load_experiment, run
from pibert.experiments.flows import prepare
from pibert.experiments.held_out import as_trained
from pibert.inference import load, model_file
from pibert.notes import InputWarning
from tests.command import run as call
from tests.command import well
from tests.data.helpers import SHAPE, make_trajectory, random_states
from tests.inference.flows import flows as waves
from tests.inference.flows import saved

PLAN = """
[data]
case = "turbulence"
recipe = { samples = 6, frames = 9, shape = [12, 16] }
shares = { train = 0.5, valid = 0.2 }
[model]
name = "persistence"
"""


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


def test_rollout_scores_are_reported_by_lead_time(folder: Path, tmp_path: Path) -> None:
    result = call("evaluate", folder, "--out", tmp_path, "--rollout", "3", "--json")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)["rollout"]
    flows, predictor = prepare(load_experiment(folder.parent / "plan.toml").data), load(folder)
    samples = flows.samples("test", Window(horizon=3))
    starts = spread_starts(samples, found["starts"])
    expected = score_rollouts(predictor, samples, starts)
    entries = LeadTimes(spec=predictor.spec, normalizer=predictor.normalizer).entries
    names = [(entry.metric, entry.component) for entry in entries]
    for step in (1, 3):
        row = dict(zip(names, expected["curves"][step - 1].tolist(), strict=True))
        values = found["by_step"][str(step)]
        assert values["nmse"]["u"] == pytest.approx(row["nmse", "u"], rel=1e-5)
        assert values["skill"]["all"] == pytest.approx(0.0, abs=1e-5)
    assert found["steps"] == 3 and found["by_step"].keys() == {"1", "2", "3"}
    horizon = float(expected["summary"][0])
    assert found["summary"]["stable_horizon"] == pytest.approx(horizon)
    told = call("evaluate", folder, "--out", tmp_path, "--rollout", "3").stdout
    assert "Rollouts from" in told and "fluctuation" in told and "of 3 steps" in told
    assert "Rollouts" not in call("evaluate", folder, "--out", tmp_path).stdout
    plain = json.loads(call("evaluate", folder, "--out", tmp_path, "--json").stdout)
    assert plain["rollout"] is None


def test_a_run_on_a_relative_path_is_scored_from_anywhere(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(
        tmp_path / "flows.h5",
        [make_trajectory(f"{n}", states=random_states(9, 2, *SHAPE, seed=n)) for n in range(6)],
    )
    plan = PLAN.replace('case = "turbulence"', 'path = "flows.h5"')
    (tmp_path / "plan.toml").write_text(re.sub("recipe = .*", "", plan))
    monkeypatch.chdir(tmp_path)
    run(load_experiment("plan.toml"), "run")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    result = call("evaluate", "../run")
    assert result.exit_code == 0, result.output


def test_a_model_that_is_worse_than_persistence_is_noted(folder: Path, tmp_path: Path) -> None:
    plan = tmp_path / "plan.toml"
    plan.write_text(PLAN.replace("persistence", "training-mean"))
    worse = run(load_experiment(plan), tmp_path / "run").folder
    told = " ".join(call("evaluate", worse).stderr.split())
    assert "the skill is -" in told and "smaller error" in told
    assert "the skill is" not in call("evaluate", folder, "--out", tmp_path).stderr


def test_any_model_is_scored_on_other_flows(
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
    assert of_model["written"] == [str(bare / "evaluation-flows" / "scores.json")]
    coarse = tmp_path / "coarse.h5"
    halved = [represent(trajectory, size=(6, 8)) for trajectory in trajectories]
    write(coarse, [replace(trajectory, local={}) for trajectory in halved])
    resampled = call("evaluate", bare, "--data", coarse)
    assert resampled.exit_code == 0, resampled.output
    assert "on 12 x 16 points, resampled from 6 x 8" in resampled.stderr
    monkeypatch.setattr(model_file, "FOLDER", tmp_path)
    (tmp_path / "bare").rename(tmp_path / "other")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    named = json.loads(call("evaluate", "other", "--data", data, "--json").stdout)
    assert named["written"] == [str(Path("other-evaluation-flows") / "scores.json")]
    refused = call("evaluate", "other")
    assert refused.exit_code == 2 and "expected a run folder with config.json" in refused.stderr
    assert "--data FILE" in refused.stderr


def test_scores_on_predicted_flows_get_a_note(folder: Path, tmp_path: Path) -> None:
    trajectories = prepare(load_experiment(folder.parent / "plan.toml").data).trajectories[:2]
    made = [
        replace(t, source=predicted_source(t.source, "other", "ab" * 32, None), local={})
        for t in trajectories
    ]
    assert torch.equal(made[0].read(), trajectories[0].read())
    write(tmp_path / "made.h5", made)
    result = call("evaluate", folder, "--data", tmp_path / "made.h5", "--out", tmp_path)
    assert result.exit_code == 0, result.output
    assert "not ground truth, but predicted by other (weights abababababab)" in result.stderr
    refused = call("calibrate", folder, "--data", tmp_path / "made.h5", "--out", tmp_path / "c")
    assert refused.exit_code == 2 and "measured or simulated flows" in refused.stderr
    assert not (tmp_path / "c").exists()


def test_scores_of_other_data_do_not_replace_those_of_the_test_split(
    folder: Path, tmp_path: Path
) -> None:
    assert call("evaluate", folder).exit_code == 0
    own = (folder / "evaluation" / "scores.json").read_bytes()
    data = tmp_path / "other flows.h5"
    write(data, prepare(load_experiment(folder.parent / "plan.toml").data).trajectories[:1])
    result = call("evaluate", folder, "--data", data)
    assert result.exit_code == 0, result.output
    assert "it may have seen them" in " ".join(result.output.split())
    assert (folder / "evaluation" / "scores.json").read_bytes() == own
    assert (folder / "evaluation-other-flows" / "scores.json").is_file()


METRES = """
[data]
path = "known.npz"
hints = { unit = "m/s", dt = 0.1, length_unit = "m" }
split = "time"
[model]
name = "persistence"
"""


@pytest.fixture(scope="module")
def in_metres(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run in m/s, and beside it a file like its own that states no units, and one in mm/s."""
    place = tmp_path_factory.mktemp("metres")
    u, v = np.random.default_rng(0).standard_normal((2, 40, 8, 12)).astype("float32")
    x, y = 0.1 * np.arange(12), 0.2 * np.arange(8)
    for name, number in (("known", 1.0), ("bare", 2.0), ("small", 2000.0)):
        np.savez(place / f"{name}.npz", u=number * u, v=number * v, x=x, y=y)
    (place / "plan.toml").write_text(METRES)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        return run(load_experiment("plan.toml"), place / "run").folder


def rmse(result: Result) -> float:
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    entries, values = (found[what]["physical/pointwise"] for what in ("entries", "values"))
    pairs = zip(entries, values, strict=True)
    return next(v for e, v in pairs if (e["metric"], e["component"]) == ("rmse", "u"))


def test_missing_metadata_is_stated_with_options(in_metres: Path, tmp_path: Path) -> None:
    beside, out = in_metres.parent, ("--out", tmp_path, "--json")
    model = tmp_path / "model"  # without the record of a training that states units for it
    model.mkdir()
    card = json.loads((in_metres / "model.json").read_text())
    (model / "model.json").write_text(json.dumps(card | {"provenance": {}}))
    (model / "model.safetensors").write_bytes((in_metres / "model.safetensors").read_bytes())
    bare = call("evaluate", model, "--data", beside / "bare.npz", *out)
    assert "u in m/s" in bare.stderr
    told = call("evaluate", model, "--data", beside / "bare.npz", "--unit", "m/s", *out)
    assert "no unit" not in told.stderr and rmse(told) == pytest.approx(rmse(bare))
    small = ("evaluate", model, "--data", beside / "small.npz", "--unit", "mm/s")
    refused = call(*small, "--out", tmp_path / "none")
    assert refused.exit_code == 2 and "--length-unit and --time-unit" in refused.stderr
    assert not (tmp_path / "none").exists()
    whole = call(*small, "--length-unit", "m", "--time-unit", "s", "--dt", "0.1", *out)
    assert rmse(whole) == pytest.approx(rmse(bare), rel=1e-4)
    idle = call("evaluate", in_metres, "--length-unit", "mm")
    assert idle.exit_code == 2 and "--length-unit goes with --data" in idle.stderr
    given = ("calibrate", model, "--data", beside / "bare.npz", "--out", tmp_path / "c")
    refused = call(*given, "--leads", "2")
    assert refused.exit_code == 2 and "state what" in refused.stderr
    done = call(*given, "--leads", "2", "--unit", "m/s", "--dt", "0.1")
    assert done.exit_code == 0, done.output


def test_hints_on_training_data_carry_over_except_facts_of_one_recording(
    in_metres: Path, tmp_path: Path
) -> None:
    data = in_metres.parent / "bare.npz"
    said = call("evaluate", in_metres, "--data", data, "--out", tmp_path).output
    assert "as stated for the training data: unit = m/s, dt = 0.1, length_unit = m" in said
    said = call("evaluate", in_metres, "--data", data, "--dt", "0.1", "--out", tmp_path).output
    assert "as stated for the training data: unit = m/s, length_unit = m;" in said
    predictor = load(in_metres)
    of_one: dict[str, Any] = {
        "parameters": {"Re": 100.0},
        "body": ["zeros"],
        "mask": ["zeros"],
        "scale": "1mm/px",
    }
    of_one |= {"pulse_delay": "1ms", "override_units": True, "override_metadata": True}
    predictor.card["provenance"]["experiment"]["data"]["hints"] |= of_one
    with pytest.warns(InputWarning, match="length_unit = m; give"):
        plan = as_trained(predictor, data, {"hints": {"dt": 0.2}})
    assert plan.hints == {"unit": "m/s", "dt": 0.2, "length_unit": "m"}


def test_every_component_has_its_own_unit(tmp_path: Path) -> None:
    flows = []
    for number in range(6):
        states = random_states(9, 3, *SHAPE, seed=number)
        flow = make_trajectory(f"flow {number}", states=states, channels=("u", "v", "p"))
        flows.append(replace(flow, spec=replace(flow.spec, units=("m/s", "m/s", "m2/s2"))))
    write(tmp_path / "flows.h5", flows)
    plan = PLAN.replace('case = "turbulence"', f'path = "{tmp_path / "flows.h5"}"')
    (tmp_path / "plan.toml").write_text(re.sub("recipe = .*", "", plan))
    folder = run(load_experiment(tmp_path / "plan.toml"), tmp_path / "run").folder
    told = call("evaluate", folder)
    assert told.exit_code == 0, told.output
    (row,) = (line for line in told.stdout.splitlines() if " rmse " in line)
    name, *cells = (cell.strip() for cell in row.strip("│┃ ").split("│"))
    assert name == "rmse"
    units = [cell.partition(" ")[2] for cell in cells]
    header = next(line for line in told.stdout.splitlines() if " metric " in line)
    components = [cell.strip() for cell in header.strip("┃ ").split("┃")][1:]
    expected = {"u": "m/s", "v": "m/s", "p": "m2/s2", "|u|": "m/s", "all": ""}
    assert dict(zip(components, units, strict=True)) == expected


def test_filled_points_are_counted_and_not_scored(folder: Path, tmp_path: Path) -> None:
    plain = prepare(load_experiment(folder.parent / "plan.toml").data).trajectories[0]
    filled = torch.zeros(plain.num_frames, *plain.spec.grid.shape, dtype=torch.bool)
    # Frame 0 is input alone, the last frame truth alone.
    filled[0, 0, 0], filled[-1, 2:4, 5] = True, True
    path, found = tmp_path / "a.h5", []
    for value in (0.0, 1e3):
        states = plain.read().clone()
        states[-1, :, 2:4, 5] = value
        write(path, [replace(plain, states=states, filled=filled, local={})])
        judged = ("evaluate", folder, "--data", path, "--rollout", "3", "--out", tmp_path / "s")
        told = json.loads(call(*judged, "--json").stdout)
        assert told["data"]["filled_points"] == 2
        found.append((told["values"]["physical/pointwise"], told["rollout"]["by_step"]))
    assert found[0] == found[1]
    said = " ".join(call(*judged).output.split())
    assert "2 points" in said and "not scored" in said
    assert "3 of 1,728 vectors (0.17%)" in said


def test_free_runs_have_intervals_over_flows_beside_the_sampling_error(tmp_path: Path) -> None:
    model, data, out = tmp_path / "model", tmp_path / "long.h5", tmp_path / "scores"
    saved(model)
    write(data, waves(10, frames=60, seed=4))
    words = ("evaluate", model, "--data", data, "--out", out, "--free-run", 50)
    shown = " ".join(well(*words).output.split())
    assert "truth against itself" in shown
    found = json.loads(well(*words, "--json").stdout)["free_run"]
    assert found["frames"] == [50] * 10 and found["intervals"] == "10 flows"
    place = [entry["metric"] for entry in found["entries"]].index("survival")
    low, high = found["values_intervals"][place]
    assert low <= found["values"][place] <= high
    lost = sum(own < 50 for own in found["survived"])
    assert (f"Diverged: {lost} of 10 runs" in shown) == (lost > 0)


@pytest.fixture(scope="module")
def extrapolated(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run on flows that grow with Re, each by its own factor; test flows have the highest."""
    place = tmp_path_factory.mktemp("extrapolated")
    wave = random_states(1, 2, *SHAPE, seed=0)
    flows = []
    for number, reynolds in enumerate((100.0, 200.0, 300.0, 400.0, 500.0, 1000.0, 2000.0)):
        growth = (1.1 + 0.1 * number) ** torch.arange(6.0)
        states = number * growth[:, None, None, None] * wave + wave
        flows.append(make_trajectory(f"re{reynolds:g}", states=states, re=reynolds))
    write(place / "flows.h5", flows)
    (place / "plan.toml").write_text(
        f'[data]\npath = "{place / "flows.h5"}"\nsplit = "higher:Re:600"\n'
        'shares = { train = 0.8, valid = 0.2 }\n[model]\nname = "persistence"\n'
    )
    return run(load_experiment(place / "plan.toml"), place / "run").folder


def test_errors_of_flows_beyond_the_training_range(extrapolated: Path, tmp_path: Path) -> None:
    result = call("evaluate", extrapolated, "--out", tmp_path, "--rollout", "2", "--json")
    assert result.exit_code == 0, result.output
    assert "2 of 2 flows are outside the training range (Re 100 to 500)" in result.output
    found = json.loads(result.stdout)["by_flow"]
    assert found == json.loads((tmp_path / "scores.json").read_text())["by_flow"]
    assert found["training_range"]["Re"] == [100.0, 500.0]
    assert [flow["outside"] for flow in found["flows"]] == [["Re"], ["Re"]]
    flows = prepare(load_experiment(extrapolated.parent / "plan.toml").data)
    expected = []
    for flow in flows.trajectories[-2:]:
        states = flow.read().double()
        expected.append(float(states.diff(dim=0).square().sum() / states[1:].square().sum()))
    errors = {(row["metric"], row["lead"]): row["flows"] for row in found["errors"]}
    assert errors["nmse", None] == pytest.approx(expected, rel=1e-4)
    assert found["nmse_flow_mean"] == pytest.approx(sum(expected) / 2, rel=1e-4)
    assert found["nmse_flow_median"] == pytest.approx(sum(expected) / 2, rel=1e-4)
    assert sum(errors["squared_error_share", None]) == pytest.approx(1.0)
    assert errors["nmse", 2][1] > errors["nmse", None][1]
    shown = call("evaluate", extrapolated, "--out", tmp_path).stdout
    assert "re2000" in shown and "2000 *" in shown and "outside the training range" in shown


def test_flows_without_the_parameter_of_the_model_get_a_note(
    extrapolated: Path, tmp_path: Path
) -> None:
    flows = prepare(load_experiment(extrapolated.parent / "plan.toml").data).trajectories[:2]
    plain = [replace(flow, local={}, source={}) for flow in flows]
    unstated = [replace(flow, parameters={}) for flow in plain]
    notes = []
    for name, kept in (("known", plain), ("bare", unstated), ("some", [plain[0], unstated[1]])):
        write(tmp_path / f"{name}.h5", kept)
        result = call("evaluate", extrapolated, "--data", tmp_path / f"{name}.h5")
        assert result.exit_code == 0, result.output
        notes.append(" ".join(result.stderr.split()))
    known, bare, some = notes
    assert "no value of Re" not in known
    assert "no value of Re, damping is given" in bare and "--parameter Re=NUMBER" in bare
    assert "some flows: no value of Re" in some and "convert those without it" in some
    given = ("--data", tmp_path / "bare.h5", "--parameter", "Re=300", "--out", tmp_path)
    assert "no value of Re" not in call("evaluate", extrapolated, *given).stderr


def test_flows_beyond_the_training_range_do_not_calibrate(extrapolated: Path) -> None:
    result = call("calibrate", extrapolated)
    assert result.exit_code != 0
    assert "outside the training range" in result.output and "shares.calibration" in result.output


def test_training_states_the_ranges_of_a_split(extrapolated: Path, tmp_path: Path) -> None:
    plan = extrapolated.parent / "plan.toml"
    result = call("train", "--config", plan, "--out", tmp_path / "run")
    assert result.exit_code == 0, result.output
    text = " ".join(result.output.split())
    assert "7 flows split by Re, training 100 to 500, testing 1000 to 2000" in text


def test_flows_in_finer_steps_are_refused_with_a_command_that_fits(
    in_metres: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(in_metres.parent)
    for dt, remedy in (("0.05", "pibert convert FILE NAME.h5 --stride 2"), ("0.07", "--dt")):
        result = call("evaluate", in_metres, "--data", "bare.npz", "--dt", dt, "--out", "finer")
        said = " ".join(result.stderr.split())
        assert result.exit_code == 2 and f"found {dt}" in said and remedy in said
        assert "data.stride" not in said and ("--stride" in said) == (dt == "0.05")
