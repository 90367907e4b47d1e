"""The files of a run folder: config.json, the lock, progress and learning curves."""

import contextlib
import importlib.metadata
import json
import os
import platform
import subprocess
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal, TypeVar, get_args

import torch

from pibert import __version__, config
from pibert.data.partial import lock, remove_leftovers, replace_file
from pibert.experiments.experiment import Experiment
from pibert.files import read_json
from pibert.training.journal import FILE, read_log

Stage = Literal["pretrain", "train"]
T = TypeVar("T")
PRETRAINING, TRAINING = "pretraining", "training"
FLOWS = "flows-"
"""How the names of files with flows that ``pibert.fit`` keeps in a run folder begin."""
"""The folder of the pretraining inside a training's; that of the training on single steps inside
that of a training on rollouts."""


def first_does(fabric: Any, work: Callable[[], T]) -> T | None:
    """Do something in the first process; if that fails, all processes stop.

    The first one raises the error, the others exit silently.
    """
    result, refusal = None, None
    if fabric.is_global_zero:
        try:
            result = work()
        except (ValueError, OSError) as error:
            refusal = error
    if fabric.broadcast(refusal is not None):
        raise refusal if refusal is not None else SystemExit(2)
    return result


def refuse_other(experiment: Experiment, out: Path, stage: Stage) -> None:
    """Refuse a folder that holds another experiment, or something that is not a run."""
    path = out / "config.json"
    if out.exists() and not out.is_dir():
        raise FileExistsError(f"{out} is a file; name a folder for the run")
    if not path.exists():
        begun = out.exists() and any(
            not entry.name.startswith((".", FLOWS)) for entry in out.iterdir()
        )
        if begun and not any((out / n / "config.json").exists() for n in (PRETRAINING, TRAINING)):
            raise FileExistsError(f"{out} is not empty and is not a run folder; choose another")
        return
    stored = read_config(path)
    # Settings that are new since it was stored have their defaults.
    known = config.parse(Experiment, stored["experiment"], str(path))
    former = {"experiment": config.as_plain(known), "stage": stored["stage"]}
    if different := _differences(former, _asked(experiment, stage)):
        raise ValueError(
            f"{out} holds another experiment: {different}; choose another folder, or remove this "
            "one"
        )


def write_config(
    experiment: Experiment, facts: Mapping[str, Any], out: Path, stage: Stage, fabric: Any
) -> None:
    """Write config.json, or refuse a folder that has another one.

    ``facts`` are what else must be the same when the run is resumed: ``data``, ``start``,
    ``schedule``.
    """
    path = out / "config.json"
    refuse_other(experiment, out, stage)
    if path.exists():
        stored = read_config(path)
        former = {key: stored.get(key, value) for key, value in facts.items()}
        if different := _differences(former, dict(facts)):
            raise ValueError(
                f"{out} was run with other data or another start: {different}; choose another "
                "folder"
            )
        return
    out.mkdir(parents=True, exist_ok=True)
    remove_leftovers(path)
    content = {
        **_asked(experiment, stage),
        **facts,
        "directory": os.getcwd(),
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": versions(),
        "commit": commit(),
        "hardware": _hardware(fabric),
    }
    replace_file(path, (json.dumps(content, indent=2) + "\n").encode())


def _asked(experiment: Experiment, stage: Stage) -> dict[str, Any]:
    return {"experiment": config.as_plain(experiment), "stage": stage}


def _differences(former: dict[str, Any], asked: dict[str, Any]) -> str:
    """Describe settings that differ, by dotted name; empty if there are none."""
    return "; ".join(
        f"{name.removeprefix('experiment.')} is {theirs!r} there and {mine!r} here"
        for name, theirs, mine in config.differences(former, asked)
        if not name.endswith(".logger")  # may change
    )


def read_config(path: Path) -> dict[str, Any]:
    """Return the content of a config.json."""
    try:
        content = read_json(path)
        if not isinstance(content, dict) or not {"experiment", "stage"} <= set(content):
            raise ValueError("expected an experiment and a stage in it")
        if not isinstance(content["experiment"], dict):
            raise ValueError("expected a table of settings as experiment")
        if content["stage"] not in get_args(Stage):
            raise ValueError(f"expected a stage of {', '.join(get_args(Stage))}")
        if not isinstance(content.get("directory", ""), str):
            raise ValueError("expected the path of a folder as directory")
    except ValueError as error:
        raise ValueError(
            f"{path}: not the config of a run ({error}); choose another folder"
        ) from None
    return content


def experiment_of(folder: Path) -> tuple[Experiment, Path]:
    """Return the experiment of a run, and the directory that its paths are relative to."""
    path = folder / "config.json"
    if not path.is_file():
        raise FileNotFoundError(
            f"{folder}: expected a run folder with config.json, which records the split of its "
            "flows, found none; any model can be used on flows that it has not seen: --data FILE"
        )
    recorded = read_config(path)
    started_in = Path(recorded.get("directory", "."))
    experiment = config.parse(Experiment, recorded["experiment"], str(path))
    return experiment, started_in if started_in.is_dir() else Path()


