"""How errors are distributed over the test frames: many small ones, or a few that decide the mean.

The error of a frame is its relative L2 error over all channels and known points
(``pointwise.frame_errors``). Violins show the density of its decimal logarithm: a sum of Gaussians
around the frames with the width h = 0.9 min(s, IQR / 1.34) n^(-1/5) (B. W. Silverman, Density
Estimation for Statistics and Data Analysis, 1986), drawn between the least and the greatest error.
Frames without any error, as persistence has them in a steady flow, have no logarithm: they count
in the quantiles, and their share is written beside the violin.
"""

from typing import NamedTuple

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes

from pibert.report.comparison.board import Board
from pibert.report.comparison.drawn import LARGE, NORMAL, SMALL, Drawn, blank, tidy
from pibert.report.comparison.plots import logarithmic

QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
NARROWEST = 0.01
"""Least width of a Gaussian, in decades: frames of one error still have a shape."""
HALF = 0.4
"""Half the height of a violin, in places of models."""


class FrameErrors(NamedTuple):
    """Relative errors of the frames of a model, over all of its seeds."""

    errors: Float[np.ndarray, " n"]
    """Finite ones, in rising order."""
    silent: int
    """Frames whose truth is zero everywhere: no relative error."""

    def quantiles(self) -> tuple[float, ...]:
        """At ``QUANTILES``."""
        return tuple(np.quantile(self.errors, QUANTILES).tolist())


def frame_errors_of(board: Board) -> dict[str, FrameErrors]:
    """By model, the best first; models without a single frame to judge are left out."""
    found = {}
    for model in board.models:
        own = [
            s.arrays.get("errors/prediction") for (m, _), s in board.scores.items() if m == model
        ]
        parts = [array.double().numpy() for array in own if array is not None]
        pooled = np.concatenate(parts) if parts else np.empty(0)
        known = np.sort(pooled[np.isfinite(pooled)])
        if known.size:
            found[model] = FrameErrors(known, int(pooled.size - known.size))
    return found


def error_distribution(board: Board) -> Drawn | None:
    """A violin for every model, with quartiles, median, and 5th to 95th percentile."""
    found = frame_errors_of(board)
    positive = [own.errors[own.errors > 0] for own in found.values()]
    ends = [float(end) for own in positive if own.size for end in (own[0], own[-1])]
    if not ends:
        return None
    figure = blank(8, 0.36 * len(found) + 1.1)
    ax = figure.subplots()
    logarithmic(ax, "x", ends)
    floor = ax.get_xlim()[0]
    for place, (model, own) in enumerate(found.items()):
        _draw(ax, place, own, board.colour(model), floor)
    ranks = [f"{board.models.index(model) + 1}. {model}" for model in found]
    ax.set_yticks(range(len(ranks)), ranks)
    ax.set_ylim(len(ranks) - 0.4, -0.6)
    ax.set_title("relative error of a frame", fontsize=LARGE, loc="left")
    ax.set_xlabel("error / truth, L2 over channels and known points", fontsize=NORMAL)
    tidy(ax)
    ax.tick_params(axis="y", length=0, labelsize=SMALL)
    ax.grid(axis="x", linewidth=0.4, color="0.85")
    ax.set_axisbelow(True)
    return Drawn(figure, _caption(board, found), _alt(found))


def density(
    logs: Float[np.ndarray, " n"], points: int = 129
) -> tuple[Float[np.ndarray, " m"], Float[np.ndarray, " m"]]:
    """Places between the least and the greatest value, and the density there, per unit of x."""
    low, high = np.quantile(logs, (0.25, 0.75))
    spread = min(float(logs.std()), float(high - low) / 1.34)
    width = max(0.9 * spread * logs.size**-0.2, NARROWEST)
    x = np.linspace(logs.min(), logs.max(), points)
    # One place at a time: long recordings have many frames.
    bells = [np.exp(-0.5 * ((place - logs) / width) ** 2).mean() for place in x]
    return x, np.array(bells) / (width * np.sqrt(2 * np.pi))


def _draw(ax: Axes, place: int, own: FrameErrors, colour: str, floor: float) -> None:
    positive = own.errors[own.errors > 0]
    if positive.size:
        x, height = density(np.log10(positive))
        half = HALF * height / height.max()
        ax.fill_between(10**x, place - half, place + half, color=colour, alpha=0.45, lw=0, zorder=2)
    # What lies below the axis is drawn at its edge.
    low, left, middle, right, high = (max(q, floor) for q in own.quantiles())
    ax.plot([low, high], [place, place], color="0.25", lw=0.8, zorder=3)
    ax.plot([left, right], [place, place], color=colour, lw=5, solid_capstyle="butt", zorder=4)
    ax.plot([middle], [place], "o", color="white", mec="0.25", mew=0.6, ms=4, zorder=5)
    if positive.size < own.errors.size:
        share = 1 - positive.size / own.errors.size
        ax.annotate(
            f"{share:.0%} without error",
            (0, place),
            xycoords=("axes fraction", "data"),
            xytext=(3, -7),
            textcoords="offset points",
            fontsize=SMALL,
            color="0.35",
        )


def _caption(board: Board, found: dict[str, FrameErrors]) -> str:
    frames = max(own.errors.size + own.silent for own in found.values())
    silent = max(own.silent for own in found.values())
    seeds = len({seed for _, seed in board.scores})
    pooled = f", the frames of all {seeds} seeds together" if seeds > 1 else ""
    left_out = f" {silent} of them are zero everywhere and left out." if silent else ""
    return (
        f"Data set {board.name}: relative L2 error of each of up to {frames} predicted test "
        f"frames{pooled}, models by rank.{left_out} Violins: density of the logarithm, all of one "
        "height; dot: median, thick line: quartiles, thin line: 5th to 95th percentile. "
        "Without a unit; frames of a trajectory are not independent."
    )


def _alt(found: dict[str, FrameErrors]) -> str:
    best = min(found, key=lambda model: found[model].quantiles()[2])
    return (
        f"Distributions of the errors of single frames of {', '.join(found)}; {best} has the least "
        "median."
    )


FIGURES = (error_distribution,)
