"""Cells of a plane as polygons: from lists of points, from structured grids, from one layer."""

import math
from collections.abc import Mapping

import numpy as np

Cells = tuple[np.ndarray, np.ndarray]
"""Point numbers of all cells, one cell after the other, and where each cell ends among them."""


def find_polygons(
    cells: Cells, layer: np.ndarray, plane: np.ndarray, count: int, *, in_order: bool
) -> tuple[np.ndarray, Cells] | None:
    """The polygons that cells have in a layer of points.

    Args:
        cells: Cells in the plane, or one layer of cells in space.
        layer: Numbers of the points of the layer.
        plane: (k, 2) their coordinates.
        count: Number of all points.
        in_order: Whether the points of a cell are given in order around it.

    Returns:
        The numbers of the cells with three or more points in the layer, and their polygons, with
        points numbered within the layer; None if there is no such cell.

    Raises:
        ValueError: If the cells are inconsistent.
    """
    corners, ends = (np.asarray(array, np.int64) for array in cells)
    if not len(ends):
        return None
    sizes = np.diff(ends, prepend=0)
    # Differences of damaged ends may overflow and look small in sum.
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
    """The order that puts the corners of every cell in order around their mean."""
    count = np.maximum(np.bincount(owner), 1)
    x, y = (corners[:, a] - (np.bincount(owner, corners[:, a]) / count)[owner] for a in (0, 1))
    return np.lexsort((np.arctan2(y, x), owner))


def merge_points(plane: np.ndarray, corners: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """One point where several cells have a point of their own at the same place."""
    rounded = np.round(plane / (1e-6 * np.ptp(plane, axis=0).max()))
    _, first, which = np.unique(rounded, axis=0, return_index=True, return_inverse=True)
    return plane[first], which.reshape(-1)[corners]


def quadrilaterals(rows: int, columns: int) -> Cells:
    """The cells between the points of a structured grid, counted row by row."""
    corner = np.arange(rows * columns).reshape(rows, columns)
    sides = [corner[:-1, :-1], corner[:-1, 1:], corner[1:, 1:], corner[1:, :-1]]
    quads = np.stack(sides, -1).reshape(-1, 4)
    return quads.reshape(-1), 4 * np.arange(1, len(quads) + 1)


def first_layer(
    data: Mapping[str, np.ndarray], dims: tuple[int, int, int], thin: int
) -> dict[str, np.ndarray]:
    """Arrays over a structured grid, on its first layer across an axis.

    Raises:
        ValueError: If an array does not fit the grid.
    """
    found = {}
    for name, values in data.items():
        if len(values) != math.prod(dims):
            raise ValueError(f"{name!r} has {len(values)} values, the grid {dims}")
        grid = values.reshape(*dims[::-1], *values.shape[1:])
        layer = np.take(grid, 0, axis=2 - thin)
        found[name] = layer.reshape(-1, *values.shape[1:])
    return found
