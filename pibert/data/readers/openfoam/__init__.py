"""OpenFOAM: a plane case, or the surfaces and sets that it sampled (``postProcessing/NAME/TIME/``).

A case folder is read from its cells, which is exact, unless its samples have more times. To choose,
give the case's ``.foam`` file (for the cells) or its ``postProcessing`` folder (for the samples).

Surfaces are ``raw`` columns (``U_plane.raw``: ``x y z U_x U_y U_z``), ``.vtk`` or ``.vtp`` files;
sets are ``.xy`` files with their points. Each surface is a separate flow, with one folder per time.
Its fields may be in several files.
"""

import re
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from pibert.data.readers.openfoam.case import has_results, open_case
from pibert.data.readers.openfoam.fields import CaseDictionaries, case_facts
from pibert.data.readers.openfoam.storage import time_folders
from pibert.data.readers.recordings import PARSING, Hints, Recordings, SourceError, reading
from pibert.data.readers.shared.series import CellPlane, Plane, Series, join_series
from pibert.data.readers.shared.space import SpaceMesh, cut_plane
from pibert.data.readers.vtk import read_plane

TITLE = "OpenFOAM (a plane case, whole or decomposed; sampled surfaces and sets)"
HINTS = ("channels", "shape")

_MARKS = (".foam", ".openfoam")
_COLUMNS = (".raw", ".xy")
_SURFACES = (".vtk", ".vtp")
_FIELD = re.compile(r"#\s*(\S+)\s+(POINT|FACE)_DATA\s+\d+")
_NOT_INTERPOLATED = (
    "sampled without interpolation: each face has the value of its cell, which differs most near "
    "walls; sample with 'interpolate true', or give the case itself"
)


def recognise(path: Path) -> bool:
    try:
        if path.is_file():
            if path.suffix.lower() not in _COLUMNS:
                return path.suffix.lower() in _MARKS
            with path.open("rb") as file:
                head = file.read(200).split()
            # A comment or a number: there are images called .raw, too.
            return bool(head) and re.match(rb"#|[-+.\d]+(e[-+]?\d+)?$", head[0]) is not None
        if (path / "postProcessing").is_dir() or (path / "system" / "controlDict").is_file():
            return True
        folders = [path, *path.iterdir()] if path.name == "postProcessing" else [path]
        times = (time for folder in folders for _, time in time_folders(folder))
        return any(map(_sample_files, times)) or has_results(path)
    except SourceError:
        return True  # opening it reports the problem


def open_recordings(path: Path, hints: Hints = Hints()) -> Recordings:
    if path.suffix.lower() in _MARKS:
        return _open(path, {path.absolute().parent.name: open_case(path.parent, hints)}, hints)
    if path.is_file():
        return _open(path, {path.stem: Series(files=[path], read=_read_columns)}, hints)
    folder = path / "postProcessing"
    samples = _find_samples(folder if folder.is_dir() else path)
    if samples and not has_results(path):
        return _open(path, samples, hints)
    name = path.resolve().name
    try:
        case = open_case(path, hints)
    except SourceError as error:
        if not samples:
            raise
        return _open(path, samples, hints, f"the cells of the case were not read: {error}")
    most = max((len(series.files) for series in samples.values()), default=0)
    if most > len(case.files):
        note = (
            f"read from the samples ({most} times), not from the cells ({len(case.files)} times); "
            "for the cells, give a file in the case that ends with .foam (it may be empty)"
        )
        try:
            return _open(path, samples, hints, note)
        except SourceError as error:
            return _open(path, {name: case}, hints, f"the samples were left out: {error}")
    notes = [f"read from the cells; for the samples, give the folder {folder.name}"]
    return _open(path, {name: case}, hints, *(notes if samples else []))


def _open(path: Path, series: dict[str, Series], hints: Hints, *notes: str) -> Recordings:
    found = join_series("openfoam", path, series, hints)
    return replace(found, notes=(*found.notes, *notes))


