"""Maps of picked frames: truth, what the models predict, and their signed errors.

Frames are picked by the error of persistence, not by that of a model. All panels of a quantity
share the scale of the truth, all errors of a figure one symmetric scale. Errors are prediction
minus truth; the body and unknown points are grey. Everything is in physical units.
"""

import math

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, ScalarFormatter

from pibert.report.comparison.board import Board
from pibert.report.comparison.drawn import (
    LARGE,
    NORMAL,
    SMALL,
    Drawn,
    axis_label,
    blank,
    with_unit,
)
from pibert.report.comparison.numbers import digits
from pibert.report.comparison.picked import (
    VORTICITY,
    chief,
    excess,
    frame_text,
    pick,
    quantities,
    unit_of,
)
from pibert.report.figures import ERRORS, Layer, add_bar, panels, show

_SHARE = 0.995
"""Of the points of a model whose errors decide on the scale: a spike would hide the rest."""
_LONGER, _WIDTH = 2.3, 10.7
"""Longer side of a panel, and room for all, in inches."""
_TICK_MARGIN = 0.1
"""Share of a panel at either end without a number below it."""
_GAP, _BLOCK_GAP, _HEAD, _LEFT, _FOOT = 0.1, 0.38, 0.26, 0.74, 0.42


def overview(board: Board, name: str = "median") -> Drawn | None:
    """The picked frame as every model predicts it, with signed errors."""
    picked = pick(board, name)
    if picked is None:
        return None
    quantity = chief(board)
    truth = quantities(board, picked.truth, picked.shown)[quantity]
    models = [model for model in board.shown() if model in picked.predictions]
    answers = {m: quantities(board, picked.predictions[m], picked.shown)[quantity] for m in models}
    errors = {m: Layer(layer.values - truth.values) for m, layer in answers.items()}
    limit = error_limit(list(errors.values()), truth)
    low, high, colours = truth.scale()
    sheet = _Sheet(board, len(models) + 1)
    left, right = sheet.block(0)
    show(left, truth, board.spec.grid, low, high, colours)
    sheet.head(left, "truth")
    label = with_unit(quantity, unit_of(board, quantity))
    extend = excess([*answers.values()], low, high)
    sheet.bars(
        right,
        (label, low, high, colours, extend),
        limit,
        excess([*errors.values()], -limit, limit),
    )
    for number, model in enumerate(models, start=1):
        left, right = sheet.block(number)
        show(left, answers[model], board.spec.grid, low, high, colours)
        show(right, errors[model], board.spec.grid, -limit, limit, ERRORS)
        sheet.head(left, f"{board.models.index(model) + 1}. {model}")
        share = _nmse(errors[model], truth)
        right.set_title(
            f"NMSE {digits(share, 2)}", fontsize=SMALL, loc="right", pad=3, color="0.25"
        )
    caption = (
        f"{frame_text(board, picked)} {label} of the truth and of {len(models)} models by rank, "
        "with signed errors (prediction minus truth) on one scale, which ends at the median over "
        f"the models of the {100 * _SHARE:g}th percentile of their size; arrows: larger ones "
        f"occur. NMSE is of {quantity} in this frame; body and unknown points are grey."
    )
    alt = f"Maps of {quantity}: truth, predictions and errors of {', '.join(models)}."
    return Drawn(sheet.figure, caption, alt)


def easy_overview(board: Board) -> Drawn | None:
    """As ``overview``, of the frame at the 5th percentile."""
    return overview(board, "easy")


def hard_overview(board: Board) -> Drawn | None:
    """As ``overview``, of the frame at the 95th percentile."""
    return overview(board, "hard")


def error_limit(errors: list[Layer], truth: Layer) -> float:
    """Where the common scale of errors ends: robust to a model that is far off, and to spikes."""
    ends = [float(np.quantile(np.abs(error.shown), _SHARE)) for error in errors]
    return max(float(np.median(ends)) if ends else 0.0, 1e-6 * truth.limit, 1e-30)


def _nmse(error: Layer, truth: Layer) -> float:
    energy = float(np.square(truth.shown).sum())
    return float(np.square(error.shown).sum()) / energy if energy else math.nan


class _InnerTicks(MaxNLocator):
    """Round numbers away from the ends, where labels would run into those of the next panel."""

    def tick_values(self, vmin: float, vmax: float) -> list[float]:
        margin = _TICK_MARGIN * (vmax - vmin)
        return [t for t in super().tick_values(vmin, vmax) if vmin + margin < t < vmax - margin]


