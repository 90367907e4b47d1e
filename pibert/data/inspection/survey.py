"""Statistics of recordings from a bounded sample.

A survey opens a few trajectories spread evenly over the set and reads pairs of neighbouring frames
spread evenly over each, so that its cost is bounded however large the set is; it reports how much
it read. Statistics are over known points: outside bodies, where the field is valid and finite.

Whether a velocity field looks like one of incompressible flow, as it is or with other axes.

The divergence is rated by how far its two terms cancel. With a = du/dx and b = dv/dy,

    cancellation = rms(a + b) / sqrt(mean(a^2) + mean(b^2))

is 0 for an incompressible flow in the plane, 1 for terms that know nothing of each other (noise)
and sqrt(2) for terms that are equal. A plane cut through isotropic turbulence has 0.71, because
there mean(a b) = -mean(a^2)/2 (Batchelor, The Theory of Homogeneous Turbulence, 1953). The
``share`` of the terms is sqrt(mean(a^2) + mean(b^2)) over the rms of the whole velocity gradient;
it is at most 0.71 in a homogeneous incompressible flow, because mean(du/dx dv/dy) =
mean(du/dy dv/dx) there. Their product, ``level``, is the rms divergence over the rms velocity
gradient: 0.41 for the plane cut.

The same numbers for other pairs of terms show what the divergence would be if the rows were stored
from top to bottom (du/dx, -dv/dy), if the axes or the components were exchanged (du/dy, dv/dx), or
both (-du/dy, dv/dx). These are taken after averaging over 3 x 3 points, where the noise of a
measurement weighs less.
"""

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor
from torch.nn.functional import avg_pool2d, max_pool2d

from pibert.data.normalize import flag_outliers
from pibert.data.provenance import FRAMES
from pibert.data.readers.recordings import Recordings
from pibert.data.readers.shared.metadata import family_note
from pibert.data.readers.shared.regions import velocity_channels
from pibert.data.units import Conversion, find_conversion, in_consistent_units
from pibert.fields import Grid, Sides, Trajectory, read_mask
from pibert.physics import derivatives

_PROPORTIONAL = 0.95
"""Correlation of du/dx and -dv/dy that noise and out-of-plane motion do not leave."""


@dataclass(frozen=True)
class Cancellation:
    """How two terms of a divergence cancel; the module's docstring defines the numbers."""

    cancellation: float
    share: float

    @property
    def level(self) -> float:
        return self.cancellation * self.share


@dataclass(frozen=True)
class DivergenceFacts:
    """Divergence as the file has it, and as it would be with other axes."""

    rms: float
    """Per second where the units are known, else in those of the file."""
    gradient: float
    """Rms of the velocity gradient: the root of the mean square sum of its four components."""
    level: float
    """The former over the latter, at the grid's own resolution; what follows is averaged."""
    as_is: Cancellation
    flipped: Cancellation
    exchanged: Cancellation
    both: Cancellation
    stretch: float | None
    """What dy would have to be multiplied by for the divergence to vanish, where that is possible:
    du/dx is nearly proportional to -dv/dy."""


class DivergenceTally:
    """Sums over frames from which the facts follow."""

    def __init__(self, grid: Grid) -> None:
        self._grid = grid
        self._fine, self._averaged = torch.zeros(2, 7, dtype=torch.float64)

    def add(
        self, u: Float[Tensor, "t y x"], v: Float[Tensor, "t y x"], known: Bool[Tensor, "t y x"]
    ) -> None:
        """Frames of a velocity; a grid of fewer than five rows or columns is skipped."""
        if min(self._grid.shape) >= 5:
            u, v = u.double(), v.double()
            self._fine += _sums(u, v, self._grid, known)
            # Averages beyond a side are not those of a wall or of a periodic box.
            open_grid = replace(self._grid, sides=Sides(), body=None)
            self._averaged += _sums(u, v, open_grid, known, average=True)

    def facts(self) -> DivergenceFacts | None:
        """None where nothing is known or nothing varies."""
        count, xx, xy, yx, yy, along, _ = self._fine.tolist()
        rms = math.sqrt(max(0.0, xx + yy + 2 * along) / max(1, count))
        gradient = math.sqrt((xx + xy + yx + yy) / max(1, count))
        _, xx, xy, yx, yy, along, across = self._averaged.tolist()
        total = xx + xy + yx + yy
        if not (total > 0 and gradient > 0):
            return None

        def pair(a: float, b: float, product: float) -> Cancellation:
            both = a + b
            return Cancellation(
                math.sqrt(max(0.0, 1 + 2 * product / both)) if both > 0 else 0.0,
                math.sqrt(both / total),
            )

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


