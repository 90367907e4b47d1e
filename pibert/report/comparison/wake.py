"""Cross-sections of selected frames: profiles across the stream, and the line along the wake.

The columns and the wake line are those of ``evaluation/regions.py``. Without a body, or if its
place is unknown, the paper's columns 11, 32 and 52 of 64 (scaled to the grid width) and the middle
row take their place.
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
from pibert.report.comparison.errors import Group, draw_bars
from pibert.report.comparison.fields import (
    PICKS,
    VORTICITY,
    Picked,
    excess,
    frame_text,
    label_of,
    main_quantity,
    pick,
    pick_rule,
    quantities,
)
from pibert.report.comparison.plots import (
    Plot,
    axis_label,
    frame,
    interval_text,
    label_axes,
    legend,
    line_style,
)
from pibert.report.comparison.results import DatasetResults
from pibert.report.figures import LARGE, NORMAL, SMALL, add_bar, blank, height_over_width, show

_LINES = 4
"""Models whose lines can be told apart in one panel."""


class Slice(NamedTuple):
    label: str
    column: int
    metric: str
    """The error along it in the records."""


class Cuts(NamedTuple):
    """Where a frame is cut."""

    slices: list[Slice]
    row: int
    first: int
    """The column at which the line along the stream begins."""
    line: str
    """Name of that line."""
    note: str = ""
    """For captions."""


def cuts_of(data: DatasetResults, picked: Picked) -> Cuts:
    """The lines through a selected frame."""
    grid = data.spec.grid
    body = _body(data, picked)
    if body is None:
        slices = [
            Slice(f"column {n}", paper_column(n, grid.shape[1]), f"slice_column_{n}_rel_l2")
            for n in PAPER_COLUMNS
        ]
        note = " Column numbers refer to a grid 64 columns wide."
        return Cuts(slices, grid.shape[0] // 2, 0, "middle row", note)
    place = locate(body[None], grid)
    slices = []
    for region in DOWNSTREAM:
        column = int(column_downstream(place, region, grid))
        slices.append(Slice(region.replace("_", " "), column, f"slice_{region}_rel_l2"))
    row = int(nearest_cell(place.centre_y, grid.shape[0]))
    return Cuts(slices, row, int(place.last_column) + 1, "wake line")


def _body(data: DatasetResults, picked: Picked) -> Tensor | None:
    """The body of a frame; for a moving one the unknown points, if none is at the border."""
    body = data.spec.grid.body
    if body is not None:
        return body if bool(body.any()) else None
    unknown = ~picked.shown
    at_border = unknown[0].any() | unknown[-1].any() | unknown[:, 0].any() | unknown[:, -1].any()
    is_body = data.info["has_body"] and bool(unknown.any()) and not at_border
    return unknown if is_body else None


def drawn_models(data: DatasetResults, most: int = _LINES) -> list[str]:
    """Models for lines, by rank: PIBERT, the best, the best other trained one, persistence."""
    wanted = ["pibert", data.models[0], data.rival(), "persistence", *data.models]
    known = list(dict.fromkeys(m for m in wanted if m in data.models))[:most]
    return sorted(known, key=data.models.index)


def style_of(data: DatasetResults, name: str) -> dict[str, Any]:
    """Wider lines lie below thinner ones, where lines cover each other."""
    style = line_style(data, name)
    return style | {"zorder": 5 - 0.5 * style["lw"] if name != "truth" else style["zorder"]}


def _line_legend(figure: Figure, data: DatasetResults, models: Sequence[str]) -> None:
    names = ("truth", *models)
    legend(figure, [Line2D([], [], **style_of(data, name)) for name in names])


class _Cut:
    """One selected frame: truth and predictions along its lines."""

    def __init__(self, data: DatasetResults, picked: Picked, models: Sequence[str]) -> None:
        self.data, self.grid = data, data.spec.grid
        self.cuts = cuts_of(data, picked)
        self.layers = {"truth": quantities(data, picked.truth, picked.shown)} | {
            model: quantities(data, picked.predictions[model], picked.shown) for model in models
        }
        self.x = self.grid.origin[0] + self.grid.dx * np.arange(self.grid.shape[1])
        self.y = self.grid.origin[1] + self.grid.dy * np.arange(self.grid.shape[0])

    def values(self, name: str, quantity: str) -> np.ndarray:
        """With NaN where nothing is known, which breaks a line."""
        return np.asarray(self.layers[name][quantity].values.filled(np.nan))

    def profile(self, ax: Axes, own: Slice, quantity: str, title: str) -> None:
        for name in self.layers:
            values = self.values(name, quantity)[:, own.column]
            ax.plot(values, self.y, **style_of(self.data, name))
        frame(ax, title, x=label_of(self.data, quantity), grid=False)
        ax.margins(y=0.01)

    def along(self, ax: Axes, quantity: str, title: str) -> None:
        """The line along the stream, with marks at the slices."""
        inside = slice(self.cuts.first, None)
        for name in self.layers:
            values = self.values(name, quantity)[self.cuts.row, inside]
            ax.plot(self.x[inside], values, **style_of(self.data, name))
        for own in self.cuts.slices:
            ax.axvline(self.x[own.column], color="0.8", linewidth=0.8, zorder=0)
        x, y = axis_label(self.data, "x"), label_of(self.data, quantity)
        frame(ax, title, x=x, y=y, grid=False)

    def map(self, ax: Axes, name: str, quantity: str, bar: Sequence[str] = ()) -> None:
        """The field of truth or a model on the scale of the truth, with the slices.

        ``bar`` names those whose fields the colour bar covers; empty: no bar.
        """
        low, high, colours = self.layers["truth"][quantity].scale()
        image = show(ax, self.layers[name][quantity], self.grid, low, high, colours)
        if bar:
            extend = excess([self.layers[own][quantity] for own in bar], low, high)
            add_bar(ax, image, extend=extend)
        for own in self.cuts.slices:
            ax.axvline(self.x[own.column], color="white", linewidth=1.2)
        ax.tick_params(labelsize=SMALL, length=2)

    def where(self, own: Slice) -> str:
        unit = self.data.info["length_unit"]
        return f"{own.label}, x = {self.x[own.column]:.3g}" + (f" {unit}" if unit else "")


def multiscale(data: DatasetResults) -> Plot | None:
    """Map with the lines, errors along them, profiles, and the wake line of the median frame."""
    picked = pick(data, "median")
    if picked is None:
        return None
    models = [m for m in drawn_models(data) if m in picked.predictions]
    cut, quantity = _Cut(data, picked, models), main_quantity(data)
    along = ["u", VORTICITY] if data.spec.velocity is not None else [quantity]
    label, line_name, row = label_of(data, quantity), cut.cuts.line, cut.cuts.row
    figure = blank(10, 8.2)
    rows = figure.add_gridspec(3, 1, height_ratios=(1, 1, 0.85))
    top = rows[0].subgridspec(1, 2, width_ratios=(1.15, 1))
    ax = figure.add_subplot(top[0])
    cut.map(ax, "truth", quantity, bar=["truth"])
    ax.plot([cut.x[cut.cuts.first], cut.x[-1]], [cut.y[row]] * 2, color="#ff4d4d", linewidth=1.2)
    ax.set_title(f"(a) {label}, truth", fontsize=LARGE, loc="left")
    label_axes(ax, data)
    _draw_errors(figure.add_subplot(top[1]), data, quantity, cut.cuts.slices)
    line = rows[1].subgridspec(1, 3).subplots(sharey=True, squeeze=False)[0]
    for letter, ax, own in zip("cde", line, cut.cuts.slices, strict=True):
        cut.profile(ax, own, quantity, f"({letter}) {cut.where(own)}")
    line[0].set_ylabel(axis_label(data, "y"), fontsize=NORMAL)
    last = rows[2].subgridspec(1, len(along)).subplots(squeeze=False)[0]
    for letter, ax, name in zip("fg", last, along, strict=False):
        cut.along(ax, name, f"({letter}) {name} on the {line_name}")
    _line_legend(figure, data, models)
    caption = (
        f"{frame_text(data, picked)} (a) {label} with three columns (white) and the {line_name} "
        f"(red, y = {cut.y[row]:.2g}); (b) relative L2 error along the columns, mean over all "
        f"{data.facts['test_frames']} test frames, models by rank; (c-e) profiles and (f, g) the "
        f"{line_name} of this frame, slices as grey lines.{cut.cuts.note}{interval_text(data)}"
    )
    return Plot(figure, caption)


def _draw_errors(ax: Axes, data: DatasetResults, quantity: str, slices: Sequence[Slice]) -> None:
    """Bars of the errors along the slices, with the names of the models below."""
    groups = [Group(own.label, own.metric, quantity) for own in slices]
    draw_bars(ax, data, data.shown(), f"(b) relative error of {quantity}", groups)
    handles = [
        Line2D([], [], marker="s", linestyle="", color=data.colour(m), markersize=5, label=m)
        for m in data.shown()
    ]
    style: dict[str, Any] = {"fontsize": SMALL - 0.5, "frameon": False, "handletextpad": 0.0}
    style |= {"loc": "upper center", "bbox_to_anchor": (0.5, -0.1), "columnspacing": 0.8}
    ax.legend(handles=handles, ncols=4, **style)


def cross_sections(data: DatasetResults) -> Plot | None:
    """Maps and profiles of all selected frames: truth, PIBERT and its best rival."""
    picks = {name: found for name in PICKS if (found := pick(data, name)) is not None}
    if not picks:
        return None
    own = "pibert" if "pibert" in data.models else data.models[0]
    rest = [m for m in (data.rival(own), *data.models) if m is not None and m != own]
    models = [m for m in (own, *rest[:1]) if all(m in p.predictions for p in picks.values())]
    quantity = main_quantity(data)
    high = min(max(2.9 * height_over_width(data.spec.grid), 1.0), 2.9)
    figure = blank(10, len(picks) * (high + 1.75 + 0.9) + 0.4)
    axes = figure.subplots(2 * len(picks), 3, height_ratios=(high, 1.75) * len(picks))
    note = ""
    for number, (name, picked) in enumerate(picks.items()):
        cut, lines = _Cut(data, picked, models), axes[2 * number : 2 * number + 2]
        _draw_block(lines, cut, quantity, f"{name}: {picked.origin}")
        note = cut.cuts.note
    _line_legend(figure, data, models)
    frames = "; ".join(f"{name}: {p.origin}" for name, p in picks.items())
    caption = (
        f"The {pick_rule(data)} ({frames}). Above: {label_of(data, quantity)} of the truth and of "
        f"{' and '.join(models)} on the scale of the truth; white: the columns of the profiles "
        f"below.{note}"
    )
    return Plot(figure, caption)


def _draw_block(lines: np.ndarray, cut: _Cut, quantity: str, heading: str) -> None:
    """Three maps above three profiles."""
    names = list(cut.layers)
    for ax in lines[0, len(names) :]:
        ax.set_axis_off()
    for ax, name in zip(lines[0], names, strict=False):
        cut.map(ax, name, quantity, bar=names if name == names[-1] else ())
        ax.set_title(" \n \n ", fontsize=LARGE, loc="right")  # room for the heading
        ax.set_title(name, fontsize=LARGE, loc="left", pad=3)
        ax.set_xlabel(axis_label(cut.data, "x"), fontsize=NORMAL, labelpad=1)
    lines[0, 0].annotate(
        heading,
        (0, 1),
        (0, 20),
        xycoords="axes fraction",
        textcoords="offset points",
        fontsize=LARGE,
        fontweight="bold",
    ).set_in_layout(False)  # it may reach over the next map
    for ax, own in zip(lines[1], cut.cuts.slices, strict=True):
        cut.profile(ax, own, quantity, cut.where(own))
    for line in lines:
        line[0].set_ylabel(axis_label(cut.data, "y"), fontsize=NORMAL)
        for ax in line[1:]:
            ax.tick_params(labelleft=False)
