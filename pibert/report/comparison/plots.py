"""What the diagrams of a comparison share: sheets, axes, lines, labels that do not collide.

Labels stand next to what they name. Those at the ends of lines are moved apart along the right side
of a panel: with wanted heights d_i in rising order and a least distance g, the heights p_i are
those of least sum (p_i - d_i)^2 with p_(i+1) - p_i >= g. With q_i = p_i - i g this is the isotonic
regression of d_i - i g. Labels of points take the first free place around their point.
"""

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patheffects import withStroke
from matplotlib.ticker import FixedLocator, LogLocator, NullFormatter
from torch import Tensor

from pibert.report.comparison.board import UNTRAINED, Board
from pibert.report.comparison.drawn import LARGE, NORMAL, SMALL, blank, tidy
from pibert.report.figures import DPI, Layer

LINE_HEIGHT = 1.3
"""Of a line of type, in sizes of it."""
SPREAD = ((6, 0), (9, 0), (15, 1), (22, 1), (30, 1), (40, 1), (52, 1), (66, 1))
"""Distances in points at which a label may stand, and whether a line leads to its point."""
_ROUNDS = 12
"""Times that every label may move."""


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


def frame(ax: Axes, title: str = "", *, x: str = "", y: str = "", grid: bool = True) -> None:
    """Title, names of the axes and a light frame."""
    tidy(ax)
    ax.tick_params(which="minor", length=1.5, width=0.5)
    ax.set_title(title, fontsize=LARGE, loc="left")
    ax.set_xlabel(x, fontsize=NORMAL)
    ax.set_ylabel(y, fontsize=NORMAL)
    if grid:
        ax.grid(True, color="0.92", lw=0.6)
        ax.set_axisbelow(True)


def logarithmic(ax: Axes, which: str, values: Sequence[float]) -> None:
    """A logarithmic axis with a few plain numbers.

    Args:
        ax: The panel; the limits of the axis are set.
        which: "x" or "y".
        values: Positive ones that it must show.
    """
    low, high = min(values), max(values)
    slack = (high / low) ** 0.06 if high > low else 1.5
    low, high = low / slack, high * slack
    axis = getattr(ax, f"{which}axis")
    getattr(ax, f"set_{which}scale")("log")
    getattr(ax, f"set_{which}lim")(low, high)
    decades = math.log10(high / low)
    steps = (1.0, 2.0, 5.0) if decades < 2.2 else (1.0,)
    axis.set_major_locator(LogLocator(subs=steps, numticks=8))
    axis.set_minor_formatter(NullFormatter())
    if decades < 0.6:  # too narrow for 1, 2, 5
        axis.set_major_locator(FixedLocator(_few_between(low, high)))
        axis.set_minor_locator(FixedLocator([]))
    axis.set_major_formatter(lambda value, _: plain(value))


def _few_between(low: float, high: float) -> list[float]:
    step = 10.0 ** math.floor(math.log10(high - low))
    step *= next(f for f in (0.2, 0.5, 1.0, 2.0, 5.0) if (high - low) / (f * step) <= 5)
    return [step * n for n in range(math.ceil(low / step), math.floor(high / step) + 1)]


def plain(value: float) -> str:
    """A number of a scale: short, with a power of ten only where it must be."""
    if value == 0 or 1e-3 <= abs(value) < 1e7:
        return f"{value:.4g}" if abs(value) < 1e4 else f"{value:,.0f}"
    mantissa, exponent = f"{value:.1e}".split("e")
    mantissa = mantissa.removesuffix(".0")
    front = "" if mantissa == "1" else f"{mantissa}\u00b7"
    return f"${front}10^{{{int(exponent)}}}$"


def line_style(board: Board, model: str) -> dict[str, Any]:
    """How the line of a model looks: dotted without training, dashed for a variant."""
    dashes = ":" if model in UNTRAINED else "--" if "-" in model else "-"
    own = model == "pibert"
    return {
        "color": board.colour(model),
        "ls": dashes,
        "lw": 2.0 if own else 1.2,
        "zorder": 4 if own else 3,
    }