def _sums(u: Tensor, v: Tensor, grid: Grid, known: Tensor, *, average: bool = False) -> Tensor:
    """Number of points, and sums of ux^2, uy^2, vx^2, vy^2, ux vy and uy vx over them."""
    inside = known[..., 1:-1, 1:-1] if average else known

    def terms(*components: Tensor) -> Tensor:
        if average:
            components = tuple(avg_pool2d(f, 3, 1) for f in components)
        (ux, uy), (vx, vy) = (derivatives.gradient(f, grid) for f in components)
        points = torch.ones_like(ux) + 0 * (ux + uy + vx + vy)
        return torch.stack((points, ux**2, uy**2, vx**2, vy**2, ux * vy, uy * vx))

    values, defined = derivatives.where_defined(terms, u, v, known=known)
    return torch.where(defined[0] & inside, values, 0.0).sum((1, 2, 3))


_NOT_SMALL = 0.1
"""In deviations of the channel."""
_OUTLIER_NOISE = 0.1
"""Accepted fluctuation in the median test, as a share of the velocity's deviation."""
_OUTLIER_THRESHOLD = 4.0
"""Twice the usual one: resolved shear layers stay below it."""


@dataclass(frozen=True)
class ChannelFacts:
    """One channel over the known points of the frames that were read."""

    name: str
    unit: str
    low: float
    high: float
    mean: float
    std: float
    usual: float
    """99 of 100 values lie within this distance of zero, in every frame that was read."""
    fill: float | None
    """A value that stands far above all others, as -999 or 1e20 do for missing ones."""
    half: bool
    """Every value is one of a 16-bit float."""


