"""Intervals of a measure's values by the bootstrap, and whether two models differ.

Rows of terms are drawn anew with replacement; every draw gives weights to the rows, and

    values(weights @ terms)

its values. The interval is that between the quantiles of the values over the draws (percentile
bootstrap; Efron and Tibshirani, "An introduction to the bootstrap", 1993). It knows nothing of the
spread over training runs: that takes several seeds.

What is drawn must be as good as independent:

- whole trajectories (``draw_trajectories``): rows of one trajectory move together;
- blocks of frames (``draw_blocks``) where there are few recordings, longer than the correlation
  time. A block may begin at any frame and goes on at the beginning when it meets the end of its
  recording (circular blocks; Politis and Romano, 1992), so every frame is drawn as often as any
  other and the mean of the draws is the value itself. The one seam this makes is no worse than
  those between blocks. Recordings are taken as given: the interval is about other times of the same
  recordings, not about other recordings.

Percentile intervals of few trajectories are too narrow: of ten independent ones, an interval of
95 % holds the truth in about 90 % of all cases. Below ten nothing is given. Nor is there one where
the value itself lies outside (``holding``): a distance near its floor of zero, such as the spectral
error of persistence, is larger in nearly every draw than over all frames.

Two models are compared on the same draws (``difference``): what is hard for both cancels.
"""

import math
from typing import NamedTuple, Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

LEAST = 10
"""Trajectories or blocks below which no interval is given."""
MOST_SILENT = 0.1
"""Share of draws without a value above which there is no interval."""
ROUND_OFF = 1e-12
"""By how much of itself a value may lie outside its interval."""


class TooFew(ValueError):
    """There is too little independent data for an interval; the value itself stands."""


@runtime_checkable
class Valued(Protocol):
    """The part of a measure that intervals need."""

    def values(self, sums: Float[Tensor, "*draws k"]) -> Float[Tensor, "*draws entry"]:
        """The numbers that sums of terms give."""
        ...


class Interval(NamedTuple):
    """A value for every entry, and the ends of its interval."""

    value: Float[Tensor, "*extra entry"]
    low: Float[Tensor, "*extra entry"]
    high: Float[Tensor, "*extra entry"]


class Difference(NamedTuple):
    """How much larger the values of one model are than those of another."""

    value: Float[Tensor, "*extra entry"]
    low: Float[Tensor, "*extra entry"]
    high: Float[Tensor, "*extra entry"]
    significant: Bool[Tensor, "*extra entry"]
    """Whether the interval leaves out zero."""


def draw_trajectories(
    groups: Int[Tensor, " rows"], *, draws: int = 1000, seed: int
) -> Float[Tensor, "draws rows"]:
    """How often each row occurs when as many trajectories as there are are drawn anew.

    Args:
        groups: The trajectory of every row, by any number.
        draws: How many times to draw.
        seed: Of the draws; models that are to be compared need the same one.

    Raises:
        TooFew: With fewer than ten trajectories.
    """
    names, place = groups.cpu().unique(return_inverse=True)
    if len(names) < LEAST:
        raise TooFew(
            f"expected at least {LEAST} trajectories for an interval, found {len(names)}; draw "
            "blocks of frames where recordings are long, or give the value without an interval"
        )
    drawn = torch.randint(len(names), (draws, len(names)), generator=_generator(seed, draws))
    return _counts(drawn, len(names))[:, place]


