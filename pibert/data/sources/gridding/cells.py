"""Plane meshes of polygonal cells, and uniform grids that cover them."""

import math
from dataclasses import dataclass, fields
from functools import cached_property
from typing import NamedTuple

import numpy as np

from pibert.data.sources.gridding.lattice import find_lattice, find_uniform
from pibert.data.sources.gridding.size import check_asked, even_size

_FARTHEST = 1e30
"""Coordinates beyond it are damaged; squares of areas would overflow."""


def check_coordinates(values: np.ndarray) -> None:
    """Raise ValueError unless coordinates are finite and of a size to compute areas with."""
    largest = float(np.abs(values).max(initial=0.0))
    if not largest <= _FARTHEST:
        raise ValueError(
            f"its coordinates reach {largest:g}, expected finite numbers below {_FARTHEST:g}"
        )


@dataclass(frozen=True, eq=False, kw_only=True)
class CellMesh:
    """m polygons with their corners among n points, and f edges of the boundary."""

    points: np.ndarray
    """(n, 2) coordinates; some points may belong to no cell."""
    corners: np.ndarray
    """Point numbers of all polygons, one polygon after the other, in order around each."""
    ends: np.ndarray
    """(m,) where each polygon ends in ``corners``."""
    depth: np.ndarray | None = None
    """(n,) distance of the points from the plane, for a layer of cells in space."""
    edges: np.ndarray | None = None
    """(f, 2) point numbers; None where the boundary is not known."""
    walls: np.ndarray | None = None
    """(f,) True where an edge is a solid wall."""
    twins: tuple[np.ndarray, ...] = ()
    """For each pair of periodic boundaries: (n,) the matching point, -1 for points off them."""
    rank: np.ndarray | None = None
    """(m,) where cells overlap the highest rank counts; cells below 0 are not fluid."""

    @cached_property
    def owners(self) -> np.ndarray:
        """The polygon of each corner."""
        return np.repeat(np.arange(len(self.ends)), np.diff(self.ends, prepend=0))

    @cached_property
    def following(self) -> np.ndarray:
        """The next corner around the polygon, for each corner."""
        after = np.arange(1, len(self.corners) + 1)
        after[self.ends - 1] = self._starts
        return self.corners[after]

    @property
    def _starts(self) -> np.ndarray:
        return np.concatenate([[0], self.ends[:-1]])

    def areas(self) -> np.ndarray:
        """(m,) areas."""
        return np.abs(np.bincount(self.owners, self._sides()[0]) / 2)

    @cached_property
    def centres(self) -> np.ndarray:
        """(m, 2) centroids; for a polygon without area the mean of its corners."""
        cross, a, b = self._sides()
        owner = self.owners
        doubled = np.bincount(owner, cross)
        size = np.bincount(owner, (a**2 + b**2).sum(1))
        has_area = np.abs(doubled) > 1e-12 * size
        centres = self.points[self.corners[self._starts]]
        for axis in (0, 1):
            sums = a[:, axis] + b[:, axis]
            mean = np.bincount(owner, sums) / (2 * np.bincount(owner))
            moment = np.bincount(owner, cross * sums)
            centroid = np.divide(moment, 3 * doubled, out=mean.copy(), where=has_area)
            centres[:, axis] += centroid
        return centres

    def _sides(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Cross product, start and end of every side, relative to the polygon's first corner."""
        origin = self.points[self.corners[self._starts]][self.owners]
        a, b = self.points[self.corners] - origin, self.points[self.following] - origin
        return a[:, 0] * b[:, 1] - a[:, 1] * b[:, 0], a, b

    def same_as(self, other: "CellMesh") -> bool:
        """Whether all arrays are equal."""
        if self is other:
            return True
        pairs = [(getattr(self, each.name), getattr(other, each.name)) for each in fields(self)]
        return all(
            (mine is None) == (theirs is None)
            and (mine is None or np.array_equal(np.asarray(mine), np.asarray(theirs)))
            for mine, theirs in pairs
        )


class Axes(NamedTuple):
    """The columns and rows of a uniform grid."""

    x: np.ndarray
    y: np.ndarray

    def to_grid(self, points: np.ndarray) -> np.ndarray:
        """Points (n, 2) as fractional (column, row)."""
        steps = (self.x[1] - self.x[0], self.y[1] - self.y[0])
        return (points - (self.x[0], self.y[0])) / steps


def choose_axes(
    name: str,
    mesh: CellMesh,
    shape: tuple[int, int] | None,
    *,
    on_cells: bool,
    box: np.ndarray | None = None,
    periodic: tuple[bool, bool] = (False, False),
) -> tuple[Axes, bool]:
    """Choose a uniform grid for a mesh.

    Args:
        name: Of the flow, for messages.
        mesh: The mesh of the first frame.
        shape: Rows and columns. By default, values that lie on a uniform grid keep this grid;
            others get a grid with square cells and as many points per area as the mesh has cells.
        on_cells: Whether the values belong to cells, at their centres, or to points.
        box: [[left, bottom], [right, top]] to cover, for a moving mesh; default: the mesh's extent.
        periodic: Whether the flow is periodic along x and y; the grid then leaves out the last
            column or row, which repeats the first.

    Returns:
        The grid, and whether its points are the points where the mesh has values.
    """
    used = mesh.points[np.unique(mesh.corners)]
    if shape is None and box is None:
        given = mesh.centres if on_cells else used
        lattice = find_lattice(name, given[:, 0], given[:, 1])
        if lattice is not None:
            x, y = (_uniform(levels) for levels in (lattice.columns, lattice.rows))
            if x is not None and y is not None:
                return Axes(x, y), True
    (left, bottom), (right, top) = [used.min(0), used.max(0)] if box is None else box
    if shape is None:
        count = len(mesh.ends)
        step = math.sqrt(mesh.areas().sum() / count)
        shape = even_size(name, np.array([right - left, top - bottom]), step, count)
    rows, columns = check_asked(name, shape)
    x = np.linspace(left, right, columns, endpoint=not periodic[0])
    y = np.linspace(bottom, top, rows, endpoint=not periodic[1])
    return Axes(x, y), False


def _uniform(levels: np.ndarray) -> np.ndarray | None:
    found = find_uniform(levels)
    if found is None:
        return None
    first, step, positions = found
    return first + step * np.arange(positions[-1] + 1)
