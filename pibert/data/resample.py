"""Views of a trajectory: fewer frames, some channels, a region, another resolution.

A grid point stands for the cell around it, so n points spaced dx cover n dx, and a resized grid
covers the same extent. Shrinking averages over each new cell the piecewise linear function through
the old ones (slopes by central differences): it conserves means and is exact for affine fields; for
a whole ratio it is the block average. Growing is bilinear, continued linearly over the outer half
cell. The two axes are independent.

Near body or missing points, a new value uses the known ones alone: each is extrapolated to the new
point along its slope (central differences of known neighbours, one-sided beside a gap, zero between
two), and the results are averaged with the weights of overlap or interpolation, normalised
(normalised convolution; Knutsson, Westin, CVPR 1993). Constant fields stay constant around any gap,
and affine ones where slopes exist. Without any known point the value is NaN. A new point is body if
half of its cell is, missing if half of its fluid is, and filled if half of its known points are. So
scattered gaps do not spread.

A side that is cut becomes open; of a periodic axis both do. Rows and columns are counted from 0 and
cut as Python lists: ``slice(2, -2)`` drops two at either end.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from numbers import Integral
from operator import itemgetter
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from pibert.data.provenance import frame_step
from pibert.data.splits import Segment, split_at_gaps
from pibert.data.views import MappedFrames, map_mask, pick, with_state
from pibert.data.wording import counted
from pibert.fields import MASKS, Boundary, Grid, Sides, Trajectory, read_mask
from pibert.physics import find_family

Marks = Bool[Tensor, "*t y x"]
_TOGETHER = 1 << 19
"""Values that are resized around unknown points at once, so that they stay in the cache."""


def represent(
    trajectory: Trajectory,
    *,
    stride: int = 1,
    max_frames: int | None = None,
    frames: slice = slice(None),
    channels: Sequence[str] | None = None,
    size: tuple[int, int] | None = None,
) -> Trajectory:
    """Return a lazy view with matching time step, grid and masks; ``local`` records it.

    ``frames``, without a step, are chosen first, then every Nth of them (``stride``, 1 if the time
    has gaps), then the first ``max_frames``. ``channels`` names those to keep, in this order; the
    last of them may be series, which become the state of the structure (``views.with_state``).
    ``size`` is rows and columns of the view's grid.
    """
    if stride < 1 or (max_frames is not None and max_frames < 1):
        raise ValueError(
            f"stride and max_frames must be 1 or more, found {stride} and {max_frames}"
        )
    if size is not None and not (len(size) == 2 and all(isinstance(n, Integral) for n in size)):
        raise ValueError(
            f"expected size as the numbers of rows and columns, such as (64, 128), found {size}"
        )
    if frames.step not in (None, 1):
        raise ValueError(f"expected frames without a step, found one of {frames.step}; use stride")
    if channels is not None:
        trajectory = with_state(trajectory, channels)
    spec, local = trajectory.spec, dict(trajectory.local)
    stretch = range(trajectory.num_frames)[frames]
    pieces = split_at_gaps(
        Segment(0, stretch.start, stretch.stop), trajectory.time, frame_step(trajectory)
    )
    if stride > 1 and len(pieces) > 1:
        raise ValueError(
            f"trajectory {trajectory.name!r}: a stride of {stride} would cross "
            f"{counted(len(pieces) - 1, 'gap')} in its time; use a stride of 1"
        )
    names = spec.channels if channels is None else tuple(channels)
    picked = tuple(channel_indices(spec.channels, names))
    if frames != slice(None):
        if not stretch:
            raise ValueError(
                f"trajectory {trajectory.name!r} has {counted(trajectory.num_frames, 'frame')}: "
                "none of them is among "  # as a user writes them: 900:
                + ":".join("" if end is None else str(end) for end in (frames.start, frames.stop))
            )
        begin, step = (local.get("frames") or (0, 0))[0], local.get("stride") or 1
        local["frames"] = [begin + step * stretch[0], begin + step * stretch[-1]]
    chosen = stretch[::stride][:max_frames]
    local["stride"] = stride * (local.get("stride") or 1)
    local["channels"] = list(names)
    if max_frames is not None:
        local["max_frames"] = max_frames
    if spec.family is not None and "family" in local:
        if not set(find_family(spec.family).channels) <= set(names):
            # It was inferred from channels that are dropped.
            spec = replace(spec, family=None)
            del local["family"]
    resizer = None
    grid = replace(spec.grid, body=None)
    if size is not None and size != grid.shape:
        resizer = Resizer(spec.grid, size)
        first = local["resize"]["from"] if local.get("resize") else list(grid.shape)
        local["resize"] = {"from": first, "to": list(size)}
        grid = resizer.new_grid
    spec = replace(
        spec,
        channels=names,
        units=tuple(spec.units[i] for i in picked),
        state=tuple(name for name in names if name in spec.state),
        dt=None if spec.dt is None else spec.dt * stride,
        grid=grid,
    )
    kept, shape = _as_slice(chosen), (len(chosen), len(names), *grid.shape)
    view = _View(trajectory, chosen, picked, resizer)
    return replace(
        trajectory,
        states=MappedFrames(shape, view.read),
        time=trajectory.time[kept],
        series={name: values[kept] for name, values in trajectory.series.items()},
        spec=spec,
        local=local,
        **{kind: view.mask(kind) for kind in MASKS},
    )


def channel_indices(available: Sequence[str], wanted: Sequence[str]) -> list[int]:
    missing = [name for name in wanted if name not in available]
    if missing:
        raise ValueError(f"unknown channels {missing}; choose from: {', '.join(available)}")
    return [list(available).index(name) for name in wanted]


def interpolated(
    fields: Float[Tensor, "*batch y x"], grid: Grid, target: Grid
) -> Float[Tensor, "*batch y2 x2"]:
    """Return fields at the points of another grid by cubic convolution (Keys, 1981).

    The grids are those of one frame of reference, and the first reaches around the second. Exact
    for quadratic fields away from the border.
    """
    (old_x, old_y), (x, y) = (g.coordinates(torch.float64) for g in (grid, target))
    along_y = _cubic_weights(old_y[:, 0], y[:, 0]).to(fields)
    return along_y @ fields @ _cubic_weights(old_x[0], x[0]).to(fields).T


def _cubic_weights(old: Tensor, new: Tensor) -> Float[Tensor, "new old"]:
    place = (new - old[0]) / (old[1] - old[0])
    first = place.floor().clamp(0, len(old) - 2)
    weights = torch.zeros(len(new), len(old), dtype=torch.float64)
    for offset in (-1, 0, 1, 2):
        s = (place - first - offset).abs()
        near, far = 1.5 * s**3 - 2.5 * s**2 + 1, -0.5 * s**3 + 2.5 * s**2 - 4 * s + 2
        value = torch.where(s < 1, near, torch.where(s < 2, far, 0.0))
        column = (first.long() + offset).clamp(0, len(old) - 1)
        weights.index_put_((torch.arange(len(new)), column), value, accumulate=True)
    return weights


class Resizer:
    """Resizes fields and masks of a grid to another number of points."""

    def __init__(self, grid: Grid, size: tuple[int, int]) -> None:
        if min(size) < 1:
            raise ValueError(f"size must be two positive numbers (y, x), found {size}")
        (ny, nx), (rows, columns) = grid.shape, size
        self._periodic = grid.periodic_y, grid.periodic_x
        self._y = _axis_weights(ny, rows, grid.periodic_y)
        self._x = _axis_weights(nx, columns, grid.periodic_x)
        dx, dy = grid.dx * nx / columns, grid.dy * ny / rows
        origin = (grid.origin[0] + (dx - grid.dx) / 2, grid.origin[1] + (dy - grid.dy) / 2)
        self.new_grid = Grid((rows, columns), dx, dy, grid.sides, origin=origin)

    def resize(
        self, fields: Float[Tensor, "t c y x"], known: Bool[Tensor, "t y x"] | None = None
    ) -> Float[Tensor, "t c y2 x2"]:
        """Return fields on the new grid, from known points only."""
        if known is None or bool(known.all()):
            return self._apply("exact", fields)
        # Channel by channel: around gaps a large field takes many times its memory.
        single = fields.flatten(0, 1)[:, None]
        marks = known.repeat_interleave(fields.shape[1], 0)[:, None]
        step = max(1, _TOGETHER // single[:1].numel())
        chunks = zip(single.split(step), marks.split(step), strict=True)
        resized = torch.cat([self._around_gaps(*chunk) for chunk in chunks])
        return resized[:, 0].unflatten(0, fields.shape[:2])

    def average(
        self, fields: Float[Tensor, "t c y x"], known: Bool[Tensor, "t y x"]
    ) -> Float[Tensor, "t c y2 x2"]:
        """Return fields on the new grid within the range of the known points (first order)."""
        here = known[:, None]
        total = self._apply("plain", torch.where(here, fields, 0.0).double())
        return _shared(total, self._apply("plain", here.double())).to(fields)

    def _around_gaps(self, fields: Tensor, known: Tensor) -> Tensor:
        values = torch.where(known, fields, 0.0).double()
        along_y, along_x = self._periodic
        total = self._apply("plain", values)
        total += self._apply("plain", _known_slopes(values, known, -2, along_y), y="moment")
        total += self._apply("plain", _known_slopes(values, known, -1, along_x), x="moment")
        moved = _shared(total, self._apply("plain", known.double())).to(fields)
        touched = self._apply("support", (~known).double()) > 0
        return torch.where(touched, moved, self._apply("exact", values).to(fields))

    def resize_body(self, body: Marks) -> Bool[Tensor, "*t y2 x2"]:
        return self._apply("plain", body.double()) >= 0.5 - 1e-9

    def resize_valid(self, valid: Marks, body: Marks | None) -> Bool[Tensor, "*t y2 x2"]:
        fluid = torch.ones_like(valid) if body is None else ~body
        shares = [self._apply("plain", points.double()) for points in (fluid & valid, fluid)]
        return shares[0] >= 0.5 * shares[1] - 1e-9

    def resize_filled(self, filled: Marks, known: Marks) -> Bool[Tensor, "*t y2 x2"]:
        shares = [self._apply("plain", points.double()) for points in (known & filled, known)]
        return (shares[0] > 0) & (shares[0] >= 0.5 * shares[1] - 1e-9)

    def _apply(
        self, kind: str, field: Tensor, *, y: str | None = None, x: str | None = None
    ) -> Tensor:
        """Apply weights of a kind; ``y`` and ``x`` override the kind along an axis."""
        along_y, along_x = self._y[y or kind].to(field.device), self._x[x or kind].to(field.device)
        return (along_y @ field.double() @ along_x.T).to(field.dtype)


def _axis_weights(n: int, m: int, periodic: bool) -> dict[str, Tensor]:
    """Return weight matrices (m, n).

    - exact: for affine fields;
    - plain: without negative weights;
    - support: 1 where one of them is not zero;
    - moment: the plain weights times the distance from an old point to the new one, in old cells.
    """
    exact, plain = _shrink(n, m) if m <= n else _grow(n, m, periodic)
    old, new = (torch.arange(count, dtype=torch.float64) + 0.5 for count in (n, m))
    distance = new[:, None] * (n / m) - old
    if periodic:
        distance = (distance + n / 2) % n - n / 2
    support = ((exact != 0) | (plain != 0)).double()
    return {"exact": exact, "plain": plain, "support": support, "moment": plain * distance}


def _known_slopes(values: Tensor, known: Tensor, axis: int, periodic: bool) -> Tensor:
    """Return differences between known neighbours along an axis; 0 without any."""
    n = values.shape[axis]
    total, count = torch.zeros_like(values), torch.zeros_like(known, dtype=values.dtype)
    for shift in (1, -1):
        both = known & known.roll(shift, axis)
        if not periodic:
            both.select(axis, 0 if shift == 1 else n - 1).fill_(False)
        step = (values - values.roll(shift, axis)).mul_(shift)
        total += torch.where(both, step, 0.0)
        count += both
    return total / count.clamp(min=1)


def _shared(total: Tensor, share: Tensor) -> Tensor:
    """Divide sums over known points by their share of the weight; NaN where nothing is known."""
    # Avoids a division by zero, whose gradient is NaN.
    return torch.where(share > 0, total / torch.where(share > 0, share, 1.0), torch.nan)


def _shrink(n: int, m: int) -> tuple[Tensor, Tensor]:
    # In units of 1/m of an old cell all edges are whole numbers: old cell j is [j m, (j+1) m], new
    # cell i is [i n, (i+1) n].
    old, new = m * torch.arange(n), n * torch.arange(m)[:, None]
    low, high = torch.maximum(old, new), torch.minimum(old + m, new + n)
    overlap = (high - low).clamp(min=0).double()
    plain = overlap / n
    # Twice the distance from the centre of the old cell to the middle of the overlap.
    lever = torch.where(overlap > 0, (low + high) - (2 * old + m), 0).double()
    # Central differences. The first and the last old cell lie inside one new cell each, where their
    # slopes have no weight; so the result is the same for a periodic axis.
    tilt = (plain * lever / (4 * m))[:, 1 : n - 1]
    exact = plain.clone()
    exact[:, 2:] += tilt
    exact[:, : max(0, n - 2)] -= tilt
    return exact, plain


def _grow(n: int, m: int, periodic: bool) -> tuple[Tensor, Tensor]:
    rows = torch.arange(m)
    # Centre of the new cell in units of old points: ((2i + 1) n - m) / (2m), exactly.
    centre = (2 * rows + 1) * n - m
    cell = centre.div(2 * m, rounding_mode="floor")
    weight = (centre - 2 * m * cell).double() / (2 * m)
    if not periodic:
        inside = cell.clamp(0, max(n - 2, 0))
        weight, cell = weight + (cell - inside), inside

    def between(share: Tensor) -> Tensor:
        weights = torch.zeros(m, n, dtype=torch.float64)
        for column, value in ((cell % n, 1 - share), ((cell + 1) % n, share)):
            weights.index_put_((rows, column), value, accumulate=True)
        return weights

    return between(weight), between(weight.clamp(0, 1))


@dataclass(frozen=True, eq=False)
class _View:
    """Some frames and channels of a trajectory, resized if so configured."""

    base: Trajectory
    kept: range
    channels: tuple[int, ...]
    resizer: Resizer | None

    def read(self, frames: slice, channels: Sequence[int] | None) -> Tensor:
        where = _as_slice(self.kept[frames])
        fields = self.base.read(where, pick(self.channels, channels))
        if self.resizer is None:
            return fields
        masked = self.base.body is not None or self.base.valid is not None
        return self.resizer.resize(fields, self.base.known(where) if masked else None)

    def mask(self, kind: str) -> Any:
        """Return a mask of the view: a tensor if it is the same in all frames."""
        if getattr(self.base, kind) is None:
            return None
        # Resizing the valid mask uses the body, resizing the filled mask uses both.
        involved = MASKS[: MASKS.index(kind)] if self.resizer is not None else ()
        masks = [getattr(self.base, name) for name in (kind, *involved)]
        if all(m is None or len(m.shape) == 2 for m in masks):
            static = self._resized(kind, slice(0, 1))
            return static if static.ndim == 2 else static[0]
        grid = self.base.spec.grid if self.resizer is None else self.resizer.new_grid
        return MappedFrames((len(self.kept), *grid.shape), partial(self.read_mask, kind))

    def read_mask(self, kind: str, frames: slice) -> Tensor:
        chosen = self.kept[frames]
        mask = self._resized(kind, _as_slice(chosen))
        # A valid mask may be static before it is resized around a moving body.
        return mask.expand(len(chosen), *mask.shape[-2:])

    def _resized(self, kind: str, where: slice) -> Tensor:
        base, resizer, mask = self.base, self.resizer, read_mask(getattr(self.base, kind), where)
        if resizer is None:
            return mask
        if kind == "body":
            return resizer.resize_body(mask)
        if kind == "filled":
            known = base.known(where).to(mask.device)
            return resizer.resize_filled(mask.expand_as(known), known)
        body = None if base.body is None else read_mask(base.body, where)
        if body is not None:
            mask, body = torch.broadcast_tensors(mask, body)
        return resizer.resize_valid(mask, body)


def _as_slice(frames: range) -> slice:
    return slice(frames.start, max(frames.start, frames.stop), frames.step)


_ROUNDING = 1e-6
"""Tolerance in steps of the grid: an end on a point includes it."""


@dataclass(frozen=True, kw_only=True)
class Region:
    """The region to keep; None keeps all. Ends of a range may be None too."""

    x: tuple[float | None, float | None] | None = None
    """Least and largest coordinate, in the trajectory's unit."""
    y: tuple[float | None, float | None] | None = None
    rows: slice | None = None
    columns: slice | None = None

    def __post_init__(self) -> None:
        for a, b in (("x", "columns"), ("y", "rows")):
            if getattr(self, a) is not None and getattr(self, b) is not None:
                raise ValueError(f"crop by {a} or by {b}, not by both")
        for indices in (self.rows, self.columns):
            if indices is not None and indices.step not in (None, 1):
                raise ValueError(
                    f"expected rows and columns without a step, found one of {indices.step}; "
                    "resize the region to have fewer points"
                )


