"""Loggers: the numbers of the log at each of them, resumed runs, and failures that cost nothing."""

import csv
import json
import sys
from collections.abc import Mapping
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from pibert.config import identity, with_overrides
from pibert.training.loggers import RUN_IDS, Loggers, check_installed
from pibert.training.settings import FitConfig, LoggerChoice

SETTINGS = {"seed": 3, "training": {"epochs": 4}}


def record(epoch: int) -> dict[str, Any]:
    tables = {"train": {"loss": 1.0 / epoch}, "valid": {"loss": 2.0 / epoch}}
    return {"epoch": epoch, "step": 4 * epoch, "learning_rate": 1e-3, **tables}


def log_run(
    folder: Path, logger: LoggerChoice, *epochs: int, kept: int = 0, finished: bool = True
) -> list[str]:
    """Log epochs of a run that is resumed after ``kept`` of them; the notes."""
    notes: list[str] = []
    folder.mkdir(exist_ok=True)
    loggers = Loggers(logger, folder, SETTINGS, notes.append)
    loggers.open(4 * kept, [record(epoch + 1) for epoch in range(kept)])
    for epoch in epochs:
        loggers.write(record(epoch))
    loggers.close(finished=finished)
    return notes


class Recorder:
    """In place of a logger of Lightning: keeps what it is given."""

    made: list["Recorder"] = []
    fails: str = ""

    def __init__(self, **settings: Any) -> None:
        self.settings, self.status = settings, ""
        self.rows: dict[int, dict[str, float]] = {}
        self.hyperparams: Mapping[str, Any] = {}
        self.version = settings.get("run_id") or settings.get("id") or f"run{len(self.made)}"
        self.experiment = self
        self.made.append(self)
        self._may_fail("init")

    def _may_fail(self, what: str) -> None:
        if self.fails == what:
            raise ConnectionError(f"no answer\nto {what}")

    def log_hyperparams(self, params: Mapping[str, Any]) -> None:
        self.hyperparams = params

    def log_metrics(self, metrics: Mapping[str, float], step: int) -> None:
        self._may_fail("log")
        self.rows[step] = dict(metrics)

    def log(self, metrics: Mapping[str, float], step: int) -> None:
        self.log_metrics(metrics, step)

    def save(self) -> None: ...

    def finalize(self, status: str) -> None:
        self._may_fail("finalize")
        self.status = status

    def finish(self, code: int = 0) -> None:
        self.status = self.status or "success"


