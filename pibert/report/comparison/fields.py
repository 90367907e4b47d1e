"""Maps of selected test frames: truth, predictions and signed errors (prediction minus truth).

Frames are selected by the error of persistence, not by that of a model. All panels of a quantity
share the scale of the truth, all errors of a figure one symmetric scale. Bodies and unknown points
are grey; everything is in physical units.
"""

import math
from typing import NamedTuple

import matplotlib
import numpy as np
import torch
from jaxtyping import Bool, Float
from matplotlib.axes import Axes
from matplotlib.colors import Normalize
from matplotlib.ticker import MaxNLocator, ScalarFormatter
from torch import Tensor

from pibert.evaluation.measure import SPEED, gradient_unit, velocity_unit
from pibert.report.comparison.plots import Drawn, axis_label
from pibert.report.comparison.results import DatasetResults
from pibert.report.comparison.table import digits
from pibert.report.figures import (
    ERRORS,
    LARGE,
    NORMAL,
    SHARE,
    SMALL,
    Layer,
    add_bar,
    blank,
    height_over_width,
    layer_of,
    panels,
    show,
    vorticity_of,
    with_unit,
)

PICKS = {"easy": 0, "median": 1, "hard": 2}
"""Rows of the selected frames in the scores: 5th, 50th and 95th percentile."""
VORTICITY = "vorticity"
_LONGER, _WIDTH = 2.3, 10.7
"""Longer side of a panel, and width of the sheet, in inches."""
_TICK_MARGIN = 0.1
"""Share of a panel at either end without a tick label."""
_GAP, _BLOCK_GAP, _HEAD, _LEFT, _FOOT = 0.1, 0.38, 0.26, 0.74, 0.42


class Picked(NamedTuple):
    """One selected frame."""

    truth: Float[Tensor, "c y x"]
    predictions: dict[str, Float[Tensor, "c y x"]]
    """By model, best first."""
    shown: Bool[Tensor, "y x"]
    """Where the truth is known, outside the body."""
    words: str
    """Frame and trajectory."""


def pick(data: DatasetResults, name: str) -> Picked | None:
    """The selected frame of a name in ``PICKS``; None where the scores have none."""
    place, arrays = PICKS[name], data.reference.arrays
    rows = arrays.get("picks/rows")
    if rows is None or place >= len(rows):
        return None
    shown = arrays["picks/known"][place]
    if data.spec.grid.body is not None:
        shown = shown & ~data.spec.grid.body
    row = int(rows[place])
    predictions = data.arrays_of(data.models, "picks/prediction")
    return Picked(
        arrays["picks/truth"][place].double(),
        {model: fields[place].double() for model, fields in predictions.items()},
        shown,
        f"frame {int(arrays['rows/frame'][row])} of {data.trajectory(row)}",
    )


def quantities(
    data: DatasetResults, field: Float[Tensor, "c y x"], shown: Tensor
) -> dict[str, Layer]:
    """Channels, and of a flow also speed and vorticity, by name."""
    spec = data.spec
    found = {name: layer_of(field[place], shown) for place, name in enumerate(spec.channels)}
    if spec.velocity is not None:
        u, v = (field[place] for place in spec.velocity)
        found[SPEED] = layer_of(torch.hypot(u, v), shown)
        found[VORTICITY] = layer_of(*vorticity_of(spec, field, shown))
    return found


def main_quantity(data: DatasetResults) -> str:
    """The quantity to show where there is room for one."""
    return data.spec.channels[0] if data.spec.velocity is None else SPEED


def label_of(data: DatasetResults, quantity: str) -> str:
    """A quantity with its unit."""
    spec = data.spec
    if quantity in spec.channels:
        return with_unit(quantity, spec.units[spec.channels.index(quantity)])
    unit = velocity_unit(spec)
    if quantity == VORTICITY:
        unit = gradient_unit(unit, data.info["length_unit"])
    return with_unit(quantity, unit)


def frame_text(data: DatasetResults, picked: Picked) -> str:
    """Frame and rule of selection, for captions."""
    return f"{picked.words[0].upper()}{picked.words[1:]}, one of the {pick_rule(data)}."


def pick_rule(data: DatasetResults) -> str:
    return str(data.reference.card["pick_rule"])


def excess(layers: list[Layer], low: float, high: float) -> str:
    """Which ends of a scale some layer exceeds."""
    found = {layer.excess(low, high) for layer in layers} - {"neither"}
    return "neither" if not found else found.pop() if len(found) == 1 else "both"


