"""How much of the flow's vorticity a linear map reads off the models' embeddings, by scale.

R² on trajectories that the map was not fitted to; see ``evaluation/alignment.py``. Vorticity is
linear in the input, so a value means something only next to others: of models, of the same models
with fresh weights, and of the input itself.
"""

import numpy as np
from matplotlib.axes import Axes

from pibert.evaluation.scales import SCALES
from pibert.report.comparison.board import Board
from pibert.report.comparison.drawn import SMALL, Drawn, with_unit
from pibert.report.comparison.plots import Label, frame, label_ends, line_style, sheet

_LOWEST = -0.25
"""Below which R² says only that nothing is known."""
_INPUT = {"alignment_input": "input: values", "alignment_input_mean": "input: mean"}
_GREY = "0.45"
Curves = dict[str, np.ndarray]


def embedding_alignment(board: Board) -> Drawn | None:
    """Held-out R² of the vorticity at four scales, and what of it needs no training."""
    curves = _curves(board, "alignment")
    if not curves:
        return None
    fresh = {m: own for m, own in _curves(board, "alignment_untrained").items() if m in curves}
    inputs = {
        label: next(iter(found.values()))
        for name, label in _INPUT.items()
        if (found := _curves(board, name))
    }
    columns = 2 if fresh else 1
    tall = max(3.6, 0.18 * (len(curves) + len(inputs)) + 1.2)
    figure, axes = sheet(6.6 if columns == 1 else 10.6, tall, 1, columns)
    everything = np.concatenate([*curves.values(), *fresh.values(), *inputs.values()])
    everything = everything[np.isfinite(everything)]
    low, high = max(_LOWEST, float(everything.min())), float(everything.max())
    slack = 0.06 * (high - low) + 0.01
    limits = (low - slack, max(high, low) + slack)
    if fresh:
        _against_fresh(axes[0, 1], board, curves, fresh, inputs, limits)
    _by_scale(axes[0, 0], board, curves, inputs, limits)
    best = max(curves, key=lambda m: float(np.nanmean(curves[m])))
    alt = f"R² by scale of {len(curves)} models on {board.name}; {best} has the highest mean."
    return Drawn(figure, _caption(board, fresh, inputs), alt)


def _curves(board: Board, name: str) -> Curves:
    found = {m: board.first(m).arrays.get(name) for m in board.models}
    known = {m: own.double().numpy() for m, own in found.items() if own is not None}
    return {m: own for m, own in known.items() if np.isfinite(own).any()}


def _by_scale(
    ax: Axes, board: Board, curves: Curves, inputs: Curves, limits: tuple[float, float]
) -> None:
    places = np.arange(len(SCALES))
    frame(ax, "Vorticity read off embeddings", x="scale [grid points]", y="held-out R²")
    ax.set_ylim(*limits)
    ax.set_xlim(-0.15, len(SCALES) - 0.85)
    ax.set_xticks(places, [f"{scale}" for scale in SCALES])
    if limits[0] < 0:
        ax.axhline(0.0, color="0.4", lw=0.8, ls=":", zorder=1)
    for values in inputs.values():
        ax.plot(places, values, color=_GREY, ls="-.", lw=1.2, zorder=2)
    for model, values in curves.items():
        ax.plot(places, values, **line_style(board, model), marker="o", ms=4)
    colours = {label: _GREY for label in inputs} | {m: board.colour(m) for m in curves}
    ends = [
        Label(float(places[-1]), float(max(values[-1], limits[0])), name, colours[name])
        for name, values in (inputs | curves).items()
        if np.isfinite(values[-1])
    ]
    label_ends(ax, ends)


def _against_fresh(
    ax: Axes,
    board: Board,
    curves: Curves,
    fresh: Curves,
    inputs: Curves,
    limits: tuple[float, float],
) -> None:
    """Means over the scales, of models as trained and as they began."""
    frame(ax, "Mean over scales", x="held-out R²")
    order = sorted(curves, key=lambda m: float(np.nanmean(curves[m])))
    for row, model in enumerate(order):
        colour = board.colour(model)
        trained = float(np.nanmean(curves[model]).clip(limits[0]))
        if model in fresh:
            began = float(np.nanmean(fresh[model]).clip(limits[0]))
            ax.plot([began, trained], [row, row], color=colour, lw=1.0, alpha=0.6)
            ax.plot([began], [row], color=colour, marker="o", ms=5, mfc="w", ls="")
        ax.plot([trained], [row], color=colour, marker="o", ms=5, ls="")
    for values in inputs.values():
        ax.axvline(float(np.nanmean(values)), color=_GREY, ls="-.", lw=1.2, zorder=1)
    ax.set_xlim(*limits)
    ax.set_ylim(-0.6, len(order) - 0.4)
    ax.set_yticks(range(len(order)), [_with_width(board, m) for m in order], fontsize=SMALL)


def _with_width(board: Board, model: str) -> str:
    width = board.first(model).card.get("embedding", {}).get("width")
    return model if width is None else f"{model} ({width})"


def _caption(board: Board, fresh: Curves, inputs: Curves) -> str:
    grid = board.spec.grid
    size = with_unit(f"{grid.dx:.3g} × {grid.dy:.3g}", board.facts.get("length_unit"))
    said = [
        f"Data set {board.name}: R² of a ridge regression from the embeddings of test frames to "
        "their vorticity, averaged over cells of 1 to 8 points, on trajectories that it has not "
        f"seen. A point is {size}. All models see the velocity itself, so compare, do not read "
        "alone."
    ]
    layers = {m: board.first(m).card.get("embedding", {}).get("layer") for m in board.models}
    if any(layers.values()):
        named = "; ".join(f"{model}: {layer}" for model, layer in layers.items() if layer)
        said.append(f"Embeddings are averaged over the patch of a token. Of {named}.")
    if fresh:
        said.append(
            "Right: filled as trained, open with fresh weights; in brackets the width of the "
            "embedding."
        )
    if inputs:
        said.append(
            "Grey: the input itself, as all velocities of a patch and as their mean; nothing of "
            "it is learned."
        )
    return " ".join(said)
