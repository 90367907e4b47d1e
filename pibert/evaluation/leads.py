"""Errors of rollouts at each lead time: terms that add up over starts, and their values.

At one lead time, over the known points of all starts, with q the prediction, y the truth, m and s^2
mean and variance in time of the truth at each point of its trajectory:

    nmse              sum (q - y)^2 / sum y^2
    fluctuation_nmse  sum (q - y)^2 / sum s^2: 1 is the error of the time mean
    skill             1 - sum (q - y)^2 / sum (last - y)^2, last being the newest frame at the start
    rmse              sqrt(mean (q - y)^2)
    correlation       sum (q - m)(y - m) / sqrt(sum (q - m)^2 sum (y - m)^2)
    spectral_drift    root mean square over wavenumbers of log10(P / T), P and T the radial spectra
                      (``evaluation/scales.py``) of all channels, summed over starts
    not_finite        share of the starts whose rollout is not finite any more

Such a rollout stays in all sums: from then on errors and drift are infinite, and it adds only its
truth to the correlation. ``all`` pools channels, in units of their standard deviation
where their units differ.
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from pibert.evaluation.divergence import limit_of, survived
from pibert.evaluation.measure import ALL, Entry, Frames, channel_scales, common_unit, ratio
from pibert.evaluation.scales import log_spectral_error, num_rings, radial_spectrum
from pibert.evaluation.temporal import correlation_time
from pibert.fields import FieldSpec, Normalizer, Trajectory

LEADS = (1, 2, 5, 10, 20, 40, 80)
"""Frames ahead at which results state the scores of rollouts."""

_MARKS = 3
"""Terms that are of no channel: starts, those whose frame is not finite, known points."""
_SUMS = 7
"""Terms of each channel: error, energy, error of persistence, fluctuations (prediction times truth,
prediction squared, truth squared), expected square of the fluctuations."""
_BLOCK = 256
"""Frames read at a time."""
_LATTICE = 8
"""Points along each axis at which the correlation time is measured."""

CORRELATED = 0.5
"""Correlation with the truth below which a rollout no longer follows it."""
STABLE = 0.5
"""Squared error over the variance of the truth above which a rollout is no longer useful."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Climate:
    """Statistics of a true trajectory over all its frames."""

    mean: Float[Tensor, "c y x"]
    variance: Float[Tensor, "c y x"]
    """Zero where a point was never measured, as the mean is."""
    memory: float | None
    """Correlation time of the fluctuations in frames, at points of a lattice."""
    limit: float
    """Distance to the mean beyond which a rollout has diverged, channels in their scales."""


