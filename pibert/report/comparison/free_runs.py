"""Statistics of free runs: errors with their intervals, mean flow and stresses, spectra, densities.

Fields, spectra and densities are those of one run, the same for all models, which no result chose
(``evaluation/rollouts.py``). Of a run that diverged, the frames before are shown.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from torch import Tensor

from pibert.evaluation.measure import squared_unit
from pibert.evaluation.regions import stations
from pibert.evaluation.statistics import LEAST_FRAMES
from pibert.report.comparison.fields import excess
from pibert.report.comparison.plots import (
    Plot,
    axis_label,
    frame,
    legend,
    line_style,
    logarithmic,
    point_style,
    rows_of_models,
    sheet,
)
from pibert.report.comparison.results import (
    COARSE_SOLVER,
    UNTRAINED,
    DatasetResults,
    describe_solver,
)
from pibert.report.comparison.spectra import draw_power
from pibert.report.figures import (
    LARGE,
    NORMAL,
    add_bar,
    layer_of,
    panels,
    show,
    with_unit,
)

SHOWN = "free_run/shown/"
_FIELDS, _LINES = 4, 6
"""Models in figures of fields, and of lines."""
_ERRORS = {
    "mean_error": "mean flow",
    "stress_error": "{stresses}",
    "distribution_error": "distribution",
    "psd_log_error": "spectrum at probes",
}
_SMALLEST = 1e-6
"""Power or density below this share of the maximum is not shown."""


class Quantity(NamedTuple):
    """A statistic at every point."""

    label: str
    values: Tensor
    signed: bool


def best_models(data: DatasetResults, most: int) -> list[str]:
    """Models with a free run: the smallest errors of the stresses, and the best reference.

    The solver on a coarser grid is added.
    """

    def error(model: str) -> float:
        value = data.value(model, "free_run_stress_error")
        return math.inf if value is None else value

    known = data.arrays_of(data.models, f"{SHOWN}known")
    order = sorted(known, key=error)
    trained = [model for model in order if model not in UNTRAINED]
    references = [model for model in order if model in UNTRAINED]
    chosen = {*trained[: most - 1], *references[:1]}
    chosen |= set(order[: most - len(chosen)])
    solver = [] if data.coarse_solver is None else [COARSE_SOLVER]
    return [model for model in order if model in chosen] + solver


def _shown(data: DatasetResults, model: str) -> dict[str, Tensor]:
    return data.first(model).group(SHOWN.removesuffix("/"))


def _origin(data: DatasetResults, models: Sequence[str], *, whole: bool = False) -> str:
    """Which run is shown, for captions; ``whole``: only of models that did not diverge."""
    arrays = data.first(models[0]).arrays
    run = int(arrays["free_run/run"])
    start, count = (int(arrays[f"free_run/{name}"][run]) for name in ("frame", "frames"))
    name = data.flow_name(int(arrays["free_run/trajectory"][run]))
    lost = {m: frames for m in models if (frames := _lost_after(data, m)) is not None}
    ended = ", ".join(f"{m} after {frames}" for m, frames in lost.items())
    short = f"the frames before are shown if there are {LEAST_FRAMES} or more"
    short = "these are left out" if whole else short
    diverged = f" Diverged: {ended}; {short}." if lost else ""
    return f"{name}, {count} frames from frame {start} on.{diverged}"


def _lost_after(data: DatasetResults, model: str) -> int | None:
    """Frames of the shown run before it diverged; None if it did not."""
    arrays = _shown(data, model)
    survived = int(arrays["survived"])
    return survived if survived < len(arrays["series"]) else None


def _quantities(data: DatasetResults, mean: Tensor, stress: Tensor) -> list[Quantity]:
    """Mean, energy of the fluctuations and shear stress; of other fields mean and variance."""
    spec = data.spec
    if spec.velocity is None:
        unit, name = spec.units[0], spec.channels[0]
        square = squared_unit(unit).replace("^2", "²")
        return [
            Quantity(with_unit(f"mean {name}", unit), mean[0], False),
            Quantity(with_unit(f"variance of {name}", square), stress[0, 0], False),
        ]
    u, v = spec.velocity
    unit, square = spec.units[u], squared_unit(spec.units[u])
    energy = (stress[u, u] + stress[v, v]) / 2
    return [
        Quantity(with_unit("mean u", unit), mean[u], False),
        Quantity(with_unit("turbulent kinetic energy", square), energy, False),
        Quantity(with_unit("Reynolds stress u'v'", square), stress[u, v], True),
    ]


def _statistics(data: DatasetResults, models: Sequence[str]) -> dict[str, list[Quantity]]:
    """Quantities of the truth and of the models that ran long enough."""
    first = _shown(data, models[0])
    found = {"truth": _quantities(data, first["true_mean"], first["true_stress"])}
    for model in models:
        arrays = _shown(data, model)
        if "mean" in arrays:
            found[model] = _quantities(data, arrays["mean"], arrays["stress"])
    return found


def free_run_errors(data: DatasetResults) -> Plot | None:
    """Errors of the statistics of free runs, with intervals and the true flow's sampling error."""
    metrics = {
        name: title
        for name, title in _ERRORS.items()
        if any(data.value(m, f"free_run_{name}") is not None for m in data.models)
    }
    if not metrics:
        return None
    figure, axes = sheet(10.4, 0.24 * len(data.models) + 1.3, 1, len(metrics), sharey=True)
    for ax, (name, title) in zip(axes[0], metrics.items(), strict=True):
        frame(ax, title.format(stresses=data.stresses), x="error")
        _draw_errors(ax, data, f"free_run_{name}")
        rows_of_models(ax, [data.ranked(model) for model in data.models])
    facts = data.facts["free_run"]
    frames = " to ".join(map(str, sorted(set(facts["frames"]))))
    caption = (
        f"{facts['runs']} free runs of {frames} frames on {facts['flows']} test flows; lines are "
        "95 % intervals. Shaded: up to the true flow's own sampling error, how far two stretches "
        "of the truth differ (from the halves of each run); no model can be expected to do better. "
        "× : a run "
        "diverged, so the error is infinite. Models in the order of their next-frame error."
    )
    if solver := data.facts.get("coarse_solver"):
        caption += f" Dashed line: {describe_solver(solver)}."
    return Plot(figure, caption)


