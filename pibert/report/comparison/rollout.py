"""Rollouts: models fed with their own predictions, against the time ahead.

Where a share of the rollouts has left the finite numbers, error and skill are infinite: a cross
marks the last frame that all rollouts of a model reached.
"""

import math
from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from pibert.evaluation.leads import Horizons
from pibert.report.comparison.board import Board
from pibert.report.comparison.drawn import NORMAL, SMALL, Drawn
from pibert.report.comparison.plots import (
    Label,
    frame,
    label_ends,
    line_style,
    logarithmic,
    sheet,
    time_unit,
)

PANELS = {
    "a  Error": ("fluctuation_nmse", "squared error / variance in time"),
    "b  Skill": ("skill", "skill against persistence"),
    "c  Correlation": ("correlation", "correlation of fluctuations"),
}
_LOWEST_SKILL = -1.0
"""Below which a skill says only that a model is worse than standing still."""
_MOST = 9


def rollout(board: Board) -> Drawn | None:
    """Error, skill and correlation of all components against lead time."""
    shown = [m for m in board.shown(_MOST) if "rollout/curves" in board.first(m).arrays]
    if not shown:
        return None
    figure, axes = sheet(11.4, max(3.6, 0.16 * len(shown) + 1.4), 1, 3)
    lead = np.arange(1, len(board.first(shown[0]).arrays["rollout/curves"]) + 1)
    for ax, (title, (metric, name)) in zip(axes[0], PANELS.items(), strict=True):
        curves = {model: _curve(board, model, metric) for model in shown}
        frame(ax, title, x="lead time [frames]", y=name)
        _draw(ax, board, metric, lead, curves)
    ends = {m: _end(lead, _curve(board, m, "correlation")) for m in shown}
    names = [Label(*end, m, board.colour(m)) for m, end in ends.items() if end is not None]
    label_ends(axes[0, -1], names)
    facts = board.first(shown[0]).card["rollout"]
    dt = board.spec.dt
    step = f" A frame is {dt:.3g} {time_unit(board) or ''}".rstrip() + "." if dt else ""
    gone = [m for m in shown if _last_whole(board, m) is not None]
    lost = f" Crosses: rollouts of {', '.join(gone)} diverged." if gone else ""
    caption = (
        f"Data set {board.name}: {facts['starts']} rollouts from starts spread evenly over the "
        "test part, all components together; an error of 1 (dotted) is that of the mean in time, a "
        f"skill of 0 that of the last known frame.{step}{lost}"
    )
    alt = (
        f"Error, skill and correlation of {len(shown)} models on {board.name} over "
        f"{len(lead)} frames ahead."
    )
    return Drawn(figure, caption, alt)


def stable_horizon(board: Board) -> Drawn | None:
    """For how many frames rollouts are of use, as bars of all models."""
    place = {"stable_horizon": 0, "stable_to_end": 1, "correlation_time": 2}
    found = {
        m: board.first(m).arrays["rollout/summary"].tolist()
        for m in board.models
        if "rollout/summary" in board.first(m).arrays
    }
    if not found:
        return None
    order = sorted(found, key=lambda m: (found[m][0], found[m][1]), reverse=True)
    steps = int(board.first(order[0]).card["rollout"]["steps"])
    figure, axes = sheet(7.2, 0.24 * len(order) + 1.1)
    ax = axes[0, 0]
    frame(ax, "Stable horizon", x="frames")
    for row, model in enumerate(order):
        frames, to_end = found[model][0], found[model][1]
        ax.barh(row, frames, height=0.7, color=board.colour(model))
        words = f"{frames:.3g}" + (f"  ({to_end:.0%} to the end)" if to_end > 0 else "")
        words += "  \u00d7 diverged" if _last_whole(board, model) is not None else ""
        ax.annotate(
            words,
            (frames, row),
            xytext=(4, 0),
            textcoords="offset points",
            va="center",
            fontsize=SMALL,
        )
    ax.set_yticks(range(len(order)), order, fontsize=NORMAL)
    ax.set_ylim(len(order) - 0.4, -0.6)
    ax.set_xlim(0, 1.3 * steps)
    ax.set_xticks([tick for tick in ax.get_xticks() if tick <= steps])
    ax.spines["bottom"].set_bounds(0, steps)
    ax.grid(False, axis="y")
    ax.axvline(steps, color="0.6", lw=0.8, zorder=0)
    memory = found[order[0]][place["correlation_time"]]
    has_memory = math.isfinite(memory) and memory > 0
    if has_memory:
        ax.axvline(memory, color="0.3", lw=0.9, ls=":", zorder=0)
    known = f" Dotted: correlation time of the flow, {memory:.3g} frames." if has_memory else ""
    caption = (
        f"Data set {board.name}: frames until the squared error of a rollout exceeds "
        f"{Horizons().threshold:g} times the variance in time, mean over starts; rollouts end "
        f"after {steps} frames (line), so bars near it are lower bounds.{known}"
    )
    alt = f"Bars of the stable horizon on {board.name}; the longest, {found[order[0]][0]:.3g} "
    return Drawn(figure, caption, alt + f"frames, is that of {order[0]}.")


