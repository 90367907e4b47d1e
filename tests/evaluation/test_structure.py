"""The wake oscillator as a reference: scored like a model, on the same flows."""

import numpy as np
import pytest
import torch

from pibert.data.dataset import Samples, Window
from pibert.evaluation import structure
from pibert.evaluation.structure import score_wake_oscillator
from pibert.evaluation.wake_oscillator import Mounting, Response, WakeOscillator
from pibert.fields import FieldSpec, Grid, Normalizer, Parameter, Trajectory
from tests.evaluation.test_wake_oscillator import PUBLISHED, record

REDUCED = (4.0, 5.5)


def flow(reduced_velocity: float, series: bool = True) -> Trajectory:
    """A flow whose body obeys the published oscillator; its fields do not matter."""
    mounting = Mounting(mass=0.5 * np.pi, reduced_velocity=reduced_velocity, damping_ratio=0.01)
    found = record(PUBLISHED, mounting)
    names = ("displacement", "velocity", "lift") if series else ()
    parameters = {"Re": 150.0, "mass_ratio": 2.0, "reduced_velocity": reduced_velocity}
    spec = FieldSpec(
        channels=("u", "v"),
        units=("1", "1"),
        parameters=tuple(Parameter(name=name) for name in parameters),
        dt=found.interval,
        grid=Grid((3, 5), dx=0.1, dy=0.2),
        reference_velocity=1.0,
        reference_length=1.0,
    )
    count = len(found.displacement)
    return Trajectory(
        name=f"at {reduced_velocity}",
        states=torch.zeros(count, 2, 3, 5),
        time=found.interval * torch.arange(count, dtype=torch.float64),
        spec=spec,
        parameters=parameters,
        series={name: torch.from_numpy(getattr(found, name)) for name in names},
        local={"damping_ratio": 0.01},
    )


def windows(*flows: Trajectory, history: int = 1) -> Samples:
    return Samples(flows, window=Window(history=history), normalizer=Normalizer.identity(2))


def test_an_oscillator_is_perfect_on_flows_that_obey_it(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[Response] = []

    def fitted(responses: list[Response]) -> WakeOscillator:
        seen.extend(responses)
        return PUBLISHED

    monkeypatch.setattr(structure, "fit_wake_oscillator", fitted)
    train, test = windows(flow(4.0)), windows(*map(flow, REDUCED), history=5)
    found = score_wake_oscillator(train, test)
    assert [len(response.lift) for response in seen] == [200]
    assert seen[0].mounting.damping_ratio == 0.01
    assert found["coefficients"] == vars(PUBLISHED)
    assert [row["parameters"]["reduced_velocity"] for row in found["rows"]] == list(REDUCED)
    for row in found["rows"]:
        assert row["frames"] == 195  # the models' own frames, after a history of five
        assert row["errors"]["rms"] < 0.05  # the slope of the wake comes from three frames
        assert row["predicted"]["regime"] == row["true"]["regime"]


def test_without_the_state_there_is_a_reason_instead_of_scores() -> None:
    train = windows(flow(4.0, series=False))
    found = score_wake_oscillator(train, train)
    assert "displacement" in found["reason"]
    assert "rows" not in found


def test_a_rollout_that_stops_keeps_the_true_regime() -> None:
    time = torch.arange(200, dtype=torch.float64) * 0.25
    true = 0.5 * torch.sin(2 * torch.pi * 0.18 * time)
    predicted = torch.where(time < 10, true, torch.nan)
    series = {"time": time, "predicted": predicted, "true": true}
    row = structure._measures(series, {"reduced_velocity": 5.0})
    assert (row["stopped"], row["lasted"], row["true"]["regime"]) == (True, 40, "lock-in")
