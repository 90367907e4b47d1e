"""Trajectories that repeat a condition count as one."""

from dataclasses import replace
from pathlib import Path

import pytest

from pibert.data.dataset import Window
from pibert.trust import Ensemble, Settings, calibrate, load, save_calibration
from pibert.trust.forecasts import windows_by_trajectory
from tests.trust.flows import flows, samples_of, saved

SETTINGS = Settings(leads=2, starts=4, group_by=("Re",))
WINDOW = Window(history=2, horizon=2)


def repeated(count: int = 12, conditions: int = 4):
    made = flows(count, seed=2)
    return [
        replace(own, parameters={"Re": 80.0 + 5 * (number % conditions)})
        for number, own in enumerate(made)
    ]


def test_windows_of_a_condition_are_together():
    samples = samples_of(repeated(), WINDOW)
    found = windows_by_trajectory(samples, 4, ("Re",))
    assert [len(own) for own in found.values()] == [12] * 4
    for key, own in found.items():
        homes = {samples.locate(number)[0] for number in own}
        assert {(samples.trajectories[home].parameters["Re"],) for home in homes} == {key}


def test_conditions_are_the_units_of_a_calibration(tmp_path: Path):
    predictor = saved(tmp_path)
    found = calibrate(predictor, None, samples_of(repeated(), WINDOW), SETTINGS)
    assert found.windows.tolist() == [12, 12, 12]  # the fourth fits
    assert "36 windows of 3 conditions" in found.assumption()
    by_condition = replace(found, units="trajectories")
    assert by_condition.highest_level == pytest.approx(0.75)
    assert "nothing is assumed within a condition" in by_condition.assumption()
    save_calibration(tmp_path, found, predictor.spec.channels)
    assert load(tmp_path).calibration.settings == SETTINGS


def test_members_of_an_ensemble_may_differ_in_what_older_files_do_not_say(tmp_path: Path):
    first, second = (saved(tmp_path / str(seed), seed=seed) for seed in range(2))
    (own,) = second.spec.parameters
    second.spec = replace(second.spec, parameters=(replace(own, lowest=80.0, highest=120.0),))
    assert Ensemble([first, second]).spec == first.spec
    second.spec = replace(second.spec, dt=0.3)
    with pytest.raises(ValueError, match="other fields in member 2"):
        Ensemble([first, second])
