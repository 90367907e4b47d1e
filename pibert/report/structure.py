"""Figures of a structure: displacement against time, phase portrait, response."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure
from numpy.typing import NDArray
from torch import Tensor

from pibert.data.writers.frames import Block, Description
from pibert.evaluation.scores import Scores
from pibert.report.figures import NORMAL, SMALL, blank, with_unit, write_figure

PREDICTED, TRUE = "tab:blue", "0.25"


class StateHistory:
    """The series of all blocks of a prediction."""

    def __init__(self, about: Description) -> None:
        self.about = about
        self._blocks: list[dict[str, NDArray[np.float64]]] = []

    def add(self, block: Block) -> None:
        series = {name: values.double().numpy() for name, values in block.series.items()}
        self._blocks.append({"time": block.time.double().numpy(), **series})

    def arrays(self) -> dict[str, NDArray[np.float64]]:
        """Time and series by name."""
        if not self._blocks:
            return {}
        return {name: np.concatenate([b[name] for b in self._blocks]) for name in self._blocks[0]}

    def draw(self, figure: Figure | SubFigure) -> None:
        """Draw every body in a row: displacement and phase portrait."""
        names = displacements(self.about)
        axes = figure.subplots(len(names), 2, squeeze=False, width_ratios=(2.2, 1))
        series = self.arrays()
        for row, name in zip(axes, names, strict=True):
            draw_displacement(row[0], series, name, self.about)
            draw_portrait(row[1], series, name)


def displacements(about: Description) -> tuple[str, ...]:
    """The displacements among the series; the first series without any body."""
    found = tuple(b.displacement for b in about.spec.bodies if b.displacement in about.state)
    return found or about.state[:1]


def draw_displacement(
    ax: Axes, series: Mapping[str, NDArray[np.float64]], name: str, about: Description
) -> None:
    """Draw a series against time, its prediction interval and the truth."""
    time = series["time"]
    if f"{name}_low" in series:
        label = f"{100 * (about.interval_level or 0):g} % interval"
        ends = series[f"{name}_low"], series[f"{name}_high"]
        ax.fill_between(time, *ends, color=PREDICTED, alpha=0.25, lw=0, label=label)
    true = series.get(f"{name}_true", np.full_like(time, np.nan))
    if np.isfinite(true).any():
        ax.plot(time, true, color=TRUE, lw=1, label="truth")
    ax.plot(time, series[name], color=PREDICTED, lw=1, label="prediction")
    ax.set_xlabel(with_unit("time", about.time_unit), fontsize=NORMAL)
    ax.set_ylabel(name, fontsize=NORMAL)
    ax.legend(fontsize=SMALL, loc="upper left", ncols=3, frameon=False)
    ax.tick_params(labelsize=SMALL)
    ax.margins(y=0.2)


def draw_portrait(ax: Axes, series: Mapping[str, NDArray[np.float64]], name: str) -> None:
    """Draw the velocity of a body against its displacement."""
    for ending, colour in (("_true", TRUE), ("", PREDICTED)):
        place = series.get(f"{name}{ending}")
        if place is None or not np.isfinite(place).any() or len(place) < 2:
            continue
        speed = _velocity(series, name, ending)
        ax.plot(place, speed, color=colour, lw=0.8)
    ax.set_xlabel(name, fontsize=NORMAL)
    ax.set_ylabel("velocity", fontsize=NORMAL)
    ax.tick_params(labelsize=SMALL)


def _velocity(
    series: Mapping[str, NDArray[np.float64]], name: str, ending: str
) -> NDArray[np.float64]:
    """The velocity that belongs to a displacement, by name; else its difference in time."""
    stated = series.get(name.replace("displacement", "velocity") + ending)
    if stated is not None and "displacement" in name:
        return stated
    return np.gradient(series[name + ending], series["time"])


def write_response(scores: Scores, folder: Path) -> Path:
    """Draw amplitude and frequency against reduced velocity, and the displacement of each flow."""
    rows = scores.card["structure"]
    count = len(rows)
    figure = blank(8.0, 2.6 + 1.3 * count)
    parts = figure.subfigures(2, 1, height_ratios=(2.6, 1.3 * count), squeeze=False)
    above, below = parts[:, 0]
    draw_response(list(above.subplots(1, 2)), {"truth": rows, "prediction": rows})
    for number, (ax, row) in enumerate(
        zip(below.subplots(count, 1, squeeze=False)[:, 0], rows, strict=True)
    ):
        time, true, predicted = (
            scores.arrays[f"structure/{number}/{name}"].numpy()
            for name in ("time", "true", "predicted")
        )
        draw_interval(ax, scores.arrays, f"structure/{number}", PREDICTED)
        ax.plot(time, true, color=TRUE, lw=0.8, label="truth")
        ax.plot(time, predicted, color=PREDICTED, lw=0.8, label="prediction")
        ax.set_title(row["flow"], fontsize=SMALL, loc="left")
        ax.set_ylabel(row["body"], fontsize=SMALL)
        ax.tick_params(labelsize=SMALL)
    ax.set_xlabel(with_unit("time", scores.card["data"]["time_unit"]), fontsize=NORMAL)
    path = folder / "structure.png"
    write_figure(figure, path)
    return path


def draw_interval(ax: Axes, arrays: Mapping[str, Tensor], name: str, colour: str) -> None:
    """Shade the prediction interval of a displacement, if the model has one."""
    if f"{name}/low" in arrays:
        time, low, high = (arrays[f"{name}/{end}"].numpy() for end in ("time", "low", "high"))
        ax.fill_between(time, low, high, color=colour, alpha=0.2, lw=0)


def draw_response(
    axes: Sequence[Axes],
    series: Mapping[str, Sequence[Mapping[str, Any]]],
    styles: Mapping[str, Mapping[str, Any]] | None = None,
) -> None:
    """Draw amplitude and frequency against reduced velocity.

    Args:
        axes: Two.
        series: Rows of ``evaluation.structure`` by the name of their model; those under ``truth``
            are drawn by their true vibration.
        styles: Of the points, by name.
    """
    for name, rows in series.items():
        truth = name == "truth"
        style: dict[str, Any] = {"marker": "x", "ms": 4, "label": name}
        if truth:
            style = {"marker": "o", "ms": 4, "mfc": "none", "color": TRUE, "label": name}
        style |= (styles or {}).get(name, {})
        for ax, quantity in zip(axes, ("amplitude", "frequency"), strict=True):
            points = [
                (row["parameters"].get("reduced_velocity"), found[quantity])
                for row in rows
                if (found := row.get("true" if truth else "predicted")) is not None
            ]
            known = [(x, y) for x, y in points if x is not None and y is not None]
            ax.plot([x for x, _ in known], [y for _, y in known], **{**style, "ls": ""})
    for ax, label in zip(axes, ("amplitude / D", "frequency D / U"), strict=True):
        ax.set_xlabel("reduced velocity", fontsize=NORMAL)
        ax.set_ylabel(label, fontsize=NORMAL)
        ax.tick_params(labelsize=SMALL)
    if styles is None:
        axes[0].legend(fontsize=SMALL, frameon=False)
