"""Errors by scale: after average pooling, in Haar sub-bands, and in radial spectra.

Pooling. Both fields are averaged over cells of k x k points, then NMSE is taken, k = 1, 2, 4, 8. A
cell is the mean over its known points if at least half of them are known, and is left out
otherwise.

Haar. Three levels of the orthonormal transform; of four neighbours a b / c d (c, d in the row of
larger y)

    LL = (a + b + c + d) / 2     HL = (a - b + c - d) / 2
    LH = (a + b - c - d) / 2     HH = (a - b - c + d) / 2

where the first letter is of x, and the next level splits LL. (The published names seem to have the
letters the other way round.) Each sub-band of each channel has its own NMSE. Groups are means over
bands and channels: fine of all level-1 details, intermediate of all level-2 details, coarse of all
four bands of level 3. A band without energy has no NMSE, nor has its group. A coefficient that
touches an unknown point is left out: filling would put edges into the truth and smoothness into the
error. Rows and columns of the largest y and x that do not fill a cell are left out.

Spectra. Per frame, u and v are taken about their means over the known points, set to zero at
unknown points, multiplied with a Hann window along directions that are not periodic (mean square
1), and transformed. Half the squared modulus of both is added up over rings of the physical
wavenumber: with L the longer side of the domain, ring j holds the modes with |k| L / 2 pi nearest
to j, for j = 1 .. K = L / (2 max(dx, dy)), the highest that both directions resolve. The mean and
the corners beyond K are left out. From the spectra T of the truth, P of the prediction and E of
their difference:

- spectral_log_error: root mean square over the rings of log10(P / T), of mean spectra;
- spectral_rel_l2: sqrt(sum (P - T)^2 / sum T^2) over all rings, of mean spectra; the largest scales
  dominate it, and it ignores phase;
- spectral_slope_error: |slope of P - slope of T|, straight lines through log10 of the mean spectra
  over log10 j, for j from K/8 to K/2;
- band_spectrum_error: sqrt(sum (P - T)^2 / sum T^2) over the rings of a band, of each frame, then
  the mean over frames; it ignores phase;
- band_nmse: sum E / sum T over a band, of mean spectra; it includes phase.

Bands are thirds of the rings: low j <= K/3, mid j <= 2K/3, high. Rings in which the truth has less
than 1e-10 of its energy hold rounding alone and do not count in the logarithmic error; in fits both
spectra are at least that.
"""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from pibert.evaluation.measure import (
    Entry,
    Frames,
    Measure,
    SquaredErrors,
    known_values,
    ratio,
)
from pibert.fields import Grid, on_device

SCALES = (1, 2, 4, 8)
LEVELS = 3
SMALLEST = 2**LEVELS
"""Rows and columns that the Haar transform needs."""
HAAR_BANDS = ("LH1", "HL1", "HH1", "LH2", "HL2", "HH2", "LH3", "HL3", "HH3", "LL3")
GROUPS = {"coarse": HAAR_BANDS[6:], "intermediate": HAAR_BANDS[3:6], "fine": HAAR_BANDS[:3]}
SLOPE_RANGE = (1 / 8, 1 / 2)
"""Of the rings, both ends included."""
BANDS = {"low": (0.0, 1 / 3), "mid": (1 / 3, 2 / 3), "high": (2 / 3, 1.0)}
"""Shares of the rings, the lower end left out."""
FLOOR = 1e-10
"""Share of the truth's energy below which a ring is rounding: fields are of single precision."""


def pool(
    fields: Float[Tensor, "t c y x"], known: Bool[Tensor, "t y x"], size: int
) -> tuple[Float[Tensor, "t c y2 x2"], Bool[Tensor, "t y2 x2"]]:
    """Means over the known points of cells, and which cells have at least half of theirs known."""
    share = F.avg_pool2d(known[:, None].double(), size)
    total = F.avg_pool2d(known_values(fields, known), size)
    return total / share.clamp(min=size**-2), share[:, 0] >= 0.5


