"""The published splits of RealPDEBench: index entries, parameter groups, and segments made of them.

An entry names a trajectory and the first frame of a window of 20 input and 20 target frames. The
lists are shuffled; their order is kept. A test mode chooses entries by their trajectory's group:
``seen`` (its other stretches train), ``in_dist`` and ``out_dist`` (parameters inside the training
range or at its edge), ``unseen`` for both. The windows of a published split may reach into each
other; ``splits.split_in_time`` makes a strict one.

Beside the Arrow files all of this is JSON; beside raw HDF5 it may be torch files, which are opened
without unpickling code.
"""

import zipfile
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch

from pibert.data.readers.realpdebench import KINDS, bare_name
from pibert.data.readers.recordings import Recordings, SourceError
from pibert.data.splits import Segment
from pibert.fields import PARAMETER_WIDTH
from pibert.regular_files import require_regular
from pibert.textfiles import LARGEST, parse_json, read_text

PublishedSplit = Literal["train", "val", "test"]
Mode = Literal["all", "seen", "in_dist", "out_dist", "unseen"]
Group = Literal["seen", "in_dist", "out_dist"]
Pairs = Literal["windows", "adjacent"]

WINDOW = 40
"""Frames of a published window: 20 to see, 20 to predict."""

_GROUPS = {"seen": "remain", "in_dist": "in_dist_test", "out_dist": "out_dist_test"}
_MEMBERS: dict[Mode, tuple[Group, ...]] = {
    "seen": ("seen",),
    "in_dist": ("in_dist",),
    "out_dist": ("out_dist",),
    "unseen": ("in_dist", "out_dist"),
}


class Entry(NamedTuple):
    """A window of a published list."""

    name: str
    frame: int


class Official(NamedTuple):
    """A part of a published split."""

    segments: tuple[Segment, ...]
    """One per entry, exactly as long as its window, in the published order."""
    dropped: int
    """Entries that point nowhere."""


def official_samples(
    recordings: Recordings,
    split: PublishedSplit,
    *,
    pairs: Pairs = "windows",
    mode: Mode = "all",
    drop: bool = False,
    folder: Path | None = None,
    kind: str | None = None,
) -> Official:
    """The segments of a published split, for ``Samples(list(recordings), segments, window=...)``.

    ``pairs`` is ``windows`` for the published windows (``Window(history=20, horizon=20)``), or
    ``adjacent`` for one pair per entry, its first two frames (``Window()``). The paper took one
    pair of neighbouring frames per entry for FSI; which two of the 40 is not known. ``drop`` leaves
    out, and counts, entries that point nowhere instead of refusing them. Give the scenario's
    ``folder`` where it is not around the recordings, and the ``kind`` (real or numerical) where the
    path does not say it.
    """
    folder = scenario_folder(folder or recordings.path)
    path = recordings.path
    stated, kind = kind, kind or (path.parent if path.is_file() else path).name
    if stated is None and kind not in KINDS:
        raise ValueError(
            f"{path}: its name does not say the kind; give one of {', '.join(KINDS)} (--type)"
        )
    entries = read_index(folder, split, kind)
    if mode != "all":
        chosen = {name for group in _MEMBERS[mode] for name in read_parameters(folder, group, kind)}
        entries = [entry for entry in entries if entry.name in chosen]
    span = WINDOW if pairs == "windows" else 2
    places = {name: place for place, name in enumerate(recordings.names)}
    lengths = {
        name: recordings.load(name).num_frames
        for name in {entry.name for entry in entries} & set(places)
    }
    segments = []
    for number, (name, frame) in enumerate(entries):
        if name in lengths and frame + span <= lengths[name]:
            segments.append(Segment(places[name], frame, frame + span))
        elif not drop:
            problem = f"there is no trajectory {name!r}"
            if name in lengths:
                frames = f"frames {frame} to {frame + span - 1} of {name!r}"
                problem = f"{frames}, which has {lengths[name]}"
            raise SourceError(
                f"{folder}: entry {number} of the {split} index for {kind} points nowhere: "
                f"{problem}; complete the download, or drop such entries"
            )
    return Official(tuple(segments), len(entries) - len(segments))


