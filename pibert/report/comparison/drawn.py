"""A figure of the report with the words that belong to it, and what figures share.

Sizes are in inches. Nothing here goes through pyplot.
"""

from typing import Literal, NamedTuple

from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from pibert.report.comparison.board import Board
from pibert.report.figures import DPI

SMALL, NORMAL, LARGE = 7.5, 8.5, 9.5
"""Sizes of letters in points: ticks, labels, headings."""


class Drawn(NamedTuple):
    """What a function of this folder hands to the page."""

    figure: Figure
    caption: str
    """Data set, units, sample, rule of choice: one to three plain sentences."""
    alt: str
    """One sentence for a reader who cannot see the picture."""


def blank(width: int | float, height: int | float, *, exact: bool = False) -> Figure:
    """An empty figure of some inches that can be drawn without a window.

    Args:
        width: In inches.
        height: In inches.
        exact: Axes stay where they are put; else they are arranged so that nothing overlaps.
    """
    layout: Literal["constrained"] | None = None if exact else "constrained"
    figure = Figure(figsize=(width, height), dpi=DPI, layout=layout, facecolor="white")
    FigureCanvasAgg(figure)
    return figure


def tidy(ax: Axes) -> None:
    """Thin lines, small ticks, no frame where there is no data."""
    ax.tick_params(labelsize=SMALL, length=2.5, width=0.6)
    for side, spine in ax.spines.items():
        spine.set_linewidth(0.6)
        spine.set_visible(side in ("left", "bottom"))


def with_unit(name: str, unit: str | None) -> str:
    """``u [m/s]``; a name alone where it has no unit."""
    return name if unit in (None, "", "1") else f"{name} [{unit}]"


def axis_label(board: Board, axis: str) -> str:
    """``x [D]``."""
    return with_unit(axis, board.reference.card["data"]["length_unit"])


def interval_text(board: Board) -> str:
    """What the whiskers of a figure are; empty where there are none."""
    method = str(board.facts.get("intervals", "none"))
    if method.startswith("none"):
        return ""
    seeds = len({seed for _, seed in board.scores})
    over = " from the lowest to the highest of the seeds" if seeds > 1 else ""
    return f" Whiskers: 95 % intervals by the bootstrap ({method}){over}."
