"""Spectra in time and memory, of signals whose spectra are known."""

import math
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from pibert.evaluation.measure import Frames
from pibert.evaluation.temporal import (
    Temporal,
    autocorrelation,
    correlation_time,
    power_density,
    probe_series,
)
from pibert.fields import FieldSpec, Grid

SHAPE, DT = (20, 36), 0.04


def spec(body: Tensor | None = None, **changes: object) -> FieldSpec:
    grid = Grid(SHAPE, dx=0.1, dy=0.2, body=body)
    return replace(FieldSpec(grid=grid, dt=DT), **changes)  # type: ignore[arg-type]


def disc() -> Tensor:
    """Rows 8 to 12, columns 5 to 9."""
    body = torch.zeros(SHAPE, dtype=torch.bool)
    body[8:13, 5:10] = True
    return body


def frames_of(
    truth: Tensor, prediction: Tensor, what: FieldSpec, known: Tensor | None = None
) -> Frames:
    solid = what.grid.body
    body = None if solid is None else solid.expand(len(truth), *SHAPE)
    if known is None:
        known = torch.ones(len(truth), *SHAPE, dtype=torch.bool)
        known = known if body is None else known & ~body
    return Frames(prediction=prediction, truth=truth, last=truth, known=known, body=body, spec=what)


def waves(frequency: float, count: int, amplitude: float = 1.0, mean: float = 3.0) -> Tensor:
    """Velocities that oscillate alike everywhere, v at the frequency and u at twice of it."""
    t = torch.arange(count, dtype=torch.float64) * DT
    u = mean + 0.5 * amplitude * torch.sin(4 * math.pi * frequency * t)
    v = amplitude * torch.cos(2 * math.pi * frequency * t)
    return torch.stack((u, v), 1)[:, :, None, None].expand(-1, -1, *SHAPE).clone()


def values(frames: list[Frames]) -> dict[tuple[str, str], float]:
    measure = Temporal(spec=frames[0].spec)
    rows = torch.cat([measure.terms(part) for part in frames])
    assert rows.dtype == torch.float64 and len(rows) == len(frames)
    found = measure.values(rows.sum(0)).tolist()
    keys = [(entry.metric, entry.component) for entry in measure.entries]
    return dict(zip(keys, found, strict=True))


def test_the_density_is_that_of_the_definition() -> None:
    generator = torch.Generator().manual_seed(0)
    for count in (9, 12):
        x = torch.randn(count, generator=generator, dtype=torch.float64) + 5
        frequency, power = power_density(x, DT)
        window = 0.5 - 0.5 * np.cos(2 * np.pi * np.arange(count) / count)
        places = np.arange(count // 2 + 1)
        waves = np.abs(np.fft.rfft(window * (x - x.mean()).numpy())) ** 2
        sides = np.where((places == 0) | (2 * places == count), 1, 2)
        np.testing.assert_allclose(frequency, places / (count * DT))
        expected = sides * DT * waves / (window**2).sum()
        np.testing.assert_allclose(power, expected, rtol=1e-9, atol=1e-12)


def test_probes_of_a_wake_are_tied_to_the_body() -> None:
    truth = waves(1.0, 30)
    series = probe_series(frames_of(truth, truth, spec(disc())))
    # D = 5 rows of 0.2 = 10 columns of 0.1; the centre is row 10, column 7.
    rows, columns = (8, 10, 12), (17, 22, 27)  # 3 D is outside the grid; 2.5 rows round to even
    assert series.probes == tuple((row, column) for column in columns for row in rows)


def test_without_a_body_probes_are_a_lattice_of_points_that_are_mostly_known() -> None:
    truth = waves(1.0, 30)
    known = torch.ones(30, *SHAPE, dtype=torch.bool)
    known[:4, 2, 4] = False  # known in 26 of 30 frames: too few
    known[7, 7, 13] = False
    series = probe_series(frames_of(truth, truth, spec(), known))
    assert len(series.probes) == 15
    assert (2, 4) not in series.probes and (7, 13) in series.probes


def test_what_is_missing_is_bridged_in_time() -> None:
    truth = waves(0.5, 40)
    ramp = truth + torch.arange(40)[:, None, None, None]
    known = torch.ones(40, *SHAPE, dtype=torch.bool)
    spoiled = ramp.clone()
    known[10:12, 7, 13] = False
    spoiled[10:12, :, 7, 13] = 1e6
    series = probe_series(frames_of(spoiled, spoiled, spec(), known))
    probe = series.probes.index((7, 13))
    before, after = ramp[9, 0, 7, 13], ramp[12, 0, 7, 13]
    expected = torch.stack([before + (after - before) * k / 3 for k in (1, 2)])
    assert torch.allclose(series.truth[10:12, probe, 0], expected)
    assert torch.equal(series.truth, series.prediction)
    other = series.probes.index((2, 4))
    assert torch.equal(series.truth[:, other, 1], ramp[:, 1, 2, 4])


def test_a_prediction_of_twice_the_amplitude_has_four_times_the_energy() -> None:
    generator = torch.Generator().manual_seed(0)
    truth = torch.randn(64, 2, *SHAPE, generator=generator, dtype=torch.float64)
    prediction = truth * torch.tensor([2.0, 1.0])[:, None, None]
    found = values([frames_of(truth, prediction, spec(disc()))])
    for band in ("low", "mid", "high"):
        assert math.isclose(found[f"psd_ratio_{band}", "u"], 4.0, rel_tol=1e-9)
        assert math.isclose(found[f"psd_ratio_{band}", "v"], 1.0, rel_tol=1e-9)
        assert math.isclose(found[f"psd_ratio_{band}", "all"], 2.5, rel_tol=1e-9)
    assert math.isclose(found["psd_log_error", "u"], math.log10(4), rel_tol=1e-4)
    assert math.isclose(found["psd_log_error", "v"], 0.0, abs_tol=1e-12)


def test_the_autocorrelation_is_that_of_the_definition() -> None:
    x = torch.randn(12, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64) + 4
    apart = x - x.mean(0)
    found = autocorrelation(x)
    assert len(found) == 7
    variance = (apart * apart).sum() / 12
    for lag in range(7):
        expected = (apart[: 12 - lag] * apart[lag:]).sum() / (12 - lag) / variance
        assert math.isclose(float(found[lag]), float(expected), abs_tol=1e-12)


def test_what_does_not_decay_has_no_correlation_time() -> None:
    assert correlation_time(torch.full((50, 2), 0.1, dtype=torch.float64)) is None
    slow = torch.cos(math.pi * torch.arange(50, dtype=torch.float64) / 500)[:, None]
    assert correlation_time(slow[:1]) is None


def test_a_trajectory_too_short_for_a_spectrum_says_nothing() -> None:
    truth = waves(1.5, 7)
    assert all(math.isnan(value) for value in values([frames_of(truth, truth, spec())]).values())