def _draw(
    ax: Axes, board: Board, metric: str, lead: np.ndarray, curves: Mapping[str, np.ndarray]
) -> None:
    for model, values in curves.items():
        style = line_style(board, model)
        drawn = np.maximum(values, _LOWEST_SKILL * 1.5) if metric == "skill" else values
        ax.plot(lead, drawn, **style)
        last = _last_whole(board, model)
        if last is not None and last >= 1:
            ax.plot(
                lead[last - 1],
                drawn[last - 1],
                "x",
                color=style["color"],
                ms=6,
                mew=1.6,
                zorder=6,
                clip_on=False,
            )
    finite = np.concatenate([v[np.isfinite(v)] for v in curves.values()] or [np.zeros(0)])
    if metric == "skill":
        lowest = float(finite.min()) if finite.size else 0.0
        ax.set_ylim(max(_LOWEST_SKILL, min(-0.05, lowest)) - 0.05, 1.02)
        ax.axhline(0.0, color="0.4", lw=0.8, ls=":", zorder=1)
    elif metric == "correlation":
        lowest = float(finite.min()) if finite.size else 0.0
        ax.set_ylim(max(-0.3, lowest - 0.05 * (1 - lowest)), 1.0 + 0.02 * (1 - lowest))
    elif (finite > 0).any():
        logarithmic(ax, "y", _shown_errors(finite[finite > 0]))
        ax.axhline(1.0, color="0.4", lw=0.8, ls=":", zorder=1)
    ax.set_xlim(0 if len(lead) > 4 else 0.8, len(lead) + (0 if len(lead) > 4 else 0.2))
    ax.xaxis.set_major_locator(MaxNLocator(7, integer=True))


def _shown_errors(errors: np.ndarray) -> Sequence[float]:
    """What the scale holds: one that explodes may leave it."""
    return [float(errors.min()), float(min(errors.max(), max(30.0, 10 * errors.min())))]


def _curve(board: Board, model: str, metric: str) -> np.ndarray:
    """Values by lead; NaN where they are not finite."""
    own = board.first(model)
    entries = own.card["rollout"]["entries"]
    column = next(
        n for n, e in enumerate(entries) if (e["metric"], e["component"]) == (metric, "all")
    )
    values = own.arrays["rollout/curves"][:, column].double().numpy()
    return np.where(np.isfinite(values), values, np.nan)


def _end(lead: np.ndarray, values: np.ndarray) -> tuple[float, float] | None:
    """The last point of a curve."""
    finite = np.flatnonzero(np.isfinite(values))
    return (float(lead[finite[-1]]), float(values[finite[-1]])) if finite.size else None


def _last_whole(board: Board, model: str) -> int | None:
    """The last lead time that no rollout of a model had diverged at; None: none ever did."""
    marks = board.first(model).arrays.get("rollout/diverged")
    if marks is None or not bool((marks > 0).any()):
        return None
    return int(marks[marks > 0].min()) - 1