def _draw_errors(ax: Axes, data: DatasetResults, metric: str) -> None:
    points: dict[str, tuple[float, list[float]]] = {}
    for model in data.models:
        value = data.value(model, metric)
        if value is not None and value > 0:
            ends = [r[end] for r in data.find(model, metric) for end in ("low", "high")]
            points[model] = (value, [end for end in ends if end])
    sampling = data.value("truth", metric)
    known = [v for value, ends in points.values() for v in (value, *ends)]
    solver = data.value(COARSE_SOLVER, metric)
    known += [value for value in (sampling, solver) if value]
    if known:
        logarithmic(ax, "x", known)
    if sampling:
        ax.axvspan(ax.get_xlim()[0], sampling, color="0.9", lw=0, zorder=0)
    if solver:
        ax.axvline(solver, color=data.colour(COARSE_SOLVER), lw=1.2, ls="--", zorder=1)
    for row, model in enumerate(data.models):
        if model in points:
            value, ends = points[model]
            if ends:
                ax.plot([min(ends), max(ends)], [row, row], color=data.colour(model), lw=1.4)
            ax.plot(value, row, **point_style(data, model))
        elif data.value(model, "free_run_diverged"):
            at: dict[str, Any] = {"transform": ax.get_yaxis_transform(), "clip_on": False}
            ax.plot(1.0, row, "x", color=data.colour(model), ms=6, mew=1.6, **at)


def free_run_fields(data: DatasetResults) -> Plot | None:
    """Mean flow, turbulent kinetic energy and shear stress of the truth and of free runs."""
    models = best_models(data, _FIELDS)
    if not models:
        return None
    found, grid = _statistics(data, models), data.spec.grid
    known = _shown(data, models[0])["known"]
    if grid.body is not None:
        known = known & ~grid.body
    layers = {
        name: [layer_of(quantity.values, known) for quantity in own] for name, own in found.items()
    }
    figure, axes = panels(len(found), grid)
    for column, quantity in enumerate(found["truth"]):
        low, high, colours = layers["truth"][column].scale(signed=quantity.signed)
        beyond = excess([own[column] for own in layers.values()], low, high)
        for row, name in enumerate(found):
            ax = axes[row, column]
            image = show(ax, layers[name][column], grid, low, high, colours)
            if row == 0:
                ax.set_title(quantity.label, fontsize=LARGE)
                add_bar(ax, image, extend=beyond)
    for line, name in zip(axes, found, strict=True):
        lost = None if name == "truth" else _lost_after(data, name)
        note = "" if lost is None else f"diverged after {lost}"
        line[0].set_ylabel(f"{name}\n{note}\n{axis_label(data, 'y')}", fontsize=NORMAL)
        for ax in line[len(found["truth"]) :]:
            ax.set_axis_off()
    for ax in axes[-1]:
        ax.set_xlabel(axis_label(data, "x"), fontsize=NORMAL)
    caption = (
        f"{_origin(data, models)} Means in time at every point, all on the scale of the truth. "
        "Models with the smallest errors of the stresses over all runs, and the best reference. "
        "Grey: body and unknown points."
    )
    return Plot(figure, caption)