class Tally:
    """What is summed over the frames of one or more trajectories of one layout."""

    def __init__(self, like: Trajectory) -> None:
        self.spec = like.spec
        c = len(like.spec.channels)
        self.low, self.high = torch.full((c,), math.inf), torch.full((c,), -math.inf)
        self.usual = torch.zeros(c)
        self.fill: list[float | None] = [None] * c
        self.half = [True] * c
        # Count, sum and sum of squares in float64, about the first value seen.
        self.base: Tensor | None = None
        self.sums = torch.zeros(3, c, dtype=torch.float64)
        self.points = self.body = self.fluid = self.known = self.filled = self.not_finite = 0
        self.zeros_static, self.zeros_varying = 0, 0
        """Points of the trajectory that has most of them; vectors of all that were read."""
        self.moving = velocity_channels(like.spec.channels)
        self.repeated = self.pairs = self.frames = 0
        self.outliers = self.tested = 0
        # Derivatives need units that fit together.
        units = like.length_unit, like.time_unit
        to_si = find_conversion(*units, like.spec.channels, like.spec.units)
        self.factors = (1.0,) * c if to_si is None else to_si.channels
        self.divergence = DivergenceTally(in_consistent_units(like).spec.grid)

    def add(self, trajectory: Trajectory, pairs: Iterable[slice]) -> None:
        """Some pairs of neighbouring frames, or single ones."""
        zeros, vectors = torch.zeros(2, *self.spec.grid.shape, dtype=torch.int64)
        read: set[int] = set()  # pairs may share a frame
        for frames in pairs:
            fields = trajectory.read(frames).to("cpu", torch.float32)
            known = trajectory.known(frames).cpu()
            finite = fields.isfinite()
            numbers = range(frames.start, frames.start + len(fields))
            new = torch.tensor([number not in read for number in numbers])
            read |= set(numbers)
            self.not_finite += int((~finite & known[:, None])[new].sum())
            self._count_masks(trajectory, frames, known, new)
            known = known & finite.all(1)
            fields = torch.where(known[:, None], fields, 0.0)
            self._add_values(fields[new].movedim(1, 0)[:, known[new]])
            zero = _zero_regions(fields[:, self.moving], known)[new]
            zeros, vectors = zeros + zero.sum(0), vectors + known[new].sum(0)
            if len(fields) > 1 and known.any():  # frames without a value are not the same
                self.pairs += 1
                self.repeated += torch.equal(fields[0], fields[1])
            if {"u", "v"} <= set(self.spec.channels):
                self._add_vectors(fields[:1], known[:1])
        self.frames += len(read)
        static = (zeros == vectors) & (zeros > 0)
        self.zeros_static = max(self.zeros_static, int(static.sum()))
        self.zeros_varying += int(zeros[~static].sum())

    def _count_masks(
        self, trajectory: Trajectory, frames: slice, known: Tensor, new: Tensor
    ) -> None:
        """Counts of the frames that were not read before."""
        body = torch.zeros_like(known)
        if trajectory.body is not None:
            body = body | read_mask(trajectory.body, frames).cpu()
        self.points += known[new].numel()
        self.body += int(body[new].sum())
        self.fluid += int((~body)[new].sum())
        self.known += int(known[new].sum())
        if trajectory.filled is not None:
            filled = known & read_mask(trajectory.filled, frames).cpu()
            self.filled += int(filled[new].sum())

    def _add_values(self, values: Tensor) -> None:
        """Values (c, points) at known points."""
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

    def _add_vectors(self, fields: Tensor, known: Tensor) -> None:
        u, v = (fields[:, i] * self.factors[i] for i in map(self.spec.channels.index, ("u", "v")))
        self.divergence.add(u, v, known)
        vectors = torch.stack((u, v), 1)
        deviation = vectors.movedim(1, 0)[:, known].std().item() if known.sum() > 1 else 0.0
        if deviation > 0:
            # A point at the edge has neighbours on one side only: a shear looks like an outlier.
            inner = (..., slice(1, -1), slice(1, -1))
            self.tested += int(known[inner].sum())
            noise = _OUTLIER_NOISE * deviation
            wrong = flag_outliers(vectors, noise=noise, known=known, threshold=_OUTLIER_THRESHOLD)
            self.outliers += int(wrong[inner].sum())

    def facts(self) -> dict[str, Any]:
        count, total, squares = self.sums
        count = count.clamp(min=1)
        mean = total / count
        std = (squares / count - mean**2).clamp(min=0).sqrt()
        mean = mean if self.base is None else mean + self.base
        fluid = max(1, self.fluid)
        return {
            "channels": tuple(
                ChannelFacts(*row)
                for row in zip(
                    self.spec.channels,
                    self.spec.units,
                    *(x.tolist() for x in (self.low, self.high, mean, std, self.usual)),
                    self.fill,
                    self.half,
                    strict=True,
                )
            ),
            "frames_read": self.frames,
            "body_share": self.body / max(1, self.points),
            "missing_share": (self.fluid - self.known) / fluid,
            "filled_share": self.filled / fluid,
            "not_finite": self.not_finite,
            "zeros_static": self.zeros_static,
            "zeros_varying": self.zeros_varying / max(1, self.known),
            "repeated": self.repeated,
            "pairs": self.pairs,
            "outliers": self.outliers / self.tested if self.tested else None,
            "divergence": self.divergence.facts(),
        }


