"""PIVlab's sessions and exports to MATLAB files: version 5 through scipy, 7.3 (HDF5) through h5py.

In exports ``x``, ``y``, ``u_original``, ``u_filtered``, ``typevector_original`` ... are cells with
a matrix per frame, in MATLAB's order (rows of y). The filtered vectors are used if there are some,
else the original ones, never the smoothed ones. Vector types are those of PIVlab's text: 0 masked,
1 valid, 2 rejected and, where it has a value, interpolated, 3 a second peak.

A session has the cells ``resultslist`` (12 x frames) in pixels: x, y, u, v, types, an unused row,
u, v and types filtered, u and v smoothed, correlation. ``calxy`` (m/px), ``calu`` and ``calv``
(m/s for px/frame, negative for a reversed axis), axis directions and offsets are its calibration,
applied as PIVlab does in its exports. With ``displacement_only``, ``calu`` and ``calv`` are in m.
Since late 2026 the results are in the struct ``pivlab_data``, the axis directions in
``pivlab_settings.calibration``; before, all are variables of the file.
"""

import re
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from pibert.data.hdf5 import check_dataset, is_hdf5, open_hdf5
from pibert.data.readers.matlab import PIVLAB, call_scipy
from pibert.data.readers.recordings import Hints, Recordings, SourceError, naming, reading
from pibert.data.readers.shared.grids import on_uniform_grid
from pibert.data.readers.shared.interpolation import percent
from pibert.data.readers.shared.naming import standard_unit, take_flags
from pibert.fields import Trajectory

_NEEDED = {"x", "y", "u_original", "v_original"}
_DATA, _SETTINGS = "pivlab_data", "pivlab_settings"
_SESSION = {"resultslist", _DATA}
_ROWS = {
    **{"x": 0, "y": 1, "u_original": 2, "v_original": 3, "typevector_original": 4},
    **{"u_filtered": 6, "v_filtered": 7, "typevector_filtered": 8, "correlation": 11},
}
"""Of ``resultslist``."""
_CALIBRATION = (
    *("calxy", "calu", "calv", "caluv", "offset_x_true", "offset_y_true", "displacement_only"),
)
_DIRECTIONS = ("x_axis_direction", "y_axis_direction", "size_of_the_image")
_NO_RESULTS = "the session has no results; analyse the images in PIVlab first"
MAY_RUN_DOWN = "PIVlab's y runs down the image unless it was set up otherwise, and v is along it"
UPRIGHT = (
    "the flow is then upside down, and its vorticity has the opposite sign; --flip y,v turns it "
    "upright"
)


def recognise(path: Path) -> bool:
    return path.is_file() and bool(PIVLAB & set(_names(path)))


def open_recordings(path: Path, hints: Hints = Hints()) -> Recordings:
    names = _names(path)
    cells = None
    if not _NEEDED <= set(names) and _SESSION & set(names):
        cells = _read_session(path)
        names = list(cells)
    if missing := [name for name in (*_NEEDED, *hints.channels.values()) if name not in names]:
        raise SourceError(
            f"{path}: no variable {missing[0]!r}; there are: {', '.join(sorted(names))}"
        )
    if cells is None:
        cells = _read(path, hints.channels.values())
    trajectory, notes = _trajectory(path, cells, hints)
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
            f"{path}: frames do not share their points (shapes {sorted(shapes)}); export one region"
        )
    stacked = {name: np.stack(cell) for name, cell in fields.items()}
    frames = np.array(cells.get("frames", range(len(x))), dtype=np.float64)
    flagged = take_flags(stacked, hints.channels)
    kinds = cells.get(f"typevector_{kind}", [])
    types = np.stack(kinds) if len(kinds) == len(x) else np.ones(stacked["u"].shape)
    filled = (types == 2) & np.isfinite(stacked["u"]) & np.isfinite(stacked["v"])
    text = str(cells.get("units") or "")
    # Such as "[px] respectively [px/frame]".
    units = [standard_unit(unit) for unit in re.findall(r"\[([^\[\]]+)\]", text)]
    length, velocity = units if len(units) == 2 else (None, None)
    notes = [f"PIVlab's {kind} vectors", *_orientation(cells)]
    if text and length is None:
        notes.append(f"the units {text!r} were not understood; give --length-unit and --unit")
    if filled.any():
        share = percent(float(filled.mean()))
        notes.append(f"{share} of the vectors were interpolated by PIVlab")
    with naming(path):
        trajectory, more = on_uniform_grid(
            path.stem,
            stacked,
            x[0],
            y[0],
            valid=types != 0 if flagged is None else (types != 0) & flagged,
            filled=filled,
            time=frames,
            counted=True,
            units={"u": velocity, "v": velocity} if velocity else {},
            length_unit=length,
            source={"program": "PIVlab", "file": path.name, "vectors": kind, "units": text or None},
            shape=hints.shape,
        )
    return trajectory, (*notes, *more)


