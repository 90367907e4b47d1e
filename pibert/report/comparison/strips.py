"""Frames one after the other: a strip of panels, and an animation.

The frames follow each other from the frame of median error of persistence on. Each panel of a model
is a prediction of that frame from the true frames before it. Flows show their vorticity, other
fields their first channel; all panels share the scale of the truth, errors one of their own.
"""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float
from matplotlib.animation import PillowWriter
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from pibert.evaluation.components import gradient_unit, velocity_unit
from pibert.physics import derivatives
from pibert.report.comparison.board import Board
from pibert.report.comparison.drawn import NORMAL, SMALL, Drawn, blank, with_unit
from pibert.report.comparison.plots import masked, time_unit
from pibert.report.figures import ERRORS, SIGNED, VALUES, Layer, add_bar, is_signed, show

_COLUMNS, _ROWS = 6, 6
_SHARE = 0.995
"""Of the points that a scale holds; a few at a body would make the rest pale."""
_ANIMATION_DPI, _RATE = 100, 6


class Animated(NamedTuple):
    """A moving picture with the words that belong to it."""

    data: bytes
    """An animated PNG, which keeps all colours; browsers show it as any picture."""
    caption: str
    alt: str
    mime: str = "image/png"


class Strip(NamedTuple):
    """Consecutive frames of one quantity."""

    name: str
    truth: Float[Tensor, "t y x"]
    models: dict[str, Float[Tensor, "t y x"]]
    known: Bool[Tensor, "t y x"]
    rows: list[int]
    """Numbers of the frames in their trajectory."""
    where: str