def overview(data: DatasetResults, name: str = "median") -> Drawn | None:
    """A selected frame as every model predicts it, with signed errors."""
    picked = pick(data, name)
    if picked is None:
        return None
    quantity, grid = main_quantity(data), data.spec.grid
    truth = quantities(data, picked.truth, picked.shown)[quantity]
    models = [model for model in data.shown() if model in picked.predictions]
    answers = {m: quantities(data, picked.predictions[m], picked.shown)[quantity] for m in models}
    errors = {m: Layer(layer.values - truth.values) for m, layer in answers.items()}
    limit = error_limit(list(errors.values()), truth)
    low, high, colours = truth.scale()
    sheet = _Sheet(data, len(models) + 1)
    left, right = sheet.block(0, "truth")
    show(left, truth, grid, low, high, colours)
    right.set_axis_off()
    label = label_of(data, quantity)
    sheet.bar(right, 0.72, label, low, high, colours, excess([*answers.values()], low, high))
    error, beyond = "prediction \N{MINUS SIGN} truth", excess([*errors.values()], -limit, limit)
    sheet.bar(right, 0.24, error, -limit, limit, ERRORS, beyond)
    energy = float(np.square(truth.shown).sum())
    for number, model in enumerate(models, start=1):
        left, right = sheet.block(number, data.ranked(model))
        show(left, answers[model], grid, low, high, colours)
        show(right, errors[model], grid, -limit, limit, ERRORS)
        nmse = float(np.square(errors[model].shown).sum()) / energy if energy else math.nan
        title = f"NMSE {digits(nmse, 2)}"
        right.set_title(title, fontsize=SMALL, loc="right", pad=3, color="0.25")
    caption = (
        f"{frame_text(data, picked)} {label} of the truth and of {len(models)} models by rank, "
        "with signed errors (prediction minus truth) on a common scale, which ends at the median "
        f"over the models of the {100 * SHARE:g}th percentile of the absolute error; arrows: "
        f"larger values occur. NMSE is of {quantity} in this frame. Grey: body and unknown points."
    )
    alt = f"Maps of {quantity}: truth, predictions and errors of {', '.join(models)}."
    return Drawn(sheet.figure, caption, alt)


def easy_overview(data: DatasetResults) -> Drawn | None:
    """As ``overview``, of the frame at the 5th percentile."""
    return overview(data, "easy")


def hard_overview(data: DatasetResults) -> Drawn | None:
    """As ``overview``, of the frame at the 95th percentile."""
    return overview(data, "hard")


def error_limit(errors: list[Layer], truth: Layer) -> float:
    """End of the common scale of errors; neither one bad model nor a few points decide it."""
    ends = [error.robust_limit for error in errors]
    return max(float(np.median(ends)) if ends else 0.0, 1e-6 * truth.limit, 1e-30)


class _InnerTicks(MaxNLocator):
    """Round numbers away from the ends, where labels would touch those of the next panel."""

    def tick_values(self, vmin: float, vmax: float) -> list[float]:
        margin = _TICK_MARGIN * (vmax - vmin)
        return [t for t in super().tick_values(vmin, vmax) if vmin + margin < t < vmax - margin]


