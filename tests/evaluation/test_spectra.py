"""Spectra of waves that are known exactly, and errors of spectra by loops over modes."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor

from pibert.evaluation.measure import Frames
from pibert.evaluation.spectra import (
    BANDS,
    FLOOR,
    Spectra,
    num_rings,
    radial_spectrum,
    wave_numbers,
)
from pibert.fields import FieldSpec, Grid
from tests.evaluation.masked_frames import SPEC, make_body, make_frames, values_of

BOX = Grid.periodic((24, 30), dx=0.5, dy=0.25)  # 15 long and 6 high
FRAMES = make_frames(body=make_body(moving=True))


def wave(grid: Grid, along_x: int, along_y: int, phase: float = 0.0) -> Tensor:
    ny, nx = grid.shape
    y, x = torch.meshgrid(
        torch.arange(ny, dtype=torch.float64) / ny,
        torch.arange(nx, dtype=torch.float64) / nx,
        indexing="ij",
    )
    return torch.cos(2 * math.pi * (along_x * x + along_y * y) + phase)


def whole(grid: Grid, count: int = 1) -> Tensor:
    return torch.ones(count, *grid.shape, dtype=torch.bool)


def test_rings_reach_as_far_as_both_directions_resolve() -> None:
    assert num_rings(BOX) == 15  # 15 long, waves of at least 2 * 0.5
    assert num_rings(Grid((64, 64), 0.1, 0.1)) == 32
    assert wave_numbers(BOX)[4].item() == pytest.approx(2 * math.pi * 5 / 15)


@pytest.mark.parametrize(
    ("along_x", "along_y", "ring"), [(5, 0, 5), (0, 2, 5), (3, 2, 6), (-3, 2, 6), (15, 0, 15)]
)
def test_a_wave_lies_in_the_ring_of_its_physical_wave_number(
    along_x: int, along_y: int, ring: int
) -> None:
    # 15 / 6 = 2.5 waves of the long side are one of the short side; (3, 2): sqrt(9 + 25) = 5.8.
    fields = 3 + torch.stack((wave(BOX, along_x, along_y), torch.zeros(BOX.shape)))[None]
    spectrum = radial_spectrum(fields.double(), whole(BOX), BOX)[0]
    expected = torch.zeros(15, dtype=torch.float64)
    expected[ring - 1] = 0.5 if along_x == 15 else 0.25  # Nyquist: the square is 1 everywhere
    torch.testing.assert_close(spectrum, expected, rtol=1e-12, atol=1e-12)


def test_rings_add_up_to_the_energy_of_smooth_fluctuations() -> None:
    waves = [(1, 0), (2, 1), (-4, 2), (7, 3)]
    u = sum((wave(BOX, a, b, phase=a) for a, b in waves), torch.zeros(BOX.shape)) + 2
    fields = torch.stack((u, u.flip(0) * 0.3))[None]
    apart = fields - fields.mean((2, 3), keepdim=True)
    energy = apart.square().sum(1).mean() / 2
    torch.testing.assert_close(radial_spectrum(fields, whole(BOX), BOX).sum(), energy)


def brute_spectrum(fields: np.ndarray, known: np.ndarray, grid: Grid, window: bool) -> np.ndarray:
    """Of one frame, mode by mode of the full transform."""
    ny, nx = grid.shape
    rows = np.hanning(ny) if window and not grid.periodic_y else np.ones(ny)
    columns = np.hanning(nx) if window and not grid.periodic_x else np.ones(nx)
    shape = np.outer(rows, columns)
    shape /= np.sqrt(np.mean(shape**2))
    length = max(ny * grid.dy, nx * grid.dx)
    spectrum = np.zeros(num_rings(grid))
    for channel in fields:
        apart = np.where(known, channel - channel[known].mean(), 0.0) * shape
        modes = np.fft.fft2(apart) / (ny * nx)
        for j, i in np.ndindex(ny, nx):
            ky, kx = (m - n if 2 * m > n else m for m, n in ((j, ny), (i, nx)))
            ring = round(np.hypot(ky / (ny * grid.dy), kx / (nx * grid.dx)) * length)
            if 1 <= ring <= len(spectrum):
                spectrum[ring - 1] += abs(modes[j, i]) ** 2 / 2
    return spectrum


@pytest.mark.parametrize("window", [False, True])
def test_spectra_of_masked_fields_are_those_of_a_loop_over_modes(window: bool) -> None:
    found = radial_spectrum(FRAMES.truth, FRAMES.known, SPEC.grid, window=window)
    for t in (0, 3):
        expected = brute_spectrum(
            FRAMES.truth[t].numpy(), FRAMES.known[t].numpy(), SPEC.grid, window
        )
        np.testing.assert_allclose(found[t], expected, rtol=1e-11)


def test_errors_follow_from_the_spectra_as_stated() -> None:
    measure = Spectra(spec=SPEC)
    found = values_of(measure, FRAMES)
    truth, answer, error = (
        np.stack(
            [
                brute_spectrum(f[t].numpy(), FRAMES.known[t].numpy(), SPEC.grid, True)
                for t in range(5)
            ]
        )
        for f in (FRAMES.truth, FRAMES.prediction, FRAMES.prediction - FRAMES.truth)
    )
    mean = [part.mean(0) for part in (truth, answer, error)]
    log_error = np.sqrt(np.mean(np.log10(mean[1] / mean[0]) ** 2))
    assert found["spectral_log_error", "kinetic_energy"] == pytest.approx(log_error, rel=1e-10)
    rings = np.arange(1, 12)  # 6.6 long, waves of at least 0.6
    fitted = (rings >= 11 / 8) & (rings <= 11 / 2)
    slopes = [
        np.polyfit(np.log10(rings[fitted]), np.log10(part[fitted]), 1)[0] for part in mean[:2]
    ]
    assert found["spectral_slope", "truth"] == pytest.approx(slopes[0], rel=1e-9)
    assert found["spectral_slope_error", "kinetic_energy"] == pytest.approx(
        abs(slopes[1] - slopes[0]), rel=1e-8
    )
    bands = {"low": rings <= 11 / 3, "mid": (rings > 11 / 3) & (rings <= 22 / 3)}
    bands["high"] = rings > 22 / 3
    for name, band in bands.items():
        apart = np.linalg.norm((answer - truth)[:, band], axis=1)
        blind = np.mean(apart / np.linalg.norm(truth[:, band], axis=1))
        assert found["band_spectrum_error", name] == pytest.approx(blind, rel=1e-10)
        seen = mean[2][band].sum() / mean[0][band].sum()
        assert found["band_nmse", name] == pytest.approx(seen, rel=1e-10)
    curves = measure.curves(measure.terms(FRAMES).sum(0))
    np.testing.assert_allclose(curves["prediction"], mean[1], rtol=1e-11)
    assert len(wave_numbers(SPEC.grid)) == len(curves["error"]) == 11


def wave_frames(truth: Tensor, answer: Tensor) -> Frames:
    spec = FieldSpec(grid=BOX)
    fields = [torch.stack((f, 0.5 * f))[None] for f in (truth, answer)]
    return Frames(
        prediction=fields[1],
        truth=fields[0],
        last=fields[0],
        known=whole(BOX),
        body=None,
        spec=spec,
    )


def test_a_wave_in_the_wrong_place_is_seen_by_the_error_energy_alone() -> None:
    truth = wave(BOX, 2, 0) + 0.1 * wave(BOX, 7, 1) + 0.01 * wave(BOX, 13, 0)
    moved = wave(BOX, 2, 0) + 0.1 * wave(BOX, 7, 1, math.pi) + 0.01 * wave(BOX, 13, 0)
    found = values_of(Spectra(spec=FieldSpec(grid=BOX)), wave_frames(truth, moved))
    assert [found["band_nmse", b] for b in BANDS] == pytest.approx([0.0, 4.0, 0.0], abs=1e-12)
    assert [found["band_spectrum_error", b] for b in BANDS] == pytest.approx([0.0] * 3, abs=1e-9)


def test_a_power_law_has_its_slope_and_a_damped_one_the_steeper() -> None:
    spectra = {power: np.arange(1, 16.0) ** -power for power in (5 / 3, 3.0)}
    measure = Spectra(spec=FieldSpec(grid=BOX))
    truth, answer = torch.tensor(spectra[5 / 3]), torch.tensor(spectra[3.0])
    sums = torch.cat((torch.ones(1), truth, answer, truth, torch.ones(6))).double()
    values = dict(
        zip(((e.metric, e.component) for e in measure.entries), measure.values(sums), strict=True)
    )
    assert float(values["spectral_slope", "truth"]) == pytest.approx(-5 / 3)
    assert float(values["spectral_slope_error", "kinetic_energy"]) == pytest.approx(4 / 3)
    expected = np.sqrt(np.mean((4 / 3 * np.log10(np.arange(1, 16))) ** 2))
    assert float(values["spectral_log_error", "kinetic_energy"]) == pytest.approx(expected)


def test_rings_of_rounding_alone_and_empty_predictions_give_finite_logarithms() -> None:
    truth = wave(BOX, 2, 0) + 0.1 * wave(BOX, 7, 1)
    frames = wave_frames(truth, truth + 1e-9 * wave(BOX, 11, 0))
    measure = Spectra(spec=frames.spec)
    assert values_of(measure, frames)["spectral_log_error", "kinetic_energy"] < 1e-7
    empty = values_of(measure, wave_frames(truth, torch.zeros_like(truth)))
    assert 5 < empty["spectral_log_error", "kinetic_energy"] < -math.log10(FLOOR)
    nothing = values_of(measure, wave_frames(torch.zeros_like(truth), truth))
    assert all(
        math.isnan(v) for key, v in nothing.items() if key != ("spectral_slope", "prediction")
    )


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ValueError, match="resolves 4"):
        Spectra(spec=FieldSpec(grid=Grid((8, 8))))
    other = replace(SPEC, grid=replace(SPEC.grid, dx=0.2))
    with pytest.raises(ValueError, match="do not add up"):
        Spectra(spec=SPEC).terms(replace(FRAMES, spec=other))
