"""What PIBERT does with its tokens on one frame: lattice, gain, weights, gate, residual, attention.

The arrays are those of ``evaluation/tokens.py``, one of each for every picked frame; the gain over
the rival comes from the picked predictions of both. The frame is that of median error of
persistence. A token stands for patch x patch points, its map is drawn over the place it has in the
flow.
"""

from collections.abc import Mapping
from typing import NamedTuple

import matplotlib
import numpy as np
import torch
from jaxtyping import Bool, Float
from matplotlib.axes import Axes
from matplotlib.image import AxesImage
from torch import Tensor

from pibert.evaluation.tokens import token_errors
from pibert.fields import Grid
from pibert.report.comparison.board import Board
from pibert.report.comparison.drawn import (
    LARGE,
    NORMAL,
    SMALL,
    Drawn,
    axis_label,
    blank,
    with_unit,
)
from pibert.report.comparison.picked import PICKS, chief, pick, quantities, unit_of
from pibert.report.comparison.plots import masked
from pibert.report.figures import ERRORS, VALUES, add_bar, show

_WIDTH = 2.9
_GREY = "0.75"
MEDIAN = "median"


class Frame(NamedTuple):
    """The picked frame and what belongs to it."""

    place: int
    truth: Float[Tensor, "c y x"]
    known: Bool[Tensor, "y x"]
    patch: int
    tokens: Mapping[str, Tensor]
    words: str


