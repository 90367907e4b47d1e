"""Flows given in space, structured or not, and the planes that they are.

Structured kinds count points along x, y and z, x fastest: an array of nx ny nz values is (z, y, x).
A plane flow has one point along one axis, or one layer of cells; a plane normal to y is read as
(x, z), one normal to x as (y, z): the first becomes our x, the second our y, and the vector
components go with them.
"""

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from pibert.data.sources.assembly.planes import Plane
from pibert.data.sources.recordings import SourceError

AXES = "xyz"
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
    normal, layer = _thin_axis(dims, path, remarks)
    first, second = (axis for axis in range(3) if axis != normal)

    def sliced(values: np.ndarray) -> np.ndarray:
        return np.take(values, layer, axis=2 - normal)

    if coordinates is None:
        x, y = axes[first], axes[second]
    else:
        x, y = sliced(coordinates[..., first]), sliced(coordinates[..., second])
    data = mesh.cell_data if on_cells else mesh.point_data
    flat, vectors = _components(data, int(np.prod(dims)), (first, second), path)
    fields = {name: sliced(values.reshape(dims[::-1])) for name, values in flat.items()}
    return Plane(x=x, y=y, fields=fields, vectors=vectors, remarks=tuple(remarks))


def _thin_axis(dims: tuple[int, ...], path: Path, remarks: list[str]) -> tuple[int, int]:
    """The normal of the plane, and the layer to take along it."""
    # A row of points along x has two thin axes: then z is the normal and y has one row.
    flat = [axis for axis in range(3) if dims[axis] == 1]
    if flat:
        normal = flat[-1]
    elif 2 in dims:
        normal = max(axis for axis in range(3) if dims[axis] == 2)
        remarks.append(f"two layers along {AXES[normal]}: the first was taken")
    else:
        nx, ny, nz = dims
        raise SourceError(
            f"{path}: it holds a flow in space, {nx} x {ny} x {nz} values; cut a plane out of it "
            "(one value along one axis) and save that"
        )
    _name_plane(normal, remarks)
    return normal, 0


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
    normal = int(np.argmin(extent[::-1] > _FLAT * extent.max()))
    normal = 2 - normal if extent.min() <= _FLAT * extent.max() else -1
    keep = slice(None)
    if normal < 0:
        layers = [np.unique(points[:, axis]) for axis in range(3)]
        if min(len(layer) for layer in layers) != 2:
            raise SourceError(
                f"{path}: its points fill a space of {extent[0]:g} x {extent[1]:g} x "
                f"{extent[2]:g}; cut a plane out of it and save that"
            )
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
        if values.ndim == 1 or values.shape[1] == 1:
            fields[name] = values.reshape(count)
        elif values.shape[1] == 3 or (values.shape[1] == 2 and plane == (0, 1)):
            vectors.append(name)
            for letter, axis in zip("xy", plane, strict=True):
                fields[f"{name}_{letter}"] = values[:, axis]
    return fields, tuple(vectors)


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
