"""Readers of other formats. To add one: a module here and a line in ``READERS``.

A reader has a ``TITLE``, ``recognise(path)``, which is cheap (a ``ValueError``, ``OSError`` or
``ImportError`` means no; every other error is one of the reader), and
``open_recordings(path, hints)``. Optional constants: ``HINTS``, the hints on the layout of arrays
that it uses (default: channels); ``ISOLATED``, whether files are read in a separate process
(default: True); ``MEASURED``, whether positions may be in pixels (default: False; if True, the
first trajectory is loaded at once); ``UPLOADS``, suffixes of files that the server accepts: whole
in themselves, because a server must open no file that another one names (default: none). Optional
function: ``download_command(path)``, how to get published data that are not there. Optional
packages are imported when a file is read. ``shared`` has the common code for names, arrays, grids,
text and metadata.

Readers of other packages (entry points ``pibert.readers``) are asked first, and read in this
process unless they state ``ISOLATED = True``.
"""

import inspect
import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pibert.data.hdf5 import is_hdf5
from pibert.data.isolation import Limits, remote
from pibert.data.readers import (
    arrays,
    cfdbench,
    davis,
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
    tensors,
    vtk,
    well,
)
from pibert.data.readers.recordings import Hints, Recordings, SourceError, naming, reading
from pibert.data.readers.shared.files import expand_pattern, read_head
from pibert.data.readers.shared.metadata import state_facts, state_recordings
from pibert.data.readers.shared.regions import flip_recordings, mark_recordings, rotate_recordings
from pibert.fields import Trajectory
from pibert.files import require_regular
from pibert.notes import Note, warn
from pibert.plugins import Table

_OWN: dict[str, Any] = {
    "native": native,
    "realpdebench": realpdebench,
    "cfdbench": cfdbench,
    "eagle": eagle,
    "icp": icp,
    "well": well,
    "piv": piv,
    "davis": davis,
    "matlab": matlab,
    "netcdf": netcdf,
    "hdf5": hdf5,
    "vtk": vtk,
    "openfoam": openfoam,
    "arrays": arrays,
    "safetensors": tensors,
    "table": table,
}
"""The kinds by name; particular ones come before general ones."""


def _reader(found: Any) -> Any:
    needed = ("TITLE", "recognise", "open_recordings")
    if missing := [name for name in needed if not hasattr(found, name)]:
        raise ValueError(f"expected a reader with {', '.join(needed)}, found no {missing[0]}")
    return found


READERS: Table[Any] = Table("pibert.readers", _OWN, _reader)
ISOLATED = tuple(kind for kind, reader in _OWN.items() if getattr(reader, "ISOLATED", True))
"""Kinds of this package that are read in a separate process."""
UPLOADS = tuple(dict.fromkeys(end for own in _OWN.values() for end in getattr(own, "UPLOADS", ())))
"""Suffixes of the files that the server accepts."""
_LAYOUT = ("channels", "axes", "shape")
"""Hints on the layout of arrays."""

_TEXTS = {*piv.UPLOADS, *table.UPLOADS}
_MOST_TRIED = 20
"""Files in folders to look into."""
_ADVICE = {
    (".pt", ".pth", ".pkl", ".pickle"): "it may hold code, so it is not opened; save the arrays "
    "with numpy.savez",
    (".zip", ".tar", ".gz", ".tgz", ".7z", ".rar", ".bz2", ".xz"): "unpack it first",
    (".set",): "name the folder of its .vc7 files instead",
    (".plt", ".szplt"): "binary Tecplot files are not read; export them as text, VTK or MATLAB",
    (
        ".xdmf",
        ".xmf",
    ): "XDMF is written for other programs, but not read; give the file it was "
    "made from, or write .pvd, which is read",
    (".cgns", ".cas", ".case", ".encas"): "export it as VTK (ParaView does)",
    (".xlsx", ".xls", ".ods"): "save the sheet as .csv",
    (".png", ".jpg", ".jpeg", ".tif", ".tiff", ".bmp", ".avi", ".mp4"): "an image is not a flow "
    "field; run a PIV program on it and give its vectors",
}


