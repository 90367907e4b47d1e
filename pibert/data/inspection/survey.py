"""Statistics of recordings from a bounded sample.

A survey opens a few trajectories spread evenly over the set and reads pairs of neighbouring frames
spread evenly over each, so its cost does not grow with the set. Statistics are over known points:
outside bodies, valid and finite.

Divergence tells whether a velocity field looks like incompressible flow, as it is or with other
axes. With a = du/dx and b = dv/dy,

    cancellation = rms(a + b) / sqrt(mean(a^2) + mean(b^2))

is 0 for incompressible flow in the plane, 1 for independent terms (noise) and sqrt(2) for equal
terms. A plane cut through isotropic turbulence has 0.71, because there mean(a b) = -mean(a^2)/2
(Batchelor, The Theory of Homogeneous Turbulence, 1953). The ``share`` of the terms is
sqrt(mean(a^2) + mean(b^2)) over the rms of the whole velocity gradient, at most 0.71 in homogeneous
incompressible flow, because mean(du/dx dv/dy) = mean(du/dy dv/dx) there. Their product, ``level``,
is the rms divergence over the rms velocity gradient: 0.41 for the plane cut.

Other pairs of terms show the divergence if the rows were stored from top to bottom (du/dx, -dv/dy),
if the axes or the components were exchanged (du/dy, dv/dx), or both (-du/dy, dv/dx). They are
computed after averaging over 3 x 3 points, which reduces measurement noise.
"""

import math
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d, max_pool2d

from pibert.data.outliers import flag_outliers, usual_noise
from pibert.data.provenance import FRAMES
from pibert.data.readers.recordings import Recordings
from pibert.data.readers.shared.metadata import family_note
from pibert.data.readers.shared.regions import velocity_channels
from pibert.data.resample import repeats_end
from pibert.data.units import Conversion, find_conversion, in_consistent_units
from pibert.data.views import spread
from pibert.fields import Grid, Sides, Trajectory, read_mask
from pibert.notes import Note, as_note
from pibert.physics import derivatives

_PROPORTIONAL = 0.95
"""Correlation of du/dx and -dv/dy above which one is proportional to the other."""
_NOT_SMALL = 0.1
"""Least speed of moving fluid, in deviations of the channel."""
_TRAJECTORIES = 16
_PAIRS = 32
"""Most pairs of frames in all."""
_VALUES = 1 << 22
"""Most values of these pairs in all: a few seconds of work."""


@dataclass(frozen=True)
class Cancellation:
    """How two terms of a divergence cancel; see the module."""

    cancellation: float
    share: float

    @property
    def level(self) -> float:
        return self.cancellation * self.share


@dataclass(frozen=True)
class DivergenceFacts:
    """Divergence as the file has it, and as it would be with other axes."""

    rms: float
    """Per second if the units are known, else in those of the file."""
    gradient: float
    """Rms of the velocity gradient: root of the mean square sum of its four components."""
    level: float
    """``rms`` over ``gradient`` at the resolution of the grid; all below is averaged."""
    as_is: Cancellation
    flipped: Cancellation
    exchanged: Cancellation
    both: Cancellation
    stretch: float | None
    """Factor on dy for which the divergence would vanish, if du/dx is proportional to -dv/dy."""


def _divergence_facts(fine: Tensor, averaged: Tensor) -> DivergenceFacts | None:
    """Facts from two results of ``_gradient_sums``; None if nothing is known or varies."""
    count, xx, xy, yx, yy, along, _ = fine.tolist()
    rms = math.sqrt(max(0.0, xx + yy + 2 * along) / max(1, count))
    gradient = math.sqrt((xx + xy + yx + yy) / max(1, count))
    _, xx, xy, yx, yy, along, across = averaged.tolist()
    total = xx + xy + yx + yy
    if not (total > 0 and gradient > 0):
        return None

    def pair(a: float, b: float, product: float) -> Cancellation:
        both = a + b
        cancellation = math.sqrt(max(0.0, 1 + 2 * product / both)) if both > 0 else 0.0
        return Cancellation(cancellation, math.sqrt(both / total))

    return DivergenceFacts(
        rms=rms,
        gradient=gradient,
        level=rms / gradient,
        as_is=pair(xx, yy, along),
        flipped=pair(xx, yy, -along),
        exchanged=pair(xy, yx, across),
        both=pair(xy, yx, -across),
        stretch=math.sqrt(yy / xx) if along < -_PROPORTIONAL * math.sqrt(xx * yy) else None,
    )


