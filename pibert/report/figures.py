"""Building blocks of figures: layers of a field, colour scales, panels, files.

Figures are drawn without pyplot, so no backend or global setting of the process changes. Sizes are
in inches.
"""

import io
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from jaxtyping import Bool, Float
from matplotlib.animation import AbstractMovieWriter
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from torch import Tensor

from pibert.data.partial import replace_file
from pibert.data.writers import PICTURES
from pibert.fields import FieldSpec, Grid
from pibert.physics import derivatives

FORMATS = tuple(suffix[1:] for suffix in PICTURES)
"""Formats of a figure in a file of its own."""
_PUBLICATION = {"pdf.fonttype": 42, "svg.fonttype": "none", "svg.hashsalt": "pibert"}
"""Text stays text in vector files, and the same figure gives the same bytes."""
_NO_DATES = {"pdf": {"CreationDate": None}, "svg": {"Date": None}}
DPI, FILM_DPI = 150, 100
PANEL = 2.6
"""Inches of the longer side of a panel."""
SMALL, NORMAL, LARGE = 7.5, 8.5, 9.5
"""Font sizes in points: ticks, labels, headings."""
GREY = "0.4"
"""Colour of bodies and unknown points: darker than any colour around zero."""
VALUES, SIGNED, ERRORS = "viridis", "RdBu_r", "coolwarm"
"""Colour maps of values, of values around zero, and of errors."""
SHARE = 0.995
"""Share of the points that a robust colour scale covers; a few at a wall would fade the rest."""
_ONE_SIDED = 0.25
"""A scale is centred on zero only if the values reach at least this share to the other side."""


def with_unit(name: str, unit: str | None) -> str:
    """``u [m/s]``; only the name without a unit."""
    return f"{name} [{unit.replace('^2', '²')}]" if unit and unit != "1" else name


def blank(width: int | float, height: int | float) -> Figure:
    """An empty figure."""
    figure = Figure(figsize=(width, height), dpi=DPI, layout="constrained", facecolor="white")
    FigureCanvasAgg(figure)
    return figure


def picture_path(path: str | os.PathLike[str]) -> Path:
    """Check that a picture can be written there, and make its folder."""
    path = Path(path)
    if path.suffix.lower() not in PICTURES:
        raise ValueError(f"pictures are written as {', '.join(PICTURES)}, found {path.name!r}")
    path.parent.mkdir(parents=True, exist_ok=True)
    return path


class Layer:
    """One field; points that are not shown are masked."""

    def __init__(self, values: np.ma.MaskedArray) -> None:
        self.values = values
        shown = values.compressed()
        if not np.isfinite(shown).all():
            raise ValueError(
                f"cannot draw {(~np.isfinite(shown)).sum()} values that are not finite; "
                "mark their points as unknown"
            )
        self.shown = shown if shown.size else np.zeros(1)

    @property
    def limit(self) -> float:
        return float(np.abs(self.shown).max())

    @property
    def robust_limit(self) -> float:
        """The absolute value that a few points exceed."""
        return float(np.quantile(np.abs(self.shown), SHARE))

    @property
    def rms(self) -> float:
        return float(np.sqrt(np.square(self.shown).mean()))

    @property
    def inner(self) -> tuple[float, float]:
        """The range of the values except for a few at either end."""
        low, high = np.quantile(self.shown, (1 - SHARE, SHARE))
        return float(low), float(high)

    def scale(self, *, signed: bool = False) -> tuple[float, float, str]:
        """Lowest and highest value of the scale, and its colours.

        ``signed`` centres the scale on zero wherever both signs occur, as for vorticity.
        """
        low, high = float(self.shown.min()), float(self.shown.max())
        ends = (low, high) if signed else self.inner
        if is_signed(*ends, always=signed):
            return -self.limit, self.limit, SIGNED
        return (low, high, VALUES) if low < high else (low - 0.5, high + 0.5, VALUES)

    def excess(self, low: float, high: float) -> str:
        """Which ends of a scale this layer exceeds by more than a hundredth of its range."""
        slack = 0.01 * (high - low)
        below, above = self.shown.min() < low - slack, self.shown.max() > high + slack
        return {(0, 0): "neither", (1, 0): "min", (0, 1): "max", (1, 1): "both"}[below, above]


def layer_of(values: Float[Tensor, "..."], shown: Bool[Tensor, "..."]) -> Layer:
    """A layer of the points that are shown."""
    return Layer(np.ma.masked_array(values.double().numpy(), mask=~shown.numpy()))


def is_signed(low: float, high: float, *, always: bool = False) -> bool:
    """Whether values in this range get colours centred on zero."""
    share = 0.0 if always else _ONE_SIDED
    return low < 0 < high and min(-low, high) >= share * max(-low, high)


def vorticity_of(
    spec: FieldSpec,
    fields: Float[Tensor, "*t c y x"],
    known: Bool[Tensor, "*t y x"],
    *,
    linear: bool = False,
) -> tuple[Float[Tensor, "*t y x"], Bool[Tensor, "*t y x"]]:
    """Vorticity of a flow and the known points at which its stencil is defined."""
    assert spec.velocity is not None
    u, v = (fields[..., place, :, :] for place in spec.velocity)
    spin, defined = derivatives.where_defined(
        lambda u, v: derivatives.vorticity(u, v, spec.grid), u, v, known=known, linear=linear
    )
    # A stencil can be free of unknown points around a point that is itself unknown.
    return spin, defined & known


