"""How many windows calibrate, and what is said where they are too few."""

import re
from dataclasses import replace

import pytest

from pibert.data.dataset import Window
from pibert.trust import Calibration, Settings, calibrate
from pibert.trust import groups as module
from pibert.trust.groups import STARTS, WINDOWS
from tests.trust.flows import Drifts, flows, samples_of


def calibrated(count: int, frames: int, settings: Settings) -> Calibration:
    samples = samples_of(
        flows(count, frames=frames, seed=2), Window(history=2, horizon=settings.leads)
    )
    return calibrate(Drifts(), None, samples, replace(settings, difficulty="constant"))


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
def test_few_trajectories_give_as_many_windows_as_tell_something(
    count: int, frames: int, windows: list[int]
):
    found = calibrated(count, frames, Settings(leads=2))
    assert found.units == "windows" and found.windows.tolist() == windows


def test_many_trajectories_give_the_same_as_ever():
    found = calibrated(26, 40, Settings(leads=2))
    stated = calibrated(26, 40, Settings(leads=2, starts=16))
    assert found.units == "trajectories" and found.settings == stated.settings
    assert (found.scores == stated.scores).all()
    few = calibrated(6, 40, Settings(leads=2, units="trajectories"))
    assert few.settings.starts == STARTS


def test_large_fields_give_no_more_windows_than_fit_in_memory(monkeypatch: pytest.MonkeyPatch):
    values = 2 * 2 * 8 * 12  # of a window: lead times, channels, points
    monkeypatch.setattr(module, "_VALUES", 40 * values)
    assert calibrated(1, 250, Settings(leads=2)).windows.tolist() == [30]
    monkeypatch.setattr(module, "_VALUES", values)
    assert calibrated(1, 250, Settings(leads=2)).windows.tolist() == [12]


@pytest.mark.parametrize(
    ("count", "frames", "settings", "remedy"),
    [
        (1, 60, Settings(leads=2, starts=16), r"windows of each trajectory \(--starts, here 16\)"),
        (4, 60, Settings(leads=2, starts=4), r"windows of each trajectory \(--starts, here 4\)"),
        (1, 20, Settings(leads=2), r"^calibrate on more flows$"),
        (2, 16, Settings(leads=2, starts=16), r"^calibrate on more flows$"),  # all 13 are taken
        (2, 60, Settings(leads=2, starts=16), r"windows of each trajectory \(--starts, here 16\)"),
        (8, 20, Settings(leads=2, units="trajectories"), r"more trajectories, .*--units windows"),
    ],
)
def test_more_windows_are_advised_where_there_are_more(
    count: int, frames: int, settings: Settings, remedy: str
):
    found = calibrated(count, frames, settings)
    assert found.watch.lowest > 0.05 and re.search(remedy, found.remedy)
    assert found.watch.remedy == found.remedy
    with pytest.raises(ValueError, match=re.escape(f"ask for less, or {found.remedy}")):
        found.quantiles(0.99)


def test_a_single_trajectory_is_told_in_the_singular():
    assert " windows of 1 trajectory taken" in calibrated(1, 40, Settings(leads=2)).assumption()
