"""Plane meshes of polygonal cells, grids that cover them, and their values at grid points.

A grid point is fluid if it lies in a cell, or on the boundary within ``ON_BOUNDARY``. Its value is
linear in the triangle between the centre of the cell and one of its sides. The value at a mesh
point is the mean of the cells around it, weighted by inverse distance; at a boundary point, the
mean of the boundary values on the adjacent edges. For one layer of cells this is OpenFOAM's
``cellPoint`` interpolation (``volPointInterpolation`` to the points, then linear in tetrahedra).

In units of the grid, the point in row j and column i is at (i, j).
"""

import math
from dataclasses import dataclass, fields
from functools import cached_property
from typing import NamedTuple

import numpy as np

from pibert.data.readers.shared.interpolation import (
    check_shape,
    even_size,
    find_lattice,
    find_uniform,
)

_FARTHEST = 1e30
"""Larger coordinates are damaged; squares of areas would overflow."""


def check_coordinates(values: np.ndarray) -> None:
    """Raise ValueError unless coordinates are finite and not too large to compute areas."""
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
    """Point indices of all polygons, one polygon after the other, in order around each."""
    ends: np.ndarray
    """(m,) ends of the polygons in ``corners``."""
    depth: np.ndarray | None = None
    """(n,) distance of the points from the plane, for a layer of cells in space."""
    edges: np.ndarray | None = None
    """(f, 2) point indices; None if the boundary is not known."""
    walls: np.ndarray | None = None
    """(f,) True where an edge is a solid wall."""
    twins: tuple[np.ndarray, ...] = ()
    """For each pair of periodic boundaries: (n,) the matching point, -1 for points off them."""
    rank: np.ndarray | None = None
    """(m,) the highest rank counts where cells overlap; negative cells are not fluid."""

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
        return _cross(a, b), a, b

    def same_as(self, other: "CellMesh") -> bool:
        """Return whether all arrays are equal."""
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
        """Return points (n, 2) as fractional (column, row)."""
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
    """Return a uniform grid for a mesh, and whether the mesh has its values at the grid points.

    Args:
        name: Name of the flow, for messages.
        mesh: Mesh of the first frame.
        shape: Rows and columns. By default, values on a uniform grid keep this grid; others get a
            grid with square cells and as many points per area as the mesh has cells.
        on_cells: Whether the values belong to cell centres or to points.
        box: [[left, bottom], [right, top]] to cover; default: the mesh's extent.
        periodic: Along x and y; the grid then omits the last column or row, a repetition.
    """
    used = mesh.points[np.unique(mesh.corners)]
    if shape is None and box is None:
        given = mesh.centres if on_cells else used
        lattice = find_lattice(name, given[:, 0], given[:, 1])
        uniform = [find_uniform(levels) for levels in lattice[:2]] if lattice is not None else []
        axes = [first + step * np.arange(n[-1] + 1) for first, step, n in filter(None, uniform)]
        if len(axes) == 2:
            return Axes(*axes), True
    (left, bottom), (right, top) = [used.min(0), used.max(0)] if box is None else box
    if shape is None:
        count = len(mesh.ends)
        step = math.sqrt(mesh.areas().sum() / count)
        shape = even_size(name, np.array([right - left, top - bottom]), step, count)
    rows, columns = check_shape(name, shape)
    x = np.linspace(left, right, columns, endpoint=not periodic[0])
    y = np.linspace(bottom, top, rows, endpoint=not periodic[1])
    return Axes(x, y), False


ON_BOUNDARY = 1e-6
"""Points up to this share of the grid's extent outside the mesh are on its boundary."""
_ROUNDING = 1e-9
"""Smaller weights are zero, so that an unknown neighbour does not spoil a grid point."""
_PAIRS = 1 << 22

_Spread = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Point, source (a cell, or m + an edge) and weight of each contribution to a point's value."""


