"""What the figures of a report share: axes, lines, bars, legends, labels that do not overlap."""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from matplotlib.ticker import FixedLocator, LogLocator, NullFormatter

from pibert.report.comparison.results import COLOURS, UNTRAINED, DatasetResults
from pibert.report.figures import DPI, LARGE, NORMAL, SMALL, blank, with_unit

_LINE_HEIGHT = 1.3
"""Height of a line of text, in font sizes."""
_DISTANCES = (6, 9, 15, 22, 30, 40, 52, 66)
"""Points between a label and its point; a line leads to labels farther away than the second."""
_ROUNDS = 12
"""How often every label may move."""


class Drawn(NamedTuple):
    """A figure with its text."""

    figure: Figure
    caption: str
    """Units, sample and how it was chosen: one to three plain sentences."""
    alt: str
    """One sentence for readers who cannot see the figure."""


class Animated(NamedTuple):
    """A moving picture with its text."""

    data: bytes
    """An animated PNG, which keeps all colours."""
    caption: str
    alt: str


class Label(NamedTuple):
    """A name and where it belongs."""

    x: float
    y: float
    text: str
    colour: str


def sheet(
    width: int | float, height: int | float, rows: int = 1, columns: int = 1, **options: Any
) -> tuple[Figure, np.ndarray]:
    """A figure and its axes (rows, columns); options as for ``Figure.subplots``."""
    figure = blank(width, height)
    engine = figure.get_layout_engine()
    assert engine is not None
    engine.set(wspace=0.05, hspace=0.05)  # type: ignore[call-arg]
    return figure, figure.subplots(rows, columns, squeeze=False, **options)


def tidy(ax: Axes) -> None:
    """Thin lines, small ticks, no spines on the sides without ticks."""
    ax.tick_params(labelsize=SMALL, length=2.5, width=0.6)
    ax.tick_params(which="minor", length=1.5, width=0.5)
    for side, spine in ax.spines.items():
        spine.set_linewidth(0.6)
        spine.set_visible(side in ("left", "bottom"))


def frame(ax: Axes, title: str = "", *, x: str = "", y: str = "", grid: bool = True) -> None:
    """Set title and axis labels, and draw a light grid."""
    tidy(ax)
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
    decades = math.log10(high / low)
    axis.set_minor_formatter(NullFormatter())
    if decades < 0.6:  # too narrow for 1, 2, 5
        step = 10.0 ** math.floor(math.log10(high - low))
        step *= next(f for f in (0.2, 0.5, 1.0, 2.0, 5.0) if (high - low) / (f * step) <= 5)
        ticks = [step * n for n in range(math.ceil(low / step), math.floor(high / step) + 1)]
        axis.set_major_locator(FixedLocator(ticks))
        axis.set_minor_locator(FixedLocator([]))
    else:
        steps = (1.0, 2.0, 5.0) if decades < 2.2 else (1.0,)
        axis.set_major_locator(LogLocator(subs=steps, numticks=8))
    axis.set_major_formatter(lambda value, _: plain(value))


def plain(value: float) -> str:
    """A tick label: short, with a power of ten only where necessary."""
    if value == 0 or 1e-3 <= abs(value) < 1e7:
        return f"{value:.4g}" if abs(value) < 1e4 else f"{value:,.0f}"
    mantissa, exponent = f"{value:.1e}".split("e")
    mantissa = mantissa.removesuffix(".0")
    front = "" if mantissa == "1" else f"{mantissa}·"
    return f"${front}10^{{{int(exponent)}}}$"


def axis_label(data: DatasetResults, axis: str) -> str:
    """``x [D]``."""
    return with_unit(axis, data.info["length_unit"])


def label_axes(ax: Axes, data: DatasetResults, **options: Any) -> None:
    """Label both axes of a map."""
    ax.set_xlabel(axis_label(data, "x"), fontsize=NORMAL, **options)
    ax.set_ylabel(axis_label(data, "y"), fontsize=NORMAL, **options)


def interval_text(data: DatasetResults) -> str:
    """What the error bars of a figure are; empty without intervals."""
    method = str(data.facts.get("intervals", "none"))
    if method.startswith("none"):
        return ""
    over = ", from the lowest to the highest end over all seeds" if len(data.seeds) > 1 else ""
    return f" Error bars: 95 % bootstrap intervals ({method}){over}."


