"""Figures of what models cost and how they were trained: cost, tuning, convergence."""

import math
from collections.abc import Callable, Mapping
from typing import Any

from matplotlib.axes import Axes

from pibert.report.comparison.plots import (
    Drawn,
    Label,
    frame,
    label_ends,
    label_points,
    line_style,
    logarithmic,
    settle,
    sheet,
)
from pibert.report.comparison.results import UNTRAINED, DatasetResults
from pibert.report.comparison.tables import tuned_settings
from pibert.report.comparison.text import monitored, shared_device_text, tuned_models
from pibert.report.figures import NORMAL

_UPPER_BOUND = "upper bound"
ERROR = "reconstruction"
Run = Mapping[str, Any]


def cost(data: DatasetResults) -> Drawn | None:
    """NMSE against inference time at batches of 1 and 128, training time and parameters."""
    panels: dict[str, tuple[str, Callable[[Run], float | None]]] = {
        "a  One sample at a time": ("inference [ms per sample]", lambda run: _inference(run, 1)),
        "b  Batches of 128": ("inference [ms per sample]", lambda run: _inference(run, 128)),
        "c  Training": (_training_label(data), _training),
        "d  Size": ("parameters", lambda run: _cost_of(run).get("parameters")),
    }
    errors = {model: data.value(model, "nmse") for model in data.models}
    known = {model: error for model, error in errors.items() if error and error > 0}
    found = {}
    for title, (name, read) in panels.items():
        read_costs = {model: read(data.first(model).card) for model in known}
        positive = {model: float(c) for model, c in read_costs.items() if c is not None and c > 0}
        if positive:
            found[title] = (name, positive)
    if not found:
        return None
    rows, columns = -(-len(found) // 2), min(2, len(found))
    tall = min(5.4, 2.7 + 0.12 * max(len(costs) for _, costs in found.values()))
    figure, axes = sheet(5.2 * columns, tall * rows, rows, columns)
    for ax, (title, (name, costs)) in zip(axes.flat, found.items(), strict=False):
        frame(ax, title, x=name, y="NMSE of the next frame")
        # Upper bounds do not tell which model is the best at a cost.
        _draw_costs(ax, data, known, costs, with_front=_UPPER_BOUND not in name)
    for ax in axes.flat[len(found) :]:
        ax.set_axis_off()
    settle(figure)
    for ax, (_, costs) in zip(axes.flat, found.values(), strict=False):
        label_points(ax, [Label(costs[m], known[m], m, data.colour(m)) for m in costs])
    devices = {str(_cost_of(data.first(model).card).get("device", "")) for model in known} - {""}
    where = f" Measured on {', '.join(sorted(devices))}." if devices else ""
    caption = (
        "NMSE of all components over the test split (physical units) against cost; lower left is "
        "better. The grey line joins the models that are most accurate at their cost. Hollow "
        "points are predictors without training, which are absent from c and d; other markers than "
        f"circles are variants.{shared_device_text(data)}{where}"
    )
    fast = next(iter(found.values()))[1]
    alt = (
        f"Scatter of error against cost of {len(known)} models on {data.name}; "
        f"{min(known, key=known.__getitem__)} has the lowest error, "
        f"{min(fast, key=fast.__getitem__)} costs least in the first panel."
    )
    return Drawn(figure, caption, alt)


def _draw_costs(
    ax: Axes,
    data: DatasetResults,
    errors: Mapping[str, float],
    costs: Mapping[str, float],
    *,
    with_front: bool,
) -> None:
    logarithmic(ax, "y", [errors[model] for model in costs])
    logarithmic(ax, "x", [*costs.values(), 1.6 * max(costs.values())])
    if with_front:
        front: list[str] = []
        for model in sorted(costs, key=lambda m: (costs[m], errors[m])):
            if not front or errors[model] < errors[front[-1]]:
                front.append(model)
        x, y = [costs[m] for m in front], [errors[m] for m in front]
        style: dict[str, Any] = {"color": "0.75", "lw": 1.0, "drawstyle": "steps-post", "zorder": 1}
        ax.plot([*x, ax.get_xlim()[1]], [*y, y[-1]], **style)
    if "persistence" in errors:
        ax.axhline(errors["persistence"], color="0.6", lw=0.8, ls=":", zorder=1)
    for model, value in costs.items():
        colour = data.colour(model)
        # A white rim separates points that overlap.
        fill, rim = ("white", colour) if model in UNTRAINED else (colour, "white")
        width = 1.2 if model in UNTRAINED else 0.6
        point: dict[str, Any] = {"mfc": fill, "mec": rim, "ms": 7.0, "mew": width, "zorder": 3}
        ax.plot(value, errors[model], data.mark(model), **point)


def _cost_of(run: Run) -> Run:
    return dict(run.get("cost") or {})


def _inference(run: Run, size: int) -> float | None:
    batches = _cost_of(run).get("batches", ())
    return next((b["ms_per_sample"] for b in batches if b["batch"] == size), None)


def _training_label(data: DatasetResults) -> str:
    most = max((data.first(m).card.get("at_a_time") or 1 for m in data.models), default=1)
    if most < 2:
        return "training time [s], pretraining included"
    return f"training time [s], {_UPPER_BOUND}: up to {most} runs shared the device"


def _training(run: Run) -> float | None:
    return sum(stage["seconds"] for stage in (run.get("training") or {}).values()) or None


def tuning(data: DatasetResults) -> Drawn | None:
    """Validation error against learning rate, a panel for each optimiser; rings: chosen."""
    records = tuned_models(data.results, data.name)
    records = {model: records[model] for model in data.models if model in records}
    settings = tuned_settings(records)
    rates = sorted({rate for _, rate in settings})
    if len(rates) < 2:
        return None
    panels = {
        optimizer: {m: line for m, own in records.items() if (line := _trials(own, optimizer))}
        for optimizer in dict.fromkeys(name for name, _ in settings)
    }
    errors = [e for lines in panels.values() for line in lines.values() for e in line.values()]
    if not errors or min(errors) <= 0:
        return None
    height = max(3.4, 0.16 * len(records) + 1.2)
    figure, axes = sheet(1.6 + 5.0 * len(panels), height, 1, len(panels), sharey=True)
    for ax, (optimizer, lines) in zip(axes[0], panels.items(), strict=True):
        logarithmic(ax, "x", rates)
        ax.set_xticks(rates, [f"{rate:g}" for rate in rates])
        ax.set_xticks([], minor=True)
        logarithmic(ax, "y", errors)
        left = f"{monitored(data.results)} (validation)" if ax is axes[0, 0] else ""
        frame(ax, optimizer, x="learning rate", y=left)
        for model, line in lines.items():
            chosen = records[model]["chosen"]
            ax.plot(list(line), list(line.values()), **line_style(data, model), marker=".")
            if chosen["optimizer"] == optimizer:
                rate = chosen["learning_rate"]
                _draw_ring(ax, rate, line[rate], data.colour(model))
    for ax, lines in zip(axes[0], panels.values(), strict=True):
        _label_lines(ax, data, lines)
    on = ", ".join(dict.fromkeys(record["tuned_on"] for record in records.values()))
    caption = (
        f"{monitored(data.results).capitalize()} on the validation split of {on} against the "
        "learning rate, best epoch of each trial. Rings mark the settings used for training. "
        "Trials that diverged are left out."
    )
    alt = f"Validation error of {len(records)} models against {len(rates)} learning rates."
    return Drawn(figure, caption, alt)


def _trials(record: Run, optimizer: str) -> dict[float, float]:
    """Validation error by learning rate; trials that diverged have none."""
    errors = {
        trial["learning_rate"]: trial.get("valid_error")
        for trial in record["trials"]
        if trial["optimizer"] == optimizer
    }
    return {rate: error for rate, error in sorted(errors.items()) if error is not None}


def _draw_ring(ax: Axes, x: float, y: float, colour: str) -> None:
    ring: dict[str, Any] = {"mfc": "white", "mec": colour, "ms": 5.5, "mew": 1.3}
    ax.plot(x, y, "o", **ring, zorder=6, clip_on=False)


def _label_lines(
    ax: Axes, data: DatasetResults, lines: Mapping[str, Mapping[float, float]]
) -> None:
    ends = [(*list(line.items())[-1], model) for model, line in lines.items()]
    label_ends(ax, [Label(x, y, model, data.colour(model)) for x, y, model in ends])


def convergence(data: DatasetResults) -> Drawn | None:
    """Validation error of every trained model against the samples seen; rings: chosen epoch."""
    stages = {m: dict(data.first(m).card.get("training") or {}) for m in data.models}
    budget = data.results.get("comparison", {}).get("samples")
    curves, best, starts = {}, {}, {}
    for model, own in stages.items():
        per_epoch = _samples_per_epoch(own, budget or 1.0)
        starts[model] = per_epoch * own.get("pretraining", {}).get("epochs", 0)
        found = own.get("training", {}).get("curve", ())
        errors = {epoch: values.get(ERROR) for epoch, values in found}
        curve = {
            starts[model] + per_epoch * epoch: float(error)
            for epoch, error in sorted(errors.items())
            if error is not None and math.isfinite(error) and error > 0
        }
        if curve:
            curves[model] = curve
            best[model] = starts[model] + per_epoch * own["training"]["best_epoch"]
    if not curves:
        return None
    figure, axes = sheet(8.4, max(3.8, 0.16 * len(curves) + 1.2))
    ax = axes[0, 0]
    logarithmic(ax, "y", [error for curve in curves.values() for error in curve.values()])
    ax.set_xlim(0, max(max(curve) for curve in curves.values()))
    unit = "samples seen" if budget else "share of the epochs"
    frame(ax, "Validation error during training", x=unit, y="mean squared error (standardised)")
    for model, curve in curves.items():
        mark = "." if len(curve) < 4 else ""
        ax.plot(list(curve), list(curve.values()), **line_style(data, model), marker=mark)
        if best[model] in curve:
            _draw_ring(ax, best[model], curve[best[model]], data.colour(model))
    ax.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}" if budget else f"{value:g}")
    if "pibert" in curves and starts["pibert"]:
        colour = data.colour("pibert")
        ax.axvline(starts["pibert"], color=colour, lw=0.7, ls=":", zorder=1)
        ax.annotate(
            "pretraining of pibert ends",
            (starts["pibert"], 1.0),
            xycoords=ax.get_xaxis_transform(),
            xytext=(3, -3),
            textcoords="offset points",
            va="top",
            fontsize=NORMAL - 1,
            color=colour,
        )
    _label_lines(ax, data, curves)
    caption = (
        "Mean squared error of standardised fields on the validation split against the samples "
        "seen, repetitions and pretraining included. Rings mark the chosen epoch, whose weights "
        "are scored on the test split."
    )
    winner = min(curves, key=lambda model: min(curves[model].values()))
    alt = (
        f"Validation error of {len(curves)} models on {data.name} against samples seen; the "
        f"lowest, {min(curves[winner].values()):.2g}, is that of {winner}."
    )
    return Drawn(figure, caption, alt)


def _samples_per_epoch(stages: Run, budget: int | float) -> float:
    """From the samples of a run; if it does not tell, from the budget."""
    epochs = sum(stage["epochs"] for stage in stages.values())
    seen = [stage.get("samples") for stage in stages.values()]
    return float((budget if None in seen else sum(seen)) / epochs) if epochs else 0.0
