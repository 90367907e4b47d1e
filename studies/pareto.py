"""Draw the figures of docs/choose-a-model.md from the committed results.

python -m studies.pareto        # seconds; reads docs/results/*-tuned-results.json.gz
"""

import gzip
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import LogLocator, NullFormatter

from pibert.report.comparison.training import pareto_front
from pibert.report.figures import blank, write_figure

DOCS = Path(__file__).parents[1] / "docs"
DATA = {"cylinder": "cylinder wakes", "fsi": "tandem cylinders", "jet": "measured jet"}
NAMES = {
    "pibert-mr-large": "PIBERT-MR large",
    "pibert-mr": "PIBERT-MR base",
    "mwt": "MWT",
    "unet": "U-Net",
    "pibert-scratch": "PIBERT",
    "fno2d-modes16": "FNO",
    "dmd": "DMD",
    "persistence": "persistence",
}
"""Models that are drawn, from the highest accuracy down. Those with two input frames are not."""
COLOURS = dict(
    zip(
        NAMES,
        ("#08519c", "#4292c6", "#d95f02", "#1b9e77", "#7570b3", "#e6ab02", "#444444", "#999999"),
        strict=True,
    )
)
TRAINED = tuple(NAMES)[:6]
"""Those in the figure of cost: next to them, the others cost nothing and are far less accurate."""


def read_results(name: str) -> dict[str, Any]:
    """The tuned comparison on a data set."""
    with gzip.open(DOCS / "results" / f"{name}-tuned-results.json.gz", "rt") as file:
        found: dict[str, Any] = json.load(file)
    return found


def errors(results: Mapping[str, Any]) -> dict[str, float]:
    """NMSE of the next frame by model."""
    rows = (
        row
        for row in results["records"]
        if (row["space"], row["metric"], row["component"]) == ("physical", "nmse", "all")
    )
    return {row["model"]: row["value"] for row in rows if row["model"] in NAMES}


def costs(results: Mapping[str, Any]) -> dict[str, dict[str, float]]:
    """By model: milliseconds for a frame in batches of 128, and GFLOP for a frame."""
    runs = {run["model"]: run["cost"] for run in results["runs"] if run["model"] in TRAINED}
    time = {
        model: next(each["ms_per_sample"] for each in cost["batches"] if each["batch"] == 128)
        for model, cost in runs.items()
    }
    arithmetic = {model: cost["flops"] / 1e9 for model, cost in runs.items()}
    return {"ms per frame, batches of 128": time, "GFLOP per frame": arithmetic}


def rollouts(results: Mapping[str, Any]) -> dict[str, dict[int, float]]:
    """NMSE by model and lead time in frames; lead times at which a rollout diverged are absent."""
    found: dict[str, dict[int, float]] = {}
    for row in results["records"]:
        is_asked = (row["space"], row["metric"]) == ("physical", "rollout_nmse")
        if is_asked and row["component"].startswith("lead ") and row["model"] in NAMES:
            values = found.setdefault(row["model"], {})
            if row["value"] is not None:
                values[int(row["component"].split()[1])] = row["value"]
    return found


def _draw_front(ax: Axes, error: Mapping[str, float], cost: Mapping[str, float]) -> None:
    front = pareto_front(error, cost)
    edge = [cost[model] for model in front], [error[model] for model in front]
    ax.step(*edge, where="post", color="0.7", zorder=1)
    for model in (model for model in TRAINED if model in cost):
        style: dict[str, Any] = {"color": COLOURS[model], "label": NAMES[model]}
        if model not in front:
            style["markerfacecolor"] = "white"
        ax.plot(cost[model], error[model], "o", markersize=7, **style)
    ax.set(xscale="log", yscale="log")
    ax.margins(0.12)
    _plain_ticks(ax)


def _plain_ticks(ax: Axes) -> None:
    for axis in (ax.xaxis, ax.yaxis):
        axis.set_major_locator(LogLocator(subs=(1, 2, 5), numticks=8))
        axis.set_major_formatter(lambda value, _: f"{value:.3g}")
        axis.set_minor_formatter(NullFormatter())
    ax.tick_params(labelsize=7.5)


def _draw_rollout(ax: Axes, results: Mapping[str, Any]) -> None:
    for model, values in rollouts(results).items():
        leads = sorted(values)
        ax.plot(
            leads,
            [values[lead] for lead in leads],
            marker="o",
            markersize=3,
            color=COLOURS[model],
            label=NAMES[model],
        )
    ax.set(xscale="log", yscale="log", xlabel="lead time [frames]")
    _plain_ticks(ax)


def main() -> None:
    """Write both figures."""
    found = {name: read_results(name) for name in DATA}
    figure = blank(10.5, 6.0)
    axes = figure.subplots(2, 3)
    for column, (name, title) in enumerate(DATA.items()):
        error = errors(found[name])
        for ax, (label, cost) in zip(axes[:, column], costs(found[name]).items(), strict=True):
            _draw_front(ax, error, cost)
            ax.set_xlabel(label, fontsize=8.5)
        axes[0, column].set_title(title, fontsize=9.5)
    for ax in axes[:, 0]:
        ax.set_ylabel("NMSE of the next frame", fontsize=8.5)
    handles, labels = axes[0, 0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right center", fontsize=8.5, frameon=False)
    print(write_figure(figure, DOCS / "choose-a-model" / "pareto.png"))

    figure = blank(9.0, 3.6)
    axes = figure.subplots(1, 2)
    for ax, name in zip(axes, ("cylinder", "jet"), strict=True):
        _draw_rollout(ax, found[name])
        ax.set_title(DATA[name], fontsize=9.5)
    axes[0].set_ylabel("NMSE")
    axes[1].set_ylim(top=2.0)
    handles, labels = axes[1].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside right center", fontsize=8.5, frameon=False)
    print(write_figure(figure, DOCS / "choose-a-model" / "rollouts.png"))


if __name__ == "__main__":
    main()
