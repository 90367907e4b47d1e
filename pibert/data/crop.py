"""A part of a trajectory's grid, in coordinates or in rows and columns.

A side that is cut is open; of a periodic axis both are. Rows and columns are counted from 0 and cut
as Python cuts lists: ``slice(2, -2)`` drops two at either end.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from pibert.fields import MASKS, Boundary, FrameSource, Sides, Trajectory

_ROUNDING = 1e-6
"""In steps of the grid: an end on a point includes it."""


@dataclass(frozen=True, kw_only=True)
class Region:
    """What to keep; None keeps all. Ends of a range may be None too."""

    x: tuple[float | None, float | None] | None = None
    """Least and largest coordinate, in the trajectory's own unit."""
    y: tuple[float | None, float | None] | None = None
    rows: slice | None = None
    columns: slice | None = None

    def __post_init__(self) -> None:
        for a, b in (("x", "columns"), ("y", "rows")):
            if getattr(self, a) is not None and getattr(self, b) is not None:
                raise ValueError(f"crop by {a} or by {b}, not by both")
        for name in ("rows", "columns"):
            numbers = getattr(self, name)
            if numbers is not None and numbers.step not in (None, 1):
                raise ValueError(
                    f"expected {name} without a step, found one of {numbers.step}; resize the "
                    "region to have fewer points"
                )


def crop(trajectory: Trajectory, region: Region) -> Trajectory:
    """A lazy view of the points in a region; where it lies stands in ``local["crop"]``."""
    grid, local = trajectory.spec.grid, dict(trajectory.local)
    if local.get("crop") and local.get("resize"):
        raise ValueError(
            f"trajectory {trajectory.name!r} was cropped and resized before; crop the original file"
        )
    (ny, nx), (x0, y0) = grid.shape, grid.origin
    kept_x = _points(trajectory.name, "x", nx, x0, grid.dx, region.x, region.columns)
    kept_y = _points(trajectory.name, "y", ny, y0, grid.dy, region.y, region.rows)
    left, right, bottom, top = grid.sides
    left, right = _sides(left, right, kept_x, nx)
    bottom, top = _sides(bottom, top, kept_y, ny)
    first_row, _, first_column, _ = local.get("crop") or (0, 0, 0, 0)
    local["crop"] = [
        first_row + kept_y[0],
        first_row + kept_y[-1],
        first_column + kept_x[0],
        first_column + kept_x[-1],
    ]
    new = replace(
        grid,
        shape=(len(kept_y), len(kept_x)),
        sides=Sides(left, right, bottom, top),
        body=None,
        origin=(x0 + kept_x[0] * grid.dx, y0 + kept_y[0] * grid.dy),
    )
    where = slice(kept_y.start, kept_y.stop), slice(kept_x.start, kept_x.stop)
    masks: dict[str, Any] = {n: _part_of_mask(getattr(trajectory, n), where) for n in MASKS}
    return replace(
        trajectory,
        states=_Part(trajectory, tuple(trajectory.states.shape), where),
        spec=replace(trajectory.spec, grid=new),
        local=local,
        **masks,
    )


def _points(
    name: str,
    axis: str,
    count: int,
    origin: float,
    step: float,
    ends: tuple[float | None, float | None] | None,
    numbers: slice | None,
) -> range:
    """The numbers of the points to keep."""
    kept = range(count)[numbers or slice(None)]
    if ends is not None:
        low, high = ends
        places = [(number, origin + number * step) for number in kept]
        inside = [
            number
            for number, place in places
            if (low is None or place >= low - _ROUNDING * step)
            and (high is None or place <= high + _ROUNDING * step)
        ]
        kept = range(inside[0], inside[-1] + 1) if inside else range(0)
    if len(kept) < 2 <= count or not kept:
        raise ValueError(
            f"trajectory {name!r}: the region keeps {len(kept)} of {count} points along {axis}, "
            f"which has them from {origin:g} to {origin + (count - 1) * step:g}; choose a wider one"
        )
    return kept


def _sides(first: Boundary, last: Boundary, kept: range, count: int) -> tuple[Boundary, Boundary]:
    cut_first, cut_last = kept[0] > 0, kept[-1] < count - 1
    if first is Boundary.PERIODIC and (cut_first or cut_last):
        cut_first = cut_last = True
    return Boundary.OPEN if cut_first else first, Boundary.OPEN if cut_last else last


class _Part:
    """Some rows and columns of fields or masks."""

    def __init__(
        self, base: Trajectory | FrameSource, shape: tuple[int, ...], where: tuple[slice, slice]
    ) -> None:
        rows, columns = where
        self.base, self.where = base, (..., rows, columns)
        self._shape = (*shape[:-2], rows.stop - rows.start, columns.stop - columns.start)

    @property
    def shape(self) -> tuple[int, ...]:
        return self._shape

    def read(self, frames: slice, channels: Sequence[int] | None = None) -> Tensor:
        return self.base.read(frames, channels)[self.where]


def _part_of_mask(
    mask: Tensor | FrameSource | None, where: tuple[slice, slice]
) -> Tensor | FrameSource | None:
    if mask is None:
        return None
    if isinstance(mask, Tensor):
        return mask[(..., *where)]
    return _Part(mask, mask.shape, where)