def _gradient_sums(vectors: Tensor, grid: Grid, known: Tensor, *, average: bool = False) -> Tensor:
    """Number of points, and sums of ux^2, uy^2, vx^2, vy^2, ux vy and uy vx over them."""
    inside = known[..., 1:-1, 1:-1] if average else known
    if average:  # beyond a side, averages are not those of a wall or of a periodic box
        grid = replace(grid, sides=Sides(), body=None)

    def terms(*components: Tensor) -> Tensor:
        if average:
            components = tuple(avg_pool2d(f, 3, 1) for f in components)
        (ux, uy), (vx, vy) = (derivatives.gradient(f, grid) for f in components)
        points = torch.ones_like(ux) + 0 * (ux + uy + vx + vy)
        return torch.stack((points, ux**2, uy**2, vx**2, vy**2, ux * vy, uy * vx))

    values, defined = derivatives.where_defined(terms, *vectors.double().unbind(1), known=known)
    return torch.where(defined[0] & inside, values, 0.0).sum((1, 2, 3))


@dataclass(frozen=True)
class ChannelFacts:
    """One channel over the known points of the frames read."""

    name: str
    unit: str
    low: float
    high: float
    mean: float
    std: float
    usual: float
    """99 of 100 values lie within this distance of zero, in every frame read."""
    fill: float | None
    """A value far above all others, such as -999 or 1e20 for missing ones."""
    half: bool
    """Every value is one of a 16-bit float."""


