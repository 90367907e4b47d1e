"""The architecture of PIBERT in a comparison, drawn from the model of the run.

The model is built anew from the configuration and the fields that the scores record; its weights
are not read. So every size on the figure is that of the model whose results stand beside it.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import torch
from matplotlib.patches import FancyBboxPatch
from torch import nn

from pibert.data.wording import counted
from pibert.fields import FieldSpec
from pibert.models import build_model
from pibert.report.comparison.plots import Plot
from pibert.report.comparison.results import DatasetResults
from pibert.report.comparison.table import integer
from pibert.report.figures import NORMAL, SMALL, blank

_STEP, _WIDTH, _LINE = 1.75, 1.5, 0.155
"""Inches between columns, of a box, of a line of text."""
_PLAIN, _LEARNED, _HEAD = "#f1f3f5", "#dbe7f3", "#f3e9d8"
"""Colours of what has no weights, of parts with weights, and of heads of pretraining."""
_RESIDUALS = "Residuals r"

Place = tuple[int | float, int | float]


class Box(NamedTuple):
    """A part of the model."""

    title: str
    lines: Sequence[str]
    at: Place
    """Column and row of its centre; rows grow upwards."""
    after: Sequence[str] = ()
    """Titles of the boxes that it follows."""
    parts: Sequence[str] = ()
    """Its modules and parameters, by their names in the model."""
    is_head: bool = False
    """Whether only pretraining uses it."""

    def count(self, model: nn.Module) -> int:
        """The weights of its parts."""
        named = model.named_parameters()
        starts = tuple(f"{part}." for part in self.parts)
        return sum(w.numel() for name, w in named if f"{name}.".startswith(starts))


def architecture(data: DatasetResults) -> Plot | None:
    """The parts of PIBERT with their sizes and weights, as in the model of the run."""
    return _drawn(data, "pibert")


def multiresolution(data: DatasetResults) -> Plot | None:
    """The parts of multiresolution PIBERT with their sizes and weights."""
    return _drawn(data, "pibert-mr")


def _drawn(data: DatasetResults, kind: str) -> Plot | None:
    """The model of a kind: the candidate of that name, or else the best one of the kind."""
    names = [m for m in data.models if data.first(m).card.get("model", {}).get("name") == kind]
    if not names:
        return None
    name = kind if kind in names else names[0]
    card = data.first(name).card["model"]
    model = _built(kind, data.spec, card["config"])
    boxes = BOXES[kind](model)
    left, right = min(box.at[0] for box in boxes), max(box.at[0] for box in boxes)
    low, high = min(box.at[1] for box in boxes), max(box.at[1] for box in boxes)
    width, height = _STEP * (right - left) + _WIDTH + 0.2, _STEP * (high - low) + 1.35
    figure = blank(width, height)
    figure.set_layout_engine("none")
    ax = figure.add_axes((0.0, 0.0, 1.0, 1.0))
    ax.set_xlim(_STEP * left - _WIDTH / 2 - 0.1, _STEP * right + _WIDTH / 2 + 0.1)
    ax.set_ylim(_STEP * low - 0.675, _STEP * high + 0.675)
    ax.set_axis_off()
    places = {box.title: box for box in boxes}
    for box in boxes:
        _draw(ax, box, box.count(model))
        for title in box.after:
            _connect(ax, places[title], box)
    total = sum(weight.numel() for weight in model.parameters())
    caption = (
        f"{name} as trained here: {integer(total)} weights, of which each box has "
        "its share. r: mean residual of the governing equations in the patch of a token. Only "
        "pretraining uses the heads in the other colour."
    )
    return Plot(figure, caption)


def _built(name: str, spec: FieldSpec, config: Mapping[str, Any]) -> Any:
    """The model with weights of no meaning; the random state stays as it is."""
    plain: dict[str, Any] = {
        key: tuple(v) if isinstance(v, list) else v for key, v in config.items()
    }
    with torch.random.fork_rng(devices=[]):
        return build_model(name, spec=spec, **plain)


def _draw(ax: Any, box: Box, count: int) -> None:
    x, y = (_STEP * place for place in box.at)
    lines = [*box.lines, *([f"{integer(count)} weights"] if count else [])]
    height = _LINE * (len(lines) + 1) + 0.16
    corner = (x - _WIDTH / 2, y - height / 2)
    style = "round,pad=0,rounding_size=0.06"
    fill = _HEAD if box.is_head else _LEARNED if count else _PLAIN
    patch = FancyBboxPatch(corner, _WIDTH, height, boxstyle=style, fc=fill, ec="0.35", lw=0.8)
    ax.add_patch(patch)
    top = y + height / 2 - 0.08
    ax.text(x, top, box.title, ha="center", va="top", fontsize=NORMAL, weight="bold")
    for number, line in enumerate(lines, 1):
        grey = {"color": "0.35"} if count and number == len(lines) else {}
        ax.text(x, top - _LINE * number - 0.02, line, ha="center", va="top", fontsize=SMALL, **grey)


def _connect(ax: Any, first: Box, then: Box) -> None:
    """An arrow from side to side; around the other boxes to the residuals and away from them."""
    halves = [_LINE * (len(box.lines) + 1 + bool(box.parts)) / 2 + 0.08 for box in (first, then)]
    (x0, y0), (x1, y1) = ((_STEP * a, _STEP * b) for a, b in (first.at, then.at))
    start, end, bend = (x0 + _WIDTH / 2, y0), (x1 - _WIDTH / 2, y1), "arc3"
    if then.title == _RESIDUALS:
        start, bend = (x0, y0 - halves[0]), "angle,angleA=-90,angleB=180"
    elif first.title == _RESIDUALS:
        end, bend = (x1, y1 - halves[1]), "angle,angleA=0,angleB=90"
    arrow = {"arrowstyle": "-|>", "color": "0.35", "lw": 1.0, "shrinkA": 0, "shrinkB": 0}
    ax.annotate("", end, start, arrowprops={**arrow, "connectionstyle": bend})


def _input(model: Any) -> list[str]:
    spec, history = model.spec, model.config.history
    rows, columns = spec.grid.shape
    size = f"{rows} × {columns} points, {counted(history, 'frame')}"
    return [", ".join(spec.channels), size, "known points"]


def _output(model: Any) -> list[str]:
    horizon = model.config.horizon
    after = "the next frame" if horizon == 1 else f"the next {horizon} frames"
    return [", ".join(model.spec.channels), after]


def _tokens(model: Any) -> str:
    rows, columns = model.token_lattice(model.spec.grid.shape)
    of_parameters = " + 1" if model.config.parameter_token and model.blocks else ""
    return f"{rows} × {columns} tokens{of_parameters}"


def _attention(model: Any, width: int) -> list[str]:
    config, mlp = model.config, f"MLP {model.config.mlp_ratio} × as wide"
    if not model.blocks:
        return [mlp]
    bias = f" − {config.attention_bias:g} r" if model.physics_bias is not None else ""
    logits = f"q·k/√{width // config.heads}{bias}"
    return [f"{config.heads} heads, softmax of", logits, mlp]


def _residuals(model: Any, at: Place) -> list[Box]:
    if model.physics_bias is None:
        return []
    family, side = model.physics_bias.family, model.patch(model.spec.grid.shape)
    lines = [family.name, *family.terms, f"mean of {side} × {side} points"]
    return [Box(_RESIDUALS, lines, at, ["Input"])]


def _heads(at: Place, after: str) -> Box:
    lines = ["masked physics,", "equation consistency"]
    return Box("Pretraining heads", lines, at, [after], ["mpp_head", "ecp_head"], is_head=True)


def _pibert(model: Any) -> list[Box]:
    config, encoder, channels = model.config, model.encoder, len(model.spec.channels)
    branches = []
    if encoder.fourier is not None:
        rows, columns = encoder.fourier.modes, encoder.fourier.columns
        lines = [f"{rows} × {columns} modes", f"of either sign, {config.width} wide"]
        branches.append(Box("Fourier branch", lines, (1, 0.42), ["Input"], ["encoder.fourier"]))
    if encoder.wavelet is not None:
        lines = [
            f"{config.wavelet}, {counted(config.wavelet_levels, 'level')}",
            f"1 × 1 to {config.width}",
        ]
        branches.append(Box("Wavelet branch", lines, (1, -0.42), ["Input"], ["encoder.wavelet"]))
    of_branches = tuple(f"{part}." for branch in branches for part in branch.parts)
    names = [name for name, _ in model.named_parameters() if name.startswith("encoder.")]
    gate = [name for name in names if not name.startswith(of_branches)]
    mix = [f"{config.gate} gate"] if len(branches) == 2 else []
    token = ["parameters as a token"] if config.parameter_token else []
    residuals, blocks = _residuals(model, (3, -0.85)), counted(config.depth, "block")
    refined = ["+ scale × last frame"] if config.residual else []
    refined += [f"three 3 × 3, {config.refine_width} wide"] if config.refine else []
    return [
        Box("Input", _input(model), (0, 0)),
        *branches,
        Box(
            "Encoder",
            [*mix, f"1 × 1 to {config.width}"],
            (2, 0),
            [branch.title for branch in branches],
            ["projection", *gate],
        ),
        Box(
            "Patches",
            [f"{config.patch} × {config.patch} points", _tokens(model), *token, "+ positions"],
            (3, 0),
            ["Encoder"],
            ["patch_embedding", "parameter_embedding", "positions"],
        ),
        *residuals,
        Box(
            blocks,
            _attention(model, config.width),
            (4, 0),
            ["Patches", *(box.title for box in residuals)],
            ["blocks", "norm"],
        ),
        _heads((5, 0.72), blocks),
        Box(
            "Decoder",
            ["tokens to points", f"1 × 1 to {channels}"],
            (5, 0),
            [blocks],
            ["expand", "read_out"],
        ),
        Box("Correction", refined, (6, 0), ["Decoder"], ["skip_scale", "refinement"]),
        Box("Output", _output(model), (7, 0), ["Correction"]),
    ]


def _pibert_mr(model: Any) -> list[Box]:
    config, shape = model.config, model.spec.grid.shape
    levels, cycles = model.levels(shape), range(config.cycles)
    terms = [] if model.terms is None else [f"{model.terms.num_terms} equation terms"]
    place = ["coordinates"] if config.coordinates else []
    lines = [*terms, *place, f"3 × 3 to {config.width}", "+ parameters"]
    boxes = [
        Box("Input", _input(model), (0, 0)),
        Box("Lift", lines, (1, 0), ["Input"], ["lift", "parameter_features", "terms"]),
    ]
    for level in range(1, levels + 1):
        rows, columns = (-(-size // 2**level) for size in shape)
        lines = [f"{rows} × {columns}", f"3 × 3, {config.local_width} wide"]
        parts = [f"cycles.{n}.local.{level - 1}" for n in cycles]
        if level > config.own_levels:
            lines, parts = [*lines, f"weights of level {config.own_levels}"], []
        title = f"Haar, level {level}"
        boxes.append(Box(title, lines, (1 + level, -0.3 * level), [boxes[-1].title], parts))
    column, low, middle = 2 + levels, -0.3 * levels, -0.15 * levels
    residuals = _residuals(model, (column - 1.2, low - 0.85))
    fourier = [f"Fourier, |k| ≤ {config.fourier_modes}"] if config.fourier_modes else []
    width = config.token_width
    last = ["+ last frame" if model.dmd_skip is None else "+ DMD"] if config.residual else []
    return [
        *boxes,
        *residuals,
        Box(
            "Tokens",
            [_tokens(model), f"{width} wide", *fourier, *_attention(model, width)],
            (column, low),
            [boxes[-1].title, *(box.title for box in residuals)],
            ["parameter_embedding", *(f"cycles.{n}.coarsest" for n in cycles)],
        ),
        Box(
            "Inverse Haar",
            ["and back up,", f"{counted(config.cycles, 'cycle')} in all"],
            (column + 1, middle),
            ["Tokens"],
        ),
        _heads((column + 2, 0.55), "Inverse Haar"),
        Box(
            "Head",
            [f"1 × 1 to {len(model.spec.channels)}", *last],
            (column + 2, middle),
            ["Inverse Haar"],
            ["head"],
        ),
        Box("Output", _output(model), (column + 3, middle), ["Head"]),
    ]


BOXES: dict[str, Callable[[Any], list[Box]]] = {"pibert": _pibert, "pibert-mr": _pibert_mr}
"""The models that can be drawn, and their boxes."""
