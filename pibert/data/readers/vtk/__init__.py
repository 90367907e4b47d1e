"""VTK: legacy .vtk; XML .vti, .vtr, .vts, .vtu, .vtp; blocks .vtm; series .pvd, .series; folders.

A folder of numbered files is a flow. Times are those of the series, or those that every file
states; otherwise frames are counted. ``foamToVTK`` writes ``CASE.vtm.series``, which lists a .vtm
for every time; its block ``internal`` is the flow, the others are patches.
"""

import contextlib
import math
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from pibert.data.provenance import own_record, own_spec, restored
from pibert.data.readers.recordings import Hints, Recordings, SourceError, reading
from pibert.data.readers.shared.files import GAPS, count_frames, group_by_number
from pibert.data.readers.shared.series import CellPlane, Plane, Series, open_series
from pibert.data.readers.shared.space import cut_plane
from pibert.data.readers.vtk.legacy import HEAD, read_legacy
from pibert.data.readers.vtk.xml import parse, read_xml
from pibert.files import parse_json, read_text

TITLE = "VTK (.vtk, .vti, .vtr, .vts, .vtu, .vtp, .vtm, .pvd, .series)"
HINTS = ("channels", "shape")
UPLOADS = (".vtk", ".vti", ".vtr", ".vts", ".vtu", ".vtp")

_FRAMES = (*UPLOADS, ".vtm")
_SERIES = (".pvd", ".series")
# Parallel files name the files of their pieces; opening them reports what to do.
_PARALLEL = (".pvti", ".pvtr", ".pvts", ".pvtu", ".pvtp")
_FLOW = ("internal", "internalMesh")
_HEAD = 1 << 14
_OWN = re.compile(rb"<!-- PIBERT (\{.*?\}) -->")
"""In the head of a file that this package wrote."""


def recognise(path: Path) -> bool:
    if path.is_dir():
        return any(_files(path, *_FRAMES, *_SERIES))
    return path.suffix.lower() in (*_FRAMES, *_PARALLEL, *_SERIES) and path.is_file()


def open_recordings(path: Path, hints: Hints = Hints()) -> Recordings:
    if path.is_dir():
        collections = list(_files(path, *_SERIES))
        # A case may have series of its patches, too: that of the blocks holds the flow.
        blocks = [entry for entry in collections if entry.name.lower().endswith(".vtm.series")]
        for found in (collections, blocks):
            if len(found) == 1:
                return _open_collection(found[0], hints)
        return _open_folder(path, hints)
    if path.suffix.lower() in _SERIES:
        return _open_collection(path, hints)
    return _open([path], path, hints, path.stem)


def read_plane(path: Path) -> Plane | CellPlane:
    """Read the plane in one file."""
    with reading(path):
        if path.suffix.lower() == ".vtm":
            path = _find_flow(path)
        with path.open("rb") as file:
            is_legacy = file.read(len(HEAD)) == HEAD or path.suffix.lower() == ".vtk"
        mesh = read_legacy(path) if is_legacy else read_xml(path)
    return cut_plane(mesh, path)


def _find_flow(path: Path) -> Path:
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


def _existing(path: Path, file: str | None) -> Path:
    """The file of an entry, which lies in the folder of the list or below it."""
    folder = path.absolute().parent
    # Without "..", so that the path that is checked is the path that is read.
    found = Path(os.path.normpath(folder / (file or "")))
    if not found.is_relative_to(os.path.normpath(folder)):
        raise SourceError(f"{path}: it names {file!r}, which is outside its folder; move it there")
    if not file or not found.is_file():
        raise SourceError(f"{path}: it names {file!r}, which does not exist; copy it too")
    return found


def _files(folder: Path, *suffixes: str) -> Iterator[Path]:
    """The regular files of a folder with these suffixes; reading a pipe might never end."""
    for entry in folder.iterdir():
        if entry.suffix.lower() in suffixes and entry.is_file():
            yield entry


def _open_collection(path: Path, hints: Hints) -> Recordings:
    files = _read_collection(path)
    times = sorted(files)
    name = path.name.partition(".")[0]
    return _open([files[time] for time in times], path, hints, name, times)


def _read_collection(path: Path) -> dict[float, Path]:
    """The files of a .pvd or .series by time."""
    entries: list[tuple[float, str | None]]
    with reading(path, "the list of files and times", remedy="write it again"):
        if path.suffix.lower() == ".series":
            listed = parse_json(read_text(path))["files"]
            entries = [(float(entry["time"]), str(entry["name"])) for entry in listed]
        else:
            found = parse(path, path.read_bytes()).findall("Collection/DataSet")
            entries = [(float(e.get("timestep", i)), e.get("file")) for i, e in enumerate(found)]
    files: dict[float, Path] = {}
    for time, file in entries:
        if not math.isfinite(time) or time in files:
            raise SourceError(
                f"{path}: {file!r} has the time {time:g} of another file; merge the pieces"
            )
        files[time] = _existing(path, file)
    if not files:
        raise SourceError(f"{path}: this collection names no data sets; save it again")
    return files


def _open_folder(path: Path, hints: Hints) -> Recordings:
    """The files of a folder as frames, in the order of their numbers."""
    series = group_by_number(sorted(_files(path, *_FRAMES)))
    if len(series) > 1:
        names = ", ".join(next(iter(files.values())).name for files in list(series.values())[:8])
        raise SourceError(
            f"{path}: it holds several series ({names} ...); name one file, or give each series a "
            "folder"
        )
    ((numbers, ordered),) = ((list(files), list(files.values())) for files in series.values())
    times: list[float] = []
    for file in ordered:
        if (time := read_plane(file).time) is None:
            break
        times.append(time)
    if len(times) == len(ordered):
        return _open(ordered, path, hints, path.name, times)
    counted = count_frames(numbers)
    found = _open(ordered, path, hints, path.name, counted, counted=True)
    return found if counted is None else replace(found, notes=(*found.notes, GAPS))


def _open(
    files: Sequence[Path],
    path: Path,
    hints: Hints,
    name: str,
    times: Sequence[float] | None = None,
    *,
    counted: bool = False,
) -> Recordings:
    """Return the flow in some files; times that are ``counted`` are the numbers of the files."""
    comment = None
    with contextlib.suppress(OSError), files[0].open("rb") as file:  # reading it reports errors
        comment = _OWN.search(file.read(_HEAD))
    record = {} if comment is None else own_record(comment[1].decode("utf-8", "replace"))
    own = own_spec(record)
    if record:
        hints = replace(hints, time_unit=None)  # the record states it
    if own is not None and not hints.channels:
        keys = {name: name for name in own.channels}
        for letter, index in zip("xy", own.velocity or (), strict=False):
            keys[own.channels[index]] = f"velocity_{letter}"
        hints = replace(hints, channels=keys)
    source = record.get("source", {})
    facts = {"counted": counted}
    series = Series(files=files, read=read_plane, times=times, source=source, facts=facts)
    found = open_series("vtk", path, series, hints, name=name)
    return found.changed(partial(restored, record=record)) if record else found
