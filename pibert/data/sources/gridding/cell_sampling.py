"""Values of a plane mesh at the points of a uniform grid.

A grid point is fluid if it lies in a cell, or on the boundary within ``ON_BOUNDARY``. Its value is
linear in the triangle between the centre of the cell and one of its sides. The value at a point of
the mesh is the mean of the cells around it, weighted by inverse distance; at a boundary point, the
mean of the boundary values on the edges beside it. For one layer of cells this is OpenFOAM's
``cellPoint`` interpolation (``volPointInterpolation`` to the points, then linear in tetrahedra).
"""

import numpy as np

from pibert.data.sources.gridding.cells import Axes, CellMesh
from pibert.data.sources.gridding.raster import cover

ON_BOUNDARY = 1e-6
"""A point this far outside the mesh, as a share of the grid's extent, is on its boundary."""
_ROUNDING = 1e-9
"""Smaller weights are zero, so that an unknown value beside a grid point does not reach it."""
_PAIRS = 1 << 22

_Spread = tuple[np.ndarray, np.ndarray, np.ndarray]
"""Point, source (a cell, or m + an edge) and weight of each contribution to a point's value."""


class CellSampler:
    """Samples fields of one mesh at the points of one grid."""

    def __init__(self, mesh: CellMesh, axes: Axes) -> None:
        self.mesh, self.shape = mesh, (len(axes.y), len(axes.x))
        centres, places = axes.to_grid(mesh.centres), axes.to_grid(mesh.points)
        owner, after = mesh.owners, mesh.following
        rank = np.zeros(len(mesh.ends), int) if mesh.rank is None else mesh.rank
        sides = np.flatnonzero(rank[owner] >= 0)
        triangles = np.stack([centres[owner], places[mesh.corners], places[after]], 1)[sides]
        found = cover(triangles, self.shape, ON_BOUNDARY * max(self.shape))
        # Of all triangles that hold a grid point, keep the one that it lies deepest in.
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
        self._from_cells = _spread_cells(mesh, rank)
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
        """A field on the grid, (y, x), NaN where no cell is.

        Args:
            cells: (m,) cell values; default: the mean of the values at the cell's corners.
            points: (n,) values at the mesh's points; default: interpolated from cells and edges.
            edges: (f,) values on boundary edges; default: boundary points take cell values.
            zeros: Numbers of points at which the interpolated value is set to zero.
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
        """Points outside the mesh, nearest to a wall; without patches, enclosed by the mesh."""
        outside, mesh = ~self.fluid, self.mesh
        if mesh.edges is None or mesh.walls is None or not len(mesh.edges):
            return outside & ~_connected_to_border(outside)
        rows, columns = np.nonzero(outside)
        targets = np.stack([axes.x[columns], axes.y[rows]], 1)
        body = np.zeros(self.shape, bool)
        body[rows, columns] = mesh.walls[_nearest_edge(targets, mesh.points[mesh.edges])]
        return body


def _spread_cells(mesh: CellMesh, rank: np.ndarray) -> _Spread:
    """How cell values reach the points."""
    used = rank[mesh.owners] >= 0
    point, cell = mesh.corners[used], mesh.owners[used]
    return point, cell, _inverse_distance(mesh, point, mesh.centres[cell])


def _spread_edges(mesh: CellMesh, from_cells: _Spread) -> _Spread:
    """The same with boundary values, which alone count at boundary points."""
    assert mesh.edges is not None
    point, edge = mesh.edges.reshape(-1), np.repeat(np.arange(len(mesh.edges)), 2)
    weight = _inverse_distance(mesh, point, mesh.points[mesh.edges].mean(1)[edge])
    inner = ~np.isin(from_cells[0], point)
    own = (point, len(mesh.ends) + edge, weight)
    joined = [np.concatenate([a[inner], b]) for a, b in zip(from_cells, own, strict=True)]
    return joined[0], joined[1], joined[2]


def _inverse_distance(mesh: CellMesh, point: np.ndarray, source: np.ndarray) -> np.ndarray:
    away = np.linalg.norm(mesh.points[point] - source, axis=1)
    if mesh.depth is not None:
        away = np.hypot(away, mesh.depth[point])
    return 1 / np.maximum(away, np.finfo(float).tiny)


def _join_twins(spread: _Spread, mesh: CellMesh) -> _Spread:
    """Points on periodic boundaries also take the contributions to their twins."""
    point, source, weight = spread
    for twin in mesh.twins:
        other = twin[point]
        paired = other >= 0
        point = np.concatenate([point, other[paired]])
        source = np.concatenate([source, source[paired]])
        weight = np.concatenate([weight, weight[paired]])
    return point, source, weight


def _nearest_edge(targets: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """The number of the edge (f, 2, 2) nearest to each target (k, 2)."""
    start, along = edges[:, 0], edges[:, 1] - edges[:, 0]
    squared = np.maximum((along**2).sum(1), np.finfo(float).tiny)
    nearest = np.empty(len(targets), int)
    block = max(1, _PAIRS // len(edges))
    for first in range(0, len(targets), block):
        arm = targets[first : first + block, None] - start
        share = np.clip((arm * along).sum(-1) / squared, 0, 1)
        away = ((arm - share[..., None] * along) ** 2).sum(-1)
        nearest[first : first + block] = away.argmin(1)
    return nearest


def _connected_to_border(mask: np.ndarray) -> np.ndarray:
    """The part of a mask that is connected to the border of the grid."""
    # A frame of False around it, so that every point has four neighbours.
    left, columns = np.pad(mask, 1).ravel(), mask.shape[1] + 2
    border = np.pad(np.zeros((mask.shape[0] - 2, mask.shape[1] - 2), bool), 1, constant_values=True)
    front = np.flatnonzero(np.pad(mask & border, 1))
    reached = np.zeros_like(left)
    while len(front):
        # Only from the points reached last: long winding gaps take no longer than wide ones.
        reached[front], left[front] = True, False
        near = (front[:, None] + [-columns, -1, 1, columns]).ravel()
        front = np.unique(near[left[near]])
    return reached.reshape(-1, columns)[1:-1, 1:-1]