class Tally:
    """Sums over the frames of trajectories of one layout."""

    def __init__(self, like: Trajectory) -> None:
        self.spec = like.spec
        c = len(like.spec.channels)
        self.low, self.high = torch.full((c,), math.inf), torch.full((c,), -math.inf)
        self.usual = torch.zeros(c)
        self.fill: list[float | None] = [None] * c
        self.half = [True] * c
        # Count, sum and sum of squares in float64, relative to the first value.
        self.base: Tensor | None = None
        self.sums = torch.zeros(3, c, dtype=torch.float64)
        self.counts: Counter[str] = Counter()
        self.repeats = {"x": True, "y": True}
        self.moving = velocity_channels(like.spec.channels)
        # Derivatives need units of one system.
        units = like.length_unit, like.time_unit
        to_si = find_conversion(*units, like.spec.channels, like.spec.units)
        self.factors = (1.0,) * c if to_si is None else to_si.channels
        self.grid = in_consistent_units(like).spec.grid
        self.fine, self.averaged = torch.zeros(2, 7, dtype=torch.float64)

    def add(self, trajectory: Trajectory, pairs: Iterable[slice]) -> None:
        """Add pairs of neighbouring frames, or single frames."""
        counts = self.counts
        zeros, vectors = torch.zeros(2, *self.spec.grid.shape, dtype=torch.int64)
        read: set[int] = set()  # pairs may share a frame
        velocity = [self.spec.channels.index(n) for n in ("u", "v") if n in self.spec.channels]
        has_velocity = len(velocity) == 2
        noise = usual_noise(in_consistent_units(trajectory), velocity) if has_velocity else None
        for frames in pairs:
            fields = trajectory.read(frames).to("cpu", torch.float32)
            known = trajectory.known(frames).cpu()
            body, filled = torch.zeros_like(known), torch.zeros_like(known)
            if trajectory.body is not None:
                body |= read_mask(trajectory.body, frames).cpu()
            if trajectory.filled is not None:
                filled |= known & read_mask(trajectory.filled, frames).cpu()
            finite = fields.isfinite()
            numbers = range(frames.start, frames.start + len(fields))
            new = torch.tensor([number not in read for number in numbers])
            read |= set(numbers)
            counts["points"] += body[new].numel()
            counts["body"] += int(body[new].sum())
            counts["known"] += int(known[new].sum())
            counts["filled"] += int(filled[new].sum())
            counts["not_finite"] += int((~finite & known[:, None])[new].sum())
            known = known & finite.all(1)
            fields = torch.where(known[:, None], fields, 0.0)
            self._add_values(fields[new].movedim(1, 0)[:, known[new]])
            for dim, axis in enumerate("yx", start=-2):
                self.repeats[axis] &= repeats_end(fields, dim)
            zeros += _zero_regions(fields[:, self.moving], known)[new].sum(0)
            vectors += known[new].sum(0)
            if len(fields) > 1 and known.any():  # frames without a value are not the same
                counts["pairs"] += 1
                counts["repeated"] += torch.equal(fields[0], fields[1])
            if has_velocity:
                factors = torch.tensor([self.factors[i] for i in velocity])[:, None, None]
                self._add_vectors(fields[:1, velocity] * factors, known[:1], noise)
        counts["frames"] += len(read)
        static = (zeros == vectors) & (zeros > 0)
        counts["zeros_static"] = max(counts["zeros_static"], int(static.sum()))
        counts["zeros_varying"] += int(zeros[~static].sum())

    def _add_values(self, values: Tensor) -> None:
        """Add values (c, points) at known points."""
        if not values.shape[1]:
            return
        if self.base is None:
            self.base = values[:, 0].double()
        centred = values.double() - self.base[:, None]
        count = torch.full_like(self.base, values.shape[1])
        self.sums += torch.stack((count, centred.sum(1), centred.square().sum(1)))
        self.low = torch.minimum(self.low, values.amin(1))
        self.high = torch.maximum(self.high, values.amax(1))
        thinned = values[:, :: max(1, values.shape[1] // 100_000)].abs()
        self.usual = torch.maximum(self.usual, thinned.quantile(0.99, dim=1))
        for i, channel in enumerate(values):
            self.half[i] = self.half[i] and bool((channel.half().float() == channel).all())
            self.fill[i] = _fill_value(channel) or self.fill[i]

    def _add_vectors(self, vectors: Tensor, known: Tensor, noise: float | None) -> None:
        sound = known
        if noise is not None:
            flagged = flag_outliers(vectors, noise=noise, known=known)
            self.counts["tested"] += int(known.sum())
            self.counts["outliers"] += int(flagged.sum())
            sound = known & ~flagged  # a few outliers would dominate the gradients
        if min(self.grid.shape) >= 5:
            self.fine += _gradient_sums(vectors, self.grid, sound)
            self.averaged += _gradient_sums(vectors, self.grid, sound, average=True)

    def facts(self) -> dict[str, Any]:
        """The attributes of a ``Survey`` that depend on the frames."""
        count, total, squares = self.sums
        count = count.clamp(min=1)
        mean = total / count
        std = (squares / count - mean**2).clamp(min=0).sqrt()
        mean = mean if self.base is None else mean + self.base
        numbers = (x.tolist() for x in (self.low, self.high, mean, std, self.usual))
        columns = (self.spec.channels, self.spec.units, *numbers, self.fill, self.half)
        counts = self.counts
        fluid = counts["points"] - counts["body"]
        return {
            "channels": tuple(ChannelFacts(*row) for row in zip(*columns, strict=True)),
            "frames_read": counts["frames"],
            "body_share": counts["body"] / max(1, counts["points"]),
            "missing_share": (fluid - counts["known"]) / max(1, fluid),
            "filled_share": counts["filled"] / max(1, fluid),
            "not_finite": counts["not_finite"],
            "zeros_static": counts["zeros_static"],
            "zeros_varying": counts["zeros_varying"] / max(1, counts["known"]),
            "repeated": counts["repeated"],
            "repeated_ends": tuple(axis for axis, repeats in self.repeats.items() if repeats),
            "pairs": counts["pairs"],
            "outliers": counts["outliers"] / counts["tested"] if counts["tested"] else None,
            "divergence": _divergence_facts(self.fine, self.averaged),
        }


def _zero_regions(fields: Tensor, known: Tensor) -> Tensor:
    """Known points (t, y, x) where every channel is 0, in regions that touch moving fluid.

    Fluid at rest is not such a region: its neighbours are almost at rest too, or it fills the frame
    up to its outermost rows and columns, as at the start of a simulation. Nor is a wall in these
    rows and columns. Regions grow over all connected zeros, to include the inside of a body.
    """
    scale = fields.movedim(1, 0).flatten(1).std(1).clamp(min=torch.finfo(fields.dtype).tiny)
    size = (fields.abs() / scale[:, None, None]).amax(1)
    zero = (size == 0) & known
    region = zero & (max_pool2d(size, 3, 1, 1) > _NOT_SMALL)
    region[..., [0, -1], :] = False
    region[..., :, [0, -1]] = False
    moves = ((size > 0) & known)[..., 1:-1, 1:-1].flatten(1).any(1)
    region &= moves[:, None, None]
    while True:
        grown = (max_pool2d(region.float(), 3, 1, 1) > 0) & zero
        if torch.equal(grown, region):
            return region
        region = grown


def _fill_value(values: Tensor) -> float | None:
    """The extreme value, if it is far above every other."""
    extreme = values[values.abs().argmax()]
    others = values[values != extreme].abs()
    largest = others.max().item() if len(others) else 0.0
    return extreme.item() if abs(extreme.item()) > 30 * largest > 0 else None


@dataclass(frozen=True, kw_only=True)
class Survey:
    """Plain facts about recordings; grid, channels and provenance are those of the first."""

    kind: str
    path: str
    name: str
    trajectories: int
    opened: int
    """Number of trajectories read."""
    differing: tuple[str, ...]
    """Those whose channels or grid differ from the first."""
    frames: tuple[int, int]
    """Least and most frames of a trajectory."""
    frames_read: int
    shape: tuple[int, int]
    spacing: tuple[float, float]
    """dx and dy."""
    origin: tuple[float, float]
    length_unit: str | None
    time_unit: str | None
    dt: float | None
    time: tuple[float, float]
    frame_numbers: bool
    """The time is the frame number: the source states none."""
    steps: tuple[float, float]
    """Least and largest time step of any trajectory, as multiples of ``dt`` or its median step."""
    family: str | None
    sides: tuple[str, str, str, str]
    channels: tuple[ChannelFacts, ...]
    parameters: Mapping[str, tuple[float, float]]
    """Range of the known values."""
    series: tuple[str, ...]
    body_share: float
    missing_share: float
    """Share of the points outside bodies that are marked as not valid."""
    filled_share: float
    """Share of the points outside bodies whose value was filled."""
    not_finite: int
    """NaN or infinite values at known points."""
    zeros_static: int
    """Points whose velocity is exactly 0 in all frames read, in regions that touch moving fluid;
    of the trajectory that has most of them."""
    zeros_varying: float
    """Share of the known vectors that are exactly 0 only in some frames, likewise."""
    repeated: int
    """Pairs of identical neighbouring frames."""
    pairs: int
    repeated_ends: tuple[str, ...]
    """Axes along which the last row or column equals the first in all frames read."""
    outliers: float | None
    """Share of vectors that ``outliers.flag_outliers`` flags."""
    divergence: DivergenceFacts | None
    source: Mapping[str, Any]
    local: Mapping[str, Any]
    notes: tuple[Note, ...]

    @property
    def is_empty(self) -> bool:
        """Whether no value is known in the frames read."""
        return all(channel.low > channel.high for channel in self.channels)

    @property
    def conversion(self) -> Conversion | None:
        """The conversion to metres and seconds, if the units are known."""
        names, units = zip(*((c.name, c.unit) for c in self.channels), strict=True)
        return find_conversion(self.length_unit, self.time_unit, names, units)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values; numbers that are not finite become None."""
        return dict(_plain(asdict(self)))


def survey(recordings: Recordings) -> Survey:
    """Read a few trajectories and frames, spread evenly."""
    opened = [recordings[i] for i in spread(len(recordings), _TRAJECTORIES)]
    first = opened[0]
    alike = [t for t in opened if _layout(t) == _layout(first)]
    tally = Tally(first)
    for trajectory in alike:
        tally.add(trajectory, _pairs(trajectory, share_of=len(alike)))
    times = [t.time for t in opened]
    steps = [
        t.time.diff() / (t.spec.dt or t.time.diff().median()) for t in opened if t.num_frames > 1
    ]
    grid, spec = first.spec.grid, first.spec
    return Survey(
        kind=recordings.kind,
        path=str(recordings.path),
        name=recordings.path.name,
        trajectories=len(recordings),
        opened=len(opened),
        differing=tuple(t.name for t in opened if _layout(t) != _layout(first)),
        frames=(min(map(len, times)), max(map(len, times))),
        shape=grid.shape,
        spacing=(grid.dx, grid.dy),
        origin=grid.origin,
        length_unit=first.length_unit,
        time_unit=first.time_unit,
        dt=spec.dt,
        time=(min(t[0].item() for t in times), max(t[-1].item() for t in times)),
        frame_numbers=all(map(_counts, opened)),
        steps=(
            min((s.min().item() for s in steps), default=1.0),
            max((s.max().item() for s in steps), default=1.0),
        ),
        family=spec.family,
        sides=tuple(str(side) for side in grid.sides),  # type: ignore[arg-type]
        parameters={
            name: (min(known), max(known))
            for name in dict.fromkeys(name for t in opened for name in t.parameters)
            if (known := [t.parameters[name] for t in opened if name in t.parameters])
        },
        series=tuple(first.series),
        source=dict(first.source),
        local=dict(first.local),
        notes=tuple(map(as_note, filter(None, (*recordings.notes, family_note(first))))),
        **tally.facts(),
    )


def _pairs(trajectory: Trajectory, share_of: int) -> Iterator[slice]:
    """Yield pairs of neighbouring frames within the limits for all trajectories together."""
    t, c, ny, nx = trajectory.states.shape
    affordable = _VALUES // (2 * c * ny * nx)
    wanted = max(1, min(_PAIRS, affordable) // share_of)
    return (slice(start, start + 2) for start in spread(max(1, t - 1), wanted))


def _layout(trajectory: Trajectory) -> tuple[Any, ...]:
    spec = trajectory.spec
    return spec.channels, spec.grid.shape, round(spec.grid.dx, 12), round(spec.grid.dy, 12)


def _counts(trajectory: Trajectory) -> bool:
    """Return whether the times are frame numbers: 0, 1, 2 ..."""
    stated = trajectory.spec.dt is not None and trajectory.time_unit not in FRAMES
    return not stated and bool((trajectory.time.diff() == 1).all())


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value
