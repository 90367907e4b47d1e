"""Figures of errors: by component, by scale, by frame, by test flow, and of whole sequences.

Models are ordered by rank. Axes of errors are logarithmic, since models differ by orders of
magnitude; LPCC and R² have axes from 0 to 1, and values below 0 are written as numbers.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import LogLocator, NullFormatter

from pibert.evaluation.measure import SPEED
from pibert.evaluation.scales import BANDS, GROUPS, SCALES
from pibert.report.comparison.plots import (
    Drawn,
    frame,
    interval_text,
    legend,
    logarithmic,
    plain,
    point_style,
    rows_of_models,
    sheet,
    tidy,
    write_beside,
)
from pibert.report.comparison.results import DatasetResults, mean_of
from pibert.report.comparison.table import digits
from pibert.report.comparison.tables import flow_errors
from pibert.report.figures import LARGE, NORMAL, SMALL, blank, with_unit

MOST = 10
"""Models whose bars in a group can be told apart."""
_FULL = 0.86
"""Share of a group's width that its bars fill."""
QUANTILES = (0.05, 0.25, 0.5, 0.75, 0.95)
_NARROWEST = 0.01
"""Least bandwidth of a density, in decades."""
_FLOW_MODELS, _FLOW_ROWS = 6, 48
SEQUENCE = {
    "fRMSE, all wavenumbers": "official_frmse",
    "KE": "official_ke",
    "MVPE": "official_mvpe",
}
"""RealPDEBench's metrics of whole sequences; see ``evaluation/official.py``."""
SEQUENCE_BANDS = {band: f"official_frmse_{band}" for band in ("low", "mid", "high")}


class Group(NamedTuple):
    """Bars that stand together, one for each model."""

    label: str
    metric: str
    component: str = "all"


class Bar(NamedTuple):
    value: float
    low: float | None
    high: float | None


def bar_of(data: DatasetResults, model: str, group: Group) -> Bar | None:
    """Mean over seeds, and the widest of their intervals; None where nothing was measured."""
    value = data.value(model, group.metric, group.component)
    if value is None:
        return None
    records = data.find(model, group.metric, group.component)
    low = [record["low"] for record in records if record["low"] is not None]
    high = [record["high"] for record in records if record["high"] is not None]
    return Bar(value, min(low, default=None), max(high, default=None))


def draw_bars(
    ax: Axes, data: DatasetResults, models: Sequence[str], title: str, groups: Sequence[Group]
) -> None:
    """Fill axes with groups of bars."""
    width, ends = _FULL / len(models), []
    is_share = groups[0].metric in ("lpcc", "r2")
    for place, group in enumerate(groups):
        for number, model in enumerate(models):
            bar = bar_of(data, model, group)
            if bar is None:
                continue
            x = place + width * (number - (len(models) - 1) / 2)
            ax.bar(x, bar.value, 0.92 * width, **_bar_style(data, model))
            if bar.low is not None and bar.high is not None:
                ax.plot([x, x], [bar.low, bar.high], color="0.1", lw=0.7, solid_capstyle="butt")
            if is_share and bar.value < 0:
                text = f"{bar.value:.2g}".replace("-", "\N{MINUS SIGN}")
                at: dict[str, Any] = {"rotation": 90, "ha": "center", "va": "bottom"}
                ax.text(x, 0.02, text, **at, fontsize=SMALL - 1, color=data.colour(model))
            ends += [end for end in bar if end is not None and end > 0]
    tidy(ax)
    ax.set_title(title, fontsize=LARGE, loc="left")
    ax.set_xticks(range(len(groups)), [group.label for group in groups])
    ax.set_xlim(-0.5, len(groups) - 0.5)
    ax.tick_params(axis="x", length=0, labelsize=NORMAL)
    ax.grid(axis="y", linewidth=0.4, color="0.85")
    ax.set_axisbelow(True)
    if is_share:
        ax.set_ylim(0, 1.02)
    elif ends:
        ax.set_yscale("log")
        ax.set_ylim(10 ** np.floor(np.log10(min(ends)) - 0.15), 1.3 * max(ends))
        ax.yaxis.set_major_locator(LogLocator(numticks=8))
        ax.yaxis.set_minor_formatter(NullFormatter())


def _bar_style(data: DatasetResults, model: str) -> dict[str, Any]:
    hatch = "////" if model == "pibert" else None
    return {"color": data.colour(model), "edgecolor": "white", "linewidth": 0, "hatch": hatch}


