"""Errors flow by flow: whether a pooled error is that of all flows or of a few.

The numbers are those of ``comparison/by_flow.py``: ``results["by_flow"]``, in the order of the test
flows in ``results["data"][name]["flows"]``.
"""

import math
import statistics
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from pibert.report.comparison.board import UNTRAINED, Board
from pibert.report.comparison.columns import Column, Numbers, columns_of, marks, table_of
from pibert.report.comparison.drawn import NORMAL, SMALL, Drawn
from pibert.report.comparison.markup import Table
from pibert.report.comparison.numbers import digits, percent
from pibert.report.comparison.plots import frame, logarithmic, sheet

_MODELS = 6
"""Whose points can be told apart in a row."""
_MOST = 48
"""Flows that a figure has rows for."""


def flow_table(board: Board) -> Table | None:
    """What a pooled error hides: its mean over flows, the worst flow, and the share of that."""
    errors = {model: flow_errors(board, model, "nmse") for model in board.models}
    errors = {model: own for model, own in errors.items() if own}
    if not errors or len(next(iter(errors.values()))) < 2:
        return None
    names = [flow["name"] for flow in board.facts["flows"]]
    known = {m: [v for v in own if v is not None] for m, own in errors.items()}
    worst = {m: max(own) for m, own in known.items() if own}
    where = {m: names[errors[m].index(value)] for m, value in worst.items()}
    columns = columns_of(
        board,
        (
            Column(label="NMSE, pooled", metric="nmse"),
            Column(label="mean over flows", metric="nmse_flow_mean"),
        ),
    )
    shares = columns_of(
        board,
        [Column(label="share of the worst", metric="largest_flow_share", form=percent)],
    )
    columns += [
        _lower("median flow", {m: statistics.median(own) for m, own in known.items() if own}),
        Numbers(label="worst flow ↓", values=worst, better="lower", notes=where),
        *shares,
        _wins(board, errors),
    ]
    caption = (
        f"Next frame, NMSE of all channels of {len(names)} test flows. Pooled: over all points of "
        "all flows; then the mean and the median of the flows' own NMSE, and the worst of them. "
        "Share of the worst: of the flow with the largest squared error in the squared error of "
        f"all flows; {percent(1 / len(names))} would be an equal share. Flows won: on how many a "
        f"model has the lowest NMSE. With several seeds, means over them. {marks(board)}"
    )
    return table_of("flows", "Flow by flow", caption, board, columns)


def _lower(label: str, values: dict[str, Any]) -> Numbers:
    return Numbers(label=f"{label} ↓", values=values, better="lower")


def _wins(board: Board, errors: dict[str, list[float | None]]) -> Numbers:
    count = len(next(iter(errors.values())))
    won = dict.fromkeys(errors, 0.0)
    for place in range(count):
        known = {m: v for m, own in errors.items() if (v := own[place]) is not None}
        if known:
            won[min(known, key=known.__getitem__)] += 1
    return Numbers(label="flows won ↑", values=won, better="higher", form=lambda n: f"{n:.0f}")


def flow_errors(
    board: Board, model: str, metric: str, lead: int | None = None
) -> list[float | None]:
    """A number of every test flow, the mean over seeds; empty where it was not measured."""
    runs = [
        own["flows"]
        for own in board.results.get("by_flow", ())
        if (own["data"], own["model"]) == (board.name, model)
        and (own["metric"], own["lead"]) == (metric, lead)
    ]
    found: list[float | None] = []
    for values in zip(*runs, strict=True):
        known = [value for value in values if value is not None]
        found.append(sum(known) / len(known) if len(known) == len(values) else None)
    return found


