"""Readers of data that others wrote: one module per kind, asked in the order of ``SOURCES``.

Every module has a ``TITLE``, ``recognise(path)``, which is cheap and never raises, and
``open_recordings(path, hints)``. What a module needs beyond the core packages it imports when it
reads.
"""

import inspect
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pibert.data.hdf5 import is_hdf5
from pibert.data.isolation import remote
from pibert.data.sources import (
    arrays,
    cfdbench,
    eagle,
    hdf5,
    icp,
    matlab,
    native,
    netcdf,
    openfoam,
    piv,
    realpdebench,
    table,
    vtk,
    well,
)
from pibert.data.sources.marking import mark_recordings
from pibert.data.sources.metadata import state_recordings
from pibert.data.sources.numbered import expand_pattern
from pibert.data.sources.orientation import flip_recordings
from pibert.data.sources.recordings import (
    Hints,
    NamingLoader,
    Recordings,
    SourceError,
    naming,
)
from pibert.data.sources.stated import state_facts
from pibert.regular_files import require_regular

SOURCES: dict[str, Any] = {
    "native": native,
    "realpdebench": realpdebench,
    "cfdbench": cfdbench,
    "eagle": eagle,
    "icp": icp,
    "well": well,
    "piv": piv,
    "matlab": matlab,
    "netcdf": netcdf,
    "hdf5": hdf5,
    "vtk": vtk,
    "openfoam": openfoam,
    "arrays": arrays,
    "table": table,
}
"""The kinds by name; particular ones come before general ones."""

_ARRAYS = ("matlab", "netcdf", "hdf5", "arrays")
_LAYOUT = {
    "channels": tuple(kind for kind in SOURCES if kind != "native"),
    "axes": _ARRAYS,
    "shape": ("eagle", "icp", "piv", "vtk", "openfoam", "table", *_ARRAYS),
}
"""Hints on the layout of arrays, and the kinds that need them."""

ISOLATED = ("icp", "well", "piv", "matlab", "netcdf", "hdf5", "vtk", "openfoam")
"""Kinds that are read in a process of their own. The others are NumPy's, text, or data sets that
training reads as they are."""

_ADVICE = {
    (".pt", ".pth", ".pkl", ".pickle"): "it may hold code, so it is not opened; save the arrays "
    "with numpy.savez",
    (".zip", ".tar", ".gz", ".tgz", ".7z", ".rar", ".bz2", ".xz"): "unpack it first",
    (".im7", ".vc7", ".set"): "DaVis's binary files are not read; export the vectors as "
    "text in DaVis, or save them as NetCDF with PIVPy and lvpyio",
    (".plt", ".szplt"): "Tecplot's binary files are not read; export them as text, VTK or MATLAB",
    (".cgns", ".cas", ".case", ".encas"): "export it as VTK (ParaView does)",
    (".xlsx", ".xls", ".ods"): "save the sheet as .csv",
    (".png", ".jpg", ".jpeg", ".tif", ".tiff", ".bmp", ".avi", ".mp4"): "an image is not a flow "
    "field; run a PIV program on it and give its vectors",
}


def identify(path: Path | str, *, isolate: bool = True) -> str:
    """The kind of a file, a folder or the files of a pattern, a key of ``SOURCES``.

    Args:
        path: The file, folder or pattern.
        isolate: Look into a file that HDF5 or scipy parses in a process of its own.
    """
    path = Path(path)
    _require(path)
    if path.is_dir() and not any(path.iterdir()):
        raise SourceError(f"{path}: the folder is empty; name the folder that holds the data")
    if path.is_file() and not path.stat().st_size:
        raise SourceError(f"{path}: the file is empty; get a new copy of it")
    if native.recognise(path):
        return "native"
    if isolate and remote.is_available() and _needs_parsing(path):
        return remote.identify_apart(path)
    for kind, source in SOURCES.items():
        if source.recognise(path):
            return kind
    known = "; ".join(f"{kind}: {source.TITLE}" for kind, source in SOURCES.items())
    inside = {file.suffix.lower() for file in path.iterdir()} if path.is_dir() else set()
    for suffixes, advice in _ADVICE.items():
        if path.suffix.lower() in suffixes:
            raise SourceError(f"{path}: not a file that can be read here: {advice}. Known: {known}")
        if held := sorted(inside & {*suffixes}):
            raise SourceError(f"{path}: a folder of {held[0]} files: {advice}. Known: {known}")
    if not path.exists():
        raise SourceError(
            f"{path}: the files of this pattern are no PIV vectors, text in columns or files of "
            "PIBERT's own, which alone a pattern joins; name one file or the folder"
        )
    what = "folder" if path.is_dir() else "file"
    raise SourceError(
        f"{path}: a {what} of no known kind; say which it is (--kind; in an "
        "experiment data.kind), or save the arrays as .npz "
        f"with the names u, v, x, y, t. Known: {known}"
    )


