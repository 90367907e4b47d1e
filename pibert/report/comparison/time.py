"""One-step predictions in the order of time: series at a few probes, and their energy.

Probes and spectra are those of ``evaluation/probes.py`` and ``evaluation/temporal.py``. Each value
of a model is predicted from the true frame before it (teacher forcing), so that persistence keeps
the rhythm of the flow too: nothing here is the frequency of a model left to itself.
"""

from typing import NamedTuple

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.patheffects import withStroke
from torch import Tensor

from pibert.evaluation.temporal import BANDS, LEAST_FRAMES, power_density
from pibert.report.comparison.board import COLOURS, Board
from pibert.report.comparison.drawn import (
    NORMAL,
    SMALL,
    Drawn,
    axis_label,
    blank,
    with_unit,
)
from pibert.report.comparison.picked import Picked, chief, pick, quantities, unit_of
from pibert.report.comparison.plots import (
    Label,
    frame,
    label_ends,
    line_style,
    logarithmic,
    sheet,
    time_unit,
)
from pibert.report.figures import add_bar, show

_PROBES = 4
_LONGEST = 160
"""Frames of a series that are drawn: more of them are a band of ink."""
_POWER_SHOWN = 1e-7
"""Of the greatest power: what is below it is rounding."""
_TABLE_ROWS = 15
"""Of a table that fills its panel."""
_TABLE = {
    "low": ("psd_ratio_low", "all"),
    "mid": ("psd_ratio_mid", "all"),
    "high": ("psd_ratio_high", "all"),
}


class Series(NamedTuple):
    """What is drawn at the probes."""

    channel: str
    unit: str
    time: np.ndarray
    clock: str
    """Name of the axis of time."""
    places: list[tuple[int, int]]
    truth: Tensor
    """(t, probe)."""
    models: dict[str, Tensor]


def probe_traces(board: Board) -> Drawn | None:
    """A map with probes; below, truth and models at each of them, and the models' errors."""
    series, picked = _series(board, board.shown(5)), pick(board, "median")
    if series is None or picked is None:
        return None
    n = len(series.places)
    chosen = sorted({round(place) for place in np.linspace(0, n - 1, min(n, _PROBES))})
    figure = blank(10.4, 2.5 + 1.35 * len(chosen))
    grid = figure.add_gridspec(len(chosen) + 1, 2, height_ratios=[1.75, *[1.0] * len(chosen)])
    _draw_map(figure.add_subplot(grid[0, 0]), board, picked, series, chosen)
    _draw_key(figure.add_subplot(grid[0, 1]), board, series)
    length = min(len(series.time), _LONGEST)
    x, y = board.spec.grid.coordinates(torch.float64)
    for row, probe in enumerate(chosen, start=1):
        left, right = (figure.add_subplot(grid[row, column]) for column in (0, 1))
        truth = series.truth[:length, probe]
        place = series.places[probe]
        at = f"P{row}  x = {float(x[place]):.3g}, y = {float(y[place]):.3g}"
        below = series.clock if row == len(chosen) else ""
        frame(left, at, x=below, y=with_unit(series.channel, series.unit))
        frame(right, f"P{row}  error" if row == 1 else f"P{row}", x=below)
        left.plot(series.time[:length], truth, color=COLOURS["truth"], lw=2.6, alpha=0.8)
        right.axhline(0.0, color="0.5", lw=0.6)
        for model, values in series.models.items():
            own = values[:length, probe]
            left.plot(series.time[:length], own, **line_style(board, model))
            right.plot(series.time[:length], own - truth, **line_style(board, model))
        for ax in (left, right):
            ax.set_xlim(series.time[0], series.time[length - 1])
            ax.tick_params(labelbottom=row == len(chosen))
    cut = f" The first {length} of {len(series.time)} frames are shown." * (
        length < len(series.time)
    )
    caption = (
        f"Data set {board.name}: {with_unit(series.channel, series.unit)} at {len(chosen)} of {n} "
        f"probes of {_sequence(board)} in the order of time, and the errors of one-step "
        f"predictions: each is made from the true frame before it. Probes are placed by the "
        f"geometry, whatever the predictions; the map shows the frame of median error of "
        f"persistence.{cut}"
    )
    alt = (
        f"Series of {series.channel} at {len(chosen)} probes on {board.name}, truth and "
        f"{len(series.models)} models, with their errors."
    )
    return Drawn(figure, caption, alt)


