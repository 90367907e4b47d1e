"""Statistics of free-running flows, against flows whose statistics are known."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from pibert.evaluation.measure import Frames
from pibert.evaluation.rollouts import always_fluid
from pibert.evaluation.statistics import Statistics, dominant_frequency, drag_terms, mean_frequency
from pibert.evaluation.temporal import power_density
from pibert.fields import FieldSpec, Grid, MovingBody, Normalizer

SHAPE, FRAMES, DT = (16, 24), 200, 0.1
SPEC = FieldSpec(
    channels=("u", "v"),
    units=("m/s", "m/s"),
    grid=Grid.periodic(SHAPE),
    dt=DT,
)
STATISTICS = Statistics(spec=SPEC, normalizer=Normalizer(mean=(0.0, 0.0), std=(1.0, 1.0)))


def wave(
    amplitude: float = 1.0, *, frequency: float = 0.55, phase: float = 0.0, mean: float = 2.0
) -> Tensor:
    """A travelling wave, u = mean + A cos, v = A sin: stresses uu = vv = A^2 / 2, uv = 0."""
    t = DT * torch.arange(FRAMES, dtype=torch.float64)[:, None, None]
    x = 2 * math.pi * torch.arange(SHAPE[1], dtype=torch.float64) / SHAPE[1]
    angle = (x - 2 * math.pi * frequency * t + phase).expand(FRAMES, *SHAPE)
    return torch.stack((mean + amplitude * angle.cos(), amplitude * angle.sin()), 1)


def frames_of(prediction: Tensor, truth: Tensor | None = None, **others: object) -> Frames:
    truth = wave() if truth is None else truth
    known = torch.ones(len(truth), *SHAPE, dtype=torch.bool)
    made = Frames(prediction=prediction, truth=truth, last=truth, known=known, body=None, spec=SPEC)
    return replace(made, **others)  # type: ignore[arg-type]


def values(frames: Frames) -> dict[str, float]:
    found = STATISTICS.values(STATISTICS.terms(frames))
    return {e.metric: float(v) for e, v in zip(STATISTICS.entries, found, strict=True)}


def test_a_body_that_moves_in_another_phase_leaves_the_statistics_as_they_are() -> None:
    fluid = torch.ones(2, FRAMES, *SHAPE, dtype=torch.bool)
    for frame in range(FRAMES):
        for own, late in zip(fluid, (0, 10), strict=True):
            row = 7 + round(4 * math.sin(2 * math.pi * (frame + late) / 20))
            own[frame, row, 5:8] = False
    truth, prediction = (torch.where(own[:, None], wave(), 0.0) for own in fluid)
    frames = frames_of(prediction, truth, known=fluid[0])
    assert values(frames)["mean_error"] > 1e-4
    found = values(always_fluid(frames))
    assert found["mean_error"] == found["distribution_error"] == pytest.approx(0, abs=1e-9)


def test_each_statistic_measures_what_it_says() -> None:
    found = values(frames_of(wave(0.8, frequency=0.65, mean=2.2)))
    # 0.55 and 0.65 make whole numbers of periods: the means in time are exact.
    assert found["mean_error"] == pytest.approx(0.2**2 / 2.0**2, rel=1e-6)
    assert found["stress_error"] == pytest.approx(1 - 0.8**2, rel=1e-6)
    assert found["energy_ratio"] == pytest.approx(0.8**2, rel=1e-6)
    assert found["spectrum_ratio_low"] == pytest.approx(0.8**2, rel=1e-6)
    assert found["strouhal_error"] == pytest.approx(0.65 / 0.55 - 1, rel=5e-3)
    assert found["memory_ratio"] == pytest.approx(0.55 / 0.65, rel=0.02)
    # v: the values of A sin are stretched by 0.2, of mean distance 0.2 * 2 / pi; u: also shifted.
    stretched = 0.2 * 2 / math.pi
    assert stretched / 2 < found["distribution_error"] < stretched + 0.2


def test_distances_of_values_are_in_standard_deviations_of_the_training() -> None:
    scaled = replace(STATISTICS, normalizer=Normalizer(mean=(0.0, 0.0), std=(4.0, 4.0)))
    place = [entry.metric for entry in STATISTICS.entries].index("distribution_error")
    frames = frames_of(wave(0.8))
    plain, divided = (s.values(s.terms(frames))[place] for s in (STATISTICS, scaled))
    assert float(plain) == pytest.approx(0.2 * 2 / math.pi, rel=0.02)
    assert float(divided) == pytest.approx(float(plain) / 4)


def test_a_flow_that_stands_still_has_no_energy() -> None:
    still = wave()[:1].expand(FRAMES, -1, -1, -1)
    found = values(frames_of(still))
    assert found["stress_error"] == pytest.approx(1)
    assert found["energy_ratio"] == pytest.approx(0, abs=1e-12)
    assert found["strouhal_error"] == 1 and found["memory_ratio"] == 0
    assert found["survival"] == FRAMES


def test_a_flow_that_lags_keeps_its_statistics_though_every_frame_is_wrong() -> None:
    lag = 13
    t = wave(frequency=0.55)
    late = wave(phase=-2 * math.pi * 0.55 * lag * DT)
    assert float((late - t).square().sum() / t.square().sum()) > 0.05
    found = values(frames_of(late))
    zero = ("mean_error", "stress_error", "mean_profile_error", "stress_profile_error")
    for name in (*zero, "strouhal_error", "psd_log_error", "distribution_error"):
        assert found[name] == pytest.approx(0, abs=1e-6)
    for name in ("energy_ratio", "spectrum_ratio_low", "memory_ratio"):
        assert found[name] == pytest.approx(1, rel=1e-6)
    assert found["survival"] == FRAMES and found["diverged"] == 0


def test_profiles_are_relative_errors_along_columns() -> None:
    found = values(frames_of(wave(0.8, mean=2.2)))
    assert found["mean_profile_error"] == pytest.approx(0.2 / 2.0, rel=1e-6)
    assert found["stress_profile_error"] == pytest.approx(1 - 0.8**2, rel=1e-6)
    # Only the columns of the stations count: 11, 32 and 52 of 64.
    elsewhere = wave()
    elsewhere[..., 0] += 1
    assert values(frames_of(elsewhere))["mean_profile_error"] == pytest.approx(0, abs=1e-6)


def test_a_decaying_flow_loses_energy_but_keeps_its_frequency() -> None:
    rate = 2.0
    fade = torch.exp(-rate * torch.linspace(0, 1, FRAMES, dtype=torch.float64))
    moving = wave(mean=0.0) * fade[:, None, None, None]
    moving[:, 0] += 2.0
    found = values(frames_of(moving))
    mean_square = (1 - math.exp(-2 * rate)) / (2 * rate)  # of the factor, over the run
    assert found["energy_ratio"] == pytest.approx(mean_square, rel=0.02)
    assert found["strouhal_error"] < 0.01 and found["diverged"] == 0
    assert found["psd_log_error"] > 0.1


def test_spectra_at_probes_are_compared_by_their_logarithm() -> None:
    """Of noise the power at every frequency is 10^0.5 times as large, the floor aside."""
    torch.manual_seed(0)
    noise = torch.randn(FRAMES, 2, *SHAPE, dtype=torch.float64)
    found = values(frames_of(10**0.25 * noise, noise))
    assert found["psd_log_error"] == pytest.approx(0.5, rel=1e-3)


def test_drag_is_that_of_the_momentum_balance() -> None:
    """A sink of strength Q in a stream U has the drag U Q, and 2 Q / (U D) as its coefficient."""
    shape = (60, 80)
    grid = Grid(shape, dx=0.1, dy=0.1, origin=(-3.0, -2.95))
    x, y = grid.coordinates(torch.float64)
    body = x**2 + y**2 < 0.5**2
    spec = replace(SPEC, grid=grid, reference_velocity=2.0, reference_length=1.0, viscosity=1e-6)

    def flow(strength: float) -> Tensor:
        r2 = 2 * math.pi * (x**2 + y**2).clamp(min=0.01)
        return torch.stack((2 - strength * x / r2, -strength * y / r2)).expand(30, 2, *shape)

    known = (~body).expand(30, *shape)
    frames = Frames(
        prediction=flow(0.6), truth=flow(0.5), last=flow(0.5), known=known,
        body=body.expand(30, *shape), spec=spec,
    )  # fmt: skip
    statistics = replace(STATISTICS, spec=spec)
    found = statistics.values(statistics.terms(frames)).tolist()
    named = {(e.metric, e.component): v for e, v in zip(statistics.entries, found, strict=True)}
    assert named["drag_coefficient", "truth"] == pytest.approx(2 * 0.5 / 2, rel=5e-3)
    assert named["drag_coefficient", "prediction"] == pytest.approx(2 * 0.6 / 2, rel=5e-3)
    assert named["drag_error", "all"] == pytest.approx(0.2, rel=0.02)
    for unknown in (replace(spec, viscosity=None), replace(spec, reference_velocity=None)):
        assert drag_terms(replace(frames, spec=unknown)) == {}
    gap = known.clone()
    gap[-1, 25:35, 36:41] = False  # inside the rectangle around the body: no vector at the end
    gappy = drag_terms(replace(frames, known=gap))
    assert gappy["true_drag"] == pytest.approx(2 * 0.5 / 2, rel=5e-3)
    moving = frames.body.clone()  # type: ignore[union-attr]
    moving[3:] = moving[3:].roll(1, -1)
    assert drag_terms(replace(frames, body=moving)) == {}


@pytest.mark.parametrize("value", [math.nan, math.inf, 1e3])
def test_a_rollout_that_runs_away_survives_until_then(value: float) -> None:
    prediction = wave()
    prediction[120:, 0, 3, 4] = value
    found = values(frames_of(prediction))
    assert found["survival"] == 120 and found["diverged"] == 1
    assert math.isinf(found["mean_error"]) and math.isinf(found["strouhal_error"])


def test_drag_and_lift_of_a_moving_body_are_those_of_its_predicted_series() -> None:
    body = MovingBody(radius=2.0, displacement="y")
    spec = replace(
        SPEC, channels=("u", "v", "y", "drag", "lift"), units=("m/s", "m/s", "1", "1", "1"),
        state=("y", "drag", "lift"), bodies=(body,),
    )  # fmt: skip
    t = DT * torch.arange(FRAMES, dtype=torch.float64)

    def coupled(drag: float, lift: float, frequency: float) -> Tensor:
        turn = 2 * math.pi * frequency * t
        states = (torch.zeros_like(t), drag + 0.2 * torch.cos(2 * turn), lift * torch.sin(turn))
        spread = torch.stack(states, 1)[..., None, None].expand(-1, -1, *SHAPE)
        return torch.cat((wave(), spread), 1)

    measure = Statistics(spec=spec, normalizer=Normalizer((0.0,) * 5, (1.0,) * 5))
    known = torch.rand(FRAMES, *SHAPE, generator=torch.Generator().manual_seed(0)) > 0.2
    made = frames_of(coupled(1.2, 0.6, 0.65), coupled(1.5, 0.8, 0.55), spec=spec, known=known)
    found = {
        (e.metric, e.component): float(v)
        for e, v in zip(measure.entries, measure.values(measure.terms(made)), strict=True)
    }
    assert found["drag_coefficient", "prediction"] == pytest.approx(1.2)
    assert found["drag_coefficient", "truth"] == pytest.approx(1.5)
    assert found["drag_error", "all"] == pytest.approx(0.2)
    assert found["lift_rms_ratio", "all"] == pytest.approx(0.75)
    assert found["lift_frequency_error", "all"] == pytest.approx(0.65 / 0.55 - 1, rel=0.02)
    # Without these series nothing is known of the forces on a body that moves.
    assert math.isnan(values(frames_of(wave()))["lift_rms_ratio"])


def test_the_sampling_error_is_that_of_independent_stretches() -> None:
    """Of noise that is new in each frame: a mean over n frames has the variance s^2 / n."""
    torch.manual_seed(0)
    noise = 0.5 * torch.randn(FRAMES, 2, *SHAPE, dtype=torch.float64)
    truth = noise + torch.tensor([2.0, 1.0], dtype=torch.float64)[:, None, None]
    row = STATISTICS.sampling_terms(frames_of(truth, truth))
    found = dict(zip(STATISTICS.entries, STATISTICS.values(row).tolist(), strict=True))
    expected = 2 * 2 * 0.5**2 / FRAMES / (2.0**2 + 1.0**2)
    (error,) = (value for entry, value in found.items() if entry.metric == "mean_error")
    assert error == pytest.approx(expected, rel=0.1)


def test_unknown_points_do_not_count() -> None:
    prediction = wave(phase=0.4)
    prediction[:, :, 5:7, 8] = 1e6
    known = torch.ones(FRAMES, *SHAPE, dtype=torch.bool)
    known[:, 5:7, 8] = False
    found = values(frames_of(prediction, known=known))
    assert found["mean_error"] == pytest.approx(0, abs=1e-6) and found["survival"] == FRAMES


@pytest.mark.parametrize("unit", [1.0, 1e4])
def test_frequency_and_memory_do_not_depend_on_the_unit_of_another_channel(unit: float) -> None:
    """Velocity and temperature have other frequencies; neither hides the other by its unit."""
    t = DT * torch.arange(FRAMES, dtype=torch.float64)[:, None, None, None]

    def heated(frequency: float, other: float) -> Tensor:
        slow = (2 * math.pi * other * t).sin().expand(-1, 1, *SHAPE)
        return torch.cat((wave(frequency=frequency), unit * 0.8 * slow), 1)

    spec = replace(SPEC, channels=("u", "v", "T"), units=("m/s", "m/s", "K"))
    measure = Statistics(spec=spec, normalizer=Normalizer((0.0,) * 3, (0.7, 0.7, 0.7 * unit)))
    frames = frames_of(heated(0.65, 0.25), heated(0.55, 0.25), spec=spec)
    found = measure.values(measure.terms(frames)).tolist()
    named = {e.metric: v for e, v in zip(measure.entries, found, strict=True)}
    assert named["strouhal_error"] == pytest.approx(0.65 / 0.55 - 1, rel=0.01)
    assert named["memory_ratio"] < 0.97


def test_a_trend_has_no_frequency() -> None:
    drift = torch.linspace(0, 1, FRAMES, dtype=torch.float64)[:, None, None, None]
    assert math.isnan(values(frames_of(wave(0.1) + drift, wave(0.1) + drift))["strouhal_error"])


def test_a_flow_without_a_peak_has_no_frequency() -> None:
    torch.manual_seed(0)
    frequency, power = power_density(torch.randn(512, 1), DT)
    assert dominant_frequency(frequency, power[:, 0]) is None
    t = DT * torch.arange(512, dtype=torch.float64)
    for true in (0.4321, 1.234, 3.3):
        frequency, power = power_density(torch.sin(2 * math.pi * true * t), DT)
        assert dominant_frequency(frequency, power) == pytest.approx(true, rel=1e-3)


def test_the_frequency_of_irregular_shedding_does_not_depend_on_chance() -> None:
    """Of an oscillator that noise drives, the highest peak scatters and the mean does not."""
    rng = torch.Generator().manual_seed(0)
    damping, cycle = 0.97, 2 * math.pi * 0.2
    peaks, means = [], []
    for _ in range(40):
        x = [0.0, 0.0]
        for push in torch.randn(1000, generator=rng).tolist():
            x.append(2 * damping * math.cos(cycle) * x[-1] - damping**2 * x[-2] + push)
        frequency, power = power_density(torch.tensor(x[2:]), 1.0)
        peaks.append(dominant_frequency(frequency, power, least=0.0))
        means.append(mean_frequency(frequency, power))
    peak, mean = torch.tensor(peaks), torch.tensor(means)
    assert mean.std() < 0.5 * peak.std()
    assert float(mean.mean()) == pytest.approx(0.2, rel=0.01)


@pytest.mark.parametrize("true", [0.11, 0.4321, 1.234, 2.2])
def test_a_pure_tone_has_its_own_mean_frequency(true: float) -> None:
    t = DT * torch.arange(512, dtype=torch.float64)
    wave = torch.sin(2 * math.pi * true * t) + 0.5 * torch.sin(4 * math.pi * true * t)
    frequency, power = power_density(wave, DT)
    assert mean_frequency(frequency, power) == pytest.approx(true, rel=2e-3)