def identify(path: Path | str, *, isolate: bool | Limits = True) -> str:
    """Return the kind of a file, a folder or the files of a pattern, a key of ``READERS``.

    With ``isolate``, files that HDF5 or scipy must parse are examined in a separate process; with
    limits, all files.
    """
    path = Path(path)
    _require(path)
    if path.is_dir() and not any(path.iterdir()):
        raise SourceError(f"{path}: the folder is empty; name the folder that holds the data")
    # An empty .foam file stands for the case in its folder.
    is_empty = path.is_file() and not path.stat().st_size
    if is_empty and not _recognises("openfoam", openfoam, path):
        raise SourceError(f"{path}: the file is empty; get a new copy of it")
    if isinstance(isolate, Limits):
        return remote.identify_isolated(path, isolate)
    if _recognises("native", native, path):
        return "native"
    for kind, source in READERS.added().items():
        if _recognises(kind, source, path):
            return kind
    is_parsed = path.is_file() and (path.suffix.lower() == ".mat" or is_hdf5(path))
    if isolate and is_parsed and remote.is_available():
        return remote.identify_isolated(path)
    for kind, source in _OWN.items():
        if _recognises(kind, source, path):
            return kind
    _require_readable(path)
    inside = {file.suffix.lower() for file in path.iterdir()} if path.is_dir() else set()
    what = "folder" if path.is_dir() else "file"
    likely = "openfoam, piv or vtk"
    if path.is_file():
        likely = "arrays, hdf5 or vtk" if read_head(path) is None else "piv or table"
    problem = (
        f"a {what} of no known kind; state it (--kind {likely}, for instance; pibert info lists "
        "all), or save the arrays as .npz with the names u, v, x, y, t"
    )
    if not path.exists():
        problem = (
            "a pattern may name PIV vectors, text in columns, .npz files and PIBERT's own files, "
            "found others; convert each file (pibert convert FILE NAME.h5) and join them: pibert "
            "convert '*.h5' all.h5"
        )
    elif ".npz" in inside:
        problem = (
            "a folder of .npz and other files; name those that are flows with a quoted pattern: "
            f"'{path}/*.npz'"
        )
    elif path.is_dir() and (pattern := _pattern_of_folders(path)):
        problem = (
            "its folders hold text in columns; name the files with a quoted pattern, in which each "
            f"folder is a recording: '{pattern}'"
        )
    for suffixes, advice in _ADVICE.items():
        if path.suffix.lower() in suffixes:
            problem = f"this file cannot be read: {advice}"
        elif held := sorted(inside & {*suffixes}):
            problem = f"a folder of {held[0]} files: {advice}"
    raise SourceError(f"{path}: {problem}")


def _pattern_of_folders(path: Path) -> str | None:
    """Return a pattern for text in the folders of a folder, such as ``DIR/run*/*.csv``."""
    texts = sorted(file for file in path.glob("*/*") if file.suffix.lower() in _TEXTS)
    for file in texts[:_MOST_TRIED]:
        if _recognises("piv", piv, file) or _recognises("table", table, file):
            start = re.sub(r"\d.*", "", file.parent.name)
            return f"{path}/{start}*/*{file.suffix}"
    return None


def _require_readable(path: Path) -> None:
    """Name a file that cannot be opened: no reader recognises what it cannot read."""
    for file in sorted(path.iterdir()) if path.is_dir() else expand_pattern(path) or [path]:
        if file.is_file():
            with reading(file, remedy="check its permissions and the disk", errors=(OSError,)):
                file.open("rb").close()


def _recognises(kind: str, source: Any, path: Path) -> bool:
    try:
        return bool(source.recognise(path))
    except Exception as error:
        if kind in _OWN and isinstance(error, ValueError | OSError | ImportError):
            return False  # damaged, of another kind, or it needs a package
        if kind in _OWN or isinstance(error, MemoryError):
            raise
        text = f"the reader {kind!r} of another package failed on {path}: {error!r}"
        warn(Note("plugin", text, subject=kind))
        return False


