"""Figures of errors: by component, by scale, by frame, by test flow, and of whole sequences.

Models are ordered by rank. Axes of errors are logarithmic, since models differ by orders of
magnitude; LPCC and R² have axes from 0 to 1, and values below 0 are written as numbers.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from matplotlib.mlab import GaussianKDE
from matplotlib.patches import Patch
from matplotlib.ticker import LogLocator, NullFormatter

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
from pibert.report.comparison.results import UNTRAINED, DatasetResults
from pibert.report.comparison.table import Metric, digits
from pibert.report.comparison.tables.ranking import flow_errors
from pibert.report.figures import NORMAL, SMALL, with_unit

MOST = 10
"""Models whose bars in a group can be distinguished."""
_FULL = 0.86
"""Share of a group's width that its bars fill."""
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
_FLOW_MODELS, _FLOW_ROWS = 6, 48


class Bar(NamedTuple):
    value: float
    low: float | None
    high: float | None


def bar_of(data: DatasetResults, model: str, group: Metric) -> Bar | None:
    """Mean over seeds, and the widest of their intervals; None where nothing was measured."""
    value = data.value(model, group.metric, group.component)
    if value is None:
        return None
    records = data.find(model, group.metric, group.component)
    low = [record["low"] for record in records if record["low"] is not None]
    high = [record["high"] for record in records if record["high"] is not None]
    return Bar(value, min(low, default=None), max(high, default=None))


def draw_bars(
    ax: Axes, data: DatasetResults, models: Sequence[str], title: str, groups: Sequence[Metric]
) -> None:
    """Fill axes with groups of bars."""
    width, ends = _FULL / len(models), []
    is_share = groups[0].metric in ("lpcc", "r2")
    for centre, group in enumerate(groups):
        for number, model in enumerate(models):
            bar = bar_of(data, model, group)
            if bar is None:
                continue
            x = centre + width * (number - (len(models) - 1) / 2)
            ax.bar(x, bar.value, 0.92 * width, **_bar_style(data, model))
            if bar.low is not None and bar.high is not None:
                ax.plot([x, x], [bar.low, bar.high], color="0.1", lw=0.7, solid_capstyle="butt")
            if is_share and bar.value < 0:
                text = f"{bar.value:.2g}".replace("-", "\N{MINUS SIGN}")
                at: dict[str, Any] = {"rotation": 90, "ha": "center", "va": "bottom"}
                ax.text(x, 0.02, text, **at, fontsize=SMALL - 1, color=data.colour(model))
            ends += [end for end in bar if end is not None and end > 0]
    frame(ax, title)
    ax.grid(False, axis="x")
    ax.set_xticks(range(len(groups)), [group.label for group in groups])
    ax.set_xlim(-0.5, len(groups) - 0.5)
    ax.tick_params(axis="x", length=0, labelsize=NORMAL)
    if is_share:
        ax.set_ylim(0, 1.02)
    elif ends:
        ax.set_yscale("log")
        ax.set_ylim(10 ** np.floor(np.log10(min(ends)) - 0.15), 1.3 * max(ends))
        ax.yaxis.set_major_locator(LogLocator(numticks=8))
        ax.yaxis.set_minor_formatter(NullFormatter())


def _bar_style(data: DatasetResults, model: str) -> dict[str, Any]:
    hatch = "////" if model == "pibert" else None
    return {"facecolor": data.colour(model), "edgecolor": "white", "lw": 0, "hatch": hatch}