def flows(board: Board) -> Drawn | None:
    """Points for the leading models on every flow, of the next frame and of rollouts."""
    listed: Sequence[dict[str, Any]] = board.facts.get("flows") or ()
    models = [m for m in board.shown(_MODELS) if flow_errors(board, m, "nmse")]
    if len(listed) < 2 or not models:
        return None
    order, name = _order(listed)
    shown = order
    if len(order) > _MOST:
        shown = [order[n] for n in np.linspace(0, len(order) - 1, _MOST).round().astype(int)]
    rows = [own for own in board.results["by_flow"] if own["data"] == board.name]
    leads = sorted({own["lead"] for own in rows if own["lead"] is not None})
    lead = leads[len(leads) // 2] if leads else None
    panels: dict[str, int | None] = {"a  Next frame": None}
    if lead is not None:
        panels[f"b  Rollout, {lead} frames ahead"] = lead
    letter = "bc"[len(panels) - 1]
    figure, axes = sheet(
        3.6 * len(panels) + 3.6, 0.17 * len(shown) + 1.5, 1, len(panels) + 1, sharey=True
    )
    for ax, (title, ahead) in zip(axes[0], panels.items(), strict=False):
        frame(ax, title, x="NMSE")
        _draw_points(ax, board, models, shown, ahead)
    frame(axes[0, -1], f"{letter}  Share of the squared error", x="share of all test flows")
    carrier = next(m for m in ("pibert", *models) if m in models)
    _draw_shares(axes[0, -1], board, carrier, shown, len(listed))
    axes[0, 0].set_yticks(range(len(shown)), [_label(listed[n], name) for n in shown])
    axes[0, 0].tick_params(axis="y", labelsize=SMALL, length=0)
    axes[0, 0].set_ylim(len(shown) - 0.4, -0.6)
    _legend(figure, board, models)
    ordered = f"in the order of {name}" if name else "in the order of the data"
    some = f" {_MOST} of {len(order)}, evenly," if len(shown) < len(order) else ""
    caption = (
        f"Data set {board.name}: NMSE of all channels on every test flow,{some} {ordered}; hollow "
        "points are predictors that are not trained. Right: the share that each flow has in the "
        f"squared error of the next frame of {carrier}, pooled over all test flows; the dotted "
        "line is an equal share. A point that is missing belongs to a rollout that diverged, or "
        "to a flow without a start."
    )
    alt = f"Errors of {len(models)} models on {len(shown)} test flows of {board.name}."
    return Drawn(figure, caption, alt)


def _order(listed: Sequence[dict[str, Any]]) -> tuple[list[int], str | None]:
    """Flows by the parameter that differs most often, Re before others; its name."""
    values: dict[str, set[float]] = {}
    for flow in listed:
        for key, value in flow["parameters"].items():
            values.setdefault(key, set()).add(value)
    differing = [key for key, own in values.items() if len(own) > 1]
    if not differing:
        return list(range(len(listed))), None
    name = max(differing, key=lambda key: (key == "Re", len(values[key])))
    unknown = math.inf
    order = sorted(range(len(listed)), key=lambda n: listed[n]["parameters"].get(name, unknown))
    return order, name


def _label(flow: dict[str, Any], name: str | None) -> str:
    value = flow["parameters"].get(name) if name else None
    known = "" if value is None else f"  {name} {digits(value)}"
    return f"{flow['name']}{known}"


def _draw_points(
    ax: Axes, board: Board, models: Sequence[str], shown: Sequence[int], lead: int | None
) -> None:
    points = {m: flow_errors(board, m, "nmse", lead) for m in models}
    known = [v for own in points.values() for n in shown if own and (v := own[n])]
    if known:
        logarithmic(ax, "x", known)
    for row, n in enumerate(shown):
        own = [v for values in points.values() if values and (v := values[n])]
        if own:
            ax.plot([min(own), max(own)], [row, row], color="0.85", lw=0.8, zorder=1)
    for model, values in points.items():
        found = [(v, row) for row, n in enumerate(shown) if values and (v := values[n])]
        ax.plot([v for v, _ in found], [row for _, row in found], **_point(board, model))
    ax.grid(False, axis="y")


def _point(board: Board, model: str) -> dict[str, Any]:
    colour = board.colour(model)
    fill = "white" if model in UNTRAINED else colour
    return {"ls": "", "marker": board.mark(model), "ms": 5, "mec": colour, "mfc": fill, "zorder": 3}


def _draw_shares(ax: Axes, board: Board, model: str, shown: Sequence[int], count: int) -> None:
    found = flow_errors(board, model, "squared_error_share")
    shares = [found[n] or 0.0 for n in shown]
    ax.barh(range(len(shown)), shares, height=0.7, color=board.colour(model))
    ax.axvline(1 / count, color="0.4", lw=0.8, ls=":")
    ax.set_xlim(0, 1.15 * max(*shares, 1 / count))
    ax.xaxis.set_major_formatter(lambda value, _: f"{100 * value:.3g} %")
    ax.grid(False, axis="y")


def _legend(figure: Any, board: Board, models: Sequence[str]) -> None:
    handles = [Line2D([], [], label=model, **_point(board, model)) for model in models]
    figure.legend(
        handles=handles,
        loc="outside upper center",
        ncols=len(handles),
        fontsize=NORMAL,
        frameon=False,
        handletextpad=0.1,
    )
