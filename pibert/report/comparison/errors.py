"""Figures of errors: by component, by scale, by frame, by test flow, and of whole sequences.

Models are ordered by rank. Axes are logarithmic, since models differ by orders of magnitude; of
LPCC and R² they show the distance to 1.
"""

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.mlab import GaussianKDE

from pibert.evaluation.measure import SPEED
from pibert.evaluation.scales import BANDS, GROUPS, SCALES
from pibert.report.comparison.plots import (
    Plot,
    frame,
    interval_text,
    legend,
    logarithmic,
    point_style,
    rows_of_models,
    sheet,
)
from pibert.report.comparison.results import DatasetResults, parameter_text
from pibert.report.comparison.table import Metric
from pibert.report.comparison.tables.ranking import flow_errors
from pibert.report.figures import LARGE, SMALL, with_unit

SCORES = ("lpcc", "r2")
"""Metrics of which 1 is perfect: figures show the distance to it."""
GROUP_STYLES: tuple[dict[str, Any], ...] = tuple(
    {"color": colour, "marker": marker, "ms": 4.2, "ls": "", "zorder": 3}
    for marker, colour in zip(
        "osD^vP<X>*",
        "#2b5c8a #e08214 #4f9d45 #c2185b #8e63a8 #767600 #17becf #a0622d #444444 #d32f2f".split(),
        strict=True,
    )
)
"""Styles of the groups of a panel; in panels of more they repeat."""
_PANEL, _LEGEND = 2.5, 172
"""Width of a panel in inches, and of its legend in points."""
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
_FLOW_MODELS, _FLOW_ROWS = 6, 48


class Dot(NamedTuple):
    value: float
    low: float | None
    high: float | None


def dot_of(data: DatasetResults, model: str, group: Metric) -> Dot | None:
    """Mean over seeds, and the widest of their intervals; None where nothing was measured.

    Of ``SCORES`` the distance to 1.
    """
    value = data.value(model, group.metric, group.component)
    if value is None:
        return None
    records = data.find(model, group.metric, group.component)
    low = min((r["low"] for r in records if r["low"] is not None), default=None)
    high = max((r["high"] for r in records if r["high"] is not None), default=None)
    if group.metric not in SCORES:
        return Dot(value, low, high)
    return Dot(1 - value, None if high is None else 1 - high, None if low is None else 1 - low)


