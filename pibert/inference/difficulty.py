"""Expected error at every point: the map that the width of a prediction interval follows.

A difficulty gives a scale for every predicted value; scores are errors over scales, and intervals
are quantiles of scores times scales. Calibration corrects it on average. The better it is, the
narrower the intervals are where the prediction is easy.

    constant    one scale for every channel and lead time
    residual    past errors at the point of the grid (``position``), or their shares of the
                deviation of the predicted field (``relative position``), for flows of different
                speeds. Errors on other trajectories select one
    ensemble    the spread of an ensemble's members

Scales are in the unit of their channel: a change of units changes intervals as it changes fields.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from pibert.fields import FieldSpec, with_uniform_state
from pibert.inference.windows import Forecast

Kind = Literal["constant", "residual", "ensemble"]
KINDS: tuple[str, ...] = get_args(Kind)
RELATIVE = "relative position"
GUIDES = ("position", RELATIVE)
"""What a tabulated scale may depend on."""
FLOOR = 0.1
"""Least scale, over the mean one of its channel and lead time: no interval shrinks to nothing."""


@dataclass(frozen=True, eq=False)
class Difficulty:
    """Scales of errors by channel and lead time."""

    guide: str
    """``constant``, ``ensemble``, or one of ``GUIDES``."""
    values: Float[Tensor, "lead c *more"]
    """A scale per point (position), else one."""
    sizes: Float[Tensor, "lead c"] | None = None
    """Mean deviation of the predicted fields, of ``RELATIVE``: none counts as much smaller."""

    def scales(
        self, forecast: Forecast, spec: FieldSpec, first_lead: int = 0
    ) -> Float[Tensor, "b t c y x"]:
        """The scale of every predicted value; lead times beyond the last one use its scale.

        The state of a structure has the mean scale of all points.
        """
        return with_uniform_state(self._scales(forecast, spec, first_lead), len(spec.state), None)

    def _scales(
        self, forecast: Forecast, spec: FieldSpec, first_lead: int
    ) -> Float[Tensor, "b t c y x"]:
        frames = forecast.prediction
        leads = torch.arange(frames.shape[1]) + first_lead
        leads = leads.clamp(max=len(self.values) - 1)
        values = self.values[leads].to(frames)
        if self.guide == "constant":
            return values[..., None, None].expand(frames.shape)
        if self.guide == "ensemble":
            if forecast.spread is None:
                raise ValueError("expected an ensemble, whose spread gives the scale")
            return forecast.spread + values[..., None, None]
        if self.sizes is None:
            return values.expand(frames.shape)
        return values * _not_tiny(field_sizes(forecast, spec), self.sizes[leads])


def field_sizes(forecast: Forecast, spec: FieldSpec) -> Float[Tensor, "b t c 1 1"]:
    """The deviation of every predicted field over the points that were seen; 1 for the state."""
    weights = forecast.visible.to(forecast.prediction)
    count = weights.sum((3, 4), keepdim=True).clamp(min=1)
    frames = torch.where(weights > 0, forecast.prediction, 0.0)
    mean = frames.sum((3, 4), keepdim=True) / count
    square = (weights * (frames - mean).square()).sum((3, 4), keepdim=True) / count
    sizes = square.sqrt()
    if spec.state:
        sizes[:, :, -len(spec.state) :] = 1.0
    return sizes


def _not_tiny(
    sizes: Float[Tensor, "b t c 1 1"], usual: Float[Tensor, "t c"]
) -> Float[Tensor, "b t c 1 1"]:
    """Sizes that are at least a share of the usual ones: a uniform field has intervals too."""
    return sizes.maximum((FLOOR * usual + 1e-30).to(sizes)[..., None, None])


def fit_difficulty(
    kind: str, forecasts: Sequence[Forecast], spec: FieldSpec
) -> tuple[Difficulty, Mapping[str, float]]:
    """The difficulty of a kind, from forecasts that are not calibrated on.

    Args:
        kind: One of ``KINDS``.
        forecasts: Of one trajectory each, or of stretches of a single one.
        spec: Of their fields.

    Returns:
        The difficulty, and for ``residual`` how well each guide predicted the errors of forecasts
        that it was not tabulated from (mean of log scale + error over scale; the least is best).
    """
    if kind == "constant":
        return tabulate("constant", forecasts, spec), {}
    if kind == "ensemble":
        if any(forecast.spread is None for forecast in forecasts):
            raise ValueError(
                "difficulty 'ensemble' needs an ensemble, found a single model; name runs of the "
                "same experiment with other seeds: --member RUN"
            )
        return tabulate("ensemble", forecasts, spec), {}
    if kind != "residual":
        raise ValueError(f"unknown difficulty {kind!r}; choose from: {', '.join(KINDS)}")
    halves = forecasts[::2], forecasts[1::2] or forecasts[::2]
    losses = {}
    for guide in GUIDES:
        table = [tabulate(guide, half, spec) for half in halves]
        losses[guide] = (_loss(table[0], halves[1], spec) + _loss(table[1], halves[0], spec)) / 2
    return tabulate(min(losses, key=losses.__getitem__), forecasts, spec), losses


def tabulate(guide: str, forecasts: Sequence[Forecast], spec: FieldSpec) -> Difficulty:
    """Mean absolute errors by what they depend on, for every channel and lead time."""
    errors = torch.cat([forecast.errors() for forecast in forecasts])  # NaN where not known
    usual = None
    if guide == RELATIVE:
        sizes = torch.cat([field_sizes(forecast, spec) for forecast in forecasts])
        usual = sizes.mean((0, 3, 4))
        errors = errors / _not_tiny(sizes, usual)
    mean = errors.nanmean((0, 3, 4)).nan_to_num(0.0)  # (lead, c)
    mean = mean.clamp(min=1e-12 * float(errors.nan_to_num(0.0).max()) + 1e-30)
    floor = FLOOR * mean
    if guide in ("constant", "ensemble"):
        return Difficulty(guide, mean if guide == "constant" else floor)
    maps = errors.nanmean(0)
    maps = torch.where(maps.isnan(), mean[..., None, None], maps)
    return Difficulty(guide, maps.maximum(floor[..., None, None]), usual)


def _loss(difficulty: Difficulty, forecasts: Sequence[Forecast], spec: FieldSpec) -> float:
    """Mean of log scale + error over scale, each channel in its own mean error."""
    losses = []
    for forecast in forecasts:
        errors, scales = forecast.errors(), difficulty.scales(forecast, spec)
        unit = errors.nanmean((0, 3, 4), keepdim=True).clamp(min=1e-30)
        losses.append((torch.log(scales / unit) + errors / scales).nanmean())
    return float(torch.stack(losses).mean())
