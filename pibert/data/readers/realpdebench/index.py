"""The published splits of RealPDEBench: index entries, parameter groups, and their segments.

An entry names a trajectory and the first frame of a window of 20 input and 20 target frames. The
lists are shuffled; their order is kept. A test mode chooses entries by the group of their
trajectory: ``seen`` (its other windows train), ``in_dist`` and ``out_dist`` (parameters inside the
training range or at its edge), ``unseen`` for both. The windows of a published split may overlap
those of another; ``splits.split_in_time`` makes a strict one.
"""

from pathlib import Path
from typing import Any, Literal, NamedTuple

from pibert.data.readers.realpdebench import KINDS, bare_name
from pibert.data.readers.recordings import Recordings, SourceError
from pibert.data.splits import Segment
from pibert.textfiles import parse_json, read_text

PublishedSplit = Literal["train", "val", "test"]
Mode = Literal["all", "seen", "in_dist", "out_dist", "unseen"]
Group = Literal["seen", "in_dist", "out_dist"]
Pairs = Literal["windows", "adjacent"]

WINDOW = 40
"""Frames of a published window: 20 inputs, 20 targets."""

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
    """The segments of a published split."""

    segments: tuple[Segment, ...]
    """One per entry, exactly as long as its window, in the published order."""
    dropped: int
    """Entries whose trajectory or frames are missing."""


def official_samples(
    recordings: Recordings,
    split: PublishedSplit,
    *,
    pairs: Pairs = "windows",
    mode: Mode = "all",
    drop: bool = False,
) -> Official:
    """Return the segments of a published split, for ``Samples(list(recordings), segments, ...)``.

    The path of the recordings must lead through the scenario's folder and name the kind (real or
    numerical). ``pairs`` is ``windows`` for the published windows (``Window(history=20,
    horizon=20)``), or ``adjacent`` for one pair per entry, its first two frames (``Window()``). The
    paper took one pair of neighbouring frames per entry for FSI; which two of the 40 is not known.
    ``drop`` leaves out, and counts, entries whose frames are missing instead of refusing them.
    """
    path = recordings.path
    folder, kind = scenario_folder(path), (path.parent if path.is_file() else path).name
    entries = read_index(folder, split, kind)
    if mode != "all":
        chosen = {name for group in _MEMBERS[mode] for name in read_parameters(folder, group, kind)}
        entries = [entry for entry in entries if entry.name in chosen]
    span = WINDOW if pairs == "windows" else 2
    index = {name: number for number, name in enumerate(recordings.names)}
    lengths = {
        name: recordings.load(name).num_frames
        for name in {entry.name for entry in entries} & set(index)
    }
    segments = []
    for number, (name, frame) in enumerate(entries):
        if frame + span <= lengths.get(name, 0):
            segments.append(Segment(index[name], frame, frame + span))
        elif not drop:
            raise SourceError(
                f"{folder}: entry {number} of the {split} index for {kind} names frames {frame} to "
                f"{frame + span - 1} of {name!r}, which has {lengths.get(name, 0)}; complete the "
                "download, or drop such entries"
            )
    return Official(tuple(segments), len(entries) - len(segments))


def read_index(folder: Path, split: PublishedSplit, kind: str) -> list[Entry]:
    """Read the entries of a published split in their order."""
    path = scenario_folder(folder) / "hf_dataset" / f"{split}_index_{kind}.json"
    listed = _read_json(path)
    if not isinstance(listed, list):
        raise SourceError(f"{path}: expected a list of entries; download it again")
    return [_entry(path, number, item) for number, item in enumerate(listed)]


def read_parameters(folder: Path, group: Group, kind: str) -> dict[str, tuple[float, ...]]:
    """Read the trajectories of a group with the parameters that the publishers list for them."""
    path = scenario_folder(folder) / f"{_GROUPS[group]}_params_{kind}.json"
    data = _read_json(path)
    try:
        return {bare_name(name): tuple(map(float, row)) for name, row in data.items()}
    except (AttributeError, TypeError, ValueError, OverflowError) as error:
        raise SourceError(
            f"{path}: expected an object of names with lists of numbers ({error}); download it "
            "again"
        ) from error


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


def _read_json(path: Path) -> Any:
    if not path.is_file():
        raise SourceError(
            f"{path}: there is no such file; download it (pibert download realpdebench SCENARIO "
            "--what metadata). The publishers leave out lists without entries"
        )
    try:
        return parse_json(read_text(path))
    except ValueError as error:
        raise SourceError(f"{path}: this is not JSON ({error}); download it again") from error
