"""Small files as PIV programs write them: headers, separators, order of the rows, flags."""

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import scipy.io

from tests.lookalikes.matlab import write_head_73


def sample(rows: int = 4, columns: int = 6, step: float = 16.0) -> dict[str, np.ndarray]:
    """Vectors on a non-square grid whose values tell every point from every other."""
    x, y = np.meshgrid(step * np.arange(1, columns + 1), 0.5 * step * np.arange(1, rows + 1))
    return {"x": x, "y": y, "u": 1 + 0.01 * x - 0.1 * y, "v": 2 - 0.02 * x + 0.3 * y}


def write_openpiv(
    path: Path, field: dict[str, np.ndarray], flags: Any = None, mask: Any = None
) -> None:
    """Rows from the top of the image, y upward, as OpenPIV 0.24 and later; old files lack flags."""
    columns = dict(field)
    if flags is not None:
        columns["flags"] = flags
    if mask is not None:
        columns["mask"] = mask
    data = np.stack([values[::-1].ravel() for values in columns.values()], -1)
    np.savetxt(path, data, "%.4e", "\t", header="\t".join(columns), comments="# ")


def write_pivlab(
    path: Path,
    field: dict[str, np.ndarray],
    types: np.ndarray | None = None,
    *,
    scale: tuple[float, float] = (1.0, 1.0),
    separator: str = ",",
) -> None:
    """Column by column, as MATLAB runs through a matrix; metres once it is calibrated."""
    xy, uv = scale
    names = ["x [px]", "y [px]", "u [px/frame]", "v [px/frame]"]
    if scale != (1.0, 1.0):
        names = ["x [m]", "y [m]", "u [m/s]", "v [m/s]"]
    columns = [field["x"] * xy, field["y"] * xy, field["u"] * uv, field["v"] * uv]
    if types is not None:
        names.append("Vector type [-]")
        columns.append(types)
        columns[2:4] = [np.where(types == 0, np.nan, values) for values in columns[2:4]]
    header = (
        "PIVlab by W.Th. & E.J.S., ASCII chart output - 01-Feb-2024\r\n"
        "FRAME: 1, filenames: A: a_001.tif & B: a_002.tif, "
        f"conversion factor xy (px -> m): {xy}, conversion factor uv (px/frame -> m/s): {uv}\r\n"
    )
    rows = np.stack([column.T.ravel() for column in columns], -1)
    lines = [separator.join("NaN" if np.isnan(v) else f"{v:.10g}" for v in row) for row in rows]
    path.write_text(header + separator.join(names) + "\r\n" + "\r\n".join(lines) + "\r\n")


def write_tsi(
    path: Path,
    field: dict[str, np.ndarray],
    chc: np.ndarray,
    length: str = "mm",
    speed: str = "m/s",
    *,
    pixel: tuple[float, float] | None = (85.81, 85.81),
    delay: float = 50.0,
) -> None:
    """Without a size of the pixel (micrometres), as Insight writes what is not calibrated."""
    rows, columns = field["x"].shape
    sizes = "".join(
        f'MicrometersPerPixel{axis}="{size:.6f}" DATASETAUXDATA '
        for axis, size in zip("XY", pixel or (), strict=False)
    )
    header = (
        f'TITLE="C:\\Run\\{path.name}" VARIABLES="X {length}", "Y {length}", "U {speed}", '
        f'"V {speed}", "CHC", DATASETAUXDATA Application="PIV" DATASETAUXDATA '
        f'{sizes}LengthUnit="{length}" DATASETAUXDATA '
        f'MicrosecondsPerDeltaT="{delay:.6f}" ZONE I={columns}, J={rows}, F=POINT\n'
    )
    data = np.stack([field[name][::-1].ravel() for name in "xyuv"], -1)
    rows_of_text = [
        ", ".join(f"{value:.6f}" for value in row) + f", {code:d}\n"
        for row, code in zip(data, chc[::-1].ravel().astype(int), strict=True)
    ]
    path.write_text(header + "".join(rows_of_text))


def write_davis(path: Path, field: dict[str, np.ndarray], *, decimal_comma: bool) -> None:
    """From the top left on; DaVis writes a missing vector as ``0`` and ``-0``."""
    rows, columns = field["x"].shape
    header = f'#DaVis 8.1.6 2D-vector 32 {rows} {columns} "position" "mm" "position" "mm" '
    lines = []
    for row in np.stack([field[name][::-1].ravel() for name in "xyuv"], -1):
        missing = np.isnan(row[2:]).any()
        lines.append("\t".join(f"{v:.6g}" for v in row[:2]) + "\t")
        lines[-1] += "0\t-0" if missing else "\t".join(f"{v:.6g}" for v in row[2:])
    body = "\n".join(lines).replace(".", "," if decimal_comma else ".")
    path.write_text(header + '"velocity" "m/s"\n' + body + "\n")