def draw_dots(
    ax: Axes, data: DatasetResults, models: Sequence[str], title: str, groups: Sequence[Metric]
) -> None:
    """Fill axes with a row for each model and a dot with its interval for each group."""
    widths = [SMALL * (2.2 + 0.62 * len(group.label)) for group in groups]
    columns = len(groups) if sum(widths) < _LEGEND else max(1, int(_LEGEND / max(widths)))
    lines = -(-len(groups) // columns) if len(groups) > 1 else 0
    frame(ax)
    title = title if lines else f"{title}, {groups[0].label}"
    ax.set_title(title, fontsize=LARGE, loc="left", pad=4 + 12.5 * lines)
    for row in range(0, len(models), 2):
        ax.axhspan(row - 0.5, row + 0.5, color="0.965", lw=0, zorder=0)
    handles, known = [], []
    for number, (group, style) in enumerate(
        zip(groups, itertools.cycle(GROUP_STYLES), strict=False)
    ):
        shift = 0.7 * ((number + 0.5) / len(groups) - 0.5)
        for row, model in enumerate(models):
            dot = dot_of(data, model, group)
            if dot is None or not dot.value > 0:
                continue
            ends = [end for end in dot if end is not None and end > 0]
            ax.plot([min(ends), max(ends)], [row + shift] * 2, color=style["color"], lw=1.1)
            ax.plot(dot.value, row + shift, **style)
            known += ends
        handles.append(Line2D([], [], **style, label=group.label))
    if known:
        logarithmic(ax, "x", known)
    rows_of_models(ax, [data.ranked(model) for model in models])
    if len(groups) > 1:
        place: dict[str, Any] = {"loc": "lower left", "bbox_to_anchor": (-0.03, 0.985)}
        gaps = {"handletextpad": 0.0, "columnspacing": 0.6, "borderpad": 0.1, "handlelength": 1.4}
        style = {"ncols": columns, "frameon": False, "fontsize": SMALL, **gaps}
        ax.legend(handles=handles, **place, **style)


def _dot_figure(
    data: DatasetResults, panels: Mapping[str, Sequence[Metric]], caption: str
) -> Plot | None:
    """The panels that have anything to show, side by side, with all models by rank."""
    dots = {g: [dot_of(data, m, g) for m in data.models] for own in panels.values() for g in own}
    filled = {title: [g for g in own if any(dots[g])] for title, own in panels.items()}
    filled = {title: groups for title, groups in filled.items() if groups}
    if not filled:
        return None
    if any(dot and dot.low is not None for own in dots.values() for dot in own):
        caption += interval_text(data)
    row = 0.13 + 0.035 * max(map(len, filled.values()))
    size = (_PANEL * len(filled) + 1.7, row * len(data.models) + 1.0)
    figure, axes = sheet(*size, 1, len(filled), sharey=True)
    for letter, ax, (title, groups) in zip("abcdef", axes[0], filled.items(), strict=False):
        draw_dots(ax, data, data.models, f"{letter}  {title}", groups)
    return Plot(figure, caption)


def metrics(data: DatasetResults) -> Plot | None:
    """LMAE, LPCC, R² and NMSE of every component."""
    panels = {}
    one = "1 \N{MINUS SIGN} "
    titles = {"NMSE": "nmse", "LMAE": "lmae", f"{one}R²": "r2", f"{one}LPCC": "lpcc"}
    for title, metric in titles.items():
        components = [*data.spec.channels, SPEED, "all"]
        units = {r["unit"] for c in components for r in data.find(data.models[0], metric, c)}
        unit = units.pop() if len(units) == 1 else "1"
        panels[with_unit(title, unit)] = [Metric(name, metric, name) for name in components]
    caption = (
        f"All {data.facts['test_frames']} test frames, physical units: NMSE, LMAE, and the "
        "distances of R² and LPCC to 1, of every component; lower is better, models by rank."
    )
    return _dot_figure(data, panels, caption)


def scales(data: DatasetResults) -> Plot | None:
    """Errors of wavelet sub-bands, of averaged fields, and of wavenumber bands."""
    panels = {
        "NMSE of wavelet bands": [Metric(name, "haar_nmse", name) for name in GROUPS],
        "NMSE of k × k averages": [Metric(f"k = {k}", f"scale_{k}_nmse") for k in SCALES],
        "NMSE by wavenumber": [Metric(name, "band_nmse", name) for name in BANDS],
        "Error of the spectrum": [Metric(name, "band_spectrum_error", name) for name in BANDS],
    }
    caption = (
        f"All {data.facts['test_frames']} test frames, errors from coarse to fine; lower is "
        "better. Wavelet groups are means over Haar sub-bands (coarse: level 3, fine: level 1). "
        "Wavenumber bands are thirds of the resolved range; the NMSE compares the spectrum of the "
        "error with that of the truth, the error of the spectrum compares both spectra and ignores "
        f"phase."
    )
    return _dot_figure(data, panels, caption)


def sequence_metrics(data: DatasetResults) -> Plot | None:
    """RealPDEBench's metrics of whole sequences, as far as they were measured."""
    units = {r["metric"]: r["unit"] for r in data.records}
    singles = {"KE": "official_ke", "MVPE": "official_mvpe"}
    panels = {
        with_unit("fRMSE", units.get("official_frmse")): [
            Metric("all", "official_frmse"),
            *(Metric(band, f"official_frmse_{band}") for band in BANDS),
        ],
        "Other errors": [Metric(with_unit(n, units.get(m)), m) for n, m in singles.items()],
    }
    caption = (
        "Metrics of whole sequences, computed as in RealPDEBench's code, of one-step "
        "(teacher-forced) predictions over the test split, in physical units; models by rank, "
        "lower is better. fRMSE: error of the Fourier modes in space and time. KE: error of half "
        "the variance in time of the velocity, not of its energy. MVPE: error of the mean velocity "
        "at probes behind the body."
    )
    return _dot_figure(data, panels, caption)


def frame_errors_of(data: DatasetResults) -> dict[str, np.ndarray]:
    """Positive errors of single frames over all seeds, by model, best first."""
    errors = {}
    for model in data.models:
        runs = [scores.arrays for (m, _), scores in data.scores.items() if m == model]
        arrays = [run["errors/prediction"].numpy() for run in runs if "errors/prediction" in run]
        pooled = np.concatenate([np.empty(0), *arrays])
        positive = pooled[np.isfinite(pooled) & (pooled > 0)]
        if positive.size:
            errors[model] = positive
    return errors


def error_distribution(data: DatasetResults) -> Plot | None:
    """A violin of the errors of single frames for every model."""
    errors = frame_errors_of(data)
    if not errors:
        return None
    figure, axes = sheet(8, 0.36 * len(errors) + 1.1)
    ax = axes[0, 0]
    frame(ax, "Relative error of a frame", x="error / truth, L2 over channels and known points")
    logarithmic(ax, "x", np.concatenate(list(errors.values())).tolist())
    for row, (model, values) in enumerate(errors.items()):
        _draw_violin(ax, row, values, data.colour(model))
    rows_of_models(ax, [data.ranked(model) for model in errors])
    caption = (
        "Relative L2 error of each test frame, all seeds together; frames without energy or "
        "without error are left out. Violins: density of the logarithm; dot: median, thick line: "
        "quartiles, thin line: 5th to 95th percentile. Frames of a trajectory are not independent."
    )
    return Plot(figure, caption)


def _draw_violin(ax: Axes, row: int, errors: np.ndarray, colour: str) -> None:
    logs = np.log10(errors)
    if logs.std() > 0:
        x = np.linspace(logs.min(), logs.max(), 129)
        density = GaussianKDE(logs, bw_method="silverman").evaluate(x)
        half = 0.4 * density / density.max()
        ax.fill_between(10**x, row - half, row + half, color=colour, alpha=0.45, lw=0, zorder=2)
    low, left, middle, right, high = np.quantile(errors, QUANTILES)
    ax.plot([low, high], [row, row], color="0.25", lw=0.8, zorder=3)
    ax.plot([left, right], [row, row], color=colour, lw=5, solid_capstyle="butt", zorder=4)
    ax.plot([middle], [row], "o", color="white", mec="0.25", mew=0.6, ms=4, zorder=5)


def flows(data: DatasetResults) -> Plot | None:
    """Errors of the leading models on every test flow, of the next frame and of rollouts."""
    listed: Sequence[dict[str, Any]] = data.facts.get("flows") or ()
    models = [m for m in data.shown(_FLOW_MODELS) if flow_errors(data, m, "nmse")]
    if len(listed) < 2 or not models:
        return None
    order, name = _flow_order(listed)
    count = min(_FLOW_ROWS, len(order))
    shown = [order[n] for n in np.linspace(0, len(order) - 1, count).round().astype(int)]
    panels = _flow_panels(data)
    width, height = 3.6 * len(panels) + 3.6, 0.17 * len(shown) + 1.5
    figure, axes = sheet(width, height, 1, len(panels) + 1, sharey=True)
    for ax, (title, ahead) in zip(axes[0], panels.items(), strict=False):
        frame(ax, title, x="NMSE")
        _draw_points(ax, data, models, shown, ahead)
    last, letter = axes[0, -1], "bc"[len(panels) - 1]
    frame(last, f"{letter}  Share of the squared error", x="share of all test flows")
    model = "pibert" if "pibert" in models else models[0]
    shares = flow_errors(data, model, "squared_error_share")
    lengths = [shares[n] or 0.0 for n in shown]
    last.barh(range(len(shown)), lengths, height=0.7, color=data.colour(model))
    last.axvline(1 / len(listed), color="0.4", lw=0.8, ls=":")
    last.set_xlim(0, 1.15 * max(*lengths, 1 / len(listed)))
    last.xaxis.set_major_formatter(lambda value, _: f"{100 * value:.3g} %")
    for ax in axes[0]:
        rows_of_models(ax, [_flow_label(listed[n], name) for n in shown])
        ax.tick_params(axis="y", labelsize=SMALL)
    legend(figure, [Line2D([], [], **point_style(data, m)) for m in models])
    caption = (
        f"NMSE of all channels on {len(shown)} of {len(order)} test flows, in the order of "
        f"{name or 'the data'}; hollow points: without training. Right: share in the squared "
        f"error of the next frame of {model}, pooled over all test flows; dotted: an equal share. "
        "A missing point is a rollout that is not finite, or a flow without a rollout."
    )
    return Plot(figure, caption)


def _flow_panels(data: DatasetResults) -> dict[str, int | None]:
    """The lead of each panel by its title: the next frame, and a rollout where there is one."""
    rows = [row for row in data.results["by_flow"] if row["data"] == data.name]
    leads = sorted({row["lead"] for row in rows if row["lead"] is not None})
    panels: dict[str, int | None] = {"a  Next frame": None}
    if leads:
        lead = leads[len(leads) // 2]
        panels[f"b  Rollout, {lead} frames ahead"] = lead
    return panels


def _flow_order(listed: Sequence[dict[str, Any]]) -> tuple[list[int], str | None]:
    """Indices of the flows ordered by Re, or by the parameter with most values; its name."""
    values: dict[str, set[float]] = {}
    for flow in listed:
        for key, value in flow["parameters"].items():
            values.setdefault(key, set()).add(value)
    varying = [key for key, known in values.items() if len(known) > 1]
    if not varying:
        return list(range(len(listed))), None
    name = max(varying, key=lambda key: (key == "Re", len(values[key])))
    order = sorted(range(len(listed)), key=lambda n: listed[n]["parameters"].get(name, math.inf))
    return order, name


def _flow_label(flow: dict[str, Any], name: str | None) -> str:
    value = flow["parameters"].get(name) if name else None
    return flow["name"] + ("" if value is None else f"  {name} {parameter_text(value)}")


def _draw_points(
    ax: Axes, data: DatasetResults, models: Sequence[str], shown: Sequence[int], lead: int | None
) -> None:
    errors = {m: found for m in models if (found := flow_errors(data, m, "nmse", lead))}
    by_row = [[v for by_flow in errors.values() if (v := by_flow[n])] for n in shown]
    if any(by_row):
        logarithmic(ax, "x", [v for values in by_row for v in values])
    for row, values in enumerate(by_row):
        if values:
            ax.plot([min(values), max(values)], [row, row], color="0.85", lw=0.8, zorder=1)
    for model, by_flow in errors.items():
        points = [(v, row) for row, n in enumerate(shown) if (v := by_flow[n])]
        ax.plot([v for v, _ in points], [row for _, row in points], **point_style(data, model))
