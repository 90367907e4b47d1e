"""Ensembles of a model that samples: accuracy of a member, and reliability of the spread.

With y the truth, x_1 ... x_K the members and m their mean, over all known points of some frames:

    draw_nmse        = mean over k of  sum (x_k - y)^2 / sum y^2      of a single member
    draws_mean_nmse  = sum (m - y)^2 / sum y^2                        of the ensemble mean
    draws_spread     = sqrt( mean s^2 ),   s^2 = sum_k (x_k - m)^2 / (K - 1)
    spread_skill     = sqrt( (K + 1) / K ) draws_spread / sqrt( mean (m - y)^2 )
    crps             = mean of  1/K sum_k |x_k - y| - 1/(2 K (K - 1)) sum_jk |x_j - x_k|

A spread-skill ratio of 1 is that of a reliable ensemble; below 1 it is overconfident. This CRPS is
fair: its expectation does not depend on K. That of a single prediction is its mean absolute error.

All are in physical units, of every channel, and of all channels as one (those of different units
each in units of its standard deviation in the training set).

Reference: Fortin et al., "Why should ensemble spread match the RMSE of the ensemble mean?", J.
Hydrometeorol. 15 (2014); Ferro, "Fair scores for ensemble forecasts", Q. J. R. Meteorol. Soc. 140
(2014).
"""

from collections.abc import Iterator
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from pibert.data.dataset import Samples
from pibert.evaluation.measure import ALL, Entry, channel_scales, common_unit, ratio
from pibert.evaluation.rollouts import spread_starts
from pibert.evaluation.scoring import seen_by
from pibert.fields import FieldSpec, Normalizer
from pibert.inference import Predictor
from pibert.inference.predictor import full_precision

FRAMES = 64
"""Test frames, evenly spread over all of them."""
MEMBERS = 8
_BATCH = 4
_WITH_UNIT = ("draws_spread", "crps")
METRICS = ("draw_nmse", "draws_mean_nmse", *_WITH_UNIT, "spread_skill")


@runtime_checkable
class Sampler(Protocol):
    """A model that samples its prediction, with the same first samples at every call."""

    def samples(
        self, x: Tensor, parameters: Tensor | None, mask: Tensor | None, draws: int | None
    ) -> Tensor: ...


def score_ensemble(
    predictor: Predictor, samples: Samples, *, frames: int = FRAMES, members: int = MEMBERS
) -> tuple[list[Entry], list[float]]:
    """Entries and values of the ensembles of a predictor whose model is a ``Sampler``.

    They are of the first predicted frame after evenly spread test windows of one frame ahead.
    """
    model = predictor.model
    assert isinstance(model, Sampler)
    total = sum(_terms_of_batches(predictor, model, samples, frames, members))
    values = values_of(torch.as_tensor(total), members)
    return entries_of(samples.spec), values.flatten().tolist()


def entries_of(spec: FieldSpec) -> list[Entry]:
    """The entries of the values of ``score_ensemble``, in order."""
    components = (*zip(spec.channels, spec.units, strict=True), (ALL, common_unit(spec)))
    return [
        Entry(
            metric=metric,
            component=component,
            unit=unit if metric in _WITH_UNIT else "1",
            better="none" if metric in ("draws_spread", "spread_skill") else "lower",
        )
        for metric in METRICS
        for component, unit in components
    ]


@torch.no_grad()
def _terms_of_batches(
    predictor: Predictor, model: Sampler, samples: Samples, frames: int, members: int
) -> Iterator[Tensor]:
    rows = spread_starts(samples, frames)
    channels = len(samples.spec.channels)
    for start in range(0, len(rows), _BATCH):
        windows = [seen_by(predictor, samples, [row]) for row in rows[start : start + _BATCH]]
        x, parameters, mask, truth, known = (torch.cat(part) for part in zip(*windows, strict=True))
        with full_precision(predictor.device):  # as every prediction
            ensemble = model.samples(x, parameters, mask, members)[:, :, :channels]
        ensemble, truth = (predictor.normalizer.invert(f.double()) for f in (ensemble, truth))
        yield terms_of(ensemble, truth, known, samples.spec, predictor.normalizer)


def terms_of(
    ensemble: Float[Tensor, "b m c y x"],
    truth: Float[Tensor, "b c y x"],
    known: Bool[Tensor, "b y x"],
    spec: FieldSpec,
    normalizer: Normalizer,
) -> Float[Tensor, "component 6"]:
    """Sums over the known points of every channel and of all: the input of ``values_of``.

    Points, energy of the truth, squared error of a member, of the mean, variance, CRPS.
    """
    ensemble, truth = ensemble.double(), truth.double()
    points = (
        torch.ones_like(truth),
        truth.square(),
        (ensemble - truth[:, None]).square().mean(1),
        (ensemble.mean(1) - truth).square(),
        ensemble.var(1),
        crps(ensemble, truth),
    )
    each = torch.where(known[:, None], torch.stack(points), 0.0).sum((1, 3, 4))
    scales = torch.tensor(channel_scales(spec, normalizer)).to(truth)
    powers = torch.tensor([0, 2, 2, 2, 2, 1], device=each.device)[:, None]
    counted = torch.where(scales.isfinite(), each / scales**powers, 0.0)
    pooled = counted.sum(1, keepdim=True)
    return torch.cat((each, pooled), dim=1).mT


def values_of(
    sums: Float[Tensor, "component 6"], members: int
) -> Float[Tensor, "metric component"]:
    """The numbers of ``METRICS``; NaN where undefined."""
    count, energy, single, mean, variance, ranked = sums.unbind(-1)
    spread = ratio(variance, count).sqrt()
    skill = ratio(mean, count).sqrt()
    values = {
        "draw_nmse": ratio(single, energy),
        "draws_mean_nmse": ratio(mean, energy),
        "draws_spread": spread,
        "spread_skill": (1 + 1 / members) ** 0.5 * ratio(spread, skill),
        "crps": ratio(ranked, count),
    }
    return torch.stack([values[metric] for metric in METRICS])


def crps(
    ensemble: Float[Tensor, "b m c y x"], truth: Float[Tensor, "b c y x"]
) -> Float[Tensor, "b c y x"]:
    """Continuous ranked probability score of two or more members at every point; fair."""
    count = ensemble.shape[1]
    error = (ensemble - truth[:, None]).abs().mean(1)
    # With sorted values x_1 <= ... <= x_K, the differences of all pairs add up to
    # sum_i (2 i - K - 1) x_i.
    weights = 2 * torch.arange(1, count + 1, device=ensemble.device) - count - 1
    pairs = torch.einsum("bm...,m->b...", ensemble.sort(dim=1).values, weights.to(ensemble))
    return error - pairs / (count * (count - 1))
