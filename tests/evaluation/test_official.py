"""RealPDEBench's metrics against their definitions, variants, and its competition."""

import itertools
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from pibert.evaluation.measure import Frames
from pibert.evaluation.official import SIGMA, Competition, Official, mean_window
from pibert.evaluation.temporal import Probes, official_probes
from pibert.fields import FieldSpec, Grid
from tests.helpers import refused

SAMPLES, T, H, W, C = 3, 6, 8, 10, 2
SPEC = FieldSpec(
    channels=("u", "v"), units=("m/s", "m/s"), grid=Grid((H, W), dx=0.1, dy=0.3), dt=0.1
)
PROBES = ((2, 3), (5, 7), (6, 9))


def windows(seed: int = 0) -> tuple[Tensor, Tensor]:
    """Truth and prediction."""
    generator = torch.Generator().manual_seed(seed)
    target = torch.randn(SAMPLES, T, H, W, C, generator=generator, dtype=torch.float64) + 0.5
    prediction = target + torch.randn(target.shape, generator=generator, dtype=torch.float64) * 0.3
    return target, prediction


def measure_of(target: Tensor) -> Official:
    return Official(spec=SPEC, frames=T, mean=mean_window([target[:2], target[2:]]))


def named(measure: Official, rows: Tensor) -> dict[str, float]:
    found = measure.values(rows.sum(0)).tolist()
    return dict(zip([entry.metric for entry in measure.entries], found, strict=True))


def scored(probes: Probes = PROBES) -> dict[str, float]:
    target, prediction = windows()
    measure = measure_of(target)
    return named(measure, measure.window_terms(target, prediction, probes=(probes, probes)))


