"""Plane flows in three-dimensional files, structured or not.

Structured grids count points along x, y and z, x fastest: an array of nx ny nz values is (z, y, x).
A plane flow has one point along one axis, or one layer of cells. A plane normal to y is read as
(x, z), one normal to x as (y, z): the first becomes x, the second y, and the velocity components
follow. Points that VTK hides or could not probe are invalid.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from pibert.data.readers.recordings import PARSING, SourceError, reading
from pibert.data.readers.shared.cells import CellMesh, check_coordinates
from pibert.data.readers.shared.naming import standard_name
from pibert.data.readers.shared.series import CellPlane, Plane
from pibert.data.readers.shared.stores import describe_fill_codes, find_fill_codes

Cells = tuple[np.ndarray, np.ndarray]
"""Point indices of all cells, one cell after the other, and the end of each cell among them."""


def find_polygons(
    cells: Cells, layer: np.ndarray, plane: np.ndarray, count: int, *, in_order: bool
) -> tuple[np.ndarray, Cells] | None:
    """Return the cells with three or more points in a layer of points, and their polygons.

    The polygons use indices within the layer. None if there is no such cell; inconsistent cells
    raise ValueError. ``layer`` has the indices of the layer's points among ``count``, ``plane``
    (k, 2) their coordinates; ``in_order`` states whether the points of a cell are in order around
    it.
    """
    corners, ends = (np.asarray(array, np.int64) for array in cells)
    if not len(ends):
        return None
    sizes = np.diff(ends, prepend=0)
    # Differences of damaged ends may overflow to a small sum.
    if sizes.min() < 1 or ends.max() > len(corners) or ends[-1] != len(corners):
        raise ValueError(f"cells end at {ends[-1]} of {len(corners)} points")
    if corners.min() < 0 or corners.max() >= count:
        raise ValueError(f"cells name the points {corners.min()} to {corners.max()} of {count}")
    number = np.full(count, -1)
    number[layer] = np.arange(len(layer))
    owner, corner = np.repeat(np.arange(len(ends)), sizes), number[corners]
    inside = corner >= 0
    points = np.bincount(owner[inside], minlength=len(ends))
    inside &= points[owner] >= 3
    owner, corner = owner[inside], corner[inside]
    if not len(owner):
        return None
    if not in_order or len(layer) != count:
        corner = corner[_around(owner, plane[corner])]
    kept = np.flatnonzero(points >= 3)
    return kept, (corner, np.cumsum(points[kept]))


def _around(owner: np.ndarray, corners: np.ndarray) -> np.ndarray:
    """Return the permutation that sorts the corners of every cell around their mean."""
    count = np.maximum(np.bincount(owner), 1)
    x, y = (corners[:, a] - (np.bincount(owner, corners[:, a]) / count)[owner] for a in (0, 1))
    return np.lexsort((np.arctan2(y, x), owner))


def merge_points(plane: np.ndarray, corners: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Merge points at the same position, which cells may not share."""
    rounded = np.round(plane / (1e-6 * np.ptp(plane, axis=0).max()))
    _, first, which = np.unique(rounded, axis=0, return_index=True, return_inverse=True)
    return plane[first], which.reshape(-1)[corners]


def quadrilaterals(rows: int, columns: int) -> Cells:
    """Return the cells between the points of a structured grid, row by row."""
    corner = np.arange(rows * columns).reshape(rows, columns)
    sides = [corner[:-1, :-1], corner[:-1, 1:], corner[1:, 1:], corner[1:, :-1]]
    quads = np.stack(sides, -1).reshape(-1, 4)
    return quads.reshape(-1), 4 * np.arange(1, len(quads) + 1)


def first_layer(
    data: Mapping[str, np.ndarray], dims: tuple[int, int, int], thin: int
) -> dict[str, np.ndarray]:
    """Return the arrays on the first layer of a structured grid across an axis."""
    found = {}
    for name, values in data.items():
        grid = values.reshape(*dims[::-1], *values.shape[1:])
        found[name] = np.take(grid, 0, axis=2 - thin).reshape(-1, *values.shape[1:])
    return found


