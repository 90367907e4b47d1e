"""Triangles on a uniform grid: which grid points each one holds, and what the grid cannot hold.

Positions are in units of the grid: the point in (row, column) lies at (column, row).
"""

from typing import Any, NamedTuple

import numpy as np

_TOLERANCE = 1e-9
_BLOCK = 1 << 18
"""Pairs of a triangle and a grid point in its box that are compared at once."""
_PER_TRIANGLE = 64
_PER_POINT = 32
"""Such pairs that a mesh may have, per triangle and per grid point. Most meshes have fewer than ten
per triangle; slanted slivers that span the grid have thousands."""


class Cover(NamedTuple):
    """Grid points inside triangles; a point on an edge is there once for each triangle."""

    rows: np.ndarray
    columns: np.ndarray
    triangle: np.ndarray
    weights: np.ndarray
    """(k, 3) barycentric weights of the corners."""


def cover(corners: np.ndarray, shape: tuple[int, int], tolerance: float | None = None) -> Cover:
    """The grid points inside triangles, all triangles at once.

    Args:
        corners: (triangles, 3, 2).
        shape: Rows and columns of the grid.
        tolerance: How far outside a point may lie; None allows for rounding alone.

    Raises:
        ValueError: If the triangles overlap so much that comparing them would take too long.
    """
    reach = _TOLERANCE if tolerance is None else tolerance
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
    return Cover(*(np.concatenate(parts) for parts in zip(*found, strict=True)))


def _cover_block(
    which: np.ndarray,
    corners: np.ndarray,
    low: np.ndarray,
    size: np.ndarray,
    tolerance: float | None,
) -> Cover:
    """The grid points in some triangles, whose numbers, first grid points and boxes are given."""
    a, b, c = corners[:, 0], corners[:, 1], corners[:, 2]
    area = _area(corners)
    wide, count = size[:, 0], size.prod(1)
    owner = np.repeat(np.arange(len(corners)), count)
    place = np.arange(len(owner)) - np.repeat(np.cumsum(count) - count, count)
    columns = low[owner, 0] + place % wide[owner]
    rows = low[owner, 1] + place // wide[owner]
    arm = np.stack([columns, rows], 1) - a[owner]
    to_b = _cross(arm, (c - a)[owner]) / area[owner]
    to_c = _cross((b - a)[owner], arm) / area[owner]
    weights = np.stack([1 - to_b - to_c, to_b, to_c], 1)
    slack: float | np.ndarray = -_TOLERANCE
    if tolerance is not None:
        # A weight falls from 1 to 0 over the height above the opposite side.
        sides = np.linalg.norm(np.stack([c - b, a - c, b - a], 1), axis=-1)
        slack = (-tolerance * sides / np.abs(area)[:, None])[owner]
    inside = (weights >= slack).all(1)
    return Cover(rows[inside], columns[inside], which[owner[inside]], weights[inside])


def _area(corners: np.ndarray) -> np.ndarray:
    """Twice the signed area."""
    return _cross(corners[:, 1] - corners[:, 0], corners[:, 2] - corners[:, 0])


def _cross(p: np.ndarray, q: np.ndarray) -> np.ndarray:
    product: np.ndarray = p[:, 0] * q[:, 1] - p[:, 1] * q[:, 0]
    return product


class GridError:
    """Sums up how far the grid, sampled at points of the source, is from the values there."""

    def __init__(self, channels: tuple[str, ...]) -> None:
        self.channels = channels
        self.nodes = self.tested = 0
        self.squares, self.total, self.total_squares = np.zeros((3, len(channels)))

    def add(
        self, points: np.ndarray, values: np.ndarray, states: np.ndarray, fluid: np.ndarray
    ) -> None:
        """Compare one frame where all four grid points around a point are fluid.

        Args:
            points: (n, 2) in units of the grid.
            values: (c, n).
            states: (c, y, x).
            fluid: (y, x).
        """
        self.nodes += len(points)
        ny, nx = fluid.shape
        column, row = np.floor(points).astype(np.int64).T
        ok = (column >= 0) & (column < nx - 1) & (row >= 0) & (row < ny - 1)
        ok[ok] = np.all([fluid[row[ok] + i, column[ok] + j] for i in (0, 1) for j in (0, 1)], 0)
        row, column, values = row[ok], column[ok], values[:, ok]
        right, up = points[ok, 0] - column, points[ok, 1] - row
        below, above = (
            (1 - right) * states[:, row + i, column] + right * states[:, row + i, column + 1]
            for i in (0, 1)
        )
        difference = (1 - up) * below + up * above - values
        finite = np.isfinite(difference).all(0)
        values, difference = values[:, finite], difference[:, finite]
        self.tested += values.shape[1]
        self.squares += (difference**2).sum(1)
        self.total += values.sum(1)
        self.total_squares += (values**2).sum(1)

    def report(self) -> dict[str, Any]:
        """Error per channel, rms over the tested nodes, and as a share of the field's deviation."""
        if not self.tested:
            return {"error": None, "nodes_tested": 0.0}
        rms = np.sqrt(self.squares / self.tested)
        variance = self.total_squares / self.tested - (self.total / self.tested) ** 2
        deviation = np.sqrt(np.maximum(variance, 0.0))
        error = {
            name: {"rms": float(r), "relative": float(r / d) if d > 0 else None}
            for name, r, d in zip(self.channels, rms, deviation, strict=True)
        }
        return {"error": error, "nodes_tested": self.tested / self.nodes}
