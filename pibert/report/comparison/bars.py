"""Bars of errors: by component, and from coarse to fine.

Groups stand side by side, bars within a group are models by rank. A value that several seeds gave
is their mean; whiskers run from the lowest to the highest end of their intervals. Errors have
logarithmic axes: they differ by orders of magnitude between models. Shares of one (LPCC, R2) have
axes from 0 to 1; a bar that would start below zero says so by a number.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import LogLocator, NullFormatter

from pibert.evaluation.components import SPEED
from pibert.evaluation.scales import GROUPS, SCALES
from pibert.evaluation.spectra import BANDS
from pibert.report.comparison.board import Board
from pibert.report.comparison.drawn import (
    LARGE,
    NORMAL,
    SMALL,
    Drawn,
    blank,
    interval_text,
    tidy,
)

MOST = 10
"""Models that bars of a group are still told apart for."""
_FULL = 0.86
"""Share of a group's width that its bars fill."""


class Group(NamedTuple):
    """Bars that stand together."""

    label: str
    metric: str
    component: str = "all"


class Panel(NamedTuple):
    """One pair of axes."""

    title: str
    groups: Sequence[Group]
    logarithmic: bool = True


class Bar(NamedTuple):
    value: float
    low: float | None
    high: float | None


def bar_of(board: Board, model: str, group: Group) -> Bar | None:
    """Mean over the seeds, and the widest interval of theirs; None where nothing was measured."""
    value = board.value(model, group.metric, group.component)
    if value is None:
        return None
    records = board.find(model, group.metric, group.component)
    low = [record["low"] for record in records if record["low"] is not None]
    high = [record["high"] for record in records if record["high"] is not None]
    return Bar(value, min(low, default=None), max(high, default=None))


def draw_bars(ax: Axes, board: Board, models: Sequence[str], panel: Panel) -> None:
    """Fill axes with the groups of a panel."""
    width = _FULL / len(models)
    for place, group in enumerate(panel.groups):
        for number, model in enumerate(models):
            bar = bar_of(board, model, group)
            if bar is not None:
                centre = place + width * (number - (len(models) - 1) / 2)
                _draw_bar(ax, centre, width, bar, board.colour(model), model)
    ax.set_xticks(range(len(panel.groups)), [group.label for group in panel.groups])
    ax.set_xlim(-0.5, len(panel.groups) - 0.5)
    ax.set_title(panel.title, fontsize=LARGE, loc="left")
    tidy(ax)
    ax.tick_params(axis="x", length=0, labelsize=NORMAL)
    ax.grid(axis="y", linewidth=0.4, color="0.85")
    ax.set_axisbelow(True)
    _set_height(ax, board, models, panel)


def _draw_bar(ax: Axes, x: float, width: float, bar: Bar, colour: str, model: str) -> None:
    ax.bar(
        x,
        bar.value,
        0.92 * width,
        color=colour,
        edgecolor="white",
        linewidth=0,
        hatch="////" if model == "pibert" else None,
    )
    if bar.low is not None and bar.high is not None:
        ax.plot([x, x], [bar.low, bar.high], color="0.1", linewidth=0.7, solid_capstyle="butt")


def _set_height(ax: Axes, board: Board, models: Sequence[str], panel: Panel) -> None:
    """From a little below the least to a little above the most; shares from 0 to 1."""
    bars = [bar for g in panel.groups for m in models if (bar := bar_of(board, m, g)) is not None]
    if not panel.logarithmic:
        ax.set_ylim(0, 1.02)
        _mark_negative(ax, board, models, panel)
        return
    ends = [end for bar in bars for end in bar if end is not None and end > 0]
    if not ends:
        return
    ax.set_yscale("log")
    ax.set_ylim(10 ** np.floor(np.log10(min(ends)) - 0.15), 1.3 * max(ends))
    ax.yaxis.set_major_locator(LogLocator(numticks=8))
    ax.yaxis.set_minor_formatter(NullFormatter())
    ax.tick_params(axis="y", which="minor", length=1.5, width=0.4)


def _mark_negative(ax: Axes, board: Board, models: Sequence[str], panel: Panel) -> None:
    width = _FULL / len(models)
    for place, group in enumerate(panel.groups):
        for number, model in enumerate(models):
            bar = bar_of(board, model, group)
            if bar is not None and bar.value < 0:
                x = place + width * (number - (len(models) - 1) / 2)
                text = f"{bar.value:.2g}".replace("-", "\N{MINUS SIGN}")
                ax.text(
                    x,
                    0.02,
                    text,
                    rotation=90,
                    ha="center",
                    va="bottom",
                    fontsize=SMALL - 1,
                    color=board.colour(model),
                )