def haar(
    fields: Float[Tensor, "*batch y x"],
) -> tuple[Float[Tensor, "*batch y2 x2"], ...]:
    """One level: LL, LH, HL, HH."""
    ny, nx = (size // 2 * 2 for size in fields.shape[-2:])
    fields = fields[..., :ny, :nx]
    lower, upper = fields[..., 0::2, :], fields[..., 1::2, :]
    low, high = lower + upper, lower - upper  # along y
    bands = (
        low[..., 0::2] + low[..., 1::2],
        high[..., 0::2] + high[..., 1::2],
        low[..., 0::2] - low[..., 1::2],
        high[..., 0::2] - high[..., 1::2],
    )
    return tuple(band / 2 for band in bands)


def _blocks(known: Bool[Tensor, "t y x"]) -> Bool[Tensor, "t y2 x2"]:
    """Whether all four neighbours are known."""
    ny, nx = (size // 2 * 2 for size in known.shape[-2:])
    rows = known[:, 0:ny:2] & known[:, 1:ny:2]
    return rows[..., 0:nx:2] & rows[..., 1:nx:2]


@dataclass(frozen=True, kw_only=True)
class PooledScales(SquaredErrors):
    """NMSE after average pooling, of every channel and of all."""

    name: ClassVar[str] = "pooled_scales"

    @property
    def scales(self) -> tuple[int, ...]:
        """The cell sizes that fit the grid."""
        return tuple(size for size in SCALES if size <= min(self.spec.grid.shape))

    @property
    def entries(self) -> tuple[Entry, ...]:
        return tuple(
            Entry(metric=f"scale_{size}_nmse", component=component)
            for size in self.scales
            for component in self.components
        )

    def terms(self, frames: Frames) -> Float[Tensor, "rows k"]:
        terms = []
        for size in self.scales:
            prediction, where = pool(frames.prediction, frames.known, size)
            truth, _ = pool(frames.truth, frames.known, size)
            terms.append(self.error_terms(prediction, truth, where))
        return torch.cat(terms, dim=1)

    def values(self, sums: Float[Tensor, "*batch k"]) -> Float[Tensor, "*batch entry"]:
        _, error, energy = self.totals(sums.unflatten(-1, (len(self.scales), -1)))
        return ratio(error, energy).flatten(-2)


@dataclass(frozen=True, kw_only=True)
class HaarBands(Measure):
    """NMSE of every sub-band of every channel, and their groups."""

    name: ClassVar[str] = "haar_bands"

    @property
    def entries(self) -> tuple[Entry, ...]:
        components = [f"{channel}_{band}" for channel in self.spec.channels for band in HAAR_BANDS]
        return tuple(
            Entry(metric="haar_nmse", component=component) for component in (*components, *GROUPS)
        )

    def terms(self, frames: Frames) -> Float[Tensor, "rows k"]:
        known = frames.known
        truth = known_values(frames.truth, known)
        both = torch.stack((known_values(frames.prediction, known) - truth, truth))
        bands = {}
        for level in range(1, LEVELS + 1):
            both, *details = haar(both)
            known = _blocks(known)
            for name, band in zip(("LL", "LH", "HL", "HH"), (both, *details), strict=True):
                squares = torch.where(known[:, None], band.square(), 0.0)
                bands[f"{name}{level}"] = squares.sum((-2, -1))  # (2, t, c)
        return torch.stack([bands[band] for band in HAAR_BANDS]).permute(2, 3, 0, 1).flatten(1)

    def values(self, sums: Float[Tensor, "*batch k"]) -> Float[Tensor, "*batch entry"]:
        error, energy = sums.unflatten(-1, (len(self.spec.channels), len(HAAR_BANDS), 2)).unbind(-1)
        nmse = ratio(error, energy)  # (*batch, c, band)
        groups = [
            nmse[..., [HAAR_BANDS.index(band) for band in bands]].mean((-2, -1))
            for bands in GROUPS.values()
        ]
        return torch.cat((nmse.flatten(-2), torch.stack(groups, dim=-1)), dim=-1)


def num_rings(grid: Grid) -> int:
    """K, the number of rings that a grid resolves."""
    length = max(grid.shape[0] * grid.dy, grid.shape[1] * grid.dx)
    return int(length / (2 * max(grid.dx, grid.dy)) + 1e-9)


def supports_spectra(grid: Grid) -> bool:
    """Whether there are at least two rings for every band."""
    return num_rings(grid) >= 2 * len(BANDS)


def wavenumbers(grid: Grid) -> Float[Tensor, " k"]:
    """The wavenumber 2 pi j / L of each ring."""
    length = max(grid.shape[0] * grid.dy, grid.shape[1] * grid.dx)
    return torch.arange(1, num_rings(grid) + 1, dtype=torch.float64) * (2 * math.pi / length)


def radial_spectrum(
    fields: Float[Tensor, "t c y x"], known: Bool[Tensor, "t y x"], grid: Grid
) -> Float[Tensor, "t k"]:
    """Half the squared modulus of all channels in each ring, of the known points."""
    fields = known_values(fields, known)
    count = known.sum((1, 2)).clamp(min=1)[:, None, None, None]
    fields = known_values(fields - fields.sum((2, 3), keepdim=True) / count, known)
    window = _window(grid.shape, grid.periodic_y, grid.periodic_x)
    fields = fields * on_device(window, fields.device)
    ny, nx = grid.shape
    power = torch.fft.rfft2(fields).abs().square().sum(1) / (2 * (ny * nx) ** 2)
    ring, weight = (on_device(part, fields.device) for part in _rings(ny, nx, grid.dy, grid.dx))
    rings = num_rings(grid)
    spectrum = torch.zeros(len(fields), rings + 2, dtype=power.dtype, device=power.device)
    return spectrum.index_add(1, ring, (power * weight).flatten(1))[:, 1:-1]


@lru_cache(maxsize=16)
def _window(shape: tuple[int, int], periodic_y: bool, periodic_x: bool) -> Float[Tensor, "y x"]:
    """A Hann window with mean square 1."""
    sides = [
        torch.ones(n, dtype=torch.float64)
        if periodic
        else torch.hann_window(n, periodic=False, dtype=torch.float64)
        for n, periodic in zip(shape, (periodic_y, periodic_x), strict=True)
    ]
    window = sides[0][:, None] * sides[1]
    return window / window.square().mean().sqrt()


@lru_cache(maxsize=16)
def _rings(ny: int, nx: int, dy: float, dx: float) -> tuple[Int[Tensor, " m"], Tensor]:
    """The ring of every mode of a half spectrum, 0 for the mean, K + 1 beyond; and their weights.

    Modes that also stand for their mirror image count double.
    """
    length = max(ny * dy, nx * dx)
    ky = torch.fft.fftfreq(ny, dy, dtype=torch.float64)[:, None] * length
    kx = torch.fft.rfftfreq(nx, dx, dtype=torch.float64) * length
    last = num_rings(Grid((ny, nx), dx, dy))
    ring = (torch.hypot(ky, kx) + 0.5 - 1e-9).floor().long().clamp(max=last + 1)
    weight = torch.full((nx // 2 + 1,), 2.0, dtype=torch.float64)
    weight[0] = 1.0
    if nx % 2 == 0:
        weight[-1] = 1.0
    return ring.flatten(), weight


def log_spectral_error(
    predicted: Float[Tensor, "*n k"], truth: Float[Tensor, "*n k"]
) -> Float[Tensor, "*n"]:
    """Root mean square of log10(P / T) over the rings in which the truth is above the floor."""
    floor = FLOOR * truth.sum(-1, keepdim=True)
    resolved = truth > floor
    squares = (torch.maximum(predicted, floor) / truth).log10().square()
    total = torch.where(resolved, squares, 0.0).sum(-1)
    return ratio(total, resolved.sum(-1).to(total)).sqrt()


@dataclass(frozen=True, kw_only=True)
class Spectra(Measure):
    """Errors of the spectrum of kinetic energy."""

    name: ClassVar[str] = "spectra"

    @property
    def entries(self) -> tuple[Entry, ...]:
        energy = "kinetic_energy"
        return (
            Entry(metric="spectral_log_error", component=energy),
            Entry(metric="spectral_rel_l2", component=energy),
            Entry(metric="spectral_slope_error", component=energy),
            Entry(metric="spectral_slope", component="prediction", better="none"),
            Entry(metric="spectral_slope", component="truth", better="none"),
            *(Entry(metric="band_spectrum_error", component=band) for band in BANDS),
            *(Entry(metric="band_nmse", component=band) for band in BANDS),
        )

    def terms(self, frames: Frames) -> Float[Tensor, "rows k"]:
        assert self.spec.velocity is not None
        truth, predicted = (
            known_values(f[:, list(self.spec.velocity)], frames.known)
            for f in (frames.truth, frames.prediction)
        )
        spectra = [
            radial_spectrum(f, frames.known, frames.spec.grid)
            for f in (truth, predicted, predicted - truth)
        ]
        energy, error = (
            torch.stack([_band(spectrum, band).square().sum(-1) for band in BANDS], dim=1)
            for spectrum in (spectra[0], spectra[1] - spectra[0])
        )
        counted = energy > 0
        relative = torch.where(counted, (error / energy).sqrt(), 0.0)
        count = torch.ones_like(relative[:, :1])
        return torch.cat((count, *spectra, relative, counted.double()), dim=1)

    def values(self, sums: Float[Tensor, "*batch k"]) -> Float[Tensor, "*batch entry"]:
        _, truth, predicted, error = self._spectra(sums)
        floor = FLOOR * truth.sum(-1, keepdim=True)
        slope, true_slope = (_slope(torch.maximum(part, floor)) for part in (predicted, truth))
        log_error = log_spectral_error(predicted, truth)
        relative, counted = sums[..., -2 * len(BANDS) :].unflatten(-1, (2, -1)).unbind(-2)
        nmse = [ratio(_band(error, band).sum(-1), _band(truth, band).sum(-1)) for band in BANDS]
        slopes = ((slope - true_slope).abs(), slope, true_slope)
        l2 = ratio((predicted - truth).square().sum(-1), truth.square().sum(-1)).sqrt()
        single = torch.stack((log_error, l2, *slopes), -1)
        return torch.cat((single, ratio(relative, counted), torch.stack(nmse, -1)), dim=-1)

    def curves(self, sums: Float[Tensor, "*batch k"]) -> dict[str, Float[Tensor, "*batch ring"]]:
        """Mean spectra of truth, prediction and error, over ``wavenumbers``, for figures."""
        count, *spectra = self._spectra(sums)
        names = ("truth", "prediction", "error")
        return {name: part / count for name, part in zip(names, spectra, strict=True)}

    def _spectra(self, sums: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        rings = num_rings(self.spec.grid)
        truth, predicted, error = sums[..., 1 : 1 + 3 * rings].unflatten(-1, (3, rings)).unbind(-2)
        return sums[..., :1], truth, predicted, error


def _band(spectrum: Float[Tensor, "*n k"], band: str) -> Float[Tensor, "*n j"]:
    """The rings of a band."""
    low, high = (int(share * spectrum.shape[-1] + 1e-9) for share in BANDS[band])
    return spectrum[..., low:high]


def _slope(spectrum: Float[Tensor, "*n k"]) -> Float[Tensor, "*n"]:
    """Of the straight line through the logarithms, over ``SLOPE_RANGE``; NaN without energy."""
    rings = spectrum.shape[-1]
    low, high = math.ceil(SLOPE_RANGE[0] * rings), math.floor(SLOPE_RANGE[1] * rings)
    x = torch.arange(low, high + 1, dtype=spectrum.dtype, device=spectrum.device).log10()
    x = x - x.mean()
    slope = (spectrum[..., low - 1 : high].log10() * x).sum(-1) / x.square().sum()
    return torch.where(slope.isfinite(), slope, torch.nan)
