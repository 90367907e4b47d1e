"""Cross-sections of selected frames: profiles across the stream, and the line along the wake.

The columns and the wake line are those of ``evaluation/regions.py``. If the location of the body is
unknown, the paper's columns 11, 32 and 52 of 64 (scaled to the grid width) and the middle row are
used instead. Data without a body have no such figures.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle
from torch import Tensor

from pibert.evaluation.geometry import locate, nearest_cell
from pibert.evaluation.regions import stations
from pibert.report.comparison.errors import GROUP_STYLES, draw_dots
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
from pibert.report.figures import LARGE, NORMAL, SMALL, add_bar, image_of, show

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

    def draw_profile(self, axes: np.ndarray, cut: Slice, quantity: str) -> None:
        """The profiles, and beside them the errors of the models."""
        truth, label = self.values("truth", quantity), label_of(self.data, quantity)
        for name in self.layers:
            values, style = self.values(name, quantity), _style(self.data, name)
            axes[0].plot(values[:, cut.column], self.y, **style)
            if name != "truth":
                axes[1].plot((values - truth)[:, cut.column], self.y, **style)
        axes[1].axvline(0.0, color="0.5", lw=0.6, zorder=0)
        for ax, across in zip(axes, (label, "error"), strict=True):
            frame(ax, x=across, grid=False)
            ax.margins(y=0.01)
            ax.locator_params(axis="x", nbins=3)

    def draw_along(self, axes: np.ndarray, quantity: str) -> None:
        """The line along the stream, and the errors of the models, with marks at the slices."""
        truth, inside = self.values("truth", quantity), slice(self.cuts.first, None)
        for name in self.layers:
            values, style = self.values(name, quantity), _style(self.data, name)
            axes[0].plot(self.x[inside], values[self.cuts.row, inside], **style)
            if name != "truth":
                axes[1].plot(self.x[inside], (values - truth)[self.cuts.row, inside], **style)
        axes[1].axhline(0.0, color="0.5", lw=0.6, zorder=0)
        for ax in axes:
            for cut in self.cuts.slices:
                ax.axvline(self.x[cut.column], color="0.8", linewidth=0.8, zorder=0)

    def draw_map(self, ax: Axes, quantity: str, title: str) -> None:
        """The truth with the lines."""
        layer = self.layers["truth"][quantity]
        add_bar(ax, show(ax, layer, self.grid, *layer.scale()))
        frame(ax, title, grid=False)
        label_axes(ax, self.data)
        for cut, style in zip(self.cuts.slices, GROUP_STYLES, strict=False):
            ax.axvline(self.x[cut.column], color="white", linewidth=1.2)
            own = style | {"mec": "white", "transform": ax.get_xaxis_transform()}
            ax.plot(self.x[cut.column], 0.05, **own, clip_on=False)
        ends = [self.x[self.cuts.first], self.x[-1]]
        ax.plot(ends, [self.y[self.cuts.row]] * 2, color="#ff4d4d", linewidth=1.2)


def _style(data: DatasetResults, name: str) -> dict[str, Any]:
    """Wider lines lie below thinner ones, where lines cover each other."""
    style = line_style(data, name)
    return style | {"zorder": 5 - 0.5 * style["lw"] if name != "truth" else style["zorder"]}


def _line_legend(figure: Figure, data: DatasetResults, models: Sequence[str]) -> None:
    legend(figure, [Line2D([], [], **_style(data, name)) for name in ("truth", *models)])


def sketch(data: DatasetResults) -> Plot | None:
    """The region of the frames with its sides, the body, the slices, and the flow in and out."""
    picked = pick(data, "median")
    if picked is None or data.spec.velocity is None or (body := _body(data, picked)) is None:
        return None
    grid, cuts = data.spec.grid, cuts_of(data, picked)
    (rows, columns), (x0, y0) = grid.shape, grid.origin
    left, bottom = x0 - grid.dx / 2, y0 - grid.dy / 2
    width, height = columns * grid.dx, rows * grid.dy
    right, top = left + width, bottom + height
    scale = min(4.6 / width, 3.2 / height)
    figure, axes = sheet(1.3 * scale * width + 0.9, 1.12 * scale * height + 0.9)
    ax = axes[0, 0]
    filled = np.ma.masked_equal(body.numpy().astype(float), 0)
    image_of(ax, filled, grid, cmap="Greys", vmin=0.0, vmax=2.0)
    frame(ax, x=axis_label(data, "x"), y=axis_label(data, "y"), grid=False)
    ax.spines[:].set_visible(False)
    ax.add_patch(Rectangle((left, bottom), width, height, fill=False, ec="0.2", lw=1.2))
    ax.set(xlim=(left - 0.15 * width, right + 0.15 * width), ylim=(bottom, top + 0.1 * height))
    ax.set(xticks=np.linspace(left, right, 5), yticks=np.linspace(bottom, top, 5), aspect="equal")
    ax.tick_params(length=0)
    places = ((0.02, 0.25), (0.98, 0.25), (0.5, 0.03), (0.5, 0.97))
    words: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": SMALL, "color": "0.3"}
    for turn, (x, y), kind in zip((90, 90, 0, 0), places, grid.sides, strict=True):
        ax.text(left + x * width, bottom + y * height, kind, rotation=turn, **words)
    flow = picked.truth[list(data.spec.velocity)]
    flow = torch.where(picked.shown, flow, 0.0)
    flow = 0.14 * width / float(flow.square().sum(0).max().sqrt().clamp(min=1e-30)) * flow
    sampled = np.linspace(0, rows - 1, 9).round().astype(int)[1:-1]
    how: dict[str, Any] = {"angles": "xy", "scale_units": "xy", "scale": 1.0, "width": 0.004}
    ends = ((0, left, "tip", "C0"), (columns - 1, right, "tail", "C3"))
    for column, edge, pivot, colour in ends:
        start = np.full(len(sampled), edge), y0 + grid.dy * sampled
        ax.quiver(*start, *flow[:, sampled, column].numpy(), pivot=pivot, color=colour, **how)
    for cut in cuts.slices:
        x = x0 + grid.dx * cut.column
        ax.plot([x, x], [bottom, top], color="0.5", lw=0.8, ls="--")
        ax.text(x, top, f" {cut.label}", rotation=30, ha="left", va="bottom", fontsize=SMALL)
    along = y0 + grid.dy * cuts.row
    ax.plot([x0 + grid.dx * cuts.first, right], [along, along], color="0.5", lw=0.8, ls=":")
    moves = bool(data.spec.moving) or "mass_ratio" in data.spec.parameter_names
    box = locate(body[None], grid)
    x, half = x0 + grid.dx * float(box.centre_x), 0.9 * float(box.diameter)
    if moves:
        how = {"arrowstyle": "<|-|>", "color": "#7b1fa2", "lw": 1.4}
        ax.annotate("", (x, along - half), (x, along + half), arrowprops=how)
    size = f"{float(box.diameter):.3g} {data.info['length_unit'] or ''}".rstrip()
    caption = (
        f"Drawn from the data: {rows} × {columns} points; the condition on each side (open: the "
        f"view was cut out of a larger flow); grey: the body, {size} across"
        + (", which moves across the stream (purple)" if moves else "")
        + (", here at rest" if moves and grid.body is not None else "")
        + f"; arrows: velocity on the first and the last column in {picked.origin}; dashed: the "
        f"slices; dotted: the {cuts.line}."
    )
    return Plot(figure, caption)


def multiscale(data: DatasetResults) -> Plot | None:
    """Map of the median frame with the lines, errors along them, and the wake line."""
    picked = pick(data, "median")
    if picked is None or not data.info["has_body"]:
        return None
    models = [m for m in data.shown(_LINES) if m in picked.predictions]
    lines, quantity = _Lines(data, picked, models), main_quantity(data)
    cuts, label = lines.cuts, label_of(data, quantity)
    along = ["u", VORTICITY] if data.spec.velocity is not None else [quantity]
    rows = 1 + len(along)
    figure, axes = sheet(10, 2.5 * rows + 0.4, rows, 2)
    lines.draw_map(axes[0, 0], quantity, f"a  {label}, truth")
    groups = [Metric(cut.label, cut.metric, quantity) for cut in cuts.slices]
    draw_dots(axes[0, 1], data, data.compared(), f"b  Relative error of {quantity}", groups)
    for letters, row, name in zip(("cd", "ef"), axes[1:], along, strict=False):
        lines.draw_along(row, name)
        x, y = axis_label(data, "x"), label_of(data, name)
        titles = (f"{name[0].upper() if len(name) > 1 else name}{name[1:]}", f"Error of {name}")
        for letter, ax, title in zip(letters, row, titles, strict=True):
            frame(ax, f"{letter}  {title} on the {cuts.line}", x=x, y=y, grid=False)
    _line_legend(figure, data, models)
    caption = (
        f"{frame_text(data, picked)} (a) {label} with three columns (white, marked as in b) and "
        f"the {cuts.line} (red, y = {lines.y[cuts.row]:.2g}); (b) relative L2 error along the "
        f"columns, mean over all {data.facts['test_frames']} test frames, models by rank; below, "
        f"the {cuts.line} of this frame and the errors on it (prediction minus truth), columns as "
        "grey lines."
        f"{interval_text(data)}"
    )
    return Plot(figure, caption)


def cross_sections(data: DatasetResults) -> Plot | None:
    """Profiles across the stream in all selected frames: truth, leading models, their errors."""
    picks = {name: picked for name in PICKS if (picked := pick(data, name)) is not None}
    if not picks or not data.info["has_body"]:
        return None
    models = [m for m in data.shown(_LINES) if all(m in own.predictions for own in picks.values())]
    quantity = main_quantity(data)
    figure, axes = sheet(11.4, 2.1 * len(picks) + 0.5, len(picks), 6, sharey=True)
    for number, (name, picked) in enumerate(picks.items()):
        row = axes[number]
        lines = _Lines(data, picked, models)
        for place, cut in enumerate(lines.cuts.slices):
            pair = row[2 * place : 2 * place + 2]
            lines.draw_profile(pair, cut, quantity)
            if number == 0:
                unit = data.info["length_unit"]
                at = f"x = {lines.x[cut.column]:.3g}" + (f" {unit}" if unit else "")
                pair[0].set_title(cut.label, fontsize=LARGE, loc="left")
                pair[1].set_title(at, fontsize=NORMAL, loc="right")
        row[0].set_ylabel(f"{name} frame\n{axis_label(data, 'y')}", fontsize=NORMAL)
    _line_legend(figure, data, models)
    frames = "; ".join(f"{name}: {picked.origin}" for name, picked in picks.items())
    caption = (
        f"The {pick_rule(data)} ({frames}): {label_of(data, quantity)} of the truth and of "
        f"{len(models)} models along three columns, and the errors (prediction minus truth)."
    )
    return Plot(figure, caption)