def add_legend(figure: Figure, board: Board, models: Sequence[str]) -> None:
    """The models by rank, above all panels."""
    handles = [
        Patch(
            facecolor=board.colour(model),
            edgecolor="white",
            linewidth=0,
            hatch="////" if model == "pibert" else None,
            label=f"{board.models.index(model) + 1}. {model}",
        )
        for model in models
    ]
    figure.legend(
        handles=handles,
        loc="outside upper center",
        ncols=min(5, len(handles)),
        fontsize=NORMAL,
        frameon=False,
        handlelength=1.2,
        columnspacing=1.4,
    )


def _draw(board: Board, panels: Sequence[Panel], models: Sequence[str]) -> Figure | None:
    """The panels that have anything to show, two in a row."""
    found = [own for panel in panels if (own := _measured(board, models, panel)).groups]
    if not found:
        return None
    rows = -(-len(found) // 2)
    figure = blank(10, 2.5 * rows + 0.3 + 0.2 * -(-len(models) // 5))
    axes = figure.subplots(rows, min(2, len(found)), squeeze=False).flatten()
    for letter, ax, panel in zip("abcdef", axes, found, strict=False):
        draw_bars(ax, board, models, panel._replace(title=f"({letter}) {panel.title}"))
    for ax in axes[len(found) :]:
        ax.set_axis_off()
    add_legend(figure, board, models)
    return figure


def _measured(board: Board, models: Sequence[str], panel: Panel) -> Panel:
    groups = [g for g in panel.groups if any(bar_of(board, m, g) is not None for m in models)]
    return panel._replace(groups=groups)


def metrics(board: Board) -> Drawn | None:
    """LMAE, LPCC, R2 and NMSE of every component."""
    components = [*board.spec.channels, SPEED, "all"]
    names = (("LMAE", "lmae"), ("LPCC", "lpcc"), ("R\N{SUPERSCRIPT TWO}", "r2"), ("NMSE", "nmse"))
    panels = [
        Panel(
            _titled(board, title, metric),
            [Group(component, metric, component) for component in components],
            metric not in ("lpcc", "r2"),
        )
        for title, metric in names
    ]
    models = board.shown(MOST)
    figure = _draw(board, panels, models)
    if figure is None:
        return None
    caption = (
        f"Data set {board.name}, all {board.facts['test_frames']} test frames, physical units: "
        f"LMAE and NMSE (lower is better), LPCC and R\N{SUPERSCRIPT TWO} (higher is better) of "
        f"every component; models by rank.{interval_text(board)}"
    )
    return Drawn(figure, caption, f"Bars of LMAE, LPCC, R2 and NMSE of {', '.join(models)}.")


def _titled(board: Board, title: str, metric: str) -> str:
    """With its unit where all components have the same one."""
    units = {r["unit"] for m in board.models[:1] for r in board.records
             if (r["model"], r["metric"], r["space"]) == (m, metric, "physical")}  # fmt: skip
    unit = units.pop() if len(units) == 1 else "1"
    return title if unit == "1" else f"{title} [{unit}]"


def scales(board: Board) -> Drawn | None:
    """Errors of wavelet groups, of pooled fields, and of bands of the spectrum."""
    bands = [f"{name}" for name in BANDS]
    panels = [
        Panel("wavelet sub-bands, NMSE", [Group(name, "haar_nmse", name) for name in GROUPS]),
        Panel(
            "averages over k \N{MULTIPLICATION SIGN} k points, NMSE",
            [Group(f"k = {k}", f"scale_{k}_nmse") for k in SCALES],
        ),
        Panel("bands of wave numbers, NMSE", [Group(name, "band_nmse", name) for name in bands]),
        Panel(
            "bands of wave numbers, error of the spectrum",
            [Group(name, "band_spectrum_error", name) for name in bands],
        ),
    ]
    models = board.shown(MOST)
    figure = _draw(board, panels, models)
    if figure is None:
        return None
    caption = (
        f"Data set {board.name}, all {board.facts['test_frames']} test frames, errors from coarse "
        "to fine; lower is better. Wavelet groups are means over Haar sub-bands (coarse: level 3, "
        "fine: level 1); bands are thirds of the resolved wave numbers, once of the error's own "
        "spectrum over that of the truth, and once of the difference of both spectra, which does "
        f"not see phase.{interval_text(board)}"
    )
    return Drawn(figure, caption, f"Bars of errors from coarse to fine of {', '.join(models)}.")


FIGURES = (metrics, scales)
