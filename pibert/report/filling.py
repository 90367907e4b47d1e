"""The picture of a filled frame: before, after, and the change."""

import os
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from torch import Tensor

from pibert.data.filling import Example
from pibert.fields import Grid
from pibert.report.figures import (
    ERRORS,
    GREY,
    PANEL,
    add_bar,
    image_of,
    layer_of,
    panels,
    picture_path,
    show,
    with_unit,
    write_figure,
)

_CHANNELS = 4
_MISSING, _NEW = "0.75", "#8fc08f"
_FAINT = 1e-12
_RING: dict[str, Any] = {"ls": "none", "marker": "o", "mfc": "none", "mec": "black"}


def draw_filling(path: str | os.PathLike[str], example: Example, *, title: str = "") -> Path:
    """Draw a frame before, after, and the difference, one channel per row.

    Both fields share the scale of the filled one; an arrow on the bar marks outliers beyond it.
    Missing vectors are light grey before filling, flagged ones have a ring, a body is dark. The
    change is that of the flagged vectors; new vectors are green there. The path is that of a PNG
    file; its folder is created, and an older file is replaced atomically.
    """
    path = picture_path(path)
    spec = example.spec
    grid, body = spec.grid, example.body
    still_missing = example.missing & ~example.after.isfinite().all(0)
    names = spec.channels[:_CHANNELS]
    x, y = (with_unit(axis, example.length_unit) for axis in "xy")
    figure, axes = panels(len(names), grid, size=1.2 * PANEL, below=0.4)
    for row, (name, unit) in enumerate(zip(names, spec.units, strict=False)):
        before = layer_of(example.before[row], ~body & ~example.missing)
        after = layer_of(example.after[row], ~body & ~still_missing)
        low, high, colours = after.scale()
        left, middle, right = axes[row]
        show(left, before, grid, low, high, colours, unknown=_MISSING)
        image = show(middle, after, grid, low, high, colours, unknown=_MISSING)
        add_bar(middle, image, before.excess(low, high))
        moved = layer_of(example.after[row] - example.before[row], example.flagged & ~still_missing)
        widest = max(moved.limit, _FAINT * max(abs(low), abs(high), 1.0))
        image = show(right, moved, grid, -widest, widest, ERRORS, unknown="white")
        if bool(example.flagged.any()):
            add_bar(right, image)
        _paint(right, example.missing & ~still_missing & ~body, grid, _NEW)
        for ax in (left, middle, right):
            _paint(ax, body, grid, GREY)
        _ring(left, example.flagged, grid)
        left.set_ylabel(f"{with_unit(name, unit)}\n\n{y}", fontsize=10)
        if bool(example.flagged.any()):
            right.set_title(f"rms {moved.rms:.2g}", fontsize=9)
    for ax, heading in zip(axes[0], ("before", "filled", "change of flagged vectors"), strict=True):
        extra = ax.get_title()
        ax.set_title(f"{heading}, {extra}" if extra else heading, fontsize=11)
    for ax in axes[-1]:
        ax.set_xlabel(x)
    _add_legend(figure, example)
    if title:
        figure.suptitle(title, fontsize=12)
    return write_figure(figure, path)


def _paint(ax: Axes, where: Tensor, grid: Grid, colour: str) -> None:
    """One colour over some points."""
    if bool(where.any()):
        values = np.ma.masked_array(np.ones(grid.shape), mask=~where.numpy())
        image_of(ax, values, grid, cmap=ListedColormap([colour]))


def _ring(ax: Axes, where: Tensor, grid: Grid) -> None:
    rows, columns = np.nonzero(where.numpy())
    x, y = grid.origin[0] + grid.dx * columns, grid.origin[1] + grid.dy * rows
    ax.plot(x, y, **_RING, ms=4, mew=0.7)


def _add_legend(figure: Figure, example: Example) -> None:
    """What the greys, rings and greens are, as far as they occur."""
    entries: list[Patch | Line2D] = []
    if bool(example.missing.any()):
        entries.append(Patch(color=_MISSING, label=f"missing: {int(example.missing.sum())}"))
        entries.append(Patch(color=_NEW, label="new where it was missing"))
    if bool(example.flagged.any()):
        entries.append(Line2D([], [], **_RING, label=f"flagged: {int(example.flagged.sum())}"))
    if bool(example.body.any()):
        entries.append(Patch(color=GREY, label="body or mask"))
    if entries:
        figure.legend(
            handles=entries, loc="outside lower center", ncols=4, frameon=False, fontsize=9
        )
