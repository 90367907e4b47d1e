"""Surfaces and sets that a case sampled: ``postProcessing/NAME/TIME/``.

Surfaces are ``raw`` columns (``U_plane.raw``: ``x y z U_x U_y U_z``), ``.vtk`` or ``.vtp`` files;
sets are ``.xy`` files with their points. Each surface is a flow of its own, with one folder per
time. Its fields may be in several files.
"""

import re
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from pibert.data.sources.assembly.frames import CellPlane, Plane, Series
from pibert.data.sources.assembly.space import SpaceMesh, cut_plane
from pibert.data.sources.openfoam.case import fluid_facts
from pibert.data.sources.openfoam.storage import time_folders
from pibert.data.sources.recordings import SourceError
from pibert.data.sources.vtk.reader import read_plane

COLUMNS = (".raw", ".xy")
_SURFACES = (".vtk", ".vtp")
_FIELD = re.compile(r"#\s*(\S+)\s+(POINT|FACE)_DATA\s+\d+")
_NOT_INTERPOLATED = (
    "sampled without interpolation: faces have the value of their cell, which is off by about 10 % "
    "of the fluctuation; sample with 'interpolate true', or give the case itself"
)


def is_table(path: Path) -> bool:
    """Whether a file starts with a comment or a number: there are images called .raw, too."""
    with path.open("rb") as file:
        head = file.read(200).split()
    return bool(head) and re.match(rb"#|[-+.\d]+(e[-+]?\d+)?$", head[0]) is not None


def find_samples(folder: Path) -> dict[str, Series]:
    """The sampled surfaces and sets of a folder, by name."""
    found: dict[str, Series] = {}
    case = next((f for f in folder.absolute().parents[:2] if (f / "constant").is_dir()), None)
    remarks: list[str] = []
    facts = {} if case is None else fluid_facts(case, remarks)
    names = [folder] if any(time_folders(folder)) else sorted(folder.iterdir())
    for name in names:
        times = time_folders(name)
        surfaces: dict[str, list[tuple[float, Path]]] = {}
        for time, place in times:
            for surface in sorted({_surface(file) for file in _sample_files(place)}):
                surfaces.setdefault(surface, []).append((time, place))
        for surface, frames in surfaces.items():
            title = surface if len(names) == 1 else f"{name.name}-{surface}"
            found[title] = Series(
                files=[place for _, place in frames],
                times=[time for time, _ in frames],
                read=partial(_read_surface, surface),
                facts=facts,
                remarks=tuple(remarks),
            )
    return found


def has_samples(folder: Path) -> bool:
    return any(_sample_files(place) for _, place in time_folders(folder))


def _sample_files(folder: Path) -> list[Path]:
    return sorted(
        file for file in folder.iterdir() if file.suffix.lower() in (*COLUMNS, *_SURFACES)
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


def _read_surface(surface: str, folder: Path) -> Plane | CellPlane:
    """All fields of a surface at one time."""
    files = [file for file in _sample_files(folder) if _surface(file) == surface]
    planes = [
        read_plane(file) if file.suffix.lower() in _SURFACES else read_columns(file)
        for file in files
    ]
    joined = planes[0]
    for file, plane in zip(files[1:], planes[1:], strict=True):
        if isinstance(joined, CellPlane) and isinstance(plane, CellPlane):
            alike = plane.mesh.same_as(joined.mesh)
            parts: dict[str, Any] = {
                "cells": joined.cells | plane.cells,
                "points": joined.points | plane.points,
            }
        elif isinstance(joined, Plane) and isinstance(plane, Plane):
            alike = plane.x.shape == joined.x.shape and np.allclose(plane.x, joined.x)
            parts = {"fields": joined.fields | plane.fields}
        else:
            alike, parts = False, {}
        if not alike:
            raise SourceError(
                f"{file}: its points differ from those of {files[0].name}; sample them at once"
            )
        vectors = tuple(dict.fromkeys([*joined.vectors, *plane.vectors]))
        joined = replace(joined, vectors=vectors, **parts)
    if isinstance(joined, CellPlane) and not joined.points:
        joined = replace(joined, remarks=(*joined.remarks, _NOT_INTERPOLATED))
    return replace(joined, time=None)


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
    plane = cut_plane(SpaceMesh(points=values[:, :3], point_data=data), path)
    assert isinstance(plane, Plane)
    if heads and (stated := _FIELD.match(heads[0])) and stated[2] == "FACE":
        plane = replace(plane, remarks=(*plane.remarks, _NOT_INTERPOLATED))
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
    return {
        name: list(range(start, start + size))
        for name, start, size in zip(found, starts, sizes, strict=True)
    }
