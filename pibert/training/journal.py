"""The log of a run: means of logged values and a JSON line per epoch.

``log.jsonl`` has a first line of kind "start" and a line of kind "epoch" for every epoch (and one
of kind "stopped" if a stage ended before its last epoch, with the reason):

    {"kind": "epoch", "epoch": 1, "step": 57, "learning_rate": 1.7e-05, "train": {"loss": ...},
     "valid": {"loss": ...}, "best": true, "seconds": 0.6, "samples_per_second": 24000.0}

Epochs count from 1, steps from the start of the run. The validation of a model that predicts frames
has the error of persistence on the same frames and the skill relative to it. A value that is not
finite is null. A resumed run drops the lines of epochs that its state does not contain and writes
them again, so except for times the finished log equals that of an uninterrupted run.
"""

import json
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from pibert.data.partial import remove_leftovers, replace_file
from pibert.files import parse_json, read_text

FILE = "log.jsonl"


class LogSums:
    """Sums over samples of an objective's values, kept on the device.

    One kernel adds the values of a piece; each set of names has its own sums.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        # MPS has no float64.
        self._dtype = torch.float32 if device.type == "mps" else torch.float64
        self._sums: dict[tuple[str, ...], Tensor] = {}
        self._counts: dict[tuple[str, ...], int] = {}

    def add(self, loss: Tensor, logs: Mapping[str, Tensor], samples: int) -> None:
        """Add means over some samples."""
        values = {**logs, "loss": loss}
        column = torch.stack([value.detach() for value in values.values()])
        self._add(tuple(values), column, samples, samples)

    def to_plain(self) -> list[Any]:
        """[names, samples, sums] of each set of names, as plain JSON, exact."""
        return [
            [list(names), self._counts[names], sums.tolist()] for names, sums in self._sums.items()
        ]

    def load(self, plain: Iterable[Any]) -> None:
        """Restore the result of ``to_plain``, perhaps of several processes."""
        self._sums.clear()
        self._counts.clear()
        for names, count, sums in plain:
            column = torch.tensor(sums, dtype=self._dtype, device=self._device)
            self._add(tuple(names), column, 1, count)

    def _add(self, names: tuple[str, ...], column: Tensor, factor: int, samples: int) -> None:
        if names not in self._sums:
            self._sums[names] = torch.zeros_like(column, dtype=self._dtype)
            self._counts[names] = 0
        self._sums[names].add_(column, alpha=factor)
        self._counts[names] += samples


def means(sums_of: Sequence[list[Any]]) -> dict[str, float]:
    """Means over the samples of all processes, from the result of ``to_plain`` in each."""
    sums: dict[str, float] = {}
    counts: dict[str, int] = {}
    for process in sums_of:
        for names, count, values in process:
            for name, value in zip(names, values, strict=True):
                sums[name] = sums.get(name, 0.0) + value
                counts[name] = counts.get(name, 0) + count
    ordered = ["loss"] + [name for name in sums if name != "loss"]
    return {name: sums[name] / counts[name] for name in ordered if counts.get(name)}


def with_skill(values: dict[str, float]) -> dict[str, float]:
    """Add the skill, 1 - reconstruction / persistence, if both are logged."""
    if not values.get("persistence") or "reconstruction" not in values:
        return values
    return {**values, "skill": 1 - values["reconstruction"] / values["persistence"]}


class Journal:
    """The log file of a run folder; a full disk does not stop the run."""

    def __init__(self, folder: Path, say: Callable[[str], None]) -> None:
        self._path, self._say = folder / FILE, say

    def open(self, start: Mapping[str, Any], *, epochs: int, step: int) -> list[dict[str, Any]]:
        """Keep the lines up to a number of epochs, and return them; start a new log without any."""
        remove_leftovers(self._path)
        lines = read_log(self._path) if step and self._path.exists() else []
        lines = [line for line in lines if line.get("kind") != "stopped"]
        kept = [line for line in lines if line.get("epoch", 0) in range(epochs + 1)]
        if missing := epochs - len({line["epoch"] for line in kept if "epoch" in line}):
            self._say(
                f"{self._path} was removed or cut: {missing} of the {epochs} finished epochs are "
                "missing in it and in the curves"
            )
        if not any(line.get("kind") == "start" for line in kept):
            kept = [{"kind": "start", **start}, *kept]
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            replace_file(self._path, "".join(_line(entry) for entry in kept).encode())
        except OSError as error:
            self._report(error)
        return [line for line in kept if line.get("kind") == "epoch"]

    def write(self, record: Mapping[str, Any]) -> None:
        """Append a line."""
        try:
            self._append(_line(record).encode())
        except OSError as error:
            self._report(error)

    def _append(self, data: bytes) -> None:
        """Write a line, or remove what was written of it, so that every line stays whole."""
        with self._path.open("ab", buffering=0) as file:
            size = file.tell()
            try:
                if file.write(data) != len(data):
                    raise OSError("the line was not written completely")
                os.fsync(file.fileno())
            except OSError:
                with suppress(OSError):
                    file.truncate(size)
                raise

    def _report(self, error: OSError) -> None:
        self._say(f"could not write {self._path}: {error.strerror or error}; training continues")


def read_log(path: Path) -> list[dict[str, Any]]:
    """The lines of a log, without damaged and incomplete ones."""
    lines = []
    for text in read_text(path, errors="replace").splitlines():
        with suppress(ValueError):
            entry = parse_json(text)
            if isinstance(entry, dict) and _is_whole(entry):
                lines.append(entry)
    return lines


def _is_whole(entry: Mapping[str, Any]) -> bool:
    """Whether the line of an epoch has its number and tables."""
    if entry.get("kind") != "epoch" and "epoch" not in entry:
        return True
    tables = (entry.get(split) or {} for split in ("train", "valid"))
    return type(entry.get("epoch")) is int and all(isinstance(table, dict) for table in tables)


def _line(record: Mapping[str, Any]) -> str:
    return json.dumps(_finite(record), allow_nan=False) + "\n"


def _finite(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _finite(entry) for key, entry in value.items()}
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
