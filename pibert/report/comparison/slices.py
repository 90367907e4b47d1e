"""Cross-sections of picked frames: profiles across the stream, and the line along the wake.

Bars of errors and profiles are of the same columns, those of ``evaluation/regions.py``.
"""

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D

from pibert.report.comparison.bars import Group, Panel, draw_bars
from pibert.report.comparison.board import Board
from pibert.report.comparison.cuts import Slice, drawn_models, line_legend, places, styles
from pibert.report.comparison.drawn import (
    LARGE,
    NORMAL,
    SMALL,
    Drawn,
    axis_label,
    blank,
    interval_text,
    tidy,
    with_unit,
)
from pibert.report.comparison.picked import (
    PICKS,
    VORTICITY,
    Picked,
    chief,
    excess,
    frame_text,
    pick,
    quantities,
    unit_of,
)
from pibert.report.figures import Layer, add_bar, show

_MARK = "#ff4d4d"
"""Of the wake line, on maps."""


class _Cut:
    """One picked frame, as truth and models have it."""

    def __init__(self, board: Board, picked: Picked, models: Sequence[str]) -> None:
        self.board, self.picked, self.grid = board, picked, board.spec.grid
        self.places = places(board, picked)
        self.layers = {"truth": quantities(board, picked.truth, picked.shown)} | {
            model: quantities(board, picked.predictions[model], picked.shown) for model in models
        }
        self.x = self.grid.origin[0] + self.grid.dx * np.arange(self.grid.shape[1])
        self.y = self.grid.origin[1] + self.grid.dy * np.arange(self.grid.shape[0])

    def values(self, name: str, quantity: str) -> np.ndarray:
        """With NaN where nothing is known, which breaks a line."""
        return np.asarray(self.layers[name][quantity].values.filled(np.nan))

    def profile(self, ax: Axes, cut: Slice, quantity: str) -> None:
        for name in self.layers:
            style = styles(self.board, name)
            ax.plot(self.values(name, quantity)[:, cut.column], self.y, **style)
        tidy(ax)
        ax.margins(y=0.01)
        ax.set_xlabel(self.label(quantity), fontsize=NORMAL)

    def along(self, ax: Axes, quantity: str) -> None:
        """The line along the stream, with marks at the slices."""
        part = slice(self.places.first, None)
        for name in self.layers:
            style = styles(self.board, name)
            ax.plot(self.x[part], self.values(name, quantity)[self.places.row, part], **style)
        for cut in self.places.slices:
            ax.axvline(self.x[cut.column], color="0.8", linewidth=0.8, zorder=0)
        tidy(ax)
        ax.set_xlabel(axis_label(self.board, "x"), fontsize=NORMAL)
        ax.set_ylabel(self.label(quantity), fontsize=NORMAL)

    def label(self, quantity: str) -> str:
        return with_unit(quantity, unit_of(self.board, quantity))

    def map(
        self, ax: Axes, name: str, quantity: str, *, bar: Sequence[str] | None, along: bool
    ) -> None:
        """The field of truth or a model on the scale of the truth, with the lines.

        Args:
            ax: Where.
            name: ``truth`` or a model.
            quantity: What.
            bar: Whose fields the colour bar at its side is for; None: no bar.
            along: Whether the line along the stream is shown.
        """
        layer: Layer = self.layers[name][quantity]
        low, high, colours = self.layers["truth"][quantity].scale()
        image = show(ax, layer, self.grid, low, high, colours)
        if bar is not None:
            add_bar(
                ax, image, extend=excess([self.layers[own][quantity] for own in bar], low, high)
            )
        for cut in self.places.slices:
            ax.axvline(self.x[cut.column], color="white", linewidth=1.2)
        if along:
            ax.plot(
                [self.x[self.places.first], self.x[-1]],
                [self.y[self.places.row]] * 2,
                color=_MARK,
                linewidth=1.2,
            )
        ax.tick_params(labelsize=SMALL, length=2)

    def where(self, cut: Slice) -> str:
        unit = self.board.reference.card["data"]["length_unit"]
        return f"{cut.label}, x = {self.x[cut.column]:.3g}" + (f" {unit}" if unit else "")


def multiscale(board: Board) -> Drawn | None:
    """Map with the lines, errors along them, profiles, and the wake line of the median frame."""
    picked = pick(board, "median")
    if picked is None:
        return None
    models = [m for m in drawn_models(board) if m in picked.predictions]
    cut, quantity = _Cut(board, picked, models), chief(board)
    along = ["u", VORTICITY] if board.spec.velocity is not None else [quantity]
    figure = blank(10, 8.2)
    rows = figure.add_gridspec(3, 1, height_ratios=(1, 1, 0.85))
    top = rows[0].subgridspec(1, 2, width_ratios=(1.15, 1))
    _draw_map(figure.add_subplot(top[0]), cut, quantity)
    bars = figure.add_subplot(top[1])
    groups = [Group(own.label, own.metric, quantity) for own in cut.places.slices]
    draw_bars(bars, board, board.shown(), Panel(f"(b) relative error of {quantity}", groups))
    _name_bars(bars, board, board.shown())
    line = rows[1].subgridspec(1, 3).subplots(sharey=True, squeeze=False)[0]
    for letter, ax, own in zip("cde", line, cut.places.slices, strict=True):
        cut.profile(ax, own, quantity)
        ax.set_title(f"({letter}) {cut.where(own)}", fontsize=LARGE, loc="left")
    line[0].set_ylabel(axis_label(board, "y"), fontsize=NORMAL)
    last = rows[2].subgridspec(1, len(along)).subplots(squeeze=False)[0]
    for letter, ax, name in zip("fg", last, along, strict=False):
        cut.along(ax, name)
        ax.set_title(f"({letter}) {name} on the {cut.places.line}", fontsize=LARGE, loc="left")
    line_legend(figure, board, models)
    caption = (
        f"{frame_text(board, picked)} (a) {cut.label(quantity)} with three columns (white) and the "
        f"{cut.places.line} (red, y = {cut.y[cut.places.row]:.2g}); (b) relative L2 error along "
        f"them, mean over all {board.facts['test_frames']} test frames, models by rank; (c-e) "
        f"profiles and (f, g) the {cut.places.line} of this frame, slices as grey lines."
        f"{cut.places.note}{interval_text(board)}"
    )
    alt = (
        f"Profiles of {quantity} across the stream and along the wake: truth, {', '.join(models)}."
    )
    return Drawn(figure, caption, alt)


