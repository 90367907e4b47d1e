"""Figures of what models cost and how they were trained: cost, tuning, convergence."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator

from pibert.report.comparison.plots import (
    Plot,
    frame,
    legend,
    line_style,
    logarithmic,
    point_style,
    sheet,
    side_legend,
)
from pibert.report.comparison.results import DatasetResults
from pibert.report.comparison.tables.cost import batch_cost, training_seconds, tuned_settings
from pibert.report.comparison.text import (
    monitored,
    most_at_a_time,
    shared_device_text,
    tuned_models,
)
from pibert.report.figures import NORMAL

ERROR = "reconstruction"
Run = Mapping[str, Any]


def cost(data: DatasetResults) -> Plot | None:
    """NMSE against inference time at batches of 1 and 128, FLOPs, training time and parameters."""
    most = most_at_a_time(data)
    time = "training time [s], pretraining included"
    if most > 1:
        time = f"training time [s], upper bound: up to {most} runs shared the device"
    panels: dict[str, tuple[str, Callable[[Run], int | float | None]]] = {
        "a  One sample at a time": ("inference [ms per sample]", lambda run: batch_cost(run, 1)),
        "b  Batches of 128": ("inference [ms per sample]", lambda run: batch_cost(run, 128)),
        "c  Arithmetic": ("FLOPs per sample", lambda run: (run.get("cost") or {}).get("flops")),
        "d  Training": (time, training_seconds),
        "e  Size": ("parameters", lambda run: (run.get("cost") or {}).get("parameters")),
    }
    errors = {m: error for m in data.models if (error := data.value(m, "nmse") or 0.0) > 0}
    costs = {
        title: {m: float(value) for m in errors if (value := read(data.first(m).card) or 0) > 0}
        for title, (_, read) in panels.items()
    }
    costs = {title: values for title, values in costs.items() if values}
    if not costs:
        return None
    rows, columns = -(-len(costs) // 2), min(2, len(costs))
    figure, axes = sheet(5.2 * columns, 3.2 * rows + 0.6, rows, columns)
    fronts = {}
    for ax, (title, values) in zip(axes.flat, costs.items(), strict=False):
        frame(ax, title, x=panels[title][0], y="NMSE of the next frame")
        _draw_costs(ax, data, errors, values)
        if title != "d  Training" or most == 1:  # upper bounds have no best model at a cost
            fronts[title[0]] = pareto_front(errors, values)
            _draw_front(ax, [(values[m], errors[m]) for m in fronts[title[0]]])
    handles = [Line2D([], [], **point_style(data, m)) for m in errors]
    if len(costs) < axes.size:
        axes.flat[-1].set_axis_off()
        style: dict[str, Any] = {"loc": "center", "ncols": 2, "frameon": False, "fontsize": NORMAL}
        axes.flat[-1].legend(handles=handles, **style)
    else:
        legend(figure, handles, 5)
    on_fronts = "; ".join(f"{panel}: {', '.join(models)}" for panel, models in fronts.items())
    caption = (
        "NMSE of all components over the test split (physical units) against cost; lower left is "
        "better. The grey line is the Pareto front: no other model is both cheaper and more "
        f"accurate than these ({on_fronts}). Dotted: error of persistence. Hollow points are "
        "predictors without training, which are absent where they cost nothing; other markers "
        "than circles are variants. FLOPs count matrix products and convolutions, not Fourier "
        f"transforms.{shared_device_text(data)}"
    )
    return Plot(figure, caption)


def _draw_costs(
    ax: Axes, data: DatasetResults, errors: Mapping[str, float], costs: Mapping[str, float]
) -> None:
    logarithmic(ax, "y", [errors[model] for model in costs])
    logarithmic(ax, "x", list(costs.values()))
    if "persistence" in errors:
        ax.axhline(errors["persistence"], color="0.6", lw=0.8, ls=":", zorder=1)
    for model, value in costs.items():
        ax.plot(value, errors[model], **point_style(data, model))


def pareto_front(errors: Mapping[str, float], costs: Mapping[str, float]) -> list[str]:
    """Return the models that no cheaper or equally cheap one beats, the cheapest first."""
    front: list[str] = []
    for model in sorted(costs, key=lambda m: (costs[m], errors[m])):
        if not front or errors[model] < errors[front[-1]]:
            front.append(model)
    return front


def _draw_front(ax: Axes, points: Sequence[tuple[float, float]]) -> None:
    x, y = zip(*points, strict=True)
    style: dict[str, Any] = {"color": "0.6", "lw": 1.2, "drawstyle": "steps-post", "zorder": 1}
    ax.plot([*x, ax.get_xlim()[1]], [*y, y[-1]], **style)


def tuning(data: DatasetResults) -> Plot | None:
    """Validation error against learning rate, a panel for each optimiser; rings: chosen."""
    records = tuned_models(data.results, data.name)
    records = {model: records[model] for model in data.models if model in records}
    settings = tuned_settings(records)
    rates = sorted({rate for _, rate in settings})
    if len(rates) < 2:
        return None
    panels = {
        optimizer: {
            m: line for m, record in records.items() if (line := _trials(record, optimizer))
        }
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
            ring = chosen["learning_rate"] if chosen["optimizer"] == optimizer else None
            _draw_line(ax, data, model, line, ring)
        side_legend(ax)
    on = ", ".join(dict.fromkeys(record["tuned_on"] for record in records.values()))
    caption = (
        f"{monitored(data.results).capitalize()} on the validation split of {on} against the "
        "learning rate, best epoch of each trial. Rings mark the settings used for training. "
        "Trials that diverged are left out."
    )
    return Plot(figure, caption)


def _trials(record: Run, optimizer: str) -> dict[float, float]:
    """Validation error by learning rate; trials that diverged have none."""
    errors = {
        trial["learning_rate"]: trial.get("valid_error")
        for trial in record["trials"]
        if trial["optimizer"] == optimizer
    }
    return {rate: error for rate, error in sorted(errors.items()) if error is not None}


def _draw_line(
    ax: Axes, data: DatasetResults, model: str, line: Mapping[float, float], ring: float | None
) -> None:
    """The line of a model, with a ring where its setting was chosen."""
    marker = "." if len(line) < 4 else ""
    ax.plot(list(line), list(line.values()), **line_style(data, model), marker=marker)
    if ring is not None and ring in line:
        style: dict[str, Any] = {"mfc": "white", "mec": data.colour(model), "ms": 5.5, "mew": 1.3}
        ax.plot(ring, line[ring], "o", **style, zorder=6, clip_on=False)


def convergence(data: DatasetResults) -> Plot | None:
    """Validation error of trained models by samples, and its root by epoch; rings: chosen epoch."""
    stages = {m: dict(data.first(m).card.get("training") or {}) for m in data.models}
    budget = data.results.get("comparison", {}).get("samples")
    curves, best, starts, roots, epochs = {}, {}, {}, {}, {}
    for model, own_stages in stages.items():
        per_epoch = _samples_per_epoch(own_stages, "training", budget or 1.0)
        before = _samples_per_epoch(own_stages, "pretraining", budget or 1.0)
        starts[model] = before * own_stages.get("pretraining", {}).get("epochs", 0)
        recorded = own_stages.get("training", {}).get("curve", ())
        errors = {epoch: values.get(ERROR) for epoch, values in recorded}
        found = {
            epoch: float(error)
            for epoch, error in sorted(errors.items())
            if error is not None and math.isfinite(error) and error > 0
        }
        if found:
            curves[model] = {starts[model] + per_epoch * e: error for e, error in found.items()}
            roots[model] = {float(e): math.sqrt(error) for e, error in found.items()}
            epochs[model] = float(own_stages["training"]["best_epoch"])
            best[model] = starts[model] + per_epoch * epochs[model]
    if not curves:
        return None
    figure, axes = sheet(11.6, max(3.8, 0.16 * len(curves) + 1.2), 1, 2)
    ax, right = axes[0]
    logarithmic(ax, "y", [error for curve in curves.values() for error in curve.values()])
    ax.set_xlim(0, 1.02 * max(max(curve) for curve in curves.values()))
    unit = "samples seen" if budget else "share of the epochs"
    frame(ax, "a  Validation error", x=unit, y="mean squared error (standardised)")
    for model, curve in curves.items():
        _draw_line(ax, data, model, curve, best[model])
    ax.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}" if budget else f"{value:g}")
    if "pibert" in curves and starts["pibert"]:
        colour = data.colour("pibert")
        ax.axvline(starts["pibert"], color=colour, lw=0.7, ls=":", zorder=1)
        words, above = " pretraining of pibert ends", ax.get_xaxis_transform()
        style = {"va": "top", "fontsize": NORMAL - 1, "color": colour}
        ax.text(starts["pibert"], 0.99, words, transform=above, **style)
    logarithmic(right, "y", [error for root in roots.values() for error in root.values()])
    frame(right, "b  Relative error", x="epoch, after pretraining", y="root mean square error")
    right.xaxis.set_major_locator(MaxNLocator(integer=True))
    for model, root in roots.items():
        _draw_line(right, data, model, root, epochs[model])
    side_legend(right)
    use = "scored on the test split"
    if any("rollouts" in own for own in stages.values()):
        use = "the start of the stage on rollouts, which is not shown"
    caption = (
        "(a) Mean squared error of standardised fields on the validation split against the samples "
        "seen, repetitions and pretraining included. (b) Its root, in standard deviations of the "
        "training data, against the epochs of training alone. Rings mark the chosen epoch. Its "
        f"weights are {use}."
    )
    return Plot(figure, caption)


def _samples_per_epoch(stages: Run, name: str, budget: int | float) -> float:
    """From the samples of a stage or, where it does not record them, from the budget."""
    stage = stages.get(name, {})
    if stage.get("samples") is not None:
        return float(stage["samples"] / stage["epochs"])
    epochs = sum(own["epochs"] for own in stages.values())
    return float(budget / epochs) if epochs else 0.0
