"""Radial spectra of kinetic energy, and errors scale by scale that they tell.

Per frame, u and v are taken about their means over the known points (of truth and prediction each
its own), set to zero at unknown points, multiplied with a Hann window along directions that are not
periodic (mean square 1, so that energy is kept on average), and transformed. Half the squared
modulus of both components is added up over rings of the physical wave number: with L the longer
side of the domain, ring j holds the modes with |k| L / 2 pi nearest to j, for
j = 1 .. K = L / (2 max(dx, dy)), the highest that both directions resolve (N/2 on a square). So
every ring has modes; the mean and the corners beyond K are left out. Without window, gaps and
corners the rings add up to the mean kinetic energy of the fluctuations.

From the spectra T of the truth, P of the prediction and E of their difference:

- spectral_log_error: root mean square over the rings of log10(P / T), of mean spectra;
- spectral_slope_error: |slope of P - slope of T|, straight lines through log10 of the mean spectra
  over log10 j, for j from K/8 to K/2;
- band_spectrum_error: sqrt(sum (P - T)^2 / sum T^2) over the rings of a band, of each frame, then
  the mean over frames. It is blind to phase: a structure in the wrong place costs nothing;
- band_nmse: sum E / sum T over a band, of mean spectra. It sees phase.

Bands are thirds of the rings: low j <= K/3, mid j <= 2K/3, high. Rings in which the truth has less
than 1e-10 of its energy hold rounding alone and do not count in the logarithmic error; in fits both
spectra are at least that.
"""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from pibert.evaluation.components import known_values, ratio, require_velocity
from pibert.evaluation.measure import Entry, Frames
from pibert.fields import FieldSpec, Grid, on_device

SLOPE_RANGE = (1 / 8, 1 / 2)
"""Of the rings, both ends included."""
BANDS = {"low": (0.0, 1 / 3), "mid": (1 / 3, 2 / 3), "high": (2 / 3, 1.0)}
"""Shares of the rings, the lower end left out."""
FLOOR = 1e-10
"""Share of the truth's energy below which a ring is rounding: fields are of single precision."""


def num_rings(grid: Grid) -> int:
    """K, how many rings a grid resolves."""
    length = max(grid.shape[0] * grid.dy, grid.shape[1] * grid.dx)
    return int(length / (2 * max(grid.dx, grid.dy)) + 1e-9)


def supports_spectra(grid: Grid) -> bool:
    """Whether there are at least two rings for every band."""
    return num_rings(grid) >= 2 * len(BANDS)


def wave_numbers(grid: Grid) -> Float[Tensor, " k"]:
    """The wave number 2 pi j / L of each ring."""
    length = max(grid.shape[0] * grid.dy, grid.shape[1] * grid.dx)
    return torch.arange(1, num_rings(grid) + 1, dtype=torch.float64) * (2 * math.pi / length)


def radial_spectrum(
    fields: Float[Tensor, "t c y x"],
    known: Bool[Tensor, "t y x"],
    grid: Grid,
    *,
    window: bool = True,
) -> Float[Tensor, "t k"]:
    """Half the squared modulus of all channels in each ring.

    Args:
        fields: Velocities.
        known: Where they are known.
        grid: Of their shape.
        window: Whether to use a Hann window along directions that are not periodic.
    """
    fields = known_values(fields, known)
    count = known.sum((1, 2)).clamp(min=1)[:, None, None, None]
    fields = known_values(fields - fields.sum((2, 3), keepdim=True) / count, known)
    if window:
        shape = _window(grid.shape, grid.periodic_y, grid.periodic_x)
        fields = fields * on_device(shape, fields.device)
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

    Modes that stand for their mirror image too weigh double.
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