def tokens(board: Board) -> Drawn | None:
    """Panels of the token diagnostics, as many as the scores have."""
    model = _with_tokens(board)
    frame = None if model is None else _frame(board, model)
    if model is None or frame is None:
        return None
    rival = board.rival(model)
    panels = ["field"]
    gain = None if rival is None else _gain(board, model, rival, frame)
    panels += ["gain"] if gain is not None else []
    kinds = ("fourier_rms", "gate_map", "residual", "attention", "received")
    panels += [name for name in kinds if name in frame.tokens]
    view = board.spec.grid.shape[0] * board.spec.grid.dy
    view /= board.spec.grid.shape[1] * board.spec.grid.dx
    rows = -(-len(panels) // 3)
    height = min(max(_WIDTH * view, 1.3), 3.2) + 0.65
    figure = blank(3 * (_WIDTH + 0.75), rows * height)
    axes = figure.subplots(rows, 3, squeeze=False)
    for number, (ax, panel) in enumerate(zip(axes.flat, panels, strict=False)):
        title = _panel(ax, panel, board, frame, gain, rival)
        ax.set_title(f"{'abcdefg'[number]}  {title}", fontsize=LARGE, loc="left")
        ax.tick_params(labelsize=SMALL, length=2, width=0.6)
        ax.locator_params(axis="x", nbins=5)  # labels of a narrow panel would touch
        for spine in ax.spines.values():
            spine.set_linewidth(0.6)
    for ax in axes.flat[len(panels) :]:
        ax.set_axis_off()
    better = "" if gain is None else _share_text(gain, model, rival or "")
    caption = (
        f"Data set {board.name}: tokens of {model} on {frame.words}, the middle one of the "
        f"{board.reference.card['pick_rule']}.{better}{_gate_text(frame)} Attention is the mean "
        "over heads and layers; a residual is how badly the patch breaks the equations, and lowers "
        "the attention that its token gets."
    )
    alt = f"{len(panels)} panels on the tokens of {model}: {', '.join(panels)}."
    return Drawn(figure, caption, alt.replace("_", " "))


def _with_tokens(board: Board) -> str | None:
    """PIBERT, or the best model that has any."""
    names = sorted(board.models, key=lambda name: name != "pibert")
    return next((m for m in names if "tokens/patch" in board.first(m).arrays), None)


def _frame(board: Board, model: str) -> Frame | None:
    picked, found = pick(board, MEDIAN), board.first(model).part("tokens")
    if picked is None:
        return None
    place = PICKS[MEDIAN]
    return Frame(place, picked.truth, picked.shown, int(found["patch"]), found, picked.words)


def _gain(board: Board, model: str, rival: str, frame: Frame) -> Float[Tensor, "ty tx"] | None:
    """Error of the rival minus that of the model, token by token; NaN without a known point."""
    theirs = board.first(rival).arrays.get("picks/prediction")
    if theirs is None:
        return None
    errors = [
        token_errors(field[frame.place].double(), frame.truth.double(), frame.known, frame.patch)
        for field in (theirs, board.first(model).arrays["picks/prediction"])
    ]
    return errors[0] - errors[1]


def _panel(
    ax: Axes, panel: str, board: Board, frame: Frame, gain: Tensor | None, rival: str | None
) -> str:
    """Draw one panel; its title."""
    grid, found = board.spec.grid, frame.tokens
    if panel == "fourier_rms":
        return _fourier(ax, found, grid)
    ax.set_xlabel(axis_label(board, "x"), fontsize=NORMAL)
    ax.set_ylabel(axis_label(board, "y"), fontsize=NORMAL)
    if panel == "field":
        return _field(ax, board, frame)
    if panel == "gain":
        assert gain is not None
        widest = max(float(np.nanquantile(gain.abs().numpy(), 0.98)), 1e-12)
        extend = "both" if float(gain.nan_to_num().abs().max()) > widest else "neither"
        add_bar(ax, _map(ax, gain, grid, frame.patch, f"{ERRORS}_r", -widest, widest), extend)
        return f"Token gain over {rival}"
    sample = _sample(found[panel], frame)
    if panel == "gate_map":
        image = show(ax, masked(sample, frame.known), grid, 0.0, 1.0, VALUES)
        add_bar(ax, image)
        return "Gate: share of the Fourier branch"
    if panel == "residual":
        add_bar(ax, _map(ax, sample, grid, frame.patch, VALUES))
        return "Residual of the equations"
    mean = sample.mean(0)  # over layers
    add_bar(ax, _map(ax, 100 * mean, grid, frame.patch, "magma"))
    if panel == "received":
        return "Attention received [%]"
    row, column = (int(n) for n in _sample(found["query"], frame))
    left, bottom = grid.origin[0] - grid.dx / 2, grid.origin[1] - grid.dy / 2
    at = (
        left + (column + 0.5) * frame.patch * grid.dx,
        bottom + (row + 0.5) * frame.patch * grid.dy,
    )
    ax.plot(*at, "s", ms=7, mfc="none", mec="white", mew=1.4)
    return "Attention of the marked token [%]"


def _field(ax: Axes, board: Board, frame: Frame) -> str:
    """The truth under the lattice of tokens."""
    grid, name = board.spec.grid, chief(board)
    layer = quantities(board, frame.truth, frame.known)[name]
    low, high, colours = layer.scale()
    add_bar(ax, show(ax, layer, grid, low, high, colours))
    ny, nx = grid.shape
    left, bottom = grid.origin[0] - grid.dx / 2, grid.origin[1] - grid.dy / 2
    for column in range(frame.patch, nx, frame.patch):
        ax.axvline(left + column * grid.dx, color="white", lw=0.4, alpha=0.7)
    for row in range(frame.patch, ny, frame.patch):
        ax.axhline(bottom + row * grid.dy, color="white", lw=0.4, alpha=0.7)
    ty, tx = (int(n) for n in frame.tokens["token_shape"])
    extra = " + 1" if "parameter_attention" in frame.tokens else ""
    return f"{with_unit(name, unit_of(board, name))}, {ty} × {tx}{extra} tokens"


def _fourier(ax: Axes, found: Mapping[str, Tensor], grid: Grid) -> str:
    rms, ky, kx = (found[f"fourier_{name}"].double().numpy() for name in ("rms", "ky", "kx"))
    colours = matplotlib.colormaps["magma"].with_extremes(bad=_GREY)
    extent = (kx[0] - 0.5, kx[-1] + 0.5, ky[0] - 0.5, ky[-1] + 0.5)
    image = ax.imshow(
        np.ma.masked_invalid(rms), cmap=colours, origin="lower", extent=extent, aspect="auto"
    )
    add_bar(ax, image)
    ax.set_box_aspect((grid.shape[0] * grid.dy) / (grid.shape[1] * grid.dx))
    ax.set_xlabel("$k_x$ [cycles per domain]", fontsize=NORMAL)
    ax.set_ylabel("$k_y$ [cycles per domain]", fontsize=NORMAL)
    return "Fourier weights, rms"


def _map(
    ax: Axes,
    values: Float[Tensor, "ty tx"],
    grid: Grid,
    patch: int,
    colours: str,
    low: float | None = None,
    high: float | None = None,
) -> AxesImage:
    """A map of tokens over the places that they have in the flow."""
    points = values.double().repeat_interleave(patch, 0).repeat_interleave(patch, 1)
    points = points[: grid.shape[0], : grid.shape[1]]
    finite = points.isfinite()
    layer = masked(torch.where(finite, points, 0.0), finite)
    if low is None or high is None:
        low, high = float(layer.shown.min()), float(layer.shown.max())
        high = high if high > low else low + 1e-12
    return show(ax, layer, grid, low, high, colours)


def _sample(values: Tensor, frame: Frame) -> Tensor:
    """That of the frame; the only one where there is one."""
    return values[min(frame.place, len(values) - 1)]


def _share_text(gain: Tensor, model: str, rival: str) -> str:
    counted = gain.isfinite()
    share = float((gain[counted] > 0).double().mean()) if bool(counted.any()) else 0.0
    return (
        f" Gain: relative error of {rival} minus that of {model} over the points of a token, "
        f"positive (blue) in {share:.0%} of them."
    )


def _gate_text(frame: Frame) -> str:
    if "gate" not in frame.tokens:
        return ""
    fourier, wavelet = frame.tokens["gate"].double().tolist()
    return f" The gate mixes {fourier:.2f} Fourier with {wavelet:.2f} frame branch."
