"""Flows on the cells of a mesh in a plane, and their values on a uniform grid.

A grid point is fluid where a cell holds it. Its value is linear in the triangle of the cell's centre
and one side of the cell: between the value of the cell and the values at the side's two points. A
point takes the mean of the cells around it, weighted by inverse distance, and on the boundary the
mean of the boundary values beside it. This is OpenFOAM's ``cellPoint`` interpolation for a mesh with
one layer of cells.
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from pibert.data.sources.gridding.lattice import find_lattice, find_uniform
from pibert.data.sources.gridding.raster import cover
from pibert.data.sources.recordings import SourceError

ON_BOUNDARY = 1e-6
"""A grid point this share of the extent outside the mesh counts as on its boundary."""
_NOTHING = 1e-9
"""A weight below this is rounding: the value, which may be unknown, does not count."""
_PAIRS = 1 << 22


@dataclass(frozen=True, eq=False, kw_only=True)
class CellMesh:
    """Polygons (m of them) with corners among n points, and f edges of the boundary."""

    points: np.ndarray
    """(n, 2); not all need to be corners."""
    corners: np.ndarray
    """Point numbers of all polygons in a row, each in order around its polygon."""
    ends: np.ndarray
    """(m,): where each polygon ends among the corners."""
    depth: np.ndarray | None = None
    """(n,) distance of the points from the plane, where they lie before or behind it."""
    edges: np.ndarray | None = None
    """(f, 2) point numbers; None where the boundary is not known."""
    walls: np.ndarray | None = None
    """(f,): True where a solid lies behind an edge."""
    twins: tuple[np.ndarray, ...] = ()
    """Per pair of periodic boundaries (n,): the point on the other one, -1 for all other points."""
    rank: np.ndarray | None = None
    """(m,): of cells that overlap the one with the higher rank counts; below 0 is not fluid."""

    @property
    def owners(self) -> np.ndarray:
        """The polygon of each corner."""
        return np.repeat(np.arange(len(self.ends)), np.diff(self.ends, prepend=0))

    @property
    def following(self) -> np.ndarray:
        """The corner after each corner."""
        after = np.arange(1, len(self.corners) + 1)
        after[self.ends - 1] = np.concatenate([[0], self.ends[:-1]])
        return self.corners[after]

    def areas(self) -> np.ndarray:
        """(m,), not negative."""
        return np.abs(np.bincount(self.owners, self._crosses()[0]) / 2)

    def centres(self) -> np.ndarray:
        """(m, 2) centroids; the mean of the corners where a polygon has no area."""
        cross, sums = self._crosses()
        start = self.points[self.corners[np.concatenate([[0], self.ends[:-1]])]]
        double = np.bincount(self.owners, cross)
        count = np.bincount(self.owners)
        centres = np.empty((len(self.ends), 2))
        for axis in (0, 1):
            moment = np.bincount(self.owners, cross * sums[:, axis])
            mean = np.bincount(self.owners, sums[:, axis]) / (2 * count)
            with np.errstate(divide="ignore", invalid="ignore"):
                own = moment / (3 * double)
            flat = np.abs(double) <= 1e-14 * np.abs(sums).max() ** 2
            centres[:, axis] = start[:, axis] + np.where(flat, mean, own)
        return centres

    def _crosses(self) -> tuple[np.ndarray, np.ndarray]:
        """Cross products and sums of the ends of all sides, from each polygon's first corner."""
        start = self.points[self.corners[np.concatenate([[0], self.ends[:-1]])]][self.owners]
        a, b = self.points[self.corners] - start, self.points[self.following] - start
        return a[:, 0] * b[:, 1] - a[:, 1] * b[:, 0], a + b

    def same_as(self, other: "CellMesh") -> bool:
        """Whether all arrays are equal."""
        if self is other:
            return True
        mine, theirs = vars(self), vars(other)
        return all(
            (value is None) == (theirs[name] is None)
            and (value is None or np.array_equal(np.asarray(value), np.asarray(theirs[name])))
            for name, value in mine.items()
        )


class Axes(NamedTuple):
    """The columns and rows of a uniform grid."""

    x: np.ndarray
    y: np.ndarray

    def in_steps(self, points: np.ndarray) -> np.ndarray:
        """Points (n, 2) as fractional columns and rows."""
        steps = (self.x[1] - self.x[0], self.y[1] - self.y[0])
        return (points - (self.x[0], self.y[0])) / steps


