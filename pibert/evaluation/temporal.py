"""The flow in time: probes, series at them, power spectra, correlation time.

Probes are chosen without looking at a prediction:

- wake: with a body, the points nearest to 1, 1.5, 2 and 3 D downstream (along x) of its centre and
  D/2 below, level with and D/2 above it. The body is what is solid in at least half of the frames,
  of several the one that ``geometry.locate`` returns. D is its height;
- lattice: without a body, or if no wake probe can be used, the middles of 4 x 4 equal parts of the
  grid.

A probe outside the grid, or known in less than nine tenths of the frames, is left out. Missing
values are interpolated linearly in time, in truth and prediction alike. RealPDEBench has other
probes (``official_probes``), for its profiles of the mean velocity.

The power spectral density of a series x at n times dt apart, its mean taken off, is that of one
Hann window w over all of it, one-sided,

    P(f) = 2 dt |sum_t w_t x_t exp(-2 pi i f t dt)|^2 / sum_t w_t^2,

not doubled at f = 0 and 1/(2 dt), averaged over the probes. Without ``spec.dt`` times are in
frames. Bands are thirds of the range up to the highest frequency, f = 0 left out.

Predicted frames are one step ahead of true ones (teacher forcing). Persistence, which repeats the
true frames one step late, has correct spectra by construction: the metrics show how much energy one
step adds or removes, not whether a model keeps the frequencies of the flow.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import numpy as np
import torch
from jaxtyping import Bool, Float
from torch import Tensor

from pibert.evaluation.geometry import locate
from pibert.evaluation.measure import ALL, Entry, Frames, Measure, ratio

Probes = tuple[tuple[int, int], ...]
"""Row and column of each."""
PROBES_DOWNSTREAM = (1.0, 1.5, 2.0, 3.0)
"""Probes of a wake behind the centre of the body, in D."""
PROBES_ACROSS = (-0.5, 0.0, 0.5)
"""... and above it."""
LATTICE = 4
"""Probes along each axis where there is no body."""
KNOWN_SHARE = 0.9
"""Of the frames in which a probe must be known."""
LEAST_FRAMES = 8
"""Below which a trajectory has no spectrum."""
POWER_FLOOR = 1e-8
"""Share of the true variance below which power does not count: single precision is noise there."""
BANDS = ("low", "mid", "high")


@dataclass(frozen=True, eq=False, kw_only=True)
class ProbeSeries:
    """Series of truth and prediction at some points."""

    probes: Probes
    dt: float
    """1 where the time between frames is not known."""
    truth: Float[Tensor, "t probe c"]
    prediction: Float[Tensor, "t probe c"]


def probe_series(frames: Frames) -> ProbeSeries:
    """Series at the probes of a trajectory, of which there may be none."""
    probes = choose_probes(frames)
    return ProbeSeries(
        probes=probes,
        dt=frames.spec.dt or 1.0,
        truth=series_at(probes, frames.truth, frames.known),
        prediction=series_at(probes, frames.prediction, frames.known),
    )


def choose_probes(frames: Frames) -> Probes:
    """The probes of a trajectory, of which there may be none; see the module."""
    enough = frames.known.double().mean(0) >= KNOWN_SHARE  # (y, x)
    return tuple(_usable(_wake_probes(frames), enough) or _usable(_lattice(enough.shape), enough))


def series_at(
    probes: Probes, fields: Float[Tensor, "t c y x"], known: Bool[Tensor, "t y x"]
) -> Float[Tensor, "t probe c"]:
    """Series at points; unknown values are interpolated linearly in time."""
    rows, columns = [row for row, _ in probes], [column for _, column in probes]
    mask = known[:, rows, columns].cpu().numpy()
    return _bridged(fields[:, :, rows, columns], mask)


def body_extent(frames: Frames) -> tuple[float, float, float] | None:
    """Row and column of the centre and height of the usual body of a trajectory, in points."""
    if frames.body is None:
        return None
    solid = frames.body.double().mean(0) >= 0.5
    box = locate(solid[None], frames.spec.grid)
    if not bool(box.present):
        return None
    height = round(float(box.diameter) / frames.spec.grid.dy)
    return float(box.centre_y), float(box.centre_x), float(height)


def official_probes(
    shape: tuple[int, int], centre: tuple[int, int], diameter: int, *, corrected: bool = False
) -> Probes:
    """The 36 probes of mvpe, nine rows at four stations downstream; none where they do not fit.

    ``centre`` (x, y) and ``diameter`` of the cylinder are in points. Stations are 1, 2, 3 and 4
    diameters downstream, or 1, 1.5, 2 and 2.5 where they do not fit: as coded the second is looked
    at, so that the fourth may lie outside; corrected it is the fourth.
    """
    ny, nx = shape
    tested = centre[0] + (4 if corrected else 2) * diameter
    steps = (1.0, 2.0, 3.0, 4.0) if tested < nx else (1.0, 1.5, 2.0, 2.5)
    columns = [int(centre[0] + step * diameter) for step in steps]
    rows = [centre[1] + 2 * j for j in range(-4, 5)]
    if max(columns) >= nx or min(rows) < 0 or max(rows) >= ny:
        return ()
    return tuple((row, column) for column in columns for row in rows)


def body_probes(frames: Frames, *, corrected: bool = False) -> Probes:
    """The official probes behind a trajectory's body; none without one.

    The body is that of ``body_extent``, its diameter is taken in columns.
    """
    body, grid = body_extent(frames), frames.spec.grid
    if body is None:
        return ()
    row, column, height = body
    diameter = max(1, round(height * grid.dy / grid.dx))
    return official_probes(grid.shape, (round(column), round(row)), diameter, corrected=corrected)


def _wake_probes(frames: Frames) -> list[tuple[int, int]]:
    body, grid = body_extent(frames), frames.spec.grid
    if body is None:
        return []
    row, column, height = body
    wide = height * grid.dy / grid.dx  # D in columns
    return [
        (round(row + across * height), round(column + along * wide))
        for along in PROBES_DOWNSTREAM
        for across in PROBES_ACROSS
    ]


def _lattice(shape: tuple[int, ...]) -> list[tuple[int, int]]:
    middles = [[int((i + 0.5) * n / LATTICE) for i in range(LATTICE)] for n in shape]
    return [(row, column) for row in middles[0] for column in middles[1]]


def _usable(probes: list[tuple[int, int]], enough: Bool[Tensor, "y x"]) -> list[tuple[int, int]]:
    (ny, nx), allowed = enough.shape, enough.cpu()
    inside = (p for p in dict.fromkeys(probes) if 0 <= p[0] < ny and 0 <= p[1] < nx)
    return [probe for probe in inside if bool(allowed[probe])]


def _bridged(
    values: Float[Tensor, "t c probe"], known: Bool[np.ndarray, "t probe"]
) -> Float[Tensor, "t probe c"]:
    """The series with unknown frames interpolated linearly in time."""
    series = values.double().transpose(1, 2).contiguous()
    times = np.arange(len(known))
    for probe in np.flatnonzero(~known.all(0)).tolist():
        mask = known[:, probe]
        for channel in range(series.shape[2]):
            gappy = series[:, probe, channel].cpu().numpy()
            filled = np.interp(times, times[mask], gappy[mask])
            series[:, probe, channel] = torch.from_numpy(filled).to(series)
    return series


def power_density(
    series: Float[Tensor, " t *series"], dt: float
) -> tuple[Float[Tensor, " f"], Float[Tensor, " f *series"]]:
    """Frequencies and the one-sided power spectral density of every series."""
    count = len(series)
    window = torch.hann_window(count, periodic=True, dtype=torch.float64, device=series.device)
    deviations = series.double() - series.double().mean(0)
    windowed = deviations * window.view(-1, *[1] * (series.ndim - 1))
    power = torch.fft.rfft(windowed, dim=0).abs().square()
    power = power * (dt / window.square().sum())
    power[1 : (count + 1) // 2] *= 2
    frequency = torch.fft.rfftfreq(count, dt, dtype=torch.float64, device=series.device)
    return frequency, power


def autocorrelation(series: Float[Tensor, "t n"]) -> Float[Tensor, " lag"]:
    """Autocorrelation of all series together, at lags up to half the record; 1 at lag zero.

    Each series counts by its variance; a lag is averaged over its pairs of frames. NaN where
    nothing fluctuates.
    """
    deviations = (series - series.mean(0)).double()
    count = len(deviations)
    spectrum = torch.fft.rfft(deviations, n=2 * count, dim=0).abs().square().sum(1)
    sums = torch.fft.irfft(spectrum, n=2 * count)[: count // 2 + 1]
    pairs = torch.arange(count, count - len(sums), -1, device=sums.device)
    mean = sums / pairs
    # A constant series leaves only rounding.
    size = series.double().square().sum() / count
    return torch.where(mean[0] > 1e-24 * size, mean / mean[0], math.nan)


def correlation_time(series: Float[Tensor, "t n"]) -> float | None:
    """The lag in frames at which the autocorrelation first falls to 1/e, linear between lags.

    None if it does not within half the record, or nothing fluctuates.
    """
    if len(series) < 2:
        return None
    correlation = autocorrelation(series)
    below = (correlation < math.exp(-1)).nonzero()
    if not len(below):
        return None
    lag = int(below[0])
    before, after = float(correlation[lag - 1]), float(correlation[lag])
    return lag - 1 + (before - math.exp(-1)) / (before - after)


def integral_time(series: Float[Tensor, "t n"]) -> float | None:
    """The integral of the autocorrelation up to its first zero, in frames; 0.5 for white noise.

    A record of t frames has t / (2 integral_time) independent samples. None if the autocorrelation
    does not fall to zero within half the record, or nothing fluctuates.
    """
    correlation = autocorrelation(series)
    below = (correlation <= 0).nonzero()
    return 0.5 + float(correlation[1 : int(below[0])].sum()) if len(below) else None


@dataclass(frozen=True, kw_only=True)
class Temporal(Measure):
    """Band ratios and error of the spectrum in time, of frames predicted one step ahead.

    - psd_ratio_low, _mid, _high: predicted over true energy of all trajectories in a band; 1 is
      best. Of ``all``: the mean over the channels;
    - psd_log_error: mean over frequencies of |log10 P_predicted / P_true| in a trajectory, mean
      over trajectories.

    Terms of a trajectory: energies (channel, model or truth, band), log error of every channel,
    count.
    """

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
        if len(series.truth) < LEAST_FRAMES or not series.probes:
            return row
        frequency, truth = power_density(series.truth, series.dt)
        _, predicted = power_density(series.prediction, series.dt)
        truth, predicted = truth.mean(1), predicted.mean(1)  # (f, c)
        bands = torch.stack([_banded(predicted), _banded(truth)])  # (2, band, c)
        energies = (bands * frequency[1]).permute(2, 0, 1).flatten()
        row[0, : 7 * c] = torch.cat((energies, log_errors(predicted, truth)))
        row[0, 7 * c] = 1
        return row

    def values(self, sums: Float[Tensor, "*batch k"]) -> Float[Tensor, "*batch entry"]:
        """See the class; NaN where no trajectory counts."""
        c = len(self.spec.channels)
        energies = sums[..., : 6 * c].unflatten(-1, (c, 2, 3))
        bands = ratio(energies[..., 0, :], energies[..., 1, :]).mT  # (*batch, band, c)
        bands = torch.cat((bands, bands.mean(-1, keepdim=True)), -1).flatten(-2)
        count = sums[..., 7 * c :].expand(*sums.shape[:-1], c)
        errors = ratio(sums[..., 6 * c : 7 * c], count)
        errors = torch.cat((errors, errors.mean(-1, keepdim=True)), -1)
        return torch.cat((bands, errors), -1)


def _banded(power: Float[Tensor, "f c"]) -> Float[Tensor, "band c"]:
    """Sums over thirds of the frequencies, the first of which is zero."""
    number = torch.arange(1, len(power), device=power.device)
    band = (3 * number - 1) // (len(power) - 1)  # a third ends with its last frequency
    sums = torch.zeros(3, power.shape[1], dtype=power.dtype, device=power.device)
    return sums.index_add(0, band, power[1:])


def log_errors(predicted: Float[Tensor, "f c"], truth: Float[Tensor, "f c"]) -> Float[Tensor, " c"]:
    """Mean over frequencies above 0 of |log10 P_predicted / P_true| of every channel."""
    floor = POWER_FLOOR * truth[1:].sum(0) + torch.finfo(truth.dtype).tiny
    return ((predicted[1:] + floor) / (truth[1:] + floor)).log10().abs().mean(0)
