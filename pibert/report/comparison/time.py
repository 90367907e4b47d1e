"""Predictions in time: series at probes, consecutive frames, animations, rollouts.

Except for rollouts, each frame is predicted from the true frames before it (teacher forcing).
Strips and animations start at the frame with the median error of persistence. Flows show vorticity,
other fields their first channel, on the scale of the truth.
"""

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from jaxtyping import Bool, Float
from matplotlib.animation import PillowWriter
from matplotlib.axes import Axes
from matplotlib.patheffects import withStroke
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from pibert.report.comparison.fields import (
    VORTICITY,
    Picked,
    label_of,
    main_quantity,
    pick,
    quantities,
)
from pibert.report.comparison.plots import (
    Animation,
    Plot,
    bare,
    first_seed,
    frame,
    label_axes,
    line_style,
    logarithmic,
    sheet,
    side_legend,
    time_unit,
)
from pibert.report.comparison.results import DatasetResults
from pibert.report.comparison.table import digits
from pibert.report.figures import (
    ERRORS,
    NORMAL,
    SIGNED,
    SMALL,
    VALUES,
    add_bar,
    blank,
    height_over_width,
    is_signed,
    layer_of,
    show,
    vorticity_of,
    with_unit,
    write_film,
)

_PROBES = 4
_LONGEST = 160
"""Frames of a series that are plotted: lines through more of them blur."""
_COLUMNS, _ROWS = 6, 6
_RATE = 6
_MOST = 9
ROLLOUT_PANELS = {
    "a  Error": ("fluctuation_nmse", "squared error / variance in time"),
    "b  Skill": ("skill", "skill against persistence"),
    "c  Correlation": ("correlation", "correlation of fluctuations"),
}
_LOWEST_SKILL = -1.0
"""A model with less skill is simply worse than persistence."""


class Series(NamedTuple):
    """One channel at the probes of a test trajectory."""

    label: str
    unit: str
    time: np.ndarray
    probes: list[tuple[int, int]]
    """Row and column of each."""
    truth: Tensor
    """(t, probe)."""
    models: dict[str, Tensor]


def probe_series(data: DatasetResults, shown: tuple[str, ...]) -> Series | None:
    """The series of v, or of the first channel; None without probes."""
    arrays, spec = data.reference.arrays, data.spec
    if "probes/truth" not in arrays or not arrays["probes/truth"].numel():
        return None
    channel = 0 if spec.velocity is None else spec.velocity[1]
    first = int(arrays["rows/frame"][0])
    frames = np.arange(first, first + len(arrays["probes/truth"]))
    models = data.arrays_of(shown, "probes/prediction")
    return Series(
        label=spec.channels[channel],
        unit=spec.units[channel],
        time=frames * (spec.dt or 1.0),
        probes=[(int(row), int(column)) for row, column in arrays["probes/places"]],
        truth=arrays["probes/truth"][..., channel],
        models={m: values[..., channel] for m, values in models.items()},
    )


