"""Statistics of the frames that a survey reads: values, masks, zeros, outliers, divergence."""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import max_pool2d

from pibert.data.inspection.divergence import DivergenceTally
from pibert.data.normalize import flag_outliers
from pibert.data.sources.marking import velocity_channels
from pibert.data.units import find_conversion, in_consistent_units
from pibert.fields import Trajectory, read_mask

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
        self.outliers = self.judged = 0
        # Derivatives need units that fit together.
        to_si = find_conversion(
            like.length_unit, like.time_unit, like.spec.channels, like.spec.units
        )
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
            self.judged += int(known[inner].sum())
            wrong = flag_outliers(
                vectors,
                noise=_OUTLIER_NOISE * deviation,
                known=known,
                threshold=_OUTLIER_THRESHOLD,
            )
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
            "outliers": self.outliers / self.judged if self.judged else None,
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
