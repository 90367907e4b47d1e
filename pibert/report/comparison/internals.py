"""Figures of the inside of models: PIBERT's tokens on one frame, and what embeddings encode.

Token arrays are those of ``evaluation/insight.py``, of the frame with the median error of
persistence; a token stands for patch x patch points. R² of the vorticity is that of
``evaluation/alignment.py``, on trajectories that the regression has not seen.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import matplotlib
import numpy as np
import torch
from jaxtyping import Float
from matplotlib.axes import Axes
from torch import Tensor

from pibert.evaluation.insight import token_errors
from pibert.evaluation.scales import SCALES
from pibert.fields import Grid
from pibert.report.comparison.fields import (
    PICKS,
    Picked,
    label_of,
    main_quantity,
    pick,
    pick_rule,
    quantities,
)
from pibert.report.comparison.plots import (
    Plot,
    frame,
    label_axes,
    line_style,
    rows_of_models,
    sheet,
    side_legend,
)
from pibert.report.comparison.results import DatasetResults
from pibert.report.figures import (
    ERRORS,
    LARGE,
    NORMAL,
    SMALL,
    VALUES,
    add_bar,
    height_over_width,
    layer_of,
    show,
)

_WIDTH = 2.9
_PANELS = ("field", "gain", "fourier_rms", "gate_map", "residual", "attention", "received")
_LOWEST = -0.25
"""Lower values of R² are shown at this one: nothing is known either way."""
_INPUT = {"alignment_input": "input: values", "alignment_input_mean": "input: mean"}
_GREYS: tuple[dict[str, Any], ...] = tuple(
    {"color": "0.45", "ls": ls, "lw": 1.2} for ls in ("-.", ":")
)
"""Lines of the inputs."""
Curves = dict[str, np.ndarray]


class TokenFrame(NamedTuple):
    """The frame whose tokens are shown."""

    data: DatasetResults
    model: str
    rival: str | None
    picked: Picked
    arrays: Mapping[str, Tensor]
    """Token arrays of all selected frames."""
    gain: Float[Tensor, "ty tx"] | None
    """Error of the rival minus that of the model by token; NaN without a known point."""

    @property
    def patch(self) -> int:
        return int(self.arrays["patch"])

    @property
    def grid(self) -> Grid:
        return self.data.spec.grid

    def array(self, name: str) -> Tensor:
        """An array of this frame, or the only one."""
        values = self.arrays[name]
        return values[min(PICKS["median"], len(values) - 1)]

    def corner(self, row: int | float, column: int | float) -> tuple[float, float]:
        """Coordinates of the lower left corner of a token."""
        grid = self.grid
        left, bottom = grid.origin[0] - grid.dx / 2, grid.origin[1] - grid.dy / 2
        return left + column * self.patch * grid.dx, bottom + row * self.patch * grid.dy


def tokens(data: DatasetResults) -> Plot | None:
    """Token diagnostics of PIBERT, or of the best model that has them."""
    names = sorted(data.models, key=lambda name: name != "pibert")
    model = next((m for m in names if "tokens/patch" in data.first(m).arrays), None)
    picked = pick(data, "median")
    if model is None or picked is None:
        return None
    shown = _token_frame(data, model, picked)
    has = {"field": True, "gain": shown.gain is not None}
    panels = [name for name in _PANELS if has.get(name, name in shown.arrays)]
    rows = -(-len(panels) // 3)
    height = min(max(_WIDTH * height_over_width(shown.grid), 1.3), 3.2) + 0.65
    figure, axes = sheet(3 * (_WIDTH + 0.75), rows * height, rows, 3)
    for letter, ax, panel in zip("abcdefg", axes.flat, panels, strict=False):
        label_axes(ax, data)
        title = _draw_panel(ax, panel, shown)
        ax.set_title(f"{letter}  {title}", fontsize=LARGE, loc="left")
        ax.tick_params(labelsize=SMALL, length=2, width=0.6)
        ax.locator_params(axis="x", nbins=5)  # labels of a narrow panel would touch
    for ax in axes.flat[len(panels) :]:
        ax.set_axis_off()
    gain = (
        f"Gain: relative error of {shown.rival} minus that of {model} over the points of a token, "
        "blue where it is positive. "
    )
    caption = (
        f"Tokens of {model} on {picked.origin}, the middle one of the {pick_rule(data)}. "
        f"{gain if shown.gain is not None else ''}Attention is the mean over heads and layers. The "
        "residual measures how much a patch violates the equations; it reduces the attention that "
        "its token receives."
    )
    return Plot(figure, caption)


def _token_frame(data: DatasetResults, model: str, picked: Picked) -> TokenFrame:
    arrays, rival = data.first(model).group("tokens"), data.rival(model)
    gain = None
    if rival in picked.predictions:
        rival_errors, errors = (
            token_errors(picked.predictions[m], picked.truth, picked.shown, int(arrays["patch"]))
            for m in (rival, model)
        )
        gain = rival_errors - errors
    return TokenFrame(data, model, rival, picked, arrays, gain)


def _draw_panel(ax: Axes, panel: str, shown: TokenFrame) -> str:
    """Draw one panel and return its title."""
    if panel == "field":
        return _draw_field(ax, shown)
    if panel == "fourier_rms":
        return _draw_fourier(ax, shown)
    if panel == "gain":
        assert shown.gain is not None
        widest = max(float(np.nanquantile(shown.gain.abs().numpy(), 0.98)), 1e-12)
        _draw_map(ax, shown, shown.gain, f"{ERRORS}_r", (-widest, widest))
        return f"Token gain over {shown.rival}"
    values = shown.array(panel)
    if panel == "gate_map":
        add_bar(ax, show(ax, layer_of(values, shown.picked.shown), shown.grid, 0.0, 1.0, VALUES))
        return "Gate: share of the Fourier branch"
    if panel == "residual":
        _draw_map(ax, shown, values, VALUES)
        return "Residual of the equations"
    _draw_map(ax, shown, 100 * values.mean(0), "magma")  # mean over layers
    if panel == "received":
        return "Attention received [%]"
    row, column = (int(n) for n in shown.array("query"))
    ax.plot(*shown.corner(row + 0.5, column + 0.5), "s", ms=7, mfc="none", mec="white", mew=1.4)
    return "Attention of the marked token [%]"


def _draw_field(ax: Axes, shown: TokenFrame) -> str:
    """The truth with the borders of the tokens."""
    name = main_quantity(shown.data)
    layer = quantities(shown.data, shown.picked.truth, shown.picked.shown)[name]
    add_bar(ax, show(ax, layer, shown.grid, *layer.scale()))
    ty, tx = (int(n) for n in shown.arrays["token_shape"])
    style: dict[str, Any] = {"color": "white", "lw": 0.4, "alpha": 0.7}
    for column in range(1, tx):
        ax.axvline(shown.corner(0, column)[0], **style)
    for row in range(1, ty):
        ax.axhline(shown.corner(row, 0)[1], **style)
    extra = " + 1" if "parameter_attention" in shown.arrays else ""
    return f"{label_of(shown.data, name)}, {ty} × {tx}{extra} tokens"


def _draw_fourier(ax: Axes, shown: TokenFrame) -> str:
    rms, ky, kx = (shown.arrays[f"fourier_{name}"].double().numpy() for name in ("rms", "ky", "kx"))
    colours = matplotlib.colormaps["magma"].with_extremes(bad="0.75")
    extent = (kx[0] - 0.5, kx[-1] + 0.5, ky[0] - 0.5, ky[-1] + 0.5)
    values = np.ma.masked_invalid(rms)
    add_bar(ax, ax.imshow(values, cmap=colours, origin="lower", extent=extent, aspect="auto"))
    ax.set_box_aspect(height_over_width(shown.grid))
    ax.locator_params(nbins=5, integer=True)
    ax.set_xlabel("$k_x$ [cycles per domain]", fontsize=NORMAL)
    ax.set_ylabel("$k_y$ [cycles per domain]", fontsize=NORMAL)
    return "Fourier weights, rms"


def _draw_map(
    ax: Axes,
    shown: TokenFrame,
    values: Float[Tensor, "ty tx"],
    colours: str,
    limits: tuple[float, float] | None = None,
) -> None:
    """A map of tokens over the flow, with a colour bar."""
    points = values.double().repeat_interleave(shown.patch, 0).repeat_interleave(shown.patch, 1)
    points = points[: shown.grid.shape[0], : shown.grid.shape[1]]
    finite = points.isfinite()
    layer = layer_of(torch.where(finite, points, 0.0), finite)
    low, high = limits or (float(layer.shown.min()), float(layer.shown.max()))
    image = show(ax, layer, shown.grid, low, max(high, low + 1e-12), colours)
    add_bar(ax, image, layer.excess(low, high))


def embedding_alignment(data: DatasetResults) -> Plot | None:
    """Held-out R² of the vorticity at four scales, with and without training."""
    curves = _curves(data, "alignment")
    if not curves:
        return None
    untrained = {
        m: values for m, values in _curves(data, "alignment_untrained").items() if m in curves
    }
    inputs = {
        label: next(iter(found.values()))
        for name, label in _INPUT.items()
        if (found := _curves(data, name))
    }
    columns = 2 if untrained else 1
    tall = max(3.6, 0.18 * (len(curves) + len(inputs)) + 1.2)
    figure, axes = sheet(6.6 if columns == 1 else 10.6, tall, 1, columns)
    ax, scales = axes[0, 0], np.arange(len(SCALES))
    frame(ax, "Vorticity from embeddings", x="scale [grid points]", y="held-out R²")
    ax.set_xticks(scales, [f"{scale}" for scale in SCALES])
    for (label, values), style in zip(inputs.items(), _GREYS, strict=False):
        ax.plot(scales, values, **style, zorder=2, label=label)
    for model, values in curves.items():
        ax.plot(scales, values, **line_style(data, model), marker="o", ms=4)
    side_legend(ax)
    if untrained:
        _draw_means(axes[0, 1], data, curves, untrained, inputs)
    layers = {m: data.first(m).card.get("embedding", {}).get("layer") for m in data.models}
    named = "; ".join(f"{model}: {layer}" for model, layer in layers.items() if layer)
    caption = (
        "R² of a ridge regression from the embeddings of test frames, averaged over the patch of a "
        "token, to their vorticity, averaged over cells of 1 to 8 points, on trajectories that the "
        "regression has not seen. All models see the velocity itself, so the values only mean "
        "something in comparison. Right: filled after training, open before; in brackets the width "
        "of the embedding. Grey: the input itself, as all velocities of a patch and as their mean. "
        f"Layers: {named or 'not recorded'}."
    )
    return Plot(figure, caption)


def _curves(data: DatasetResults, name: str) -> Curves:
    curves = {m: values.double().numpy() for m, values in data.arrays_of(data.models, name).items()}
    return {m: values.clip(_LOWEST) for m, values in curves.items() if np.isfinite(values).any()}


def _draw_means(
    ax: Axes, data: DatasetResults, curves: Curves, untrained: Curves, inputs: Curves
) -> None:
    """Means over the scales, of trained models and of the same models before training."""
    frame(ax, "Mean over scales", x="held-out R²")
    order = sorted(curves, key=lambda m: float(np.nanmean(curves[m])), reverse=True)
    for row, model in enumerate(order):
        dot: dict[str, Any] = {"color": data.colour(model), "marker": "o", "ms": 5, "ls": ""}
        trained = float(np.nanmean(curves[model]))
        if model in untrained:
            before = float(np.nanmean(untrained[model]))
            ax.plot([before, trained], [row, row], color=data.colour(model), lw=1.0, alpha=0.6)
            ax.plot([before], [row], **dot, mfc="w")
        ax.plot([trained], [row], **dot)
    for values, style in zip(inputs.values(), _GREYS, strict=False):
        ax.axvline(float(np.nanmean(values)), **style, zorder=1)
    ax.margins(x=0.05)
    widths = {m: data.first(m).card.get("embedding", {}).get("width") for m in order}
    rows_of_models(ax, [m if widths[m] is None else f"{m} ({widths[m]})" for m in order])
