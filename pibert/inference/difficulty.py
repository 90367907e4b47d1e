"""Expected error at every point: the map that the width of a prediction interval follows.

A difficulty gives a scale for every predicted value; scores are errors over scales, and intervals
are quantiles of scores times scales. Calibration corrects it on average. The better it is, the
narrower the intervals are where the prediction is easy.

    constant    one scale for every channel and lead time
    residual    tabulated from past errors by one of: the point of the grid (``position``); the
                slope of the predicted field; its change since the frame before; its residual in
                the equations. ``relative`` ones tabulate shares of the deviation of the predicted
                field, for flows of different speeds. Errors on other trajectories select one
    ensemble    the spread of an ensemble's members

Scales are in the unit of their channel: a change of units changes intervals as it changes fields.
"""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from pibert.fields import FieldSpec, with_uniform_state
from pibert.fields.equations import has_equations, residual_sizes
from pibert.inference.windows import Forecast
from pibert.physics import derivatives

Kind = Literal["constant", "residual", "ensemble"]
KINDS: tuple[str, ...] = get_args(Kind)
RELATIVE = "relative "
GUIDES = (
    "position",
    "slope",
    "change",
    "equations",
    *(RELATIVE + name for name in ("position", "slope", "change")),
)
"""What a tabulated scale may depend on."""
BINS = 16
FLOOR = 0.1
"""Least scale, over the mean one of its channel and lead time: no interval shrinks to nothing."""


@dataclass(frozen=True, eq=False)
class Difficulty:
    """Scales of errors by channel and lead time."""

    guide: str
    """``constant``, ``ensemble``, or one of ``GUIDES``."""
    values: Float[Tensor, "lead c *more"]
    """A scale per point (position) or bin (the last one for points without a guide); else one."""
    edges: Float[Tensor, "lead c edge"]
    """Between the bins; empty where there are none."""
    sizes: Float[Tensor, "lead c"] | None = None
    """Mean deviation of the predicted fields, of relative guides: none counts as much smaller."""

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
        values, edges = self.values[leads].to(frames), self.edges[leads].to(frames)
        if self.guide.startswith(RELATIVE):
            assert self.sizes is not None
            of_sizes = replace(self, guide=self.guide.removeprefix(RELATIVE))
            sizes = _not_tiny(field_sizes(forecast, spec), self.sizes[leads])
            return sizes * of_sizes.scales(_in_sizes(forecast, sizes), spec, first_lead)
        if self.guide == "position":
            return values.expand(frames.shape)
        if self.guide == "constant":
            return values[..., None, None].expand(frames.shape)
        if self.guide == "ensemble":
            if forecast.spread is None:
                raise ValueError("expected an ensemble, whose spread gives the scale")
            return forecast.spread + values[..., None, None]
        guide = guide_map(self.guide, forecast, spec)
        return _look_up(guide, edges, values)


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


def _in_sizes(forecast: Forecast, sizes: Float[Tensor, "b t c 1 1"]) -> Forecast:
    """A forecast in units of the size of each of its fields."""
    return replace(
        forecast,
        prediction=forecast.prediction / sizes,
        before=forecast.before / sizes,
        truth=None if forecast.truth is None else forecast.truth / sizes,
    )


def guide_map(name: str, forecast: Forecast, spec: FieldSpec) -> Float[Tensor, "b t c y x"]:
    """What a tabulated scale depends on; NaN where it is not defined."""
    frames, before = forecast.prediction, forecast.before
    if name == "change":
        return (frames - before).abs()
    if name == "slope":
        # Stencils across the edge of what is known would show the edge.
        hidden = torch.where(forecast.visible, frames, torch.nan)
        return torch.hypot(*derivatives.gradient(hidden, spec.grid))
    if name == "equations":
        pairs = torch.stack((before, frames), dim=2).flatten(0, 1)  # (b t, 2, c, y, x)
        steps = frames.shape[1]
        maps = residual_sizes(
            pairs,
            spec,
            forecast.parameters.repeat_interleave(steps, 0),
            forecast.seen.repeat_interleave(steps, 0),
        )
        # The last term is the transport equation; the first may hold at every instant.
        last = list(maps.values())[-1].to(frames)
        return last.unflatten(0, (-1, steps))[:, :, None].expand(frames.shape)
    raise ValueError(f"unknown guide {name!r}; choose from: {', '.join(GUIDES)}")


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
    guides = [name for name in GUIDES if name != "equations" or has_equations(spec)]
    halves = forecasts[::2], forecasts[1::2] or forecasts[::2]
    losses = {}
    for guide in guides:
        table = [tabulate(guide, half, spec) for half in halves]
        losses[guide] = (_loss(table[0], halves[1], spec) + _loss(table[1], halves[0], spec)) / 2
    return tabulate(min(losses, key=losses.__getitem__), forecasts, spec), losses