class _Sheet:
    """Blocks of two panels side by side, in rows, of exact sizes."""

    def __init__(self, board: Board, blocks: int) -> None:
        self.board = board
        grid = board.spec.grid
        aspect = (grid.shape[0] * grid.dy) / (grid.shape[1] * grid.dx)
        size = _LONGER if aspect < 0.8 or aspect > 1.25 else 0.8 * _LONGER
        self.wide, self.high = size * min(1.0, 1 / aspect), size * min(1.0, aspect)
        self.wide, self.high = max(self.wide, 0.9), max(self.high, 0.6)
        block = 2 * self.wide + _GAP + _BLOCK_GAP
        self.columns = min(blocks, max(1, int((_WIDTH - _LEFT + _BLOCK_GAP) / block)))
        self.blocks = blocks
        rows = -(-blocks // self.columns)
        self.size = (
            _LEFT + self.columns * block - _BLOCK_GAP + 0.15,
            rows * (self.high + _HEAD) + _FOOT + 0.05,
        )
        self.figure: Figure = blank(*self.size, exact=True)

    def block(self, number: int) -> tuple[Axes, Axes]:
        row, column = divmod(number, self.columns)
        left = _LEFT + column * (2 * self.wide + _GAP + _BLOCK_GAP)
        top = self.size[1] - 0.05 - row * (self.high + _HEAD) - _HEAD
        pair = (self._panel(left, top), self._panel(left + self.wide + _GAP, top))
        for place, ax in enumerate(pair):
            ax.tick_params(
                labelsize=SMALL,
                length=2,
                width=0.5,
                labelleft=column == 0 and place == 0,
                labelbottom=number + self.columns >= self.blocks,
            )
            ax.xaxis.set_major_locator(_InnerTicks(5))
        if column == 0:
            pair[0].set_ylabel(axis_label(self.board, "y"), fontsize=SMALL, labelpad=2)
        if number + self.columns >= self.blocks:
            for ax in pair:
                ax.set_xlabel(axis_label(self.board, "x"), fontsize=SMALL, labelpad=1)
        return pair

    def _panel(self, left: float, top: float) -> Axes:
        return self._axes(left, top - self.high, self.wide, self.high)

    def _axes(self, left: float, bottom: float, wide: float, high: float) -> Axes:
        width, height = self.size
        return self.figure.add_axes((left / width, bottom / height, wide / width, high / height))

    @staticmethod
    def head(ax: Axes, text: str) -> None:
        ax.set_title(text, fontsize=LARGE, loc="left", pad=3)

    def bars(
        self,
        slot: Axes,
        field: tuple[str, float, float, str, str],
        limit: float,
        beyond: str,
    ) -> None:
        """Both colour bars in the place of a panel."""
        slot.set_axis_off()
        error = ("prediction \N{MINUS SIGN} truth", -limit, limit, ERRORS, beyond)
        for place, (label, low, high, colours, extend) in zip(
            (0.72, 0.24), (field, error), strict=True
        ):
            bar = self.figure.colorbar(
                matplotlib.cm.ScalarMappable(Normalize(low, high), matplotlib.colormaps[colours]),
                cax=slot.inset_axes((0.08, place, 0.84, 0.09 / self.high)),
                orientation="horizontal",
                extend=extend,
            )
            bar.ax.set_title(label, fontsize=NORMAL, pad=2)
            bar.ax.tick_params(labelsize=SMALL, length=2, pad=1)
            bar.ax.locator_params(nbins=5)
            short = ScalarFormatter(useMathText=True)
            short.set_powerlimits((-2, 3))  # long labels would touch
            bar.ax.xaxis.set_major_formatter(short)
            bar.ax.xaxis.get_offset_text().set_fontsize(SMALL)
            bar.outline.set_linewidth(0.5)


def components(board: Board) -> Drawn | None:
    """Every quantity of the median frame as PIBERT predicts it; without it, as the best model."""
    return _of_model(board, "pibert" if "pibert" in board.models else board.models[0])


def winner_components(board: Board) -> Drawn | None:
    """As ``components`` of the best model, on the same scales; None where that is PIBERT."""
    best = board.models[0]
    return None if best == "pibert" or "pibert" not in board.models else _of_model(board, best)


def _of_model(board: Board, model: str) -> Drawn | None:
    picked = pick(board, "median")
    if picked is None or model not in picked.predictions:
        return None
    truth = quantities(board, picked.truth, picked.shown)
    # The figures of PIBERT and of the best model can be laid side by side.
    pair = {m for m in (model, "pibert", board.models[0]) if m in picked.predictions}
    answers = {m: quantities(board, picked.predictions[m], picked.shown) for m in pair}
    grid = board.spec.grid
    figure, axes = panels(len(truth), grid)
    for (name, true), line in zip(truth.items(), axes, strict=True):
        low, high, colours = _scale(name, true)
        errors = {m: Layer(own[name].values - true.values) for m, own in answers.items()}
        widest = max(error_limit([own], true) for own in errors.values())
        answer, error = answers[model][name], errors[model]
        show(line[0], true, grid, low, high, colours)
        image = show(line[1], answer, grid, low, high, colours)
        add_bar(line[1], image, extend=excess([true, answer], low, high))
        beyond = excess([error], -widest, widest)
        add_bar(line[2], show(line[2], error, grid, -widest, widest, ERRORS), extend=beyond)
        label = with_unit(name, unit_of(board, name))
        line[0].set_ylabel(f"{label}\n\n{axis_label(board, 'y')}", fontsize=NORMAL)
        line[2].set_title(f"rms {error.rms:.2g}", fontsize=NORMAL)
    for ax, heading in zip(axes[0], ("truth", model, "error, "), strict=True):
        ax.set_title(heading + ax.get_title(), fontsize=LARGE)
    for ax in axes[-1]:
        ax.set_xlabel(axis_label(board, "x"), fontsize=NORMAL)
    caption = (
        f"{frame_text(board, picked)} Truth, prediction of {model} (rank "
        f"{board.models.index(model) + 1} of {len(board.models)}) and signed error of every "
        "quantity, in the units given, the errors on the scale of PIBERT or the best model, "
        f"whichever is wider, to the {100 * _SHARE:g}th percentile of their size; body and unknown "
        "points are grey, as is the vorticity where its stencil touches them."
    )
    alt = f"Maps of {', '.join(truth)}: truth, prediction of {model} and its error."
    return Drawn(figure, caption, alt)


def _scale(name: str, true: Layer) -> tuple[float, float, str]:
    """The scale of a quantity; that of the vorticity is not left to the few points at a wall."""
    low, high, colours = true.scale(signed=name == VORTICITY)
    most = float(np.quantile(np.abs(true.shown), _SHARE))
    return (-most, most, colours) if name == VORTICITY and low < 0 < most else (low, high, colours)


FIGURES = (overview, easy_overview, hard_overview, components, winner_components)
