"""Loggers beside ``log.jsonl``: TensorBoard, CSV, MLflow, Weights & Biases and trackio.

The setting ``training.logger`` chooses them. All but trackio are those of Lightning. They get the
same numbers, ``loss/train``, ``loss/valid``, ``learning_rate`` ..., after an epoch. One that
fails is reported once and left out: the training continues.
"""

import importlib
import json
import math
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from pibert.files import read_json
from pibert.training.processes import find_fabric
from pibert.training.settings import LoggerChoice

RUN_IDS = "loggers.json"
"""The file with the numbers of the runs at MLflow and Weights & Biases, to resume them."""
PROJECT = "pibert"


def check_installed(logger: LoggerChoice) -> None:
    """Raise ImportError if a logger needs a package that is not installed."""
    for name in _names(logger):
        if name != "csv" and find_spec(name) is None:
            raise ImportError(
                f"training.logger={name} needs the package {name}, which is not installed: "
                f"pip install {name}"
            )


def _names(logger: LoggerChoice) -> tuple[str, ...]:
    """The loggers that a setting stands for."""
    if logger == "auto":
        return ("tensorboard",) if find_spec("tensorboard") else ()
    if logger == "none":
        return ()
    return (logger,) if isinstance(logger, str) else tuple(dict.fromkeys(logger))


class Loggers:
    """The loggers of a run; only the first process has them."""

    def __init__(
        self,
        logger: LoggerChoice,
        folder: Path,
        settings: Mapping[str, Any],
        say: Callable[[str], None],
    ) -> None:
        self._folder, self._settings, self._say = folder, settings, say
        self._makers: dict[str, Callable[[int, str | None], Any]] = {
            "tensorboard": self._tensorboard,
            "csv": self._csv,
            "mlflow": self._mlflow,
            "wandb": self._wandb,
            "trackio": self._trackio,
        }
        self._names = _names(logger)
        self._open: dict[str, Any] = {}

    def open(self, step: int, lines: Iterable[Mapping[str, Any]]) -> None:
        """Open the loggers at a step; ``lines`` are those of the epochs before it."""
        ids: dict[str, str] = {}
        with suppress(OSError, ValueError):
            ids = read_json(self._folder / RUN_IDS) if step else {}
        for name in self._names:
            with self._left_out_on_error(name):
                self._make(name, step, ids)
        with self._left_out_on_error("csv"):
            for line in lines if "csv" in self._open else ():
                self._log("csv", line)

    def _make(self, name: str, step: int, ids: dict[str, str]) -> None:
        self._open[name] = logger = self._makers[name](step, ids.get(name))
        if name in ("mlflow", "wandb"):
            logger.log_hyperparams(self._settings)
            if ids.get(name) != logger.version:
                ids[name] = logger.version
                (self._folder / RUN_IDS).write_text(json.dumps(ids) + "\n", encoding="utf-8")

    def write(self, record: Mapping[str, Any]) -> None:
        """Log the numbers of an epoch."""
        for name in tuple(self._open):
            with self._left_out_on_error(name):
                self._log(name, record)

    def close(self, *, finished: bool) -> None:
        """Close the loggers of a run that is finished, or may be resumed."""
        for name in tuple(self._open):
            with self._left_out_on_error(name):
                self._finish(name, "success" if finished else "failed")
        self._open.clear()

    def _log(self, name: str, record: Mapping[str, Any]) -> None:
        numbers = {"learning_rate": record["learning_rate"]}
        for split in ("train", "valid"):
            for value, number in (record.get(split) or {}).items():
                numbers[f"{value}/{split}"] = math.nan if number is None else number
        self._open[name].log_metrics(numbers, record["step"])
        self._open[name].save()

    def _finish(self, name: str, status: str) -> None:
        self._open[name].finalize(status)
        if name == "wandb":
            self._open[name].experiment.finish(0 if status == "success" else 1)

    @contextmanager
    def _left_out_on_error(self, name: str) -> Iterator[None]:
        try:
            yield
        except Exception as error:  # of another program: a network, a full disk, a closed account
            cause = error.__cause__ or error  # Lightning reports a full disk as a wrong number
            text = " ".join(str(cause).split())[:300]
            self._say(
                f"logger {name}: {type(cause).__name__}: {text}; training continues without it"
            )
            failed = self._open.pop(name, None)
            with suppress(Exception):
                failed.finalize("failed")

    # Makers take the step that the run is resumed from, or 0, and its number there, if known.

    def _tensorboard(self, step: int, _: str | None) -> Any:
        kind = find_fabric().loggers.TensorBoardLogger
        purge = step + 1 if step else None
        return kind(self._folder, name="", version="tensorboard", purge_step=purge)

    def _csv(self, step: int, _: str | None) -> Any:
        # It begins anew, and gets the epochs before the step again.
        (self._folder / "csv" / "metrics.csv").unlink(missing_ok=True)
        return find_fabric().loggers.CSVLogger(self._folder, name="", version="csv")

    def _mlflow(self, step: int, number: str | None) -> Any:
        mlflow = importlib.import_module("mlflow")
        return _lightning_loggers().MLFlowLogger(
            experiment_name=os.environ.get("MLFLOW_EXPERIMENT_NAME", PROJECT),
            run_name=self._folder.name,
            tracking_uri=mlflow.get_tracking_uri(),
            run_id=number,
        )

    def _wandb(self, step: int, number: str | None) -> Any:
        return _lightning_loggers().WandbLogger(
            project=os.environ.get("WANDB_PROJECT", PROJECT),
            name=self._folder.name,
            save_dir=self._folder,
            id=number,
        )

    def _trackio(self, step: int, _: str | None) -> Any:
        return _Trackio(
            project=PROJECT,
            name=self._folder.name,
            config=dict(self._settings),
            resume="allow" if step else "never",
            embed=False,
        )


class _Trackio:
    """Trackio with the methods of Lightning's loggers that are used here."""

    def __init__(self, **settings: Any) -> None:
        self._run = importlib.import_module("trackio").init(**settings)

    def log_metrics(self, metrics: Mapping[str, float], step: int) -> None:
        self._run.log(dict(metrics), step=step)

    def save(self) -> None: ...

    def finalize(self, status: str) -> None:
        self._run.finish()


def _lightning_loggers() -> Any:
    """Those that Fabric lacks; importing them takes seconds."""
    whole = find_fabric().__name__.replace("lightning_fabric", "pytorch_lightning")
    return importlib.import_module(f"{whole.replace('.fabric', '.pytorch')}.loggers")