def _bar_figure(
    data: DatasetResults, panels: Mapping[str, Sequence[Metric]], caption: str
) -> Plot | None:
    """The panels that have anything to show, two in a row."""
    models = data.shown(MOST)
    filled = {
        title: [g for g in groups if any(bar_of(data, m, g) is not None for m in models)]
        for title, groups in panels.items()
    }
    filled = {title: groups for title, groups in filled.items() if groups}
    if not filled:
        return None
    rows = -(-len(filled) // 2)
    height = 2.5 * rows + 0.3 + 0.2 * -(-len(models) // 5)
    figure, axes = sheet(10, height, rows, min(2, len(filled)))
    for letter, ax, (title, groups) in zip("abcdef", axes.flat, filled.items(), strict=False):
        draw_bars(ax, data, models, f"({letter}) {title}", groups)
    for ax in axes.flat[len(filled) :]:
        ax.set_axis_off()
    legend(figure, [Patch(label=data.ranked(m), **_bar_style(data, m)) for m in models], 5)
    return Plot(figure, caption)


def metrics(data: DatasetResults) -> Plot | None:
    """LMAE, LPCC, R² and NMSE of every component."""
    panels = {}
    for title, metric in {"LMAE": "lmae", "LPCC": "lpcc", "R²": "r2", "NMSE": "nmse"}.items():
        components = [*data.spec.channels, SPEED, "all"]
        units = {r["unit"] for c in components for r in data.find(data.models[0], metric, c)}
        unit = units.pop() if len(units) == 1 else "1"
        panels[with_unit(title, unit)] = [Metric(name, metric, name) for name in components]
    caption = (
        f"All {data.facts['test_frames']} test frames, physical units: LMAE and NMSE (lower is "
        "better), LPCC and R² (higher is better) of every component; models by rank."
        f"{interval_text(data)}"
    )
    return _bar_figure(data, panels, caption)


def scales(data: DatasetResults) -> Plot | None:
    """Errors of wavelet sub-bands, of averaged fields, and of wavenumber bands."""
    panels = {
        "wavelet sub-bands, NMSE": [Metric(name, "haar_nmse", name) for name in GROUPS],
        "averages over k × k points, NMSE": [Metric(f"k = {k}", f"scale_{k}_nmse") for k in SCALES],
        "wavenumber bands, NMSE": [Metric(name, "band_nmse", name) for name in BANDS],
        "wavenumber bands, error of the spectrum": [
            Metric(name, "band_spectrum_error", name) for name in BANDS
        ],
    }
    caption = (
        f"All {data.facts['test_frames']} test frames, errors from coarse to fine; lower is "
        "better. Wavelet groups are means over Haar sub-bands (coarse: level 3, fine: level 1). "
        "Wavenumber bands are thirds of the resolved range; the NMSE compares the spectrum of the "
        "error with that of the truth, the error of the spectrum compares both spectra and ignores "
        f"phase.{interval_text(data)}"
    )
    return _bar_figure(data, panels, caption)


def sequence_metrics(data: DatasetResults) -> Plot | None:
    """RealPDEBench's metrics of whole sequences, as far as they were measured."""
    units = {r["metric"]: r["unit"].replace("^2", "²") for r in data.records}
    singles = {"KE": "official_ke", "MVPE": "official_mvpe"}
    panels = {
        with_unit("fRMSE", units.get("official_frmse")): [
            Metric("all wavenumbers", "official_frmse"),
            *(Metric(band, f"official_frmse_{band}") for band in BANDS),
        ],
        "other errors": [Metric(with_unit(n, units.get(m)), m) for n, m in singles.items()],
    }
    caption = (
        "Metrics of whole sequences, computed as in RealPDEBench's code, of one-step "
        "(teacher-forced) predictions over the test split, in physical units; models by rank, "
        "lower is better. fRMSE: error of the Fourier modes in space and time. KE: error of half "
        "the variance in time of the velocity, not of its energy. MVPE: error of the mean velocity "
        f"at probes behind the body.{interval_text(data)}"
    )
    return _bar_figure(data, panels, caption)


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
    frame(ax, "relative error of a frame", x="error / truth, L2 over channels and known points")
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
        "A missing point is a rollout that diverged, or a flow without a rollout."
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


def by_parameter(data: DatasetResults) -> Plot | None:
    """Errors of the leading models on the test flows against a parameter, and training's range."""
    listed: Sequence[dict[str, Any]] = data.facts.get("flows") or ()
    models = [m for m in data.shown(_FLOW_MODELS) if flow_errors(data, m, "nmse")]
    order, name = _flow_order(listed)
    shown = [n for n in order if name in listed[n]["parameters"]]
    if name is None or len(shown) < 3 or not models:
        return None
    values = {n: listed[n]["parameters"][name] for n in shown}
    ends = (data.facts.get("training_range") or {}).get(name)
    is_log = any(own.name == name and own.scaling == "log" for own in data.spec.parameters)
    panels = _flow_panels(data)
    figure, axes = sheet(5.2 * len(panels), 3.6, 1, len(panels))
    for ax, (title, lead) in zip(axes[0], panels.items(), strict=True):
        frame(ax, title, x=name, y="NMSE of a flow")
        errors = {m: found for m in models if (found := flow_errors(data, m, "nmse", lead))}
        known = [v for found in errors.values() for n in shown if (v := found[n])]
        if known:
            logarithmic(ax, "y", known)
        if is_log and min(values.values()) > 0:
            logarithmic(ax, "x", [*values.values(), *(ends or ())])
        if ends:
            ax.axvspan(*ends, color="0.93", lw=0, zorder=0)
        for model, found in errors.items():
            line = [(values[n], v) for n in shown if (v := found[n])]
            style = {**point_style(data, model), "ls": ":" if model in UNTRAINED else "-"}
            style |= {"color": data.colour(model), "lw": 0.7}
            ax.plot([x for x, _ in line], [y for _, y in line], **style)
    legend(figure, [Line2D([], [], **point_style(data, m)) for m in models])
    caption = (
        f"NMSE of each test flow, relative to its own energy, against {name}; models by rank, "
        "hollow points without training. Grey: range of the training flows. A missing point is a "
        "rollout that diverged, or a flow without a rollout."
    )
    return Plot(figure, caption)


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
    return flow["name"] + ("" if value is None else f"  {name} {digits(value)}")


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