def read_index(folder: Path, split: PublishedSplit, kind: str) -> list[Entry]:
    """The entries of a part in their order; from JSON where there is one, else from torch files."""
    folder = scenario_folder(folder)
    path = folder / "hf_dataset" / f"{split}_index_{kind}.json"
    names, frames = (folder / f"{what}_id_mapping_{kind}.pt" for what in ("sim", "time"))
    if path.is_file():
        listed = _load_json(path)
        if not isinstance(listed, list):
            raise SourceError(f"{path}: expected a list of entries; download it again")
        return [_entry(path, number, item) for number, item in enumerate(listed)]
    if not (names.is_file() and frames.is_file()):
        raise SourceError(
            f"{folder}: no {split} index for {kind}; expected hf_dataset/{split}_index_{kind}.json "
            f"or {names.name} with {frames.name} (download the metadata; the publishers leave out "
            "lists without entries)"
        )
    lists = [_load_torch(path).get(split, []) for path in (names, frames)]
    if not all(isinstance(part, list) for part in lists) or len(lists[0]) != len(lists[1]):
        raise SourceError(
            f"{names}: expected lists of the same length for {split!r} here and in {frames.name}"
        )
    return [
        _entry(names, number, {"sim_id": name, "time_id": frame})
        for number, (name, frame) in enumerate(zip(*lists, strict=True))
    ]


def read_parameters(folder: Path, group: Group, kind: str) -> dict[str, tuple[float, ...]]:
    """The trajectories of a group and the parameters that the publishers list for them."""
    folder = scenario_folder(folder)
    stem = f"{_GROUPS[group]}_params_{kind}"
    path = folder / f"{stem}.json"
    if path.is_file():
        data = _load_json(path)
    elif (folder / f"{stem}.pt").is_file():
        path = folder / f"{stem}.pt"
        data = _load_torch(path)
    else:
        raise SourceError(f"{path}: there is no such file; download the metadata of the scenario")
    try:
        return {bare_name(name): _numbers(row) for name, row in data.items()}
    except (AttributeError, TypeError, ValueError, OverflowError) as error:
        raise SourceError(
            f"{path}: expected an object of names with lists of numbers ({error}); download it "
            "again"
        ) from error


def _numbers(row: Any) -> tuple[float, ...]:
    """A row of parameters. A tensor may be long without being large: its length is looked at."""
    if not isinstance(row, list | tuple | torch.Tensor) or len(row) > PARAMETER_WIDTH:
        raise ValueError(f"a row that is no list of at most {PARAMETER_WIDTH} numbers")
    return tuple(float(value) for value in row)


def scenario_folder(path: Path) -> Path:
    """The folder of a scenario, from itself or from a folder or file of trajectories in it."""
    folder = path.parent if path.is_file() else path
    folder = folder.parent if folder.name in KINDS else folder
    return folder.parent if folder.name == "hf_dataset" else folder


def _entry(path: Path, number: int, item: Any) -> Entry:
    try:
        name, frame = item["sim_id"], item["time_id"]
    except (KeyError, TypeError):
        name = frame = None
    if not isinstance(name, str | int) or not isinstance(frame, int) or frame < 0:
        raise SourceError(
            f"{path}: entry {number}: expected a trajectory's name as sim_id and a frame as "
            f"time_id, found {repr(item)[:80]}; download it again"
        )
    return Entry(bare_name(str(name)), frame)


def _load_json(path: Path) -> Any:
    try:
        return parse_json(read_text(path))
    except ValueError as error:
        raise SourceError(f"{path}: this is not JSON ({error}); download it again") from error


def _load_torch(path: Path) -> dict[Any, Any]:
    """A dictionary of plain values; what else a torch file may hold is not unpickled."""
    try:
        _check_torch_file(path)
        data = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # damaged files make torch raise errors of about every kind
        reason = str(error).partition("\n")[0][:120] or type(error).__name__
        raise SourceError(
            f"{path}: refused, because it is damaged or holds more than plain values ({reason}); "
            "take the JSON files of the hub instead"
        ) from error
    if not isinstance(data, dict):
        raise SourceError(f"{path}: expected a dictionary, found {type(data).__name__}")
    return data


def _check_torch_file(path: Path) -> None:
    """Refuse what would take more memory than the file has bytes, or is no ordinary file."""
    require_regular(path)
    size = path.stat().st_size
    if size > LARGEST:
        raise ValueError(f"{size:,} bytes, more than a list of this kind has")
    if zipfile.is_zipfile(path):  # torch compresses nothing
        with zipfile.ZipFile(path) as archive:
            unpacked = sum(member.file_size for member in archive.infolist())
        if unpacked > size:
            raise ValueError(f"{size:,} bytes that would unpack to {unpacked:,}")
