"""The published split of RealPDEBench.

An index entry names a trajectory and the first frame of a window of 20 input and 20 target frames.
The lists are shuffled; their order is kept. A test mode chooses the validation and test windows by
the group of their trajectory: ``seen`` (its other windows train), ``in_dist`` and ``out_dist``
(parameters inside the training range or at its edge), ``unseen`` for both. Windows of different
lists may overlap; ``splits.split_in_time`` makes a strict split.

The PIBERT paper takes one pair of frames from each window: a window of 2.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from pibert.data.readers.realpdebench.rows import KINDS, bare_name
from pibert.data.readers.recordings import SourceError
from pibert.data.splits import Segment, Split
from pibert.textfiles import parse_json, read_text

ListName = Literal["train", "val", "test"]

WINDOW = 40
"""Frames of a published window: 20 inputs, 20 targets."""

_GROUPS: dict[str, tuple[str, ...]] = {
    "all": (),
    "seen": ("remain",),
    "in_dist": ("in_dist_test",),
    "out_dist": ("out_dist_test",),
    "unseen": ("in_dist_test", "out_dist_test"),
}


def published_split(
    path: Path, frames: Mapping[str, int], window: int = WINDOW, test_mode: str = "all"
) -> Split:
    """Return the windows of the three lists, in their order.

    Args:
        path: A folder or file of trajectories; it leads through the scenario's folder and names the
            kind (real or numerical).
        frames: Number of frames of each trajectory. Segments count the trajectories in this order.
        window: Frames to take from the beginning of each window.
        test_mode: Which validation and test windows to take.
    """
    if not 2 <= window <= WINDOW:
        raise ValueError(f"window: expected 2 to {WINDOW} frames, found {window}")
    if test_mode not in _GROUPS:
        raise ValueError(f"test_mode: expected one of {', '.join(_GROUPS)}, found {test_mode!r}")
    folder, kind = scenario_folder(path), (path.parent if path.is_file() else path).name
    chosen = set(frames)
    if test_mode != "all":
        files = [folder / f"{group}_params_{kind}.json" for group in _GROUPS[test_mode]]
        present = [file for file in files if file.is_file()] or files  # groups may be empty
        chosen = {bare_name(name) for file in present for name in _read_json(file, dict)}
    number = {name: index for index, name in enumerate(frames)}

    def segments(split: ListName) -> tuple[Segment, ...]:
        entries = read_index(folder, split, kind)
        if split != "train":
            entries = [entry for entry in entries if test_mode == "all" or entry[0] in chosen]
        for name, start in entries:
            if start + WINDOW > frames.get(name, 0):
                raise SourceError(
                    f"{folder}: the {split} index for {kind} names frames {start} to "
                    f"{start + WINDOW - 1} of {name!r}, which has {frames.get(name, 0)}; complete "
                    "the download"
                )
        if not entries:
            raise SourceError(
                f"{folder}: the {split} index for {kind} has no window of test_mode {test_mode!r}; "
                "choose another"
            )
        return tuple(Segment(number[name], start, start + window) for name, start in entries)

    return Split(segments("train"), segments("val"), (), segments("test"))


def read_index(folder: Path, split: ListName, kind: str) -> list[tuple[str, int]]:
    """Read the entries (trajectory, first frame) of a published list in their order."""
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