class _Sheet:
    """Blocks of two panels side by side, in rows, of exact sizes."""

    def __init__(self, data: DatasetResults, blocks: int) -> None:
        self.data, self.blocks = data, blocks
        aspect = height_over_width(data.spec.grid)
        size = _LONGER if aspect < 0.8 or aspect > 1.25 else 0.8 * _LONGER
        self.wide = max(size * min(1.0, 1 / aspect), 0.9)
        self.high = max(size * min(1.0, aspect), 0.6)
        block = 2 * self.wide + _GAP + _BLOCK_GAP
        self.columns = min(blocks, max(1, int((_WIDTH - _LEFT + _BLOCK_GAP) / block)))
        self.size = (
            _LEFT + self.columns * block - _BLOCK_GAP + 0.15,
            -(-blocks // self.columns) * (self.high + _HEAD) + _FOOT + 0.05,
        )
        self.figure = blank(*self.size, exact=True)

    def block(self, number: int, title: str) -> tuple[Axes, Axes]:
        row, column = divmod(number, self.columns)
        is_lowest = number + self.columns >= self.blocks
        left = _LEFT + column * (2 * self.wide + _GAP + _BLOCK_GAP)
        bottom = self.size[1] - 0.05 - (row + 1) * (self.high + _HEAD)
        pair = (self._panel(left, bottom), self._panel(left + self.wide + _GAP, bottom))
        for place, ax in enumerate(pair):
            ax.tick_params(labelsize=SMALL, length=2, width=0.5, labelbottom=is_lowest)
            ax.tick_params(labelleft=column == 0 and place == 0)
            ax.xaxis.set_major_locator(_InnerTicks(5))
            if is_lowest:
                ax.set_xlabel(axis_label(self.data, "x"), fontsize=SMALL, labelpad=1)
        if column == 0:
            pair[0].set_ylabel(axis_label(self.data, "y"), fontsize=SMALL, labelpad=2)
        pair[0].set_title(title, fontsize=LARGE, loc="left", pad=3)
        return pair

    def _panel(self, left: float, bottom: float) -> Axes:
        width, height = self.size
        box = (left / width, bottom / height, self.wide / width, self.high / height)
        return self.figure.add_axes(box)

    def bar(
        self, slot: Axes, place: float, label: str, low: float, high: float, name: str, extend: str
    ) -> None:
        """A colour bar inside a panel."""
        colours = matplotlib.cm.ScalarMappable(Normalize(low, high), matplotlib.colormaps[name])
        inside = slot.inset_axes((0.08, place, 0.84, 0.09 / self.high))
        bar = self.figure.colorbar(colours, cax=inside, orientation="horizontal", extend=extend)
        inside.set_title(label, fontsize=NORMAL, pad=2)
        inside.tick_params(labelsize=SMALL, length=2, pad=1)
        inside.locator_params(nbins=5)
        short = ScalarFormatter(useMathText=True)
        short.set_powerlimits((-2, 3))  # long labels would touch
        inside.xaxis.set_major_formatter(short)
        inside.xaxis.get_offset_text().set_fontsize(SMALL)
        bar.outline.set_linewidth(0.5)


def components(data: DatasetResults) -> Drawn | None:
    """Every quantity of the median frame as PIBERT predicts it; without it, as the best model."""
    return _of_model(data, "pibert" if "pibert" in data.models else data.models[0])


def winner_components(data: DatasetResults) -> Drawn | None:
    """As ``components`` of the best model, on the same scales; None where that is PIBERT."""
    best = data.models[0]
    return None if best == "pibert" or "pibert" not in data.models else _of_model(data, best)


def _of_model(data: DatasetResults, model: str) -> Drawn | None:
    picked = pick(data, "median")
    if picked is None or model not in picked.predictions:
        return None
    truth = quantities(data, picked.truth, picked.shown)
    # PIBERT and the best model share scales, so that their figures can be compared.
    pair = {m for m in (model, "pibert", data.models[0]) if m in picked.predictions}
    answers = {m: quantities(data, picked.predictions[m], picked.shown) for m in pair}
    grid = data.spec.grid
    figure, axes = panels(len(truth), grid)
    for (name, true), line in zip(truth.items(), axes, strict=True):
        low, high, colours = true.scale(signed=name == VORTICITY)
        if name == VORTICITY and low < 0 < true.robust_limit:  # not left to a few points at a wall
            low, high = -true.robust_limit, true.robust_limit
        errors = {m: Layer(own[name].values - true.values) for m, own in answers.items()}
        widest = max(error_limit([own], true) for own in errors.values())
        answer, error = answers[model][name], errors[model]
        show(line[0], true, grid, low, high, colours)
        image = show(line[1], answer, grid, low, high, colours)
        add_bar(line[1], image, extend=excess([true, answer], low, high))
        beyond = excess([error], -widest, widest)
        add_bar(line[2], show(line[2], error, grid, -widest, widest, ERRORS), extend=beyond)
        label = f"{label_of(data, name)}\n\n{axis_label(data, 'y')}"
        line[0].set_ylabel(label, fontsize=NORMAL)
        line[2].set_title(f"rms {error.rms:.2g}", fontsize=NORMAL)
    for ax, heading in zip(axes[0], ("truth", model, "error, "), strict=True):
        ax.set_title(heading + ax.get_title(), fontsize=LARGE)
    for ax in axes[-1]:
        ax.set_xlabel(axis_label(data, "x"), fontsize=NORMAL)
    caption = (
        f"{frame_text(data, picked)} Truth, prediction of {model} (rank "
        f"{data.models.index(model) + 1} of {len(data.models)}) and signed error of every "
        "quantity. The error scale is that of PIBERT or the best model, whichever is wider, and "
        f"ends at the {100 * SHARE:g}th percentile. Grey: body and unknown points, and vorticity "
        "whose stencil touches them."
    )
    alt = f"Maps of {', '.join(truth)}: truth, prediction of {model} and its error."
    return Drawn(figure, caption, alt)
