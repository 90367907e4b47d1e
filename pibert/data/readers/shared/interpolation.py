"""Interpolation from lattices and scattered points to other points.

A value is the weighted average of the known values in its support; it is missing if less than half
of the weight is known. ``GridError`` measures what the grid loses: it is interpolated bilinearly at
the points of the source and compared with the values there.

Points of a lattice may come in any order, and nodes or whole lines may be missing. An axis is
uniform if it stays within ``SPACING_TOLERANCE`` of a step of the line between its ends, or within
the rounding of printed digits of the best-fit line: 0.33, 0.67, 1.0 is a uniform axis written with
two digits.

Scattered points are interpolated linearly in their Delaunay triangles. The circumcircle of such a
triangle contains no point; if it is far wider than the spacing of the points around it, the
triangle bridges a hole (a body, a concave side, a void) and has no value.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import numpy as np

from pibert.data.format import SPACING_TOLERANCE
from pibert.data.readers.recordings import SourceError
from pibert.data.wording import import_extra

_BLOCK_VALUES = 1 << 22
_LONGEST_GAP = 1e9
"""In steps of time."""


class Interpolation(NamedTuple):
    """Each target value is a weighted sum of some of the source's points."""

    sources: np.ndarray
    """(targets, k) indices of source points."""
    weight: np.ndarray
    """(targets, k); they add up to 1, or to less where points are missing."""

    def apply(self, values: np.ndarray, known: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Interpolate values (t, n); return them, NaN without support, and which are known."""
        if self.sources.shape[1] == 1:
            index, exists = self.sources[:, 0], self.weight[:, 0] > 0
            return np.where(exists, values[:, index], np.nan), known[:, index] & exists
        shape = len(values), len(self.sources)
        result, enough = np.full(shape, np.nan), np.empty(shape, bool)
        block = max(1, _BLOCK_VALUES // self.sources.size)
        for frames in (slice(start, start + block) for start in range(0, len(values), block)):
            weight = self.weight * known[frames][:, self.sources]
            finite = np.where(known[frames], values[frames], 0.0)
            total, share = (weight * finite[:, self.sources]).sum(-1), weight.sum(-1)
            np.divide(total, share, out=result[frames], where=share > 0)
            enough[frames] = share >= 0.5 - 1e-9
        return result, enough

    def covers(self, mask: np.ndarray) -> np.ndarray:
        """Return the targets (t, m) with half of the weight on a mask (t, n)."""
        return (self.weight * mask[:, self.sources]).sum(-1) >= 0.5 - 1e-9


_MOST_PER_POINT = 64
_ALWAYS = 200_000
"""Grid points that any data may be resampled to."""
_LARGEST = 100_000_000


def even_size(name: str, extent: np.ndarray, step: float, count: int) -> tuple[int, int]:
    """Return rows and columns of a grid with square cells that is as fine as the data.

    SourceError if it would be huge because the data lie in small regions far apart. ``extent`` is
    width and height, ``step`` and ``count`` the spacing and number of the data's points or cells.
    """
    with np.errstate(all="ignore"):
        columns, rows = np.maximum(np.asarray(extent, float) / step, 1.0)
    if not rows * columns <= _ALWAYS + _MOST_PER_POINT * count:
        raise SourceError(
            f"{name}: a grid as fine as the {count} points, which lie in regions far apart, would "
            f"have {rows:.4g} x {columns:.4g} points; give its size (--shape ROWSxCOLUMNS)"
        )
    return max(2, round(rows) + 1), max(2, round(columns) + 1)


def check_shape(name: str, shape: tuple[int, int]) -> tuple[int, int]:
    """Refuse a requested shape that is no plane or does not fit into memory."""
    rows, columns = shape
    if min(shape) < 2 or rows * columns > _LARGEST:
        raise SourceError(
            f"{name}: expected a grid of at least two rows and two columns and at most "
            f"{_LARGEST:,} points, found --shape {rows}x{columns}"
        )
    return shape


# Least share of occupied nodes for points to count as a lattice.
_FILLED = 0.25


class Axis(NamedTuple):
    """One axis of the uniform grid, each value between two levels of the source's axis."""

    first: float
    step: float
    low: np.ndarray
    """Index of the level below; -1 where a uniform axis lacks this level."""
    high: np.ndarray
    share: np.ndarray
    """Weight of the level above."""
    exact: bool


class Lattice(NamedTuple):
    """Points at the crossings of columns and rows."""

    columns: np.ndarray
    rows: np.ndarray
    nodes: np.ndarray
    """(rows, columns) index of the point, -1 where there is none."""

    def interpolation(self, x: Axis, y: Axis) -> Interpolation:
        corners = [(y.low, x.low, np.outer(1 - y.share, 1 - x.share))]
        if not (x.exact and y.exact):
            corners += [
                (y.low, x.high, np.outer(1 - y.share, x.share)),
                (y.high, x.low, np.outer(y.share, 1 - x.share)),
                (y.high, x.high, np.outer(y.share, x.share)),
            ]
        # A border of -1 around the nodes: missing lines have the index -1 too.
        nodes = np.pad(self.nodes, (0, 1), constant_values=-1)
        index = np.stack([nodes[np.ix_(row, column)].ravel() for row, column, _ in corners], -1)
        weight = np.stack([share.ravel() for _, _, share in corners], -1)
        return Interpolation(np.maximum(index, 0), np.where(index < 0, 0.0, weight))


def find_lattice(name: str, x: np.ndarray, y: np.ndarray) -> Lattice | None:
    """Return the lattice of the points; None if they are scattered."""
    # Exact columns first: a loose tolerance might merge the finest rows at a wall.
    for tolerance in (1e-9, 1e-6):
        (columns, column), (rows, row) = _levels(x, tolerance), _levels(y, tolerance)
        if len(columns) * len(rows) * _FILLED <= len(x):
            break
    else:
        return None
    if min(len(columns), len(rows)) < 2:
        raise SourceError(
            f"{name}: a field needs at least two rows and two columns of points, found "
            f"{len(rows)} and {len(columns)}; this is a curve"
        )
    nodes = np.full((len(rows), len(columns)), -1)
    taken, first = np.unique(row * len(columns) + column, return_index=True)
    nodes.flat[taken] = first
    repeated = len(x) - len(taken)
    if repeated > 0.1 * len(x):
        raise SourceError(
            f"{name}: {repeated} of {len(x)} points coincide; leave out a third coordinate or a "
            "time"
        )
    return Lattice(columns, rows, nodes)


def fit_axis(levels: np.ndarray, count: int) -> Axis:
    """Keep a uniform axis, with gaps filled; resample any other to ``count`` values."""
    uniform = find_uniform(levels)
    if uniform is None:
        values = np.linspace(levels[0], levels[-1], count)
        low = np.clip(np.searchsorted(levels, values, side="right") - 1, 0, len(levels) - 2)
        share = np.clip((values - levels[low]) / (levels[low + 1] - levels[low]), 0, 1)
        step = float(values[1] - values[0])
        return Axis(float(levels[0]), step, low, low + 1, share, exact=False)
    first, step, positions = uniform
    which = np.full(positions[-1] + 1, -1)
    which[positions] = np.arange(len(levels))
    return Axis(first, step, which, which, np.zeros(len(which)), exact=True)


def find_uniform(levels: np.ndarray) -> tuple[float, float, np.ndarray] | None:
    """Return first value, step and indices of a uniform axis, which may have gaps; else None."""
    steps = np.diff(levels)
    hops = np.rint(steps / np.median(steps)).astype(int)
    if hops.min() < 1 or hops.sum() >= 2 * len(levels):
        return None
    return _fit_line(levels, np.concatenate([[0], np.cumsum(hops)]))


def find_even_times(time: np.ndarray) -> tuple[float, float, np.ndarray] | None:
    """Return first value, step and positions of times that keep one step but for gaps; else None.

    Positions count steps. Unlike along an axis in space, gaps may be of any whole length.
    """
    positions = count_steps(time)
    return None if positions is None else _fit_line(time, positions)


def count_steps(time: np.ndarray) -> np.ndarray | None:
    """Return the times as numbers of steps, roughly; None if fewer than half are one step apart."""
    steps = np.diff(time)
    if not (steps > 0).all():
        return None
    usual = np.sort(steps)[(len(steps) - 1) // 2]
    with np.errstate(all="ignore"):
        hops = np.rint(steps / steps[steps < 1.5 * usual].mean())
    if not (hops.min() >= 1 and hops.max() <= _LONGEST_GAP) or 2 * (hops == 1).sum() < len(hops):
        return None
    return np.concatenate([[0], np.cumsum(hops.astype(int))])


def _fit_line(levels: np.ndarray, positions: np.ndarray) -> tuple[float, float, np.ndarray] | None:
    """Return first value and step of levels at these positions, and these; None if they do not fit.

    Levels may deviate by the tolerance of even steps, or by the rounding of printed digits.
    """
    first, step = float(levels[0]), float(levels[-1] - levels[0]) / float(positions[-1])
    if np.abs(levels - (first + step * positions)).max() <= SPACING_TOLERANCE * step:
        return first, step, positions
    step, first = (float(value) for value in np.polyfit(positions, levels, 1))
    # Rounding moves a value by half a unit of its last digit; the fitted line moves a little too.
    rounding = min(0.6 * _last_digit(levels), 0.1 * step)
    if np.abs(levels - (first + step * positions)).max() > rounding:
        return None
    return first, step, positions


def describe_rounding(
    what: str,
    levels: np.ndarray,
    find: Callable[[np.ndarray], tuple[float, float, np.ndarray] | None] = find_uniform,
) -> list[str]:
    """Return a note if rounded values leave the step of a uniform axis in doubt."""
    uniform = find(levels) if len(levels) > 1 else None
    if uniform is None:
        return []
    first, step, positions = uniform
    change = np.abs(levels - (first + step * positions)).max() / step
    if change <= SPACING_TOLERANCE * (len(levels) - 1):
        return []
    return [
        f"the {what} look rounded: uniform steps of {step:.4g} were fitted, up to "
        f"{percent(change)} of a step from the given values"
    ]


def _levels(values: np.ndarray, tolerance: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the distinct values, ascending, and the index of each value among them."""
    precision = float(np.finfo(values.dtype).eps) if values.dtype.kind == "f" else 0.0
    values = values.astype(np.float64)
    distance = tolerance * np.ptp(values) + 4 * precision * np.abs(values).max()
    order = np.argsort(values, kind="stable")
    index = np.empty(len(values), int)
    index[order] = np.concatenate([[0], np.cumsum(np.diff(values[order]) > distance)])
    return np.bincount(index, values) / np.bincount(index), index


def _last_digit(values: np.ndarray) -> float:
    """Return the unit of the last printed digit of the largest value; 0 beyond seven digits.

    Text has a fixed number of decimals, or (four or more) of significant digits.
    """
    decades = 10.0 ** np.floor(np.log10(np.maximum(np.abs(values), 1e-300)))
    largest = float(decades.max())
    units = [largest / 10.0**decimals for decimals in range(8)]
    decimals = [unit for unit in units if _are_whole(values / unit)][:1]
    digits = [unit for unit in units[3:] if _are_whole(values / decades * (largest / unit))][:1]
    return max(decimals + digits, default=0.0)


def _are_whole(values: np.ndarray) -> bool:
    return bool((np.abs(values - np.rint(values)) < 1e-6).all())


# Least circumradius of a hole over the median edge around it. A regular mesh has 0.6 to 0.7; for
# random points one triangle in ten million exceeds this.
_HOLE = 2.5
# Targets are moved inward by this share of the extent: those on the hull might otherwise fall into
# triangles without area, between points on one line up to rounding.
_INWARD = 1e-7


class Triangulation:
    """The triangles of a set of points (n, 2)."""

    def __init__(self, name: str, points: np.ndarray) -> None:
        spatial = import_extra("scipy.spatial", "resampling scattered points")
        self.low, self.high = points.min(0), points.max(0)
        self._middle, self._scale = (self.low + self.high) / 2, float((self.high - self.low).max())
        try:
            self._mesh = spatial.Delaunay(self._scaled(points))
        except (spatial.QhullError, ValueError):
            raise SourceError(
                f"{name}: {len(points)} points span no area, so there is no field; this is a curve"
            ) from None
        self.holes = self._find_holes()

    def even_size(self, name: str) -> tuple[int, int]:
        """Return rows and columns of a grid with square cells and the same density of points."""
        count = len(self._mesh.points)
        area = self._areas()[~self.holes].sum() * self._scale**2
        return even_size(name, self.high - self.low, math.sqrt(area / count), count)

    def interpolation(self, targets: np.ndarray) -> Interpolation:
        """Return the interpolation to targets (m, 2); no weight outside and in holes."""
        scaled = self._scaled(targets) * (1 - _INWARD)
        triangle = self._mesh.find_simplex(scaled)
        transform = self._mesh.transform[triangle]
        two = np.einsum("mij,mj->mi", transform[:, :2], scaled - transform[:, 2])
        weight = np.concatenate([two, 1 - two.sum(-1, keepdims=True)], -1)
        inside = (triangle >= 0) & ~self.holes[triangle] & np.isfinite(weight).all(-1)
        weight = np.where(inside[:, None], np.clip(weight, 0, 1), 0.0)
        return Interpolation(self._mesh.simplices[triangle].astype(np.int64), weight)

    def _scaled(self, points: np.ndarray) -> np.ndarray:
        return (points - self._middle) / self._scale

    def _edges(self) -> np.ndarray:
        """Return the lengths (triangles, 3) of the sides from each corner to the next."""
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
        # The middle one of the three corners: one may have edges that fan across the hole.
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


_LARGEST_VALUE = 1e30
"""Damaged values are larger; their squares would overflow."""


class GridError:
    """The difference of the grid, sampled at points of the source, from the values there."""

    def __init__(self, channels: tuple[str, ...]) -> None:
        self.channels = channels
        self.nodes = self.tested = 0
        self.squares, self.total, self.total_squares = np.zeros((3, len(channels)))

    def add(
        self, points: np.ndarray, values: np.ndarray, states: np.ndarray, fluid: np.ndarray
    ) -> None:
        """Compare one frame where all four grid points around a point are fluid.

        Points (n, 2) are in units of the grid, values (c, n), states (c, y, x), fluid (y, x).
        """
        self.nodes += len(points)
        ny, nx = fluid.shape
        values = np.where(np.abs(values) < _LARGEST_VALUE, values, np.nan)
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

    @property
    def relative(self) -> dict[str, float]:
        """The rms error of each channel over its standard deviation, where both are known."""
        errors = self.report()["error"] or {}
        return {name: e["relative"] for name, e in errors.items() if e["relative"] is not None}

    def report(self) -> dict[str, Any]:
        """Return the rms error per channel, absolute and relative to the standard deviation."""
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


def describe_error(error: Mapping[str, float]) -> str:
    """Return a note on the relative errors of ``GridError.report``."""
    if not error:
        return "the sampling error of the grid could not be measured"
    worst = max(error, key=lambda channel: error[channel])
    return (
        f"the grid reproduces the given values with an rms error of {percent(error[worst])} of the "
        f"fluctuation of {worst} (the worst channel)"
    )


def percent(share: float) -> str:
    return f"{100 * share:.2g} %" if share < 0.995 else f"{100 * share:.0f} %"
