"""Models and the calibrations that are named for them."""

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from pibert.data.dataset import Window
from pibert.serve.limits import Limits
from pibert.serve.loading import load_served
from pibert.serve.models import Served
from pibert.trust import Settings, calibrate, save_calibration
from pibert.trust.artefact import SHEET
from pibert.trust.ensemble import Ensemble
from tests.serve.server_process import ServerProcess
from tests.trust.flows import flows, samples_of, saved


def loaded(names: list[Path], *calibrations: Path) -> dict[str, Served]:
    return load_served([str(name) for name in names], "cpu", Limits(), calibrations)


def test_a_calibration_that_is_named_goes_to_the_model_of_its_weights(models: Path):
    found = loaded([models / "wake", models / "bare"], models / "calibrated")
    assert found["wake"].trusted is None
    assert found["bare"].describe()["calibration"]["leads"] == 3


def test_one_beside_the_model_is_the_default_and_one_that_is_named_goes_before_it(
    models: Path, tmp_path: Path
):
    beside = loaded([models / "waves"])["waves"]
    assert beside.trusted.calibration.leads == 3
    found = calibrate(
        beside.predictor,
        samples_of(flows(4, seed=1), Window(history=2)),
        samples_of(flows(8, seed=2), Window(history=2, horizon=2)),
        Settings(leads=2, starts=2),
    )
    save_calibration(tmp_path, found, beside.predictor.spec.channels)
    assert loaded([models / "waves"], tmp_path)["waves"].trusted.calibration.leads == 2


def test_a_weights_file_has_the_calibration_beside_it_if_that_is_of_its_weights(
    models: Path, tmp_path: Path
):
    alone = loaded([models / "waves" / "model.safetensors"])["model"]
    assert alone.trusted.calibration.leads == 3
    other = shutil.copytree(models / "waves", tmp_path / "others")
    shutil.copy(models / "wake" / "model.safetensors", other / "wake.safetensors")
    assert loaded([other / "wake.safetensors"])["wake"].trusted is None


def test_a_calibration_of_no_model_that_is_served_is_refused(models: Path):
    with pytest.raises(
        ValueError, match=r"calibration.json: expected .*served \(wake .*serve that"
    ):
        loaded([models / "wake"], models / "calibrated")
    with pytest.raises(FileNotFoundError, match="pibert calibrate"):
        loaded([models / "wake"], models / "wake")


def test_two_calibrations_of_one_model_are_refused(models: Path, tmp_path: Path):
    copy = shutil.copytree(models / "calibrated", tmp_path / "again")
    with pytest.raises(ValueError, match="one of model bare, found two"):
        loaded([models / "bare"], models / "calibrated", copy)


def test_a_calibration_of_an_ensemble_goes_to_its_first_member(tmp_path: Path):
    members = [saved(tmp_path / name, seed=seed) for seed, name in enumerate(("one", "two"))]
    found = calibrate(
        Ensemble(members),
        samples_of(flows(4, seed=1), Window(history=2)),
        samples_of(flows(8, seed=2), Window(history=2, horizon=2)),
        Settings(difficulty="ensemble", leads=2, starts=2),
    )
    folder = tmp_path / "calibrated"
    folder.mkdir()
    save_calibration(folder, found, members[0].spec.channels, members=[tmp_path / "two"])
    served = loaded([tmp_path / "one"], folder)["one"]
    assert isinstance(served.trusted.predictor, Ensemble)
    sheet = json.loads((folder / SHEET).read_text())
    assert served.trusted.calibration.weights_sha256 == sheet["weights_sha256"]


def test_the_server_gives_bars_from_a_calibration_that_lies_elsewhere(alone: ServerProcess):
    (model,) = alone.client.get("/models").json()
    assert model["name"] == "bare" and model["calibration"]["leads"] == 3
    own = flows(1, seed=7)[0]
    body = {"fields": own.read(slice(0, 2)).tolist(), "parameters": dict(own.parameters)}
    answer = alone.client.post("/v1/step", json=body | {"level": 0.8}).json()
    low, high = (np.asarray(answer[name], float) for name in ("low", "high"))
    assert (high - low)[..., 0, 0].min() > 0 and answer["alarm"]["p"] > 0