def open_recordings(
    path: Path | str,
    kind: str | None = None,
    hints: Hints = Hints(),
    options: Mapping[str, Any] = MappingProxyType({}),
    *,
    isolate: bool | Limits = True,
) -> Recordings:
    """Open a file or folder of any known kind; no field is read yet.

    PIV, columns, ``.npz`` and native files may also be given as a pattern such as ``run/B*.txt``.
    ``kind`` is a key of ``READERS`` (default: by ``identify``); ``options`` are further arguments
    of the reader (``options_of``). With ``isolate`` most kinds are read in a separate process, with
    limits on memory and time: a damaged file may crash or hang the libraries that parse it. With
    limits of the caller, all kinds are.
    """
    path = Path(path)
    if kind is None:
        kind = identify(path, isolate=isolate)
    if foreign := sorted(set(options) - set(options_of(kind))):
        raise ValueError(
            f"{path}: the reader of kind {kind!r} has no option {', '.join(foreign)}; "
            f"it has: {', '.join(options_of(kind)) or 'none'}"
        )
    _require(path, getattr(READERS[kind], "download_command", None))
    for name in idle_hints(kind, vars(hints)):
        raise SourceError(
            f"{path}: --{name} means nothing for files of kind {kind!r}, which state it; "
            "leave it out"
        )
    layout = _layout(hints)
    with naming(path):
        is_isolated = getattr(READERS[kind], "ISOLATED", kind in _OWN)
        if isinstance(isolate, Limits):
            recordings = remote.open_isolated(path, kind, layout, options, isolate)
        elif isolate and is_isolated and remote.is_available():
            recordings = remote.open_isolated(path, kind, layout, options)
        else:
            recordings = READERS[kind].open_recordings(path, layout, **options)
        measured = getattr(READERS[kind], "MEASURED", False)
        recordings = _with_hints(recordings, hints, measured=measured)

    def load(name: str) -> Trajectory:
        with naming(path):
            return recordings.load(name)

    return replace(recordings, load=load)


def open_memory(data: Any, hints: Hints = Hints(), *, name: str = "flow") -> Recordings:
    """Fields in memory as recordings: arrays by name, or an xarray ``Dataset``.

    Names, units and hints mean what they mean in a file of kind ``arrays`` or ``netcdf``.
    """
    layout = _layout(hints)
    with naming(Path(name)):
        if isinstance(data, Mapping) and not hasattr(data, "data_vars"):
            recordings = arrays.open_memory(data, layout, name)
        else:
            recordings = netcdf.open_dataset(data, layout, name)
        return _with_hints(recordings, hints, measured=True)


def _layout(hints: Hints) -> Hints:
    """The hints that readers get; steps and ``time_unit`` stand in for what a file leaves out."""
    names = (*_LAYOUT, "dt", "dx", "dy", "time_unit")
    return Hints(**{name: getattr(hints, name) for name in names})


def _with_hints(recordings: Recordings, hints: Hints, *, measured: bool) -> Recordings:
    """Apply the other hints, the same way for every kind."""
    recordings = state_recordings(recordings, hints, measured=measured)
    # Sides and regions are those of the flipped and rotated fields.
    recordings = flip_recordings(recordings, hints.flip)
    recordings = rotate_recordings(recordings, hints.rotate, hints.family)
    recordings = state_facts(recordings, hints)
    return mark_recordings(recordings, hints.body, hints.mask)


def idle_hints(kind: str, given: Mapping[str, Any]) -> list[str]:
    """Return the given hints on the layout of arrays that files of a kind do not need."""
    used = getattr(READERS[kind], "HINTS", ("channels",))
    return [name for name in _LAYOUT if given.get(name) and name not in used]


def options_of(kind: str) -> tuple[str, ...]:
    """Return the arguments of a reader besides path and hints."""
    if kind not in READERS:
        raise ValueError(f"unknown kind {kind!r}; choose from: {', '.join(READERS)}")
    return tuple(inspect.signature(READERS[kind].open_recordings).parameters)[2:]


def _require(path: Path, download_command: Callable[[Path], str] | None = None) -> None:
    require_regular(path)
    if not path.exists() and not expand_pattern(path):
        pattern = bool(set("*?[") & set(str(path)))
        problem = "no file matches this pattern" if pattern else "there is no such file or folder"
        if download_command is not None:
            problem += f"; name the folder of the data, or get them: {download_command(path)}"
        raise FileNotFoundError(f"{path}: {problem}")