AXES = "xyz"
_PROBED = "vtkValidPointMask"
_HIDING = {_PROBED: 1, "vtkGhostType": 2 | 32}
"""Flags of VTK: 1 where a probe hit the flow; bits of hidden points and of hidden cells."""
_FLAT = 1e-6
"""Largest extent of a plane along its normal, as a share of the largest extent."""


@dataclass(frozen=True, eq=False, kw_only=True)
class SpaceMesh:
    """Points, cells and the data on them; arrays of k components are (n, k)."""

    dims: tuple[int, int, int] | None = None
    """Points along x, y and z of a structured grid."""
    axes: tuple[np.ndarray, np.ndarray, np.ndarray] | None = None
    """Coordinates along x, y and z of a rectilinear grid."""
    points: np.ndarray | None = None
    """Coordinates (n, 3) of other grids."""
    cells: Cells | None = None
    in_order: bool = False
    """Whether the points of each cell are in order around it."""
    point_data: dict[str, np.ndarray] = field(default_factory=dict)
    cell_data: dict[str, np.ndarray] = field(default_factory=dict)
    time: float | None = None


def cut_plane(mesh: SpaceMesh, path: Path) -> Plane | CellPlane:
    """Return the plane in a file: a mesh if the file has cells, else points."""
    if not mesh.point_data and not mesh.cell_data:
        raise SourceError(
            f"{path}: it has a mesh without data; export it with its point or cell data"
        )
    if mesh.axes is not None:
        return _cut_axes(mesh, path)
    notes: list[str] = []
    if mesh.dims is not None:
        mesh = _as_cells(mesh, path, notes)
    assert mesh.points is not None
    if not len(mesh.points):
        raise SourceError(f"{path}: it holds no points; export it with its mesh")
    with _undamaged(path):
        check_coordinates(mesh.points)
    normal, levels = _find_normal(mesh.points, path)
    height = mesh.points[:, normal] - levels[0]
    below = np.flatnonzero(np.abs(height) <= _FLAT * np.ptp(mesh.points, axis=0).max())
    if len(levels) == 2 and not mesh.cell_data:
        notes.append(f"two layers along {AXES[normal]}: the first was taken")
    notes += describe_plane(normal)
    first, second = (axis for axis in range(3) if axis != normal)
    at_points, vectors = _components(mesh.point_data, len(mesh.points), (first, second), path)
    at_points = {name: values[below] for name, values in at_points.items()}
    position = float(np.mean(levels)) if mesh.cell_data else float(levels[0])
    stated: dict[str, Any] = {
        "time": mesh.time,
        "placement": {"normal": AXES[normal], "position": position},
        "notes": tuple(notes),
    }
    plane, polygons = mesh.points[below][:, [first, second]], None
    if mesh.cells is not None:
        with _undamaged(path, "its list of cells"):
            polygons = find_polygons(
                mesh.cells, below, plane, len(mesh.points), in_order=mesh.in_order
            )
    if mesh.cells is None or polygons is None:
        if mesh.cell_data:
            raise SourceError(
                f"{path}: it has cell data, but no cells with an area; export its cells"
            )
        return Plane(
            x=plane[:, 0],
            y=plane[:, 1],
            fields=at_points,
            vectors=vectors,
            names=_names(at_points.keys() & mesh.point_data.keys(), normal),
            **stated,
        )
    kept, (corners, ends) = polygons
    on_cells, more = _components(mesh.cell_data, len(mesh.cells[1]), (first, second), path)
    on_cells = {name: values[kept] for name, values in on_cells.items()}
    at_points, on_cells = (_without_codes(each, notes) for each in (at_points, on_cells))
    stated["notes"] = tuple(dict.fromkeys(notes))
    scalars = {*at_points, *on_cells} & {*mesh.point_data, *mesh.cell_data}
    if not at_points:
        plane, corners = merge_points(plane, corners)
    return CellPlane(
        mesh=CellMesh(points=plane, corners=corners, ends=ends),
        cells=_shown(on_cells),
        points=_shown(at_points),
        vectors=tuple(dict.fromkeys([*vectors, *more])),
        names=_names(scalars, normal),
        **stated,
    )