class CellSampler:
    """Samples fields of one mesh at the points of one grid."""

    def __init__(self, mesh: CellMesh, axes: Axes) -> None:
        self.mesh, self.shape = mesh, (len(axes.y), len(axes.x))
        centres, points = axes.to_grid(mesh.centres), axes.to_grid(mesh.points)
        owner, after = mesh.owners, mesh.following
        rank = np.zeros(len(mesh.ends), int) if mesh.rank is None else mesh.rank
        sides = np.flatnonzero(rank[owner] >= 0)
        triangles = np.stack([centres[owner], points[mesh.corners], points[after]], 1)[sides]
        found = cover(triangles, self.shape, ON_BOUNDARY * max(self.shape))
        # If several triangles hold a grid point, keep the one in which it lies deepest.
        order = np.lexsort((found.weights.min(1), rank[owner[sides[found.triangle]]]))
        best = np.full(self.shape, -1)
        best[found.rows[order], found.columns[order]] = order
        self.fluid = best >= 0
        """(y, x) points with a value."""
        chosen = best[self.fluid]
        side, weights = sides[found.triangle[chosen]], found.weights[chosen]
        weights = np.where(weights < _ROUNDING, 0.0, weights)
        self._weights = (weights / weights.sum(1, keepdims=True)).T
        self._cells, self._ends = owner[side], (mesh.corners[side], after[side])
        used = rank[owner] >= 0
        point, cell = mesh.corners[used], owner[used]
        self._from_cells = point, cell, _inverse_distance(mesh, point, mesh.centres[cell])
        """Weights from cells to points."""
        self._from_edges = None if mesh.edges is None else _spread_edges(mesh, self._from_cells)
        self.body = self._find_body(axes)
        """(y, x) points in a solid."""

    def sample(
        self,
        cells: np.ndarray | None,
        points: np.ndarray | None = None,
        edges: np.ndarray | None = None,
        zeros: np.ndarray | None = None,
    ) -> np.ndarray:
        """Return a field on the grid, (y, x), NaN outside all cells.

        Values belong to cells (m,), points (n,) and boundary edges (f,). Cell values default to the
        mean over the cell's corners, point values to the interpolation from cells and edges (zero
        at the points ``zeros``), edge values to those of the cells.
        """
        if points is None:
            assert cells is not None
            points = self._at_points(cells, edges)
            if zeros is not None:
                points[zeros] = 0.0
        if cells is None:
            owner = self.mesh.owners
            cells = np.bincount(owner, points[self.mesh.corners]) / np.bincount(owner)
        first, second = self._ends
        values = np.stack([cells[self._cells], points[first], points[second]])
        result = np.full(self.shape, np.nan)
        result[self.fluid] = np.where(self._weights > 0, self._weights * values, 0.0).sum(0)
        return result

    def _at_points(self, cells: np.ndarray, edges: np.ndarray | None) -> np.ndarray:
        spread, values = self._from_cells, cells
        if edges is not None and self._from_edges is not None:
            spread, values = self._from_edges, np.concatenate([cells, edges])
        point, source, weight = _join_twins(spread, self.mesh)
        count = len(self.mesh.points)
        total = np.bincount(point, weight * values[source], minlength=count)
        with np.errstate(invalid="ignore"):  # points that belong to no cell
            return total / np.bincount(point, weight, minlength=count)

    def _find_body(self, axes: Axes) -> np.ndarray:
        """Return the points outside the mesh nearest to a wall; without patches, in holes."""
        outside, mesh = ~self.fluid, self.mesh
        if mesh.edges is None or mesh.walls is None or not len(mesh.edges):
            return outside & ~_connected_to_border(outside)
        rows, columns = np.nonzero(outside)
        targets = np.stack([axes.x[columns], axes.y[rows]], 1)
        body = np.zeros(self.shape, bool)
        body[rows, columns] = mesh.walls[_nearest_edge(targets, mesh.points[mesh.edges])]
        return body


def _spread_edges(mesh: CellMesh, from_cells: _Spread) -> _Spread:
    """Return weights from cells and boundary edges to points; boundary points use only edges."""
    assert mesh.edges is not None
    point, edge = mesh.edges.reshape(-1), np.repeat(np.arange(len(mesh.edges)), 2)
    weight = _inverse_distance(mesh, point, mesh.points[mesh.edges].mean(1)[edge])
    inner = ~np.isin(from_cells[0], point)
    outer = (point, len(mesh.ends) + edge, weight)
    joined = [np.concatenate([a[inner], b]) for a, b in zip(from_cells, outer, strict=True)]
    return joined[0], joined[1], joined[2]


def _inverse_distance(mesh: CellMesh, point: np.ndarray, source: np.ndarray) -> np.ndarray:
    distance = np.linalg.norm(mesh.points[point] - source, axis=1)
    if mesh.depth is not None:
        distance = np.hypot(distance, mesh.depth[point])
    return 1 / np.maximum(distance, np.finfo(float).tiny)


def _join_twins(spread: _Spread, mesh: CellMesh) -> _Spread:
    """Add to points on periodic boundaries the contributions to their twins."""
    point, source, weight = spread
    for twin in mesh.twins:
        other = twin[point]
        paired = other >= 0
        point = np.concatenate([point, other[paired]])
        source = np.concatenate([source, source[paired]])
        weight = np.concatenate([weight, weight[paired]])
    return point, source, weight


