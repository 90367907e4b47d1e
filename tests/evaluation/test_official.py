"""RealPDEBench's metrics against plain loops over tiny windows, and the variants beside them."""

import cmath
import itertools
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from pibert.evaluation.measure import Frames, Measure
from pibert.evaluation.official import Official, mean_window
from pibert.evaluation.probes import body_probes, official_probes
from pibert.evaluation.shells import band_means
from pibert.fields import FieldSpec, Grid

SAMPLES, T, H, W, C = 3, 6, 8, 10, 3
SPEC = FieldSpec(
    channels=("u", "v", "p"), units=("m/s", "m/s", "m/s"), grid=Grid((H, W), dx=0.1, dy=0.3), dt=0.1
)
PROBES = ((2, 3), (5, 7), (6, 9))


def windows(seed: int = 0) -> tuple[Tensor, Tensor]:
    """Truth and prediction; the pressure is not measured, but predicted."""
    generator = torch.Generator().manual_seed(seed)
    target = torch.randn(SAMPLES, T, H, W, C, generator=generator, dtype=torch.float64) + 0.5
    prediction = target + torch.randn(target.shape, generator=generator, dtype=torch.float64) * 0.3
    target[..., 2] = 0
    return target, prediction


def measure_of(target: Tensor, **changes: Any) -> Official:
    plain = Official(
        spec=SPEC,
        frames=T,
        measured=("u", "v"),
        mean=mean_window([target[:2, ..., :2], target[2:, ..., :2]]),
        probes=PROBES,
    )
    return replace(plain, **changes)


def named(measure: Official, rows: Tensor) -> dict[str, float]:
    found = measure.values(rows.sum(0)).tolist()
    return dict(zip([entry.metric for entry in measure.entries], found, strict=True))


def scored(known: Tensor | None = None, **changes: Any) -> dict[str, float]:
    target, prediction = windows()
    measure = measure_of(target, **changes)
    return named(measure, measure.window_terms(target, prediction, known))


def transform(signal: np.ndarray) -> np.ndarray:
    """A Fourier transform of three axes by its definition."""
    for axis, n in enumerate(signal.shape):
        matrix = np.array(
            [[cmath.exp(-2j * math.pi * a * b / n) for b in range(n)] for a in range(n)]
        )
        signal = np.moveaxis(np.tensordot(matrix, signal, axes=(1, axis)), 0, axis)
    return signal


