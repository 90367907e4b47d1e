"""Energy and error by size of structure: radial spectra of the test part.

    E(k)          half the squared Fourier modes of u and v in the ring of wave number k
    error(k)/E(k) the same of prediction minus truth over the truth: where it reaches 1, a model
                  knows no more of structures of that size than that they are there

Definitions, window and bands are those of ``evaluation/spectra.py``.
"""

import numpy as np
from matplotlib.axes import Axes

from pibert.evaluation.components import velocity_unit
from pibert.evaluation.spectra import BANDS, FLOOR, Spectra, num_rings, wave_numbers
from pibert.report.comparison.board import COLOURS, Board
from pibert.report.comparison.drawn import SMALL, Drawn, with_unit
from pibert.report.comparison.plots import (
    Label,
    frame,
    label_ends,
    line_style,
    logarithmic,
    sheet,
)

TERMS = "terms/physical/spectra"
_MOST = 9


def spectra(board: Board) -> Drawn | None:
    """Spectra of truth and models, and of the models' errors."""
    shown = [m for m in board.shown(_MOST) if TERMS in board.first(m).arrays]
    if not shown:
        return None
    measure = Spectra(spec=board.spec)
    curves = {m: measure.curves(board.first(m).arrays[TERMS].sum(0)) for m in shown}
    truth = curves[shown[0]]["truth"].numpy()
    k = wave_numbers(board.spec.grid).numpy()
    floor = FLOOR * truth.sum()
    figure, axes = sheet(10.4, max(3.9, 0.16 * len(shown) + 1.6), 1, 2)
    left, right = axes[0]
    length = board.reference.card["data"]["length_unit"]
    across = with_unit("wave number k", None if length is None else f"rad/{length}")
    unit = velocity_unit(board.spec)
    frame(left, "a  Energy", x=across, y=with_unit("E(k)", None if unit == "1" else f"({unit})²"))
    frame(right, "b  Error over energy", x=across, y="error(k) / E(k)")
    answers = {m: np.maximum(curve["prediction"].numpy(), floor) for m, curve in curves.items()}
    resolved = truth > floor
    errors = {m: (c["error"].numpy() / truth)[resolved] for m, c in curves.items()}
    errors = {m: np.maximum(own, 1e-8) for m, own in errors.items()}
    for ax in (left, right):
        logarithmic(ax, "x", k.tolist())
        ax.set_xlim(k[0] / 1.05, k[-1] * 1.02)
    logarithmic(left, "y", [max(truth.min(), floor), *np.concatenate([truth, *answers.values()])])
    logarithmic(right, "y", [1.0, *np.concatenate(list(errors.values()))])
    right.axhline(1.0, color="0.4", lw=0.8, ls=":", zorder=1)
    for model in shown:
        left.plot(k, answers[model], **line_style(board, model))
        right.plot(k[resolved], errors[model], **line_style(board, model))
    left.plot(k, np.maximum(truth, floor), color=COLOURS["truth"], lw=2.6, alpha=0.85, zorder=2)
    for ax in (left, right):
        _mark_bands(ax, board, k)
    label_ends(left, [Label(k[-1], float(max(truth[-1], floor)), "truth", COLOURS["truth"])])
    last = float(k[resolved][-1])
    label_ends(right, [Label(last, float(errors[m][-1]), m, board.colour(m)) for m in shown])
    caption = (
        f"Data set {board.name}: mean over the test frames of (a) the radial spectrum of kinetic "
        "energy of u and v about their means, and (b) the spectrum of the error over that of the "
        "truth, which sees phase: at 1 (dotted) nothing but the presence of a scale is known. "
        "Shaded: thirds of the resolved wave numbers, the bands of the tables."
        + _left_out(board, len(shown))
    )
    alt = (
        f"Energy spectra of the truth and {len(shown)} models on {board.name}, and spectra of "
        "their errors, against wave number, both axes logarithmic."
    )
    return Drawn(figure, caption, alt)


def _mark_bands(ax: Axes, board: Board, k: np.ndarray) -> None:
    """Shade every other band and name all of them along the top."""
    rings = num_rings(board.spec.grid)
    low_end, high_end = ax.get_xlim()
    for number, (name, (low, high)) in enumerate(BANDS.items()):
        first, last = int(low * rings + 1e-9), int(high * rings + 1e-9) - 1
        start = low_end if first == 0 else float((k[first - 1] + k[first]) / 2)
        stop = high_end if last + 1 >= rings else float((k[last] + k[last + 1]) / 2)
        if number % 2:
            ax.axvspan(start, stop, color="0.94", lw=0, zorder=0)
        middle = (start * stop) ** 0.5
        top = ax.get_xaxis_transform()
        ax.text(
            middle, 0.985, name, transform=top, ha="center", va="top", fontsize=SMALL, color="0.45"
        )


def _left_out(board: Board, shown: int) -> str:
    rest = len(board.models) - shown
    return f" {rest} further models are in the tables." if rest > 0 else ""
