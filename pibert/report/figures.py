"""Pictures of flow fields. Drawn without pyplot: no backend or setting of the process changes."""

import os
import tempfile
from pathlib import Path

import matplotlib
import numpy as np
import torch
from jaxtyping import Bool, Float
from matplotlib.axes import Axes
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from torch import Tensor

from pibert.fields import FieldSpec, Grid
from pibert.physics import derivatives

DPI = 150
PANEL = 2.6
"""Inches of the longer side of a panel."""
_VORTICITY = "vorticity"
GREY = "0.4"
"""Of bodies and unknown points: darker than any colour around zero."""
VALUES, SIGNED, ERRORS = "viridis", "RdBu_r", "coolwarm"
"""Colours of values, of values around zero, and of errors."""
_ONE_SIDED = 0.25
"""Zero is no middle of values that reach less than this share as far to its other side."""
_OUTER = 0.005
"""Share of the values at either end that does not decide on the colours."""


def compare_fields(
    path: str | os.PathLike[str],
    truth: Float[Tensor, "c y x"],
    prediction: Float[Tensor, "c y x"],
    spec: FieldSpec,
    *,
    title: str = "",
    known: Bool[Tensor, "y x"] | None = None,
) -> Path:
    """Draw truth, prediction and error of u, v, speed and vorticity, one quantity per row.

    Truth and prediction of a row share one scale, that of the truth; a colour bar with an arrow
    says that the prediction leaves it. The error is prediction minus truth.

    Args:
        path: A PNG file; its folder is made, and an older file is replaced in one step.
        truth: In physical units.
        prediction: In physical units.
        spec: Says which channels are u and v, and gives the grid.
        title: A line above the panels.
        known: True where the truth is known; the rest, and the grid's body, is grey.

    Returns:
        The path written.
    """
    path = picture_path(path)
    _check(truth, prediction, spec)
    grid = spec.grid
    shown = torch.ones(grid.shape, dtype=torch.bool) if known is None else known.cpu()
    if grid.body is not None:
        shown = shown & ~grid.body.cpu()
    true, predicted = _quantities(truth, spec, shown), _quantities(prediction, spec, shown)
    figure, axes = panels(len(true), grid)
    for (label, a), b, line in zip(true.items(), predicted.values(), axes, strict=True):
        low, high, colours = a.scale(signed=label == _VORTICITY)
        show(line[0], a, grid, low, high, colours)
        image = show(line[1], b, grid, low, high, colours)
        add_bar(line[1], image, extend=b.excess(low, high))
        error = Layer(b.values - a.values)
        widest = max(error.limit, 1e-12 * max(abs(low), abs(high)))
        add_bar(line[2], show(line[2], error, grid, -widest, widest, ERRORS))
        line[0].set_ylabel(f"{label}\n\ny", fontsize=10)
        line[2].set_title(f"rms {error.rms:.2g}", fontsize=9)
    for ax, heading in zip(axes[0], ("truth", "prediction", "error, "), strict=True):
        ax.set_title(heading + ax.get_title(), fontsize=11)
    for ax in axes[-1]:
        ax.set_xlabel("x")
    if title:
        figure.suptitle(title, fontsize=12)
    return write_figure(figure, path)


def picture_path(path: str | os.PathLike[str]) -> Path:
    """Check that a picture can be written there, and make the folder."""
    path = Path(path)
    if path.suffix.lower() != ".png":
        raise ValueError(f"pictures are written as .png, found {path.name!r}")
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
                f"mark their points as unknown"
            )
        self.shown = shown if shown.size else np.zeros(1)

    @property
    def limit(self) -> float:
        return float(np.abs(self.shown).max())

    @property
    def rms(self) -> float:
        return float(np.sqrt(np.square(self.shown).mean()))

    @property
    def inner(self) -> tuple[float, float]:
        """Where the values end but for a few."""
        low, high = np.quantile(self.shown, (_OUTER, 1 - _OUTER))
        return float(low), float(high)

    def scale(self, *, signed: bool = False) -> tuple[float, float, str]:
        """Lowest and highest value of the scale, and its colours.

        Args:
            signed: Zero is a middle whatever the values are, as for the vorticity.
        """
        low, high = float(self.shown.min()), float(self.shown.max())
        ends = (low, high) if signed else self.inner
        if is_signed(*ends, always=signed):
            return -self.limit, self.limit, SIGNED
        return (low, high, VALUES) if low < high else (low - 0.5, high + 0.5, VALUES)

    def excess(self, low: float, high: float) -> str:
        """Which ends of the scale this layer leaves by more than a hundredth of it."""
        slack = 0.01 * (high - low)
        below, above = self.shown.min() < low - slack, self.shown.max() > high + slack
        return {(0, 0): "neither", (1, 0): "min", (0, 1): "max", (1, 1): "both"}[below, above]