def power_spectra(board: Board) -> Drawn | None:
    """Power spectral density at the probes, and a table of predicted over true energy by band."""
    series = _series(board, board.shown(8))
    rows = [m for m in board.models if board.value(m, "psd_ratio_low") is not None]
    if series is None or len(series.time) < LEAST_FRAMES or not rows:
        return None
    dt = board.spec.dt or 1.0
    frequency, power = power_density(series.truth, dt)
    truth = power.mean(1)[1:].numpy()
    density = {m: power_density(v, dt)[1].mean(1)[1:].numpy() for m, v in series.models.items()}
    f, floor = frequency[1:].numpy(), _POWER_SHOWN * truth.max()
    height = max(3.9, 0.2 * len(rows) + 1.2)
    figure, axes = sheet(10.4, height, 1, 2, width_ratios=[1.35, 1])
    left, right = axes[0]
    clock = time_unit(board)
    unit = None if clock is None else _inverse(clock)
    power_unit = None if series.unit == "1" else f"({series.unit})² {clock or ''}".strip()
    frame(
        left,
        f"a  Power spectral density of {series.channel}, one-step predictions",
        x=with_unit("frequency f", unit),
        y=with_unit("P(f)", power_unit),
    )
    shown = np.maximum(np.stack([truth, *density.values()]), floor)
    logarithmic(left, "y", shown.flatten().tolist())
    left.plot(f, np.maximum(truth, floor), color=COLOURS["truth"], lw=2.8, alpha=0.8, zorder=2)
    for model, own in density.items():
        left.plot(f, np.maximum(own, floor), **line_style(board, model))
    left.set_xlim(0, f[-1])
    left.axvspan(f[-1] / 3, 2 * f[-1] / 3, color="0.94", lw=0, zorder=0)
    for place, band in enumerate(BANDS):
        top = left.get_xaxis_transform()
        at = ((place + 0.5) * f[-1] / 3, 0.985)
        left.text(*at, band, transform=top, ha="center", va="top", fontsize=SMALL, color="0.45")
    ends = [Label(f[-1], max(float(d[-1]), floor), m, board.colour(m)) for m, d in density.items()]
    ends.append(Label(f[-1], max(float(truth[-1]), floor), "truth", COLOURS["truth"]))
    label_ends(left, ends)
    _draw_table(right, board, rows)
    caption = (
        f"Data set {board.name}: (a) mean over {len(series.places)} probes of the density of "
        f"{series.channel} in {_sequence(board)}, Hann window; thirds of the frequencies are the "
        "bands. (b) Predicted over true energy of all trajectories by band (1 is right, less is "
        "too calm), mean over components. Every frame is predicted from the true one before it: "
        "persistence, which repeats the truth a step late, is right by construction, and no "
        "model's own frequency is shown."
    )
    alt = f"Power spectra in time of truth and {len(density)} models on {board.name}, with a table."
    return Drawn(figure, caption, alt)


def _series(board: Board, shown: tuple[str, ...]) -> Series | None:
    reference, spec = board.reference.arrays, board.spec
    if "probes/truth" not in reference or not reference["probes/truth"].numel():
        return None
    channel = 0 if spec.velocity is None else spec.velocity[1]
    models = {m: board.first(m).arrays.get("probes/prediction") for m in shown}
    first = int(reference["rows/frame"][0])
    frames = np.arange(first, first + len(reference["probes/truth"]))
    return Series(
        channel=spec.channels[channel],
        unit=spec.units[channel],
        time=frames * (spec.dt or 1.0),
        clock=with_unit("time", time_unit(board)),
        places=[(int(row), int(column)) for row, column in reference["probes/places"]],
        truth=reference["probes/truth"][..., channel],
        models={m: own[..., channel] for m, own in models.items() if own is not None},
    )


def _sequence(board: Board) -> str:
    """The trajectory that the probes are in: the first of the test part."""
    facts = board.reference.card["data"]
    number = int(board.reference.arrays["rows/trajectory"][0])
    values = facts["parameters"][number] if facts.get("parameters") else {}
    words = ", ".join(f"{name} = {value:.3g}" for name, value in values.items())
    return str(facts["names"][number]) + (f" ({words})" if words else "")


def _draw_map(ax: Axes, board: Board, picked: Picked, series: Series, chosen: list[int]) -> None:
    spec, name = board.spec, chief(board)
    layer = quantities(board, picked.truth, picked.shown)[name]
    low, high, colours = layer.scale()
    image = show(ax, layer, spec.grid, low, high, colours)
    add_bar(ax, image)
    frame(ax, with_unit(name, unit_of(board, name)), grid=False)
    ax.set_xlabel(axis_label(board, "x"), fontsize=NORMAL)
    ax.set_ylabel(axis_label(board, "y"), fontsize=NORMAL)
    x, y = spec.grid.coordinates(torch.float64)
    for number, probe in enumerate(chosen, start=1):
        at = (float(x[series.places[probe]]), float(y[series.places[probe]]))
        ax.plot(*at, "o", ms=4.5, mfc="white", mec="black", mew=0.8)
        ax.annotate(
            f"P{number}",
            at,
            xytext=(4, 3),
            textcoords="offset points",
            fontsize=NORMAL,
            path_effects=[withStroke(linewidth=2, foreground="white")],
        )


def _draw_key(ax: Axes, board: Board, series: Series) -> None:
    ax.plot([], [], color=COLOURS["truth"], lw=2.6, alpha=0.8, label="truth")
    for model in series.models:
        ax.plot([], [], **line_style(board, model), label=model)
    ax.legend(loc="center", fontsize=NORMAL, frameon=False, ncols=2, handlelength=3)
    ax.set_axis_off()


def _draw_table(ax: Axes, board: Board, rows: list[str]) -> None:
    """Models by numbers, with rules above and below as in a printed table."""
    ax.set_axis_off()
    ax.set_title("b  Predicted / true energy", fontsize=NORMAL + 1, loc="left")
    ax.set_xlim(0, 1)
    ax.set_ylim(max(len(rows), _TABLE_ROWS) + 0.3, -1.2)
    columns = [0.64, 0.82, 1.0]
    for x, name in zip(columns, _TABLE, strict=True):
        ax.text(x, -0.6, name, ha="right", va="center", fontsize=SMALL)
    for y, width in ((-1.1, 1.0), (-0.1, 0.6), (len(rows) + 0.05, 1.0)):
        ax.axhline(y, color="0.2", lw=width)
    for row, model in enumerate(rows):
        at = row + 0.45
        ax.text(0, at, model, va="center", fontsize=SMALL, color=board.colour(model))
        for x, (metric, component) in zip(columns, _TABLE.values(), strict=True):
            value = board.value(model, metric, component)
            ax.text(x, at, _number(value), ha="right", va="center", fontsize=SMALL)


def _number(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:.3f}" if value < 10 else f"{value:.1f}" if value < 1e4 else f"{value:.1e}"


def _inverse(unit: str) -> str:
    """``1/s`` of ``s``, ``U/D`` of ``D/U``."""
    above, _, below = unit.partition("/")
    return f"{below or '1'}/{above}"
