"""Files that list others: the times of a series (.pvd, .series), the blocks of a mesh (.vtm).

``foamToVTK`` writes ``CASE.vtm.series``, which lists a .vtm for every time. The block ``internal``
is the flow; the others are patches.
"""

import json
import math
import os
from collections.abc import Iterable
from pathlib import Path

from pibert.data.sources.recordings import SourceError
from pibert.data.sources.vtk.xml import parse

_FLOW = ("internal", "internalMesh")


def read_collection(path: Path) -> list[tuple[float, Path]]:
    """The files of a .pvd or .series, by time."""
    named = _named_in_series(path) if path.suffix.lower() == ".series" else _named_in_pvd(path)
    times: dict[float, Path] = {}
    for time, file in named:
        if not math.isfinite(time):
            raise SourceError(f"{path}: the time of {file!r} is {time}; write it again")
        if time in times:
            raise SourceError(
                f"{path}: two files for time {time:g}; a flow in several parts is not read: merge "
                "the parts into one file per time"
            )
        times[time] = _existing(path, file)
    if not times:
        raise SourceError(f"{path}: this collection names no data sets; save it again")
    return sorted(times.items())


def find_flow(path: Path) -> Path:
    """The file of a .vtm that holds the flow: the block ``internal``, or the only one."""
    entries = list(parse(path, path.read_bytes()).iter("DataSet"))
    chosen = [entry for entry in entries if entry.get("name") in _FLOW] or entries
    if len(chosen) != 1:
        names = ", ".join(str(entry.get("name") or entry.get("file")) for entry in entries[:8])
        raise SourceError(
            f"{path}: it names {len(entries)} data sets ({names}), none of which is called "
            "'internal'; name the file of one of them"
        )
    return _existing(path, chosen[0].get("file"))


def _named_in_pvd(path: Path) -> Iterable[tuple[float, str | None]]:
    entries = parse(path, path.read_bytes()).findall("Collection/DataSet")
    try:
        return [(float(e.get("timestep", i)), e.get("file")) for i, e in enumerate(entries)]
    except ValueError as error:
        raise SourceError(f"{path}: a time step that is no number ({error})") from error


def _named_in_series(path: Path) -> Iterable[tuple[float, str | None]]:
    try:
        entries = json.loads(path.read_text(encoding="utf-8"))["files"]
        return [(float(entry["time"]), str(entry["name"])) for entry in entries]
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError) as error:
        raise SourceError(
            f"{path}: expected JSON with the name and time of every file ({type(error).__name__}: "
            f"{error}); write it again"
        ) from error


def _existing(path: Path, file: str | None) -> Path:
    """The file of an entry, which lies in the folder of the list or below it."""
    folder = path.absolute().parent
    # Without "..", so that the place that is checked is the place that is read.
    found = Path(os.path.normpath(folder / (file or "")))
    if not found.is_relative_to(os.path.normpath(folder)):
        raise SourceError(
            f"{path}: it names {file!r}, which is outside its folder and is not read; move the "
            "data into the folder, and name it relative to the list"
        )
    if not file or not found.is_file():
        raise SourceError(f"{path}: it names {file!r}, which is not there; copy it too")
    return found