def choose_axes(
    name: str,
    mesh: CellMesh,
    shape: tuple[int, int] | None,
    *,
    of_cells: bool,
    box: np.ndarray | None = None,
    periodic: tuple[bool, bool] = (False, False),
) -> tuple[Axes, bool]:
    """A uniform grid for a mesh, and whether values of the mesh lie at its points.

    Args:
        name: Of the flow, for messages.
        mesh: The mesh; that of the first frame where it moves.
        shape: Rows and columns; None leaves it to the mesh. Then values on a uniform grid keep it,
            others get a grid over the box with square cells and as many points per area.
        of_cells: Whether the values are those of cells, at their centres, or at the points.
        box: [[left, bottom], [right, top]] of what the grid covers; None is that of a mesh at rest.
        periodic: Whether the flow repeats along x and y; the last column or row is then left out.
    """
    if shape is not None and min(shape) < 2:
        raise SourceError(f"{name}: a grid needs two rows and columns, asked for {shape}")
    used = mesh.points[np.unique(mesh.corners)]
    if shape is None and box is None:
        places = mesh.centres() if of_cells else used
        lattice = find_lattice(name, places[:, 0], places[:, 1])
        if lattice is not None:
            found = [find_uniform(levels) for levels in (lattice.columns, lattice.rows)]
            if all(axis is not None for axis in found):
                x, y = (f + step * np.arange(at[-1] + 1) for f, step, at in found if at is not None)
                return Axes(x, y), True
    (left, bottom), (right, top) = [used.min(0), used.max(0)] if box is None else box
    if shape is None:
        step = math.sqrt(mesh.areas().sum() / len(mesh.ends))
        shape = max(2, round((top - bottom) / step) + 1), max(2, round((right - left) / step) + 1)
    rows, columns = shape
    x = np.linspace(left, right, columns, endpoint=not periodic[0])
    y = np.linspace(bottom, top, rows, endpoint=not periodic[1])
    return Axes(x, y), False


class CellSampler:
    """Brings values of a mesh to the points of a grid."""

    def __init__(self, mesh: CellMesh, axes: Axes) -> None:
        self.mesh, self.shape = mesh, (len(axes.y), len(axes.x))
        centres, places = axes.in_steps(mesh.centres()), axes.in_steps(mesh.points)
        owner, after = mesh.owners, mesh.following
        used = np.arange(len(owner))
        if mesh.rank is not None:
            used = used[mesh.rank[owner] >= 0]
        triangles = np.stack([centres[owner], places[mesh.corners], places[after]], 1)[used]
        found = cover(triangles, self.shape, ON_BOUNDARY * max(self.shape))
        cells = owner[used[found.triangle]]
        # Of all triangles that hold a point the last is kept: the one that it lies deepest in.
        rank = np.zeros(len(cells)) if mesh.rank is None else mesh.rank[cells]
        order = np.lexsort((found.weights.min(1), rank))
        best = np.full(self.shape, -1)
        best[found.rows[order], found.columns[order]] = order
        self.fluid = best >= 0
        chosen = best[self.fluid]
        weights = np.where(found.weights[chosen] < _NOTHING, 0.0, found.weights[chosen])
        self._weights = (weights / weights.sum(1, keepdims=True)).T
        side = used[found.triangle[chosen]]
        self._cells, self._sides = owner[side], (mesh.corners[side], after[side])
        self._spread = _point_weights(mesh)
        self._means = np.bincount(owner, minlength=len(mesh.ends))
        self.body = self._find_body(axes)

    def sample(
        self,
        cells: np.ndarray | None,
        points: np.ndarray | None = None,
        edges: np.ndarray | None = None,
        zeros: np.ndarray | None = None,
    ) -> np.ndarray:
        """A field (y, x), NaN where no cell is.

        Args:
            cells: (m,) values of the cells; without them the means of their corners.
            points: (n,) values at the points; without them those that follow from the cells.
            edges: (f,) values on the boundary's edges; without them those of the cells count there.
            zeros: Numbers of points at which the value is zero, whatever is around them.
        """
        if points is None:
            assert cells is not None
            points = self._at_points(cells, edges)
            points[[] if zeros is None else zeros] = 0.0
        if cells is None:
            corner_values = points[self.mesh.corners]
            cells = np.bincount(self.mesh.owners, corner_values) / self._means
        first, second = self._sides
        values = np.stack([cells[self._cells], points[first], points[second]])
        result = np.full(self.shape, np.nan)
        with np.errstate(invalid="ignore"):
            result[self.fluid] = np.where(self._weights > 0, self._weights * values, 0.0).sum(0)
        return result

    def _at_points(self, cells: np.ndarray, edges: np.ndarray | None) -> np.ndarray:
        point, source, weight = self._spread[edges is not None]
        values = cells if edges is None else np.concatenate([cells, edges])
        count = len(self.mesh.points)
        total = np.bincount(point, weight * values[source], minlength=count)
        with np.errstate(invalid="ignore"):
            return total / np.bincount(point, weight, minlength=count)

    def _find_body(self, axes: Axes) -> np.ndarray:
        """Points outside the mesh that a solid holds: behind walls, or else enclosed by the mesh."""
        outside, mesh = ~self.fluid, self.mesh
        if mesh.edges is None or mesh.walls is None or not len(mesh.edges):
            return outside & ~_reached_from_border(outside)
        body = np.zeros(self.shape, bool)
        rows, columns = np.nonzero(outside)
        targets = np.stack([axes.x[columns], axes.y[rows]], 1)
        body[rows, columns] = mesh.walls[_nearest_edge(targets, mesh.points[mesh.edges])]
        return body