def crop(trajectory: Trajectory, region: Region) -> Trajectory:
    """Return a lazy view of a region; ``local["crop"]`` records its rows and columns.

    New sides are open. An axis stays periodic without an end that repeats its start.
    """
    grid, local = trajectory.spec.grid, dict(trajectory.local)
    if local.get("crop") and local.get("resize"):
        raise ValueError(
            f"trajectory {trajectory.name!r} is already cropped and resized; crop the original file"
        )
    (ny, nx), (x0, y0) = grid.shape, grid.origin
    kept_x = _points(trajectory.name, "x", nx, x0, grid.dx, region.x, region.columns)
    kept_y = _points(trajectory.name, "y", ny, y0, grid.dy, region.y, region.rows)
    left, right, bottom, top = grid.sides
    if not _drops_repeat(trajectory, left, kept_x, -1):
        left, right = _sides(left, right, kept_x, nx)
    if not _drops_repeat(trajectory, bottom, kept_y, -2):
        bottom, top = _sides(bottom, top, kept_y, ny)
    row, _, column, _ = local.get("crop") or (0, 0, 0, 0)
    local["crop"] = [row + kept_y[0], row + kept_y[-1], column + kept_x[0], column + kept_x[-1]]
    new = replace(
        grid,
        shape=(len(kept_y), len(kept_x)),
        sides=Sides(left, right, bottom, top),
        body=None,
        origin=(x0 + kept_x[0] * grid.dx, y0 + kept_y[0] * grid.dy),
    )
    where = (..., slice(kept_y.start, kept_y.stop), slice(kept_x.start, kept_x.stop))
    cut = itemgetter(where)
    masks: dict[str, Any] = {n: map_mask(getattr(trajectory, n), cut, new.shape) for n in MASKS}
    shape = (*trajectory.states.shape[:2], *new.shape)
    return replace(
        trajectory,
        states=MappedFrames(shape, partial(_read_region, trajectory, where)),
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
    indices: slice | None,
) -> range:
    """Return the indices of the points to keep."""
    kept = range(count)[indices or slice(None)]
    if ends is not None:
        low = -math.inf if ends[0] is None else ends[0] - _ROUNDING * step
        high = math.inf if ends[1] is None else ends[1] + _ROUNDING * step
        inside = [index for index in kept if low <= origin + index * step <= high]
        kept = range(inside[0], inside[-1] + 1) if inside else range(0)
    if len(kept) < 2 <= count or not kept:
        raise ValueError(
            f"trajectory {name!r}: the region keeps {len(kept)} of {count} points along {axis}, "
            f"which extends from {origin:g} to {origin + (count - 1) * step:g}; choose a wider one"
        )
    return kept