def probe_traces(data: DatasetResults) -> Plot | None:
    """A map with probes; below, truth and models at each of them, and the models' errors."""
    series, picked = probe_series(data, data.shown(5)), pick(data, "median")
    if series is None or picked is None:
        return None
    count, length = len(series.probes), min(len(series.time), _LONGEST)
    chosen = sorted({round(n) for n in np.linspace(0, count - 1, min(count, _PROBES))})
    x, y = data.spec.grid.coordinates(torch.float64)
    at = [(float(x[series.probes[n]]), float(y[series.probes[n]])) for n in chosen]
    rows = len(chosen) + 1
    heights = [1.75, *[1.0] * len(chosen)]
    figure, axes = sheet(10.4, 1.15 + 1.35 * rows, rows, 2, height_ratios=heights)
    _draw_probes(axes[0, 0], data, picked, at)
    for name in ("truth", *series.models):
        axes[0, 1].plot([], [], **line_style(data, name))
    axes[0, 1].legend(loc="center", fontsize=NORMAL, frameon=False, ncols=2, handlelength=3)
    axes[0, 1].set_axis_off()
    label, clock = with_unit(series.label, series.unit), with_unit("time", time_unit(data))
    time = series.time[:length]
    for row, (probe, point) in enumerate(zip(chosen, at, strict=True), start=1):
        left, right = axes[row]
        is_last = row == len(chosen)
        below = clock if is_last else ""
        place = f"x = {point[0]:.3g}, y = {point[1]:.3g}".replace("-", "\N{MINUS SIGN}")
        frame(left, f"P{row}  {place}", x=below, y=label)
        frame(right, f"P{row}  error", x=below)
        truth = series.truth[:length, probe]
        left.plot(time, truth, **line_style(data, "truth"), alpha=0.8)
        right.axhline(0.0, color="0.5", lw=0.6)
        for model, values in series.models.items():
            left.plot(time, values[:length, probe], **line_style(data, model))
            right.plot(time, values[:length, probe] - truth, **line_style(data, model))
        for ax in (left, right):
            ax.set_xlim(time[0], time[-1])
            ax.tick_params(labelbottom=is_last)
    caption = (
        f"{data.trajectory(0)}, {length} frames: {label} at {len(chosen)} of {count} probes, and "
        "the errors of one-step predictions, each made from the true frame before it. Probes are "
        "placed by the geometry; the map shows the frame with the median error of persistence."
    )
    return Plot(figure, caption)


def _draw_probes(
    ax: Axes, data: DatasetResults, picked: Picked, at: list[tuple[float, float]]
) -> None:
    name = main_quantity(data)
    layer = quantities(data, picked.truth, picked.shown)[name]
    add_bar(ax, show(ax, layer, data.spec.grid, *layer.scale()))
    frame(ax, label_of(data, name), grid=False)
    label_axes(ax, data)
    rim = [withStroke(linewidth=2, foreground="white")]
    for number, point in enumerate(at, start=1):
        ax.plot(*point, "o", ms=4.5, mfc="white", mec="black", mew=0.8)
        style: dict[str, Any] = {"textcoords": "offset points", "fontsize": NORMAL}
        ax.annotate(f"P{number}", point, xytext=(4, 3), **style, path_effects=rim)


class Strip(NamedTuple):
    """Consecutive frames of one quantity."""

    name: str
    truth: Float[Tensor, "t y x"]
    models: dict[str, Float[Tensor, "t y x"]]
    known: Bool[Tensor, "t y x"]
    frames: list[int]
    """Numbers of the frames in their trajectory."""
    trajectory: str
    scale: tuple[float, float, str]
    """That of the truth."""


def _strip(data: DatasetResults, shown: tuple[str, ...]) -> Strip | None:
    arrays, spec = data.reference.arrays, data.spec
    if "strip/truth" not in arrays or len(arrays["strip/rows"]) < 2:
        return None  # frames in pairs do not follow each other
    is_flow = spec.velocity is not None

    def quantity(fields: Tensor) -> tuple[Tensor, Tensor]:
        known = arrays["strip/known"]
        if not is_flow:
            return fields[:, 0].double(), known
        return vorticity_of(spec, fields.double(), known, linear=True)

    truth, known = quantity(arrays["strip/truth"])
    predictions = data.arrays_of(shown, "strip/prediction")
    layer = layer_of(truth, known)
    low, high = layer.inner
    scale = (low, high if high > low else low + 1.0, VALUES)
    if is_signed(low, high, always=is_flow):
        scale = (-layer.robust_limit, layer.robust_limit, SIGNED)
    rows = arrays["strip/rows"].tolist()
    return Strip(
        name=label_of(data, VORTICITY if is_flow else spec.channels[0]),
        truth=truth,
        models={m: quantity(fields)[0] for m, fields in predictions.items()},
        known=known,
        frames=[int(arrays["rows/frame"][row]) for row in rows],
        trajectory=str(data.info["names"][int(arrays["rows/trajectory"][rows[0]])]),
        scale=scale,
    )


