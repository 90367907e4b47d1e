"""``--level`` of ``pibert predict`` and ``rollout``: bars in every file, and the alarm."""

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch
import xarray
from typer.testing import CliRunner, Result

import pibert.trust
from pibert.cli import app
from pibert.data.dataset import Window
from pibert.data.format import Reader, check, write
from pibert.fields import Grid, Trajectory
from pibert.predictor import shipped
from pibert.trust import Settings, calibrate, save_calibration
from tests.data.writers.helpers import image
from tests.trust.flows import BODY, SHAPE, flows, samples_of, saved

LEADS = 3
FLUID = ~BODY


def run(*arguments: str | Path | int | float) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def well(*arguments: str | Path | int | float) -> Result:
    result = run(*arguments)
    assert result.exit_code == 0, result.output
    return result


def refusal(*arguments: str | Path | int | float) -> str:
    result = run(*arguments)
    assert result.exit_code == 2, result.output
    return next(line for line in result.stderr.splitlines() if line.startswith("error: "))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small model with its calibration beside it."""
    folder = tmp_path_factory.mktemp("model") / "waves"
    predictor = saved(folder)
    found = calibrate(
        predictor,
        samples_of(flows(8, seed=1), Window(history=2)),
        samples_of(flows(30, seed=2), Window(history=2, horizon=LEADS)),
        Settings(leads=LEADS, starts=4),
    )
    save_calibration(folder, found, predictor.spec.channels)
    return folder


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "wave.h5"
    write(path, flows(1, seed=9))
    return path


def test_bars_reach_every_format(tmp_path: Path, model: Path, source: Path) -> None:
    names = ("r.h5", "r.nc", "r.pvd", "r.xdmf", "r.png", "r.gif")
    outs = [part for name in names for part in ("--out", tmp_path / name)]
    well("rollout", source, "--model", model, "--steps", LEADS, "--level", 0.8, *outs)
    recorded = Reader(source)[0]
    expected = pibert.trust.load(model).rollout(
        recorded.read(slice(0, 2))[None], LEADS, dict(recorded.parameters), level=0.8
    )
    low, high = (end[0].numpy() for end in (expected.low, expected.high))
    check(tmp_path / "r.h5")
    native = Reader(tmp_path / "r.h5")[0]
    assert native.spec.channels == ("u", "v", "u_low", "u_high", "v_low", "v_high")
    shown = torch.where(FLUID, expected.prediction[0], torch.nan)
    torch.testing.assert_close(native.read()[:, :2], shown, rtol=0, atol=0, equal_nan=True)
    np.testing.assert_array_equal(native.read()[:, 2].numpy(), low[:, 0])
    np.testing.assert_array_equal(native.read()[:, 5].numpy(), high[:, 1])
    assert torch.equal(native.known(), FLUID.expand(LEADS, *SHAPE))
    with xarray.open_dataset(tmp_path / "r.nc") as found:
        np.testing.assert_array_equal(found.v_low.values, low[:, 1])
        np.testing.assert_array_equal(found.u.values, native.read()[:, 0].numpy())
        assert found.u.attrs["ancillary_variables"] == "u_low u_high"
        assert "level 0.8" in found.u_high.attrs["long_name"]
    _, arrays = image(tmp_path / "r_frames" / "frame_000002.vti", SHAPE)
    np.testing.assert_array_equal(arrays["u_high"], high[2, 0])
    assert arrays["velocity"].shape == (*SHAPE, 3)
    with h5py.File(tmp_path / "r.xdmf.h5") as file:
        np.testing.assert_array_equal(file["v_high"][...], high[:, 1])
    assert 'Name="v_high"' in (tmp_path / "r.xdmf").read_text()
    for picture in ("r.png", "r.gif"):
        assert (tmp_path / picture).stat().st_size > 1000


def test_every_prediction_of_the_next_frame_has_bars(
    tmp_path: Path, model: Path, source: Path
) -> None:
    out = tmp_path / "next.h5"
    given = ("predict", source, "--model", model, "--level", 0.9, "--out", out)
    summary = json.loads(well(*given, "--json").stdout)
    recorded, found = Reader(source)[0], Reader(out)[0].read()
    fields = recorded.read()
    windows = torch.stack([fields[i : i + 2] for i in range(len(fields) - 1)])
    expected = pibert.trust.load(model).rollout(windows, 1, dict(recorded.parameters), level=0.9)
    torch.testing.assert_close(found[:, 3], expected.high[:, 0, 0], equal_nan=True)
    truth, low, high = fields[2:], expected.low[:-1, 0], expected.high[:-1, 0]
    inside = ((low <= truth) & (truth <= high))[..., FLUID].double().mean((0, 2))
    assert summary["scores"]["coverage"]["v"] == pytest.approx(float(inside[1]), abs=1e-3)
    assert summary["bars"]["level"] == 0.9 and "22 trajectories" in summary["bars"]["rests_on"]
    told = summary["bars"]["alarm"]
    assert [window["frame"] for window in told["windows"]] == list(range(1, 12))
    assert told["windows"][0]["p"] == pytest.approx(float(expected.alarm.p[0]))
    said = well(*given, "--overwrite")
    assert "Bars of level 0.9 hold" in " ".join(said.stdout.split())


def test_a_lost_frame_costs_the_bars_of_what_follows_it_and_no_more(
    tmp_path: Path, model: Path, source: Path
) -> None:
    recorded, out = Reader(source)[0], tmp_path / "next.h5"
    fields, valid = recorded.read(), torch.ones(12, *SHAPE, dtype=torch.bool)
    fields[5], valid[5] = torch.nan, False
    write(tmp_path / "lost.h5", [replace(recorded, states=fields, valid=valid)])
    said = well(
        "predict", tmp_path / "lost.h5", "--model", model, "--level", 0.9, "--out", out, "--json"
    )
    assert "frame 5 holds no finite value" in said.stderr
    # Windows of two frames that end at frames 1 to 11; two of them hold the lost one.
    told = json.loads(said.stdout)["bars"]["alarm"]["windows"]
    assert [window["frame"] for window in told] == [1, 2, 3, 4, 7, 8, 9, 10, 11]
    found = Reader(out)[0].read()[:, 3].flatten(1).isfinite().any(1)
    assert found.tolist() == [True] * 4 + [False] * 2 + [True] * 5


def test_the_alarm_is_told_on_standard_error_and_in_json(
    tmp_path: Path, model: Path, source: Path
) -> None:
    given = ("--model", model, "--steps", 2, "--level", 0.8, "--out", tmp_path / "a.h5")
    sound = well("rollout", source, *given)
    assert "no alarm: p = " in sound.stderr and "no alarm" not in sound.stdout
    recorded = Reader(source)[0]
    odd = tmp_path / "odd.h5"
    write(odd, [replace(recorded, states=8 * recorded.read())])
    raised = well("rollout", odd, *given, "--overwrite", "--json")
    assert "alarm: the input is unlike the training data (p = " in raised.stderr
    assert "bars mean nothing there" in raised.stderr
    told = json.loads(raised.stdout)["bars"]["alarm"]
    (window,) = told["windows"]
    assert told["raised"] == 1 and window["raised"] and window["p"] <= told["rate"] == 0.05
    assert window["oddest"] in raised.stderr and window["frame"] == 1


def test_gaps_beyond_those_of_the_calibration_are_told_with_their_share(
    tmp_path: Path, model: Path, source: Path
) -> None:
    recorded = Reader(source)[0]
    valid = torch.ones(SHAPE, dtype=torch.bool)
    valid[6, 8] = False
    gap = tmp_path / "gap.h5"
    write(gap, [replace(recorded, valid=valid)])
    given = ("--model", model, "--level", 0.8, "--json", "--out", tmp_path / "a.h5")
    one = well("rollout", gap, "--steps", 2, *given)
    told = " ".join(one.stderr.split())
    share = 1 / int(FLUID.sum())
    assert f"the input has more unknown points ({share:.2%}) than those of the cal" in told
    assert "(0.00% at most)" in told and "so much is unknown" not in told
    (window,) = json.loads(one.stdout)["bars"]["alarm"]["windows"]
    assert window["limited"] and window["unknown"] == pytest.approx(share)
    many = well("predict", gap, *given, "--overwrite")
    assert "11 of 11 inputs have more unknown points (up to" in " ".join(many.stderr.split())


def test_a_calibration_too_small_for_alarms_gives_no_all_clear(
    tmp_path: Path, model: Path, source: Path
) -> None:
    few = tmp_path / "few"
    found = calibrate(
        saved(few),
        samples_of(flows(8, seed=1), Window(history=2)),
        samples_of(flows(12, seed=2), Window(history=2, horizon=LEADS)),
        Settings(leads=LEADS, starts=4, units="trajectories"),
    )
    save_calibration(few, found, ("u", "v"))
    least = 1 / (found.count + 1)
    assert least > 0.05
    given = ("rollout", source, "--model", few, "--steps", 2, "--level", 0.6)
    result = well(*given, "--json", "--out", tmp_path / "a.h5")
    told = " ".join(result.stderr.split())
    assert "no alarm can be raised" in told and "not judged: p = " in told
    assert "no all-clear" in told and "no alarm: " not in told
    assert json.loads(result.stdout)["bars"]["alarm"]["can_be_raised"] is False
    rate = float(told.partition("accept a rate of ")[2].split()[0])
    judged = well(*given, "--false-alarms", rate, "--json", "--out", tmp_path / "b.h5")
    assert "not judged" not in judged.stderr and "no alarm can be raised" not in judged.stderr
    alarm = json.loads(judged.stdout)["bars"]["alarm"]
    assert alarm["rate"] == rate >= least and alarm["can_be_raised"]
    out = ("--out", tmp_path / "c.h5")
    assert f"from {rate:g}" in refusal(*given, *out, "--false-alarms", 0.01)
    bare = ("rollout", source, "--model", few, *out)
    assert "goes with --level" in refusal(*bare, "--false-alarms", rate)
    assert not (tmp_path / "c.h5").exists()


def test_the_accepted_rate_of_false_alarms_reaches_every_window(
    tmp_path: Path, model: Path, source: Path
) -> None:
    given = ("predict", source, "--model", model, "--level", 0.8, "--json")
    told = []
    for rate in (0.05, 0.9):
        out = tmp_path / f"{rate}.h5"
        result = well(*given, "--false-alarms", rate, "--out", out)
        told.append(json.loads(result.stdout)["bars"]["alarm"])
    assert [alarm["rate"] for alarm in told] == [0.05, 0.9]
    for alarm in told:
        assert all(w["raised"] == (w["p"] <= alarm["rate"]) for w in alarm["windows"])
    assert told[1]["raised"] > told[0]["raised"]


def test_steps_that_were_not_calibrated_are_refused_unless_the_last_bars_may_stand(
    tmp_path: Path, model: Path, source: Path
) -> None:
    out = tmp_path / "a.h5"
    given = ("rollout", source, "--model", model, "--steps", 5, "--level", 0.8, "--out", out)
    told = refusal(*given)
    assert "at most 3 with bars" in told and "pibert calibrate --leads 5" in told
    assert "--extend-bars" in told and not out.exists()
    said = well(*given, "--extend-bars")
    assert "too narrow" in said.stderr
    assert bool(Reader(out)[0].read()[4, 2][FLUID].isfinite().all())
    well(*given[:4], "--level", 0.8, "--out", tmp_path / "b.h5")
    assert Reader(tmp_path / "b.h5")[0].num_frames == 3  # as many as have bars


def test_a_model_without_a_calibration_is_told_how_to_make_one(
    tmp_path: Path, model: Path, source: Path
) -> None:
    bare, out = tmp_path / "bare", tmp_path / "a.h5"
    bare.mkdir()
    for name in ("model.safetensors", "model.json"):
        (bare / name).write_bytes((model / name).read_bytes())
    given = ("rollout", source, "--model", bare, "--steps", 2, "--out", out)
    told = refusal(*given, "--level", 0.8)
    assert "expected calibration.json, found none" in told and "pibert calibrate" in told
    well(*given, "--level", 0.8, "--calibration", model)
    assert "goes with --level" in refusal(*given, "--calibration", model)
    assert "goes with --level" in refusal(*given, "--extend-bars")
    assert "between 0 and 1" in refusal(*given, "--calibration", model, "--level", 90)
    assert "0.999" in refusal(*given, "--calibration", model, "--level", 0.999)


def test_a_shipped_model_and_a_weights_file_have_their_calibration_beside_them(
    tmp_path: Path, model: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shipped, "FOLDER", model.parent)
    for name in ("waves", model / "model.safetensors"):
        out = tmp_path / f"{Path(name).stem}.h5"
        well("rollout", source, "--model", name, "--steps", 1, "--level", 0.8, "--out", out)
        assert Reader(out)[0].source["bars_level"] == 0.8


def test_points_without_bars_are_not_valid_in_the_native_file(tmp_path: Path, model: Path) -> None:
    """On a finer grid a gap grows on its way to the model: no bars at known points around it."""
    grid = Grid((16, 24), dx=0.15, dy=0.1)
    valid = torch.ones(grid.shape, dtype=torch.bool)
    valid[9:15, 14:22] = False
    states = torch.randn(3, 2, *grid.shape, generator=torch.Generator().manual_seed(0))
    spec = replace(flows(1)[0].spec, grid=grid)
    source = tmp_path / "fine.h5"
    facts: Any = {"states": states, "time": 0.1 * torch.arange(3), "valid": valid}
    write(source, [Trajectory(name="a", spec=spec, **facts)])
    outs = ("--out", tmp_path / "a.h5", "--out", tmp_path / "a.nc")
    well("rollout", source, "--model", model, "--steps", 2, "--level", 0.8, *outs)
    check(tmp_path / "a.h5")
    with xarray.open_dataset(tmp_path / "a.nc") as found:
        told, predicted = (torch.from_numpy(found[n].notnull().values) for n in ("u_low", "u"))
    assert torch.equal(Reader(tmp_path / "a.h5")[0].known(), told)
    assert bool((predicted & ~told).any()) and not bool((told & ~predicted).any())


_MEASURE = """
import resource, sys
from pibert.cli import app
try:
    app(sys.argv[1:], standalone_mode=False)
finally:
    print("PEAK", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, file=sys.stderr)
"""


@pytest.mark.slow
def test_memory_does_not_grow_with_the_steps_that_have_bars(tmp_path: Path, model: Path) -> None:
    """A frame with its bars has 225 KiB: 400 of them are 92 MB."""
    fine = replace(flows(1)[0].spec, grid=Grid((80, 120), dx=0.03, dy=0.02))
    states = torch.randn(3, 2, 80, 120, generator=torch.Generator().manual_seed(0))
    source = tmp_path / "fine.h5"
    write(source, [Trajectory(name="a", states=states, time=0.1 * torch.arange(3), spec=fine)])
    peaks = []
    for steps in (100, 500):
        out = ("--out", tmp_path / f"{steps}.h5", "--out", tmp_path / f"{steps}.nc")
        given = ("rollout", source, "--model", model, "--level", 0.8, "--extend-bars")
        command = [sys.executable, "-c", _MEASURE, *map(str, (*given, "--steps", steps, *out))]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        peaks.append(int(done.stderr.rpartition("PEAK")[2]) / 1024)
    assert peaks[1] - peaks[0] < 20, peaks
