"""Maps of selected test frames: truth, predictions and signed errors (prediction minus truth).

Frames are selected by the error of persistence, not by that of a model. All panels of a quantity
share the scale of the truth, all errors of a figure one symmetric scale. Bodies and unknown points
are grey; everything is in physical units.
"""

import math
from typing import NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float
from matplotlib.figure import Figure
from torch import Tensor

from pibert.evaluation.measure import SPEED, gradient_unit, velocity_unit
from pibert.report.comparison.plots import Plot, axis_label, sheet
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
_LONGER, _WIDTH = 2.3, 9.6
"""Longer side of a panel, and width of all panels, in inches."""


class Picked(NamedTuple):
    """One selected frame."""

    truth: Float[Tensor, "c y x"]
    predictions: dict[str, Float[Tensor, "c y x"]]
    """By model, best first."""
    shown: Bool[Tensor, "y x"]
    """Where the truth is known, outside the body."""
    origin: str
    """Frame and trajectory."""


def pick(data: DatasetResults, name: str) -> Picked | None:
    """The selected frame of a name in ``PICKS``; None where the scores have none."""
    number, arrays = PICKS[name], data.reference.arrays
    rows = arrays.get("picks/rows")
    if rows is None or number >= len(rows):
        return None
    shown = arrays["picks/known"][number]
    if data.spec.grid.body is not None:
        shown = shown & ~data.spec.grid.body
    row = int(rows[number])
    predictions = data.arrays_of(data.models, "picks/prediction")
    return Picked(
        arrays["picks/truth"][number].double(),
        {model: fields[number].double() for model, fields in predictions.items()},
        shown,
        f"frame {int(arrays['rows/frame'][row])} of {data.trajectory(row)}",
    )


def quantities(
    data: DatasetResults, field: Float[Tensor, "c y x"], shown: Tensor
) -> dict[str, Layer]:
    """Channels, and of a flow also speed and vorticity, by name."""
    spec = data.spec
    layers = {name: layer_of(field[n], shown) for n, name in enumerate(spec.channels)}
    if spec.velocity is not None:
        u, v = (field[channel] for channel in spec.velocity)
        layers[SPEED] = layer_of(torch.hypot(u, v), shown)
        layers[VORTICITY] = layer_of(*vorticity_of(spec, field, shown))
    return layers


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
    return f"{picked.origin[0].upper()}{picked.origin[1:]}, one of the {pick_rule(data)}."


def pick_rule(data: DatasetResults) -> str:
    return str(data.reference.card["pick_rule"])


def excess(layers: list[Layer], low: float, high: float) -> str:
    """Which ends of a scale some layer exceeds."""
    ends = {layer.excess(low, high) for layer in layers} - {"neither"}
    return "neither" if not ends else ends.pop() if len(ends) == 1 else "both"


def overview(data: DatasetResults, name: str = "median") -> Plot | None:
    """A selected frame as every model predicts it, with signed errors."""
    picked = pick(data, name)
    if picked is None:
        return None
    quantity, grid = main_quantity(data), data.spec.grid
    truth = quantities(data, picked.truth, picked.shown)[quantity]
    shown = data.compared() if name == "median" else data.shown()
    models = [model for model in shown if model in picked.predictions]
    answers = {m: quantities(data, picked.predictions[m], picked.shown)[quantity] for m in models}
    errors = {m: Layer(layer.values - truth.values) for m, layer in answers.items()}
    limit = error_limit(list(errors.values()), truth)
    low, high, colours = truth.scale()
    label = label_of(data, quantity)
    figure, axes = _pairs(data, len(models) + 1)
    image = show(axes[0, 0], truth, grid, low, high, colours)
    axes[0, 0].set_title("truth", fontsize=LARGE, loc="left", pad=3)
    axes[0, 1].set_axis_off()
    energy = float(np.square(truth.shown).sum())
    for (left, right), model in zip(axes[1:], models, strict=False):
        show(left, answers[model], grid, low, high, colours)
        error_image = show(right, errors[model], grid, -limit, limit, ERRORS)
        left.set_title(data.ranked(model), fontsize=LARGE, loc="left", pad=3)
        nmse = float(np.square(errors[model].shown).sum()) / energy if energy else math.nan
        right.set_title(f"NMSE {digits(nmse, 2)}", fontsize=SMALL, loc="right", pad=3)
    bars = (
        (image, label, excess([*answers.values()], low, high)),
        (error_image, "prediction \N{MINUS SIGN} truth", excess([*errors.values()], -limit, limit)),
    )
    for bottom, (mapped, title, extend) in zip((0.7, 0.2), bars, strict=True):
        inside = axes[0, 1].inset_axes((0.06, bottom, 0.88, 0.09))
        figure.colorbar(mapped, cax=inside, orientation="horizontal", extend=extend)
        inside.set_title(title, fontsize=NORMAL, pad=2)
        inside.tick_params(labelsize=SMALL, length=2, pad=1)
        inside.locator_params(nbins=4)
    caption = (
        f"{frame_text(data, picked)} {label} of the truth and of {len(models)} models by rank, "
        "with signed errors (prediction minus truth) on a common scale, which ends at the median "
        f"over the models of the {100 * SHARE:g}th percentile of the absolute error; arrows: "
        f"larger values occur. NMSE is of {quantity} in this frame. Grey: body and unknown points."
    )
    return Plot(figure, caption)