def is_signed(low: float, high: float, *, always: bool = False) -> bool:
    """Whether values between these ends get colours that part at zero, in every figure.

    Args:
        low: The lowest value, but for a few.
        high: The highest value, but for a few.
        always: Zero is a middle wherever both signs occur.
    """
    share = 0.0 if always else _ONE_SIDED
    return low < 0 < high and min(-low, high) >= share * max(-low, high)


def _check(truth: Tensor, prediction: Tensor, spec: FieldSpec) -> None:
    expected = (len(spec.channels), *spec.grid.shape)
    for name, field in (("truth", truth), ("prediction", prediction)):
        if tuple(field.shape) != expected:
            raise ValueError(
                f"{name} must have the spec's shape {expected}, found {tuple(field.shape)}"
            )
    if not {"u", "v"} <= set(spec.channels):
        raise ValueError(f"a picture of a flow needs channels 'u' and 'v', found {spec.channels}")


def _quantities(field: Tensor, spec: FieldSpec, shown: Tensor) -> dict[str, Layer]:
    """The quantities of the rows by their labels."""
    field = field.detach().to("cpu", torch.float64)
    u, v = (field[spec.channels.index(name)] for name in ("u", "v"))
    unit = spec.units[spec.channels.index("u")]
    unit = "" if unit == "1" else f" [{unit}]"
    vorticity, defined = derivatives.where_defined(
        lambda u, v: derivatives.vorticity(u, v, spec.grid), u, v, known=shown
    )
    # A stencil can be free of unknown points around a point that is itself unknown.
    rows = {
        f"u{unit}": (u, shown),
        f"v{unit}": (v, shown),
        f"|u|{unit}": (torch.hypot(u, v), shown),
        _VORTICITY: (vorticity, defined & shown),
    }
    return {
        label: Layer(np.ma.masked_array(values.numpy(), mask=~visible.numpy()))
        for label, (values, visible) in rows.items()
    }


def panels(
    rows: int, grid: Grid, *, size: float = PANEL, below: float = 0.0
) -> tuple[Figure, np.ndarray]:
    """Three axes a row, whose size fits the shape of the flow's view.

    Args:
        rows: How many.
        grid: Of the flow.
        size: Longer side of a panel in inches.
        below: Room for a legend.
    """
    ny, nx = grid.shape
    aspect = (ny * grid.dy) / (nx * grid.dx)
    width, height = size * min(1.0, 1 / aspect), size * min(1.0, aspect)
    figure = Figure(
        figsize=(3 * max(width, 1.2) + 2.4, rows * (max(height, 0.9) + 0.3) + 0.7 + below),
        dpi=DPI,
        layout="constrained",
        facecolor="white",
    )
    FigureCanvasAgg(figure)
    axes = figure.subplots(rows, 3, sharex=True, sharey=True, squeeze=False)
    for ax in axes.flat:
        ax.tick_params(labelsize=8, length=2)
        ax.locator_params(nbins=5)  # labels of a narrow panel would touch
    return figure, axes


def show(
    ax: Axes,
    layer: Layer,
    grid: Grid,
    low: float,
    high: float,
    colours: str,
    *,
    unknown: str = GREY,
) -> AxesImage:
    ny, nx = grid.shape
    left, bottom = grid.origin[0] - grid.dx / 2, grid.origin[1] - grid.dy / 2
    return ax.imshow(
        layer.values,
        cmap=matplotlib.colormaps[colours].with_extremes(bad=unknown),
        vmin=low,
        vmax=high,
        origin="lower",
        extent=(left, left + nx * grid.dx, bottom, bottom + ny * grid.dy),
        aspect="equal",
        interpolation="nearest",
    )


def add_bar(ax: Axes, image: AxesImage, extend: str = "neither") -> None:
    """A colour bar as high as its panel."""
    bar = ax.figure.colorbar(image, cax=ax.inset_axes((1.03, 0.0, 0.045, 1.0)), extend=extend)
    bar.ax.tick_params(labelsize=8, length=2)
    bar.outline.set_linewidth(0.5)


def write_figure(figure: Figure, path: Path) -> Path:
    """Write under a temporary name, then rename: a reader never sees half a picture."""
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.stem}-", suffix=".png")
    os.close(handle)
    try:
        figure.savefig(temporary, format="png")
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise
    return path