def line_style(data: DatasetResults, model: str) -> dict[str, Any]:
    """Line of the truth or a model: dotted without training, dashed for a variant."""
    if model == "truth":
        return {"color": COLOURS["truth"], "lw": 2.6, "zorder": 2}
    own = model == "pibert"
    return {
        "color": data.colour(model),
        "ls": ":" if model in UNTRAINED else "--" if "-" in model else "-",
        "lw": 2.0 if own else 1.2,
        "zorder": 4 if own else 3,
    }


def point_style(data: DatasetResults, model: str) -> dict[str, Any]:
    """Point of a model: hollow without training."""
    colour = data.colour(model)
    fill = "white" if model in UNTRAINED else colour
    return {"ls": "", "marker": data.mark(model), "ms": 5, "mec": colour, "mfc": fill, "zorder": 3}


def legend(figure: Figure, handles: Sequence[Any], columns: int | None = None) -> None:
    """A legend above all panels."""
    style: dict[str, Any] = {"fontsize": NORMAL, "frameon": False, "columnspacing": 1.4}
    ncols = columns or len(handles)
    figure.legend(handles=handles, loc="outside upper center", ncols=ncols, **style)


def time_unit(data: DatasetResults) -> str | None:
    """The unit of the time step, from the units of velocity and length."""
    spec = data.spec
    if spec.dt is None:
        return "frames"
    if spec.velocity is None:
        return None
    unit = spec.units[spec.velocity[0]]
    if unit == "1":
        length = data.facts.get("length_unit")
        return f"{length}/U" if length else None
    return unit.partition("/")[2] or None


def write_beside(ax: Axes, text: str, x: float, row: int, offset: int = 3) -> None:
    """A small text right of the end of a bar."""
    ax.annotate(
        text, (x, row), xytext=(offset, 0), textcoords="offset points", va="center", fontsize=SMALL
    )


def spread(wanted: Sequence[float], gap: float, low: int | float, high: int | float) -> list[float]:
    """Heights nearest to those wanted, in rising order and at least a gap apart.

    They minimise sum (p_i - d_i)^2 subject to p_(i+1) - p_i >= gap, which is the isotonic
    regression of d_i - i gap; they stay between low and high if they fit there.
    """
    blocks: list[tuple[float, int]] = []  # mean and size of what moves together
    for number, height in enumerate(wanted):
        blocks.append((height - number * gap, 1))
        while len(blocks) > 1 and blocks[-2][0] > blocks[-1][0]:
            (a, n), (b, m) = blocks[-2:]
            blocks[-2:] = [((a * n + b * m) / (n + m), n + m)]
    level = [mean for mean, size in blocks for _ in range(size)]
    top = max(low, high - (len(wanted) - 1) * gap)
    return [min(max(q, low), top) + number * gap for number, q in enumerate(level)]


def label_ends(ax: Axes, labels: Sequence[Label]) -> None:
    """Write names right of a panel, each joined to the end of its curve.

    The limits and scales of the panel must be final.
    """
    if not labels:
        return
    figure = ax.get_figure()
    assert isinstance(figure, Figure)
    figure.draw_without_rendering()
    to_axes = ax.transData + ax.transAxes.inverted()
    found = [(*to_axes.transform((label.x, label.y)), label) for label in labels]
    ends = sorted(((x, min(max(y, 0.0), 1.0), own) for x, y, own in found), key=lambda e: e[1])
    gap = _LINE_HEIGHT * SMALL / 72 * DPI / ax.get_window_extent().height
    heights = spread([y for _, y, _ in ends], gap, -0.02, 1.02)
    for (x, y, label), height in zip(ends, heights, strict=True):
        line = {"arrowstyle": "-", "lw": 0.5, "color": label.colour, "alpha": 0.6}
        ax.annotate(
            label.text,
            xy=(float(x), float(y)),
            xytext=(1.05, float(height)),
            xycoords="axes fraction",
            textcoords="axes fraction",
            fontsize=SMALL,
            color=label.colour,
            va="center",
            annotation_clip=False,
            arrowprops=line | {"shrinkA": 1.0, "shrinkB": 1.0, "relpos": (0.0, 0.5)},
        )