@contextlib.contextmanager
def only_one(out: Path) -> Iterator[None]:
    """Let one process, or group of them, at a time train into a folder."""
    with (out / ".lock").open("w") as file:
        try:
            lock(file.fileno())
        except BlockingIOError:
            raise ValueError(
                f"{out}: another process is training into this folder; wait for it, or choose "
                "another folder"
            ) from None
        yield


def versions() -> dict[str, str]:
    """Return the versions of the installed packages that decide the numbers."""
    installed = {"pibert": __version__, "python": platform.python_version()}
    for name in ("torch", "numpy", "lightning", "pytorch-lightning"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            installed[name] = importlib.metadata.version(name)
    return installed


def commit() -> str | None:
    """Return the commit of the checkout, marked if there are changes; None outside of one."""
    root = Path(__file__).parents[2]

    def git(*words: str) -> str:
        command = ["git", "-C", str(root), *words]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout

    with contextlib.suppress(OSError, subprocess.SubprocessError):
        top, head = git("rev-parse", "--show-toplevel", "HEAD").split()
        if Path(top) != root:
            return None  # installed inside somebody else's repository
        changed = git("status", "--porcelain", "--untracked-files=no")
        return head + ("+changes" if changed.strip() else "")
    return None


def _hardware(fabric: Any) -> dict[str, Any]:
    device = fabric.device
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor()
    return {
        "device": device.type,
        "name": name or platform.machine(),
        "processes": fabric.world_size,
        "cpu_count": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "system": platform.platform(),
    }


def unfinished(folder: Path) -> str | None:
    """Return a note if a run was stopped or is still training."""
    if not all((folder / name).is_file() for name in ("config.json", FILE)):
        return None  # not a run, or one of a model fitted in closed form
    schedule = read_config(folder / "config.json").get("schedule") or {}
    log = read_log(folder / FILE)
    lines = [line for line in log if line.get("kind") == "epoch"]
    epochs = _count(schedule, "epochs")
    if not lines or epochs is None or log[-1].get("kind") == "stopped":
        return None
    done, best = lines[-1]["epoch"], _count(lines[-1], "best_epoch") or 0
    patience = _count(schedule, "patience")
    if patience is not None and any(line.get("valid") for line in lines):
        validated = done - done % (_count(schedule, "validate_every") or 1)
        if validated - best >= patience:
            return None
    if done >= epochs:
        return None
    return (
        f"{folder}: this run is not finished, epoch {done} of {epochs}; these are its best weights "
        f"so far; resume it with: pibert resume {folder}"
    )


def _count(table: Any, name: str) -> int | None:
    """Return an integer of a file's table; None if there is none."""
    value = table.get(name) if isinstance(table, dict) else None
    return value if type(value) is int else None


def stage_logs(folder: Path) -> dict[str, list[dict[str, Any]]]:
    """Return the lines of the logs of a run by stage, in order."""
    before, last = {}, "training"
    if (folder / TRAINING).is_dir():
        before, last = stage_logs(folder / TRAINING), "rollouts"
    paths = {"pretraining": folder / PRETRAINING / FILE, last: folder / FILE}
    return before | {stage: read_log(path) for stage, path in paths.items() if path.exists()}


_NEXT_FRAME = {"pretraining": None, "training": "reconstruction", "rollouts": "first_step"}
"""The validation value of each stage that is the error of the next frame."""


def samples_of(start: Mapping[str, Any], line: Mapping[str, Any]) -> int | None:
    """Return the samples of an epoch, each as often as it calls the model; None: not known."""
    size = start.get("samples_per_epoch")  # None in logs of earlier versions
    return None if size is None else int(size) * int(line.get("calls", 1))


def curves_of(folder: Path) -> Iterator[dict[str, Any]]:
    """Return the epochs of a run in the order of training, pretraining first.

    ``samples`` and ``elapsed`` (seconds) count from the beginning of the run, pretraining included;
    a sample counts as often as it calls the model. Losses are of the objective; ``valid_error`` is
    the standardised mean squared error of the next frame on the validation split. None: not
    measured. ``best`` is 1 for the best epoch so far.
    """
    samples: int | None = 0
    elapsed = 0.0
    for stage, lines in stage_logs(folder).items():
        start: dict[str, Any] = next((line for line in lines if line.get("kind") == "start"), {})
        for line in (line for line in lines if line.get("kind") == "epoch"):
            seen = samples_of(start, line)
            samples = None if samples is None or seen is None else samples + seen
            elapsed += line.get("seconds") or 0.0
            train, valid = (line.get(split) or {} for split in ("train", "valid"))
            yield {
                "stage": stage,
                **{key: line.get(key) for key in ("epoch", "step", "learning_rate", "seconds")},
                "samples": samples,
                "train_loss": train.get("loss"),
                "valid_loss": valid.get("loss"),
                "valid_error": valid.get(_NEXT_FRAME[stage]),
                "elapsed": round(elapsed, 3),
                "best": int(bool(line.get("best"))),
            }