@pytest.fixture
def recorder(monkeypatch: pytest.MonkeyPatch) -> type[Recorder]:
    """Stand-ins for the packages mlflow, wandb and trackio, and Lightning's loggers of them."""
    contents: dict[str, dict[str, Any]] = {
        "lightning.pytorch.loggers": {"MLFlowLogger": Recorder, "WandbLogger": Recorder},
        "mlflow": {"get_tracking_uri": lambda: "sqlite:///mlflow.db"},
        "wandb": {},
        "trackio": {"init": Recorder},
    }
    for name, members in contents.items():
        module = ModuleType(name)
        module.__spec__ = ModuleSpec(name, None)
        vars(module).update(members)
        monkeypatch.setitem(sys.modules, name, module)
    for name in ("MLFLOW_EXPERIMENT_NAME", "WANDB_PROJECT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(Recorder, "made", [])
    monkeypatch.setattr(Recorder, "fails", "")
    return Recorder


def test_tensorboard_has_the_numbers_of_a_resumed_run(tmp_path: Path) -> None:
    reading = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")
    assert log_run(tmp_path, "auto", 1, 2) == []
    assert log_run(tmp_path, "tensorboard", 2, 3, kept=1) == []
    board = reading.EventAccumulator(str(tmp_path / "tensorboard"))
    board.Reload()
    found = {event.step: event.value for event in board.Scalars("loss/valid")}
    assert found == pytest.approx({4: 2.0, 8: 1.0, 12: 2 / 3})


def test_csv_has_the_numbers_of_a_resumed_run(tmp_path: Path) -> None:
    assert log_run(tmp_path, "csv", 1, 2) == []
    assert log_run(tmp_path, ("csv",), 2, 3, kept=1) == []
    with (tmp_path / "csv" / "metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [int(row["step"]) for row in rows] == [4, 8, 12]
    assert [float(row["loss/valid"]) for row in rows] == pytest.approx([2.0, 1.0, 2 / 3])


@pytest.mark.parametrize("name", ["mlflow", "wandb", "trackio"])
def test_a_service_gets_settings_and_numbers_and_is_closed(
    tmp_path: Path, recorder: type[Recorder], name: Any
) -> None:
    assert log_run(tmp_path / "jet", name, 1, 2) == []
    (made,) = recorder.made
    assert (made.hyperparams or made.settings["config"]) == SETTINGS
    assert "jet" in (made.settings.get("name"), made.settings.get("run_name"))
    assert made.rows[8] == {"learning_rate": 1e-3, "loss/train": 0.5, "loss/valid": 1.0}
    assert made.status == "success"


@pytest.mark.parametrize("name", ["mlflow", "wandb"])
def test_a_resumed_run_goes_to_the_same_run_of_a_service(
    tmp_path: Path, recorder: type[Recorder], name: Any
) -> None:
    log_run(tmp_path, name, 1, finished=False)
    log_run(tmp_path, name, 2, kept=1)
    log_run(tmp_path, name, 1)  # a new run in the folder
    first, second, third = recorder.made
    assert first.status == "failed"
    assert first.version == second.version != third.version
    assert json.loads((tmp_path / RUN_IDS).read_text()) == {name: third.version}


@pytest.mark.parametrize("fails", ["init", "log", "finalize"])
def test_a_logger_that_fails_is_noted_once_and_the_others_go_on(
    tmp_path: Path, recorder: type[Recorder], monkeypatch: pytest.MonkeyPatch, fails: str
) -> None:
    monkeypatch.setattr(recorder, "fails", fails)
    (note,) = log_run(tmp_path, ("wandb", "csv"), 1, 2, 3)
    assert "wandb" in note and "no answer to" in note
    assert len((tmp_path / "csv" / "metrics.csv").read_text().splitlines()) == 4


def test_no_logger_leaves_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log_run(tmp_path, "none", 1)
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    log_run(tmp_path, "auto", 1)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["tensorboard", "mlflow", "wandb", "trackio"])
def test_a_missing_package_is_named_with_its_command(
    monkeypatch: pytest.MonkeyPatch, name: Any
) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ImportError, match=f"pip install {name}"):
        check_installed(("csv", name))


def test_the_setting_takes_one_name_or_a_list(tmp_path: Path) -> None:
    assert with_overrides(FitConfig(), ["logger=[csv,wandb]"]).logger == ("csv", "wandb")
    assert with_overrides(FitConfig(), ["logger=none"]).logger == "none"
    with pytest.raises(ValueError, match="trackio"):
        with_overrides(FitConfig(), ["logger=tracker"])


def test_the_logger_does_not_change_the_identity_of_a_run() -> None:
    assert identity(FitConfig(logger="csv")) == identity(FitConfig())


@pytest.mark.slow
@pytest.mark.parametrize("name", ["mlflow", "wandb", "trackio"])
def test_the_installed_package_takes_a_resumed_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: Any
) -> None:
    database = f"sqlite:///{tmp_path}/mlflow.db"
    monkeypatch.setenv("MLFLOW_TRACKING_URI", database)
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("TRACKIO_DIR", str(tmp_path / "trackio"))
    pytest.importorskip(name)
    run = tmp_path / "jet"
    assert log_run(run, name, 1, finished=False) == log_run(run, name, 2, kept=1) == []
    if name == "mlflow":
        client = sys.modules["mlflow"].MlflowClient(database)
        number = json.loads((run / RUN_IDS).read_text())[name]
        history = client.get_metric_history(number, "loss/valid")
        assert {m.step: m.value for m in history} == {4: 2.0, 8: 1.0}
    elif name == "wandb":
        assert len(list(run.glob("wandb/offline-run-*/*.wandb"))) == 2
    else:
        assert len(sys.modules["trackio"].Api().runs("pibert")) == 1
