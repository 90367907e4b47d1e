"""What the figures of a comparison report share: axes, line and point styles, legends."""

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, Locator, NullFormatter

from pibert.report.comparison.results import COLOURS, UNTRAINED, DatasetResults
from pibert.report.figures import LARGE, NORMAL, SMALL, blank, with_unit

_NARROW = 0.6
"""Decades below which a logarithmic axis has even steps between its ticks."""


class Plot(NamedTuple):
    """A figure with its text."""

    figure: Figure
    caption: str
    """Units, sample and how it was chosen: one to three plain sentences."""


class Animation(NamedTuple):
    """An animated PNG, which keeps all colours, with its text."""

    data: bytes
    caption: str


def sheet(
    width: int | float, height: int | float, rows: int = 1, columns: int = 1, **options: Any
) -> tuple[Figure, np.ndarray]:
    """A figure and its axes (rows, columns); options as for ``Figure.subplots``."""
    figure = blank(width, height)
    engine = figure.get_layout_engine()
    assert engine is not None
    engine.set(wspace=0.05, hspace=0.05)  # type: ignore[call-arg]
    return figure, figure.subplots(rows, columns, squeeze=False, **options)


def frame(ax: Axes, title: str = "", *, x: str = "", y: str = "", grid: bool = True) -> None:
    """Set title and axis labels; thin lines, small ticks, no spines on the sides without ticks."""
    ax.tick_params(labelsize=SMALL, length=2.5, width=0.6)
    ax.tick_params(which="minor", length=1.5, width=0.5)
    for side, spine in ax.spines.items():
        spine.set_linewidth(0.6)
        spine.set_visible(side in ("left", "bottom"))
    ax.set_title(title, fontsize=LARGE, loc="left")
    ax.set_xlabel(x, fontsize=NORMAL)
    ax.set_ylabel(y, fontsize=NORMAL)
    if grid:
        ax.grid(True, color="0.92", lw=0.6)
        ax.set_axisbelow(True)


def bare(ax: Axes) -> None:
    """A thin frame without ticks."""
    ax.set(xticks=[], yticks=[])
    for spine in ax.spines.values():
        spine.set_linewidth(0.5)


def rows_of_models(ax: Axes, labels: Sequence[str]) -> None:
    """One row per label along y, the first on top."""
    ax.set_yticks(range(len(labels)), labels, fontsize=NORMAL)
    ax.set_ylim(len(labels) - 0.4, -0.6)
    ax.tick_params(axis="y", length=0)
    ax.grid(False, axis="y")


def logarithmic(ax: Axes, which: str, values: Sequence[float]) -> None:
    """Make an axis ("x" or "y") logarithmic, with limits around positive values and plain ticks."""
    low, high = min(values), max(values)
    slack = (high / low) ** 0.06 if high > low else 1.5
    low, high = low / slack, high * slack
    axis = getattr(ax, f"{which}axis")
    getattr(ax, f"set_{which}scale")("log")
    getattr(ax, f"set_{which}lim")(low, high)
    axis.set_minor_formatter(NullFormatter())
    axis.set_major_locator(_PlainTicks(ax, which))
    if math.log10(high / low) < _NARROW:
        axis.set_minor_locator(FixedLocator([]))
    axis.set_major_formatter(lambda value, _: _tick_label(value))


class _PlainTicks(Locator):
    """Ticks of a logarithmic axis ("x" or "y"): the densest set whose labels do not touch."""

    def __init__(self, ax: Axes, which: str) -> None:
        self.ax, self.which = ax, which

    def __call__(self) -> list[float]:
        return self.tick_values(*getattr(self.ax, f"get_{self.which}lim")())

    def tick_values(self, vmin: float, vmax: float) -> list[float]:
        sets = [ticks for ticks in _tick_sets(vmin, vmax) if len(ticks) > 1]
        sets += [[ticks[0], ticks[-1]] for ticks in sets[:1]]
        box = self.ax.get_window_extent()
        size = box.width if self.which == "x" else box.height
        decade = size * 72 / self.ax.figure.dpi / math.log10(vmax / vmin)
        return next((t for t in sets if self._have_room(t, decade)), sets[-1] if sets else [])

    def _have_room(self, ticks: list[float], decade: float) -> bool:
        """Whether labels fit, at so many points per decade."""
        letters = max(len(_tick_label(tick).strip("$").replace("^{", "")) for tick in ticks)
        needed = SMALL * (0.62 * letters + 0.5 if self.which == "x" else 1.5)
        return len(ticks) <= 8 and bool((np.diff(np.log10(ticks)) * decade).min() > needed)