def settle(figure: Figure) -> None:
    """Fix the places of all panels."""
    figure.draw_without_rendering()
    figure.set_layout_engine("none")


def label_points(ax: Axes, labels: Sequence[Label]) -> None:
    """Write names next to points so that they cover neither each other nor another point.

    Each label in turn takes the cheapest of its candidate places, given where the others are, until
    none moves. The limits and scales of the panel must be final, and its figure settled.
    """
    points = ax.transData.transform([(label.x, label.y) for label in labels])
    room = np.array([ax.get_window_extent().extents])
    choices = [
        _candidates(ax, label.text, point) for label, point in zip(labels, points, strict=True)
    ]
    dots = _around(points, 4.5 * DPI / 72)
    chosen = [0] * len(labels)
    for _ in range(_ROUNDS):
        before = list(chosen)
        for n, boxes in enumerate(choices):
            area = (boxes[0, 2:] - boxes[0, :2]).prod()
            taken = [dots]
            for m, place in enumerate(chosen):
                if m != n:
                    taken += [choices[m][place][None], _leader(points[m], choices[m], place)]
            cost = 4 * _common(boxes, np.concatenate(taken)).sum(1)
            cost += 6 * (area - _common(boxes, room)[:, 0])
            cost += 2 * np.repeat(_DISTANCES, len(boxes) // len(_DISTANCES)) * DPI / 72
            chosen[n] = int(cost.argmin())
        if chosen == before:
            break
    for label, boxes, place in zip(labels, choices, chosen, strict=True):
        left, bottom, _, top = boxes[place]
        line = {"arrowstyle": "-", "lw": 0.5, "color": label.colour, "shrinkA": 0, "shrinkB": 3}
        x, y = ax.transData.inverted().transform((left, (bottom + top) / 2))
        ax.annotate(
            label.text,
            xy=(label.x, label.y),
            xytext=(float(x), float(y)),
            fontsize=SMALL,
            color=label.colour,
            va="center",
            arrowprops=line if _is_led(boxes, place) else None,
            path_effects=[withStroke(linewidth=2.0, foreground="white", alpha=0.85)],
            zorder=5,
        ).set_in_layout(False)


def _candidates(ax: Axes, words: str, point: np.ndarray) -> np.ndarray:
    """Boxes (left, bottom, right, top) around a point in pixels, the nearest first."""
    text = ax.text(0, 0, words, fontsize=SMALL)
    own = text.get_window_extent()
    text.remove()
    extent = np.array((own.width + 4, own.height + 2))
    turns = np.pi / 8 * np.array((2, 14, 6, 10, 0, 8, 4, 12, *range(1, 16, 2)))
    ways = np.stack((np.cos(turns), np.sin(turns)), axis=1)
    aside = np.clip(1.6 * ways, -1, 1)  # the corner or side next to the point
    away = np.array(_DISTANCES)[:, None, None] * DPI / 72
    corner = (point + away * ways - extent * (1 - aside) / 2).reshape(-1, 2)
    return np.concatenate((corner, corner + extent), axis=1)


def _is_led(boxes: np.ndarray, place: int) -> bool:
    return place >= 2 * len(boxes) // len(_DISTANCES)


def _leader(point: np.ndarray, boxes: np.ndarray, place: int) -> np.ndarray:
    """Small boxes along the line from a label to its point; none for a near label."""
    if not _is_led(boxes, place):
        return np.zeros((0, 4))
    left, bottom, _, top = boxes[place]
    share = np.linspace(0.05, 0.85, 24)[:, None]
    return _around((1 - share) * np.array((left, (bottom + top) / 2)) + share * point, 3.0)


def _around(points: np.ndarray, half: float) -> np.ndarray:
    return np.concatenate((points - half, points + half), axis=1)


def _common(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Areas that boxes (n, 4) and (m, 4) share, (n, m)."""
    low = np.maximum(a[:, None, :2], b[None, :, :2])
    high = np.minimum(a[:, None, 2:], b[None, :, 2:])
    return (high - low).clip(min=0).prod(-1)
