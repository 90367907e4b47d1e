"""The resume state: all that a run needs to go on as if it had never stopped, in one file.

``state.safetensors`` holds tensors under four prefixes and a JSON header:

    model/<name>                     weights and buffers
    mean/<name>                      running mean of the weights, where there is one
    optimizer/<parameter>/<moment>   moments, by parameter name
    rng/<generator>                  torch (CPU and GPU), numpy and python generators
    header                           format version, identity, seed, and the ``Progress``
    crc32                            checksum of the header and of all tensors

It is written beside its name, flushed to the disk and renamed, so a reader finds the old file or
the new one, whole, whenever the writer or the machine dies. What is damaged later, on the disk or
in a copy, does not agree with its checksum. Nothing is pickled.
"""

import json
import random
import zlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor

from pibert.data.partial import remove_leftovers, replace_file

FORMAT, VERSION = "pibert-state", 1
FILE = "state.safetensors"


@dataclass(frozen=True, kw_only=True)
class Progress:
    """How far a run has come."""

    epoch: int = 0
    """Epochs that are finished, logged and validated."""
    step: int = 0
    """Steps done in the epoch that is under way."""
    total: int = 0
    """Steps done since the start."""
    best_epoch: int = 0
    """The epoch of the best weights, the first is 1; 0: none yet."""
    best_value: float | None = None
    """The validation value that is best so far."""
    best_metrics: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.0
    """Time spent in the epoch that is under way."""
    logs: list[Any] = field(default_factory=list)
    """Log sums of the epoch that is under way, of each process (``journal.LogSums.to_plain``)."""


@dataclass(frozen=True, kw_only=True)
class State:
    """What a state file holds."""

    identity: str
    """A hash of all that must be the same when the run goes on."""
    seed: int
    progress: Progress
    model: Mapping[str, Tensor]
    mean: Mapping[str, Tensor] = field(default_factory=dict)
    optimizer: Mapping[str, Tensor] = field(default_factory=dict)
    generators: Mapping[str, Tensor] = field(default_factory=dict)


_PARTS = {"model": "model", "mean": "mean", "optimizer": "optimizer", "rng": "generators"}


def save_state(folder: Path, state: State) -> None:
    """Write the state whole or not at all.

    Raises:
        OSError: It could not be written, for instance for want of space. If there was one before,
            it is still there.
    """
    tensors = {
        f"{prefix}/{name}": tensor.detach()
        for prefix, part in _PARTS.items()
        for name, tensor in getattr(state, part).items()
    }
    header = {
        "format": FORMAT,
        "version": VERSION,
        "identity": state.identity,
        "seed": state.seed,
        "progress": asdict(state.progress),
    }
    write_tensors(folder / FILE, tensors, header)


def load_state(folder: Path, *, identity: str, seed: int) -> State | None:
    """The state of a folder, or None where there is none.

    Raises:
        ValueError: It is damaged, or belongs to another run.
    """
    path = folder / FILE
    remove_leftovers(path)
    if not path.exists():
        return None
    header, tensors = read_tensors(path)
    if header.get("format") != FORMAT or header.get("version") != VERSION:
        raise ValueError(
            f"{path} is a {header.get('format')} of version {header.get('version')}; this program "
            f"reads {FORMAT} of version {VERSION}; take the program that wrote it, or remove it to "
            "start anew"
        )
    for name, mine in (("identity", identity), ("seed", seed)):
        if header[name] != mine:
            raise ValueError(
                f"{folder} holds a run with another configuration ({name} {header[name]!r}, "
                f"expected {mine!r}); go on with the configuration it was started with, or take "
                "another folder"
            )
    parts: dict[str, dict[str, Tensor]] = {part: {} for part in _PARTS.values()}
    for place, tensor in tensors.items():
        prefix, _, name = place.partition("/")
        parts[_PARTS[prefix]][name] = tensor
    known = {entry.name for entry in fields(Progress)}
    progress = Progress(**{k: v for k, v in header["progress"].items() if k in known})
    return State(identity=identity, seed=seed, progress=progress, **parts)


def write_tensors(path: Path, tensors: Mapping[str, Tensor], header: Mapping[str, Any]) -> None:
    """Write a safetensors file with a JSON header: flushed to the disk, then renamed."""
    # Copies of their own: safetensors refuses tensors that share memory.
    whole = {
        name: tensor.to("cpu", copy=True, memory_format=torch.contiguous_format)
        for name, tensor in tensors.items()
    }
    # Written by hand rather than by save_file: a full disk is then a plain OSError.
    text = json.dumps(header)
    data = save(whole, metadata={"header": text, "crc32": _checksum(text, whole)})
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, data)


def read_tensors(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Header and tensors of a file of ``write_tensors``."""
    try:
        with safe_open(path, framework="pt", device="cpu") as file:
            found = file.metadata() or {}
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        text = found["header"]
        # States from before there were checksums have none.
        if "crc32" in found and found["crc32"] != _checksum(text, tensors):
            raise ValueError("its content does not agree with its checksum")
        return json.loads(text), tensors
    except (SafetensorError, KeyError, ValueError) as error:
        raise ValueError(
            f"{path} is damaged or not a file of a run ({error}); remove it to start anew; the "
            "best weights so far are in a file of their own, model.safetensors: copy it first to "
            "keep them"
        ) from None


def _checksum(header: str, tensors: Mapping[str, Tensor]) -> str:
    """Of the header's text and of names and bytes of the tensors, in the order of their names."""
    value = zlib.crc32(header.encode())
    for name, tensor in sorted(tensors.items()):
        value = zlib.crc32(name.encode(), value)
        value = zlib.crc32(tensor.reshape(-1).view(torch.uint8).numpy().data, value)
    return f"{value:08x}"


def generator_states(device: torch.device) -> dict[str, Tensor]:
    """The states of the process's random generators."""
    version, internal, spare = random.getstate()
    name, keys, position, has_gauss, cached = np.random.get_state(legacy=True)
    plain = {
        "python": [version, list(internal), spare],
        "numpy": [name, np.asarray(keys).tolist(), position, has_gauss, cached],
    }
    text = torch.tensor(list(json.dumps(plain).encode()), dtype=torch.uint8)
    states = {"python_and_numpy": text, "torch": torch.get_rng_state()}
    if device.type == "cuda":
        states["cuda"] = torch.cuda.get_rng_state(device)
    return states


def set_generator_states(states: Mapping[str, Tensor], device: torch.device) -> None:
    plain = json.loads(bytes(states["python_and_numpy"].tolist()))
    version, internal, spare = plain["python"]
    random.setstate((version, tuple(internal), spare))
    name, keys, position, has_gauss, cached = plain["numpy"]
    np.random.set_state((name, np.array(keys, dtype=np.uint32), position, has_gauss, cached))
    torch.set_rng_state(states["torch"])
    if device.type == "cuda" and "cuda" in states:
        torch.cuda.set_rng_state(states["cuda"], device)