def _cut_axes(mesh: SpaceMesh, path: Path) -> Plane:
    """Return the plane of a rectilinear grid."""
    assert mesh.dims is not None and mesh.axes is not None
    dims, axes = mesh.dims, list(mesh.axes)
    with _undamaged(path):
        for axis in axes:
            check_coordinates(axis)
    on_cells = not mesh.point_data or (bool(mesh.cell_data) and min(dims) == 2)
    notes: list[str] = []
    if on_cells:
        dims = _cell_dims(dims)
        axes = [axis if len(axis) == 1 else (axis[1:] + axis[:-1]) / 2 for axis in axes]
        notes.append("the values are those of cells, at their centres")
    normal = _thin_axis(dims, path, notes)
    notes += describe_plane(normal)
    first, second = (axis for axis in range(3) if axis != normal)
    data, others = mesh.point_data, mesh.cell_data
    if on_cells:
        data, others = others, data
    if shown := [name for name in others if name not in _HIDING]:
        kind, other = ("cells", "points") if on_cells else ("points", "cells")
        notes.append(
            f"the values are those of {kind}; not read, as they belong to {other}: "
            f"{', '.join(shown)}; convert them to {kind} to keep them"
        )
    flat, vectors = _components(data, math.prod(dims), (first, second), path)
    return Plane(
        x=axes[first],
        y=axes[second],
        fields={
            name: np.take(values.reshape(dims[::-1]), 0, axis=2 - normal)
            for name, values in flat.items()
        },
        vectors=vectors,
        names=_names(flat.keys() & data.keys(), normal),
        time=mesh.time,
        placement={"normal": AXES[normal], "position": float(axes[normal][0])},
        notes=tuple(notes),
    )


def _as_cells(mesh: SpaceMesh, path: Path, notes: list[str]) -> SpaceMesh:
    """Return the first layer of a structured grid as points and quadrilaterals."""
    assert mesh.dims is not None and mesh.points is not None
    dims, inner = mesh.dims, _cell_dims(mesh.dims)
    flat = [axis for axis in range(3) if (inner if mesh.cell_data else dims)[axis] == 1]
    thin = flat[-1] if flat else _thin_axis(dims, path, notes)
    grid = mesh.points.reshape(*dims[::-1], 3)
    # The plane of a layer of cells lies midway between their two layers of points.
    points = grid.mean(2 - thin) if mesh.cell_data else np.take(grid, 0, axis=2 - thin)
    return replace(
        mesh,
        dims=None,
        points=points.reshape(-1, 3),
        cells=quadrilaterals(*points.shape[:2]),
        in_order=True,
        point_data=first_layer(mesh.point_data, dims, thin),
        cell_data=first_layer(mesh.cell_data, inner, thin),
    )


_undamaged = partial(reading, remedy="export it again", errors=PARSING)


def _thin_axis(dims: tuple[int, ...], path: Path, notes: list[str]) -> int:
    """Return the axis normal to the plane."""
    # A row of points along x has two thin axes: then z is the normal and y has one row.
    flat = [axis for axis in range(3) if dims[axis] == 1]
    if flat:
        return flat[-1]
    if 2 not in dims:
        nx, ny, nz = dims
        raise SourceError(
            f"{path}: expected a plane flow, found {nx} x {ny} x {nz} values; cut a plane"
        )
    normal = max(axis for axis in range(3) if dims[axis] == 2)
    notes.append(f"two layers along {AXES[normal]}: the first was taken")
    return normal


