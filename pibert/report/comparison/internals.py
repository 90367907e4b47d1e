"""Figures of the inside of models: PIBERT's tokens on one frame, and what embeddings encode.

Token arrays are those of ``evaluation/tokens.py``, of the frame with the median error of
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
from matplotlib.image import AxesImage
from torch import Tensor

from pibert.evaluation.scales import SCALES
from pibert.evaluation.tokens import token_errors
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
    Drawn,
    Label,
    frame,
    label_axes,
    label_ends,
    line_style,
    sheet,
)
from pibert.report.comparison.results import DatasetResults
from pibert.report.figures import (
    ERRORS,
    LARGE,
    NORMAL,
    SMALL,
    VALUES,
    add_bar,
    blank,
    height_over_width,
    layer_of,
    show,
    with_unit,
)

_WIDTH = 2.9
_PANELS = ("field", "gain", "fourier_rms", "gate_map", "residual", "attention", "received")
_LOWEST = -0.25
"""A lower R² only says that nothing is known."""
_INPUT = {"alignment_input": "input: values", "alignment_input_mean": "input: mean"}
_GREY = "0.45"
Curves = dict[str, np.ndarray]


class Frame(NamedTuple):
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

    def of(self, name: str) -> Tensor:
        """An array of this frame, or the only one."""
        values = self.arrays[name]
        return values[min(PICKS["median"], len(values) - 1)]

    def corner(self, row: int | float, column: int | float) -> tuple[float, float]:
        """Coordinates of the lower left corner of a token."""
        grid = self.grid
        left, bottom = grid.origin[0] - grid.dx / 2, grid.origin[1] - grid.dy / 2
        return left + column * self.patch * grid.dx, bottom + row * self.patch * grid.dy


def tokens(data: DatasetResults) -> Drawn | None:
    """Token diagnostics of PIBERT, or of the best model that has them."""
    names = sorted(data.models, key=lambda name: name != "pibert")
    model = next((m for m in names if "tokens/patch" in data.first(m).arrays), None)
    picked = pick(data, "median")
    if model is None or picked is None:
        return None
    own = _frame(data, model, picked)
    has = {"field": True, "gain": own.gain is not None}
    panels = [name for name in _PANELS if has.get(name, name in own.arrays)]
    rows = -(-len(panels) // 3)
    height = min(max(_WIDTH * height_over_width(own.grid), 1.3), 3.2) + 0.65
    figure = blank(3 * (_WIDTH + 0.75), rows * height)
    axes = figure.subplots(rows, 3, squeeze=False)
    for letter, ax, panel in zip("abcdefg", axes.flat, panels, strict=False):
        label_axes(ax, data)
        title = _draw_panel(ax, panel, own)
        ax.set_title(f"{letter}  {title}", fontsize=LARGE, loc="left")
        ax.tick_params(labelsize=SMALL, length=2, width=0.6)
        ax.locator_params(axis="x", nbins=5)  # labels of a narrow panel would touch
        for spine in ax.spines.values():
            spine.set_linewidth(0.6)
    for ax in axes.flat[len(panels) :]:
        ax.set_axis_off()
    caption = (
        f"Tokens of {model} on {picked.words}, the middle one of the {pick_rule(data)}."
        f"{_gain_text(own)}{_gate_text(own)} Attention is the mean over heads and layers. The "
        "residual measures how much a patch violates the equations; it reduces the attention that "
        "its token receives."
    )
    alt = f"{len(panels)} panels on the tokens of {model}: {', '.join(panels)}."
    return Drawn(figure, caption, alt.replace("_", " "))


def _frame(data: DatasetResults, model: str, picked: Picked) -> Frame:
    arrays, rival = data.first(model).part("tokens"), data.rival(model)
    gain = None
    if rival in picked.predictions:
        theirs, own = (
            token_errors(picked.predictions[m], picked.truth, picked.shown, int(arrays["patch"]))
            for m in (rival, model)
        )
        gain = theirs - own
    return Frame(data, model, rival, picked, arrays, gain)


def _draw_panel(ax: Axes, panel: str, own: Frame) -> str:
    """Draw one panel and return its title."""
    if panel == "field":
        return _draw_field(ax, own)
    if panel == "fourier_rms":
        return _draw_fourier(ax, own)
    if panel == "gain":
        assert own.gain is not None
        widest = max(float(np.nanquantile(own.gain.abs().numpy(), 0.98)), 1e-12)
        extend = "both" if float(own.gain.nan_to_num().abs().max()) > widest else "neither"
        add_bar(ax, _map(ax, own, own.gain, f"{ERRORS}_r", -widest, widest), extend)
        return f"Token gain over {own.rival}"
    values = own.of(panel)
    if panel == "gate_map":
        add_bar(ax, show(ax, layer_of(values, own.picked.shown), own.grid, 0.0, 1.0, VALUES))
        return "Gate: share of the Fourier branch"
    if panel == "residual":
        add_bar(ax, _map(ax, own, values, VALUES))
        return "Residual of the equations"
    add_bar(ax, _map(ax, own, 100 * values.mean(0), "magma"))  # mean over layers
    if panel == "received":
        return "Attention received [%]"
    row, column = (int(n) for n in own.of("query"))
    ax.plot(*own.corner(row + 0.5, column + 0.5), "s", ms=7, mfc="none", mec="white", mew=1.4)
    return "Attention of the marked token [%]"


def _draw_field(ax: Axes, own: Frame) -> str:
    """The truth with the borders of the tokens."""
    name = main_quantity(own.data)
    layer = quantities(own.data, own.picked.truth, own.picked.shown)[name]
    add_bar(ax, show(ax, layer, own.grid, *layer.scale()))
    ny, nx = own.grid.shape
    style: dict[str, Any] = {"color": "white", "lw": 0.4, "alpha": 0.7}
    for column in range(1, -(-nx // own.patch)):
        ax.axvline(own.corner(0, column)[0], **style)
    for row in range(1, -(-ny // own.patch)):
        ax.axhline(own.corner(row, 0)[1], **style)
    ty, tx = (int(n) for n in own.arrays["token_shape"])
    extra = " + 1" if "parameter_attention" in own.arrays else ""
    return f"{label_of(own.data, name)}, {ty} × {tx}{extra} tokens"


def _draw_fourier(ax: Axes, own: Frame) -> str:
    rms, ky, kx = (own.arrays[f"fourier_{name}"].double().numpy() for name in ("rms", "ky", "kx"))
    colours = matplotlib.colormaps["magma"].with_extremes(bad="0.75")
    extent = (kx[0] - 0.5, kx[-1] + 0.5, ky[0] - 0.5, ky[-1] + 0.5)
    values = np.ma.masked_invalid(rms)
    add_bar(ax, ax.imshow(values, cmap=colours, origin="lower", extent=extent, aspect="auto"))
    ax.set_box_aspect(height_over_width(own.grid))
    ax.set_xlabel("$k_x$ [cycles per domain]", fontsize=NORMAL)
    ax.set_ylabel("$k_y$ [cycles per domain]", fontsize=NORMAL)
    return "Fourier weights, rms"


def _map(
    ax: Axes,
    own: Frame,
    values: Float[Tensor, "ty tx"],
    colours: str,
    low: float | None = None,
    high: float | None = None,
) -> AxesImage:
    """A map of tokens at their places in the flow."""
    points = values.double().repeat_interleave(own.patch, 0).repeat_interleave(own.patch, 1)
    points = points[: own.grid.shape[0], : own.grid.shape[1]]
    finite = points.isfinite()
    layer = layer_of(torch.where(finite, points, 0.0), finite)
    if low is None or high is None:
        low, high = float(layer.shown.min()), float(layer.shown.max())
        high = high if high > low else low + 1e-12
    return show(ax, layer, own.grid, low, high, colours)


def _gain_text(own: Frame) -> str:
    if own.gain is None:
        return ""
    counted = own.gain[own.gain.isfinite()]
    share = float((counted > 0).double().mean()) if counted.numel() else 0.0
    return (
        f" Gain: relative error of {own.rival} minus that of {own.model} over the points of a "
        f"token, positive (blue) in {share:.0%} of them."
    )


def _gate_text(own: Frame) -> str:
    if "gate" not in own.arrays:
        return ""
    fourier, wavelet = own.arrays["gate"].double().tolist()
    return f" The gate mixes {fourier:.2f} of the Fourier and {wavelet:.2f} of the wavelet branch."


def embedding_alignment(data: DatasetResults) -> Drawn | None:
    """Held-out R² of the vorticity at four scales, with and without training."""
    curves = _curves(data, "alignment")
    if not curves:
        return None
    fresh = {m: own for m, own in _curves(data, "alignment_untrained").items() if m in curves}
    inputs = {
        label: next(iter(found.values()))
        for name, label in _INPUT.items()
        if (found := _curves(data, name))
    }
    columns = 2 if fresh else 1
    tall = max(3.6, 0.18 * (len(curves) + len(inputs)) + 1.2)
    figure, axes = sheet(6.6 if columns == 1 else 10.6, tall, 1, columns)
    everything = np.concatenate([*curves.values(), *fresh.values(), *inputs.values()])
    everything = everything[np.isfinite(everything)]
    low, high = max(_LOWEST, float(everything.min())), float(everything.max())
    slack = 0.06 * (high - low) + 0.01
    limits = (low - slack, max(high, low) + slack)
    if fresh:
        _draw_means(axes[0, 1], data, curves, fresh, inputs, limits)
    _draw_scales(axes[0, 0], data, curves, inputs, limits)
    best = max(curves, key=lambda m: float(np.nanmean(curves[m])))
    alt = f"R² by scale of {len(curves)} models on {data.name}; {best} has the highest mean."
    return Drawn(figure, _alignment_caption(data, bool(fresh), bool(inputs)), alt)


def _curves(data: DatasetResults, name: str) -> Curves:
    found = {m: own.double().numpy() for m, own in data.arrays_of(data.models, name).items()}
    return {m: own for m, own in found.items() if np.isfinite(own).any()}


def _draw_scales(
    ax: Axes, data: DatasetResults, curves: Curves, inputs: Curves, limits: tuple[float, float]
) -> None:
    places = np.arange(len(SCALES))
    frame(ax, "Vorticity from embeddings", x="scale [grid points]", y="held-out R²")
    ax.set_ylim(*limits)
    ax.set_xlim(-0.15, len(SCALES) - 0.85)
    ax.set_xticks(places, [f"{scale}" for scale in SCALES])
    if limits[0] < 0:
        ax.axhline(0.0, color="0.4", lw=0.8, ls=":", zorder=1)
    for values in inputs.values():
        ax.plot(places, values, color=_GREY, ls="-.", lw=1.2, zorder=2)
    for model, values in curves.items():
        ax.plot(places, values, **line_style(data, model), marker="o", ms=4)
    colours = {label: _GREY for label in inputs} | {m: data.colour(m) for m in curves}
    ends = [
        Label(float(places[-1]), float(max(values[-1], limits[0])), name, colours[name])
        for name, values in (inputs | curves).items()
        if np.isfinite(values[-1])
    ]
    label_ends(ax, ends)


def _draw_means(
    ax: Axes,
    data: DatasetResults,
    curves: Curves,
    fresh: Curves,
    inputs: Curves,
    limits: tuple[float, float],
) -> None:
    """Means over the scales, of trained models and of the same models before training."""
    frame(ax, "Mean over scales", x="held-out R²")
    order = sorted(curves, key=lambda m: float(np.nanmean(curves[m])))
    for row, model in enumerate(order):
        colour = data.colour(model)
        trained = float(np.nanmean(curves[model]).clip(limits[0]))
        if model in fresh:
            began = float(np.nanmean(fresh[model]).clip(limits[0]))
            ax.plot([began, trained], [row, row], color=colour, lw=1.0, alpha=0.6)
            ax.plot([began], [row], color=colour, marker="o", ms=5, mfc="w", ls="")
        ax.plot([trained], [row], color=colour, marker="o", ms=5, ls="")
    for values in inputs.values():
        ax.axvline(float(np.nanmean(values)), color=_GREY, ls="-.", lw=1.2, zorder=1)
    ax.set_xlim(*limits)
    ax.set_ylim(-0.6, len(order) - 0.4)
    widths = {m: data.first(m).card.get("embedding", {}).get("width") for m in order}
    labels = [m if widths[m] is None else f"{m} ({widths[m]})" for m in order]
    ax.set_yticks(range(len(order)), labels, fontsize=SMALL)


def _alignment_caption(data: DatasetResults, has_fresh: bool, has_inputs: bool) -> str:
    grid = data.spec.grid
    size = with_unit(f"{grid.dx:.3g} × {grid.dy:.3g}", data.facts.get("length_unit"))
    said = [
        "R² of a ridge regression from the embeddings of test frames to their vorticity, averaged "
        "over cells of 1 to 8 points, on trajectories that the regression has not seen. A point is "
        f"{size}. All models see the velocity itself, so the values only mean something in "
        "comparison."
    ]
    layers = {m: data.first(m).card.get("embedding", {}).get("layer") for m in data.models}
    if any(layers.values()):
        named = "; ".join(f"{model}: {layer}" for model, layer in layers.items() if layer)
        said.append(f"Embeddings are averaged over the patch of a token. Layers: {named}.")
    if has_fresh:
        said.append(
            "Right: filled after training, open before training; the width of the embedding is in "
            "brackets."
        )
    if has_inputs:
        said.append("Grey: the input itself, as all velocities of a patch and as their mean.")
    return " ".join(said)
