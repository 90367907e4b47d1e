"""Bootstrap intervals of a metric's values.

Rows of terms are resampled with replacement; every resample gives weights to the rows, and

    values(weights @ terms)

are its values. The interval lies between quantiles of the values over the resamples (percentile
bootstrap; Efron and Tibshirani, "An introduction to the bootstrap", 1993). It does not cover the
variation between training runs: that takes several seeds.

The resampled units must be nearly independent:

- whole trajectories (``resample_trajectories``): rows of one trajectory move together;
- blocks of frames (``resample_blocks``) where there are few recordings, longer than the correlation
  time. A block may begin at any frame and wraps around the end of its recording (circular blocks;
  Politis and Romano, 1992), so every frame is taken equally often and the mean over resamples is
  the value itself. Such an interval covers other times of the same recordings, not other
  recordings.

Percentile intervals of few trajectories are too narrow: of ten independent ones, a 95 % interval
covers the truth in about 90 % of all cases. Below ten there is no interval. Nor is there one if the
value itself lies outside (``holding``): a distance near its floor of zero, such as the spectral
error of persistence, is larger in nearly every resample than over all frames.

Two models are compared on the same resamples, so that difficulties common to both cancel: they need
the same seed.
"""

import math
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor

LEAST = 10
"""Trajectories or blocks below which no interval is given."""
MOST_SILENT = 0.1
"""Share of resamples without a value above which there is no interval."""
ROUND_OFF = 1e-12
"""By how much of itself a value may lie outside its interval."""


class TooFew(ValueError):
    """There is too little independent data for an interval; the value itself stands."""


@runtime_checkable
class Valued(Protocol):
    """The part of a metric that intervals need."""

    def values(self, sums: Float[Tensor, "*batch k"]) -> Float[Tensor, "*batch entry"]:
        """The numbers that sums of terms give."""
        ...


class Interval(NamedTuple):
    """A value for every entry, and the ends of its interval."""

    value: Float[Tensor, "*extra entry"]
    low: Float[Tensor, "*extra entry"]
    high: Float[Tensor, "*extra entry"]


def resample_trajectories(
    groups: Int[Tensor, " rows"], *, resamples: int = 1000, seed: int
) -> Float[Tensor, "resample rows"]:
    """Occurrences of each row when the trajectories, named by any number, are resampled.

    Raises:
        TooFew: With fewer than ten trajectories.
    """
    names, index = groups.cpu().unique(return_inverse=True)
    if len(names) < LEAST:
        raise TooFew(
            f"expected at least {LEAST} trajectories for an interval, found {len(names)}; "
            "resample blocks of long recordings, or give the value without an interval"
        )
    generator = torch.Generator().manual_seed(seed)
    chosen = torch.randint(len(names), (resamples, len(names)), generator=generator)
    return _counts(chosen, len(names))[:, index]


def resample_starts(
    groups: Int[Tensor, " rows"],
    frames: Int[Tensor, " rows"],
    *,
    block: int | None,
    resamples: int = 1000,
    seed: int,
) -> tuple[Float[Tensor, "resample rows"], str]:
    """Occurrences of each start of a rollout, and what was resampled.

    Whole trajectories, or where there are too few of them the starts in blocks of time: the first
    frames of one block move together. It must be longer than a rollout and than the correlation
    time; None: such blocks are not known.

    Raises:
        TooFew: With fewer than ten trajectories, and fewer than ten blocks.
    """
    try:
        weights = resample_trajectories(groups, resamples=resamples, seed=seed)
        return weights, f"{len(groups.unique())} flows"
    except TooFew:
        if block is None:
            raise
    in_time = frames // block
    units = groups * (int(in_time.max()) + 1) + in_time
    weights = resample_trajectories(units, resamples=resamples, seed=seed)
    return weights, f"{len(units.unique())} stretches of {block} frames"


def same_flows(count: int) -> str:
    """Say, beside an interval from resamples in time, what it does not cover."""
    these = "this flow" if count == 1 else f"these {count} flows"
    return f"(valid for other times of {these}, not for other flows)"


def resample_blocks(
    groups: Int[Tensor, " rows"], *, block: int, resamples: int = 1000, seed: int
) -> Float[Tensor, "resample rows"]:
    """Occurrences of each row when blocks of frames are resampled within every recording.

    Rows of a recording are in the order of time, without a gap; a block is longer than the
    correlation time.

    Raises:
        TooFew: With fewer than ten whole blocks in all recordings together.
    """
    groups, generator = groups.cpu(), torch.Generator().manual_seed(seed)
    recordings = [(groups == name).nonzero()[:, 0] for name in groups.unique()]
    whole = sum(len(rows) // block for rows in recordings)
    if whole < LEAST:
        raise TooFew(
            f"expected at least {LEAST} blocks of {block} frames for an interval, found {whole} in "
            f"{len(groups)} frames; give the value without an interval"
        )
    weights = torch.zeros(resamples, len(groups), dtype=torch.float64)
    for rows in recordings:
        size = len(rows)
        starts = torch.randint(size, (resamples, math.ceil(size / block)), generator=generator)
        frames = (starts[:, :, None] + torch.arange(block)) % size
        # The last block is cut short: every resample has as many frames as the recording.
        weights[:, rows] = _counts(frames.flatten(1)[:, :size], size)
    return weights


def interval(
    measure: Valued,
    rows: Float[Tensor, "rows *extra k"],
    weights: Float[Tensor, "resample rows"],
    level: float = 0.95,
) -> Interval:
    """The values of all rows, and the interval that holds this share of the resampled values.

    Further axes of the rows, such as lead times, are kept.
    """
    value = measure.values(rows.sum(0))
    low, high = holding(value, *ends(resampled_values(measure, rows, weights), level))
    return Interval(value, low, high)


def resampled_values(
    measure: Valued, rows: Float[Tensor, "rows *extra k"], weights: Float[Tensor, "resample rows"]
) -> Float[Tensor, "resample *extra entry"]:
    """The values of every resample."""
    return measure.values((weights.to(rows) @ rows.flatten(1)).unflatten(1, rows.shape[1:]))


def ends(values: Float[Tensor, "resample *extra entry"], level: float) -> tuple[Tensor, Tensor]:
    """The outer resamples of the level; NaN where too many of them have no value."""
    tail = (1 - level) / 2
    # Resamples themselves, not points between two of them: a value may be infinite.
    low = values.nanquantile(tail, dim=0, interpolation="lower")
    high = values.nanquantile(1 - tail, dim=0, interpolation="higher")
    silent = values.isnan().double().mean(0) > MOST_SILENT
    return low.masked_fill(silent, math.nan), high.masked_fill(silent, math.nan)


def holding(value: Tensor, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """The ends where the value lies between them up to round-off; NaN where it does not."""
    # Where all rows are alike, sums over resamples differ from the value in the last digits.
    slack = ROUND_OFF * value.abs()
    outside = (value < low - slack) | (value > high + slack)
    return low.masked_fill(outside, math.nan), high.masked_fill(outside, math.nan)


def _counts(chosen: Int[Tensor, "resample n"], size: int) -> Float[Tensor, "resample size"]:
    ones = torch.ones(chosen.shape, dtype=torch.float64)
    return torch.zeros(len(chosen), size, dtype=torch.float64).scatter_add_(1, chosen, ones)