def draw_blocks(
    groups: Int[Tensor, " rows"], *, block: int, draws: int = 1000, seed: int
) -> Float[Tensor, "draws rows"]:
    """How often each row occurs when blocks of frames are drawn anew within every recording.

    Args:
        groups: The recording of every row; rows of one are in the order of time, without a gap.
        block: Frames of a block: longer than the correlation time.
        draws: How many times to draw.
        seed: Of the draws.

    Raises:
        TooFew: With fewer than ten whole blocks in all recordings together.
    """
    if block < 1:
        raise ValueError(f"expected blocks of at least 1 frame, found {block}")
    groups, generator = groups.cpu(), _generator(seed, draws)
    places = [(groups == name).nonzero()[:, 0] for name in groups.unique()]
    whole = sum(len(place) // block for place in places)
    if whole < LEAST:
        raise TooFew(
            f"expected at least {LEAST} blocks of {block} frames for an interval, found {whole} in "
            f"{len(groups)} frames; give the value without an interval"
        )
    weights = torch.zeros(draws, len(groups), dtype=torch.float64)
    for place in places:
        size = len(place)
        starts = torch.randint(size, (draws, math.ceil(size / block)), generator=generator)
        frames = (starts[:, :, None] + torch.arange(block)) % size
        # The last block is cut short: every draw has as many frames as the recording.
        weights[:, place] = _counts(frames.flatten(1)[:, :size], size)
    return weights


def interval(
    measure: Valued,
    rows: Float[Tensor, "rows *extra k"],
    weights: Float[Tensor, "draws rows"],
    level: float = 0.95,
) -> Interval:
    """The values of all rows, and the interval that holds this share of the draws' values.

    Args:
        measure: Makes values of sums.
        rows: Its terms; with more axes (such as lead times), values are of each place in them.
        weights: Of ``draw_trajectories`` or ``draw_blocks``.
        level: Share of the draws within the interval.
    """
    value = measure.values(rows.sum(0))
    low, high = holding(value, *ends(drawn_values(measure, rows, weights), level))
    return Interval(value, low, high)


def difference(
    measure: Valued,
    rows: Float[Tensor, "rows *extra k"],
    others: Float[Tensor, "rows *extra k"],
    weights: Float[Tensor, "draws rows"],
    level: float = 0.95,
) -> Difference:
    """The values of one model less those of another, over the same frames and draws.

    Args:
        measure: Makes values of sums.
        rows: Terms of the one model.
        others: Terms of the other, of the same frames in the same order.
        weights: Of ``draw_trajectories`` or ``draw_blocks``.
        level: Share of the draws within the interval.
    """
    if rows.shape != others.shape:
        raise ValueError(
            f"expected terms of the same frames for both models, found {tuple(rows.shape)} and "
            f"{tuple(others.shape)}"
        )
    value = measure.values(rows.sum(0)) - measure.values(others.sum(0))
    drawn = drawn_values(measure, rows, weights) - drawn_values(measure, others, weights)
    low, high = ends(drawn, level)
    return Difference(value, low, high, (low > 0) | (high < 0))


def drawn_values(
    measure: Valued, rows: Float[Tensor, "rows *extra k"], weights: Float[Tensor, "draws rows"]
) -> Float[Tensor, "draws *extra entry"]:
    """The values of every draw."""
    if weights.shape[1] != len(rows):
        raise ValueError(f"expected weights of {len(rows)} rows, found {weights.shape[1]}")
    return measure.values((weights.to(rows) @ rows.flatten(1)).unflatten(1, rows.shape[1:]))


def ends(values: Float[Tensor, "draws *extra entry"], level: float) -> tuple[Tensor, Tensor]:
    """The outer draws of the level; NaN where too many of the draws have no value."""
    if not 0 < level < 1:
        raise ValueError(f"expected a level between 0 and 1, found {level}")
    tail = (1 - level) / 2
    # Draws themselves, not points between two of them: a value may be infinite.
    low = values.nanquantile(tail, dim=0, interpolation="lower")
    high = values.nanquantile(1 - tail, dim=0, interpolation="higher")
    silent = values.isnan().double().mean(0) > MOST_SILENT
    return low.masked_fill(silent, math.nan), high.masked_fill(silent, math.nan)


def holding(value: Tensor, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """The ends where they hold the value up to round-off; NaN where they do not."""
    # Where all rows are alike, sums over draws and over all rows differ in their last digits alone.
    slack = ROUND_OFF * value.abs()
    outside = (value < low - slack) | (value > high + slack)
    return low.masked_fill(outside, math.nan), high.masked_fill(outside, math.nan)


def _counts(drawn: Int[Tensor, "draws n"], size: int) -> Float[Tensor, "draws size"]:
    ones = torch.ones(drawn.shape, dtype=torch.float64)
    return torch.zeros(len(drawn), size, dtype=torch.float64).scatter_add_(1, drawn, ones)


def _generator(seed: int, draws: int) -> torch.Generator:
    if draws < 1:
        raise ValueError(f"expected at least 1 draw, found {draws}")
    return torch.Generator().manual_seed(seed)
