"""The state of a run: all that it needs to resume exactly, in one file.

``state.safetensors`` holds tensors under four prefixes and a JSON header:

    model/<name>                     weights and buffers
    mean/<name>                      running mean of the weights, if there is one
    optimizer/<parameter>/<moment>   moments, by parameter name
    rng/<generator>                  torch (CPU and GPU), numpy and python generators
    header                           format version, identity, seed, and the ``Progress``
    crc32                            checksum of the header and of all tensors

It is written under another name, flushed to the disk and renamed, so a reader finds the old file or
the new one, whole, whenever the writer or the machine dies. If a file is damaged later, its
checksum does not match, and the run resumes from ``state-previous.safetensors``, the state saved
before. Nothing is pickled.
"""

import errno
import json
import random
import zlib
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from types import NoneType
from typing import Any

import numpy as np
import torch
from safetensors.torch import save
from torch import Tensor

from pibert.data.partial import remove_leftovers, replace_file
from pibert.tensorfiles import read_safetensors
from pibert.textfiles import parse_json

FORMAT, VERSION = "pibert-state", 1
FILE, PREVIOUS = "state.safetensors", "state-previous.safetensors"
"""The last state of a run, and the one before it."""


@dataclass(frozen=True, kw_only=True)
class Progress:
    """The progress of a run."""

    epoch: int = 0
    """Finished epochs, logged and validated."""
    step: int = 0
    """Steps done in the current epoch."""
    total: int = 0
    """Steps done since the start."""
    best_epoch: int = 0
    """The epoch of the best weights, the first is 1; 0: none yet."""
    best_value: float | None = None
    """The best validation value so far."""
    best_metrics: dict[str, float] = field(default_factory=dict)
    seconds: float = 0.0
    """Time spent in the current epoch."""
    logs: list[Any] = field(default_factory=list)
    """Log sums of the current epoch, of each process (``journal.LogSums.to_plain``)."""


@dataclass(frozen=True, kw_only=True)
class State:
    """The content of a state file."""

    identity: str
    """A hash of all that must be the same when the run is resumed."""
    seed: int
    progress: Progress
    model: Mapping[str, Tensor]
    mean: Mapping[str, Tensor] = field(default_factory=dict)
    optimizer: Mapping[str, Tensor] = field(default_factory=dict)
    generators: Mapping[str, Tensor] = field(default_factory=dict)
    path: Path | None = None
    """The file it was read from."""


class DamagedState(ValueError):
    """A file that is not a complete state."""


_SECTIONS = {"model": "model", "mean": "mean", "optimizer": "optimizer", "rng": "generators"}


def has_state(folder: Path) -> bool:
    """Whether a run in this folder has saved a state."""
    return any((folder / name).exists() for name in (FILE, PREVIOUS))


def save_state(folder: Path, state: State) -> None:
    """Write the state completely or not at all; the last one becomes the previous one.

    If the disk has no room for three states, the previous one is deleted first.

    Raises:
        OSError: It could not be written; the last state is still there.
    """
    tensors = {
        f"{prefix}/{name}": tensor.detach()
        for prefix, section in _SECTIONS.items()
        for name, tensor in getattr(state, section).items()
    }
    header = {
        "format": FORMAT,
        "version": VERSION,
        "identity": state.identity,
        "seed": state.seed,
        "progress": asdict(state.progress),
    }
    path, previous = folder / FILE, folder / PREVIOUS
    try:
        write_tensors(path, tensors, header, former=previous)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT) or not path.exists():
            raise
        previous.unlink(missing_ok=True)
        write_tensors(path, tensors, header, former=previous)


def load_state(
    folder: Path, *, identity: str, seed: int, say: Callable[[str], None] = lambda text: None
) -> State | None:
    """The last complete state of a folder; None if there is none.

    ``identity`` and ``seed`` are those that it must have. ``say`` receives a note if the last state
    is lost and the one before it is taken.

    Raises:
        ValueError: Every state is damaged, or belongs to another run.
    """
    paths = [folder / name for name in (FILE, PREVIOUS)]
    problem = f"{paths[0]} is missing"
    for path in paths:
        remove_leftovers(path)
        if not path.exists():
            continue
        try:
            state = _read_state(path, identity, seed)
        except DamagedState as error:
            problem = str(error)
            continue
        if path != paths[0]:
            say(
                f"{problem}; resuming from {path}, the state saved before it (step "
                f"{state.progress.total})"
            )
        return state
    if not has_state(folder):
        return None
    raise ValueError(
        f"{problem}, and there is no other state to resume from; remove {FILE} and {PREVIOUS} to "
        "start again; copy model.safetensors first to keep the best weights so far"
    )


