"""Cross-sections of selected frames: profiles across the stream, and the line along the wake.

The columns and the wake line are those of ``evaluation/regions.py``. Without a body, or if its
location is unknown, the paper's columns 11, 32 and 52 of 64 (scaled to the grid width) and the
middle row are used instead.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from torch import Tensor

from pibert.evaluation.geometry import locate, nearest_cell
from pibert.evaluation.regions import stations
from pibert.report.comparison.errors import draw_bars
from pibert.report.comparison.fields import (
    PICKS,
    VORTICITY,
    Picked,
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
    sheet,
)
from pibert.report.comparison.results import DatasetResults
from pibert.report.comparison.table import Metric
from pibert.report.figures import NORMAL, SMALL, add_bar, show

_LINES = 4
"""Models whose lines can be distinguished in one panel."""


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


def cuts_of(data: DatasetResults, picked: Picked) -> Cuts:
    """The lines through a selected frame."""
    grid, body = data.spec.grid, _body(data, picked)
    slices = [
        Slice(name, column, f"slice_{name.replace(' ', '_')}_rel_l2")
        for name, column in stations(body, grid).items()
    ]
    if body is None:
        return Cuts(slices, grid.shape[0] // 2, 0, "middle row")
    box = locate(body[None], grid)
    row = int(nearest_cell(box.centre_y, grid.shape[0]))
    return Cuts(slices, row, int(box.last_column) + 1, "wake line")


def _body(data: DatasetResults, picked: Picked) -> Tensor | None:
    """The body of a frame; for a moving one the unknown points, if none is at the border."""
    body = data.spec.grid.body
    if body is not None:
        return body if bool(body.any()) else None
    unknown = ~picked.shown
    at_border = unknown[0].any() | unknown[-1].any() | unknown[:, 0].any() | unknown[:, -1].any()
    is_body = data.info["has_body"] and bool(unknown.any()) and not at_border
    return unknown if is_body else None


class _Lines:
    """Truth and predictions of one selected frame along its lines."""

    def __init__(self, data: DatasetResults, picked: Picked, models: Sequence[str]) -> None:
        self.data, self.grid = data, data.spec.grid
        self.cuts = cuts_of(data, picked)
        self.layers = {"truth": quantities(data, picked.truth, picked.shown)} | {
            model: quantities(data, picked.predictions[model], picked.shown) for model in models
        }
        self.x = self.grid.origin[0] + self.grid.dx * np.arange(self.grid.shape[1])
        self.y = self.grid.origin[1] + self.grid.dy * np.arange(self.grid.shape[0])

    def values(self, name: str, quantity: str) -> np.ndarray:
        """With NaN at unknown points, which breaks a line."""
        return np.asarray(self.layers[name][quantity].values.filled(np.nan))

    def draw_profile(self, ax: Axes, cut: Slice, quantity: str) -> None:
        for name in self.layers:
            values = self.values(name, quantity)[:, cut.column]
            ax.plot(values, self.y, **_style(self.data, name))
        unit = self.data.info["length_unit"]
        title = f"{cut.label}, x = {self.x[cut.column]:.3g}" + (f" {unit}" if unit else "")
        frame(ax, title, x=label_of(self.data, quantity), grid=False)
        ax.margins(y=0.01)

    def draw_along(self, ax: Axes, quantity: str, title: str) -> None:
        """The line along the stream, with marks at the slices."""
        inside = slice(self.cuts.first, None)
        for name in self.layers:
            values = self.values(name, quantity)[self.cuts.row, inside]
            ax.plot(self.x[inside], values, **_style(self.data, name))
        for cut in self.cuts.slices:
            ax.axvline(self.x[cut.column], color="0.8", linewidth=0.8, zorder=0)
        x, y = axis_label(self.data, "x"), label_of(self.data, quantity)
        frame(ax, title, x=x, y=y, grid=False)

    def draw_map(self, ax: Axes, quantity: str, title: str) -> None:
        """The truth with the lines."""
        layer = self.layers["truth"][quantity]
        add_bar(ax, show(ax, layer, self.grid, *layer.scale()))
        frame(ax, title, grid=False)
        label_axes(ax, self.data)
        for cut in self.cuts.slices:
            ax.axvline(self.x[cut.column], color="white", linewidth=1.2)
        ends = [self.x[self.cuts.first], self.x[-1]]
        ax.plot(ends, [self.y[self.cuts.row]] * 2, color="#ff4d4d", linewidth=1.2)


def _style(data: DatasetResults, name: str) -> dict[str, Any]:
    """Wider lines lie below thinner ones, where lines cover each other."""
    style = line_style(data, name)
    return style | {"zorder": 5 - 0.5 * style["lw"] if name != "truth" else style["zorder"]}


def _line_legend(figure: Figure, data: DatasetResults, models: Sequence[str]) -> None:
    legend(figure, [Line2D([], [], **_style(data, name)) for name in ("truth", *models)])


def multiscale(data: DatasetResults) -> Plot | None:
    """Map of the median frame with the lines, errors along them, and the wake line."""
    picked = pick(data, "median")
    if picked is None:
        return None
    models = [m for m in data.shown(_LINES) if m in picked.predictions]
    lines, quantity = _Lines(data, picked, models), main_quantity(data)
    cuts, label = lines.cuts, label_of(data, quantity)
    figure, axes = sheet(10, 5.4, 2, 2, height_ratios=(1.1, 1))
    lines.draw_map(axes[0, 0], quantity, f"(a) {label}, truth")
    groups = [Metric(cut.label, cut.metric, quantity) for cut in cuts.slices]
    draw_bars(axes[0, 1], data, data.shown(), f"(b) relative error of {quantity}", groups)
    squares = [Patch(color=data.colour(m), label=m) for m in data.shown()]
    style: dict[str, Any] = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.1), "ncols": 4}
    axes[0, 1].legend(handles=squares, **style, fontsize=SMALL - 0.5, frameon=False)
    along = ["u", VORTICITY] if data.spec.velocity is not None else [quantity]
    for letter, ax, name in zip("cd", axes[1], along, strict=False):
        lines.draw_along(ax, name, f"({letter}) {name} on the {cuts.line}")
    for ax in axes[1, len(along) :]:
        ax.set_axis_off()
    _line_legend(figure, data, models)
    caption = (
        f"{frame_text(data, picked)} (a) {label} with three columns (white) and the {cuts.line} "
        f"(red, y = {lines.y[cuts.row]:.2g}); (b) relative L2 error along the columns, mean over "
        f"all {data.facts['test_frames']} test frames, models by rank; (c, d) the {cuts.line} of "
        f"this frame, columns as grey lines.{interval_text(data)}"
    )
    return Plot(figure, caption)


def cross_sections(data: DatasetResults) -> Plot | None:
    """Profiles across the stream in all selected frames: truth and leading models."""
    picks = {name: picked for name in PICKS if (picked := pick(data, name)) is not None}
    if not picks:
        return None
    models = [m for m in data.shown(_LINES) if all(m in own.predictions for own in picks.values())]
    quantity = main_quantity(data)
    figure, axes = sheet(10, 2.2 * len(picks) + 0.4, len(picks), 3, sharey=True)
    for row, (name, picked) in zip(axes, picks.items(), strict=True):
        lines = _Lines(data, picked, models)
        for ax, cut in zip(row, lines.cuts.slices, strict=True):
            lines.draw_profile(ax, cut, quantity)
        row[0].set_ylabel(f"{name} frame\n{axis_label(data, 'y')}", fontsize=NORMAL)
    _line_legend(figure, data, models)
    frames = "; ".join(f"{name}: {picked.origin}" for name, picked in picks.items())
    caption = (
        f"The {pick_rule(data)} ({frames}): {label_of(data, quantity)} of the truth and of "
        f"{len(models)} models along three columns."
    )
    return Plot(figure, caption)
