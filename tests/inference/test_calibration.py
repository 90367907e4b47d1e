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
from pibert.inference.windows import read_windows
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