def timestep_strip(data: DatasetResults) -> Plot | None:
    """Truth and models, one row each, in frames spread evenly over the strip."""
    strip = _strip(data, data.shown(_ROWS))
    if strip is None:
        return None
    step = max(1, (len(strip.frames) - 1) // (_COLUMNS - 1))
    columns = list(range(0, len(strip.frames), step))[:_COLUMNS]
    rows = {"truth": strip.truth, **strip.models}
    height = min(max(1.55 * height_over_width(data.spec.grid), 0.5), 2.4)
    figure = blank(len(columns) * 1.55 + 1.6, len(rows) * (height + 0.24) + 0.4)
    axes = figure.subplots(len(rows), len(columns), squeeze=False)
    for line, (name, fields) in zip(axes, rows.items(), strict=True):
        colour = data.colour(name) if name in data.models else "black"
        style = {"rotation": 0, "ha": "right", "va": "center", "color": colour}
        line[0].set_ylabel(name, fontsize=NORMAL, **style)
        for ax, column in zip(line, columns, strict=True):
            layer = layer_of(fields[column], strip.known[column])
            image = show(ax, layer, data.spec.grid, *strip.scale)
            bare(ax)
            if name != "truth":
                error = layer_of((fields - strip.truth)[column], strip.known[column])
                ax.set_xlabel(f"rms error {digits(error.rms, 2)}", fontsize=SMALL)
    for ax, column in zip(axes[0], columns, strict=True):
        ax.set_title(_moment(data, strip.frames[column]), fontsize=NORMAL)
    add_bar(axes[0, -1], image, extend="both")
    caption = (
        f"{strip.trajectory}: {strip.name}, every {'frame' if step == 1 else f'{step} frames'}, "
        "starting at the frame with the median error of persistence; next-frame predictions on the "
        "scale of the truth, with their rms errors below."
    )
    return Plot(figure, caption)


def animation(data: DatasetResults) -> Animation | None:
    """Truth, prediction and error of PIBERT, or of the best model, frame by frame."""
    model = "pibert" if "pibert" in data.models else data.models[0]
    strip = _strip(data, (model,))
    if strip is None or model not in strip.models:
        return None
    error = strip.models[model] - strip.truth
    widest = max(layer_of(error, strip.known).robust_limit, 1e-12)
    panels = (
        ("truth", strip.truth, strip.scale),
        (model, strip.models[model], strip.scale),
        ("error", error, (-widest, widest, ERRORS)),
    )
    height = min(max(2.4 * height_over_width(data.spec.grid), 0.9), 3.6)
    figure = blank(3 * 2.4 + 1.9, height + 0.75)
    images = []
    for ax, (title, fields, scale) in zip(figure.subplots(1, 3), panels, strict=True):
        image = show(ax, layer_of(fields[0], strip.known[0]), data.spec.grid, *scale)
        add_bar(ax, image, extend="both")
        bare(ax)
        ax.set_title(title, fontsize=NORMAL + 1)
        images.append(image)
    clock = figure.suptitle("", fontsize=NORMAL, x=0.01, ha="left")

    def update(number: int) -> None:
        for image, (_, fields, _) in zip(images, panels, strict=True):
            image.set_data(layer_of(fields[number], strip.known[number]).values)
        clock.set_text(f"{strip.name}, {_moment(data, strip.frames[number])}")

    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "film.apng"
        write_film(figure, PillowWriter(fps=_RATE), path, update, len(strip.frames))
        content = path.read_bytes()
    caption = (
        f"{strip.trajectory}: {strip.name}, {len(strip.frames)} frames, starting at the one with "
        f"the median error of persistence: truth, next-frame prediction of {model} on the same "
        "scale, and prediction minus truth."
    )
    return Animation(content, caption)


def _moment(data: DatasetResults, number: int) -> str:
    dt = data.spec.dt
    if dt is None:
        return f"frame {number}"
    return f"t = {number * dt:.4g} {time_unit(data) or ''}".rstrip()


def rollout(data: DatasetResults) -> Plot | None:
    """Error, skill and correlation of all components against lead time."""
    arrays = data.arrays_of(data.shown(_MOST), "rollout/curves")
    if not arrays:
        return None
    shown = list(arrays)
    figure, axes = sheet(11.4, max(3.6, 0.16 * len(shown) + 1.4), 1, 3)
    lead = np.arange(1, len(arrays[shown[0]]) + 1)
    for ax, (title, (metric, name)) in zip(axes[0], ROLLOUT_PANELS.items(), strict=True):
        frame(ax, title, x="lead time [frames]", y=name)
        for model in shown:
            low, high = (_curve(data, model, metric, end) for end in ("low", "high"))
            if low is not None and high is not None:
                band = ax.fill_between(lead, low, high, color=data.colour(model), alpha=0.15, lw=0)
                band.set_in_layout(False)  # it may reach far beyond the axes
        curves = {m: c for m in shown if (c := _curve(data, m, metric)) is not None}
        _draw_curves(ax, data, metric, lead, curves)
    side_legend(axes[0, -1])
    facts = data.first(shown[0]).card["rollout"]
    caption = (
        f"{facts['starts']} rollouts from starts spread evenly over the test split, all components "
        "together. Error 1 (dotted) is that of the mean in time, skill 0 that of repeating the "
        "last known frame. Crosses: last lead time before a rollout of the model diverged. Bands, "
        f"95 % intervals: {facts.get('intervals', 'none')}.{first_seed(data)}"
    )
    return Plot(figure, caption)


def _draw_curves(
    ax: Axes, data: DatasetResults, metric: str, lead: np.ndarray, curves: Mapping[str, np.ndarray]
) -> None:
    for model, values in curves.items():
        shown = np.maximum(values, _LOWEST_SKILL * 1.5) if metric == "skill" else values
        ax.plot(lead, shown, **line_style(data, model))
    finite = np.concatenate([v[np.isfinite(v)] for v in curves.values()])
    lowest = float(finite.min()) if finite.size else 0.0
    if metric == "skill":
        ax.set_ylim(max(_LOWEST_SKILL, min(-0.05, lowest)) - 0.05, 1.02)
        ax.axhline(0.0, color="0.4", lw=0.8, ls=":", zorder=1)
    elif metric == "correlation":
        ax.set_ylim(max(-0.3, lowest - 0.05 * (1 - lowest)), 1.0 + 0.02 * (1 - lowest))
    elif (finite > 0).any():
        low = float(finite[finite > 0].min())
        # An error that explodes may leave the axis.
        logarithmic(ax, "y", [low, float(min(finite.max(), max(30.0, 10 * low)))])
        ax.axhline(1.0, color="0.4", lw=0.8, ls=":", zorder=1)
    ax.set_xlim(0 if len(lead) > 4 else 0.8, len(lead) + (0 if len(lead) > 4 else 0.2))
    for model, values in curves.items():
        last = _before_divergence(data, model)
        if last is not None and last >= 1 and np.isfinite(values[last - 1]):
            cross: dict[str, Any] = {"color": data.colour(model), "ms": 6, "mew": 1.6}
            at = np.clip(values[last - 1], *ax.get_ylim())
            ax.plot(lead[last - 1], at, "x", **cross, zorder=6, clip_on=False)
    ax.xaxis.set_major_locator(MaxNLocator(7, integer=True))


def _curve(
    data: DatasetResults, model: str, metric: str, what: str = "curves"
) -> np.ndarray | None:
    """Values by lead time, or an end of their intervals; NaN where they are not finite."""
    scores = data.first(model)
    if f"rollout/{what}" not in scores.arrays:
        return None
    names = [(entry["metric"], entry["component"]) for entry in scores.card["rollout"]["entries"]]
    values = scores.arrays[f"rollout/{what}"][:, names.index((metric, "all"))].double().numpy()
    return np.where(np.isfinite(values), values, np.nan)


def _before_divergence(data: DatasetResults, model: str) -> int | None:
    """The last lead time before any rollout of a model diverged; None if none did."""
    diverged = data.first(model).arrays.get("rollout/diverged")
    if diverged is None or not bool((diverged > 0).any()):
        return None
    return int(diverged[diverged > 0].min()) - 1
