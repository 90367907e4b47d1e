"""Scattered points: linear interpolation in their Delaunay triangles, without values in holes.

The circumcircle of a Delaunay triangle holds no point. Where it is far wider than the spacing of
the points around it the triangle bridges a hole (a body, a concave side, a void): no value there.
"""

import math

import numpy as np

from pibert.data.sources.gridding.interpolation import Interpolation
from pibert.data.sources.gridding.size import even_size
from pibert.data.sources.recordings import SourceError

# A hole's circumradius in units of the median edge around it. A regular mesh has 0.6 to 0.7; of
# points scattered at random one triangle in ten million exceeds this.
_HOLE = 2.5
# Targets are moved towards the middle by this share of the extent: on the hull they would otherwise
# fall in triangles of no area between points that are on one line up to rounding.
_INWARD = 1e-7


class Triangulation:
    """The triangles of a set of points (n, 2)."""

    def __init__(self, name: str, points: np.ndarray) -> None:
        try:
            from scipy.spatial import Delaunay, QhullError
        except ImportError:
            raise ImportError(
                "resampling scattered points needs scipy: pip install 'pibert-cfd[io]'"
            ) from None
        self.low, self.high = points.min(0), points.max(0)
        self._middle, self._scale = (self.low + self.high) / 2, float((self.high - self.low).max())
        try:
            self._mesh = Delaunay(self._scaled(points))
        except (QhullError, ValueError):
            raise SourceError(
                f"{name}: {len(points)} points span no area, so there is no field; this is a curve"
            ) from None
        self.holes = self._find_holes()

    def even_size(self, name: str) -> tuple[int, int]:
        """Rows and columns of a grid with square cells and as many points per area."""
        count = len(self._mesh.points)
        area = self._areas()[~self.holes].sum() * self._scale**2
        return even_size(name, self.high - self.low, math.sqrt(area / count), count)

    def interpolation(self, targets: np.ndarray) -> Interpolation:
        """From the points to the targets (m, 2); no weight outside and in holes."""
        places = self._scaled(targets) * (1 - _INWARD)
        triangle = self._mesh.find_simplex(places)
        transform = self._mesh.transform[triangle]
        two = np.einsum("mij,mj->mi", transform[:, :2], places - transform[:, 2])
        weight = np.concatenate([two, 1 - two.sum(-1, keepdims=True)], -1)
        inside = (triangle >= 0) & ~self.holes[triangle] & np.isfinite(weight).all(-1)
        weight = np.where(inside[:, None], np.clip(weight, 0, 1), 0.0)
        return Interpolation(self._mesh.simplices[triangle].astype(np.int64), weight)

    def _scaled(self, points: np.ndarray) -> np.ndarray:
        return (points - self._middle) / self._scale

    def _edges(self) -> np.ndarray:
        """Lengths (triangles, 3) of the sides from each corner to the next."""
        corners = self._mesh.points[self._mesh.simplices]
        return np.linalg.norm(np.roll(corners, -1, axis=1) - corners, axis=-1)

    def _areas(self) -> np.ndarray:
        a, b, c = np.moveaxis(self._mesh.points[self._mesh.simplices], 1, 0)
        (ux, uy), (vx, vy) = (b - a).T, (c - a).T
        return np.abs(ux * vy - uy * vx) / 2

    def _find_holes(self) -> np.ndarray:
        edges, areas = self._edges(), self._areas()
        simplices = self._mesh.simplices
        # The sides at a corner: the one that leaves it and the one that arrives.
        lengths = np.concatenate([edges.ravel(), np.roll(edges, 1, axis=1).ravel()])
        owners = np.concatenate([simplices.ravel(), simplices.ravel()])
        spacing = _median_by_owner(lengths, owners, len(self._mesh.points))
        # Of the three corners the middle one: a corner that fans across the hole is no measure.
        around = np.median(spacing[simplices], axis=1)
        with np.errstate(divide="ignore", invalid="ignore"):
            radius = edges.prod(1) / (4 * areas)
        return ~(radius <= _HOLE * around)


def _median_by_owner(values: np.ndarray, owners: np.ndarray, count: int) -> np.ndarray:
    order = np.lexsort((values, owners))
    sizes = np.bincount(owners, minlength=count)
    starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    middle = np.minimum(starts + sizes // 2, len(values) - 1)
    return np.where(sizes > 0, values[order][middle], 0.0)
