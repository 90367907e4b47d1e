"""What can be measured on recordings without reading them whole.

A survey opens a few trajectories spread evenly over the set and reads pairs of neighbouring frames
spread evenly over each, so that its cost is bounded however large the set is; it says how much it
read. Statistics are over known points: outside bodies, where the field is valid and finite.

The divergence is judged by how far its two terms cancel. With a = du/dx and b = dv/dy,

    cancellation = rms(a + b) / sqrt(mean(a^2) + mean(b^2))

is 0 for an incompressible flow in the plane, 1 for terms that know nothing of each other (noise)
and sqrt(2) for terms that are equal. A plane cut through isotropic turbulence has 0.71, because
there mean(a b) = -mean(a^2)/2 (Batchelor, The Theory of Homogeneous Turbulence, 1953). The
``share`` of the terms is sqrt(mean(a^2) + mean(b^2)) over the rms of the whole velocity gradient;
it is at most 0.71 in a homogeneous incompressible flow, because mean(du/dx dv/dy) =
mean(du/dy dv/dx) there. Their product, ``level``, is the rms divergence over the rms velocity
gradient: 0.41 for the plane cut.

The same numbers for other pairs of terms tell what the divergence would be if the rows were stored
from top to bottom (du/dx, -dv/dy), if the axes or the components were exchanged (du/dy, dv/dx), or
both (-du/dy, dv/dx). These are taken after averaging over 3 x 3 points, where the noise of a
measurement weighs less.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import avg_pool2d, max_pool2d

from pibert.data.normalize import flag_outliers
from pibert.data.sources.recordings import Recordings
from pibert.fields import Grid, Sides, Trajectory, read_mask
from pibert.physics import derivatives

_TRAJECTORIES = 16
_PAIRS = 32
"""Pairs of frames in all ..."""
_VALUES = 1 << 22
"""... or fewer, as long as they hold no more values than this: a few seconds of work."""
_PROPORTIONAL = 0.95
"""Correlation of du/dx and -dv/dy that noise and out-of-plane motion do not leave."""
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


@dataclass(frozen=True, kw_only=True)
class Survey:
    """Plain facts about recordings; grid, channels and provenance are those of the first."""

    kind: str
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
    """Least and largest time step of any trajectory, as a multiple of its median step."""
    family: str | None
    sides: tuple[str, str, str, str]
    channels: tuple[ChannelFacts, ...]
    parameters: Mapping[str, tuple[float, float]]
    """Range of the values that are known."""
    series: tuple[str, ...]
    body_share: float
    missing_share: float
    """Of the points outside bodies, those that are marked as not valid."""
    not_finite: int
    """Values that are NaN or infinite although their points count as known."""
    zeros: float
    """Share of the known points, off the outermost rows and columns, where every channel is exactly
    0 although a neighbour is not small."""
    zeros_static: bool
    """They are the same points in all frames of a trajectory."""
    repeated: int
    """Pairs of neighbouring frames that are identical."""
    pairs: int
    outliers: float | None
    """Share of vectors that fail the normalised median test, a lenient one."""
    divergence: DivergenceFacts | None
    source: Mapping[str, Any]
    local: Mapping[str, Any]
    remarks: tuple[str, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values; numbers that are not finite become None."""
        plain: dict[str, Any] = _plain(asdict(self))
        return plain


def survey(recordings: Recordings) -> Survey:
    """Look at a few trajectories and frames, spread evenly."""
    opened = [recordings[i] for i in spread(len(recordings), _TRAJECTORIES)]
    first = opened[0]
    alike = [t for t in opened if _layout(t) == _layout(first)]
    tally = _Tally(first)
    for trajectory in alike:
        tally.add(trajectory, share_of=len(alike))
    times = [t.time for t in opened]
    steps = [t.diff() / t.diff().median() for t in times if len(t) > 1]
    grid, spec = first.spec.grid, first.spec
    return Survey(
        kind=recordings.kind,
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
        frame_numbers=all(_is_count(t.time) and t.spec.dt is None for t in opened),
        steps=(
            min((s.min().item() for s in steps), default=1.0),
            max((s.max().item() for s in steps), default=1.0),
        ),
        family=spec.family,
        sides=tuple(str(side) for side in grid.sides),  # type: ignore[arg-type]
        parameters=_parameter_ranges(opened),
        series=tuple(first.series),
        source=dict(first.source),
        local=dict(first.local),
        remarks=recordings.remarks,
        **tally.facts(),
    )


def spread(count: int, wanted: int) -> list[int]:
    """At most so many different indices below ``count``, evenly from the first to the last."""
    wanted = min(count, wanted)
    return [round(i * (count - 1) / max(1, wanted - 1)) for i in range(wanted)]


