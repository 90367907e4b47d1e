"""OpenFOAM: what a case samples while it runs, and small cases themselves.

``postProcessing/NAME/TIME/`` holds sampled surfaces or sets: ``raw`` columns (``U_plane.raw``,
``x y z U_x U_y U_z``), ``.xy`` sets with their points, and ``.vtk`` or ``.vtp`` surfaces. Every
surface is a flow of its own and its folders are the times; the fields of one surface may lie in
several files. Of a case itself the cell values in the time folders are read, at the centres that
``postProcess -func writeCellCentres`` writes as ``C``.
"""

import re
from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from pibert.data.sources.assembly.planes import Plane, Series, join_series
from pibert.data.sources.assembly.space import SpaceMesh, cut_plane
from pibert.data.sources.openfoam import foamfile
from pibert.data.sources.recordings import Hints, Recordings, SourceError
from pibert.data.sources.vtk.reader import read_plane

TITLE = "OpenFOAM (sampled surfaces, or a case with cell centres)"

_COLUMNS = (".raw", ".xy")
_SURFACES = (".vtk", ".vtp")
_FIELD = re.compile(r"#\s*(\S+)\s+(?:POINT|FACE)_DATA\s+\d+")


def recognise(path: Path) -> bool:
    try:
        if path.is_file():
            return path.suffix.lower() in _COLUMNS and _is_table(path)
        if (path / "postProcessing").is_dir() or (path / "system" / "controlDict").is_file():
            return True
        folders = [path, *path.iterdir()] if path.name == "postProcessing" else [path]
        return any(
            _sample_files(place) or (place / "U").is_file()
            for folder in folders
            for _, place in _time_folders(folder)
        )
    except OSError:
        return False


def open_recordings(path: Path, hints: Hints = Hints()) -> Recordings:
    if path.is_file():
        return join_series("openfoam", path, {path.stem: ([path], None, read_columns)}, hints)
    folder = path / "postProcessing" if (path / "postProcessing").is_dir() else path
    return join_series("openfoam", path, _sampled(folder) or _case(path), hints)


def _is_table(path: Path) -> bool:
    """Whether a file starts with a comment or a number: there are images called .raw, too."""
    with path.open("rb") as file:
        head = file.read(200).split()
    return bool(head) and re.match(rb"#|[-+.\d]+(e[-+]?\d+)?$", head[0]) is not None


def _sampled(folder: Path) -> dict[str, Series]:
    """The surfaces of a folder of samples by name: time folders, times, and how a frame is read."""
    found: dict[str, Series] = {}
    names = [folder] if any(_time_folders(folder)) else sorted(folder.iterdir())
    for name in names:
        times = sorted(_time_folders(name))
        surfaces: dict[str, list[tuple[float, Path]]] = {}
        for time, place in times:
            for surface in sorted({_surface(file) for file in _sample_files(place)}):
                surfaces.setdefault(surface, []).append((time, place))
        for surface, frames in surfaces.items():
            title = surface if len(names) == 1 else f"{name.name}-{surface}"
            found[title] = (
                [place for _, place in frames],
                [time for time, _ in frames],
                partial(_read_surface, surface),
            )
    return found


def _case(path: Path) -> dict[str, Series]:
    frames = [
        (time, place) for time, place in sorted(_time_folders(path)) if (place / "U").exists()
    ]
    if not frames:
        hint = ""
        if any(path.glob("processor*")):
            hint = "; the case is decomposed: run reconstructPar"
        raise SourceError(
            f"{path}: no sampled surfaces (postProcessing/NAME/TIME/*.raw, .xy, .vtk) and no time "
            f"folders with a field U{hint}"
        )
    centres = foamfile.find_centres(path, [place for _, place in frames])
    times = [time for time, _ in frames]
    return {path.resolve().name: ([f for _, f in frames], times, partial(_read_case, centres))}


def _time_folders(folder: Path) -> Iterator[tuple[float, Path]]:
    if folder.is_dir():
        for entry in folder.iterdir():
            if re.fullmatch(r"\d+(\.\d+)?([eE][+-]?\d+)?", entry.name) and entry.is_dir():
                yield float(entry.name), entry


def _sample_files(folder: Path) -> list[Path]:
    return sorted(
        file for file in folder.iterdir() if file.suffix.lower() in (*_COLUMNS, *_SURFACES)
    )


