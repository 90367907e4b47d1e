"""Flows given in space, structured or not, and the planes that they are.

Structured kinds count points along x, y and z, x fastest: an array of nx ny nz values is (z, y, x).
A plane flow has one point along one axis, or one layer of cells; a plane normal to y is read as
(x, z), one normal to x as (y, z): the first becomes our x, the second our y, and the components of
the velocity go with them. What VTK hides or could not probe is not valid.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from pibert.data.sources.assembly.naming import standard_name
from pibert.data.sources.assembly.planes import Plane
from pibert.data.sources.recordings import SourceError

AXES = "xyz"
_PROBED = "vtkValidPointMask"
_HIDING = {_PROBED: 1, "vtkGhostType": 2 | 32}
"""Flags of VTK: 1 where a probe met the flow; bits of hidden points and of hidden cells."""
_FLAT = 1e-6
"""Points lie in a plane where their extent along its normal is this share of the largest."""


@dataclass(frozen=True, eq=False, kw_only=True)
class SpaceMesh:
    """Points, cells and the data on them; arrays of k components are (n, k)."""

    dims: tuple[int, int, int] | None = None
    """Points along x, y and z of the structured kinds."""
    axes: tuple[np.ndarray, np.ndarray, np.ndarray] | None = None
    """Coordinates along x, y and z where the grid is rectilinear."""
    points: np.ndarray | None = None
    """Coordinates (n, 3) of the other kinds."""
    cells: tuple[np.ndarray, np.ndarray] | None = None
    """Point numbers of all cells in a row, and where each cell ends in it."""
    point_data: dict[str, np.ndarray] = field(default_factory=dict)
    cell_data: dict[str, np.ndarray] = field(default_factory=dict)
    time: float | None = None


def cut_plane(mesh: SpaceMesh, path: Path) -> Plane:
    """The plane that a mesh is, on its points or, where they carry no data, at its cell centres."""
    if not mesh.point_data and not mesh.cell_data:
        raise SourceError(
            f"{path}: it holds a mesh without data; export it with its point or cell data"
        )
    on_cells = not mesh.point_data or (mesh.cell_data and _layers(mesh) == 2)
    cut = _cut_structured if mesh.dims is not None else _cut_points
    return cut(mesh, bool(on_cells), path)


def _layers(mesh: SpaceMesh) -> int:
    """Points along the thinnest axis."""
    if mesh.dims is not None:
        return min(mesh.dims)
    assert mesh.points is not None
    normal = int(np.argmin(np.ptp(mesh.points, axis=0)))
    return len(np.unique(mesh.points[:, normal]))


def _cut_structured(mesh: SpaceMesh, on_cells: bool, path: Path) -> Plane:
    assert mesh.dims is not None
    dims = mesh.dims
    if mesh.axes is not None:
        axes = [_centres(axis) if on_cells else axis for axis in mesh.axes]
        coordinates = None
    else:
        assert mesh.points is not None
        grid = mesh.points.reshape(*dims[::-1], 3)
        coordinates = _cell_mean(grid) if on_cells else grid
    if on_cells:
        dims = (max(1, dims[0] - 1), max(1, dims[1] - 1), max(1, dims[2] - 1))
    remarks = ["the values are those of cells, at their centres"] if on_cells else []
    thin = normal = _thin_axis(dims, path, remarks)

    def sliced(values: np.ndarray) -> np.ndarray:
        return np.take(values, 0, axis=2 - thin)

    if coordinates is not None:
        # The points may be counted along other axes than they lie along.
        extent = np.ptp(sliced(coordinates).reshape(-1, 3), axis=0)
        flat_axis = _flat_axis(extent)
        if flat_axis is None:
            raise _no_plane(extent, path)
        normal = flat_axis
    _name_plane(normal, remarks)
    first, second = (axis for axis in range(3) if axis != normal)
    if coordinates is None:
        x, y = axes[first], axes[second]
    else:
        x, y = sliced(coordinates[..., first]), sliced(coordinates[..., second])
    data = mesh.cell_data if on_cells else mesh.point_data
    flat, vectors = _components(data, int(np.prod(dims)), (first, second), path)
    return Plane(
        x=x,
        y=y,
        fields={name: sliced(values.reshape(dims[::-1])) for name, values in flat.items()},
        vectors=vectors,
        names=_names(flat.keys() & data.keys(), normal),
        remarks=tuple(remarks),
    )


def _thin_axis(dims: tuple[int, ...], path: Path, remarks: list[str]) -> int:
    """The axis along which the first layer is the plane."""
    # A row of points along x has two thin axes: then z is the normal and y has one row.
    flat = [axis for axis in range(3) if dims[axis] == 1]
    if flat:
        return flat[-1]
    if 2 not in dims:
        nx, ny, nz = dims
        raise SourceError(
            f"{path}: it holds a flow in space, {nx} x {ny} x {nz} values; cut a plane out of it "
            "(one value along one axis) and save that"
        )
    normal = max(axis for axis in range(3) if dims[axis] == 2)
    remarks.append(f"two layers along {AXES[normal]}: the first was taken")
    return normal


def _flat_axis(extent: np.ndarray) -> int | None:
    """The last axis along which points have no extent."""
    flat = np.flatnonzero(extent <= _FLAT * extent.max())
    return int(flat[-1]) if len(flat) else None


def _no_plane(extent: np.ndarray, path: Path) -> SourceError:
    return SourceError(
        f"{path}: its points fill a space of {extent[0]:g} x {extent[1]:g} x {extent[2]:g}; cut a "
        "plane normal to x, y or z out of it and save that"
    )


def _name_plane(normal: int, remarks: list[str]) -> None:
    if normal != 2:
        first, second = (AXES[axis] for axis in range(3) if axis != normal)
        remarks.append(f"the plane is {first}{second}: {first} became x and {second} became y")


def _cut_points(mesh: SpaceMesh, on_cells: bool, path: Path) -> Plane:
    assert mesh.points is not None
    remarks: list[str] = []
    points = mesh.points
    if on_cells:
        points = _cell_centres(mesh, path)
        remarks.append("the values are those of cells, at their centres")
    if not len(points):
        raise SourceError(f"{path}: it holds no points; export it with its mesh")
    extent = np.ptp(points, axis=0)
    normal, keep = _flat_axis(extent), slice(None)
    if normal is None:
        layers = [np.unique(points[:, axis]) for axis in range(3)]
        if min(len(layer) for layer in layers) != 2:
            raise _no_plane(extent, path)
        normal = max(axis for axis in range(3) if len(layers[axis]) == 2)
        keep = points[:, normal] == layers[normal][0]
        remarks.append(f"two layers along {AXES[normal]}: the first was taken")
    _name_plane(normal, remarks)
    first, second = (axis for axis in range(3) if axis != normal)
    data = mesh.cell_data if on_cells else mesh.point_data
    flat, vectors = _components(data, len(points), (first, second), path)
    return Plane(
        x=points[keep, first],
        y=points[keep, second],
        fields={name: values[keep] for name, values in flat.items()},
        vectors=vectors,
        names=_names(flat.keys() & data.keys(), normal),
        remarks=tuple(remarks),
    )


def _components(
    data: dict[str, np.ndarray], count: int, plane: tuple[int, int], path: Path
) -> tuple[dict[str, np.ndarray], tuple[str, ...]]:
    """Scalars, and the components of vectors in the plane; tensors and the like are left out."""
    fields: dict[str, np.ndarray] = {}
    vectors: list[str] = []
    for name, values in data.items():
        if len(values) != count:
            raise SourceError(
                f"{path}: {name!r} has {len(values)} values, the mesh needs {count}; the file is "
                "damaged: export it again"
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
    """Components of the velocity that are stored as scalars go with the axes of the plane."""
    if normal == 2:
        return {}
    turned = {"u": "u" if normal else "w", "v": "w" if normal else "u", "w": "v"}
    found = {key: standard_name(key)[0] for key in scalars}
    return {key: turned[name] for key, name in found.items() if name in turned}


def _cell_centres(mesh: SpaceMesh, path: Path) -> np.ndarray:
    assert mesh.points is not None
    if mesh.cells is None:
        raise SourceError(f"{path}: it has data on cells but no cells; export it again")
    connectivity, ends = mesh.cells
    starts = np.concatenate([[0], ends[:-1]]).astype(np.int64)
    counts = ends - starts
    if not len(ends) or counts.min() < 1 or ends[-1] > len(connectivity):
        raise SourceError(f"{path}: its cells are broken; export it again")
    if connectivity.min() < 0 or connectivity.max() >= len(mesh.points):
        raise SourceError(f"{path}: its cells name points that are not there; export it again")
    sums = np.add.reduceat(mesh.points[connectivity], starts, axis=0)
    return np.asarray(sums / counts[:, None])


def _centres(axis: np.ndarray) -> np.ndarray:
    return axis if len(axis) == 1 else (axis[1:] + axis[:-1]) / 2


def _cell_mean(grid: np.ndarray) -> np.ndarray:
    """Centres of the cells of a structured grid (z, y, x, 3)."""
    for axis in range(3):
        if grid.shape[axis] > 1:
            lower = np.take(grid, range(grid.shape[axis] - 1), axis=axis)
            upper = np.take(grid, range(1, grid.shape[axis]), axis=axis)
            grid = (lower + upper) / 2
    return grid