def easy_overview(data: DatasetResults) -> Plot | None:
    """An easy frame as every model predicts it, with signed errors."""
    return overview(data, "easy")


def hard_overview(data: DatasetResults) -> Plot | None:
    """A hard frame as every model predicts it, with signed errors."""
    return overview(data, "hard")


def error_limit(errors: list[Layer], truth: Layer) -> float:
    """End of the common scale of errors; neither one bad model nor a few points decide it."""
    ends = [error.robust_limit for error in errors]
    return max(float(np.median(ends)) if ends else 0.0, 1e-6 * truth.limit, 1e-30)


def _pairs(data: DatasetResults, count: int) -> tuple[Figure, np.ndarray]:
    """Axes (pair, 2) for a field and its error side by side; each pair is a row."""
    aspect = height_over_width(data.spec.grid)
    wide = max(_LONGER * min(1.0, 1 / aspect), 0.9)
    high = max(_LONGER * min(1.0, aspect), 0.6)
    columns = min(count, max(1, int(_WIDTH / (2 * wide))))
    rows = -(-count // columns)
    size = (2 * columns * wide + 1.0, rows * (high + 0.26) + 0.5)
    figure, axes = sheet(*size, rows, 2 * columns, sharex=True, sharey=True)
    for line in axes:
        line[0].set_ylabel(axis_label(data, "y"), fontsize=SMALL)
    for number, ax in enumerate(axes.flat):
        ax.tick_params(labelsize=SMALL, length=2, width=0.5)
        ax.locator_params(nbins=5)  # labels of a narrow panel would touch
        if number >= 2 * count:
            ax.set_axis_off()
        elif number + 2 * columns >= 2 * count:
            ax.set_xlabel(axis_label(data, "x"), fontsize=SMALL)
            ax.tick_params(labelbottom=True)
    return figure, axes.reshape(-1, 2)


def components(data: DatasetResults) -> Plot | None:
    """Every quantity of the median frame as PIBERT predicts it; without it, as the best model."""
    return _of_model(data, "pibert" if "pibert" in data.models else data.models[0])


def winner_components(data: DatasetResults) -> Plot | None:
    """Every quantity of the median frame as the best model predicts it, unless that is PIBERT."""
    best = data.models[0]
    return None if best == "pibert" or "pibert" not in data.models else _of_model(data, best)


def _of_model(data: DatasetResults, model: str) -> Plot | None:
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
        errors = {m: Layer(layers[name].values - true.values) for m, layers in answers.items()}
        widest = max(error_limit([error], true) for error in errors.values())
        answer, error = answers[model][name], errors[model]
        show(line[0], true, grid, low, high, colours)
        image = show(line[1], answer, grid, low, high, colours)
        add_bar(line[1], image, extend=excess([true, answer], low, high))
        beyond = excess([error], -widest, widest)
        add_bar(line[2], show(line[2], error, grid, -widest, widest, ERRORS), extend=beyond)
        label = f"{label_of(data, name)}\n\n{axis_label(data, 'y')}"
        line[0].set_ylabel(label, fontsize=NORMAL)
        line[2].set_title(f"rms {digits(error.rms, 2)}", fontsize=NORMAL)
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
    return Plot(figure, caption)
