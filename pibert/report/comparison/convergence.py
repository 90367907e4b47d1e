"""How the models learn: error on the validation part against the samples they have seen.

All models of a comparison have the same budget of samples, pretraining included. It is shared
evenly by the epochs of both, so that the last epoch of every model stands at the whole budget.
"""

import math
from collections.abc import Mapping
from typing import Any

from pibert.report.comparison.board import Board
from pibert.report.comparison.drawn import NORMAL, Drawn
from pibert.report.comparison.plots import (
    Label,
    frame,
    label_ends,
    line_style,
    logarithmic,
    sheet,
)

ERROR = "reconstruction"


def convergence(board: Board) -> Drawn | None:
    """Validation error of every model that was trained, the chosen epoch marked by a ring."""
    curves = {model: _curve(board, model) for model in board.models}
    curves = {model: curve for model, curve in curves.items() if curve}
    if not curves:
        return None
    budget = board.results.get("comparison", {}).get("samples")
    figure, axes = sheet(8.4, max(3.8, 0.16 * len(curves) + 1.2))
    ax = axes[0, 0]
    everything = [error for curve in curves.values() for error in curve.values()]
    logarithmic(ax, "y", everything)
    ax.set_xlim(0, max(max(curve) for curve in curves.values()))
    unit = "samples seen" if budget else "share of the epochs"
    title = "Validation error while training"
    frame(ax, title, x=unit, y="mean squared error (standardised)")
    for model, curve in curves.items():
        style = line_style(board, model)
        ax.plot(list(curve), list(curve.values()), **style, marker="." if len(curve) < 4 else "")
        best = _chosen(board, model)
        if best in curve:
            ring = {"mfc": "white", "mec": style["color"], "ms": 5.5, "mew": 1.3}
            ax.plot(best, curve[best], "o", **ring, zorder=6, clip_on=False)
    ax.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}" if budget else f"{value:g}")
    if "pretraining" in _stages(board, "pibert") and "pibert" in curves:
        begin = _scale(board, "pibert") * _stages(board, "pibert")["pretraining"]["epochs"]
        ax.axvline(begin, color=board.colour("pibert"), lw=0.7, ls=":", zorder=1)
        words = "pibert is pretrained until here "
        at = {"xycoords": ax.get_xaxis_transform(), "xytext": (3, -3), "va": "top"}
        ax.annotate(
            words,
            (begin, 1.0),
            textcoords="offset points",
            fontsize=NORMAL - 1,
            color=board.colour("pibert"),
            **at,
        )
    ends = [(*list(curve.items())[-1], name) for name, curve in curves.items()]
    label_ends(ax, [Label(x, y, name, board.colour(name)) for x, y, name in ends])
    caption = (
        f"Data set {board.name}: mean squared error of standardised fields on the validation part "
        "against the samples seen, counted with repetition and pretraining included. Rings mark "
        "the epoch that was chosen, on the validation part alone; its weights are judged on the "
        "test part."
    )
    winner = min(curves, key=lambda model: min(curves[model].values()))
    alt = (
        f"Validation error of {len(curves)} models on {board.name} against samples seen; the "
        f"lowest, {min(curves[winner].values()):.2g}, is reached by {winner}."
    )
    return Drawn(figure, caption, alt)


def _stages(board: Board, model: str) -> Mapping[str, Any]:
    if model not in board.models:
        return {}
    return dict(board.first(model).card.get("training") or {})


def _scale(board: Board, model: str) -> float:
    """Samples of an epoch; where the run does not tell, the budget's share that it has."""
    stages = _stages(board, model).values()
    epochs = sum(stage["epochs"] for stage in stages)
    seen = [stage.get("samples") for stage in stages]
    if None not in seen:
        return sum(seen) / epochs
    return (board.results.get("comparison", {}).get("samples") or 1.0) / epochs


def _seen(board: Board, model: str, epoch: int) -> float:
    early = _stages(board, model).get("pretraining", {}).get("epochs", 0)
    return float(_scale(board, model) * (early + epoch))


def _chosen(board: Board, model: str) -> float:
    return _seen(board, model, _stages(board, model)["training"]["best_epoch"])


def _curve(board: Board, model: str) -> dict[float, float]:
    """Error by samples seen; epochs in which it is not a positive number are left out."""
    found = _stages(board, model).get("training", {}).get("curve", ())
    errors = {epoch: values.get(ERROR) for epoch, values in found}
    return {
        _seen(board, model, epoch): float(error)
        for epoch, error in sorted(errors.items())
        if error is not None and math.isfinite(error) and error > 0
    }