def _sides(first: Boundary, last: Boundary, kept: range, count: int) -> tuple[Boundary, Boundary]:
    cut_first, cut_last = kept[0] > 0, kept[-1] < count - 1
    if first is Boundary.PERIODIC and (cut_first or cut_last):
        cut_first = cut_last = True
    return Boundary.OPEN if cut_first else first, Boundary.OPEN if cut_last else last


def _drops_repeat(trajectory: Trajectory, side: Boundary, kept: range, dim: int) -> bool:
    """Whether all that is cut from a periodic axis is an end that repeats its start."""
    count = trajectory.states.shape[dim]
    if side is not Boundary.PERIODIC or kept != range(count - 1):
        return False
    return repeats_end(trajectory.read(slice(0, 1)), dim)


def repeats_end(fields: Float[Tensor, "t c y x"], dim: int) -> bool:
    """Return whether the last points along a dimension have the values of the first."""
    first, second, last = (fields.select(dim, index) for index in (0, 1, -1))
    near = 1e-5 * float(first.abs().max())
    return bool((last - first).abs().max() <= near < (second - first).abs().max())


def _read_region(
    fields: Trajectory, where: tuple[Any, ...], frames: slice, channels: Sequence[int] | None
) -> Tensor:
    return fields.read(frames, channels)[where]
