"""Scores of a predicted structure: every test flow is rolled out to its end, from its start.

The displacement of each moving body is compared with the true one by the measures of
``evaluation/vibration.py``. A rollout that stops, because it is not finite any more or its body
leaves the domain, has no measures beyond the number of frames that it lasted.

The wake oscillator is a reference for them: it predicts the displacement alone. Fitted on the
training flows, it continues each test flow from three frames.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor

from pibert.data.dataset import Samples
from pibert.evaluation.measure import Frames, uniform_series
from pibert.evaluation.rollouts import RolloutPredictor, Start, rolled_out, rollout_input
from pibert.evaluation.scoring import sequences
from pibert.evaluation.vibration import (
    Vibration,
    compare_vibrations,
    natural_frequency,
    vibration,
)
from pibert.evaluation.wake_oscillator import Response, fit_wake_oscillator
from pibert.fields import MASS_RATIO, REDUCED_VELOCITY, MovingBody, Trajectory
from pibert.inference.calibrated import CalibratedPredictor
from pibert.notes import collecting

LEAST_FRAMES = 16
PHASE_PERIODS = 5.0
INTERVAL_LEVEL = 0.9
DAMPING_RATIO = "damping_ratio"
"""Among the facts of a simulated flow (``Trajectory.local``)."""
_HISTORY = 3
"""Frames that a wake oscillator starts from."""
_ENDS = ("", "_true", "_low", "_high")


def score_structure(
    predictor: RolloutPredictor, samples: Samples, most: int | None = None
) -> tuple[list[dict[str, Any]], dict[str, Tensor]]:
    """Measures of every flow and body, and the series that they come from.

    Args:
        predictor: Of the state of moving bodies.
        samples: Test windows; their history is at least the predictor's.
        most: Frames of a rollout; None: to the end of the flow.

    Returns:
        A row for each flow and body, as plain JSON, and the arrays ``NUMBER/time``,
        ``NUMBER/predicted`` and ``NUMBER/true`` of each row.
    """
    runs = _runs(samples, most)
    rows: list[dict[str, Any]] = []
    arrays: dict[str, Tensor] = {}
    flows = zip(runs, rolled_out(predictor, samples, runs), strict=True)
    for ((index, first), count), frames in flows:
        trajectory, begin = samples.trajectories[index], first + samples.window.history
        time = trajectory.time[begin : begin + count]
        for body in predictor.spec.moving:
            series = {"time": time, **_displacements(frames, body, predictor.spec.channels)}
            arrays |= {f"{len(rows)}/{name}": values for name, values in series.items()}
            named = {"flow": trajectory.name, "body": body.displacement}
            parameters = dict(trajectory.parameters)
            rows.append({**named, "parameters": parameters, **_measures(series, parameters)})
    return rows, arrays


def displacement_intervals(
    calibrated: CalibratedPredictor, samples: Samples, level: float = INTERVAL_LEVEL
) -> dict[str, Tensor]:
    """Ends of the prediction intervals of the displacements that ``score_structure`` returns.

    Returns:
        The arrays ``NUMBER/low`` and ``NUMBER/high`` of each row; NaN beyond the calibrated lead
        times and where a rollout has stopped.
    """
    predictor, found = calibrated.predictor, dict[str, Tensor]()
    places = [predictor.spec.channels.index(body.displacement) for body in predictor.spec.moving]
    for number, (start, count) in enumerate(_runs(samples)):
        ends = torch.full((2, count, len(places)), math.nan)
        steps, done = min(count, calibrated.calibration.leads), 0
        fields, parameters, mask = rollout_input(predictor, samples, [start])
        try:
            with collecting():
                for block in calibrated.iterate(fields, steps, parameters, mask, level=level):
                    assert block.intervals is not None
                    both = torch.stack((block.intervals.low[0], block.intervals.high[0]))
                    ends[:, done : done + both.shape[1]] = both[:, :, places, 0, 0].cpu()
                    done += both.shape[1]
        except FloatingPointError:
            pass  # the frames before have their intervals
        for n in range(len(places)):
            row = number * len(places) + n
            found |= {f"{row}/low": ends[0, :, n], f"{row}/high": ends[1, :, n]}
    return found


def _runs(samples: Samples, most: int | None = None) -> list[tuple[Start, int]]:
    """Start and length of a rollout of every flow that is long enough."""
    return [
        (samples.locate(piece[0]), min(len(piece), most or len(piece)))
        for piece in sequences(samples)
        if len(piece) >= LEAST_FRAMES
    ]


def score_wake_oscillator(train: Samples, test: Samples) -> dict[str, Any]:
    """Fit a wake oscillator on training flows, and predict the displacement of every test flow.

    A damping ratio that a flow does not state is taken as 0.

    Returns:
        The ``coefficients``, and ``rows`` as those of ``score_structure``, as plain JSON. Without
        the series or parameters that the oscillator needs, the ``reason``.
    """
    try:
        stretches = [_response(train, piece) for piece in sequences(train)]
        oscillator = fit_wake_oscillator([found for _, found, _ in stretches])
        rows = []
        for piece in sequences(test):
            if len(piece) < LEAST_FRAMES:
                continue
            trajectory, response, time = _response(test, piece)
            first = max(_HISTORY, test.window.history)
            predicted = oscillator.predict(
                response.part(first - _HISTORY, _HISTORY), len(time) - first
            )
            series = {
                "time": time[first:],
                "predicted": torch.from_numpy(predicted[0]),
                "true": torch.from_numpy(response.displacement[first:]),
            }
            parameters = dict(trajectory.parameters)
            named = {"flow": trajectory.name, "body": "displacement", "parameters": parameters}
            rows.append({**named, **_measures(series, parameters)})
    except (ValueError, ImportError) as error:
        return {"reason": str(error)}
    return {"coefficients": asdict(oscillator), "rows": rows}


def _response(samples: Samples, piece: Sequence[int]) -> tuple[Trajectory, Response, Tensor]:
    """The vibration recorded in a stretch of windows, and its times."""
    (index, first), window = samples.locate(piece[0]), samples.window
    trajectory, count = (
        samples.trajectories[index],
        len(piece) + window.history + window.horizon - 1,
    )
    springs = [body.spring for body in trajectory.spec.bodies if body.spring is not None]
    stated = springs[0].damping_ratio if springs else trajectory.local.get(DAMPING_RATIO)
    damping = float(stated or 0.0)
    response = Response.of_trajectory(trajectory, damping_ratio=damping)
    return trajectory, response.part(first, count), trajectory.time[first : first + count]


def _displacements(
    frames: Frames, body: MovingBody, channels: tuple[str, ...]
) -> dict[str, Tensor]:
    """Predicted and true displacement of every frame."""
    place = channels.index(body.displacement)
    both = {"predicted": frames.prediction, "true": frames.truth}
    return {
        name: uniform_series(fields[:, place], frames.known).cpu() for name, fields in both.items()
    }


def _measures(series: Mapping[str, Tensor], parameters: Mapping[str, float]) -> dict[str, Any]:
    finite = series["predicted"].isfinite()
    lasted = len(finite) if bool(finite.all()) else int((~finite).nonzero()[0])
    row: dict[str, Any] = {"frames": len(finite), "lasted": lasted}
    predicted, true, time = (series[name].numpy() for name in ("predicted", "true", "time"))
    reduced, natural = parameters.get(REDUCED_VELOCITY), None
    if reduced is not None:
        natural = natural_frequency(reduced, parameters.get(MASS_RATIO, math.inf))

    def described(found: Vibration) -> dict[str, Any]:
        return asdict(found) | ({} if natural is None else {"regime": found.regime(natural)})

    if lasted < len(finite):
        return row | {"stopped": True, "true": described(vibration(true, time))}
    found = compare_vibrations(predicted, true, time, phase_periods=PHASE_PERIODS)
    row |= {"stopped": False, "predicted": described(found.predicted)}
    row |= {"true": described(found.true)}
    row["errors"] = {
        n: _plain(getattr(found, n)) for n in ("amplitude", "frequency", "phase", "rms")
    }
    return row


def state_scores(
    blocks: Sequence[Mapping[str, Tensor]], names: Sequence[str]
) -> dict[str, dict[str, float]]:
    """Scores of predicted series of one rollout; empty without any true value.

    Args:
        blocks: ``NAME``, ``NAME_true`` and, with intervals, ``NAME_low`` and ``NAME_high``.
        names: Of the state.

    Returns:
        For each name the ``error``, its rms over the standard deviation of the true values, and the
        ``coverage`` of the intervals.
    """
    found: dict[str, dict[str, float]] = {}
    for name in names:
        ends = {
            end: torch.cat([b[f"{name}{end}"] for b in blocks])
            for end in _ENDS
            if blocks and f"{name}{end}" in blocks[0]
        }
        if "_true" not in ends:
            continue
        known = ends["_true"].isfinite()
        values = {end: series[known].double() for end, series in ends.items()}
        true = values["_true"]
        if len(true) < 2 or not float(true.std()):
            continue
        error = (values[""] - true).square().mean().sqrt() / true.std(correction=0)
        found[name] = {"error": float(error)}
        if "_low" in values:
            inside = (values["_low"] <= true) & (true <= values["_high"])
            found[name]["coverage"] = float(inside.double().mean())
    return found


def _plain(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else value