_Spread = tuple[np.ndarray, np.ndarray, np.ndarray]


def _point_weights(mesh: CellMesh) -> dict[bool, _Spread]:
    """What the value of each point is made of: (point, source, weight), not normalised.

    Sources are cells and, behind them, edges; by whether values on the edges are known.
    """
    owner, point = mesh.owners, mesh.corners
    if mesh.rank is not None:
        kept = mesh.rank[owner] >= 0
        owner, point = owner[kept], point[kept]
    depth = np.zeros(len(mesh.points)) if mesh.depth is None else mesh.depth

    def weight(point: np.ndarray, source: np.ndarray) -> np.ndarray:
        away = np.hypot(np.linalg.norm(mesh.points[point] - source, axis=1), depth[point])
        return 1 / np.maximum(away, np.finfo(float).tiny)

    of_cells = (point, owner, weight(point, mesh.centres()[owner]))
    found = {False: _with_twins(of_cells, mesh)}
    if mesh.edges is not None:
        ends = mesh.edges.reshape(-1)
        number = np.repeat(np.arange(len(mesh.edges)), 2)
        middles = mesh.points[mesh.edges].mean(1)
        inner = np.ones(len(mesh.points), bool)
        inner[ends] = False
        inner = inner[point]
        joined = (
            np.concatenate([point[inner], ends]),
            np.concatenate([owner[inner], len(mesh.ends) + number]),
            np.concatenate([of_cells[2][inner], weight(ends, middles[number])]),
        )
        found[True] = _with_twins(joined, mesh)
    return found


def _with_twins(spread: _Spread, mesh: CellMesh) -> _Spread:
    """Points of periodic boundaries take what is around their twins, too."""
    point, source, weight = spread
    for twin in mesh.twins:
        other = twin[point]
        there = other >= 0
        point = np.concatenate([point, other[there]])
        source = np.concatenate([source, source[there]])
        weight = np.concatenate([weight, weight[there]])
    return point, source, weight


def _nearest_edge(targets: np.ndarray, edges: np.ndarray) -> np.ndarray:
    """The number of the edge (f, 2, 2) that is nearest to each target (k, 2)."""
    start, along = edges[:, 0], edges[:, 1] - edges[:, 0]
    squared = np.maximum((along**2).sum(1), np.finfo(float).tiny)
    nearest = np.empty(len(targets), int)
    block = max(1, _PAIRS // max(1, len(edges)))
    for first in range(0, len(targets), block):
        arm = targets[first : first + block, None] - start
        share = np.clip((arm * along).sum(-1) / squared, 0, 1)
        away = ((arm - share[..., None] * along) ** 2).sum(-1)
        nearest[first : first + block] = away.argmin(1)
    return nearest


def _reached_from_border(free: np.ndarray) -> np.ndarray:
    """The part of a mask that hangs together with the border of the grid."""
    reached = np.zeros_like(free)
    reached[[0, -1]], reached[:, [0, -1]] = free[[0, -1]], free[:, [0, -1]]
    while True:
        grown = reached.copy()
        grown[1:] |= reached[:-1]
        grown[:-1] |= reached[1:]
        grown[:, 1:] |= reached[:, :-1]
        grown[:, :-1] |= reached[:, 1:]
        grown &= free
        if (grown == reached).all():
            return reached
        reached = grown