def _orientation(cells: Mapping[str, Any]) -> list[str]:
    """A note if the axes are, or may be, those of the image."""
    signs = [cells[name][0].flat[0] for name in ("calu", "calv") if name in cells]
    if len(signs) == 2 and signs[0] * signs[1] < 0:
        return []
    known = "y runs down the image" if len(signs) == 2 else MAY_RUN_DOWN
    return [f"{known}: {UPRIGHT}"]


def _is_complete(cells: Mapping[str, Any], kind: str) -> bool:
    frames = [cells.get(f"{name}_{kind}", []) for name in ("u", "v")]
    counts = {len(cells["x"]), *map(len, frames)}
    return len(counts) == 1 and all(matrix.size for cell in frames for matrix in cell)


def _names(path: Path) -> list[str]:
    if is_hdf5(path):
        with reading(path), open_hdf5(path) as file:
            return list(file)
    return [name for name, *_ in call_scipy(path, "whosmat")]


def _read(path: Path, more: Iterable[str]) -> dict[str, Any]:
    """Read cells as lists of matrices, and the text of the units."""
    wanted = ["x", "y", "units", "calu", "calv", *more]
    wanted += [f"{n}_{k}" for n in ("u", "v", "typevector") for k in ("original", "filtered")]
    if not is_hdf5(path):
        found = call_scipy(path, "loadmat", variable_names=wanted)
        values = {name: found[name] for name in wanted if name in found and found[name].size}
        return {name: _from_scipy(value) for name, value in values.items()}
    with reading(path), open_hdf5(path) as file:
        return {name: _from_hdf5(file, file[name]) for name in wanted if name in file}


def _read_session(path: Path) -> dict[str, Any]:
    """Read the cells of an export from a session, in metres and m/s if it is calibrated."""
    rows, stated = _session_of_hdf5(path) if is_hdf5(path) else _session_of_scipy(path)
    kept = [frame for frame, x in enumerate(rows[0]) if x.size] if len(rows) > 4 else []
    if not kept:
        raise SourceError(f"{path}: no frame of the session was analysed; analyse them in PIVlab")
    cells: dict[str, Any] = {
        name: [rows[row][frame] for frame in kept] for name, row in _ROWS.items() if row < len(rows)
    }
    # Frames that were not analysed leave gaps in time.
    cells["frames"] = [frame - kept[0] for frame in kept]
    value = {name: float(n.flat[0]) for name, n in stated.items() if n.size}
    scale = value.get("calxy", 1.0)
    factors = {axis: value.get(f"cal{axis}", value.get("caluv", 1.0)) for axis in "uv"}
    for name, size_index in (("x", 1), ("y", 0)):
        reverse, size = value.get(f"{name}_axis_direction") == 2, stated.get("size_of_the_image")
        if reverse and (size is None or size.size < 2):
            raise SourceError(f"{path}: it lacks the size of the image; export the frames instead")
        end = float(size.flat[size_index]) if reverse and size is not None else 0.0
        offset, sign = value.get(f"offset_{name}_true", 0.0), -1 if reverse else 1
        cells[name] = [(end + sign * places) * scale - offset for places in cells[name]]
    for name in cells:
        if name[:2] in ("u_", "v_"):
            cells[name] = [matrix * factors[name[0]] for matrix in cells[name]]
    calibrated = scale != 1 or {abs(factor) for factor in factors.values()} != {1.0}
    velocity = "m/frame" if value.get("displacement_only") == 1 else "m/s"
    cells["units"] = f"[m] [{velocity}]" if calibrated else "[px] [px/frame]"
    return cells | {f"cal{axis}": [np.array([factor])] for axis, factor in factors.items()}