def _draw_map(ax: Axes, cut: _Cut, quantity: str) -> None:
    cut.map(ax, "truth", quantity, bar=["truth"], along=True)
    ax.set_title(f"(a) {cut.label(quantity)}, truth", fontsize=LARGE, loc="left")
    ax.set_xlabel(axis_label(cut.board, "x"), fontsize=NORMAL)
    ax.set_ylabel(axis_label(cut.board, "y"), fontsize=NORMAL)


def _name_bars(ax: Axes, board: Board, models: Sequence[str]) -> None:
    """Names with their colours, above the bars."""
    handles = [
        Line2D([], [], marker="s", linestyle="", color=board.colour(m), markersize=5, label=m)
        for m in models
    ]
    ax.legend(
        handles=handles,
        loc="upper center",
        bbox_to_anchor=(0.5, -0.1),
        ncols=4,
        fontsize=SMALL - 0.5,
        frameon=False,
        handletextpad=0.0,
        columnspacing=0.8,
    )


def cross_sections(board: Board) -> Drawn | None:
    """Maps and profiles of all picked frames: truth, PIBERT and its best rival."""
    picks = {name: found for name in PICKS if (found := pick(board, name)) is not None}
    if not picks:
        return None
    own = "pibert" if "pibert" in board.models else board.models[0]
    rest = [m for m in (board.rival(own), *board.models) if m is not None and m != own]
    models = [m for m in (own, *rest[:1]) if all(m in p.predictions for p in picks.values())]
    quantity, grid = chief(board), board.spec.grid
    aspect = (grid.shape[0] * grid.dy) / (grid.shape[1] * grid.dx)
    high = min(max(2.9 * aspect, 1.0), 2.9)
    figure = blank(10, len(picks) * (high + 1.75 + 0.9) + 0.4)
    axes = figure.subplots(2 * len(picks), 3, height_ratios=(high, 1.75) * len(picks))
    note = ""
    for number, (name, picked) in enumerate(picks.items()):
        cut, lines = _Cut(board, picked, models), axes[2 * number : 2 * number + 2]
        _draw_block(lines, cut, quantity, f"{name}: {picked.words}")
        note = cut.places.note
    line_legend(figure, board, models)
    rule = board.reference.card["pick_rule"]
    frames = "; ".join(f"{name}: {p.words}" for name, p in picks.items())
    caption = (
        f"Data set {board.name}, {rule} ({frames}). Above, {quantity} of the truth and of "
        f"{' and '.join(models)} on the scale of the truth, in white the columns of the profiles "
        f"below{_with_unit_text(unit_of(board, quantity))}.{note}"
    )
    alt = f"Maps and profiles of {quantity} in {len(picks)} frames: truth, {', '.join(models)}."
    return Drawn(figure, caption, alt)


def _with_unit_text(unit: str) -> str:
    return "" if unit == "1" else f", in {unit}"


def _draw_block(lines: np.ndarray, cut: _Cut, quantity: str, heading: str) -> None:
    """Three maps above three profiles."""
    for ax in lines[0, len(cut.layers) :]:
        ax.set_axis_off()
    for ax, name in zip(lines[0], cut.layers, strict=False):
        is_last = name == [*cut.layers][-1]
        cut.map(ax, name, quantity, bar=[*cut.layers] if is_last else None, along=False)
        ax.set_title(" \n \n ", fontsize=LARGE, loc="right")  # room for the heading
        ax.set_title(name, fontsize=LARGE, loc="left", pad=3)
        ax.set_xlabel(axis_label(cut.board, "x"), fontsize=NORMAL, labelpad=1)
    lines[0, 0].annotate(
        heading,
        (0, 1),
        (0, 20),
        xycoords="axes fraction",
        textcoords="offset points",
        fontsize=LARGE,
        fontweight="bold",
    ).set_in_layout(False)  # it may reach over the next map
    for ax, own in zip(lines[1], cut.places.slices, strict=True):
        cut.profile(ax, own, quantity)
        ax.set_title(cut.where(own), fontsize=NORMAL, loc="left", pad=3)
    for line in lines:
        line[0].set_ylabel(axis_label(cut.board, "y"), fontsize=NORMAL)
        for ax in line[1:]:
            ax.tick_params(labelleft=False)


FIGURES = (multiscale, cross_sections)