def _surface(file: Path) -> str:
    """The name of the surface or set that a file samples, without that of the field."""
    if file.suffix.lower() == ".xy":
        return file.stem.split("_")[0]
    field = _field_of(file)
    return file.stem.removeprefix(f"{field}_").removesuffix(f"_{field}")


def _field_of(file: Path) -> str:
    """The field in a file of one: stated in the head of raw columns; of VTK the first word."""
    if file.suffix.lower() == ".raw":
        with file.open(errors="replace") as lines:
            found = _FIELD.match(lines.readline())
        if found:
            return found[1]
    return file.stem.split("_")[0] if "_" in file.stem else ""


def _read_surface(surface: str, folder: Path) -> Plane:
    """All fields of a surface at one time."""
    files = [file for file in _sample_files(folder) if _surface(file) == surface]
    planes = [
        read_plane(file) if file.suffix.lower() in _SURFACES else read_columns(file)
        for file in files
    ]
    first = planes[0]
    for file, plane in zip(files, planes, strict=True):
        if plane.x.shape != first.x.shape or not np.allclose(plane.x, first.x):
            raise SourceError(
                f"{file}: its points differ from those of {files[0].name}; sample them at once"
            )
    return replace(
        first,
        fields={name: values for plane in planes for name, values in plane.fields.items()},
        vectors=tuple(dict.fromkeys(name for plane in planes for name in plane.vectors)),
        time=None,
    )


def read_columns(path: Path) -> Plane:
    """Columns x y z and the components of fields, named by a line that starts with ``#``."""
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise SourceError(f"{path}: it is not a text that can be read ({error})") from error
    heads = [line for line in lines if line.startswith("#")]
    rows = [line.split() for line in lines if line.strip() and not line.startswith("#")]
    widths = {len(row) for row in rows}
    if len(widths) != 1 or min(widths) < 4:
        raise SourceError(
            f"{path}: expected rows of x y z and values, found {sorted(widths) or 'no'} "
            "columns; sample surfaces as raw or VTK, and sets with the axis xyz"
        )
    try:
        values = np.array(rows, dtype=np.float64)
    except ValueError as error:
        raise SourceError(f"{path}: a row holds something other than numbers ({error})") from error
    names = heads[-1].lstrip("#").split() if heads else []
    data: dict[str, np.ndarray] = {}
    for name, columns in _split_columns(path, names, values.shape[1]).items():
        data[name] = values[:, columns[0]] if len(columns) == 1 else values[:, columns]
    return cut_plane(SpaceMesh(points=values[:, :3], point_data=data), path)


def _split_columns(path: Path, names: list[str], width: int) -> dict[str, list[int]]:
    """The columns of every field, from the head or, without one, from the file's name."""
    if len(names) == width and names[:3] == ["x", "y", "z"]:
        fields: dict[str, list[int]] = {}
        for column, name in enumerate(names[3:], start=3):
            vector = re.fullmatch(r"(.+)_[xyz]", name)
            fields.setdefault(vector[1] if vector else name, []).append(column)
        return fields
    # A set is called SET_FIELD_FIELD.xy: as many fields as columns, or vectors of three.
    found = path.stem.split("_")[1:] if path.suffix.lower() == ".xy" else [path.stem.split("_")[0]]
    sizes = [3 if name == "U" or 3 * len(found) == width - 3 else 1 for name in found]
    if sum(sizes) != width - 3:
        raise SourceError(
            f"{path}: {width - 3} columns of values do not fit the fields {', '.join(found)}; "
            "keep the line of names (# x y z U_x ...) that OpenFOAM writes"
        )
    starts = [3 + sum(sizes[:index]) for index in range(len(sizes))]
    return {
        name: list(range(start, start + size))
        for name, start, size in zip(found, starts, sizes, strict=True)
    }


def _read_case(centres: Path, folder: Path) -> Plane:
    """The cell values of one time folder of a case."""
    mesh, units = foamfile.read_frame(centres, folder)
    plane = cut_plane(mesh, folder)
    stated = {
        name: unit
        for name in plane.fields
        if (unit := units.get(name) or units.get(re.sub(r"_[xy]$", "", name)))
    }
    if units.get("U") == "m/s":
        stated |= {"@x": "m", "@y": "m", "@t": "s"}
    return replace(plane, units=stated)