def _find_samples(folder: Path) -> dict[str, Series]:
    """The sampled surfaces and sets of a folder, by name."""
    found: dict[str, Series] = {}
    case = next((f for f in folder.absolute().parents[:2] if (f / "constant").is_dir()), None)
    notes: list[str] = []
    facts = {} if case is None else case_facts(CaseDictionaries(case, notes))
    functions = [folder] if any(time_folders(folder)) else sorted(folder.iterdir())
    for function in functions:
        surfaces: dict[str, list[tuple[float, Path]]] = {}
        for time, path in time_folders(function):
            for surface in sorted({_surface(file) for file in _sample_files(path)}):
                surfaces.setdefault(surface, []).append((time, path))
        for surface, frames in surfaces.items():
            title = surface if len(functions) == 1 else f"{function.name}-{surface}"
            found[title] = Series(
                files=[path for _, path in frames],
                times=[time for time, _ in frames],
                read=partial(_read_surface, surface),
                facts=facts,
                notes=tuple(notes),
            )
    return found


def _sample_files(folder: Path) -> list[Path]:
    suffixes = (*_COLUMNS, *_SURFACES)
    return sorted(f for f in folder.iterdir() if f.suffix.lower() in suffixes and f.is_file())


def _surface(file: Path) -> str:
    """The name of the surface or set that a file samples, without the name of the field."""
    if file.suffix.lower() == ".xy":
        return file.stem.split("_")[0]
    field = file.stem.split("_")[0] if "_" in file.stem else ""
    if file.suffix.lower() == ".raw":  # which states it
        with file.open(errors="replace") as lines:
            if found := _FIELD.match(lines.readline(1000)):
                field = found[1]
    return file.stem.removeprefix(f"{field}_").removesuffix(f"_{field}")


def _read_surface(surface: str, folder: Path) -> Plane | CellPlane:
    """Read all fields of a surface at one time."""
    files = [file for file in _sample_files(folder) if _surface(file) == surface]
    planes = [
        read_plane(file) if file.suffix.lower() in _SURFACES else _read_columns(file)
        for file in files
    ]
    joined = planes[0]
    for file, plane in zip(files[1:], planes[1:], strict=True):
        same, fields = False, dict[str, Any]()
        if isinstance(joined, CellPlane) and isinstance(plane, CellPlane):
            same = plane.mesh.same_as(joined.mesh)
            fields = {"cells": joined.cells | plane.cells, "points": joined.points | plane.points}
        elif isinstance(joined, Plane) and isinstance(plane, Plane):
            same = plane.x.shape == joined.x.shape and np.allclose(plane.x, joined.x)
            fields = {"fields": joined.fields | plane.fields}
        if not same:
            raise SourceError(
                f"{file}: its points differ from those of {files[0].name}; sample them at once"
            )
        vectors = tuple(dict.fromkeys([*joined.vectors, *plane.vectors]))
        joined = replace(joined, vectors=vectors, **fields)
    if isinstance(joined, CellPlane) and not joined.points:
        joined = replace(joined, notes=(*joined.notes, _NOT_INTERPOLATED))
    return replace(joined, time=None)


def _read_columns(path: Path) -> Plane:
    """Read columns x y z and the components of fields, named by a line that starts with ``#``."""
    with reading(path, "the columns of numbers", errors=PARSING):
        lines = path.read_text().splitlines()
        heads = [line for line in lines if line.startswith("#")]
        rows = [line.split() for line in lines if line.strip() and not line.startswith("#")]
        values = np.array(rows, dtype=np.float64)
    if values.ndim != 2 or values.shape[1] < 4:
        raise SourceError(
            f"{path}: expected rows of x y z and values, found shape {values.shape}; sample "
            "surfaces as raw or VTK, and sets with the axis xyz"
        )
    names = heads[-1].lstrip("#").split() if heads else []
    fields = _split_columns(path, names, values.shape[1])
    # A single column is a scalar.
    data = {n: values[:, c if len(c) > 1 else c[0]] for n, c in fields.items()}
    plane = cut_plane(SpaceMesh(points=values[:, :3], point_data=data), path)
    assert isinstance(plane, Plane)
    if heads and (stated := _FIELD.match(heads[0])) and stated[2] == "FACE":
        plane = replace(plane, notes=(*plane.notes, _NOT_INTERPOLATED))
    return plane


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
    return {n: list(range(a, a + size)) for n, a, size in zip(found, starts, sizes, strict=True)}