@dataclass(frozen=True, kw_only=True)
class Spectra:
    """Errors of the spectrum of kinetic energy."""

    spec: FieldSpec
    window: bool = True
    """Whether to use a Hann window along directions that are not periodic."""
    name: ClassVar[str] = "spectra"
    of_sequences: ClassVar[bool] = False

    def __post_init__(self) -> None:
        require_velocity(self.spec, "spectra of kinetic energy")
        if not supports_spectra(self.spec.grid):
            raise ValueError(
                f"expected a grid that resolves at least {2 * len(BANDS)} wave numbers, found "
                f"{self.spec.grid.shape}, which resolves {num_rings(self.spec.grid)}; "
                "leave this measure out"
            )

    @property
    def entries(self) -> tuple[Entry, ...]:
        energy = "kinetic_energy"
        return (
            Entry(metric="spectral_log_error", component=energy),
            Entry(metric="spectral_slope_error", component=energy),
            Entry(metric="spectral_slope", component="prediction", better="none"),
            Entry(metric="spectral_slope", component="truth", better="none"),
            *(Entry(metric="band_spectrum_error", component=band) for band in BANDS),
            *(Entry(metric="band_nmse", component=band) for band in BANDS),
        )

    def terms(self, frames: Frames) -> Float[Tensor, "rows k"]:
        self._check(frames.spec.grid)
        places = self.spec.velocity
        assert places is not None
        truth, answer = (
            known_values(torch.stack([f[:, place] for place in places], 1), frames.known)
            for f in (frames.truth, frames.prediction)
        )
        found = [
            radial_spectrum(f, frames.known, frames.spec.grid, window=self.window)
            for f in (truth, answer, answer - truth)
        ]
        energy = [_band(found[0], band).square().sum(-1) for band in BANDS]
        apart = [_band(found[1] - found[0], band).square().sum(-1) for band in BANDS]
        counted = torch.stack(energy, dim=1) > 0
        relative = (torch.stack(apart, dim=1) / torch.stack(energy, dim=1)).sqrt()
        once = torch.ones_like(relative[:, :1])
        blind = torch.where(counted, relative, 0.0)
        return torch.cat((once, *found, blind, counted.double()), dim=1)

    def _check(self, grid: Grid) -> None:
        own = self.spec.grid
        if grid.shape != own.shape or not math.isclose(grid.dx / grid.dy, own.dx / own.dy):
            raise ValueError(
                f"expected frames on a grid like {own.shape} with dx / dy = {own.dx / own.dy:g}, "
                f"found {grid.shape} with {grid.dx / grid.dy:g}; spectra of both do not add up"
            )

    def values(self, sums: Float[Tensor, "*draws k"]) -> Float[Tensor, "*draws entry"]:
        _, truth, answer, error = self._spectra(sums)
        floor = FLOOR * truth.sum(-1, keepdim=True)
        resolved = truth > floor
        apart = (torch.maximum(answer, floor) / truth).log10().square()
        total = torch.where(resolved, apart, 0.0).sum(-1)
        log_error = ratio(total, resolved.sum(-1).to(total)).sqrt()
        slopes = [_slope(torch.maximum(part, floor)) for part in (answer, truth)]
        blind, counted = sums[..., -2 * len(BANDS) :].unflatten(-1, (2, -1)).unbind(-2)
        seen = [ratio(_band(error, band).sum(-1), _band(truth, band).sum(-1)) for band in BANDS]
        found = (log_error, (slopes[0] - slopes[1]).abs(), *slopes)
        return torch.cat(
            (torch.stack(found, -1), ratio(blind, counted), torch.stack(seen, -1)), dim=-1
        )

    def curves(self, sums: Float[Tensor, "*draws k"]) -> dict[str, Float[Tensor, "*draws ring"]]:
        """Mean spectra of truth, prediction and error, over ``wave_numbers``, for pictures."""
        count, *spectra = self._spectra(sums)
        names = ("truth", "prediction", "error")
        return {name: part / count for name, part in zip(names, spectra, strict=True)}

    def _spectra(self, sums: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        rings = num_rings(self.spec.grid)
        truth, answer, error = sums[..., 1 : 1 + 3 * rings].unflatten(-1, (3, rings)).unbind(-2)
        return sums[..., :1], truth, answer, error


def _band(spectrum: Float[Tensor, "*n k"], band: str) -> Float[Tensor, "*n j"]:
    """The rings of a band."""
    low, high = (int(share * spectrum.shape[-1] + 1e-9) for share in BANDS[band])
    return spectrum[..., low:high]


def _slope(spectrum: Float[Tensor, "*n k"]) -> Float[Tensor, "*n"]:
    """Of the straight line through the logarithms, over ``SLOPE_RANGE``; NaN without energy."""
    rings = spectrum.shape[-1]
    low, high = math.ceil(SLOPE_RANGE[0] * rings), math.floor(SLOPE_RANGE[1] * rings)
    places = torch.arange(low, high + 1, dtype=spectrum.dtype, device=spectrum.device).log10()
    places = places - places.mean()
    heights = spectrum[..., low - 1 : high].log10()
    slope = (heights * places).sum(-1) / places.square().sum()
    return torch.where(slope.isfinite(), slope, torch.nan)
