"""The state of a run: everything that an exact resume needs, in one file.

``state.safetensors`` holds tensors under three prefixes and a JSON header:

    model/<name>                     weights and buffers
    mean/<name>                      running mean of the weights, if there is one
    optimizer/<parameter>/<moment>   moments, by parameter name
    header                           format version, identity, seed, and the ``Progress``
    crc32                            checksum of the header and of all tensors

Random generators need no entry: they are seeded before every piece of a batch. The file is written
under another name, flushed to the disk and renamed, so a reader finds either the old file or the
new one, complete, whenever the writer or the machine dies. If the checksum of a file does not
match, the run resumes from ``state-previous.safetensors``, the state saved before. Nothing is
pickled.
"""

import errno
import json
import zlib
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save
from torch import Tensor

from pibert.config import as_kind
from pibert.data.partial import remove_leftovers, replace_file
from pibert.files import parse_json, read_safetensors

FORMAT, VERSION = "pibert-state", 1
FILE, PREVIOUS = "state.safetensors", "state-previous.safetensors"
"""The last state of a run, and the one before it."""
_SECTIONS = ("model", "mean", "optimizer")


@dataclass(frozen=True, kw_only=True)
class Progress:
    """The progress of a run."""

    epoch: int = 0
    """Finished epochs, logged and validated."""
    step: int = 0
    """Finished steps of the current epoch."""
    total: int = 0
    """Finished steps since the start."""
    best_epoch: int = 0
    """The epoch of the best weights, the first is 1; 0: none yet."""
    best_value: float | None = None
    """The best validation value so far."""
    best_metrics: dict[str, Any] = field(default_factory=dict)
    start_metrics: dict[str, Any] = field(default_factory=dict)
    """Validation values before the first epoch, of a stage that continues another."""
    seconds: float = 0.0
    """Time spent in the current epoch."""
    logs: list = field(default_factory=list)
    """Log sums of the current epoch, of each process (``journal.LogSums.to_plain``)."""


@dataclass(frozen=True, kw_only=True)
class State:
    """The content of a state file."""

    identity: str
    """A hash of all settings that must be the same when the run is resumed."""
    seed: int
    progress: Progress
    model: Mapping[str, Tensor]
    mean: Mapping[str, Tensor] = field(default_factory=dict)
    optimizer: Mapping[str, Tensor] = field(default_factory=dict)
    path: Path | None = None
    """The file it was read from."""


class DamagedState(ValueError):
    """A file that is not a complete state."""


def has_state(folder: Path) -> bool:
    """Whether a run in this folder has saved a state."""
    return any((folder / name).exists() for name in (FILE, PREVIOUS))


def save_state(folder: Path, state: State) -> None:
    """Write the state completely or not at all; the last one becomes the previous one.

    If the disk has no room for three states, the previous one is deleted first.

    Raises:
        OSError: It could not be written; the last state is unchanged.
    """
    tensors = {
        f"{section}/{name}": tensor.detach()
        for section in _SECTIONS
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
    is lost and the one before it is used.

    Raises:
        ValueError: Every state is damaged, or belongs to another run.
    """
    problem = f"{folder / FILE} is missing"
    for path in (folder / FILE, folder / PREVIOUS):
        remove_leftovers(path)
        if not path.exists():
            continue
        try:
            state = _read_state(path, identity, seed)
        except DamagedState as error:
            problem = str(error)
            continue
        if path.name != FILE:
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
                f"{path.parent} holds a run with another configuration ({name} "
                f"{header.get(name)!r}, expected {mine!r}); use the configuration it was started "
                "with, or another folder"
            )
    sections: dict[str, dict[str, Tensor]] = {name: {} for name in _SECTIONS}
    for key, tensor in tensors.items():
        section, _, name = key.partition("/")
        # Earlier versions also stored random generators, under rng/.
        sections.setdefault(section, {})[name] = tensor
    try:
        progress = as_kind(header["progress"], Progress)
    except (LookupError, ValueError) as error:
        raise DamagedState(f"{path} is damaged: its progress is not valid ({error})") from None
    known = {name: sections[name] for name in _SECTIONS}
    return State(identity=identity, seed=seed, progress=progress, path=path, **known)


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
    # Separate copies: safetensors refuses tensors that share memory.
    copies = {
        name: tensor.to("cpu", copy=True, memory_format=torch.contiguous_format)
        for name, tensor in tensors.items()
    }
    text = json.dumps(header)
    # To bytes rather than by save_file, so that a full disk is a plain OSError.
    data = save(copies, metadata={"header": text, "crc32": _checksum(text, copies)})
    path.parent.mkdir(parents=True, exist_ok=True)
    replace_file(path, data, former=former)


def read_tensors(path: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """Header and tensors of a file of ``write_tensors``.

    Raises:
        DamagedState: It is not complete.
        OSError: It cannot be read.
    """
    try:
        tensors, metadata = read_safetensors(path)
        text = metadata["header"]
        # The first states had no checksum.
        if "crc32" in metadata and metadata["crc32"] != _checksum(text, tensors):
            raise ValueError("its checksum does not match")
        header = parse_json(text)
        if not isinstance(header, dict):
            raise ValueError(f"expected a table in its header, found {type(header).__name__}")
    except (KeyError, ValueError) as error:
        raise DamagedState(f"{path} is damaged or not a file of a run ({error})") from None
    return header, tensors


def _checksum(header: str, tensors: Mapping[str, Tensor]) -> str:
    """Checksum of the header and of the names and bytes of the tensors, sorted by name."""
    value = zlib.crc32(header.encode())
    for name, tensor in sorted(tensors.items()):
        value = zlib.crc32(name.encode(), value)
        value = zlib.crc32(tensor.reshape(-1).view(torch.uint8).numpy().data, value)
    return f"{value:08x}"
