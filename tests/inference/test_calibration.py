"""Which windows calibrate, what counts as independent, and notes if they are too few."""

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from pibert.data.dataset import Window
from pibert.inference import (
    Calibration,
    CalibrationSettings,
    calibrate,
    load_calibrated,
    save_calibration,
)
from pibert.inference.conformal import STARTS, WINDOWS
from pibert.inference.difficulty import FLOOR, GUIDES, fit_difficulty, tabulate
from pibert.inference.windows import Forecast, read_windows
from tests.helpers import refused
from tests.inference.flows import BODY, SHAPE, damping, flows, samples_of, saved, spec_of

SETTINGS = CalibrationSettings(leads=2, starts=4, group_by=("Re",))
WINDOW = Window(history=2, horizon=2)


def calibrated(count: int, frames: int, settings: CalibrationSettings) -> Calibration:
    samples = samples_of(
        flows(count, frames=frames, seed=2), Window(history=2, horizon=settings.leads)
    )
    return calibrate(damping(), None, samples, replace(settings, difficulty="constant"))


@pytest.mark.parametrize(
    ("count", "frames", "windows"),
    [
        (1, 250, [WINDOWS]),
        (1, 33, [22]),  # all 30 that there are: the first 8 fit
        (2, 250, [WINDOWS]),
        (5, 60, [WINDOWS // 4] * 4),
        (20, 60, [STARTS] * 15),
    ],
)
def test_few_trajectories_calibrate_with_more_windows_each(
    count: int, frames: int, windows: list[int]
):
    found = calibrated(count, frames, CalibrationSettings(leads=2))
    assert found.units == "windows" and found.windows.tolist() == windows


def test_a_single_unit_does_not_calibrate():
    for count, frames, settings in (
        (1, 5, CalibrationSettings(leads=2)),  # two windows: one fits
        (2, 4, CalibrationSettings(leads=2)),
    ):
        with refused("12 windows", "found one", "longer"):
            calibrated(count, frames, settings)
    by_flow = CalibrationSettings(leads=2, units="trajectories")
    with refused("12 trajectories", "found one", "--independent windows"):
        calibrated(2, 60, by_flow)
    assert calibrated(3, 4, CalibrationSettings(leads=2)).count == 2


def repeated(count: int = 12, conditions: int = 4):
    made = flows(count, seed=2)
    return [
        replace(own, parameters={"Re": 80.0 + 5 * (number % conditions)})
        for number, own in enumerate(made)
    ]


def test_conditions_are_the_units_of_a_calibration(tmp_path: Path):
    predictor = saved(tmp_path)
    found = calibrate(predictor, None, samples_of(repeated(), WINDOW), SETTINGS)
    assert found.windows.tolist() == [12, 12, 12]  # the fourth fits
    assert "36 windows of 3 conditions" in found.assumption()
    by_condition = replace(found, units="trajectories")
    assert by_condition.highest_level == pytest.approx(0.75)
    assert "levels up to 0.75" in repr(by_condition) and "tensor" not in repr(by_condition)
    assert "nothing is assumed within a condition" in by_condition.assumption()
    save_calibration(tmp_path, found, predictor.spec.channels)
    assert load_calibrated(tmp_path).calibration.settings == SETTINGS


def test_filled_points_are_given_but_are_no_truth_to_calibrate_on() -> None:
    (wave,) = flows(1)
    filled = torch.rand(12, *SHAPE, generator=torch.Generator().manual_seed(0)) < 0.3
    samples = samples_of([replace(wave, filled=filled)], Window(history=2, horizon=3))
    windows = read_windows(samples, [4], spec_of())
    assert torch.equal(windows.known[0], (~BODY).expand(2, *SHAPE))
    assert torch.equal(windows.fields[0], wave.read(slice(4, 6)))
    measured = ~filled[6:9] & ~BODY
    assert torch.equal(windows.truth[0].isfinite().all(1), measured)
    assert torch.equal(windows.truth[0].isfinite().any(1), measured)


# Scales of errors


def planted(scale: float = 1.0, *, seed: int = 0, spread: bool = False) -> Forecast:
    """Errors ten times as large on the right half as on the left."""
    generator = torch.Generator().manual_seed(seed)
    shape = (6, 3, 2, *spec_of().grid.shape)
    prediction = torch.randn(shape, generator=generator)
    size = torch.ones(shape)
    size[..., shape[-1] // 2 :] = 10.0
    truth = prediction + 0.01 * size * torch.randn(shape, generator=generator)
    seen = ~BODY.expand(shape[0], *shape[-2:])
    return Forecast(
        prediction=scale * prediction,
        spread=scale * 0.01 * size if spread else None,
        seen=seen,
        truth=torch.where(seen[:, None, None], scale * truth, torch.nan),
    )


def test_errors_that_depend_on_position_select_the_map_of_points():
    difficulty, losses = fit_difficulty("residual", [planted(seed=s) for s in range(4)], spec_of())
    assert difficulty.guide == "position" and set(losses) == set(GUIDES)
    scales = difficulty.scales(planted(seed=9), spec_of())
    right, left = scales[..., 6:].mean(), scales[..., :6].mean()
    assert 5 < float(right / left) < 15


@pytest.mark.parametrize("guide", ["constant", "ensemble", *GUIDES])
def test_scales_go_with_the_unit_of_the_fields(guide: str):
    factor = 1000.0
    mine, other = planted(spread=True), planted(factor, spread=True)
    a = tabulate(guide, [mine], spec_of()).scales(mine, spec_of())
    b = tabulate(guide, [other], spec_of(factor)).scales(other, spec_of(factor))
    torch.testing.assert_close(b / factor, a, rtol=1e-3, atol=0.0)


def test_an_ensembles_spread_is_the_scale_with_a_floor():
    made = planted(spread=True)
    scales = tabulate("ensemble", [made], spec_of()).scales(made, spec_of())
    assert made.spread is not None
    mean = made.errors().nanmean((0, 3, 4))[None, :, :, None, None]
    torch.testing.assert_close(scales, made.spread + FLOOR * mean)
    with pytest.raises(ValueError, match="needs an ensemble"):
        fit_difficulty("ensemble", [planted()], spec_of())


def test_between_flows_of_different_speeds_the_scale_follows_the_speed():
    speeds = (0.2, 1.0, 5.0, 0.5, 2.0, 8.0)
    flows = [planted(speed, seed=place) for place, speed in enumerate(speeds)]
    difficulty, losses = fit_difficulty("residual", flows, spec_of())
    assert difficulty.guide == "relative position"
    assert losses["relative position"] < losses["position"] - 0.1
    for speed in (0.3, 3.0):
        new = planted(speed, seed=9)
        ratio = (new.errors() / difficulty.scales(new, spec_of())).nanmean()
        assert float(ratio) == pytest.approx(1.0, abs=0.1)
