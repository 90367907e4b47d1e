"""VTK: legacy .vtk; XML .vti, .vtr, .vts, .vtu, .vtp; blocks .vtm; series .pvd, .series; folders.

A folder of numbered files is a flow. Times are those of the series, or those that every file
states; otherwise frames are counted. ``foamToVTK`` writes ``CASE.vtm.series``, which lists a .vtm
for every time; its block ``internal`` is the flow, the others are patches.
"""

import contextlib
import json
import math
import os
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from pibert.data.provenance import own_facts
from pibert.data.readers.recordings import Hints, Recordings, SourceError
from pibert.data.readers.shared.series import CellPlane, Plane, Series, open_series
from pibert.data.readers.shared.space import cut_plane
from pibert.data.readers.vtk.legacy import HEAD, read_legacy
from pibert.data.readers.vtk.xml import Document, parse

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


TITLE = "VTK (.vtk, .vti, .vtr, .vts, .vtu, .vtp, .vtm, .pvd, .series)"
HINTS = ("channels", "shape")

_FRAMES = (".vtk", ".vti", ".vtr", ".vts", ".vtu", ".vtp", ".vtm")
_SERIES = (".pvd", ".series")
_HEAD = 1 << 14
_OWN = re.compile(rb"<!-- PIBERT (\{.*?\}) -->")
"""In the head of a file that this package wrote."""
# They name the files of their parts: taken for VTK, so that opening them reports what to do.
_PARTS = (".pvti", ".pvtr", ".pvts", ".pvtu", ".pvtp")


def recognise(path: Path) -> bool:
    if path.is_dir():
        try:
            return any(_files(path, *_FRAMES, *_SERIES))
        except OSError:
            return False
    return path.suffix.lower() in (*_FRAMES, *_PARTS, *_SERIES) and path.is_file()


def open_recordings(path: Path, hints: Hints = Hints()) -> Recordings:
    if path.is_dir():
        collections = list(_files(path, *_SERIES))
        # Of a case there may be series of its patches, too: that of the blocks holds the flow.
        blocks = [entry for entry in collections if entry.name.lower().endswith(".vtm.series")]
        for found in (collections, blocks):
            if len(found) == 1:
                return _open_collection(found[0], hints)
        return _open_folder(path, hints)
    if path.suffix.lower() in _SERIES:
        return _open_collection(path, hints)
    return _open([path], path, hints, path.stem)


def read_plane(path: Path) -> Plane | CellPlane:
    """The plane in one file."""
    try:
        if path.suffix.lower() == ".vtm":
            path = find_flow(path)
        with path.open("rb") as file:
            legacy = file.read(len(HEAD)) == HEAD
        is_legacy = legacy or path.suffix.lower() == ".vtk"
        mesh = read_legacy(path) if is_legacy else Document(path, path.read_bytes()).mesh()
    except OSError as error:
        raise SourceError(f"{path}: it cannot be read ({error.strerror})") from error
    return cut_plane(mesh, path)


def _files(folder: Path, *suffixes: str) -> Iterator[Path]:
    """The files of a folder with these suffixes; no pipes, whose reading might never end."""
    for entry in folder.iterdir():
        if entry.suffix.lower() in suffixes and entry.is_file():
            yield entry


def _open_collection(path: Path, hints: Hints) -> Recordings:
    try:
        times, files = zip(*read_collection(path), strict=True)
    except OSError as error:
        raise SourceError(f"{path}: it cannot be read ({error.strerror})") from error
    return _open(files, path, hints, path.name.partition(".")[0], times)


def _open_folder(path: Path, hints: Hints) -> Recordings:
    """The files of a folder as frames, in the order of the number that ends their names."""
    series: dict[tuple[str, str], list[tuple[int, Path]]] = {}
    for file in _files(path, *_FRAMES):
        stem = file.stem.rstrip("0123456789")
        number = file.stem[len(stem) :]
        series.setdefault((stem, file.suffix), []).append((int(number or 0), file))
    if len(series) > 1:
        names = ", ".join(f"{stem}*{suffix}" for stem, suffix in sorted(series)[:8])
        raise SourceError(
            f"{path}: it holds several series, {names}; name one file, or give each series a folder"
        )
    ordered = [file for _, file in sorted(next(iter(series.values())))]
    times: list[float] = []
    for file in ordered:
        if (time := read_plane(file).time) is None:
            break
        times.append(time)
    return _open(ordered, path, hints, path.name, times if len(times) == len(ordered) else None)


def _open(
    files: Sequence[Path], path: Path, hints: Hints, name: str, times: Sequence[float] | None = None
) -> Recordings:
    comment = None
    with contextlib.suppress(OSError), files[0].open("rb") as file:  # reading it reports errors
        comment = _OWN.search(file.read(_HEAD))
    source = {} if comment is None else own_facts(comment[1].decode("utf-8", "replace"))
    series = Series(files=files, read=read_plane, times=times, source=source)
    return open_series("vtk", path, series, hints, name=name)
