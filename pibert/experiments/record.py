"""What a run records of itself: the experiment, the data, versions, commit and machine."""

import contextlib
import fcntl
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
from pibert.data.partial import remove_leftovers, replace_file
from pibert.experiments.experiment import Experiment
from pibert.textfiles import read_json

Stage = Literal["pretrain", "train"]
T = TypeVar("T")


def first_does(fabric: Any, work: Callable[[], T]) -> T | None:
    """Let the first process do something; where that fails, none of them goes on.

    The first one raises the error, the others end without a word.
    """
    made, refusal = None, None
    if fabric.is_global_zero:
        try:
            made = work()
        except (ValueError, OSError) as error:
            refusal = error
    if fabric.broadcast(refusal is not None):
        raise refusal if refusal is not None else SystemExit(2)
    return made


def refuse_other(experiment: Experiment, out: Path, stage: Stage) -> None:
    """Refuse a folder that holds another experiment, or something that is no run."""
    path = out / "config.json"
    if out.exists() and not out.is_dir():
        raise FileExistsError(f"{out} is a file; name a folder for the run")
    if not path.exists():
        begun = out.exists() and any(not entry.name.startswith(".") for entry in out.iterdir())
        if begun and not (out / "pretraining" / "config.json").exists():
            raise FileExistsError(f"{out} is not empty and no run; choose another folder")
        return
    there, asked = read_record(path), _asked(experiment, stage)
    # As it reads today: settings that are new since have their defaults.
    stored = config.parse(Experiment, there["experiment"], str(path))
    known = {"experiment": config.as_plain(stored), "stage": there["stage"]}
    if known != asked:
        differences = "; ".join(_differences(known, asked))
        raise ValueError(
            f"{out} holds another experiment: {differences}; choose another folder, "
            "or remove this one"
        )


def record(
    experiment: Experiment,
    facts: Mapping[str, Any],
    out: Path,
    stage: Stage,
    fabric: Any,
) -> None:
    """Write config.json when all parts of a run have been made, or refuse other data.

    Args:
        experiment: What is done.
        facts: What else must be the same when the run goes on: ``data``, ``start``, ``schedule``.
        out: The run folder.
        stage: Of the experiment.
        fabric: Tells the hardware.
    """
    path = out / "config.json"
    refuse_other(experiment, out, stage)
    if path.exists():
        recorded = read_record(path)
        there = {key: recorded.get(key, value) for key, value in facts.items()}
        if there != facts:
            differences = "; ".join(_differences(there, dict(facts)))
            raise ValueError(
                f"{out} was run with other data or another start: {differences}; choose another "
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


def read_record(path: Path) -> dict[str, Any]:
    """The content of a config.json."""
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
            f"{path}: not the record of a run ({error}); choose another folder"
        ) from None
    return content


def _differences(there: Any, asked: Any, where: str = "") -> Iterator[str]:
    """Settings that differ, by dotted name."""
    if isinstance(there, dict) and isinstance(asked, dict):
        for key in sorted({*there, *asked}):
            name = f"{where}.{key}" if where else key
            yield from _differences(there.get(key), asked.get(key), name)
    elif there != asked:
        yield f"{where.removeprefix('experiment.')} is {there!r} there and {asked!r} here"


@contextlib.contextmanager
def only_one(out: Path) -> Iterator[None]:
    """One process, or group of them, at a time trains into a folder."""
    with (out / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise ValueError(
                f"{out}: another process is training into this folder; wait for it, or choose "
                "another folder"
            ) from None
        yield


def versions() -> dict[str, str]:
    """Of the packages that decide the numbers, as far as they are installed."""
    found = {"pibert": __version__, "python": platform.python_version()}
    for name in ("torch", "numpy", "lightning", "pytorch-lightning"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found


def commit() -> str | None:
    """The commit of the checkout that runs, marked where it was changed; None outside of one."""
    root = Path(__file__).parents[2]
    git = ["git", "-C", str(root)]
    with contextlib.suppress(OSError, subprocess.SubprocessError):
        top = subprocess.run(
            [*git, "rev-parse", "--show-toplevel", "HEAD"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout.split()
        if Path(top[0]) != root:
            return None  # installed inside somebody else's repository
        changed = subprocess.run(
            [*git, "status", "--porcelain", "--untracked-files=no"],
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        return top[1] + ("+changes" if changed.strip() else "")
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