def _tick_sets(low: float, high: float) -> Iterator[list[float]]:
    """Ticks between positive ends, the densest first."""
    if math.log10(high / low) < _NARROW:
        scale = 10.0 ** math.floor(math.log10(high - low))
        for step in (scale * factor for factor in (0.1, 0.2, 0.5, 1.0, 2.0, 5.0)):
            first, last = math.ceil(low / step), math.floor(high / step)
            if last - first < 6:
                yield [step * n for n in range(first, last + 1)]
        return
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    for stride, factors in ((1, (1, 2, 5)), (1, (1, 3)), *((n, (1,)) for n in range(1, 12))):
        powers = [n for n in range(first, last + 1) if n % stride == 0]
        ticks = [factor * 10.0**n for n in powers for factor in factors]
        yield [tick for tick in ticks if low <= tick <= high]


def _tick_label(value: float) -> str:
    """A short number, with a power of ten only where necessary."""
    if value == 0 or 1e-3 <= abs(value) < 1e6:
        return f"{value:.4g}" if abs(value) < 1e4 else f"{value:,.0f}"
    mantissa, exponent = f"{value:.1e}".split("e")
    mantissa = mantissa.removesuffix(".0")
    front = "" if mantissa == "1" else f"{mantissa}·"
    return f"${front}10^{{{int(exponent)}}}$"


def axis_label(data: DatasetResults, axis: str) -> str:
    """``x [D]``."""
    return with_unit(axis, data.info["length_unit"])


def label_axes(ax: Axes, data: DatasetResults) -> None:
    """Label both axes of a map."""
    ax.set_xlabel(axis_label(data, "x"), fontsize=NORMAL)
    ax.set_ylabel(axis_label(data, "y"), fontsize=NORMAL)


def interval_text(data: DatasetResults) -> str:
    """A sentence on the error bars of a figure; empty without intervals."""
    method = str(data.facts.get("intervals", "none"))
    if method.startswith("none"):
        return ""
    over = ", from the lowest to the highest end over all seeds" if len(data.seeds) > 1 else ""
    return f" Error bars: 95 % bootstrap intervals over {method}{over}."


def first_seed(data: DatasetResults) -> str:
    """A sentence for figures that show one run of each model; empty if there is no other."""
    return " Of several seeds the first." if len(data.seeds) > 1 else ""


def line_style(data: DatasetResults, model: str) -> dict[str, Any]:
    """Line of the truth or a model: dotted without training, dashed for a variant."""
    if model == "truth":
        return {"color": COLOURS["truth"], "lw": 2.6, "zorder": 2, "label": model}
    is_pibert = model == "pibert"
    return {
        "color": data.colour(model),
        "ls": ":" if model in UNTRAINED else "--" if "-" in model else "-",
        "lw": 2.0 if is_pibert else 1.2,
        "zorder": 4 if is_pibert else 3,
        "label": model,
    }


def point_style(data: DatasetResults, model: str) -> dict[str, Any]:
    """Point of a model: hollow without training."""
    colour = data.colour(model)
    fill = "white" if model in UNTRAINED else colour
    point = {"marker": data.mark(model), "ms": 5.5, "mec": colour, "mfc": fill}
    return {"ls": "", **point, "zorder": 3, "label": model}


def legend(figure: Figure, handles: Sequence[Any], columns: int | None = None) -> None:
    """A legend above all panels."""
    style: dict[str, Any] = {"fontsize": NORMAL, "frameon": False, "columnspacing": 1.4}
    ncols = columns or len(handles)
    figure.legend(handles=handles, loc="outside upper center", ncols=ncols, **style)


def side_legend(ax: Axes) -> None:
    """A legend right of a panel, in the order in which its lines end, the highest first."""

    def end(line: Line2D) -> float:
        values = np.asarray(line.get_ydata(), dtype=float)
        finite = values[np.isfinite(values)]
        return float(finite[-1]) if finite.size else -math.inf

    lines = [line for line in ax.get_lines() if not str(line.get_label()).startswith("_")]
    lines.sort(key=end, reverse=True)
    style: dict[str, Any] = {"loc": "center left", "bbox_to_anchor": (1.01, 0.5), "frameon": False}
    ax.legend(handles=lines, **style, fontsize=SMALL, labelspacing=0.25, handlelength=1.6)


def time_unit(data: DatasetResults) -> str | None:
    """The unit of the time step: the stated one, or else from those of velocity and length."""
    spec = data.spec
    if spec.dt is None:
        return "frames"
    if stated := data.info.get("time_unit"):
        return str(stated)
    if spec.velocity is None:
        return None
    unit = spec.units[spec.velocity[0]]
    if unit == "1":
        length = data.facts.get("length_unit")
        return f"{length}/U" if length else None
    return unit.partition("/")[2] or None
