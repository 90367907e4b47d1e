"""How much of the flow's vorticity a linear map reads off the models' embeddings, by scale.

R² on trajectories that the map was not fitted to; see ``evaluation/alignment.py``. Vorticity is
linear in the input, so a value means something next to those of other models only, and of PIBERT
with fresh weights.
"""

import numpy as np

from pibert.evaluation.scales import SCALES
from pibert.report.comparison.board import Board
from pibert.report.comparison.drawn import Drawn, with_unit
from pibert.report.comparison.plots import Label, frame, label_ends, line_style, sheet

_LOWEST = -0.25
"""Below which R² says only that nothing is known."""


def embedding_alignment(board: Board) -> Drawn | None:
    """Held-out R² of the vorticity at four scales, a line for each model with embeddings."""
    found = {m: board.first(m).arrays.get("alignment") for m in board.models}
    curves = {m: own.double().numpy() for m, own in found.items() if own is not None}
    curves = {m: own for m, own in curves.items() if np.isfinite(own).any()}
    if not curves:
        return None
    figure, axes = sheet(6.6, max(3.6, 0.16 * len(curves) + 1.2))
    ax = axes[0, 0]
    places = np.arange(len(SCALES))
    frame(ax, "Vorticity read off embeddings", x="scale [grid points]", y="held-out R²")
    fresh = [board.first(m).arrays.get("alignment_untrained") for m in curves]
    everything = np.concatenate([*curves.values(), *(f.numpy() for f in fresh if f is not None)])
    everything = everything[np.isfinite(everything)]
    low = max(_LOWEST, float(everything.min()))
    high = float(everything.max())
    slack = 0.06 * (high - low) + 0.01
    ax.set_ylim(low - slack, max(high, low) + slack)
    ax.set_xlim(-0.15, len(SCALES) - 0.85)
    ax.set_xticks(places, [f"{scale}" for scale in SCALES])
    if low < 0:
        ax.axhline(0.0, color="0.4", lw=0.8, ls=":", zorder=1)
    for model, values in curves.items():
        ax.plot(places, values, **line_style(board, model), marker="o", ms=4)
        untrained = board.first(model).arrays.get("alignment_untrained")
        if untrained is not None:
            colour = board.colour(model)
            ax.plot(places, untrained.numpy(), color=colour, ls=":", marker="o", ms=3, mfc="w")
    ends = [
        Label(float(places[-1]), float(max(values[-1], low)), model, board.colour(model))
        for model, values in curves.items()
        if np.isfinite(values[-1])
    ]
    label_ends(ax, ends)
    grid = board.spec.grid
    size = with_unit(f"{grid.dx:.3g} × {grid.dy:.3g}", board.facts.get("length_unit"))
    caption = (
        f"Data set {board.name}: R² of a ridge regression from the embeddings of test frames to "
        "their vorticity, averaged over cells of 1 to 8 points, on trajectories that it has not "
        "seen. "
        f"A point is {size}. All models see the velocity itself, so compare, do not read alone. "
        "Dotted: PIBERT with fresh weights."
    )
    best = max(curves, key=lambda m: float(np.nanmean(curves[m])))
    alt = f"R² by scale of {len(curves)} models on {board.name}; {best} has the highest mean."
    return Drawn(figure, caption, alt)