def write_tecplot(
    path: Path, field: dict[str, np.ndarray], valid: np.ndarray | None = None
) -> None:
    """As DaVis exports .dat files."""
    rows, columns = field["x"].shape
    names = ["x [mm]", "y [mm]", "Vx [m/s]", "Vy [m/s]"]
    data = [np.nan_to_num(field[name]).ravel() for name in "xyuv"]
    if valid is not None:
        names.append("isValid")
        data.append(valid.ravel().astype(float))
    header = (
        'TITLE = "B00001"\nVARIABLES = ' + ", ".join(f'"{name}"' for name in names) + "\n"
        f'ZONE T="Frame 0", I={columns}, J={rows}, F=POINT\n'
    )
    with path.open("w") as file:
        file.write(header)
        np.savetxt(file, np.stack(data, -1), "%.6g")


def write_pivlab_mat(
    path: Path,
    frames: list[dict[str, np.ndarray]],
    types: list[np.ndarray],
    *,
    filtered: bool,
    v73: bool = False,
    units: str = "[px] respectively [px/frame]",
) -> None:
    """Cells of (frames, 1); what was not computed is a cell of empty matrices."""
    empty = [np.empty((0, 0))] * len(frames)
    cells = {name: [frame[name] for frame in frames] for name in ("x", "y")}
    for name in ("u", "v"):
        values = [frame[name] for frame in frames]
        cells[f"{name}_original"] = [value + 100 for value in values] if filtered else values
        cells[f"{name}_filtered"] = values if filtered else empty
        cells[f"{name}_smoothed"] = empty
    cells["typevector_original"] = [np.minimum(kind, 1) for kind in types] if filtered else types
    cells["typevector_filtered"] = types if filtered else empty
    content = {name: np.empty((len(matrices), 1), object) for name, matrices in cells.items()}
    for name, matrices in cells.items():
        content[name][:, 0] = matrices
    if v73:
        text = np.array([[ord(letter) for letter in units]], np.uint16)
        _write_cells_73(path, content, {"units": ("char", text)})
    else:
        scipy.io.savemat(path, {"units": units, **content})


def _write_cells_73(
    path: Path, cells: dict[str, np.ndarray], others: dict[str, tuple[str, np.ndarray]]
) -> None:
    """MATLAB 7.3: cells of matrices, and other variables with their class; axes in reverse."""
    with h5py.File(path, "w", userblock_size=512) as file:
        store = file.create_group("#refs#")
        for name, matrices in cells.items():
            references = np.empty(matrices.shape[::-1], h5py.ref_dtype)
            for index, matrix in np.ndenumerate(matrices):
                size = np.array(matrix.shape, np.uint64)
                data = matrix.T if matrix.size else size
                item = store.create_dataset(f"{name}{index}", data=data)
                item.attrs["MATLAB_class"] = np.bytes_("double")
                if not matrix.size:
                    item.attrs["MATLAB_empty"] = np.uint8(1)
                references[index[::-1]] = item.ref
            cell = file.create_dataset(name, data=references, dtype=h5py.ref_dtype)
            cell.attrs["MATLAB_class"] = np.bytes_("cell")
        for name, (kind, values) in others.items():
            item = file.create_dataset(name, data=values.T)
            item.attrs["MATLAB_class"] = np.bytes_(kind)
    write_head_73(path)


def write_pivlab_session(
    path: Path,
    results: list[list[np.ndarray]],
    settings: dict[str, Any],
    *,
    v73: bool,
    structs: bool = False,
) -> None:
    """A session: 12 rows of results for each frame, in pixels, and numbers of the calibration.

    ``structs``: as PIVlab writes it since late 2026.
    """
    cells = np.empty((12, len(results)), object)
    for frame, rows in enumerate(results):
        cells[:, frame] = rows
    controls = {n: v for n, v in settings.items() if n.endswith("direction")}
    data = {n: v for n, v in settings.items() if n not in controls}
    if v73:
        of_data, of_controls = ("pivlab_data/", "pivlab_settings/calibration/") * structs or (
            "",
            "",
        )
        numbers = {of_data + n: v for n, v in data.items()}
        numbers |= {of_controls + n: v for n, v in controls.items()}
        matrices = {n: ("double", np.atleast_2d(np.float64(v))) for n, v in numbers.items()}
        _write_cells_73(path, {f"{of_data}resultslist": cells}, matrices)
    elif structs:
        groups = {"pivlab_data": {"resultslist": cells, **data}}
        scipy.io.savemat(path, {**groups, "pivlab_settings": {"calibration": controls}})
    else:
        scipy.io.savemat(path, {"resultslist": cells, **settings})
