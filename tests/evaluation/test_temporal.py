"""Spectra in time and memory, of signals whose spectra are known."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from pibert.evaluation.measure import Frames, Measure
from pibert.evaluation.probes import probe_series
from pibert.evaluation.temporal import (
    Temporal,
    autocorrelation,
    correlation_time,
    power_density,
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


def test_it_is_a_measure_of_sequences() -> None:
    measure = Temporal(spec=spec())
    assert isinstance(measure, Measure) and measure.of_sequences


def test_the_density_is_that_of_the_definition() -> None:
    generator = torch.Generator().manual_seed(0)
    for count in (9, 12):
        x = torch.randn(count, generator=generator, dtype=torch.float64) + 5
        frequency, power = power_density(x, DT)
        w = [0.5 - 0.5 * math.cos(2 * math.pi * t / count) for t in range(count)]
        mean = float(x.mean())
        for place in range(count // 2 + 1):
            f = place / (count * DT)
            total = sum(
                w[t] * (float(x[t]) - mean) * complex(math.cos(a), -math.sin(a))
                for t in range(count)
                for a in [2 * math.pi * f * t * DT]
            )
            single = place == 0 or 2 * place == count
            expected = (1 if single else 2) * DT * abs(total) ** 2 / sum(v * v for v in w)
            assert math.isclose(float(frequency[place]), f)
            assert math.isclose(float(power[place]), expected, rel_tol=1e-9, abs_tol=1e-12)


def test_the_density_of_a_wave_adds_up_to_its_variance_whatever_the_time_step() -> None:
    for dt in (0.01, 2.0):
        t = torch.arange(400, dtype=torch.float64)
        frequency, power = power_density(3 * torch.sin(2 * math.pi * t * 0.1), dt)
        assert math.isclose(float(power.sum() * frequency[1]), 4.5, rel_tol=1e-3)
        assert math.isclose(float(frequency[power.argmax()]), 0.1 / dt)


def test_probes_of_a_wake_are_tied_to_the_body() -> None:
    truth = waves(1.0, 30)
    series = probe_series(frames_of(truth, truth, spec(disc())))
    assert series.rule == "wake" and series.channels == ("u", "v")
    # D = 5 rows of 0.2 = 10 columns of 0.1; the centre is row 10, column 7.
    rows, columns = (8, 10, 12), (17, 22, 27)  # 3 D is outside the grid; 2.5 rows round to even
    assert series.places == tuple((row, column) for column in columns for row in rows)


def test_probes_follow_the_last_body_downstream_and_where_a_moving_one_mostly_is() -> None:
    body = torch.zeros(30, *SHAPE, dtype=torch.bool)
    body[:, 9:11, 0:2] = True
    body[:, 4:8, 10:14] = True
    body[:5] = body[:5].roll(1, 1)
    truth = waves(1.0, 30)
    frames = replace(frames_of(truth, truth, spec()), body=body)
    series = probe_series(frames)
    # D = 4 rows = 8 columns; the centre is row 5.5, column 11.5.
    assert series.places[:3] == ((4, 20), (6, 20), (8, 20))


def test_without_a_body_probes_are_a_lattice_of_points_that_are_mostly_known() -> None:
    truth = waves(1.0, 30)
    known = torch.ones(30, *SHAPE, dtype=torch.bool)
    known[:4, 2, 4] = False  # known in 26 of 30 frames: too few
    known[7, 7, 13] = False
    series = probe_series(frames_of(truth, truth, spec(), known))
    assert series.rule == "lattice" and len(series.places) == 15
    assert (2, 4) not in series.places and (7, 13) in series.places


def test_what_is_missing_is_bridged_in_time() -> None:
    truth = waves(0.5, 40)
    ramp = truth + torch.arange(40)[:, None, None, None]
    known = torch.ones(40, *SHAPE, dtype=torch.bool)
    spoiled = ramp.clone()
    known[10:12, 7, 13] = False
    spoiled[10:12, :, 7, 13] = 1e6
    series = probe_series(frames_of(spoiled, spoiled, spec(), known))
    probe = series.places.index((7, 13))
    before, after = ramp[9, 0, 7, 13], ramp[12, 0, 7, 13]
    expected = torch.stack([before + (after - before) * k / 3 for k in (1, 2)])
    assert torch.allclose(series.truth[10:12, probe, 0], expected)
    assert torch.equal(series.truth, series.prediction)
    other = series.places.index((2, 4))
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


def test_a_prediction_smooth_in_time_lacks_energy_in_the_high_band_alone() -> None:
    t = torch.arange(120, dtype=torch.float64)
    parts = [torch.sin(2 * math.pi * t * f) for f in (0.1, 0.25, 0.4)]  # one in every third
    truth = torch.stack(parts).sum(0)[:, None, None, None].expand(-1, 2, *SHAPE).clone()
    prediction = (parts[0] + parts[1])[:, None, None, None].expand(-1, 2, *SHAPE).clone()
    found = values([frames_of(truth, prediction, spec())])
    ratios = [found[f"psd_ratio_{band}", "u"] for band in ("low", "mid", "high")]
    assert ratios[0] == pytest.approx(1, abs=1e-3) and ratios[1] == pytest.approx(1, abs=1e-3)
    assert ratios[2] < 1e-3


def test_bands_are_thirds_whose_ends_belong_to_the_lower_one() -> None:
    t = torch.arange(48, dtype=torch.float64)  # frequencies 1 to 24 per record
    for place, band in ((2, "low"), (7, "low"), (10, "mid"), (15, "mid"), (18, "high")):
        wave = torch.sin(2 * math.pi * t * place / 48)[:, None, None, None]
        frames = frames_of(*2 * (wave.expand(-1, 2, *SHAPE),), spec())
        measure = Temporal(spec=frames.spec)
        energies = measure.terms(frames)[0, :12].unflatten(0, (2, 2, 3))[0, 1]
        # The window spreads a wave over its two neighbours.
        assert ("low", "mid", "high")[int(energies.argmax())] == band
        assert float(energies.max() / energies.sum()) > 0.999


def test_trajectories_add_up() -> None:
    what = spec(reference_length=1.0, reference_velocity=1.0)
    parts = [
        frames_of(waves(1.5, 100), waves(1.8, 100), what),
        frames_of(waves(2.0, 150), waves(2.0, 150, amplitude=0.5), what),
    ]
    apart, together = [values([part]) for part in parts], values(parts)
    for key in (("psd_log_error", "u"), ("psd_log_error", "v")):
        assert math.isclose(together[key], (apart[0][key] + apart[1][key]) / 2, rel_tol=1e-9)
    # Energies are added before they are divided.
    assert apart[1]["psd_ratio_low", "v"] < together["psd_ratio_low", "v"] < 1


def test_a_trajectory_too_short_for_a_spectrum_says_nothing() -> None:
    truth = waves(1.5, 7)
    assert all(math.isnan(value) for value in values([frames_of(truth, truth, spec())]).values())


def test_a_prediction_that_stands_still_has_no_energy() -> None:
    truth = waves(1.5, 100)
    found = values([frames_of(truth, torch.zeros_like(truth), spec())])
    assert found["psd_ratio_low", "v"] == 0
    assert math.isfinite(found["psd_log_error", "v"]) and found["psd_log_error", "v"] > 0.3


def test_steps_from_true_frames_claim_no_frequency_of_the_model() -> None:
    """Persistence repeats the truth a step late: its rhythm is right whatever the flow does."""
    truth = waves(1.5, 100)
    late = torch.cat((truth[:1], truth[:-1]))
    found = values([frames_of(truth[1:], late[1:], spec(disc()))])
    assert found["psd_ratio_low", "v"] == pytest.approx(1, abs=0.05)
    assert {metric for metric, _ in found} == {
        *(f"psd_ratio_{band}" for band in ("low", "mid", "high")),
        "psd_log_error",
    }


def test_the_autocorrelation_is_that_of_the_definition() -> None:
    x = torch.randn(12, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64) + 4
    apart = x - x.mean(0)
    found = autocorrelation(x)
    assert len(found) == 7
    variance = (apart * apart).sum() / 12
    for lag in range(7):
        expected = (apart[: 12 - lag] * apart[lag:]).sum() / (12 - lag) / variance
        assert math.isclose(float(found[lag]), float(expected), abs_tol=1e-12)


def test_the_correlation_time_is_the_memory_of_the_signal() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(4000, 8, generator=generator, dtype=torch.float64)
    for t in range(1, len(x)):
        x[t] = 0.9 * x[t - 1] + math.sqrt(1 - 0.81) * x[t]
    found = correlation_time(x + 100)
    assert found is not None and abs(found / (-1 / math.log(0.9)) - 1) < 0.1
    wave = torch.sin(2 * math.pi * torch.arange(4000, dtype=torch.float64) / 100)[:, None]
    periodic = correlation_time(wave)
    assert periodic is not None and abs(periodic - 100 * math.acos(math.exp(-1)) / 6.2832) < 0.1


def test_what_does_not_decay_has_no_correlation_time() -> None:
    assert correlation_time(torch.full((50, 2), 0.1, dtype=torch.float64)) is None
    slow = torch.cos(math.pi * torch.arange(50, dtype=torch.float64) / 500)[:, None]
    assert correlation_time(slow[:1]) is None