class _Tally:
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
        self.points = self.body = self.fluid = self.known = self.not_finite = 0
        self.zeros = self.inner = 0
        self.zeros_static = True
        self.repeated = self.pairs = self.frames = 0
        self.outliers = self.judged = 0
        self.fine, self.averaged = torch.zeros(2, 7, dtype=torch.float64)

    def add(self, trajectory: Trajectory, share_of: int) -> None:
        zero_before: Tensor | None = None
        for frames in _pairs(trajectory, share_of):
            fields = trajectory.read(frames).to("cpu", torch.float32)
            known = trajectory.known(frames).cpu()
            finite = fields.isfinite()
            self.not_finite += int((~finite & known[:, None]).sum())
            self._count_masks(trajectory, frames, known)
            known = known & finite.all(1)
            fields = torch.where(known[:, None], fields, 0.0)
            self._add_values(fields.movedim(1, 0)[:, known])
            zero = _lonely_zeros(fields) & known
            self.zeros += int(zero[..., 1:-1, 1:-1].sum())
            self.inner += int(known[..., 1:-1, 1:-1].sum())
            here = zero.any(0)
            if zero_before is not None and not torch.equal(zero_before, here):
                self.zeros_static = False
            zero_before = here
            if len(fields) > 1:
                self.pairs += 1
                self.repeated += torch.equal(fields[0], fields[1])
            if {"u", "v"} <= set(self.spec.channels):
                self._add_vectors(fields[:1], known[:1])
            self.frames += len(fields)

    def _count_masks(self, trajectory: Trajectory, frames: slice, known: Tensor) -> None:
        body = torch.zeros_like(known)
        if trajectory.body is not None:
            body = body | read_mask(trajectory.body, frames).cpu()
        self.points += known.numel()
        self.body += int(body.sum())
        self.fluid += int((~body).sum())
        self.known += int(known.sum())

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
        spec = self.spec
        vectors = fields[:, [spec.channels.index("u"), spec.channels.index("v")]]
        deviation = vectors.movedim(1, 0)[:, known].std().item() if known.sum() > 1 else 0.0
        if deviation > 0:
            # A point at the edge has neighbours on one side only: a shear looks like an outlier.
            inner = (..., slice(1, -1), slice(1, -1))
            self.judged += int(known[inner].sum())
            wrong = flag_outliers(
                vectors,
                noise=_OUTLIER_NOISE * deviation,
                known=known,
                threshold=_OUTLIER_THRESHOLD,
            )
            self.outliers += int(wrong[inner].sum())
        if min(spec.grid.shape) >= 5:
            u, v = vectors.double().unbind(1)
            self.fine += _gradient_sums(u, v, spec.grid, known, average=False)
            self.averaged += _gradient_sums(u, v, spec.grid, known, average=True)

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
            "not_finite": self.not_finite,
            "zeros": self.zeros / max(1, self.inner),
            "zeros_static": self.zeros_static,
            "repeated": self.repeated,
            "pairs": self.pairs,
            "outliers": self.outliers / self.judged if self.judged else None,
            "divergence": _divergence_facts(self.fine, self.averaged),
        }


def _pairs(trajectory: Trajectory, share_of: int) -> Iterator[slice]:
    """Pairs of neighbouring frames, so many that all trajectories together stay in bounds."""
    t, c, ny, nx = trajectory.states.shape
    affordable = _VALUES // (2 * c * ny * nx)
    wanted = max(1, min(_PAIRS, affordable) // share_of)
    return (slice(start, start + 2) for start in spread(max(1, t - 1), wanted))


def _lonely_zeros(fields: Tensor) -> Tensor:
    """Points (t, y, x) where every channel is 0 next to one that is not small.

    Fluid that is still at rest is no such point: what surrounds it is almost at rest too.
    """
    scale = fields.movedim(1, 0).flatten(1).std(1).clamp(min=torch.finfo(fields.dtype).tiny)
    size = (fields.abs() / scale[:, None, None]).amax(1)
    return (size == 0) & (max_pool2d(size, 3, 1, 1) > _NOT_SMALL)


def _fill_value(values: Tensor) -> float | None:
    """The extreme value, where it is far above every other."""
    extreme = values[values.abs().argmax()]
    others = values[values != extreme].abs()
    largest = others.max().item() if len(others) else 0.0
    return extreme.item() if abs(extreme.item()) > 30 * largest > 0 else None


def _gradient_sums(u: Tensor, v: Tensor, grid: Grid, known: Tensor, *, average: bool) -> Tensor:
    """Number of points, and sums of ux^2, uy^2, vx^2, vy^2, ux vy and uy vx over them."""
    if average:
        # Averages beyond a side are not those of a wall or of a periodic box.
        grid, inside = replace(grid, sides=Sides(), body=None), known[..., 1:-1, 1:-1]
    else:
        inside = known

    def terms(*components: Tensor) -> Tensor:
        if average:
            components = tuple(avg_pool2d(f, 3, 1) for f in components)
        (ux, uy), (vx, vy) = (derivatives.gradient(f, grid) for f in components)
        points = torch.ones_like(ux) + 0 * (ux + uy + vx + vy)
        return torch.stack((points, ux**2, uy**2, vx**2, vy**2, ux * vy, uy * vx))

    values, defined = derivatives.where_defined(terms, u, v, known=known)
    return torch.where(defined[0] & inside, values, 0.0).sum((1, 2, 3))


def _divergence_facts(fine: Tensor, averaged: Tensor) -> DivergenceFacts | None:
    count, xx, xy, yx, yy, along, _ = fine.tolist()
    rms = math.sqrt(max(0.0, xx + yy + 2 * along) / max(1, count))
    gradient = math.sqrt((xx + xy + yx + yy) / max(1, count))
    _, xx, xy, yx, yy, along, across = averaged.tolist()
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


def _parameter_ranges(trajectories: list[Trajectory]) -> dict[str, tuple[float, float]]:
    values: dict[str, list[float]] = {}
    for trajectory in trajectories:
        for name, value in trajectory.parameters.items():
            values.setdefault(name, []).append(value)
    return {name: (min(known), max(known)) for name, known in values.items()}


def _layout(trajectory: Trajectory) -> tuple[Any, ...]:
    spec = trajectory.spec
    return spec.channels, spec.grid.shape, round(spec.grid.dx, 12), round(spec.grid.dy, 12)


def _is_count(time: Tensor) -> bool:
    return bool((time.diff() == 1).all())


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value
