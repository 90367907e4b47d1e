"""Points that lie at the crossings of columns and rows, and uniform axes for them.

The points may come in any order, and nodes or whole lines may be missing.

An axis is uniform when it stays within ``SPACING_TOLERANCE`` of a step of the line between its
ends, or within the rounding of its print of the best-fit line: 0.33, 0.67, 1.0 is a uniform axis
written with two digits.
"""

from typing import NamedTuple

import numpy as np

from pibert.data.format import SPACING_TOLERANCE
from pibert.data.sources.gridding.interpolation import Interpolation
from pibert.data.sources.recordings import SourceError

# Share of a lattice's nodes that must be there for points to count as a lattice.
_FILLED = 0.25


class Axis(NamedTuple):
    """One axis of the uniform grid, each value between two levels of the source's axis."""

    first: float
    step: float
    low: np.ndarray
    """Number of the level below; -1 where a uniform axis lacks this level."""
    high: np.ndarray
    share: np.ndarray
    """Weight of the level above."""
    exact: bool


class Lattice(NamedTuple):
    """Points at the crossings of columns and rows."""

    columns: np.ndarray
    rows: np.ndarray
    nodes: np.ndarray
    """(rows, columns) number of the point, -1 where there is none."""

    def interpolation(self, x: Axis, y: Axis) -> Interpolation:
        corners = [(y.low, x.low, np.outer(1 - y.share, 1 - x.share))]
        if not (x.exact and y.exact):
            corners += [
                (y.low, x.high, np.outer(1 - y.share, x.share)),
                (y.high, x.low, np.outer(y.share, 1 - x.share)),
                (y.high, x.high, np.outer(y.share, x.share)),
            ]
        index = np.stack([self._numbers(row, column) for row, column, _ in corners], -1)
        weight = np.stack([share.ravel() for _, _, share in corners], -1)
        return Interpolation(np.maximum(index, 0), np.where(index < 0, 0.0, weight))

    def _numbers(self, row: np.ndarray, column: np.ndarray) -> np.ndarray:
        numbers = self.nodes[np.ix_(row, column)]
        return np.where((row < 0)[:, None] | (column < 0), -1, numbers).ravel()


def find_lattice(name: str, x: np.ndarray, y: np.ndarray) -> Lattice | None:
    """The columns and rows on whose crossings the points lie, if there are any."""
    # Exact columns first: loosely, the finest rows at a wall might be taken for one.
    for tolerance in (1e-9, 1e-6):
        (columns, column), (rows, row) = _levels(x, tolerance), _levels(y, tolerance)
        if len(columns) * len(rows) * _FILLED <= len(x):
            break
    else:
        return None
    if min(len(columns), len(rows)) < 2:
        raise SourceError(
            f"{name}: a field needs two rows and two columns of points at least, found "
            f"{len(rows)} and {len(columns)}; this is a curve"
        )
    nodes = np.full((len(rows), len(columns)), -1)
    # Backwards, so that the first of several values for one node stays.
    nodes[row[::-1], column[::-1]] = np.arange(len(x))[::-1]
    repeated = len(x) - int((nodes >= 0).sum())
    if repeated > 0.1 * len(x):
        raise SourceError(
            f"{name}: {repeated} of {len(x)} points lie where another one does; is there a third "
            "coordinate or a time among the columns?"
        )
    return Lattice(columns, rows, nodes)


def fit_axis(levels: np.ndarray, count: int) -> Axis:
    """A uniform axis as it is, with the lines that it lacks; any other on ``count`` values."""
    uniform = find_uniform(levels)
    if uniform is None:
        values = np.linspace(levels[0], levels[-1], count)
        step = float(values[1] - values[0])
        return Axis(float(levels[0]), step, *between(levels, values), exact=False)
    first, step, positions = uniform
    which = np.full(positions[-1] + 1, -1)
    which[positions] = np.arange(len(levels))
    return Axis(first, step, which, which, np.zeros(len(which)), exact=True)


def find_uniform(levels: np.ndarray) -> tuple[float, float, np.ndarray] | None:
    """First value, step and whole positions of an axis with lines missing at most; else None."""
    steps = np.diff(levels)
    hops = np.rint(steps / np.median(steps)).astype(int)
    if hops.min() < 1 or hops.sum() >= 2 * len(levels):
        return None
    positions = np.concatenate([[0], np.cumsum(hops)])
    first, step = float(levels[0]), float(levels[-1] - levels[0]) / float(positions[-1])
    if np.abs(levels - (first + step * positions)).max() <= SPACING_TOLERANCE * step:
        return first, step, positions
    step, first = (float(value) for value in np.polyfit(positions, levels, 1))
    # Rounding moves a value by half a unit of its last digit; the fitted line moves a little too.
    rounding = min(0.6 * _last_digit(levels), 0.1 * step)
    if np.abs(levels - (first + step * positions)).max() > rounding:
        return None
    return first, step, positions


def between(levels: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The levels below and above each value, and the weight of the one above."""
    low = np.clip(np.searchsorted(levels, values, side="right") - 1, 0, len(levels) - 2)
    share = np.clip((values - levels[low]) / (levels[low + 1] - levels[low]), 0, 1)
    return low, low + 1, share


def without_every_second_line(
    lattice: Lattice, x: Axis, y: Axis
) -> tuple[Interpolation, np.ndarray]:
    """From part of the lines of uneven axes to the points of the others, to see the error."""

    def thinned(levels: np.ndarray, exact: bool) -> tuple[np.ndarray, Axis]:
        kept = np.arange(0, len(levels), 1 if exact else 2)
        if kept[-1] != len(levels) - 1:
            kept = np.append(kept, len(levels) - 1)
        return kept, Axis(0.0, 0.0, *between(levels[kept], levels), exact=False)

    (columns, ax), (rows, ay) = thinned(lattice.columns, x.exact), thinned(lattice.rows, y.exact)
    kept = np.ix_(rows, columns)
    coarse = Lattice(lattice.columns[columns], lattice.rows[rows], lattice.nodes[kept])
    index, weight = coarse.interpolation(ax, ay)
    left_out = lattice.nodes >= 0
    left_out[kept] = False
    chosen = left_out.ravel()
    return Interpolation(index[chosen], weight[chosen]), lattice.nodes[left_out]


def _levels(values: np.ndarray, tolerance: float) -> tuple[np.ndarray, np.ndarray]:
    """The different values, ascending, and which of them each value is."""
    precision = float(np.finfo(values.dtype).eps) if values.dtype.kind == "f" else 0.0
    values = values.astype(np.float64)
    apart = tolerance * np.ptp(values) + 4 * precision * np.abs(values).max()
    order = np.argsort(values, kind="stable")
    which = np.empty(len(values), int)
    which[order] = np.concatenate([[0], np.cumsum(np.diff(values[order]) > apart)])
    return np.bincount(which, values) / np.bincount(which), which


def _last_digit(values: np.ndarray) -> float:
    """The unit of the last digit that the largest value was written with; 0 beyond seven digits.

    Text has a number of decimals, or (four or more) of digits from the first on.
    """
    decades = 10.0 ** np.floor(np.log10(np.maximum(np.abs(values), 1e-300)))
    largest = float(decades.max())
    units = [largest / 10.0**decimals for decimals in range(8)]
    found = [unit for unit in units if _are_whole(values / unit)][:1]
    found += [unit for unit in units[3:] if _are_whole(values / decades * (largest / unit))][:1]
    return max(found, default=0.0)


def _are_whole(values: np.ndarray) -> bool:
    return bool((np.abs(values - np.rint(values)) < 1e-6).all())
