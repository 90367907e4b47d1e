"""Errors point by point: of every channel, of the speed, and of all channels together.

With y the true and p the predicted values at all known points of all frames, pooled:

    nmse    = sum (p - y)^2 / sum y^2
    rel_l2  = sqrt(nmse)
    rmse    = sqrt(mean (p - y)^2)
    mae     = mean |p - y|, which is also what the paper calls lmae
    lpcc    = Pearson's correlation of p and y
    r2      = 1 - sum (p - y)^2 / sum (y - mean y)^2
    skill   = 1 - sum (p - y)^2 / sum (last - y)^2

``last`` is the newest frame that the model saw: a skill of 0 is persistence, 1 is perfect. (Where
that frame was unknown, persistence repeats the value that the model saw there.) These are the
paper's definitions without its epsilons; undefined values are NaN. Correlation and r2 need sums
about the mean, which is not known before the last frame: they are taken about a fixed shift near
it, the training mean, and do not cancel. ``|u|`` is the norm of u and v in the units of the frames:
of standardised frames, that of the standardised components.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from pibert.evaluation.measure import (
    ALL,
    SPEED,
    Entry,
    Frames,
    Measure,
    channel_scales,
    common_unit,
    known_values,
    ratio,
    velocity_unit,
    with_speed,
)
from pibert.fields import Normalizer

LEAST_SPREAD = 1e-12
"""A variance below this share of the mean square about the shift is rounding: there is none."""
_TERMS, _ERROR = 10, 7
"""Sums of a component, and which of them is that of squared errors."""
_WITH_UNIT = ("rmse", "mae", "lmae")
_HIGHER = ("lpcc", "r2", "skill")
_METRICS = ("nmse", "rel_l2", *_WITH_UNIT, *_HIGHER)


@dataclass(frozen=True, kw_only=True)
class Pointwise(Measure):
    """Pooled errors and correlations."""

    normalizer: Normalizer
    """Of the frames' units: its means are the shifts, its stds what ``all`` divides channels by
    where their units differ."""
    name: ClassVar[str] = "pointwise"

    def __post_init__(self) -> None:
        channel_scales(self.spec, self.normalizer)  # checks that both fit

    @property
    def entries(self) -> tuple[Entry, ...]:
        return tuple(
            Entry(
                metric=metric,
                component=component,
                unit=unit if metric in _WITH_UNIT else "1",
                better="higher" if metric in _HIGHER else "lower",
            )
            for metric in _METRICS
            for component, unit in self._components
        )

    @property
    def _components(self) -> tuple[tuple[str, str], ...]:
        """Names and units, in the order of the terms."""
        named = list(zip(self.spec.channels, self.spec.units, strict=True))
        if self.spec.velocity is not None:
            named.append((SPEED, velocity_unit(self.spec)))
        return (*named, (ALL, common_unit(self.spec)))

    def terms(self, frames: Frames) -> Float[Tensor, "rows k"]:
        fields = [frames.truth, frames.prediction, frames.last]
        fields = [with_speed(known_values(f, frames.known), self.spec) for f in fields]
        channels = len(self.spec.of_fields.channels)
        shifts = list(self.normalizer.mean)
        if self.spec.velocity is not None:
            u, v = (shifts[channel] for channel in self.spec.velocity)
            shifts.append((u * u + v * v) ** 0.5)
        sums = [
            _sums([f[:, i : i + 1] for f in fields], frames.known, shift)
            for i, shift in enumerate(shifts)
        ]
        scales = channel_scales(self.spec, self.normalizer)[:channels]
        pooled = [torch.stack([f[:, i] / s for i, s in enumerate(scales)], 1) for f in fields]
        means = self.normalizer.mean[:channels]
        centre = sum(m / s for m, s in zip(means, scales, strict=True)) / channels
        sums.append(_sums(pooled, frames.known, centre))
        return torch.cat(sums, dim=1)

    def squared_error(self, sums: Float[Tensor, "*batch k"]) -> Float[Tensor, "*batch"]:
        """Sum of the squared errors of all channels together, as ``all`` counts them."""
        return sums.unflatten(-1, (len(self._components), _TERMS))[..., -1, _ERROR]

    def values(self, sums: Float[Tensor, "*batch k"]) -> Float[Tensor, "*batch entry"]:
        terms = sums.unflatten(-1, (len(self._components), _TERMS)).unbind(-1)
        count, truth, answer, truth2, answer2, product, energy, error2, error, persisted = terms
        truth_spread = _spread(truth2, truth, count)
        together = product - truth * answer / count
        spreads = truth_spread.sqrt() * _spread(answer2, answer, count).sqrt()
        nmse, mae = ratio(error2, energy), ratio(error, count)
        values = {
            "nmse": nmse,
            "rel_l2": nmse.sqrt(),
            "rmse": ratio(error2, count).sqrt(),
            "mae": mae,
            "lmae": mae,
            "lpcc": ratio(together, spreads).clamp(-1.0, 1.0),
            "r2": 1 - ratio(error2, truth_spread),
            "skill": 1 - ratio(error2, persisted),
        }
        return torch.stack([values[metric] for metric in _METRICS], dim=-2).flatten(-2)


def _sums(fields: list[Tensor], known: Bool[Tensor, "t y x"], shift: float) -> Float[Tensor, "t k"]:
    """Ten sums of each frame over the known points and the channels given, taken as one."""
    truth, answer, last = fields
    count = known.sum((1, 2)).double() * truth.shape[1]
    a, b = (torch.where(known[:, None], f - shift, 0.0) for f in (truth, answer))
    error = answer - truth
    products = (a, b, a * a, b * b, a * b, truth * truth, error * error, error.abs())
    persisted = (last - truth).square()
    return torch.stack([count, *(f.sum((1, 2, 3)) for f in (*products, persisted))], dim=1)


def _spread(squares: Tensor, total: Tensor, count: Tensor) -> Tensor:
    """Sum of squares about the mean; zero where it is only rounding."""
    spread = squares - total.square() / count
    return torch.where(spread > LEAST_SPREAD * squares, spread, 0.0)


def frame_errors(frames: Frames, normalizer: Normalizer) -> Float[Tensor, " t"]:
    """Relative L2 error of each frame over all channels and known points; NaN without energy.

    Win rates are counted from it, and frames for figures are selected by it.
    """
    scales = torch.tensor(channel_scales(frames.spec, normalizer), dtype=torch.float64)
    scales = scales.to(frames.truth.device)[:, None, None]
    truth = known_values(frames.truth, frames.known)
    error = known_values(frames.prediction, frames.known) - truth
    squares, energy = ((f / scales).square().sum((1, 2, 3)) for f in (error, truth))
    return ratio(squares, energy).sqrt()