def climate_of(trajectory: Trajectory, scales: tuple[float, ...]) -> Climate:
    """Mean, variance and memory; channels count for the memory in units of their scales."""
    ny, nx = trajectory.spec.grid.shape
    rows, columns = slice(0, ny, max(1, ny // _LATTICE)), slice(0, nx, max(1, nx // _LATTICE))
    total, squares = torch.zeros(2, len(scales), ny, nx, dtype=torch.float64)
    count = torch.zeros(ny, nx, dtype=torch.float64)
    watched, seen = [], []
    for start in range(0, trajectory.num_frames, _BLOCK):
        frames = slice(start, start + _BLOCK)
        known = trajectory.measured(frames).cpu()
        fields = torch.where(known[:, None], trajectory.read(frames).cpu().double(), 0.0)
        total, squares = total + fields.sum(0), squares + fields.square().sum(0)
        count = count + known.sum(0)
        watched.append(fields[:, :, rows, columns])
        seen.append(known[:, None, rows, columns])
    count = count.clamp(min=1)
    mean = total / count
    variance = (squares / count - mean.square()).clamp(min=0)
    # Unknown points do not fluctuate.
    deviations = torch.where(torch.cat(seen), torch.cat(watched) - mean[:, rows, columns], 0.0)
    along = torch.tensor(scales, dtype=torch.float64)[:, None, None]
    deviations = deviations / along
    largest = 0.0
    for start in range(0, trajectory.num_frames, _BLOCK):
        frames = slice(start, start + _BLOCK)
        known = trajectory.measured(frames).cpu()
        moving = (trajectory.read(frames).cpu().double() - mean) / along
        distance = torch.where(known[:, None], moving, 0.0).square().sum((1, 2, 3)).sqrt()
        largest = max(largest, float(distance.max()))
    return Climate(
        mean=mean,
        variance=variance,
        memory=correlation_time(deviations.flatten(1)),
        limit=limit_of(largest, float((mean / along).square().sum().sqrt())),
    )


@dataclass(frozen=True, kw_only=True)
class LeadTimes:
    """The values of one lead time; see the module."""

    spec: FieldSpec
    normalizer: Normalizer
    """Of the frames' units."""

    @property
    def scales(self) -> tuple[float, ...]:
        """What ``all`` divides each channel by."""
        return channel_scales(self.spec, self.normalizer)

    @property
    def entries(self) -> tuple[Entry, ...]:
        each = [
            Entry(
                metric=metric,
                component=component,
                unit=unit if metric == "rmse" else "1",
                better="higher" if metric in ("skill", "correlation") else "lower",
            )
            for metric in ("nmse", "fluctuation_nmse", "skill", "correlation", "rmse")
            for component, unit in zip(
                (*self.spec.channels, ALL), (*self.spec.units, common_unit(self.spec)), strict=True
            )
        ]
        drift = Entry(metric="spectral_drift", component=ALL)
        return (*each, drift, Entry(metric="not_finite", component=ALL))

    def terms(self, frames: Frames, climate: Climate) -> Float[Tensor, "t k"]:
        """A row for every lead time of a rollout; NaN: predictions that are not finite."""
        mean, variance = (
            value.to(frames.truth.device) for value in (climate.mean, climate.variance)
        )
        y, known, gone = frames.truth.double(), frames.known, frames.prediction.isnan()
        start = frames.last.double()
        # The mean stands for what is not finite: it does not fluctuate. Errors become infinite.
        q = torch.where(gone, mean, frames.prediction.double())
        products = (
            (q - y).square(),
            y.square(),
            (start - y).square(),
            (q - mean) * (y - mean),
            (q - mean).square(),
            (y - mean).square(),
            variance.expand_as(y),
        )
        sums = [torch.where(known[:, None], values, 0.0).sum((-2, -1)) for values in products]
        scales = torch.tensor(self.scales, dtype=y.dtype, device=y.device)[:, None, None]
        spectra = [radial_spectrum(f / scales, known, self.spec.grid) for f in (q, y)]
        lost = gone.flatten(1).any(1).double()
        marks = torch.stack((torch.ones_like(lost), lost, known.sum((-2, -1)).double()), dim=1)
        return torch.cat((marks, torch.stack(sums, -1).flatten(1), *spectra), dim=-1)

    def totals(self, sums: Float[Tensor, "*batch k"]) -> Float[Tensor, "*batch component term"]:
        """The sums of every channel, and of all together."""
        channels = len(self.spec.channels)
        each = sums[..., _MARKS : _MARKS + _SUMS * channels].unflatten(-1, (channels, _SUMS))
        scales = torch.tensor(self.scales, dtype=sums.dtype, device=sums.device)
        return torch.cat((each, (each / scales[:, None].square()).sum(-2, keepdim=True)), dim=-2)

    def values(self, sums: Float[Tensor, "*batch k"]) -> Float[Tensor, "*batch entry"]:
        """See the module; NaN where undefined."""
        gone = sums[..., 1, None] > 0
        error, energy, persistence, cross, predicted, true, spread = self.totals(sums).unbind(-1)
        error = torch.where(gone, math.inf, error)
        errors = [ratio(error, energy), ratio(error, spread), 1 - ratio(error, persistence)]
        correlation = ratio(cross, (predicted * true).sqrt())
        channels = len(self.spec.channels)
        fields = float(len(self.spec.of_fields.channels))
        weights = torch.tensor([1.0] * channels + [fields]).to(sums)
        rmse = ratio(error, sums[..., 2:3] * weights).sqrt()
        rings = num_rings(self.spec.grid)
        predicted, truth = sums[..., -2 * rings :].unflatten(-1, (2, rings)).unbind(-2)
        drift = torch.where(gone, math.inf, log_spectral_error(predicted, truth)[..., None])
        not_finite = ratio(sums[..., 1:2], sums[..., :1])
        return torch.cat((*errors, correlation, rmse, drift, not_finite), dim=-1)


@dataclass(frozen=True, kw_only=True)
class Horizons:
    """Measures of whole rollouts, all channels together.

    - stable_horizon: frames until the fluctuation_nmse of a start first exceeds 0.5, or is not
      finite; mean over starts. A start that never does counts with all its frames, so
      the mean is a lower bound where stable_to_end is not 0;
    - stable_to_end: share of such starts;
    - correlation_time: of the truth, mean over starts, for comparison;
    - correlated_horizon: frames until the correlation of a start (as in ``LeadTimes``) first falls
      below 0.5, or is not finite; mean over starts, as above;
    - rel_l2: |q - y| / |y| over all frames of a rollout, mean over starts; the measure of
      the FNO paper's Navier-Stokes benchmark;
    - nrmse: |q - y| / |y| of single frames, mean over starts, geometric mean over lead
      times; the measure of APEBench;
    - survival: frames before a rollout diverges (``evaluation/divergence.py``), mean over starts;
    - diverged: share of the starts that do.
    """

    @property
    def entries(self) -> tuple[Entry, ...]:
        return (
            Entry(metric="stable_horizon", component=ALL, unit="frames", better="higher"),
            Entry(metric="stable_to_end", component=ALL, better="higher"),
            Entry(metric="correlation_time", component=ALL, unit="frames", better="none"),
            Entry(metric="rel_l2", component=ALL),
            Entry(metric="nrmse", component=ALL),
            Entry(metric="correlated_horizon", component=ALL, unit="frames", better="higher"),
            Entry(metric="survival", component=ALL, unit="frames", better="higher"),
            Entry(metric="diverged", component=ALL),
        )

    def terms(
        self,
        measure: LeadTimes,
        lead_terms: Float[Tensor, "start lead k"],
        climates: list[Climate],
    ) -> Float[Tensor, "start k2"]:
        """A row for every start, from the terms of its lead times."""
        gone = lead_terms[..., 1] > 0
        pooled = measure.totals(lead_terms)[..., -1, :].unbind(-1)  # each (start, lead)
        error, energy, _, cross, predicted, true, spread = pooled

        def frames_until(bad: Tensor) -> Tensor:
            return ((bad | gone).cumsum(1) == 0).sum(1).double()

        stable = frames_until(error > STABLE * spread)
        correlated = frames_until(~(cross > CORRELATED * (predicted * true).sqrt()))
        ended = (stable == lead_terms.shape[1]).double()
        memories = [climate.memory for climate in climates]
        memory = torch.tensor([0.0 if m is None else m for m in memories], dtype=torch.float64)
        known = torch.tensor([m is not None for m in memories]).double()
        error = torch.where(gone, math.inf, error)
        each = ratio(error, energy).sqrt()
        whole = ratio(error.sum(1), energy.sum(1)).sqrt()
        head = (torch.ones_like(memory), stable, ended, memory, known, whole)
        limits = predicted.new_tensor([[climate.limit] for climate in climates])
        distance = torch.where(gone, math.inf, predicted.sqrt())  # to the mean
        lasted = survived(distance, limits).double()
        lost = (lasted < lead_terms.shape[1]).double()
        tail = torch.stack((correlated, lasted, lost), dim=1)
        return torch.cat((torch.stack(head, dim=1), each, tail), dim=1)

    def values(self, sums: Float[Tensor, "*batch k"]) -> Float[Tensor, "*batch entry"]:
        """See the class."""
        count, stable, ended, memory, known, whole = sums[..., :6].unbind(-1)
        each, (correlated, lasted, lost) = sums[..., 6:-3], sums[..., -3:].unbind(-1)
        nrmse = ratio(each, count[..., None].expand_as(each)).log().mean(-1).exp()
        found = (
            ratio(stable, count),
            ratio(ended, count),
            ratio(memory, known),
            ratio(whole, count),
            nrmse,
            ratio(correlated, count),
            ratio(lasted, count),
            ratio(lost, count),
        )
        return torch.stack(found, dim=-1)