def tabulate(guide: str, forecasts: Sequence[Forecast], spec: FieldSpec) -> Difficulty:
    """Mean absolute errors by what they depend on, for every channel and lead time."""
    if guide.startswith(RELATIVE):
        usual = torch.cat([field_sizes(each, spec) for each in forecasts]).mean((0, 3, 4))
        scaled = [_in_sizes(each, _not_tiny(field_sizes(each, spec), usual)) for each in forecasts]
        table = tabulate(guide.removeprefix(RELATIVE), scaled, spec)
        return replace(table, guide=guide, sizes=usual)
    errors = torch.cat([forecast.errors() for forecast in forecasts])  # NaN where not known
    mean = errors.nanmean((0, 3, 4)).nan_to_num(0.0)  # (lead, c)
    mean = mean.clamp(min=1e-12 * float(errors.nan_to_num(0.0).max()) + 1e-30)
    floor = FLOOR * mean
    no_edges = mean.new_zeros(*mean.shape, 0)
    if guide in ("constant", "ensemble"):
        return Difficulty(guide, mean if guide == "constant" else floor, no_edges)
    if guide == "position":
        maps = errors.nanmean(0)
        maps = torch.where(maps.isnan(), mean[..., None, None], maps)
        return Difficulty(guide, maps.maximum(floor[..., None, None]), no_edges)
    guides = torch.cat([guide_map(guide, forecast, spec) for forecast in forecasts])
    edges = torch.zeros(*mean.shape, BINS - 1)
    values = torch.zeros(*mean.shape, BINS + 1)
    for lead, c in itertools.product(*map(range, mean.shape)):
        error, key = errors[:, lead, c].flatten(), guides[:, lead, c].flatten()
        error, key = error[~error.isnan()], key[~error.isnan()]
        if len(defined := key[~key.isnan()]):  # bins of equal count
            ranks = torch.arange(1, BINS) * len(defined) // BINS
            edges[lead, c] = defined.sort().values[ranks]
        bins = _bins(key, edges[lead, c])
        total = torch.bincount(bins, error.double(), BINS + 1)
        number = torch.bincount(bins, minlength=BINS + 1)
        inside = torch.where(number > 0, total / number.clamp(min=1), mean[lead, c].double())
        values[lead, c] = inside.float().maximum(floor[lead, c])
    return Difficulty(guide, values, edges)


def _bins(keys: Tensor, edges: Tensor) -> Tensor:
    """The bin of each key; NaN has the last one."""
    bins = torch.bucketize(keys.contiguous(), edges)
    return torch.where(keys.isnan(), BINS, bins)


def _look_up(guide: Tensor, edges: Tensor, values: Tensor) -> Float[Tensor, "b t c y x"]:
    scales = torch.empty_like(guide)
    for lead, c in itertools.product(range(guide.shape[1]), range(guide.shape[2])):
        bins = _bins(guide[:, lead, c], edges[lead, c].contiguous())
        scales[:, lead, c] = values[lead, c][bins]
    return scales


def _loss(difficulty: Difficulty, forecasts: Sequence[Forecast], spec: FieldSpec) -> float:
    """Mean of log scale + error over scale, each channel in its own mean error."""
    losses = []
    for forecast in forecasts:
        errors, scales = forecast.errors(), difficulty.scales(forecast, spec)
        unit = errors.nanmean((0, 3, 4), keepdim=True).clamp(min=1e-30)
        losses.append((torch.log(scales / unit) + errors / scales).nanmean())
    return float(torch.stack(losses).mean())