def time_unit(board: Board) -> str | None:
    """That of the spec's time step: units of a spec fit each other, or equations would not hold."""
    if board.spec.dt is None:
        return "frames"
    unit = board.spec.units[0 if board.spec.velocity is None else board.spec.velocity[0]]
    if board.spec.velocity is None or unit == "1":
        length = board.facts.get("length_unit")
        return f"{length}/U" if board.spec.velocity is not None and length else None
    return unit.partition("/")[2] or None


def masked(values: Float[Tensor, "y x"], known: Tensor) -> Layer:
    """A field with what is not known left out."""
    return Layer(np.ma.masked_array(values.double().numpy(), mask=~known.numpy()))


def spread(wanted: Sequence[float], gap: float, low: int | float, high: int | float) -> list[float]:
    """Heights nearest to those wanted, in rising order, at least a gap apart.

    Between low and high, as long as they all fit there.
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


def label_ends(ax: Axes, labels: Sequence[Label], *, size: float = SMALL) -> None:
    """Names right of a panel, each led to by a line from the end of its curve.

    The limits and scales of the panel must be final.
    """
    if not labels:
        return
    figure = ax.get_figure()
    assert isinstance(figure, Figure)
    figure.draw_without_rendering()
    to_axes = ax.transData + ax.transAxes.inverted()
    ends = [to_axes.transform((label.x, label.y)) for label in labels]
    order = sorted(range(len(labels)), key=lambda n: float(ends[n][1]))
    wanted = [min(max(float(ends[n][1]), 0.0), 1.0) for n in order]
    gap = LINE_HEIGHT * size / 72 * DPI / ax.get_window_extent().height
    for n, height in zip(order, spread(wanted, gap, -0.02, 1.02), strict=True):
        label, end = labels[n], (float(ends[n][0]), min(max(float(ends[n][1]), 0.0), 1.0))
        ax.annotate(
            label.text,
            xy=end,
            xytext=(1.05, height),
            xycoords="axes fraction",
            textcoords="axes fraction",
            fontsize=size,
            color=label.colour,
            va="center",
            annotation_clip=False,
            arrowprops={
                "arrowstyle": "-",
                "lw": 0.5,
                "color": label.colour,
                "alpha": 0.6,
                "shrinkA": 1.0,
                "shrinkB": 1.0,
                "relpos": (0.0, 0.5),
            },
        )


def settle(figure: Figure) -> None:
    """Fix the places of all panels: what comes later does not move them."""
    figure.draw_without_rendering()
    figure.set_layout_engine("none")


def label_points(ax: Axes, labels: Sequence[Label], *, size: float = SMALL) -> None:
    """Names next to points, where they cover neither each other nor another point.

    The limits and scales of the panel must be final, and its figure settled.
    """
    points = ax.transData.transform([(label.x, label.y) for label in labels])
    extents = [_extent(ax, label.text, size) for label in labels]
    boxes, led = _places(points, extents, np.array(ax.get_window_extent().extents))
    for label, box, far in zip(labels, boxes, led, strict=True):
        left, middle = ax.transData.inverted().transform((box[0], (box[1] + box[3]) / 2))
        leader = {"arrowstyle": "-", "lw": 0.5, "color": label.colour, "shrinkB": 3.0}
        ax.annotate(
            label.text,
            xy=(label.x, label.y),
            xytext=(float(left), float(middle)),
            fontsize=size,
            color=label.colour,
            va="center",
            arrowprops=leader | {"shrinkA": 0.0} if far else None,
            path_effects=[withStroke(linewidth=2.0, foreground="white", alpha=0.85)],
            zorder=5,
        ).set_in_layout(False)


def _extent(ax: Axes, words: str, size: float) -> np.ndarray:
    """Width and height of a text in dots, with a margin."""
    text = ax.text(0, 0, words, fontsize=size)
    own = text.get_window_extent()
    text.remove()
    return np.array((own.width + 4, own.height + 2))


def _places(
    points: np.ndarray, extents: Sequence[np.ndarray], inside: np.ndarray
) -> tuple[np.ndarray, list[bool]]:
    """A box (left, bottom, right, top) for each label, and whether a line leads to its point.

    Every label tries all its places against where the others are, in turn, until none moves. What
    counts are covered points, labels and lines, what lies outside, and the way to the point.
    """
    dot = 4.5 * DPI / 72
    dots = np.concatenate((points - dot, points + dot), axis=1)
    choices = [_choices(p, e) for p, e in zip(points, extents, strict=True)]
    chosen = [0] * len(points)
    for _ in range(_ROUNDS):
        moved = False
        for n, (boxes, away, far) in enumerate(choices):
            others = [m for m in range(len(points)) if m != n]
            taken = np.array([choices[m][0][chosen[m]] for m in others]).reshape(-1, 4)
            lines = [m for m in others if choices[m][2][chosen[m]]]
            ends = np.array([_end(choices[m][0][chosen[m]]) for m in lines])
            starts = points[lines].reshape(-1, 2)
            cost = 4 * _common(boxes, taken).sum(1) + 4 * _common(boxes, dots).sum(1)
            cost += 6 * (extents[n].prod() - _common(boxes, inside[None])[:, 0])
            cost += extents[n].prod() * _crossed(boxes, starts, ends.reshape(-1, 2))
            own = np.array([_end(box) for box in boxes])
            over = np.concatenate((taken, np.delete(dots, n, axis=0)))
            hit = np.array([_crossed(over, points[n : n + 1], end[None]).sum() for end in own])
            cost += np.where(far, extents[n].prod() * hit, 0.0) + 2.0 * away
            best = int(cost.argmin())
            moved |= best != chosen[n]
            chosen[n] = best
        if not moved:
            break
    boxes = np.array([choices[n][0][chosen[n]] for n in range(len(points))])
    return boxes, [bool(choices[n][2][chosen[n]]) for n in range(len(points))]


def _choices(point: np.ndarray, extent: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Boxes around a point, their distance from it, and whether they need a line."""
    turns = np.pi / 8 * np.array((2, 14, 6, 10, 0, 8, 4, 12, *range(1, 16, 2)))
    ways = np.stack((np.cos(turns), np.sin(turns)), axis=1)
    aside = np.clip(1.6 * ways, -1, 1)  # the corner or side that is next to the point
    boxes, away, far = [], [], []
    for distance, line in SPREAD:
        corner = point + distance * DPI / 72 * ways - extent * (1 - aside) / 2
        boxes.append(np.concatenate((corner, corner + extent), axis=1))
        away.append(np.full(len(ways), distance * DPI / 72))
        far.append(np.full(len(ways), bool(line)))
    return np.concatenate(boxes), np.concatenate(away), np.concatenate(far)


def _end(box: np.ndarray) -> np.ndarray:
    """Where the line to its point leaves a label: at the middle of its left side, as drawn."""
    return np.array((box[0], (box[1] + box[3]) / 2))


def _crossed(boxes: np.ndarray, starts: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """How many lines run through each box (n, 4)."""
    if not len(starts) or not len(boxes):
        return np.zeros(len(boxes))
    share = np.linspace(0.15, 0.95, 24)[:, None, None]
    along = (starts + share * (ends - starts)).reshape(-1, len(starts), 2)  # (24, line, 2)
    x, y = along[..., 0], along[..., 1]
    left, bottom, right, top = (boxes[:, k, None, None] for k in range(4))
    inside = (x > left) & (x < right) & (y > bottom) & (y < top)
    return inside.any(1).sum(1).astype(float)


def _common(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """Areas that boxes (n, 4) and (m, 4) share, (n, m)."""
    low = np.maximum(a[:, None, :2], b[None, :, :2])
    high = np.minimum(a[:, None, 2:], b[None, :, 2:])
    return (high - low).clip(min=0).prod(-1)
