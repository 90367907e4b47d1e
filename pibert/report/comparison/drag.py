"""The drag proxy of the wake: its course over the frames, and how far models are off.

The proxy is the momentum thickness of the wake over the diameter (``evaluation/regions.py``): a
number without a unit, from the truth and from each predicted frame.
"""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from jaxtyping import Float, Int
from matplotlib.axes import Axes
from matplotlib.ticker import MaxNLocator

from pibert.report.comparison.board import Board
from pibert.report.comparison.cuts import drawn_models, line_legend, styles
from pibert.report.comparison.drawn import LARGE, NORMAL, SMALL, Drawn, blank, tidy
from pibert.report.comparison.plots import logarithmic

TRAJECTORIES = 3
"""Of which the course is shown: the first, the middle and the last one of the test part."""
FRAMES = 150
"""Of a trajectory that are shown, from its beginning."""
_LABEL = "proxy \N{GREEK SMALL LETTER THETA}/D"


class Course(NamedTuple):
    """Frames of one trajectory."""

    name: str
    rows: Int[np.ndarray, " t"]
    """Among all frames with a proxy."""
    frames: Int[np.ndarray, " t"]


def drag(board: Board) -> Drawn | None:
    """Truth and models over the frames, and boxes of the absolute error of every model."""
    truth = board.reference.arrays.get("drag/truth")
    if truth is None or not bool(truth.isfinite().any()):
        return None
    answers = {
        model: found.double().numpy()
        for model in board.models
        if (found := board.first(model).arrays.get("drag/prediction")) is not None
    }
    true = truth.double().numpy()
    models = [model for model in drawn_models(board) if model in answers]
    shown = courses(board, len(true))
    # Models side by side with the courses, however many there are of either.
    figure = blank(10, max(1.6 * len(shown), 0.19 * len(answers) + 0.6) + 0.6)
    columns = figure.add_gridspec(1, 2, width_ratios=(1.7, 1))
    axes = columns[0].subgridspec(len(shown), 1).subplots(sharey=True, squeeze=False)[:, 0]
    for ax, course in zip(axes, shown, strict=True):
        _draw_course(ax, board, course, {"truth": true} | {m: answers[m] for m in models})
    axes[-1].set_xlabel("frame", fontsize=NORMAL)
    _draw_boxes(figure.add_subplot(columns[1]), board, true, answers)
    line_legend(figure, board, models)
    caption = (
        f"Data set {board.name}: momentum thickness of the wake over the diameter, 4 diameters "
        "downstream of the body or at the end of the view, a proxy of the drag without a unit. "
        f"Left, its course in {_count(len(shown))}, from the beginning; right, absolute errors of "
        f"all {len(true)} test frames, models by rank: median, quartiles, 5th and 95th percentile."
    )
    alt = f"Drag proxy over frames: truth, {', '.join(models)}; box plots of absolute errors."
    return Drawn(figure, caption, alt)


def _count(number: int) -> str:
    """Which trajectories are shown, in words."""
    return "a test trajectory" if number == 1 else f"{number} test trajectories, first to last"


def courses(board: Board, count: int) -> list[Course]:
    """Some trajectories of the test part, evenly from the first to the last."""
    arrays = board.reference.arrays
    homes, frames = arrays["rows/trajectory"].numpy(), arrays["rows/frame"].numpy()
    if len(homes) != count:  # some trajectories have no body: what is from where is not kept
        rows = np.arange(min(count, FRAMES))
        return [Course("test frames with a body", rows, rows)]
    names = board.reference.card["data"]["names"]
    known = list(dict.fromkeys(homes.tolist()))
    places = np.linspace(0, len(known) - 1, min(TRAJECTORIES, len(known))).round().astype(int)
    found = []
    for trajectory in (known[place] for place in places):
        rows = np.flatnonzero(homes == trajectory)[:FRAMES]
        found.append(Course(_title(board, trajectory, names[trajectory]), rows, frames[rows]))
    return found


def _title(board: Board, trajectory: int, name: str) -> str:
    parameters = board.reference.card["data"].get("parameters") or []
    values = parameters[trajectory] if parameters else {}
    return ", ".join([name, *(f"{key} = {value:.3g}" for key, value in values.items())])


def _draw_course(
    ax: Axes, board: Board, course: Course, lines: dict[str, Float[np.ndarray, " n"]]
) -> None:
    steps = np.diff(course.frames)
    # Of frames in pairs every second one is predicted: their usual step is no gap.
    breaks = np.flatnonzero(steps > (np.median(steps) if len(steps) else 0)) + 1
    for name, values in lines.items():
        # NaN between two stretches, so that no line is drawn across a gap.
        y = np.insert(values[course.rows], breaks, np.nan)
        x = np.insert(course.frames.astype(float), breaks, np.nan)
        ax.plot(x, y, **styles(board, name))
    ax.set_title(course.name, fontsize=NORMAL, loc="left", pad=3)
    ax.set_ylabel(_LABEL, fontsize=NORMAL)
    ax.margins(x=0.01)
    ax.xaxis.set_major_locator(MaxNLocator(integer=True))
    tidy(ax)


def _draw_boxes(
    ax: Axes,
    board: Board,
    true: Float[np.ndarray, " n"],
    answers: dict[str, Float[np.ndarray, " n"]],
) -> None:
    """Horizontal, the best model on top."""
    off = [np.abs(values - true) for values in answers.values()]
    off = [values[np.isfinite(values)] for values in off]
    # Drawn by hand: the names of matplotlib's options for lying boxes differ between versions.
    for place, (model, values) in enumerate(zip(answers, off, strict=True)):
        if values.size:
            low, left, middle, right, high = np.quantile(values, (0.05, 0.25, 0.5, 0.75, 0.95))
            ax.plot([low, high], [place, place], color="0.3", lw=0.8, zorder=2)
            ax.barh(place, right - left, 0.62, left=left, color=board.colour(model), zorder=3)
            ax.plot([middle] * 2, [place - 0.31, place + 0.31], color="white", lw=1.4, zorder=4)
    _set_scale(ax, off)
    ranks = [f"{board.models.index(model) + 1}. {model}" for model in answers]
    ax.set_yticks(range(len(ranks)), ranks)
    ax.set_ylim(len(ranks) - 0.4, -0.6)
    ax.set_title(f"absolute error of {_LABEL}", fontsize=LARGE, loc="left")
    tidy(ax)
    ax.tick_params(axis="y", length=0, labelsize=SMALL)
    ax.grid(axis="x", linewidth=0.4, color="0.85")
    ax.set_axisbelow(True)


def _set_scale(ax: Axes, off: Sequence[np.ndarray]) -> None:
    """Logarithmic, unless some model makes no error at all."""
    ends = [float(np.quantile(values, q)) for values in off if values.size for q in (0.05, 0.95)]
    if ends and min(ends) > 0:
        logarithmic(ax, "x", ends)


FIGURES = (drag,)