def height_over_width(grid: Grid) -> float:
    return (grid.shape[0] * grid.dy) / (grid.shape[1] * grid.dx)


def panels(
    rows: int, grid: Grid, *, size: float = PANEL, below: float = 0.0
) -> tuple[Figure, np.ndarray]:
    """Three axes in each row, with the aspect ratio of the flow and room for a legend ``below``.

    ``size`` is the longer side of a panel in inches.
    """
    aspect = height_over_width(grid)
    width, height = size * min(1.0, 1 / aspect), size * min(1.0, aspect)
    figure = blank(3 * max(width, 1.2) + 2.4, rows * (max(height, 0.9) + 0.3) + 0.7 + below)
    axes = figure.subplots(rows, 3, sharex=True, sharey=True, squeeze=False)
    for ax in axes.flat:
        ax.tick_params(labelsize=8, length=2)
        ax.locator_params(nbins=5)  # labels of a narrow panel would touch
    return figure, axes


def maps_and_curves(
    grid: Grid, count: int, columns: int, curves: int = 0
) -> tuple[Figure, list[Axes], list[Axes]]:
    """Axes for maps with the aspect ratio of the flow, and for curves below them."""
    aspect = height_over_width(grid)
    width = 1.35 * PANEL * min(1.0, 1 / aspect)
    height, rows = max(0.8, width * aspect), -(-count // columns)
    sizes = [rows * (height + 0.85), 2.4][: 1 + bool(curves)]
    figure = blank(columns * (max(width, 1.8) + 1.0), sum(sizes) + 0.3)
    parts = figure.add_gridspec(len(sizes), 1, height_ratios=sizes)
    above, *below = (figure.add_subfigure(parts[i]) for i in range(len(sizes)))
    maps = above.subplots(rows, columns, squeeze=False).ravel().tolist()
    lines = [ax for part in below for ax in part.subplots(1, curves, squeeze=False)[0]]
    for ax in maps[count:]:
        ax.set_axis_off()
    for ax in (*maps, *lines):
        ax.tick_params(which="both", labelsize=SMALL, length=2)
        ax.locator_params(axis="x", nbins=5)
    return figure, maps[:count], lines


def name_axes(ax: Axes, title: str, x: str, y: str) -> None:
    """Title and labels of a panel of curves, and a legend if its lines have names."""
    ax.set_title(title, fontsize=NORMAL)
    ax.set_xlabel(x, fontsize=SMALL)
    ax.set_ylabel(y, fontsize=SMALL)
    if ax.get_legend_handles_labels()[0]:
        ax.legend(fontsize=SMALL, frameon=False)


def show(
    ax: Axes, layer: Layer, grid: Grid, low: float, high: float, colours: str, unknown: str = GREY
) -> AxesImage:
    """Draw a layer as an image in the coordinates of the grid."""
    cmap = matplotlib.colormaps[colours].with_extremes(bad=unknown)
    return image_of(ax, layer.values, grid, cmap=cmap, vmin=low, vmax=high)


def image_of(ax: Axes, values: np.ma.MaskedArray, grid: Grid, **options: Any) -> AxesImage:
    """Values at the points of a grid, each as a cell around its point."""
    (ny, nx), (x, y) = grid.shape, grid.origin
    left, bottom = x - grid.dx / 2, y - grid.dy / 2
    extent = (left, left + nx * grid.dx, bottom, bottom + ny * grid.dy)
    nearest: dict[str, Any] = {"aspect": "equal", "interpolation": "nearest"}
    return ax.imshow(values, origin="lower", extent=extent, **nearest, **options)


def add_bar(ax: Axes, image: AxesImage, extend: str = "neither") -> None:
    """Add a colour bar as high as its panel."""
    bar = ax.figure.colorbar(image, cax=ax.inset_axes((1.03, 0.0, 0.045, 1.0)), extend=extend)
    bar.ax.tick_params(labelsize=8, length=2)
    bar.outline.set_linewidth(0.5)


def write_film(
    figure: Figure,
    writer: AbstractMovieWriter,
    path: Path,
    update: Callable[[int], None],
    count: int,
) -> None:
    """Write an animation; ``update`` draws a frame, and all have the layout of the first."""
    update(0)
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    with writer.saving(figure, str(path), FILM_DPI):
        for number in range(count):
            update(number)
            writer.grab_frame()


def write_figure(figure: Figure, path: Path) -> Path:
    """Write a picture in the format of its suffix; a reader never sees half of one."""
    replace_file(path, encode_figure(figure, path.suffix.lower().lstrip(".")))
    return path


def encode_figure(figure: Figure, file_format: str, dpi: int = DPI) -> bytes:
    """A figure as a file of one of ``FORMATS``."""
    file = io.BytesIO()
    with matplotlib.rc_context(_PUBLICATION):  # type: ignore[arg-type]
        figure.savefig(file, format=file_format, dpi=dpi, metadata=_NO_DATES.get(file_format))
    return file.getvalue()
