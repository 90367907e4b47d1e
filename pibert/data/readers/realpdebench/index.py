"""The published splits of RealPDEBench.

An index entry names a trajectory and the first frame of a window of 20 input and 20 target frames.
The lists are shuffled; their order is kept. A test mode chooses entries by the group of their
trajectory: ``seen`` (its other windows train), ``in_dist`` and ``out_dist`` (parameters inside the
training range or at its edge), ``unseen`` for both. The windows of a published split may overlap
those of another; ``splits.split_in_time`` makes a strict one.
"""

from pathlib import Path
from typing import Any, Literal

from pibert.data.readers.realpdebench import KINDS, bare_name
from pibert.data.readers.recordings import Recordings, SourceError
from pibert.data.splits import Segment
from pibert.textfiles import parse_json, read_text

PublishedSplit = Literal["train", "val", "test"]
Mode = Literal["all", "seen", "in_dist", "out_dist", "unseen"]

WINDOW = 40
"""Frames of a published window: 20 inputs, 20 targets."""

_GROUPS: dict[Mode, tuple[str, ...]] = {
    "seen": ("remain",),
    "in_dist": ("in_dist_test",),
    "out_dist": ("out_dist_test",),
    "unseen": ("in_dist_test", "out_dist_test"),
}


def official_samples(
    recordings: Recordings, split: PublishedSplit, mode: Mode = "all"
) -> tuple[Segment, ...]:
    """Return the windows of a published split, in the published order.

    They are meant for ``Samples(list(recordings), segments, window=Window(history=20,
    horizon=20), ...)``. The path of the recordings must lead through the scenario's folder and name
    the kind (real or numerical).
    """
    path = recordings.path
    folder, kind = scenario_folder(path), (path.parent if path.is_file() else path).name
    entries = read_index(folder, split, kind)
    if mode != "all":
        files = [folder / f"{group}_params_{kind}.json" for group in _GROUPS[mode]]
        chosen = {bare_name(name) for file in files for name in _read_json(file, dict)}
        entries = [(name, frame) for name, frame in entries if name in chosen]
    index = {name: number for number, name in enumerate(recordings.names)}
    names = {name for name, _ in entries} & set(index)
    lengths = {name: recordings.load(name).num_frames for name in names}
    for name, frame in entries:
        if frame + WINDOW > lengths.get(name, 0):
            raise SourceError(
                f"{folder}: the {split} index for {kind} names frames {frame} to "
                f"{frame + WINDOW - 1} of {name!r}, which has {lengths.get(name, 0)}; complete the "
                "download"
            )
    return tuple(Segment(index[name], frame, frame + WINDOW) for name, frame in entries)


def read_index(folder: Path, split: PublishedSplit, kind: str) -> list[tuple[str, int]]:
    """Read the entries (trajectory, first frame) of a published split in their order."""
    path = scenario_folder(folder) / "hf_dataset" / f"{split}_index_{kind}.json"
    entries: list[tuple[str, int]] = []
    for item in _read_json(path, list):
        name, frame = (item.get(k) if isinstance(item, dict) else 0 for k in ("sim_id", "time_id"))
        if not isinstance(name, str) or not isinstance(frame, int) or frame < 0:
            raise SourceError(
                f"{path}: entry {len(entries)}: expected a trajectory's name as sim_id and a frame "
                f"as time_id, found {repr(item)[:80]}; download it again"
            )
        entries.append((bare_name(name), frame))
    return entries


def scenario_folder(path: Path) -> Path:
    """The folder of a scenario, from itself or from a folder or file of trajectories in it."""
    folder = path.parent if path.is_file() else path
    folder = folder.parent if folder.name in KINDS else folder
    return folder.parent if folder.name == "hf_dataset" else folder


def _read_json(path: Path, kind: type) -> Any:
    if not path.is_file():
        raise SourceError(
            f"{path}: there is no such file; download it (pibert download realpdebench SCENARIO "
            "--what metadata). The publishers leave out lists without entries"
        )
    try:
        data = parse_json(read_text(path))
        if not isinstance(data, kind):
            raise ValueError(f"expected a {kind.__name__}, found a {type(data).__name__}")
    except ValueError as error:
        raise SourceError(f"{path}: it cannot be read ({error}); download it again") from error
    return data