def shell_spectra(fields: np.ndarray, *, whole: bool = False) -> np.ndarray:
    """F(k) of each channel, (k, c), by loops over waves."""
    samples, t, h, w, c = fields.shape
    shells = min(t, h, w) // 2
    total, sizes = np.zeros((shells, c)), np.zeros(shells)
    for s, channel in itertools.product(range(samples), range(c)):
        power = np.abs(transform(fields[s, ..., channel])) ** 2
        limits = (t, h, w) if whole else (t // 2, h // 2, w // 2)
        for i, j, l_ in itertools.product(*map(range, limits)):
            a, b, d = (min(n, m - n) for n, m in zip((i, j, l_), (t, h, w), strict=True))
            k = math.isqrt(a * a + b * b + d * d)
            if k < shells:
                total[k, channel] += power[i, j, l_]
                sizes[k] += s == 0 and channel == 0
    total = total / sizes[:, None] if whole else total
    return np.sqrt(total / samples) / (t * h * w)


def test_it_is_a_measure_of_sequences() -> None:
    measure = measure_of(windows()[0])
    assert isinstance(measure, Measure) and measure.of_sequences
    assert {entry.component for entry in measure.entries} == {"u,v"}


def test_pointwise_metrics_are_those_of_loops() -> None:
    target, prediction = (f[..., :2].numpy() for f in windows())
    found, error = scored(), prediction - target
    places = list(np.ndindex(*error.shape))
    squares = sum(float(error[p]) ** 2 for p in places)
    assert math.isclose(found["official_rmse"], math.sqrt(squares / len(places)))
    assert math.isclose(
        found["official_mae"], sum(abs(float(error[p])) for p in places) / len(places)
    )
    relative = [
        math.sqrt(float((error[s] ** 2).sum()) / float((target[s] ** 2).sum()))
        for s in range(SAMPLES)
    ]
    assert math.isclose(found["official_rel_l2"], sum(relative) / SAMPLES)
    spread = 0.0
    for p in np.ndindex(*error.shape[1:]):
        column = [float(target[(s, *p)]) for s in range(SAMPLES)]
        spread += sum((y - sum(column) / SAMPLES) ** 2 for y in column)
    assert math.isclose(found["official_r2"], 1 - squares / spread)


def test_ke_is_the_error_of_the_fluctuation_energy_of_a_window() -> None:
    target, prediction = (f.numpy() for f in windows())
    wrong = []
    for s, y, x in itertools.product(range(SAMPLES), range(H), range(W)):
        energy = [
            sum(sum((f[s, t, y, x, c] - f[s, :, y, x, c].mean()) ** 2 for t in range(T)) / T / 2
                for c in range(2))
            for f in (prediction, target)
        ]  # fmt: skip
        wrong.append(abs(energy[0] - energy[1]))
    found = scored()
    assert math.isclose(found["official_ke"], sum(wrong) / len(wrong))
    assert math.isclose(found["fluctuation_energy_error"], found["official_ke"])


def test_fourier_errors_are_those_of_loops_over_waves() -> None:
    target, prediction = (f[..., :2].numpy() for f in windows())
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


def test_halves_of_odd_axes_are_rounded_down() -> None:
    generator = torch.Generator().manual_seed(0)
    error = torch.randn(2, 7, 9, 11, 3, generator=generator, dtype=torch.float64)
    measure = Official(spec=replace(SPEC, grid=Grid((9, 11))), frames=7)
    found = named(measure, measure.window_terms(torch.zeros_like(error), error))
    assert math.isclose(found["official_frmse"], shell_spectra(error.numpy()).mean())
    assert math.isclose(found["frmse_shell_mean"], shell_spectra(error.numpy(), whole=True).mean())


def test_thirds_of_shells_are_rounded_to_the_nearest() -> None:
    spectrum = torch.tensor([1.0, 2, 4, 8, 16], dtype=torch.float64)[:, None]
    assert [float(part) for part in band_means(spectrum)] == pytest.approx([6.2, 1.5, 4.0, 12.0])


def test_bands_of_a_window_of_twenty_frames_are_those_of_the_benchmark() -> None:
    spec = replace(SPEC, grid=Grid((22, 24)))
    target = torch.zeros(1, 20, 22, 24, 3, dtype=torch.float64)
    measure = Official(spec=spec, frames=20, measured=("u", "v"))
    t = torch.arange(20, dtype=torch.float64)
    for k in range(1, 10):
        wave = torch.cos(2 * math.pi * k * t / 20)[None, :, None, None, None].expand_as(target)
        found = named(measure, measure.window_terms(target, wave))
        parts = [found[f"official_frmse_{band}"] for band in ("low", "mid", "high")]
        assert parts.index(max(parts)) == (k > 2) + (k > 6)
        # F = 1/2 in one shell of ten.
        assert math.isclose(found["official_frmse"], 0.05, rel_tol=1e-9)


def test_white_noise_has_a_flat_spectrum_by_shell_means_alone() -> None:
    spec = replace(SPEC, grid=Grid((20, 26)))
    generator = torch.Generator().manual_seed(0)
    noise = torch.randn(6, 18, 20, 26, 3, generator=generator, dtype=torch.float64)
    measure = Official(spec=spec, frames=18, measured=("u", "v"))
    found = named(measure, measure.window_terms(torch.zeros_like(noise), noise))
    expected = 1 / math.sqrt(18 * 20 * 26)
    for band in ("mid", "high"):
        assert found[f"frmse_shell_mean_{band}"] == pytest.approx(expected, rel=0.03)
    assert found["official_frmse_high"] > 1.5 * found["official_frmse_mid"]


def test_fe_is_the_error_of_the_transform_of_the_sum_over_points_and_channels() -> None:
    target, prediction = (f[..., :2].numpy() for f in windows())
    total = point = 0.0
    for s, k in itertools.product(range(SAMPLES), range(T)):
        phases = np.exp(-2j * math.pi * k * np.arange(T) / T)
        series = (prediction - target)[s].sum((1, 2))  # (t, c)
        total += abs((series.sum(1) * phases).sum())
        point += sum(abs((series[:, c] / (H * W) * phases).sum()) / T for c in range(2)) / 2
    found = scored()
    assert math.isclose(found["official_fe"], total / (SAMPLES * T))
    assert math.isclose(found["fe_per_point"], point / (SAMPLES * T))


def test_fe_grows_with_the_grid_and_fe_per_point_does_not() -> None:
    found = []
    for shape in ((8, 10), (16, 20)):
        measure = Official(spec=replace(SPEC, grid=Grid(shape)), frames=T)
        target = torch.zeros(1, T, *shape, 3, dtype=torch.float64)
        found.append(named(measure, measure.window_terms(target, target + 1)))
    assert math.isclose(found[1]["official_fe"], 4 * found[0]["official_fe"])
    assert math.isclose(found[1]["fe_per_point"], found[0]["fe_per_point"])
    # A constant offset of 1 is an amplitude of 1 at zero frequency, of T frequencies.
    assert math.isclose(found[0]["fe_per_point"], 1 / T)


def test_mvpe_counts_the_pressure_and_its_variant_does_not() -> None:
    target, prediction = (f.numpy() for f in windows())
    wrong = [
        [abs(prediction[s, :, y, x, c].mean() - target[s, :, y, x, c].mean()) for c in range(3)]
        for s in range(SAMPLES)
        for y, x in PROBES
    ]
    found = scored()
    assert math.isclose(found["official_mvpe"], np.mean(wrong))
    assert math.isclose(found["mvpe_measured"], np.mean(np.array(wrong)[:, :2]))
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


def test_the_relative_error_of_the_fluctuation_energy_is_one_for_a_steady_prediction() -> None:
    target, _ = windows()
    measure = measure_of(target)
    found = named(
        measure, measure.window_terms(target, target.mean(1, keepdim=True).expand_as(target))
    )
    assert math.isclose(found["fluctuation_energy_rel_error"], 1.0)


def test_points_that_are_not_known_do_not_matter() -> None:
    target, prediction = windows()
    known = torch.rand(SAMPLES, T, H, W, generator=torch.Generator().manual_seed(1)) > 0.1
    known[:, 3, 2, 3] = False  # a probe
    spoiled = [torch.where(known[..., None], f, 7e3) for f in (target, prediction)]
    measure = measure_of(target)
    clean = named(measure, measure.window_terms(target, prediction, known))
    assert clean == named(measure, measure.window_terms(spoiled[0], spoiled[1], known))
    zeroed = [torch.where(known[..., None], f, 0.0) for f in (target, prediction)]
    plain = named(measure, measure.window_terms(zeroed[0], zeroed[1]))
    for name, value in clean.items():
        if name.startswith("official_"):
            assert math.isclose(value, plain[name], rel_tol=1e-12)
    fixed = known.all(1).numpy()
    wrong = np.abs((zeroed[1] - zeroed[0]).mean(1).numpy()[..., :2]).mean(-1)
    probes = [(s, *p) for s in range(SAMPLES) for p in PROBES if fixed[(s, *p)]]
    assert len(probes) < 9
    assert math.isclose(clean["mvpe_measured"], np.mean([wrong[p] for p in probes]))


def test_a_trajectory_is_parted_into_windows() -> None:
    target, prediction = windows()
    measure = measure_of(target)
    truth, guess = (f.flatten(0, 1).movedim(-1, 1) for f in (target, prediction))
    truth, guess = (torch.cat((f, f[:2])) for f in (truth, guess))  # two frames are left over
    known = torch.ones(len(truth), H, W, dtype=torch.bool)
    frames = Frames(prediction=guess, truth=truth, last=truth, known=known, body=None, spec=SPEC)
    row = measure.terms(frames)
    assert row.shape[0] == 1
    assert torch.allclose(row, measure.window_terms(target, prediction).sum(0, keepdim=True))
    short = replace(
        frames, **{n: getattr(frames, n)[:5] for n in ("prediction", "truth", "last", "known")}
    )
    assert not measure.terms(short).any()
    assert measure.terms(short).shape == row.shape
    assert bool(measure.values(measure.terms(short)).isnan().all())


def test_a_long_trajectory_is_the_sum_of_its_windows() -> None:
    target, prediction = windows()
    measure = measure_of(target)
    truth, guess = (f.flatten(0, 1).movedim(-1, 1).repeat(7, 1, 1, 1) for f in (target, prediction))
    known = torch.ones(len(truth), H, W, dtype=torch.bool)
    frames = Frames(prediction=guess, truth=truth, last=truth, known=known, body=None, spec=SPEC)
    once = measure.window_terms(target, prediction).sum(0, keepdim=True)
    assert torch.allclose(measure.terms(frames), 7 * once)


def test_probes_of_the_cylinder_are_those_of_the_benchmark() -> None:
    places = official_probes((64, 128), centre=(32, 32), diameter=18)
    assert sorted({column for _, column in places}) == [50, 68, 86, 104]
    assert sorted({row for row, _ in places}) == list(range(24, 41, 2)) and len(places) == 36
    near = official_probes((64, 60), centre=(32, 32), diameter=10, corrected=True)
    assert sorted({column for _, column in near}) == [42, 47, 52, 57]


def test_probes_of_the_moving_cylinder_fall_outside_as_coded_and_inside_corrected() -> None:
    with pytest.raises(ValueError, match=r"columns \[45, 57, 69, 81\]"):
        official_probes((64, 64), centre=(66, 64), diameter=24, stride=2)
    places = official_probes((64, 64), centre=(66, 64), diameter=24, stride=2, corrected=True)
    assert sorted({column for _, column in places}) == [45, 51, 57, 63]


def test_without_a_mean_there_is_no_r2() -> None:
    found = scored(mean=None)
    assert math.isnan(found["official_r2"]) and math.isfinite(found["official_rmse"])


def test_what_does_not_fit_is_refused() -> None:
    target, prediction = windows()
    with pytest.raises(ValueError, match="u and v included"):
        measure_of(target, measured=("u", "p"))
    with pytest.raises(ValueError, match="expected a mean of shape"):
        measure_of(target, frames=T + 1)
    with pytest.raises(ValueError, match="windows of 6 frames"):
        measure_of(target).window_terms(target[:, 1:], prediction[:, 1:])
    with pytest.raises(ValueError, match="at least one window"):
        mean_window([])
    with pytest.raises(ValueError, match="expected a velocity"):
        Official(spec=FieldSpec(channels=("T",), family="heat"), frames=2)


def with_body(target: Tensor, prediction: Tensor, body: Tensor | None, spec: FieldSpec) -> Frames:
    truth, guess = (f.flatten(0, 1).movedim(-1, 1) for f in (target, prediction))
    known = torch.ones(len(truth), *spec.grid.shape, dtype=torch.bool)
    own = None if body is None else body.expand_as(known)
    return Frames(prediction=guess, truth=truth, last=truth, known=known, body=own, spec=spec)


def tall(width: int) -> tuple[FieldSpec, Tensor, Tensor]:
    spec = replace(SPEC, grid=Grid((20, width), dx=0.1, dy=0.3))
    generator = torch.Generator().manual_seed(3)
    shape = (2, T, 20, width, C)
    target, noise = (torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(2))
    return spec, target, target + noise


def profile_error(target: Tensor, prediction: Tensor, columns: list[int], channels: int) -> float:
    """By a loop over windows and probes: rows 2 to 18 by 2, about row 10."""
    found = [
        abs(float((prediction - target)[s, :, row, column, c].mean()))
        for s in range(len(target))
        for column in columns
        for row in range(2, 19, 2)
        for c in range(channels)
    ]
    return sum(found) / len(found)


@pytest.mark.parametrize(
    ("width", "coded", "corrected"),
    [(24, [8, 11, 14, 17], [8, 11, 14, 17]), (15, None, [8, 9, 11, 12])],
)
def test_probes_are_behind_the_body_and_as_coded_only_where_all_fit(
    width: int, coded: list[int] | None, corrected: list[int]
) -> None:
    spec, target, prediction = tall(width)
    body = torch.zeros(20, width, dtype=torch.bool)
    body[10, 4:7] = True  # a row of 0.3 is as high as three columns are long
    frames = with_body(target, prediction, body, spec)
    measure = Official(spec=spec, frames=T, measured=("u", "v"))
    found = named(measure, measure.terms(frames))
    if coded is None:
        assert math.isnan(found["official_mvpe"]) and not body_probes(frames)
    else:
        expected = profile_error(target, prediction, coded, 3)
        assert found["official_mvpe"] == pytest.approx(expected, rel=1e-12)
    expected = profile_error(target, prediction, corrected, 2)
    assert found["mvpe_measured"] == pytest.approx(expected, rel=1e-12)


def test_trajectories_without_probes_do_not_count_among_those_with() -> None:
    spec, target, prediction = tall(24)
    body = torch.zeros(20, 24, dtype=torch.bool)
    body[10, 4:7] = True
    measure = Official(spec=spec, frames=T)
    behind = measure.terms(with_body(target, prediction, body, spec))
    without = measure.terms(with_body(target, 2 * prediction, None, spec))
    both, alone = named(measure, torch.cat((behind, without))), named(measure, behind)
    for name in ("official_mvpe", "mvpe_measured"):
        assert both[name] == pytest.approx(alone[name], rel=1e-12)
    assert math.isnan(named(measure, without)["official_mvpe"])