def _session_of_hdf5(path: Path) -> tuple[list[list[np.ndarray]], dict[str, np.ndarray]]:
    """Rows of ``resultslist``, and the calibration."""
    with reading(path), open_hdf5(path) as file:
        data = file.get(_DATA, file)
        settings = file.get(f"{_SETTINGS}/calibration", file)
        results = data.get("resultslist")
        if getattr(results, "dtype", None) != h5py.ref_dtype or results.ndim != 2:
            raise SourceError(f"{path}: {_NO_RESULTS}")
        rows = [[_matrix(file, cell) for cell in row] for row in results[()].T]
        named = {name: data[name] for name in (*_CALIBRATION, *_DIRECTIONS) if name in data}
        named |= {name: settings[name] for name in _DIRECTIONS if name in settings}
        return rows, {name: _matrix(file, item.name) for name, item in named.items()}


def _session_of_scipy(path: Path) -> tuple[list[list[np.ndarray]], dict[str, np.ndarray]]:
    numbers = (*_CALIBRATION, *_DIRECTIONS)
    wanted = ["resultslist", *numbers, _DATA, _SETTINGS]
    found = call_scipy(path, "loadmat", variable_names=wanted)
    if _DATA in found:
        settings = _fields(found.get(_SETTINGS)).get("calibration")
        found = {**_fields(found[_DATA]), **_fields(settings)}
    results = found.get("resultslist")
    if results is None or results.dtype != object or results.ndim != 2:
        raise SourceError(f"{path}: {_NO_RESULTS}")
    rows = [_from_scipy(row) for row in results]
    return rows, {name: _from_scipy(found[name])[0] for name in numbers if name in found}


def _fields(struct: np.ndarray | None) -> dict[str, np.ndarray]:
    """The fields of a struct by name; none if it is none."""
    names = struct.dtype.names if struct is not None and struct.size else None
    return {} if struct is None else {name: struct[name].flat[0] for name in names or ()}


def _matrix(file: h5py.File, key: Any) -> np.ndarray:
    item = file[key]
    check_dataset(file.filename, item)  # a reference may lead outside all groups
    # An empty matrix is stored as its size; the others with their axes in reverse. MATLAB's have
    # two axes or more, also where a copy of the file has lost MATLAB's attributes.
    if "MATLAB_empty" in item.attrs or item.ndim == 1:
        return np.empty((0, 0))
    return item[()].T.astype(np.float64)


def _from_scipy(value: np.ndarray) -> Any:
    if value.dtype.kind == "U":
        return str(value.item())
    matrices = value.ravel() if value.dtype == object else [value]
    return [np.asarray(matrix, dtype=np.float64) for matrix in matrices]


def _from_hdf5(file: h5py.File, item: h5py.Dataset) -> Any:
    if item.attrs.get("MATLAB_class") == b"char":
        return "".join(map(chr, item[()].ravel()))
    is_cell = item.dtype == h5py.ref_dtype
    keys = item[()].ravel() if is_cell else [item.name]
    return [_matrix(file, key) for key in keys]
