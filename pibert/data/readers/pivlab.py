"""PIVlab's exports to MATLAB files: version 5 through scipy, version 7.3 (HDF5) through h5py.

``x``, ``y``, ``u_original``, ``u_filtered``, ``typevector_original`` ... are cells with a matrix
per frame, in MATLAB's order (rows of y). The filtered vectors are used if there are some, else the
original ones, never the smoothed ones. Vector types are those of PIVlab's text: 0 masked, 1 valid,
2 rejected and, where it has a value, interpolated, 3 a second peak.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from pibert.data.hdf5 import check_dataset, open_hdf5
from pibert.data.readers.matlab import call_scipy, is_matlab_hdf5
from pibert.data.readers.recordings import Hints, Recordings, SourceError
from pibert.data.readers.shared.grids import on_uniform_grid, percent
from pibert.data.readers.shared.naming import standard_unit, take_flags
from pibert.data.readers.shared.stores import reading
from pibert.fields import Trajectory

_NEEDED = {"x", "y", "u_original", "v_original"}


def recognise(path: Path) -> bool:
    if path.suffix.lower() != ".mat" or not path.is_file():
        return False
    try:
        return set(_names(path)) >= _NEEDED
    except (ValueError, ImportError, OSError):
        return False


def open_recordings(path: Path, hints: Hints = Hints()) -> Recordings:
    names = _names(path)
    if missing := [name for name in (*_NEEDED, *hints.channels.values()) if name not in names]:
        raise SourceError(
            f"{path}: no variable {missing[0]!r}; there are: {', '.join(sorted(names))}"
        )
    trajectory, notes = _trajectory(path, _read(path, hints.channels.values()), hints)
    load = {trajectory.name: trajectory}.__getitem__
    return Recordings(kind="piv", path=path, names=(trajectory.name,), load=load, notes=notes)


def _trajectory(
    path: Path, cells: Mapping[str, Any], hints: Hints
) -> tuple[Trajectory, tuple[str, ...]]:
    if unread := sorted(_NEEDED - set(cells)):
        raise SourceError(f"{path}: {unread[0]!r} is empty or damaged; export it again")
    x, y = cells["x"], cells["y"]
    kind = "filtered" if _is_complete(cells, "filtered") else "original"
    if not _is_complete(cells, kind):
        raise SourceError(f"{path}: some frames of u_{kind} or v_{kind} are empty; analyse all")
    names = {"u": f"u_{kind}", "v": f"v_{kind}", **hints.channels}
    if uneven := [name for name in names.values() if len(cells.get(name, [])) != len(x)]:
        raise SourceError(f"{path}: {uneven[0]!r} does not hold one matrix for each frame")
    fields = {our: cells[theirs] for our, theirs in names.items()}
    shapes = {matrix.shape for matrix in (*x, *y, *(m for cell in fields.values() for m in cell))}
    if len(shapes) != 1 or any(not np.array_equal(a[0], b) for a in (x, y) for b in a):
        raise SourceError(
            f"{path}: the frames do not share their points (shapes {sorted(shapes)}); export those "
            "of one region of interest"
        )
    stacked = {name: np.stack(cell) for name, cell in fields.items()}
    flagged = take_flags(stacked, hints.channels)
    kinds = cells.get(f"typevector_{kind}", [])
    types = np.stack(kinds) if len(kinds) == len(x) else np.ones(stacked["u"].shape)
    filled = (types == 2) & np.isfinite(stacked["u"]) & np.isfinite(stacked["v"])
    text = str(cells.get("units") or "")
    # Such as "[px] respectively [px/frame]".
    units = [standard_unit(unit) for unit in re.findall(r"\[([^\[\]]+)\]", text)]
    length, velocity = units if len(units) == 2 else (None, None)
    notes = [f"PIVlab's {kind} vectors; y runs down the image unless it was set up otherwise"]
    if text and length is None:
        notes.append(f"the units {text!r} were not understood; give --length-unit and --unit")
    if filled.any():
        share = percent(float(filled.mean()))
        notes.append(f"{share} of the vectors were interpolated by PIVlab")
    try:
        trajectory, more = on_uniform_grid(
            path.stem,
            stacked,
            x[0],
            y[0],
            valid=types != 0 if flagged is None else (types != 0) & flagged,
            filled=filled,
            units={"u": velocity, "v": velocity} if velocity else {},
            length_unit=length,
            source={"program": "PIVlab", "file": path.name, "vectors": kind, "units": text or None},
            hints=replace(hints, channels={}),
        )
    except SourceError as error:
        raise SourceError(f"{path}: {error}") from error
    return trajectory, (*notes, *more)


def _is_complete(cells: Mapping[str, Any], kind: str) -> bool:
    frames = [cells.get(f"{name}_{kind}", []) for name in ("u", "v")]
    counts = {len(cells["x"]), *map(len, frames)}
    return len(counts) == 1 and all(matrix.size for cell in frames for matrix in cell)


def _names(path: Path) -> list[str]:
    if is_matlab_hdf5(path):
        with reading(path), open_hdf5(path) as file:
            return list(file)
    return [name for name, *_ in call_scipy(path, "whosmat")]


def _read(path: Path, more: Iterable[str]) -> dict[str, Any]:
    """Read cells as lists of matrices, and the text of the units."""
    wanted = ["x", "y", "units", *more]
    wanted += [f"{n}_{k}" for n in ("u", "v", "typevector") for k in ("original", "filtered")]
    if not is_matlab_hdf5(path):
        found = call_scipy(path, "loadmat", variable_names=wanted)
        values = {name: found[name] for name in wanted if name in found and found[name].size}
        return {name: _from_scipy(value) for name, value in values.items()}
    with reading(path), open_hdf5(path) as file:
        return {name: _from_hdf5(file, file[name]) for name in wanted if name in file}


def _from_scipy(value: np.ndarray) -> Any:
    if value.dtype.kind == "U":
        return str(value.item())
    matrices = value.ravel() if value.dtype == object else [value]
    return [np.asarray(matrix, dtype=np.float64) for matrix in matrices]


def _from_hdf5(file: h5py.File, item: h5py.Dataset) -> Any:
    if item.attrs.get("MATLAB_class") == b"char":
        return "".join(map(chr, item[()].ravel()))
    is_cell = item.dtype == h5py.ref_dtype
    matrices = [file[reference] for reference in item[()].ravel()] if is_cell else [item]
    for matrix in matrices:
        check_dataset(file.filename, matrix)  # a reference may lead outside all groups
    # An empty matrix is stored as its size; the others with their axes in reverse.
    return [
        np.empty((0, 0)) if "MATLAB_empty" in matrix.attrs else matrix[()].T.astype(np.float64)
        for matrix in matrices
    ]
