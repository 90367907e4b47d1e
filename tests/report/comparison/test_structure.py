"""Figures and the table of moving bodies, from rows written by hand."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from pibert.evaluation.scores import Scores
from pibert.report.comparison import structure
from pibert.report.comparison.results import WAKE_OSCILLATOR, DatasetResults
from pibert.report.comparison.tables.rollouts import vibrations
from tests.report.comparison.invented_results import axes_of, invented
from tests.report.comparison.test_tables import cell

REDUCED = (4.0, 5.0, 6.0)


def row(reduced: float, factor: float | None) -> dict[str, Any]:
    """A body that vibrates too much by a factor; None: the rollout stopped."""
    true: dict[str, Any] = {
        "mean": 0.0,
        "amplitude": 0.1 * reduced,
        "frequency": 0.2,
        "regime": "lock-in",
    }
    named = {"flow": f"at {reduced:g}", "body": "displacement", "frames": 40}
    found = {**named, "parameters": {"reduced_velocity": reduced, "mass_ratio": 2.0}, "true": true}
    if factor is None:
        return {**found, "stopped": True, "lasted": 3}
    predicted = {**true, "amplitude": factor * true["amplitude"]}
    errors = {"amplitude": abs(factor - 1), "frequency": 0.0, "phase": 0.1, "rms": 0.2}
    return {**found, "stopped": False, "lasted": 40, "predicted": predicted, "errors": errors}


def vibrating(
    reduced: tuple[float, ...] = REDUCED,
    unet: tuple[float | None, ...] = (None, None, 1.0),
) -> DatasetResults:
    """Pibert 10 % too strong, unet stopped twice, persistence; and the oscillator 5 % too weak."""
    data = invented(3)
    factors = {"pibert": (1.1, 1.1, 1.1), "unet": unet, "persistence": (0.0,) * 3}
    scores = {}
    time = torch.arange(40, dtype=torch.float64)
    for key, own in data.scores.items():
        rows = [row(u, f) for u, f in zip(reduced, factors[key[0]], strict=False)]
        arrays = {f"structure/{n}/time": time for n in range(len(rows))}
        for name in ("true", "predicted"):
            arrays |= {f"structure/{n}/{name}": time.sin() for n in range(len(rows))}
        scores[key] = Scores({**own.card, "structure": rows}, {**own.arrays, **arrays})
    oscillator = {"coefficients": {}, "rows": [row(u, 0.95) for u in reduced]}
    results = {**data.results, "data": {"wake": {**data.facts, "wake_oscillator": oscillator}}}
    return replace(data, scores=scores, results=results)


def points(ax: Any, name: str) -> dict[float, float]:
    """Points of a model by reduced velocity."""
    lines = [line for line in ax.lines if line.get_label() == name]
    return {x: y for line in lines for x, y in zip(*line.get_data(), strict=True)}


def test_the_response_has_truth_models_and_errors_by_reduced_velocity() -> None:
    amplitude, frequency, error, _ = axes_of(structure.response(vibrating()))
    assert points(amplitude, "truth") == pytest.approx({4.0: 0.4, 5.0: 0.5, 6.0: 0.6})
    assert points(amplitude, "pibert") == pytest.approx({4.0: 0.44, 5.0: 0.55, 6.0: 0.66})
    assert points(frequency, WAKE_OSCILLATOR) == pytest.approx(dict.fromkeys(REDUCED, 0.2))
    assert points(error, WAKE_OSCILLATOR) == pytest.approx(dict.fromkeys(REDUCED, -0.05))
    assert points(error, "unet") == {6.0: 0.0}  # the others stopped


def test_one_reduced_velocity_or_no_body_has_no_response() -> None:
    assert structure.response(vibrating((4.0,))) is None
    for make in (structure.response, structure.displacements, vibrations):
        assert make(invented(3)) is None


def test_displacements_are_shown_for_each_flow_with_their_errors() -> None:
    axes = axes_of(structure.displacements(vibrating()))
    assert len(axes) == 3 * len(REDUCED)
    assert "at 4" in axes[0].get_title(loc="left")
    # The velocity of a sine is its cosine.
    place, speed = axes[2].lines[0].get_data()
    time = np.arange(40)
    assert place == pytest.approx(np.sin(time))
    assert speed[1:-1] == pytest.approx(np.cos(time[1:-1]) * np.sin(1.0), abs=1e-6)
    assert not axes[0].collections


def test_the_table_has_models_and_the_oscillator_and_counts_stopped_flows() -> None:
    table = vibrations(vibrating())
    assert table is not None
    assert [line[0].text for line in table.lines][-1] == WAKE_OSCILLATOR
    assert cell(table, "pibert", "amplitude error ↓").number == pytest.approx(0.1)
    assert cell(table, "unet", "amplitude error ↓").text == "∞"
    assert cell(table, "unet", "stopped ↓").number == pytest.approx(2 / 3)
    assert table.foot[0][1].best
    assert cell(table, "unet", "right regime ↑").number == pytest.approx(1 / 3)


def test_a_body_without_a_phase_counts_and_a_body_at_rest_does_not() -> None:
    data = vibrating(unet=(1.0, 1.0, 1.0))
    for own in data.vibrations["unet"][:2]:
        own["errors"]["phase"] = None  # the predicted body stands still
    table = vibrations(data)
    assert table is not None
    (phase,) = (label for label in table.head if "phase" in label)
    assert cell(table, "unet", phase).text == "∞"
    assert cell(table, "unet", "amplitude error ↓").number == 0.0
    for rows in data.vibrations.values():
        for own in rows[:2]:
            own["true"]["amplitude"] = 1e-3
    table = vibrations(data)
    assert table is not None and cell(table, "unet", phase).number == pytest.approx(0.1)
