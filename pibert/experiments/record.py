"""What a run records of itself: the experiment, the data, versions, commit and machine."""

import contextlib
import fcntl
import importlib.metadata
import json
import os
import platform
import subprocess
from collections.abc import Iterator, Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

import torch

from pibert import __version__, config
from pibert.data.partial import partial_path, remove_leftovers
from pibert.experiments.experiment import Experiment

Stage = Literal["pretrain", "train"]


def record(
    experiment: Experiment, source: Mapping[str, Any], out: Path, stage: Stage, fabric: Any
) -> None:
    """Write config.json, or refuse a folder that holds another experiment, in all processes."""
    refusal = None
    if fabric.is_global_zero:
        try:
            _write_or_compare(experiment, source, out, stage, fabric)
        except (ValueError, OSError) as error:
            refusal = error
    if fabric.broadcast(refusal is not None):
        if refusal is not None:
            raise refusal
        raise SystemExit(2)  # the first process says why


def _write_or_compare(
    experiment: Experiment, source: Mapping[str, Any], out: Path, stage: Stage, fabric: Any
) -> None:
    path = out / "config.json"
    asked = {"experiment": config.as_plain(experiment), "stage": stage}
    if path.exists():
        there = read_record(path)
        known = {key: there.get(key) for key in asked}
        if known != asked:
            differences = "; ".join(_differences(known, asked))
            raise ValueError(
                f"{out} holds another experiment: {differences}; choose another folder, "
                "or remove this one"
            )
        if there.get("data") != source:
            raise ValueError(
                f"{out} was run on other data: {there.get('data')}, found {source}; choose "
                "another folder"
            )
        return
    if out.exists() and any(not entry.name.startswith(".") for entry in out.iterdir()):
        raise FileExistsError(f"{out} is not empty and no run; choose another folder")
    out.mkdir(parents=True, exist_ok=True)
    remove_leftovers(path)
    content = {
        **asked,
        "data": source,
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "versions": versions(),
        "commit": commit(),
        "hardware": _hardware(fabric),
    }
    temporary = partial_path(path)
    temporary.write_text(json.dumps(content, indent=2) + "\n")
    os.replace(temporary, path)


def read_record(path: Path) -> dict[str, Any]:
    try:
        content = json.loads(path.read_text())
        if not isinstance(content, dict) or "experiment" not in content:
            raise ValueError("no experiment in it")
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
def only_one(out: Path, is_first: bool) -> Iterator[None]:
    """One process (or group of them) at a time trains into a folder."""
    if not is_first:
        yield
        return
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