def free_run_profiles(data: DatasetResults) -> Plot | None:
    """Profiles across the stream of mean flow and stresses, of the truth and of free runs."""
    models = best_models(data, _LINES)
    if not models:
        return None
    found, grid = _statistics(data, models), data.spec.grid
    known = _shown(data, models[0])["known"]
    columns = stations(grid.body, grid)
    x, y = (np.asarray(values) for values in grid.coordinates(torch.float64))
    count = len(found["truth"])
    figure, axes = sheet(10, 2.3 * count + 0.5, count, len(columns), sharey=True)
    for row, quantity in enumerate(found["truth"]):
        for ax, (name, column) in zip(axes[row], columns.items(), strict=True):
            for model, own in found.items():
                line = torch.where(known, own[row].values, math.nan)[:, column]
                ax.plot(line, y[:, column], **line_style(data, model))
            place = f"{name}, x = {x[0, column]:.3g} {data.info['length_unit'] or ''}".rstrip()
            title = place if row == 0 else ""
            frame(ax, title, x=quantity.label)
            ax.margins(y=0.01)
            ax.locator_params(axis="x", nbins=5)
        axes[row, 0].set_ylabel(axis_label(data, "y"), fontsize=NORMAL)
    legend(figure, [Line2D([], [], **line_style(data, name)) for name in found])
    caption = f"{_origin(data, models)} Means in time along columns of the grid."
    return Plot(figure, caption)


def free_run_spectra(data: DatasetResults) -> Plot | None:
    """Power spectra at the probes of the truth and of free runs."""
    models = best_models(data, _LINES + 2)
    if not models or not len(_shown(data, models[0])["probes"]):
        return None
    spec, first = data.spec, _shown(data, models[0])
    channel = 0 if spec.velocity is None else spec.velocity[1]
    whole = [m for m in models if _lost_after(data, m) is None]
    series = {"truth": first["true_series"], **{m: _shown(data, m)["series"] for m in whole}}
    series = {name: values[..., channel] for name, values in series.items()}
    title = f"Power spectral density of {spec.channels[channel]}, free runs"
    figure, axes, peak = draw_power(data, series, title, spec.units[channel], _SMALLEST)
    for ax in axes:
        ax.axvline(peak, color="0.7", lw=0.8, zorder=0)
    caption = (
        f"{_origin(data, models, whole=True)} Mean over {len(first['probes'])} probes, Hann "
        "window; (b) predicted over true, from 0.01 to 100. Vertical line: the highest peak of "
        "the truth. The runs see no true frame after their start, so a peak in the right place is "
        "the model's own."
    )
    return Plot(figure, caption)


def free_run_densities(data: DatasetResults) -> Plot | None:
    """Probability densities of the values of every channel, of the truth and of free runs."""
    models = best_models(data, _LINES)
    if not models:
        return None
    spec, first = data.spec, _shown(data, models[0])
    curves = {"truth": first["true_density"]}
    curves |= {m: found["density"] for m in models if "density" in (found := _shown(data, m))}
    middles = (first["edges"][:, 1:] + first["edges"][:, :-1]) / 2
    figure, axes = sheet(3.4 * len(spec.channels) + 1, 3.0, 1, len(spec.channels))
    for channel, ax in enumerate(axes[0]):
        label = with_unit(spec.channels[channel], spec.units[channel])
        frame(ax, "", x=label, y="probability density" if channel == 0 else "")
        floor = 1e-4 * float(curves["truth"][channel].max())
        for name, values in curves.items():
            shown = np.where(values[channel] > floor, values[channel], np.nan)
            ax.plot(middles[channel], shown, **line_style(data, name))
        # A run that comes to rest has a peak at one value, which may leave the axis.
        peaks = [float(values[channel].max()) for values in curves.values()]
        logarithmic(ax, "y", [floor, min(max(peaks), 1e5 * floor)])
        ax.locator_params(axis="x", nbins=6)
    style: dict[str, Any] = {"columns": min(len(curves), 7)}
    legend(figure, [Line2D([], [], **line_style(data, name)) for name in curves], **style)
    caption = (
        f"{_origin(data, models)} Values at all known points and times. Where a curve ends, values "
        "do not occur, or are rarer than a ten-thousandth of the most frequent ones."
    )
    return Plot(figure, caption)