def timestep_strip(board: Board) -> Drawn | None:
    """Truth and models over frames spread evenly over the strip, one row each."""
    strip = _strip(board, board.shown(_ROWS))
    if strip is None or len(strip.rows) < 2:  # frames in pairs do not follow each other
        return None
    count = len(strip.rows)
    step = max(1, (count - 1) // (_COLUMNS - 1))
    places = list(range(0, count, step))[:_COLUMNS]
    limit, colours = _scale(board, strip)
    rows = {"truth": strip.truth, **strip.models}
    figure = _sheet(board, len(rows), len(places))
    axes = figure.subplots(len(rows), len(places), squeeze=False)
    for line, (name, fields) in zip(axes, rows.items(), strict=True):
        line[0].set_ylabel(
            name,
            fontsize=NORMAL,
            rotation=0,
            ha="right",
            va="center",
            color=board.colour(name) if name in board.models else "black",
        )
        for ax, place in zip(line, places, strict=True):
            layer = masked(fields[place], strip.known[place])
            image = show(ax, layer, board.spec.grid, limit[0], limit[1], colours)
            _bare(ax)
            if name != "truth":
                error = (fields - strip.truth)[place][strip.known[place]]
                ax.set_xlabel(
                    f"rms error {float(error.square().mean().sqrt()):.2g}", fontsize=SMALL
                )
    for ax, place in zip(axes[0], places, strict=True):
        ax.set_title(_moment(board, strip.rows[place]), fontsize=NORMAL)
    add_bar(axes[0, -1], image, extend="both")
    caption = (
        f"Data set {board.name}: {strip.name} of {strip.where}, every "
        f"{'frame' if step == 1 else f'{step} frames'} from that of median error of persistence "
        "on; next-frame predictions on the scale of the truth, their rms errors below."
    )
    alt = f"Strip of {len(places)} frames of {strip.name}: truth and {len(strip.models)} models."
    return Drawn(figure, caption, alt)


def animation(board: Board) -> Animated | None:
    """Truth, prediction and error of PIBERT, or of the best model, frame by frame."""
    model = "pibert" if "pibert" in board.models else board.models[0]
    strip = _strip(board, (model,))
    if strip is None or model not in strip.models or len(strip.rows) < 2:
        return None
    limit, colours = _scale(board, strip)
    error = strip.models[model] - strip.truth
    widest = max(_quantile(error[strip.known]), 1e-12)
    panels = (
        ("truth", strip.truth, limit, colours),
        (model, strip.models[model], limit, colours),
        ("error", error, (-widest, widest), ERRORS),
    )
    figure = _animation_sheet(board)
    images = []
    for ax, (title, fields, (low, high), colour) in zip(figure.subplots(1, 3), panels, strict=True):
        image = show(ax, masked(fields[0], strip.known[0]), board.spec.grid, low, high, colour)
        add_bar(ax, image, extend="both")
        _bare(ax)
        ax.set_title(title, fontsize=NORMAL + 1)
        images.append(image)
    clock = figure.suptitle("", fontsize=NORMAL, x=0.01, ha="left")

    def turn(place: int) -> None:
        for image, (_, fields, _, _) in zip(images, panels, strict=True):
            image.set_data(masked(fields[place], strip.known[place]).values)
        clock.set_text(f"{strip.name}, {_moment(board, strip.rows[place])}")

    caption = (
        f"Data set {board.name}: {strip.name} of {strip.where}, {len(strip.rows)} frames from that "
        f"of median error of persistence on; truth, next-frame prediction of {model} on the same "
        "scale, and prediction minus truth."
    )
    alt = f"Moving picture of {strip.name}: truth, {model} and its error."
    return Animated(_filmed(figure, turn, len(strip.rows)), caption, alt)


def _filmed(figure: Figure, turn: Callable[[int], None], count: int) -> bytes:
    """The frames as an animated PNG; the layout is that of the first."""
    turn(0)
    figure.draw_without_rendering()
    figure.set_layout_engine("none")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "film.apng"
        writer = PillowWriter(fps=_RATE)
        with writer.saving(figure, str(path), _ANIMATION_DPI):
            for place in range(count):
                turn(place)
                writer.grab_frame()
        return path.read_bytes()


def _strip(board: Board, shown: tuple[str, ...]) -> Strip | None:
    reference = board.reference.arrays
    if "strip/truth" not in reference:
        return None
    found = {m: board.first(m).arrays.get("strip/prediction") for m in shown}
    truth = reference["strip/truth"].double()
    known = reference.get("strip/known")
    if known is None:
        body = board.spec.grid.body
        known = torch.ones(board.spec.grid.shape, dtype=torch.bool) if body is None else ~body
        known = known.expand(len(truth), -1, -1)
    name, drawn, shown_where = _quantity(board, truth, known)
    models = {
        m: _quantity(board, own.double(), known)[1] for m, own in found.items() if own is not None
    }
    places = reference["strip/rows"].tolist()
    facts = board.reference.card["data"]
    trajectory = int(reference["rows/trajectory"][places[0]])
    rows = [int(reference["rows/frame"][place]) for place in places]
    return Strip(name, drawn, models, shown_where, rows, str(facts["names"][trajectory]))


def _quantity(
    board: Board, fields: Float[Tensor, "t c y x"], known: Bool[Tensor, "t y x"]
) -> tuple[str, Float[Tensor, "t y x"], Bool[Tensor, "t y x"]]:
    """Its name with unit, values and where they are defined."""
    spec = board.spec
    if spec.velocity is None:
        return with_unit(spec.channels[0], spec.units[0]), fields[:, 0], known
    u, v = (fields[:, place] for place in spec.velocity)
    spin, defined = derivatives.where_defined(
        lambda u, v: derivatives.vorticity(u, v, spec.grid), u, v, known=known, linear=True
    )
    unit = gradient_unit(velocity_unit(spec), board.facts.get("length_unit"))
    return with_unit("vorticity", unit), spin, defined & known


def _scale(board: Board, strip: Strip) -> tuple[tuple[float, float], str]:
    """Of the truth of all frames."""
    values = strip.truth[strip.known]
    low, high = Layer(np.ma.masked_array(values.numpy())).inner
    if is_signed(low, high, always=board.spec.velocity is not None):
        widest = _quantile(values)
        return (-widest, widest), SIGNED
    return (low, high if high > low else low + 1.0), VALUES


def _quantile(values: Tensor) -> float:
    return float(np.quantile(values.abs().numpy(), _SHARE))


def _bare(ax: Axes) -> None:
    """A thin frame without ticks."""
    ax.set(xticks=[], yticks=[])
    for spine in ax.spines.values():
        spine.set_linewidth(0.5)


def _moment(board: Board, row: int) -> str:
    dt, unit = board.spec.dt, time_unit(board)
    return f"frame {row}" if dt is None else f"t = {row * dt:.4g} {unit or ''}".rstrip()


def _view(board: Board) -> float:
    """Height of the view over its width."""
    grid = board.spec.grid
    return (grid.shape[0] * grid.dy) / (grid.shape[1] * grid.dx)


def _sheet(board: Board, rows: int, columns: int) -> Figure:
    width = 1.55
    height = min(max(width * _view(board), 0.5), 2.4)
    return blank(columns * width + 1.6, rows * (height + 0.24) + 0.4)


def _animation_sheet(board: Board) -> Figure:
    width = 2.4
    return blank(3 * width + 1.9, min(max(width * _view(board), 0.9), 3.6) + 0.75)
