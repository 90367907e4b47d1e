"""VTK: legacy .vtk; XML .vti, .vtr, .vts, .vtu, .vtp; blocks .vtm; series .pvd, .series; folders.

A folder of numbered files is a flow. The times are those of the series, or those that every file
states; else the frames are counted.
"""

import contextlib
import re
from collections.abc import Sequence
from pathlib import Path

from pibert.data.provenance import own_facts
from pibert.data.sources.assembly.frames import CellPlane, Plane, Series
from pibert.data.sources.assembly.planes import open_series
from pibert.data.sources.assembly.space import cut_plane
from pibert.data.sources.recordings import Hints, Recordings, SourceError
from pibert.data.sources.vtk.collections import find_flow, read_collection
from pibert.data.sources.vtk.legacy import HEAD, read_legacy
from pibert.data.sources.vtk.xml import read_xml

TITLE = "VTK (.vtk, .vti, .vtr, .vts, .vtu, .vtp, .vtm, .pvd, .series)"

_FRAMES = (".vtk", ".vti", ".vtr", ".vts", ".vtu", ".vtp", ".vtm")
_SERIES = (".pvd", ".series")
_HEAD = 1 << 14
_OWN = re.compile(rb"<!-- PIBERT (\{.*?\}) -->")
"""In the head of a file that this package wrote."""
# They name the files of their parts: taken for VTK, so that opening them says what to do.
_PARTS = (".pvti", ".pvtr", ".pvts", ".pvtu", ".pvtp")


def recognise(path: Path) -> bool:
    if path.is_dir():
        try:
            return any(entry.suffix.lower() in (*_FRAMES, *_SERIES) for entry in path.iterdir())
        except OSError:
            return False
    return path.suffix.lower() in (*_FRAMES, *_PARTS, *_SERIES) and path.is_file()


def open_recordings(path: Path, hints: Hints = Hints()) -> Recordings:
    if path.is_dir():
        collections = [entry for entry in path.iterdir() if entry.suffix.lower() in _SERIES]
        # Of a case there may be series of its patches, too: that of the blocks holds the flow.
        blocks = [entry for entry in collections if entry.name.lower().endswith(".vtm.series")]
        for found in (collections, blocks):
            if len(found) == 1:
                return _open_collection(found[0], hints)
        return _open_folder(path, hints)
    if path.suffix.lower() in _SERIES:
        return _open_collection(path, hints)
    return _open([path], path, hints, name=path.stem)


def read_plane(path: Path) -> Plane | CellPlane:
    """The plane in one file."""
    try:
        if path.suffix.lower() == ".vtm":
            path = find_flow(path)
        with path.open("rb") as file:
            legacy = file.read(len(HEAD)) == HEAD
        mesh = read_legacy(path) if legacy or path.suffix.lower() == ".vtk" else read_xml(path)
    except OSError as error:
        raise SourceError(f"{path}: it cannot be read ({error.strerror})") from error
    return cut_plane(mesh, path)


def _open_collection(path: Path, hints: Hints) -> Recordings:
    times, files = zip(*read_collection(path), strict=True)
    return _open(files, path, hints, times=times, name=path.name.partition(".")[0])


def _open_folder(path: Path, hints: Hints) -> Recordings:
    """The files of a folder as frames, in the order of the number that ends their names."""
    files = [entry for entry in path.iterdir() if entry.suffix.lower() in _FRAMES]
    series: dict[tuple[str, str], list[tuple[int, Path]]] = {}
    for file in files:
        stem, number = re.fullmatch(r"(.*?)(\d*)", file.stem).groups()  # type: ignore[union-attr]
        series.setdefault((stem, file.suffix), []).append((int(number or 0), file))
    if len(series) > 1:
        names = ", ".join(f"{stem}*{suffix}" for stem, suffix in sorted(series)[:8])
        raise SourceError(
            f"{path}: it holds several series, {names}; name one file, or give each series a folder"
        )
    ordered = [file for _, file in sorted(next(iter(series.values())))]
    times = None
    if read_plane(ordered[0]).time is not None:
        stated = [read_plane(file).time for file in ordered]
        times = None if None in stated else [time for time in stated if time is not None]
    return _open(ordered, path, hints, times=times, name=path.name)


def _open(
    files: Sequence[Path],
    path: Path,
    hints: Hints,
    *,
    name: str,
    times: Sequence[float] | None = None,
) -> Recordings:
    said = None
    with contextlib.suppress(OSError), files[0].open("rb") as file:  # reading it says what is wrong
        said = _OWN.search(file.read(_HEAD))
    source = {} if said is None else own_facts(said[1].decode("utf-8", "replace"))
    series = Series(files=files, read=read_plane, times=times, source=source)
    return open_series("vtk", path, series, hints, name=name)
