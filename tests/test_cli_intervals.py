"""``--level`` of ``pibert predict`` and ``rollout``: intervals in every file, OOD warning."""

import json
from dataclasses import replace
from pathlib import Path

import h5py
import numpy as np
import pytest
import torch
import xarray

import pibert.inference
from pibert.data.dataset import Window
from pibert.data.format import Reader, check, write
from pibert.inference import CalibrationSettings, calibrate, save_calibration
from tests.command import Word, refusal, well
from tests.data.writers.helpers import image
from tests.inference.flows import BODY, SHAPE, flows, samples_of, saved

LEADS = 3
FLUID = ~BODY


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small model with its calibration beside it."""
    folder = tmp_path_factory.mktemp("model") / "waves"
    predictor = saved(folder)
    found = calibrate(
        predictor,
        samples_of(flows(8, seed=1), Window(history=2)),
        samples_of(flows(30, seed=2), Window(history=2, horizon=LEADS)),
        CalibrationSettings(leads=LEADS, starts=4),
    )
    save_calibration(folder, found, predictor.spec.channels)
    return folder


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("data") / "wave.h5"
    write(path, flows(1, seed=9))
    return path


def test_intervals_are_written_to_every_format(tmp_path: Path, model: Path, source: Path) -> None:
    names = ("r.h5", "r.nc", "r.pvd", "r.xdmf", "r.png", "r.gif")
    outs = [part for name in names for part in ("--out", tmp_path / name)]
    well("rollout", source, "--model", model, "--steps", LEADS, "--level", 0.8, *outs)
    recorded = Reader(source)[0]
    expected = pibert.inference.load_calibrated(model).rollout(
        recorded.read(slice(0, 2))[None], LEADS, dict(recorded.parameters), level=0.8
    )
    low, high = (end[0].numpy() for end in (expected.intervals.low, expected.intervals.high))
    check(tmp_path / "r.h5")
    native = Reader(tmp_path / "r.h5")[0]
    assert native.spec.channels == ("u", "v", "u_low", "u_high", "v_low", "v_high")
    shown = torch.where(FLUID, expected.fields[0], torch.nan)
    torch.testing.assert_close(native.read()[:, :2], shown, rtol=0, atol=0, equal_nan=True)
    np.testing.assert_array_equal(native.read()[:, 2].numpy(), low[:, 0])
    np.testing.assert_array_equal(native.read()[:, 5].numpy(), high[:, 1])
    assert torch.equal(native.known(), FLUID.expand(LEADS, *SHAPE))
    with xarray.open_dataset(tmp_path / "r.nc") as found:
        np.testing.assert_array_equal(found.v_low.values, low[:, 1])
        np.testing.assert_array_equal(found.u.values, native.read()[:, 0].numpy())
        assert found.u.attrs["ancillary_variables"] == "u_low u_high"
        assert "80 %" in found.u_high.attrs["long_name"]
    _, arrays = image(tmp_path / "r_frames" / "frame_000002.vti", SHAPE)
    np.testing.assert_array_equal(arrays["u_high"], high[2, 0])
    assert arrays["velocity"].shape == (*SHAPE, 3)
    with h5py.File(tmp_path / "r.xdmf.h5") as file:
        np.testing.assert_array_equal(file["v_high"][...], high[:, 1])
    assert 'Name="v_high"' in (tmp_path / "r.xdmf").read_text()
    for picture in ("r.png", "r.gif"):
        assert (tmp_path / picture).stat().st_size > 1000


def test_every_prediction_of_the_next_frame_has_intervals(
    tmp_path: Path, model: Path, source: Path
) -> None:
    out = tmp_path / "next.h5"
    given = ("predict", source, "--model", model, "--level", 0.9, "--out", out)
    result = well(*given, "--false-alarms", 0.2, "--json")
    summary, recorded = json.loads(result.stdout), Reader(source)[0]
    fields = recorded.read()
    windows = torch.stack([fields[i : i + 2] for i in range(len(fields) - 1)])
    expected = pibert.inference.load_calibrated(model).rollout(
        windows, 1, dict(recorded.parameters), level=0.9
    )
    high = expected.intervals.high[:, 0]
    torch.testing.assert_close(Reader(out)[0].read()[:, 3], high[:, 0], equal_nan=True)
    truth, low, high = fields[2:], expected.intervals.low[:-1, 0], high[:-1]
    inside = ((low <= truth) & (truth <= high))[..., FLUID].double().mean((0, 2))
    assert summary["scores"]["coverage"]["v"] == pytest.approx(float(inside[1]), abs=1e-3)
    assert summary["intervals"]["level"] == 0.9
    assert "22 trajectories" in summary["intervals"]["rests_on"]
    output = summary["intervals"]["ood"]
    assert [window["frame"] for window in output["windows"]] == list(range(1, 12))
    assert output["windows"][0]["p"] == pytest.approx(float(expected.ood.p[0]))
    assert all(window["flagged"] == (window["p"] <= 0.2) for window in output["windows"])
    text = " ".join(well(*given, "--overwrite").stdout.split())
    assert "Intervals of level 0.9 contain" in text


def test_the_ood_warning_is_on_stderr_and_in_json(
    tmp_path: Path, model: Path, source: Path
) -> None:
    given = ("--model", model, "--steps", 2, "--level", 0.8, "--out", tmp_path / "a.h5")
    sound = well("rollout", source, *given)
    assert "in distribution: p = " in sound.stderr and "distribution" not in sound.stdout
    recorded = Reader(source)[0]
    odd = tmp_path / "odd.h5"
    write(odd, [replace(recorded, states=8 * recorded.read())])
    raised = well("rollout", odd, *given, "--overwrite", "--json")
    assert "out of distribution: 1 of 1 inputs are unlike the training data (p = " in raised.stderr
    notes = json.loads(raised.stdout)["notes"]
    assert [note["severity"] for note in notes if note["code"] == "ood"] == ["warning"]
    output = json.loads(raised.stdout)["intervals"]["ood"]
    (window,) = output["windows"]
    assert output["flagged"] == 1 and window["flagged"] and window["p"] <= output["rate"] == 0.05
    assert window["reason"] in raised.stderr and window["frame"] == 1


def test_evaluation_of_rollouts_scores_the_intervals_by_lead_time(
    tmp_path: Path, model: Path
) -> None:
    data = tmp_path / "many.h5"
    write(data, flows(3, seed=5))
    words = ("evaluate", model, "--data", data, "--out", tmp_path / "scores", "--rollout", LEADS)
    assert "Prediction intervals of level 0.9" in well(*words).output
    found = json.loads(well(*words, "--json").stdout)["rollout_intervals"]
    names = [(entry["metric"], entry["component"]) for entry in found["entries"]]
    assert found["steps"] == LEADS and len(found["values"]) == LEADS
    for row in found["values"]:
        assert 0.5 < row[names.index(("coverage", "all"))] <= 1
        assert row[names.index(("crps", "u"))] > 0


def test_coverage_is_not_measured_on_the_flows_that_calibrated(tmp_path: Path) -> None:
    folder, data, out = tmp_path / "model", tmp_path / "many.h5", tmp_path / "scores"
    saved(folder)
    write(data, flows(12, seed=6))
    well("calibrate", folder, "--data", data, "--leads", 2, "--out", folder)
    data = data.rename(tmp_path / "renamed.h5")  # the same flows still
    result = well("evaluate", folder, "--data", data, "--out", out, "--rollout", 2, "--json")
    assert json.loads(result.stdout)["rollout_intervals"] is None
    assert "calibrated the intervals" in " ".join(result.stderr.split())


def test_a_calibration_too_small_to_flag_does_not_report_in_distribution(
    tmp_path: Path, model: Path, source: Path
) -> None:
    few = tmp_path / "few"
    found = calibrate(
        saved(few),
        samples_of(flows(8, seed=1), Window(history=2)),
        samples_of(flows(12, seed=2), Window(history=2, horizon=LEADS)),
        CalibrationSettings(leads=LEADS, starts=4, units="trajectories"),
    )
    save_calibration(few, found, ("u", "v"))
    given = ("rollout", source, "--model", few, "--steps", 2, "--level", 0.6)
    result = well(*given, "--json", "--out", tmp_path / "a.h5")
    output = " ".join(result.stderr.split())
    assert "no input can be flagged" in output and "in distribution: " not in output
    assert json.loads(result.stdout)["intervals"]["ood"]["can_be_flagged"] is False
    rate = float(output.partition("accept a rate of ")[2].split()[0])
    assert rate >= 1 / (found.count + 1) > 0.05
    flagged = well(*given, "--false-alarms", rate, "--json", "--out", tmp_path / "b.h5")
    assert "can be flagged" not in flagged.stderr
    assert json.loads(flagged.stdout)["intervals"]["ood"]["can_be_flagged"]
    out = ("--out", tmp_path / "c.h5")
    assert f"from {rate:g}" in refusal(*given, *out, "--false-alarms", 0.01)
    assert not (tmp_path / "c.h5").exists()


def test_uncalibrated_steps_need_extend_intervals(
    tmp_path: Path, model: Path, source: Path
) -> None:
    out = tmp_path / "a.h5"
    given = ("rollout", source, "--model", model, "--steps", 5, "--level", 0.8, "--out", out)
    output = refusal(*given)
    assert "at most 3 with intervals" in output and "pibert calibrate --leads 5" in output
    assert "--extend-intervals" in output and not out.exists()
    result = well(*given, "--extend-intervals")
    assert "too narrow" in result.stderr
    assert bool(Reader(out)[0].read()[4, 2][FLUID].isfinite().all())
    well(*given[:4], "--level", 0.8, "--out", tmp_path / "b.h5")
    assert Reader(tmp_path / "b.h5")[0].num_frames == 3  # as many as have intervals


def test_level_without_a_calibration_is_refused_with_the_remedy(
    tmp_path: Path, model: Path, source: Path
) -> None:
    bare, out = tmp_path / "bare", tmp_path / "a.h5"
    bare.mkdir()
    for name in ("model.safetensors", "model.json"):
        (bare / name).write_bytes((model / name).read_bytes())
    given = ("rollout", source, "--model", bare, "--steps", 2, "--out", out)
    elsewhere = ("--calibration", model)
    refusals: dict[tuple[Word, ...], str] = {
        ("--level", 0.8): "pibert calibrate",
        elsewhere: "goes with --level",
        (*elsewhere, "--level", 90): "between 0 and 1",
        (*elsewhere, "--level", 0.999): "0.999",
    }
    for words, named in refusals.items():
        assert named in refusal(*given, *words)
    well(*given, "--level", 0.8, *elsewhere)
    assert Reader(out)[0].source["interval_level"] == 0.8
