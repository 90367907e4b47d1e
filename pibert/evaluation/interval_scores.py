"""Prediction intervals of calibrated rollouts against the truth, lead time by lead time.

    coverage   share of the true values inside the interval of the nominal level
    crps       continuous ranked probability score of the predictive distribution that the intervals
               of all levels describe: with h(l) the half-width of level l, and e the error of the
               centre, mean of the integral from 0 to 1 of (1 - l) h(l) + max(0, |e| - h(l)) dl, by
               the trapezoidal rule; the integrand is |e| at level 0 and is taken as 0 at level 1

In physical units, over known points. From where a rollout is not finite on, no value is covered and
the score is infinite.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from pibert.data.dataset import Samples
from pibert.evaluation.measure import ALL, Entry, common_unit, ratio
from pibert.evaluation.rollouts import Start, read_frames, rollout_input
from pibert.fields import FieldSpec
from pibert.inference.calibrated import CalibratedPredictor
from pibert.notes import collecting

LEVELS = tuple(n / 10 for n in range(1, 10))
"""Of the intervals that describe a distribution, as far as a calibration has them."""


@dataclass(frozen=True, kw_only=True)
class IntervalLeads:
    """The values of one lead time; terms of a channel: values, those covered, sum of the score."""

    spec: FieldSpec

    @property
    def entries(self) -> tuple[Entry, ...]:
        pairs = zip(self.spec.channels, self.spec.units, strict=True)
        return (
            *(Entry(metric="coverage", component=c, better="none") for c in self.spec.channels),
            Entry(metric="coverage", component=ALL, better="none"),
            *(Entry(metric="crps", component=c, unit=unit) for c, unit in pairs),
            Entry(metric="crps", component=ALL, unit=common_unit(self.spec)),
        )

    def values(self, sums: Float[Tensor, "*batch k"]) -> Float[Tensor, "*batch entry"]:
        """See the module; NaN without known points, and for fields of several units together."""
        count, inside, score = sums.unflatten(-1, (-1, 3)).unbind(-1)
        fields = self.spec.of_fields
        n, one_unit = len(fields.channels), len(set(fields.units)) == 1
        points, *totals = (sum_[..., :n].sum(-1, keepdim=True) for sum_ in (count, inside, score))
        whole, every = (ratio(total, points) for total in totals)
        every = every if one_unit else torch.full_like(every, math.nan)
        return torch.cat((ratio(inside, count), whole, ratio(score, count), every), dim=-1)


def score_intervals(
    calibrated: CalibratedPredictor, samples: Samples, numbers: Sequence[int]
) -> tuple[float, dict[str, Tensor]]:
    """Roll out with intervals from each start to the end of its window, and score every frame.

    The calibrated lead times cover the horizon of the samples. Returns the nominal level of the
    coverage, and ``terms`` (start, lead, k), ``trajectory`` and ``frame`` of each start.
    """
    found = calibrated.calibration
    levels = [level for level in LEVELS if level <= found.highest_level]
    if not levels:
        raise ValueError(
            f"expected a calibration with intervals of level {LEVELS[0]:g} or more, found at most "
            f"{found.highest_level:.2g}; calibrate with more flows"
        )
    quantiles = torch.stack([found.quantiles(level) for level in levels])  # (level, lead, c)
    starts = [samples.locate(number) for number in numbers]
    with collecting():
        rows = [_terms(calibrated, samples, start, levels, quantiles) for start in starts]
    return levels[-1], {
        "terms": torch.stack(rows),
        "trajectory": torch.tensor([index for index, _ in starts]),
        "frame": torch.tensor([frame for _, frame in starts]),
    }


def _terms(
    calibrated: CalibratedPredictor,
    samples: Samples,
    start: Start,
    levels: Sequence[float],
    quantiles: Float[Tensor, "level lead c"],
) -> Float[Tensor, "lead k"]:
    history, steps = samples.window.history, samples.window.horizon
    truth, known = read_frames(samples, [start], history, steps, truth=True)
    centre, half = torch.full_like(truth[0], math.nan), torch.zeros_like(truth[0])
    fields, parameters, mask = rollout_input(calibrated.predictor, samples, [start])
    done = 0
    try:
        blocks = calibrated.iterate(fields, steps, parameters, mask, level=levels[-1])
        for block in blocks:
            assert block.intervals is not None
            part = slice(done, done + block.fields.shape[1])
            centre[part], high = block.fields[0], block.intervals.high[0]
            half[part] = high - block.fields[0]
            done = part.stop
    except FloatingPointError:
        pass  # the frames that are missing are scored as lost
    return interval_terms(centre, half, truth[0], known[0], levels, quantiles[:, :steps])


def interval_terms(
    centre: Float[Tensor, "t c y x"],
    half: Float[Tensor, "t c y x"],
    truth: Float[Tensor, "t c y x"],
    known: Bool[Tensor, "t y x"],
    levels: Sequence[float],
    quantiles: Float[Tensor, "level t c"],
) -> Float[Tensor, "t k"]:
    """The terms of every frame.

    Args:
        centre: The prediction; NaN where a rollout is not finite.
        half: Half-widths of the intervals of the highest level.
        truth: The true frames.
        known: Where they are known.
        levels: Of the intervals, rising.
        quantiles: Half-widths of every level, up to a common factor.
    """
    error = (centre.double() - truth.double()).abs()
    # Intervals of no width, of a model without error in the calibration, are a point.
    shares = (quantiles / quantiles[-1]).nan_to_num(nan=1.0).to(error)[..., None, None]
    parts, nodes = [error], torch.tensor([0.0, *levels, 1.0]).to(error)
    for level, share in zip(levels, shares, strict=True):
        width = share * half.double()
        parts.append((1 - level) * width + (error - width).clamp(min=0))
    score = torch.trapezoid(torch.stack([*parts, torch.zeros_like(error)]), nodes, dim=0)
    scored = known[:, None] & half.isfinite()
    lost = error.isnan()
    terms = (
        scored.double(),
        (scored & (error <= half)).double(),
        torch.where(scored, torch.where(lost, math.inf, score), 0.0),
    )
    return torch.stack([term.sum((-2, -1)) for term in terms], dim=-1).flatten(1).cpu()
