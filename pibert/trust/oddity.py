"""How unlike the training data a window is, part by part; the higher, the odder.

    fields          Mahalanobis distance of a few features of the standardised window and its
                    parameters from those of training windows
    extremes        the largest standardised value
    parameters      the largest standardised parameter, in size
    <term>          root mean square of a residual of the governing equations (logarithm), in
                    physical units; and ``<term> peak``, its largest value. The equations are those
                    that the data state, or else the model was told of (its option ``family``)
    consistency     minus the logit of the equation consistency head, where that was trained

Features of each channel: mean, logarithm of the deviation, 1 % and 99 % quantile, roughness along x
and y (logarithm of the mean square difference of neighbours), change since the frame before, and
the difference of the means of right and left, upper and lower half; the correlations of channels;
the logarithms of the residuals; the parameters. An unknown parameter counts as the mean one.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from pibert.fields import FieldSpec, Normalizer
from pibert.physics.sizes import residual_sizes, terms_of

RIDGE = 1e-2
"""Of the covariance, in units of each feature's variance: what varies together in training windows
may vary apart by so much."""
_TINY = 1e-12
_LEAST = 1e-6
"""Of a standardised field; below it, single precision is noise."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Looks:
    """A batch of windows as the parts see it."""

    fields: Float[Tensor, "b h c y x"]
    """In physical units; anything where not seen."""
    seen: Bool[Tensor, "b y x"]
    parameters: Float[Tensor, "b 16"]
    consistency: Float[Tensor, " b"] | None
    """Probability that a window obeys its equations; None: no such head was trained."""


@dataclass(frozen=True, eq=False)
class Typical:
    """Features of training windows: where they lie, and how to measure a distance from there."""

    mean: Float[Tensor, " k"]
    whitener: Float[Tensor, "k k"]
    """Features minus their mean times this have about unit covariance."""

    @classmethod
    def of(cls, features: Float[Tensor, "n k"]) -> "Typical":
        mean = features.mean(0)
        apart = features - mean
        covariance = apart.T @ apart / max(1, len(features) - 1)
        variance = covariance.diagonal()
        # A feature that never varies would make any change of it infinitely odd.
        least = (1e-4 * mean.abs()).square() + _LEAST**2
        covariance = covariance + torch.diag(RIDGE * variance + least)
        values, vectors = torch.linalg.eigh(covariance)
        return cls(mean, vectors / values.sqrt())

    def distance(self, features: Float[Tensor, "b k"]) -> Float[Tensor, " b"]:
        return torch.linalg.vector_norm((features - self.mean) @ self.whitener, dim=1)


def watched_spec(predictor: Any, names: Sequence[str] | None = None) -> FieldSpec:
    """The fields of a model, with the equations that it was told of where its data state none.

    Args:
        predictor: A ``Predictor`` or an ``Ensemble``.
        names: Parts of a calibration that is there; an older one may know of no equations.
    """
    spec = predictor.spec
    own = predictor.card.get("model", {}).get("config", {}).get("family")
    told = replace(spec, family=spec.family or own)
    return spec if names is not None and not set(terms_of(told)) <= set(names) else told


def part_names(spec: FieldSpec, *, consistency: bool) -> tuple[str, ...]:
    """The parts that a model's windows have."""
    terms = [name for term in terms_of(spec) for name in (term, f"{term} peak")]
    names = ["fields", "extremes", *(["parameters"] if spec.parameters else []), *terms]
    return (*names, "consistency") if consistency else tuple(names)


def rises_with_gaps(part: str) -> bool:
    """Whether a part may be larger where points are hidden: not if it is a largest value."""
    return part not in ("extremes", "parameters") and not part.endswith(" peak")


def part_scores(
    looks: Looks, spec: FieldSpec, normalizer: Normalizer, typical: Typical
) -> Float[Tensor, "b part"]:
    """The scores of ``part_names``, in that order."""
    z, seen = _standardised(looks, normalizer), looks.seen
    columns = [typical.distance(window_features(looks, spec, normalizer))]
    columns.append(z.abs().nan_to_num(0.0).flatten(1).amax(1))
    count = len(spec.parameters)
    if count:
        columns.append(looks.parameters[:, :count].double().abs().nan_to_num(0.0).amax(1))
    for level, peak in _equation_levels(looks, spec):
        columns += [level, peak]
    if looks.consistency is not None:
        sure = looks.consistency.double().clamp(1e-7, 1 - 1e-7)
        columns.append(-torch.logit(sure))
    assert bool(seen.flatten(1).any(1).all()), "windows without a known point were let through"
    return torch.stack(columns, dim=1)


def window_features(looks: Looks, spec: FieldSpec, normalizer: Normalizer) -> Float[Tensor, "b k"]:
    """A few numbers that say what a window looks like."""
    z = _standardised(looks, normalizer)  # (b, h, c, y, x), NaN where not seen
    now = z[:, -1]
    flat = now.flatten(2)
    mean = flat.nanmean(2)
    apart = flat - mean[..., None]
    deviation = apart.square().nanmean(2).sqrt()
    ends = torch.nanquantile(flat, torch.tensor([0.01, 0.99], dtype=flat.dtype), dim=2)
    ny, nx = now.shape[-2:]
    features = [
        mean,
        torch.log(deviation + _LEAST),
        *ends,
        _log_mean_square(now.diff(dim=-1)),
        _log_mean_square(now.diff(dim=-2)),
        _mean(now[..., nx // 2 :]) - _mean(now[..., : nx // 2]),
        _mean(now[..., ny // 2 :, :]) - _mean(now[..., : ny // 2, :]),
    ]
    if z.shape[1] > 1:
        features.append(_log_mean_square(now - z[:, -2]))
    for first in range(now.shape[1]):
        for second in range(first):
            product = (apart[:, first] * apart[:, second]).nanmean(1)
            size = (deviation[:, first] * deviation[:, second]).clamp(min=_LEAST)
            features.append((product / size)[:, None])
    features += [level[:, None] for level, _ in _equation_levels(looks, spec)]
    features.append(looks.parameters[:, : len(spec.parameters)].double())
    return torch.cat(features, dim=1).nan_to_num(0.0)


def _standardised(looks: Looks, normalizer: Normalizer) -> Float[Tensor, "b h c y x"]:
    z = normalizer.apply(looks.fields.double())
    return torch.where(looks.seen[:, None, None], z, torch.nan)


def _equation_levels(looks: Looks, spec: FieldSpec) -> list[tuple[Any, Any]]:
    """Logarithms of root mean square and largest value of every residual."""
    if not terms_of(spec):
        return []
    maps = residual_sizes(looks.fields, spec, looks.parameters, looks.seen)
    found = []
    for residual in maps.values():
        flat = residual.flatten(1)
        level = flat.square().nanmean(1).nan_to_num(0.0).sqrt()
        found.append((torch.log(level + _TINY), torch.log(flat.nan_to_num(0.0).amax(1) + _TINY)))
    return found


def _mean(values: Float[Tensor, "b c y x"]) -> Float[Tensor, "b c"]:
    return values.flatten(2).nanmean(2).nan_to_num(0.0)


def _log_mean_square(values: Float[Tensor, "b c y x"]) -> Float[Tensor, "b c"]:
    return torch.log(_mean(values.square()) + _LEAST**2)
