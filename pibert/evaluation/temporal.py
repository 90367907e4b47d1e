"""The flow in time: series at probes, their power spectra, memory.

Frames are those of one trajectory in the order of time, one ``spec.dt`` apart.

Spectra are those of the probes (``evaluation/probes.py``), averaged over them.

The power spectral density of a series x at n times dt apart, its mean taken off, is that of one
Hann window w over all of it, one-sided,

    P(f) = 2 dt |sum_t w_t x_t exp(-2 pi i f t dt)|^2 / sum_t w_t^2,

not doubled at f = 0 and 1/(2 dt); sum P df is the variance of the series under its window. Without
``spec.dt`` times are in frames. Bands are thirds of the range up to the highest frequency, f = 0
left out.

Predicted frames are one step ahead of true ones (teacher forcing). Persistence, which repeats the
true frames one step late, has spectra that are right by construction: what is measured here is how
much energy a single step adds or takes away, not whether a model keeps the rhythm of the flow.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from pibert.evaluation.components import ALL, ratio
from pibert.evaluation.measure import Entry, Frames
from pibert.evaluation.probes import probe_series
from pibert.fields import FieldSpec

LEAST_FRAMES = 8
"""Below which a trajectory has no spectrum."""
POWER_FLOOR = 1e-8
"""Share of the true variance below which power does not count: single precision is noise there."""
BANDS = ("low", "mid", "high")


def power_density(
    series: Float[Tensor, " t *series"], dt: float
) -> tuple[Float[Tensor, " f"], Float[Tensor, " f *series"]]:
    """Frequencies and the one-sided power spectral density of every series."""
    count = len(series)
    window = torch.hann_window(count, periodic=True, dtype=torch.float64, device=series.device)
    apart = series.double() - series.double().mean(0)
    power = torch.fft.rfft(apart * window.view(-1, *[1] * (series.ndim - 1)), dim=0).abs().square()
    power = power * (dt / window.square().sum())
    power[1 : (count + 1) // 2] *= 2
    frequency = torch.fft.rfftfreq(count, dt, dtype=torch.float64, device=series.device)
    return frequency, power


def autocorrelation(series: Float[Tensor, "t n"]) -> Float[Tensor, " lag"]:
    """Of the fluctuations of all series together, at lags up to half the record; 1 at lag zero.

    Each series counts by its variance; a lag is averaged over the pairs that there are. NaN where
    nothing fluctuates.
    """
    apart = (series - series.mean(0)).double()
    count = len(apart)
    spectrum = torch.fft.rfft(apart, n=2 * count, dim=0).abs().square().sum(1)
    sums = torch.fft.irfft(spectrum, n=2 * count)[: count // 2 + 1]
    pairs = torch.arange(count, count - len(sums), -1, device=sums.device)
    mean = sums / pairs
    # A series that is constant leaves rounding alone.
    size = series.double().square().sum() / count
    return torch.where(mean[0] > 1e-24 * size, mean / mean[0], math.nan)


def correlation_time(series: Float[Tensor, "t n"]) -> float | None:
    """The lag in frames at which the autocorrelation first falls to 1/e, linear between lags.

    None if it does not within half the record, or nothing fluctuates.
    """
    if len(series) < 2:
        return None
    found = autocorrelation(series)
    below = (found < math.exp(-1)).nonzero()
    if not len(below):
        return None
    lag = int(below[0])
    before, after = float(found[lag - 1]), float(found[lag])
    return lag - 1 + (before - math.exp(-1)) / (before - after)


@dataclass(frozen=True, kw_only=True)
class Temporal:
    """Band ratios and error of the spectrum in time, of frames predicted one step ahead.

    - psd_ratio_low, _mid, _high: predicted over true energy of all trajectories in a band; 1 is
      best. Of ``all``: the mean over the channels;
    - psd_log_error: mean over frequencies of |log10 P_predicted / P_true| in a trajectory, mean
      over trajectories.

    Terms of a trajectory: energies (channel, model or truth, band), log error of every channel,
    count.
    """

    spec: FieldSpec
    name: ClassVar[str] = "temporal"
    of_sequences: ClassVar[bool] = True

    @property
    def entries(self) -> tuple[Entry, ...]:
        components = (*self.spec.channels, ALL)
        ratios = [
            Entry(metric=f"psd_ratio_{band}", component=component, better="none")
            for band in BANDS
            for component in components
        ]
        errors = [Entry(metric="psd_log_error", component=component) for component in components]
        return (*ratios, *errors)

    def terms(self, frames: Frames) -> Float[Tensor, "1 k"]:
        """One row; zeros where the trajectory is too short or has no probe."""
        c = len(self.spec.channels)
        row = torch.zeros(1, 7 * c + 1, dtype=torch.float64, device=frames.truth.device)
        series = probe_series(frames)
        if len(series.truth) < LEAST_FRAMES or not series.places:
            return row
        frequency, truth = power_density(series.truth, series.dt)
        _, predicted = power_density(series.prediction, series.dt)
        truth, predicted = truth.mean(1), predicted.mean(1)  # (f, c)
        bands = torch.stack([_banded(predicted), _banded(truth)])  # (2, band, c)
        parts = [(bands * frequency[1]).permute(2, 0, 1).flatten(), _log_errors(predicted, truth)]
        row[0, : 7 * c] = torch.cat(parts)
        row[0, 7 * c] = 1
        return row

    def values(self, sums: Float[Tensor, "*draws k"]) -> Float[Tensor, "*draws entry"]:
        """See the class; NaN where no trajectory counts."""
        c = len(self.spec.channels)
        energies = sums[..., : 6 * c].unflatten(-1, (c, 2, 3))
        bands = ratio(energies[..., 0, :], energies[..., 1, :]).mT  # (*draws, band, c)
        bands = torch.cat((bands, bands.mean(-1, keepdim=True)), -1).flatten(-2)
        errors = _mean(sums[..., 6 * c : 7 * c + 1])
        errors = torch.cat((errors, errors.mean(-1, keepdim=True)), -1)
        return torch.cat((bands, errors), -1)


def _mean(sums: Float[Tensor, "*draws k"]) -> Float[Tensor, "*draws n"]:
    """Sums over the count that comes last."""
    return ratio(sums[..., :-1], sums[..., -1:].expand_as(sums[..., :-1]))


def _banded(power: Float[Tensor, "f c"]) -> Float[Tensor, "band c"]:
    """Sums over thirds of the frequencies, the first of which is zero."""
    places = torch.arange(1, len(power), device=power.device)
    band = (3 * places - 1) // (len(power) - 1)  # a third ends with its last frequency
    sums = torch.zeros(3, power.shape[1], dtype=power.dtype, device=power.device)
    return sums.index_add(0, band, power[1:])


def _log_errors(
    predicted: Float[Tensor, "f c"], truth: Float[Tensor, "f c"]
) -> Float[Tensor, " c"]:
    floor = POWER_FLOOR * truth[1:].sum(0) + torch.finfo(truth.dtype).tiny
    return ((predicted[1:] + floor) / (truth[1:] + floor)).log10().abs().mean(0)