def _nearest_edge(targets: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """Return the index of the edge (f, 2, 2) nearest to each target (k, 2)."""
    start, along = edges[:, 0], edges[:, 1] - edges[:, 0]
    squared = np.maximum((along**2).sum(1), np.finfo(float).tiny)
    nearest = np.empty(len(targets), int)
    block = max(1, _PAIRS // len(edges))
    for first in range(0, len(targets), block):
        arm = targets[first : first + block, None] - start
        share = np.clip((arm * along).sum(-1) / squared, 0, 1)
        distance = ((arm - share[..., None] * along) ** 2).sum(-1)
        nearest[first : first + block] = distance.argmin(1)
    return nearest


def _connected_to_border(mask: np.ndarray) -> np.ndarray:
    """Return the points of a mask that are connected to the border of the grid."""
    # A frame of points outside, from which the mask is flooded.
    left, columns = np.pad(mask, 1, constant_values=True), mask.shape[1] + 2
    left = np.pad(left, ((1, 1), (0, 0))).ravel()
    front = np.array([columns])
    while len(front):
        left[front] = False
        near = (front[:, None] + [-columns, -1, 1, columns]).ravel()
        front = np.unique(near[left[near]])
    return mask & ~left.reshape(-1, columns)[2:-2, 1:-1]


_COVER_TOLERANCE = 1e-9
_BLOCK = 1 << 18
"""Pairs of a triangle and a grid point in its box that are compared at once."""
_PER_TRIANGLE = 64
_PER_POINT = 32
"""Limits on such pairs, per triangle and per grid point. Most meshes have fewer than ten per
triangle; slanted slivers that span the grid have thousands."""


class Cover(NamedTuple):
    """Grid points inside triangles; a point on an edge occurs once for each triangle."""

    rows: np.ndarray
    columns: np.ndarray
    triangle: np.ndarray
    weights: np.ndarray
    """(k, 3) barycentric weights of the corners."""


def cover(corners: np.ndarray, shape: tuple[int, int], tolerance: float | None = None) -> Cover:
    """Return the points of a grid of ``shape`` inside triangles (k, 3, 2), in units of the grid.

    Points may lie ``tolerance`` outside; None allows for rounding alone. Raises ValueError if the
    triangles overlap so much that comparing them would take too long.
    """
    reach = _COVER_TOLERANCE if tolerance is None else tolerance
    limits = np.array(shape[::-1]) - 1
    low = np.clip(np.ceil(corners.min(1) - reach), 0, limits + 1).astype(np.int64)
    high = np.clip(np.floor(corners.max(1) + reach), -1, limits).astype(np.int64)
    size = np.maximum(high - low + 1, 0)
    pairs = np.cumsum(size.prod(1))
    total = int(pairs[-1]) if len(pairs) else 0
    if total > max(_BLOCK, _PER_TRIANGLE * len(corners) + _PER_POINT * shape[0] * shape[1]):
        raise ValueError(
            f"the cells of its mesh overlap or are slivers: {total:.2g} comparisons for a grid of "
            f"{shape[0]} x {shape[1]} points"
        )
    whole = np.flatnonzero((_area(corners) != 0) & (size.min(1) > 0))
    starts = np.searchsorted(pairs[whole], np.arange(_BLOCK, total, _BLOCK))
    found = [
        _cover_block(which, corners[which], low[which], size[which], tolerance)
        for which in np.split(whole, np.unique(starts))
    ]
    return Cover(*map(np.concatenate, zip(*found, strict=True)))


def _cover_block(
    which: np.ndarray,
    corners: np.ndarray,
    low: np.ndarray,
    size: np.ndarray,
    tolerance: float | None,
) -> Cover:
    """Return the grid points in triangles, given their indices, first grid points and boxes."""
    a, b, c = corners[:, 0], corners[:, 1], corners[:, 2]
    area = _area(corners)
    wide, count = size[:, 0], size.prod(1)
    owner = np.repeat(np.arange(len(corners)), count)
    index = np.arange(len(owner)) - np.repeat(np.cumsum(count) - count, count)
    columns = low[owner, 0] + index % wide[owner]
    rows = low[owner, 1] + index // wide[owner]
    arm = np.stack([columns, rows], 1) - a[owner]
    to_b = _cross(arm, (c - a)[owner]) / area[owner]
    to_c = _cross((b - a)[owner], arm) / area[owner]
    weights = np.stack([1 - to_b - to_c, to_b, to_c], 1)
    slack: float | np.ndarray = -_COVER_TOLERANCE
    if tolerance is not None:
        # A weight falls from 1 to 0 over the height above the opposite side.
        sides = np.linalg.norm(np.stack([c - b, a - c, b - a], 1), axis=-1)
        slack = (-tolerance * sides / np.abs(area)[:, None])[owner]
    inside = (weights >= slack).all(1)
    return Cover(rows[inside], columns[inside], which[owner[inside]], weights[inside])


def _area(corners: np.ndarray) -> np.ndarray:
    """Return twice the signed area."""
    return _cross(corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0])


def _cross(p: np.ndarray, q: np.ndarray) -> np.ndarray:
    return np.asarray(p[:, 0] * q[:, 1] - p[:, 1] * q[:, 0])