def _bar_figure(
    data: DatasetResults, models: Sequence[str], panels: Mapping[str, Sequence[Group]]
) -> Figure | None:
    """The panels that have anything to show, two in a row."""
    found = {
        title: [g for g in groups if any(bar_of(data, m, g) is not None for m in models)]
        for title, groups in panels.items()
    }
    found = {title: groups for title, groups in found.items() if groups}
    if not found:
        return None
    rows = -(-len(found) // 2)
    figure = blank(10, 2.5 * rows + 0.3 + 0.2 * -(-len(models) // 5))
    axes = figure.subplots(rows, min(2, len(found)), squeeze=False).flatten()
    for letter, ax, (title, groups) in zip("abcdef", axes, found.items(), strict=False):
        draw_bars(ax, data, models, f"({letter}) {title}", groups)
    for ax in axes[len(found) :]:
        ax.set_axis_off()
    handles = []
    for model in models:
        style = _bar_style(data, model)
        handles.append(Patch(facecolor=style.pop("color"), label=data.ranked(model), **style))
    legend(figure, handles, min(5, len(models)))
    return figure


def metrics(data: DatasetResults) -> Drawn | None:
    """LMAE, LPCC, R² and NMSE of every component."""
    names = {"LMAE": "lmae", "LPCC": "lpcc", "R²": "r2", "NMSE": "nmse"}
    components = [*data.spec.channels, SPEED, "all"]
    panels = {}
    for title, metric in names.items():
        records = (r for r in data.records if r["model"] == data.models[0])
        units = {r["unit"] for r in records if (r["metric"], r["space"]) == (metric, "physical")}
        unit = units.pop() if len(units) == 1 else "1"
        panels[with_unit(title, unit)] = [Group(own, metric, own) for own in components]
    models = data.shown(MOST)
    figure = _bar_figure(data, models, panels)
    if figure is None:
        return None
    caption = (
        f"All {data.facts['test_frames']} test frames, physical units: LMAE and NMSE (lower is "
        "better), LPCC and R² (higher is better) of every component; models by rank."
        f"{interval_text(data)}"
    )
    return Drawn(figure, caption, f"Bars of LMAE, LPCC, R² and NMSE of {', '.join(models)}.")


def scales(data: DatasetResults) -> Drawn | None:
    """Errors of wavelet sub-bands, of averaged fields, and of wavenumber bands."""
    panels = {
        "wavelet sub-bands, NMSE": [Group(name, "haar_nmse", name) for name in GROUPS],
        "averages over k × k points, NMSE": [Group(f"k = {k}", f"scale_{k}_nmse") for k in SCALES],
        "wavenumber bands, NMSE": [Group(name, "band_nmse", name) for name in BANDS],
        "wavenumber bands, error of the spectrum": [
            Group(name, "band_spectrum_error", name) for name in BANDS
        ],
    }
    models = data.shown(MOST)
    figure = _bar_figure(data, models, panels)
    if figure is None:
        return None
    caption = (
        f"All {data.facts['test_frames']} test frames, errors from coarse to fine; lower is "
        "better. Wavelet groups are means over Haar sub-bands (coarse: level 3, fine: level 1). "
        "Wavenumber bands are thirds of the resolved range; the NMSE compares the spectrum of the "
        "error with that of the truth, the error of the spectrum compares both spectra and ignores "
        f"phase.{interval_text(data)}"
    )
    return Drawn(figure, caption, f"Bars of errors from coarse to fine of {', '.join(models)}.")


class FrameErrors(NamedTuple):
    """Relative L2 errors of the test frames of a model, over all seeds."""

    errors: Float[np.ndarray, " n"]
    """Finite ones, in rising order."""
    silent: int
    """Frames whose truth is zero everywhere, which have no relative error."""

    def quantiles(self) -> tuple[float, ...]:
        return tuple(np.quantile(self.errors, QUANTILES).tolist())


def frame_errors_of(data: DatasetResults) -> dict[str, FrameErrors]:
    """By model, best first; models without a finite error are left out."""
    found = {}
    for model in data.models:
        own = [s.arrays.get("errors/prediction") for (m, _), s in data.scores.items() if m == model]
        arrays = [array.double().numpy() for array in own if array is not None]
        pooled = np.concatenate(arrays) if arrays else np.empty(0)
        known = np.sort(pooled[np.isfinite(pooled)])
        if known.size:
            found[model] = FrameErrors(known, int(pooled.size - known.size))
    return found


def error_distribution(data: DatasetResults) -> Drawn | None:
    """A violin of the errors of single frames for every model."""
    found = frame_errors_of(data)
    positive = [own.errors[own.errors > 0] for own in found.values()]
    ends = [float(end) for own in positive if own.size for end in (own[0], own[-1])]
    if not ends:
        return None
    figure, axes = sheet(8, 0.36 * len(found) + 1.1)
    ax = axes[0, 0]
    frame(ax, "relative error of a frame", x="error / truth, L2 over channels and known points")
    logarithmic(ax, "x", ends)
    for place, (model, own) in enumerate(found.items()):
        _draw_violin(ax, place, own, data.colour(model))
    rows_of_models(ax, [data.ranked(model) for model in found])
    frames = max(own.errors.size + own.silent for own in found.values())
    silent = max(own.silent for own in found.values())
    pooled = f", all {len(data.seeds)} seeds together" if len(data.seeds) > 1 else ""
    left_out = f" {silent} of them are zero everywhere and left out." if silent else ""
    caption = (
        f"Relative L2 error of each of up to {frames} predicted test frames{pooled}.{left_out} "
        "Violins: density of the logarithm, all of the same height; dot: median, thick line: "
        "quartiles, thin line: 5th to 95th percentile. Frames of a trajectory are not independent."
    )
    best = min(found, key=lambda model: found[model].quantiles()[2])
    alt = f"Distributions of the errors of single frames of {', '.join(found)}; {best} has the "
    return Drawn(figure, caption, alt + "lowest median.")


def density(
    logs: Float[np.ndarray, " n"], points: int = 129
) -> tuple[Float[np.ndarray, " m"], Float[np.ndarray, " m"]]:
    """Places between the least and the greatest value, and the Gaussian kernel density there.

    The bandwidth is 0.9 min(s, IQR / 1.34) n^(-1/5) (B. W. Silverman, Density Estimation for
    Statistics and Data Analysis, 1986).
    """
    low, high = np.quantile(logs, (0.25, 0.75))
    deviation = min(float(logs.std()), float(high - low) / 1.34)
    width = max(0.9 * deviation * logs.size**-0.2, _NARROWEST)
    x = np.linspace(logs.min(), logs.max(), points)
    # One place at a time: long recordings have many frames.
    bells = [np.exp(-0.5 * ((place - logs) / width) ** 2).mean() for place in x]
    return x, np.array(bells) / (width * np.sqrt(2 * np.pi))


def _draw_violin(ax: Axes, place: int, own: FrameErrors, colour: str) -> None:
    """Frames without error have no logarithm: they count in the quantiles, and in a note."""
    positive = own.errors[own.errors > 0]
    if positive.size:
        x, height = density(np.log10(positive))
        half = 0.4 * height / height.max()
        ax.fill_between(10**x, place - half, place + half, color=colour, alpha=0.45, lw=0, zorder=2)
    floor = ax.get_xlim()[0]  # what lies below the axis is drawn at its edge
    low, left, middle, right, high = (max(q, floor) for q in own.quantiles())
    ax.plot([low, high], [place, place], color="0.25", lw=0.8, zorder=3)
    ax.plot([left, right], [place, place], color=colour, lw=5, solid_capstyle="butt", zorder=4)
    ax.plot([middle], [place], "o", color="white", mec="0.25", mew=0.6, ms=4, zorder=5)
    if positive.size < own.errors.size:
        ax.annotate(
            f"{1 - positive.size / own.errors.size:.0%} without error",
            (0, place),
            xycoords=("axes fraction", "data"),
            xytext=(3, -7),
            textcoords="offset points",
            fontsize=SMALL,
            color="0.35",
        )


def sequence_metrics(data: DatasetResults) -> Drawn | None:
    """RealPDEBench's metrics of whole sequences, as far as they were measured."""
    single = {title: own for title, m in SEQUENCE.items() if (own := _pooled(data, m))}
    bands = {band: own for band, m in SEQUENCE_BANDS.items() if (own := _pooled(data, m))}
    if not single and not bands:
        return None
    count = len(single) + bool(bands)
    models = [m for m in data.models if any(m in v for v in (*single.values(), *bands.values()))]
    figure, axes = sheet(2.6 * count + 1.2, 0.23 * len(models) + 1.3, 1, count, sharey=True)
    for number, (ax, title) in enumerate(zip(axes[0], (*single, "fRMSE by band"), strict=False)):
        metric = SEQUENCE.get(title, next(iter(SEQUENCE_BANDS.values())))
        unit = next((r["unit"] for r in data.records if r["metric"] == metric), None)
        label = with_unit("error", None if unit is None else str(unit).replace("^2", "²"))
        frame(ax, f"{'abcd'[number]}  {title}", x=label)
        if title in single:
            _draw_long_bars(ax, data, models, single[title])
        else:
            _draw_bands(ax, data, models, bands)
        rows_of_models(ax, models)
    caption = (
        "Metrics of whole sequences, computed as in RealPDEBench's code, of one-step "
        "(teacher-forced) predictions over the test split, in physical units; models by rank, "
        "logarithmic axes, lower is better. fRMSE: error of the Fourier modes in space and time. "
        "KE: error of half the variance in time of the velocity, not of its energy. MVPE: error of "
        "the mean velocity at probes behind the body."
    )
    first = next(iter({**single, **bands}.values()))
    best = min(first, key=first.__getitem__)
    alt = f"Bars of {count} sequence metrics of {len(models)} models; {best} leads in the first."
    return Drawn(figure, caption, alt)


def _pooled(data: DatasetResults, metric: str) -> dict[str, float]:
    """The mean over seeds and components, by model."""
    found: dict[str, list[float | None]] = {model: [] for model in data.models}
    for record in data.records:
        if (record["metric"], record["space"]) == (metric, "physical"):
            found[record["model"]].append(record["value"])
    means = {model: mean_of(values) for model, values in found.items()}
    return {model: value for model, value in means.items() if value is not None and value > 0}


def _draw_long_bars(
    ax: Axes, data: DatasetResults, models: Sequence[str], values: Mapping[str, float]
) -> None:
    low, high = min(values.values()), max(values.values())
    # Room for the numbers beyond the longest bar, and for the shortest to be seen.
    logarithmic(ax, "x", [low / 1.6, high * max(2.0, (high / low) ** 0.5)])
    start = ax.get_xlim()[0]
    for row, model in enumerate(models):
        if (value := values.get(model)) is not None:
            ax.barh(row, value - start, left=start, height=0.7, color=data.colour(model))
            write_beside(ax, f"{value:.2g}" if value >= 1e-3 else plain(value), value, row)


def _draw_bands(
    ax: Axes, data: DatasetResults, models: Sequence[str], bands: Mapping[str, Mapping[str, float]]
) -> None:
    logarithmic(ax, "x", [value for values in bands.values() for value in values.values()])
    for row, model in enumerate(models):
        own = [values[model] for values in bands.values() if model in values]
        if own:
            ax.plot([min(own), max(own)], [row, row], color="0.8", lw=1.0, zorder=1)
    for (band, values), mark in zip(bands.items(), "os^", strict=False):
        ax.plot([], [], mark, color="0.3", ms=4.5, label=band)
        for row, model in enumerate(models):
            if model in values:
                ax.plot(values[model], row, mark, color=data.colour(model), ms=4.5)
    # The last rows have the largest errors, so the lower left is free.
    ax.legend(fontsize=SMALL, frameon=False, loc="lower left", handletextpad=0.1)


def flows(data: DatasetResults) -> Drawn | None:
    """Errors of the leading models on every test flow, of the next frame and of rollouts."""
    listed: Sequence[dict[str, Any]] = data.facts.get("flows") or ()
    models = [m for m in data.shown(_FLOW_MODELS) if flow_errors(data, m, "nmse")]
    if len(listed) < 2 or not models:
        return None
    order, name = _flow_order(listed)
    count = min(_FLOW_ROWS, len(order))
    shown = [order[n] for n in np.linspace(0, len(order) - 1, count).round().astype(int)]
    rows = [own for own in data.results["by_flow"] if own["data"] == data.name]
    leads = sorted({own["lead"] for own in rows if own["lead"] is not None})
    panels: dict[str, int | None] = {"a  Next frame": None}
    if leads:
        lead = leads[len(leads) // 2]
        panels[f"b  Rollout, {lead} frames ahead"] = lead
    figure, axes = sheet(
        3.6 * len(panels) + 3.6, 0.17 * len(shown) + 1.5, 1, len(panels) + 1, sharey=True
    )
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
    legend(figure, [Line2D([], [], label=m, **point_style(data, m)) for m in models])
    some = f" {len(shown)} of {len(order)}, evenly spaced," if len(shown) < len(order) else ""
    caption = (
        f"NMSE of all channels on every test flow,{some} in the order of {name or 'the data'}; "
        "hollow points are predictors without training. Right: share of each flow in the squared "
        f"error of the next frame of {model}, pooled over all test flows; dotted: an equal share. "
        "A missing point is a rollout that diverged, or a flow without a rollout."
    )
    alt = f"Errors of {len(models)} models on {len(shown)} test flows of {data.name}."
    return Drawn(figure, caption, alt)


def _flow_order(listed: Sequence[dict[str, Any]]) -> tuple[list[int], str | None]:
    """Flows by Re or the parameter with most values; the name of that parameter."""
    values: dict[str, set[float]] = {}
    for flow in listed:
        for key, value in flow["parameters"].items():
            values.setdefault(key, set()).add(value)
    varying = [key for key, own in values.items() if len(own) > 1]
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
    points = {m: own for m in models if (own := flow_errors(data, m, "nmse", lead))}
    known = [[v for own in points.values() if (v := own[n])] for n in shown]
    if any(known):
        logarithmic(ax, "x", [v for own in known for v in own])
    for row, values in enumerate(known):
        if values:
            ax.plot([min(values), max(values)], [row, row], color="0.85", lw=0.8, zorder=1)
    for model, own in points.items():
        found = [(v, row) for row, n in enumerate(shown) if (v := own[n])]
        ax.plot([v for v, _ in found], [row for _, row in found], **point_style(data, model))