def _read_state(path: Path, identity: str, seed: int) -> State:
    folder = path.parent
    header, tensors = read_tensors(path)
    if header.get("format") != FORMAT or header.get("version") != VERSION:
        raise ValueError(
            f"{path} is a {header.get('format')} of version {header.get('version')}; this program "
            f"reads {FORMAT} of version {VERSION}; use the program that wrote it, or remove it to "
            "start again"
        )
    for name, mine in (("identity", identity), ("seed", seed)):
        if header.get(name) != mine:
            raise ValueError(
                f"{folder} holds a run with another configuration ({name} {header.get(name)!r}, "
                f"expected {mine!r}); use the configuration it was started with, or another folder"
            )
    sections: dict[str, dict[str, Tensor]] = {name: {} for name in _SECTIONS.values()}
    try:
        for place, tensor in tensors.items():
            prefix, _, name = place.partition("/")
            sections[_SECTIONS[prefix]][name] = tensor
        progress = _progress(header["progress"])
    except (LookupError, TypeError) as error:
        raise DamagedState(f"{path} is damaged: it lacks or garbles {error}") from None
    return State(identity=identity, seed=seed, progress=progress, path=path, **sections)


def _progress(found: Mapping[str, Any]) -> Progress:
    """The progress in a header, its types checked."""
    values = {entry.name: found[entry.name] for entry in fields(Progress) if entry.name in found}
    for name, default in vars(Progress()).items():
        kinds = {"best_value": (float, int, NoneType), "seconds": (float, int)}
        if name in values and type(values[name]) not in kinds.get(name, (type(default),)):
            raise TypeError(f"{name}: {values[name]!r}")
    return Progress(**values)


def write_tensors(
    path: Path,
    tensors: Mapping[str, Tensor],
    header: Mapping[str, Any],
    *,
    former: Path | None = None,
) -> None:
    """Write a safetensors file with a JSON header: flushed to the disk, then renamed.

    An existing file is renamed to ``former``, if given.
    """
    # Copies of their own: safetensors refuses tensors that share memory.
    whole = {
        name: tensor.to("cpu", copy=True, memory_format=torch.contiguous_format)
        for name, tensor in tensors.items()
    }
    # Written by hand rather than by save_file: a full disk is then a plain OSError.
    text = json.dumps(header)
    data = save(whole, metadata={"header": text, "crc32": _checksum(text, whole)})
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, data, former=former)


def read_tensors(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Header and tensors of a file of ``write_tensors``.

    Raises:
        DamagedState: It is not complete.
        OSError: It cannot be read.
    """
    try:
        tensors, found = read_safetensors(path)
        text = found["header"]
        # States from before there were checksums have none.
        if "crc32" in found and found["crc32"] != _checksum(text, tensors):
            raise ValueError("its content does not agree with its checksum")
        header = parse_json(text)
        if not isinstance(header, dict):
            raise ValueError(f"expected a table in its header, found {type(header).__name__}")
    except (KeyError, ValueError) as error:
        raise DamagedState(f"{path} is damaged or not a file of a run ({error})") from None
    return header, tensors


def _checksum(header: str, tensors: Mapping[str, Tensor]) -> str:
    """Of the header and of the names and bytes of the tensors, in the order of their names."""
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
    plain = parse_json(bytes(states["python_and_numpy"].tolist()))
    version, internal, spare = plain["python"]
    random.setstate((version, tuple(internal), spare))
    name, keys, position, has_gauss, cached = plain["numpy"]
    np.random.set_state((name, np.array(keys, dtype=np.uint32), position, has_gauss, cached))
    torch.set_rng_state(states["torch"])
    if device.type == "cuda" and "cuda" in states:
        torch.cuda.set_rng_state(states["cuda"], device)
