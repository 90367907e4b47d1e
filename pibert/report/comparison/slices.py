"""Cross-sections of picked frames: profiles across the stream, and the line along the wake.

Where the columns and the wake line are is what ``evaluation/regions.py`` says, so bars of errors
and profiles belong together. Without a body, or with one whose place is not known, the paper's
columns 11, 32 and 52 of 64 stand in, and the middle row for the wake line.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from torch import Tensor

from pibert.evaluation.geometry import locate, nearest_cell
from pibert.evaluation.regions import DOWNSTREAM, PAPER_COLUMNS, column_downstream, paper_column
from pibert.report.comparison.bars import Group, Panel, draw_bars
from pibert.report.comparison.board import COLOURS, Board
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
from pibert.report.comparison.fields import (
    PICKS,
    VORTICITY,
    Picked,
    chief,
    frame_text,
    pick,
    quantities,
    unit_of,
)
from pibert.report.comparison.plots import line_style
from pibert.report.figures import Layer, add_bar, show

_LINES = 4
"""Models whose lines can be told apart in one panel."""
_MARK = "#ff4d4d"
"""Of the wake line, on maps."""


class Slice(NamedTuple):
    label: str
    column: int
    metric: str
    """The error along it in the records."""


class Places(NamedTuple):
    """Where a frame is cut."""

    slices: list[Slice]
    row: int
    first: int
    """The column at which the line along the stream begins."""
    line: str
    """What that line is."""


def places(board: Board, picked: Picked) -> Places:
    """The lines through a picked frame."""
    grid = board.spec.grid
    body = _body(board, picked)
    if body is None:
        slices = [
            Slice(f"column {column}", column, f"slice_column_{number}_rel_l2")
            for number in PAPER_COLUMNS
            for column in (paper_column(number, grid.shape[1]),)
        ]
        return Places(slices, grid.shape[0] // 2, 0, "middle row")
    place = locate(body[None], grid)
    slices = [
        Slice(
            region.replace("_", " "),
            int(column_downstream(place, region, grid)),
            f"slice_{region}_rel_l2",
        )
        for region in DOWNSTREAM
    ]
    row = int(nearest_cell(place.centre_y, grid.shape[0]))
    return Places(slices, row, int(place.last_column) + 1, "wake line")


def _body(board: Board, picked: Picked) -> Tensor | None:
    """The body of a frame; of one that moves, the unknown points, if they are all inside."""
    body = board.spec.grid.body
    if body is not None:
        return body if bool(body.any()) else None
    unknown = ~picked.shown
    at_border = unknown[0].any() | unknown[-1].any() | unknown[:, 0].any() | unknown[:, -1].any()
    is_body = board.reference.card["data"]["has_body"] and bool(unknown.any()) and not at_border
    return unknown if is_body else None


def drawn_models(board: Board, most: int = _LINES) -> list[str]:
    """Models for lines, by rank: PIBERT, the best, the best other trained one, persistence."""
    wanted = ["pibert", board.models[0], board.rival(), "persistence", *board.models]
    known = list(dict.fromkeys(m for m in wanted if m in board.models))[:most]
    return sorted(known, key=board.models.index)


def styles(board: Board, name: str) -> dict[str, Any]:
    """How truth and models look where lines lie on each other: the wider, the deeper."""
    if name == "truth":
        return {"color": COLOURS["truth"], "lw": 2.6, "zorder": 2}
    style = line_style(board, name)
    return style | {"zorder": 4 - 0.5 * style["lw"] + 1}


def line_legend(figure: Figure, board: Board, models: Sequence[str]) -> None:
    """Truth and models, above all panels."""
    handles = [Line2D([], [], label=name, **styles(board, name)) for name in ("truth", *models)]
    figure.legend(
        handles=handles,
        loc="outside upper center",
        ncols=len(handles),
        fontsize=NORMAL,
        frameon=False,
    )


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

    def map(self, ax: Axes, name: str, quantity: str, *, bar: bool, along: bool) -> None:
        layer: Layer = self.layers[name][quantity]
        low, high, colours = self.layers["truth"][quantity].scale()
        image = show(ax, layer, self.grid, low, high, colours)
        if bar:
            others = [own[quantity].excess(low, high) for own in self.layers.values()]
            found = set(others) - {"neither"}
            add_bar(
                ax, image, "neither" if not found else found.pop() if len(found) == 1 else "both"
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
        f"{interval_text(board)}"
    )
    alt = (
        f"Profiles of {quantity} across the stream and along the wake: truth, {', '.join(models)}."
    )
    return Drawn(figure, caption, alt)


def _draw_map(ax: Axes, cut: _Cut, quantity: str) -> None:
    cut.map(ax, "truth", quantity, bar=True, along=True)
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
    figure = blank(10, len(picks) * (high + 1.75 + 0.75) + 0.4)
    axes = figure.subplots(2 * len(picks), 3, height_ratios=(high, 1.75) * len(picks))
    for number, (name, picked) in enumerate(picks.items()):
        cut, lines = _Cut(board, picked, models), axes[2 * number : 2 * number + 2]
        _draw_block(lines, cut, quantity, f"{name}: {picked.words}")
    line_legend(figure, board, models)
    rule = board.reference.card["pick_rule"]
    frames = "; ".join(f"{name}: {p.words}" for name, p in picks.items())
    caption = (
        f"Data set {board.name}, {rule} ({frames}). Above, {quantity} of the truth and of "
        f"{' and '.join(models)} on the scale of the truth, in white the columns of the profiles "
        f"below{_with_unit_text(unit_of(board, quantity))}."
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
        cut.map(ax, name, quantity, bar=name == [*cut.layers][-1], along=False)
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
    lines[0, 0].set_title(" \n ", fontsize=LARGE, loc="right")  # room for it
    for ax, own in zip(lines[1], cut.places.slices, strict=True):
        cut.profile(ax, own, quantity)
        ax.set_title(cut.where(own), fontsize=NORMAL, loc="left", pad=3)
    for line in lines:
        line[0].set_ylabel(axis_label(cut.board, "y"), fontsize=NORMAL)
        for ax in line[1:]:
            ax.tick_params(labelleft=False)


FIGURES = (multiscale, cross_sections)