def _zero_regions(fields: Tensor, known: Tensor) -> Tensor:
    """Known points (t, y, x) where every channel is 0, in regions that touch moving fluid.

    Fluid that is still at rest is no such region: what surrounds it is almost at rest too, or it
    fills the frame up to its outermost rows and columns, as at the start of a simulation. Nor is a
    wall in these rows and columns. The touching points are grown over all zeros that are
    connected to them, so that the inside of a body counts and not its rim alone.
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
    """The extreme value, where it is far above every other."""
    extreme = values[values.abs().argmax()]
    others = values[values != extreme].abs()
    largest = others.max().item() if len(others) else 0.0
    return extreme.item() if abs(extreme.item()) > 30 * largest > 0 else None


_TRAJECTORIES = 16
_PAIRS = 32
"""Pairs of frames in all ..."""
_VALUES = 1 << 22
"""... or fewer, as long as they hold no more values than this: a few seconds of work."""


@dataclass(frozen=True, kw_only=True)
class Survey:
    """Plain facts about recordings; grid, channels and provenance are those of the first."""

    kind: str
    path: str
    name: str
    trajectories: int
    opened: int
    """How many trajectories were looked at."""
    differing: tuple[str, ...]
    """Those of them whose channels or grid are not those of the first."""
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
    """Time is the frame number: the source states none."""
    steps: tuple[float, float]
    """Least and largest time step of any trajectory, as multiples of ``dt`` or its median step."""
    family: str | None
    sides: tuple[str, str, str, str]
    channels: tuple[ChannelFacts, ...]
    parameters: Mapping[str, tuple[float, float]]
    """Range of the values that are known."""
    series: tuple[str, ...]
    body_share: float
    missing_share: float
    """Of the points outside bodies, those that are marked as not valid."""
    filled_share: float
    """Of the points outside bodies, those that hold a value which was not measured."""
    not_finite: int
    """Values that are NaN or infinite although their points count as known."""
    zeros_static: int
    """Points of a trajectory whose velocity is exactly 0 in all frames that were read (where it is
    known), in regions that touch moving fluid; of the trajectory that has most of them."""
    zeros_varying: float
    """Share of the known vectors that are exactly 0 in some frames alone, likewise."""
    repeated: int
    """Pairs of neighbouring frames that are identical."""
    pairs: int
    outliers: float | None
    """Share of vectors that fail the normalised median test, a lenient one."""
    divergence: DivergenceFacts | None
    source: Mapping[str, Any]
    local: Mapping[str, Any]
    remarks: tuple[str, ...]

    @property
    def is_empty(self) -> bool:
        """Not one value is known in the frames that were read."""
        return all(channel.low > channel.high for channel in self.channels)

    @property
    def conversion(self) -> Conversion | None:
        """What would bring the data to metres and seconds, where their units are known."""
        names, units = zip(*((c.name, c.unit) for c in self.channels), strict=True)
        return find_conversion(self.length_unit, self.time_unit, names, units)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values; numbers that are not finite become None."""
        return dict(_plain(asdict(self)))


def survey(recordings: Recordings) -> Survey:
    """Look at a few trajectories and frames, spread evenly."""
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
        remarks=(*recordings.notes, *filter(None, [family_note(first)])),
        **tally.facts(),
    )


def spread(count: int, wanted: int) -> list[int]:
    """At most so many different indices below ``count``, evenly from the first to the last."""
    wanted = min(count, wanted)
    return [round(i * (count - 1) / max(1, wanted - 1)) for i in range(wanted)]


def _pairs(trajectory: Trajectory, share_of: int) -> Iterator[slice]:
    """Pairs of neighbouring frames, so many that all trajectories together stay in bounds."""
    t, c, ny, nx = trajectory.states.shape
    affordable = _VALUES // (2 * c * ny * nx)
    wanted = max(1, min(_PAIRS, affordable) // share_of)
    return (slice(start, start + 2) for start in spread(max(1, t - 1), wanted))


def _layout(trajectory: Trajectory) -> tuple[Any, ...]:
    spec = trajectory.spec
    return spec.channels, spec.grid.shape, round(spec.grid.dx, 12), round(spec.grid.dy, 12)


def _counts(trajectory: Trajectory) -> bool:
    """Whether its times are the numbers of its frames: 0, 1, 2 ..."""
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