def describe_plane(normal: int) -> list[str]:
    """Return a note on a plane that is not normal to z; none for one that is."""
    if normal == 2:
        return []
    first, second = (AXES[axis] for axis in range(3) if axis != normal)
    note = f"the plane is {first}{second}: {first} became x and {second} became y"
    # x, z and y, in this order, are left-handed.
    turned = "; the vorticity dv/dx - du/dy is minus its y component in space"
    return [note + (turned if normal == 1 else "")]


def _find_normal(points: np.ndarray, path: Path) -> tuple[int, np.ndarray]:
    """Return the axis normal to a plane, and the positions of its one or two layers of points."""
    extent = np.ptp(points, axis=0)
    step = _FLAT * extent.max()
    for axis in np.flatnonzero(extent <= step)[::-1]:
        return int(axis), points[:1, axis]
    for axis in (2, 1, 0):
        low, high = points[:, axis].min(), points[:, axis].max()
        if (np.minimum(points[:, axis] - low, high - points[:, axis]) <= step).all():
            return axis, np.array([low, high])
    raise SourceError(
        f"{path}: expected a plane flow, found points that extend {extent[0]:g} x {extent[1]:g} x "
        f"{extent[2]:g}; cut a plane normal to x, y or z out of it"
    )


def _shown(fields: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return fields with NaN at points that VTK hides."""
    valid = fields.pop("valid", None)
    if valid is None:
        return fields
    return {name: np.where(valid != 0, values, np.nan) for name, values in fields.items()}


def _without_codes(fields: dict[str, np.ndarray], notes: list[str]) -> dict[str, np.ndarray]:
    """Return fields with NaN for codes of missing values, before they are interpolated."""
    if not fields:
        return fields
    values = np.stack(list(fields.values()))[None]
    notes += describe_fill_codes(list(fields), values)
    coded = find_fill_codes(values)[0]
    return {
        name: np.where(codes, np.nan, one) if codes.any() else one
        for (name, one), codes in zip(fields.items(), coded, strict=True)
    }


def _components(
    data: dict[str, np.ndarray], count: int, plane: tuple[int, int], path: Path
) -> tuple[dict[str, np.ndarray], tuple[str, ...]]:
    """Return scalars and in-plane components of vectors, and the vectors; tensors are left out."""
    fields: dict[str, np.ndarray] = {}
    vectors: list[str] = []
    for name, values in data.items():
        if len(values) != count:
            raise SourceError(
                f"{path}: {name!r} has {len(values)} values, not {count}; export it again"
            )
        if name in _HIDING:
            marked = (values.reshape(count).astype(np.int64) & _HIDING[name]) != 0
            shown = marked if name == _PROBED else ~marked
            fields["valid"] = np.logical_and(fields.get("valid", True), shown)
        elif values.ndim == 1 or values.shape[1] == 1:
            fields[name] = values.reshape(count)
        elif values.shape[1] == 3 or (values.shape[1] == 2 and plane == (0, 1)):
            vectors.append(name)
            for letter, axis in zip("xy", plane, strict=True):
                fields[f"{name}_{letter}"] = values[:, axis]
    return fields, tuple(vectors)


def _names(scalars: Iterable[str], normal: int) -> dict[str, str]:
    """Return names of velocity components stored as scalars along the axes of the plane."""
    if normal == 2:
        return {}
    turned = {"u": "u" if normal else "w", "v": "w" if normal else "u", "w": "v"}
    found = {key: standard_name(key)[0] for key in scalars}
    return {key: turned[name] for key, name in found.items() if name in turned}


def _cell_dims(dims: tuple[int, int, int]) -> tuple[int, int, int]:
    """Return the number of cells along the axes of a grid of points."""
    return max(1, dims[0] - 1), max(1, dims[1] - 1), max(1, dims[2] - 1)