def open_recordings(
    path: Path | str,
    kind: str | None = None,
    hints: Hints = Hints(),
    options: Mapping[str, Any] = MappingProxyType({}),
    *,
    isolate: bool = True,
) -> Recordings:
    """Open a file or folder of any known kind; no field is read yet.

    Args:
        path: The file or folder; for PIV, columns and our own files also a pattern such as
            ``run/B*.txt``.
        kind: A key of ``SOURCES``, where the data itself should not decide.
        hints: What the user knows and the file does not say.
        options: What the reader of this kind takes beyond that, see ``options_of``.
        isolate: Read the kinds in ``ISOLATED`` in a process of their own, with limits on memory
            and time; a damaged file may crash or hang the libraries that parse it.
    """
    path = Path(path)
    if kind is None:
        kind = identify(path, isolate=isolate)
    foreign = sorted(set(options) - set(options_of(kind)))
    if foreign:
        raise ValueError(
            f"{path}: the reader of kind {kind!r} has no option {', '.join(foreign)}; "
            f"it has: {', '.join(options_of(kind)) or 'none'}"
        )
    _require(path)
    for name in idle_hints(kind, vars(hints)):
        raise SourceError(
            f"{path}: --{name} means nothing for files of kind {kind!r}, which state it "
            "themselves; leave it out"
        )
    seen = _for_reader(hints)
    with naming(path):
        if isolate and kind in ISOLATED and remote.is_available():
            recordings = remote.open_apart(path, kind, seen, options)
        else:
            recordings = SOURCES[kind].open_recordings(path, seen, **options)
        # After the flip: sides and regions are those of the fields as they come out.
        flipped = flip_recordings(state_recordings(recordings, hints), hints.flip)
        marked = mark_recordings(state_facts(flipped, hints), hints.body, hints.mask)
    return replace(marked, load=NamingLoader(path, marked.load))


def _for_reader(hints: Hints) -> Hints:
    """The hints that readers see; the others are applied here, the same way for every kind.

    dt, dx and dy may stand in for what a file does not state.
    """
    return Hints(**{name: getattr(hints, name) for name in (*_LAYOUT, "dt", "dx", "dy")})


def idle_hints(kind: str, given: Mapping[str, Any]) -> list[str]:
    """Names of those given hints on the layout of arrays that files of a kind do not need."""
    return [name for name, kinds in _LAYOUT.items() if given.get(name) and kind not in kinds]


def options_of(kind: str) -> tuple[str, ...]:
    """What the reader of a kind takes beyond path and hints."""
    if kind not in SOURCES:
        raise ValueError(f"unknown kind {kind!r}; choose from: {', '.join(SOURCES)}")
    return tuple(inspect.signature(SOURCES[kind].open_recordings).parameters)[2:]


def _needs_parsing(path: Path) -> bool:
    """Whether HDF5 or scipy must parse a file to tell what it is."""
    return path.is_file() and (path.suffix.lower() == ".mat" or is_hdf5(path))


def _require(path: Path) -> None:
    require_regular(path)
    if not path.exists() and not expand_pattern(path):
        what = "file that fits" if set("*?[") & set(str(path)) else "file or folder"
        raise FileNotFoundError(f"{path}: there is no such {what}")
