"""Errors by scale: pooling and Haar bands by hand, spectra against loops and known waves."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from pibert.evaluation.measure import Frames
from pibert.evaluation.scales import (
    FLOOR,
    GROUPS,
    HAAR_BANDS,
    SCALES,
    HaarBands,
    PooledScales,
    Spectra,
    num_rings,
    radial_spectrum,
    wavenumbers,
)
from pibert.fields import FieldSpec, Grid
from tests.evaluation.masked_frames import NORMALIZER, SPEC, make_body, make_frames, values_of

FRAMES = make_frames(body=make_body(moving=True))


def pooled_nmse(frames, size: int, channels: list[int], scales=(1.0, 1.0, 1.0)) -> float:
    error = energy = 0.0
    ny, nx = frames.known.shape[1:]
    for t, c in np.ndindex(len(frames.known), len(channels)):
        channel = channels[c]
        for j, i in np.ndindex(ny // size, nx // size):
            cell = (slice(j * size, (j + 1) * size), slice(i * size, (i + 1) * size))
            known = frames.known[(t, *cell)]
            if int(known.sum()) * 2 < size * size:
                continue
            p, y = (
                float(f[(t, channel, *cell)][known].mean()) / scales[channel]
                for f in (frames.prediction, frames.truth)
            )
            error += (p - y) ** 2
            energy += y**2
    return error / energy


@pytest.mark.parametrize("size", SCALES)
def test_pooled_errors_are_those_of_a_loop_over_cells(size: int) -> None:
    found = values_of(PooledScales(spec=SPEC, normalizer=NORMALIZER), FRAMES)
    for component, channels in {"u": [0], "v": [1], "all": [0, 1]}.items():
        expected = pooled_nmse(FRAMES, size, channels)
        assert found[f"scale_{size}_nmse", component] == pytest.approx(expected, rel=1e-12)


def coefficient(f: np.ndarray, band: str, j: int, i: int) -> float:
    """An inner product with the Haar function itself."""
    size = 2 ** int(band[2])
    cell = f[j * size : (j + 1) * size, i * size : (i + 1) * size]
    step = np.repeat([1.0, -1.0], size // 2)
    along_x = step if band[0] == "H" else np.ones(size)
    along_y = step if band[1] == "H" else np.ones(size)
    return float((cell * np.outer(along_y, along_x)).sum() / size)


@pytest.mark.parametrize("band", HAAR_BANDS)
def test_band_errors_are_those_of_inner_products_with_haar_functions(band: str) -> None:
    found = values_of(HaarBands(spec=SPEC), FRAMES)
    size = 2 ** int(band[2])
    for c, channel in enumerate(SPEC.channels):
        error = energy = 0.0
        for t, j, i in np.ndindex(5, 13 // size, 22 // size):
            cell = (t, slice(j * size, (j + 1) * size), slice(i * size, (i + 1) * size))
            if not bool(FRAMES.known[cell].all()):
                continue
            truth = coefficient(FRAMES.truth[t, c].numpy(), band, j, i)
            error += (coefficient(FRAMES.prediction[t, c].numpy(), band, j, i) - truth) ** 2
            energy += truth**2
        assert found["haar_nmse", f"{channel}_{band}"] == pytest.approx(error / energy, rel=1e-11)


def test_groups_of_the_published_bands_are_the_published_groups() -> None:
    # PIBERT on the cylinder: sub-band NMSEs and their groups, as published.
    u = "0.444497 0.257064 1.08333 0.298702 0.217086 0.729208 0.135829 0.0572294 0.311729 0.0113706"
    v = "0.331403 0.543149 1.01016 0.179759 0.355837 0.648043 0.067959 0.183043 0.256971 0.0389022"
    nmse = torch.tensor([[float(n) for n in row.split()] for row in (u, v)], dtype=torch.float64)
    sums = torch.stack((nmse, torch.ones_like(nmse)), dim=-1).flatten()
    groups = HaarBands(spec=SPEC).values(sums)[-len(GROUPS) :]
    assert groups.tolist() == pytest.approx([0.1329, 0.4048, 0.6116], abs=5e-5)


BOX = Grid.periodic((24, 30), dx=0.5, dy=0.25)  # 15 long and 6 high


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


def brute_spectrum(fields: np.ndarray, known: np.ndarray, grid: Grid) -> np.ndarray:
    """Of one frame, mode by mode of the full transform."""
    ny, nx = grid.shape
    rows = np.hanning(ny) if not grid.periodic_y else np.ones(ny)
    columns = np.hanning(nx) if not grid.periodic_x else np.ones(nx)
    shape = np.outer(rows, columns)
    shape /= np.sqrt(np.mean(shape**2))
    length = max(ny * grid.dy, nx * grid.dx)
    spectrum = np.zeros(num_rings(grid))
    for channel in fields:
        windowed = np.where(known, channel - channel[known].mean(), 0.0) * shape
        energy = np.abs(np.fft.fft2(windowed) / (ny * nx)) ** 2 / 2
        ky, kx = np.fft.fftfreq(ny, grid.dy), np.fft.fftfreq(nx, grid.dx)
        rings = np.rint(np.hypot(ky[:, None], kx) * length).astype(int)
        for ring in range(1, len(spectrum) + 1):
            spectrum[ring - 1] += energy[rings == ring].sum()
    return spectrum


def test_spectra_of_masked_fields_are_those_of_a_loop_over_modes() -> None:
    found = radial_spectrum(FRAMES.truth, FRAMES.known, SPEC.grid)
    for t in (0, 3):
        expected = brute_spectrum(FRAMES.truth[t].numpy(), FRAMES.known[t].numpy(), SPEC.grid)
        np.testing.assert_allclose(found[t], expected, rtol=1e-11)


def test_errors_follow_from_the_spectra_as_stated() -> None:
    measure = Spectra(spec=SPEC)
    found = values_of(measure, FRAMES)
    truth, answer, error = (
        np.stack(
            [brute_spectrum(f[t].numpy(), FRAMES.known[t].numpy(), SPEC.grid) for t in range(5)]
        )
        for f in (FRAMES.truth, FRAMES.prediction, FRAMES.prediction - FRAMES.truth)
    )
    mean = [part.mean(0) for part in (truth, answer, error)]
    log_error = np.sqrt(np.mean(np.log10(mean[1] / mean[0]) ** 2))
    assert found["spectral_log_error", "kinetic_energy"] == pytest.approx(log_error, rel=1e-10)
    l2 = np.linalg.norm(mean[1] - mean[0]) / np.linalg.norm(mean[0])
    assert found["spectral_rel_l2", "kinetic_energy"] == pytest.approx(l2, rel=1e-10)
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
    assert len(wavenumbers(SPEC.grid)) == len(curves["error"]) == 11


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
