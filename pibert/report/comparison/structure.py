"""Figures of bodies that move in the flow: response over reduced velocity, displacement in time.

The measures are those of ``evaluation/structure.py``: every test flow is rolled out from its start
to its end. The wake oscillator predicts the displacement alone, fitted on the training flows.
"""

from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import PercentFormatter
from torch import Tensor

from pibert.evaluation.structure import INTERVAL_LEVEL, MASS_RATIO, REDUCED_VELOCITY
from pibert.evaluation.vibration import AT_REST, natural_frequency
from pibert.report.comparison.plots import (
    Plot,
    frame,
    legend,
    line_style,
    point_style,
    sheet,
    time_unit,
)
from pibert.report.comparison.results import WAKE_OSCILLATOR, DatasetResults, parameter_text
from pibert.report.figures import NORMAL, with_unit
from pibert.report.structure import TRUE, draw_interval, draw_response

_MOST, _LINES, _FLOWS = 8, 4, 6
_FARTHEST = 1.0
"""Largest relative error that is shown."""


def response(data: DatasetResults) -> Plot | None:
    """Amplitude and frequency of moving bodies against reduced velocity, truth and models."""
    names = (*data.shown(_MOST), WAKE_OSCILLATOR)
    found = {name: rows for name in names if (rows := data.vibrations.get(name))}
    truth = next(iter(found.values()), [])
    given = [row["parameters"] for row in truth if REDUCED_VELOCITY in row["parameters"]]
    reduced = [parameters[REDUCED_VELOCITY] for parameters in given]
    if len(set(reduced)) < 2:
        return None
    figure, axes = sheet(10.4, 6.4, 2, 2, sharex=True)
    styles = {name: point_style(data, name) for name in found}
    true: dict[str, Any] = {"marker": "_", "ms": 14, "mew": 2.0, "color": TRUE, "label": "truth"}
    draw_response(list(axes[0]), {"truth": truth, **found}, {"truth": true, **styles})
    span = np.linspace(min(reduced), max(reduced))
    for ratio in {parameters.get(MASS_RATIO, np.inf) for parameters in given}:
        axes[0, 1].plot(
            span, [natural_frequency(u, ratio) for u in span], ls=":", color="0.6", lw=1
        )
    for column, quantity in enumerate(("amplitude", "frequency")):
        ax = axes[1, column]
        ax.axhline(0.0, color=TRUE, lw=0.8, zorder=1)
        for name, rows in found.items():
            errors = [
                (row["parameters"].get(REDUCED_VELOCITY), _error(row, quantity)) for row in rows
            ]
            known = [(u, e) for u, e in errors if u is not None and e is not None]
            ax.plot([u for u, _ in known], [e for _, e in known], **styles[name])
        ax.yaxis.set_major_formatter(PercentFormatter(1, symbol=" %"))
        for own, letter in zip(axes[:, column], ("ac", "bd")[column], strict=True):
            title = quantity.capitalize() if own is not ax else f"Error of the {quantity}"
            x, y = ("reduced velocity", "relative error") if own is ax else ("", own.get_ylabel())
            frame(own, f"{letter}  {title}", x=x, y=y)
    handles = [
        Line2D([], [], ls="", **{**true, "ms": 9}),
        *(Line2D([], [], **s) for s in styles.values()),
    ]
    legend(figure, handles, min(len(handles), 6))
    lost = {name: sum(row["stopped"] for row in rows) for name, rows in found.items()}
    stopped = ", ".join(f"{name} {count}" for name, count in lost.items() if count)
    caption = (
        f"Vibration of the bodies in {len(truth)} test flows, each rolled out from its start to "
        "its end: amplitude and frequency, and their errors relative to the truth (larger ones "
        f"stand at {100 * _FARTHEST:g} %; bodies at rest are left out). Dotted: natural frequency "
        "in the fluid, for each mass ratio. Hollow points: without training."
        + (f" Rollouts that stopped are missing: {stopped}." if stopped else "")
    )
    return Plot(figure, caption)


