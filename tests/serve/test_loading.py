"""Models and their calibrations; start and end of a server."""

import json
import signal
from pathlib import Path

import httpx
import numpy as np
import pytest
from typer.testing import CliRunner

from pibert.cli import app
from pibert.data.dataset import Window
from pibert.inference import CalibratedPredictor, CalibrationSettings, calibrate, save_calibration
from pibert.inference.calibration_file import SHEET
from pibert.inference.ensemble import Ensemble
from pibert.serve.limits import Limits
from pibert.serve.models import Served, load_served
from tests.helpers import PATIENCE, refused
from tests.inference.flows import flows, samples_of, saved
from tests.inference.small import frames
from tests.serve.server_process import ServerProcess


def loaded(names: list[Path], *calibrations: Path) -> dict[str, Served]:
    return load_served([str(name) for name in names], "cpu", Limits(), calibrations)


def calibrated(served: Served) -> CalibratedPredictor:
    assert served.calibrated is not None
    return served.calibrated


def test_a_named_calibration_is_matched_by_weights(models: Path):
    found = loaded([models / "wake", models / "bare"], models / "calibrated")
    assert found["wake"].calibrated is None
    assert found["bare"].describe()["calibration"]["leads"] == 3


def test_a_calibration_of_no_model_that_is_served_is_refused(models: Path):
    with refused("calibration.json", "wake", "leave it out"):
        loaded([models / "wake"], models / "calibrated")
    with refused("pibert calibrate", error=FileNotFoundError):
        loaded([models / "wake"], models / "wake")


def test_the_calibration_of_an_ensemble_is_matched_to_its_first_member(tmp_path: Path):
    members = [saved(tmp_path / name, seed=seed) for seed, name in enumerate(("one", "two"))]
    found = calibrate(
        Ensemble(members),
        samples_of(flows(4, seed=1), Window(history=2)),
        samples_of(flows(8, seed=2), Window(history=2, horizon=2)),
        CalibrationSettings(difficulty="ensemble", leads=2, starts=2),
    )
    folder = tmp_path / "calibrated"
    folder.mkdir()
    save_calibration(folder, found, members[0].spec.channels, members=[tmp_path / "two"])
    served = loaded([tmp_path / "one"], folder)["one"]
    assert isinstance(calibrated(served).predictor, Ensemble)
    sheet = json.loads((folder / SHEET).read_text())
    assert calibrated(served).calibration.weights_sha256 == sheet["weights_sha256"]
    damaged = tmp_path / "two" / "model.safetensors"
    data = bytearray(damaged.read_bytes())
    data[-1] ^= 1
    damaged.write_bytes(data)
    with refused("two", "damaged"):
        loaded([tmp_path / "one"], folder)


def test_the_server_uses_a_calibration_from_another_folder(alone: ServerProcess):
    (model,) = alone.client.get("/models").json()
    assert model["name"] == "bare" and model["calibration"]["leads"] == 3
    own = flows(1, seed=7)[0]
    body = {"fields": own.read(slice(0, 2)).tolist(), "parameters": dict(own.parameters)}
    answer = alone.client.post("/v1/step", json=body | {"level": 0.8}).json()
    low, high = (np.asarray(answer[name], float) for name in ("low", "high"))
    assert (high - low)[..., 0, 0].min() > 0 and answer["ood"]["p"] > 0


def test_a_rollout_under_way_is_finished_after_sigterm(models: Path):
    server = ServerProcess([models / "wake", "--wait", 0]).wait_until_ready()
    body = {"fields": frames(1).tolist(), "steps": 60}
    with server.client.stream("POST", "/v1/rollout", json=body) as answer:
        lines = answer.iter_lines()
        first = json.loads(next(lines))
        server.process.send_signal(signal.SIGTERM)
        rest = [json.loads(line) for line in lines]
    assert first["start"] == 0 and len(rest) == 60
    assert rest[-1] == {"end": True, "frames": 60}
    assert server.process.wait(PATIENCE) == 0
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"http://127.0.0.1:{server.port}/health")
    server.stop()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nowhere"], "nowhere"),
        (["wake", "--body", "10", "--memory", "100"], "--memory: expected at least 32 times"),
        (["wake", "--token-file", "short"], "at least 8"),
    ],
)
def test_wrong_options_are_refused_in_one_line(
    models: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], words: str
):
    monkeypatch.chdir(models)
    (models / "short").write_text("abc\n")
    done = CliRunner().invoke(app, ["serve", *arguments])
    assert done.exit_code == 2 and words in " ".join(done.stderr.split())