def shell_spectra(fields: np.ndarray, *, whole: bool = False) -> np.ndarray:
    """F(k) of each channel, (k, c), by loops over waves."""
    samples, t, h, w, c = fields.shape
    shells = min(t, h, w) // 2
    total, sizes = np.zeros((shells, c)), np.zeros(shells)
    for s, channel in itertools.product(range(samples), range(c)):
        power = np.abs(np.fft.fftn(fields[s, ..., channel])) ** 2
        limits = (t, h, w) if whole else (t // 2, h // 2, w // 2)
        for i, j, l_ in itertools.product(*map(range, limits)):
            a, b, d = (min(n, m - n) for n, m in zip((i, j, l_), (t, h, w), strict=True))
            k = math.isqrt(a * a + b * b + d * d)
            if k < shells:
                total[k, channel] += power[i, j, l_]
                sizes[k] += s == 0 and channel == 0
    total = total / sizes[:, None] if whole else total
    return np.sqrt(total / samples) / (t * h * w)


def test_pointwise_metrics_are_those_of_their_definition() -> None:
    target, prediction = (f.numpy() for f in windows())
    found, error = scored(), prediction - target
    assert math.isclose(found["official_rmse"], np.sqrt((error**2).mean()))
    assert math.isclose(found["official_mae"], np.abs(error).mean())
    squares, energy = ((f**2).sum((1, 2, 3, 4)) for f in (error, target))
    assert math.isclose(found["official_rel_l2"], np.sqrt(squares / energy).mean())
    spread = ((target - target.mean(0)) ** 2).sum()
    assert math.isclose(found["official_r2"], 1 - squares.sum() / spread)


def test_a_single_window_has_no_r2() -> None:
    assert mean_window([torch.zeros(1, T, 3, 4, 2)]) is None


def test_ke_is_the_error_of_the_fluctuation_energy_of_a_window() -> None:
    target, prediction = (f.numpy() for f in windows())
    energy = [f.var(1).sum(-1) / 2 for f in (prediction, target)]  # over time, and both components
    found = scored()
    assert math.isclose(found["official_ke"], np.abs(energy[0] - energy[1]).mean())
    assert math.isclose(found["fluctuation_energy_error"], found["official_ke"])


def test_fourier_errors_are_those_of_loops_over_waves() -> None:
    target, prediction = (f.numpy() for f in windows())
    error, truth = shell_spectra(prediction - target), shell_spectra(target)
    found = scored()
    assert error.shape == (3, 2)  # shells 0, 1 and 2: one in every third
    assert math.isclose(found["official_frmse"], error.mean())
    for k, band in enumerate(("low", "mid", "high")):
        assert math.isclose(found[f"official_frmse_{band}"], error[k].mean())
        assert math.isclose(found[f"official_rel_frmse_{band}"], (error[k] / truth[k]).mean())
    means = shell_spectra(prediction - target, whole=True)
    assert math.isclose(found["frmse_shell_mean"], means.mean())
    assert math.isclose(found["frmse_shell_mean_mid"], means[1].mean())


def test_fe_is_the_error_of_the_transform_of_the_sum_over_points_and_channels() -> None:
    target, prediction = (f.numpy() for f in windows())
    series = (prediction - target).sum((2, 3))  # (sample, t, c)
    found = scored()
    assert math.isclose(found["official_fe"], np.abs(np.fft.fft(series.sum(-1))).mean())
    point = np.abs(np.fft.fft(series, axis=1)).mean() / (H * W * T)
    assert math.isclose(found["fe_per_point"], point)


def test_mvpe_is_the_mean_error_of_time_means_at_probes() -> None:
    target, prediction = (f.numpy() for f in windows())
    wrong = [
        [abs(prediction[s, :, y, x, c].mean() - target[s, :, y, x, c].mean()) for c in range(2)]
        for s in range(SAMPLES)
        for y, x in PROBES
    ]
    found = scored()
    assert math.isclose(found["official_mvpe"], np.mean(wrong))
    assert math.isclose(found["mvpe_measured"], np.mean(wrong))
    without = scored(probes=())
    assert math.isnan(without["official_mvpe"]) and math.isnan(without["mvpe_measured"])


def test_kinetic_energy_is_that_of_the_velocity_itself() -> None:
    target, prediction = (f.numpy() for f in windows())
    energy = [(f[..., 0] ** 2 + f[..., 1] ** 2) / 2 for f in (prediction, target)]
    assert math.isclose(scored()["kinetic_energy_error"], np.abs(energy[0] - energy[1]).mean())
    # A wrong mean flow has no fluctuations: as coded it costs nothing.
    measure = Official(spec=SPEC, frames=T)
    zeros = torch.zeros(1, T, H, W, C, dtype=torch.float64)
    found = named(measure, measure.window_terms(zeros, zeros + 1))
    assert found["official_ke"] == 0 and math.isclose(found["kinetic_energy_error"], 1.0)


def test_points_that_are_not_known_do_not_matter() -> None:
    target, prediction = windows()
    known = torch.rand(SAMPLES, T, H, W, generator=torch.Generator().manual_seed(1)) > 0.1
    known[:, 3, 2, 3] = False  # a probe
    spoiled = [torch.where(known[..., None], f, 7e3) for f in (target, prediction)]
    measure = measure_of(target)
    both = (PROBES, PROBES)
    clean = named(measure, measure.window_terms(target, prediction, known, both))
    assert clean == named(measure, measure.window_terms(spoiled[0], spoiled[1], known, both))
    zeroed = [torch.where(known[..., None], f, 0.0) for f in (target, prediction)]
    plain = named(measure, measure.window_terms(zeroed[0], zeroed[1], probes=both))
    for name, value in clean.items():
        if name.startswith("official_"):
            assert math.isclose(value, plain[name], rel_tol=1e-12)
    fixed = known.all(1).numpy()
    wrong = np.abs((zeroed[1] - zeroed[0]).mean(1).numpy()).mean(-1)
    probes = [(s, *p) for s in range(SAMPLES) for p in PROBES if fixed[(s, *p)]]
    assert len(probes) < 9
    assert math.isclose(clean["mvpe_measured"], np.mean([wrong[p] for p in probes]))


def test_a_trajectory_is_split_into_windows() -> None:
    target, prediction = windows()
    measure = measure_of(target)
    truth, guess = (f.flatten(0, 1).movedim(-1, 1) for f in (target, prediction))
    truth, guess = (torch.cat((f, f[:2])) for f in (truth, guess))  # two frames are left over
    known = torch.ones(len(truth), H, W, dtype=torch.bool)
    frames = Frames(prediction=guess, truth=truth, last=truth, known=known, body=None, spec=SPEC)
    row = measure.terms(frames)
    assert row.shape[0] == 1
    assert torch.allclose(row, measure.window_terms(target, prediction).sum(0, keepdim=True))
    short = frames[:5]
    assert not measure.terms(short).any()
    assert measure.terms(short).shape == row.shape
    assert bool(measure.values(measure.terms(short)).isnan().all())


def test_probes_of_the_moving_cylinder_fall_outside_as_coded_and_inside_corrected() -> None:
    assert official_probes((64, 64), (33, 32), 12) == ()
    places = official_probes((64, 64), (33, 32), 12, corrected=True)
    assert sorted({column for _, column in places}) == [45, 51, 57, 63]


COMPETITION = replace(SPEC, grid=Grid((32, 64), 0.02, 0.02))


def scores_of(truth: Tensor, prediction: Tensor, **changes: Any) -> list[float]:
    given = {
        "truth": truth,
        "prediction": prediction,
        "last": truth,
        "known": torch.ones(len(truth), 32, 64, dtype=torch.bool),
        "body": None,
        "spec": COMPETITION,
    }
    measure = Competition(spec=COMPETITION)
    return measure.values(measure.terms(Frames(**{**given, **changes})).sum(0)).tolist()


def competition_window(seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return 0.2 + 0.05 * torch.rand(20, 2, 32, 64, generator=generator, dtype=torch.float64)


def test_a_perfect_prediction_scores_100_but_for_the_width_of_its_intervals() -> None:
    truth = competition_window()
    rel_l2, tke, mvpe, sps = scores_of(truth, truth)
    assert (rel_l2, tke, mvpe) == (100.0, 100.0, 100.0)
    assert sps == pytest.approx(100 * float(torch.exp(-0.1 * truth / SIGMA).mean()), rel=1e-12)


def test_a_scaled_prediction_has_the_error_of_its_scale() -> None:
    truth = competition_window()
    rel_l2, tke, mvpe, sps = scores_of(truth, 1.5 * truth)
    assert rel_l2 == pytest.approx(100 / 1.25, rel=1e-12)
    assert mvpe == pytest.approx(100 / 1.25, rel=1e-12)
    assert tke == pytest.approx(100 / (1 + 0.5 * 1.25), rel=1e-12)  # 1.5^2 - 1
    assert sps == 0.0  # 5 % of the prediction does not reach the truth


def test_intervals_count_where_the_truth_is_not_zero() -> None:
    truth, measure = competition_window(), Competition(spec=COMPETITION)
    truth[:, :, :16] = 0.0
    width = 0.01
    lower, upper = truth - width / 2, truth + width / 2
    lower[:, :, 16:24], upper[:, :, 16:24] = 1.0, 2.0  # half of the others miss
    score = measure.values(measure.window_terms(truth, truth, lower, upper).sum(0))[3]
    assert float(score) == pytest.approx(50 * math.exp(-width / SIGMA), rel=1e-12)


def test_unknown_points_count_as_zero_in_the_competition() -> None:
    truth, known = competition_window(), torch.ones(20, 32, 64, dtype=torch.bool)
    known[:, :, :10] = False
    wrong = truth.clone()
    wrong[..., :10] = 9.0
    assert scores_of(truth, wrong, known=known)[:3] == [100.0, 100.0, 100.0]


def test_another_grid_is_refused() -> None:
    with refused("32 x 64", "(8, 10)", "every=2"):
        Competition(spec=SPEC)