def _error(row: dict[str, Any], quantity: str) -> float | None:
    """The relative error of a measure; None where it is unknown or the body at rest."""
    true, found = row["true"], row.get("predicted")
    if found is None or None in (true[quantity], found[quantity]) or true["amplitude"] < AT_REST:
        return None
    return float(np.clip(found[quantity] / true[quantity] - 1, -_FARTHEST, _FARTHEST))


def displacements(data: DatasetResults) -> Plot | None:
    """Displacement of moving bodies over time in some test flows, errors and phase portraits."""
    models = [m for m in data.shown(_LINES) if data.first(m).card.get("structure")]
    if not models:
        return None
    rows = data.first(models[0]).card["structure"]
    order = sorted(range(len(rows)), key=lambda n: rows[n]["parameters"].get(REDUCED_VELOCITY, 0.0))
    count = min(_FLOWS, len(order))
    shown = [order[n] for n in np.linspace(0, len(order) - 1, count).round().astype(int)]
    figure, axes = sheet(10.4, 1.5 * count + 0.8, count, 3, width_ratios=(5, 4, 2))
    has_intervals = False
    for (left, right, portrait), number in zip(axes, shown, strict=True):
        right.axhline(0.0, color="0.5", lw=0.6)
        arrays = [data.first(m).group(f"structure/{number}") for m in models]
        time, truth = arrays[0]["time"], arrays[0]["true"]
        left.plot(time, truth, **line_style(data, "truth"), alpha=0.8)
        portrait.plot(truth, _velocity(truth, time), **line_style(data, "truth"))
        for model, own in zip(models, arrays, strict=True):
            has_intervals |= "low" in own
            draw_interval(left, data.first(model).arrays, f"structure/{number}", data.colour(model))
            speed = _velocity(own["predicted"], time)
            portrait.plot(own["predicted"], speed, **line_style(data, model))
            left.plot(time, own["predicted"], **line_style(data, model))
            right.plot(time, own["predicted"] - truth, **line_style(data, model))
        row = rows[number]
        values = ", ".join(
            f"{name} {parameter_text(value)}" for name, value in row["parameters"].items()
        )
        below = with_unit("time", time_unit(data)) if number == shown[-1] else ""
        frame(left, f"{row['flow']}  {values}", x=below, y=row["body"])
        frame(right, "error", x=below)
        frame(portrait, "velocity", x=row["body"] if number == shown[-1] else "")
        limit, fastest = (1.5 * float(each.abs().max()) for each in (truth, _velocity(truth, time)))
        _limit(left, "y", limit)
        _limit(right, "y", 5 / 3 * limit)
        _limit(portrait, "x", limit)
        _limit(portrait, "y", fastest)
        for ax in (left, right, portrait):
            ax.title.set_fontsize(NORMAL)
    legend(figure, [Line2D([], [], **line_style(data, name)) for name in ("truth", *models)])
    caption = (
        f"Displacement in {count} of {len(rows)} test flows, in the order of the reduced velocity, "
        "each rolled out from its start to its end; middle: prediction minus truth; right: phase "
        "portrait, the velocity from differences of the displacement. "
        + (f"Shaded: {100 * INTERVAL_LEVEL:g} % prediction intervals. " if has_intervals else "")
        + "A line that "
        "ends is a rollout that stopped: it is not finite any more, or the body leaves the domain."
    )
    return Plot(figure, caption)


def _velocity(displacement: Tensor, time: Tensor) -> Tensor:
    (velocity,) = torch.gradient(displacement, spacing=(time,))
    return velocity


def _limit(ax: Axes, axis: str, most: float) -> None:
    """Cut off what lies further from zero."""
    low, high = getattr(ax, f"get_{axis}lim")()
    ax.set(**{f"{axis}lim": (max(low, -most), min(high, most))})
