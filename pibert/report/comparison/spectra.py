"""Spectra in space and in time.

Radial spectra, with definitions, window and bands of ``evaluation/scales.py``:

    E(k)          half the squared Fourier modes of u and v in the ring of wavenumber k
    error(k)/E(k) the same of prediction minus truth, over the truth: at 1 a model knows no more of
                  structures of that size than their energy

Power spectra at probes are those of ``evaluation/temporal.py``, of one-step (teacher-forced)
predictions, in which persistence keeps the frequencies of the flow too.
"""

from typing import Any

import numpy as np
from matplotlib.axes import Axes

from pibert.evaluation.measure import velocity_unit
from pibert.evaluation.scales import BANDS, FLOOR, Spectra, num_rings, wavenumbers
from pibert.evaluation.temporal import LEAST_FRAMES, power_density
from pibert.report.comparison.plots import (
    Drawn,
    Label,
    frame,
    label_ends,
    line_style,
    logarithmic,
    sheet,
    time_unit,
)
from pibert.report.comparison.results import COLOURS, DatasetResults
from pibert.report.comparison.time import probe_series
from pibert.report.figures import NORMAL, SMALL, with_unit

TERMS = "terms/physical/spectra"
_MOST = 9
_POWER_SHOWN = 1e-7
"""Power below this share of the maximum is rounding."""
_TABLE_ROWS = 15
"""Rows of a table that fills its panel."""


def spectra(data: DatasetResults) -> Drawn | None:
    """Radial spectra of truth and models, and of the models' errors."""
    terms = data.arrays_of(data.shown(_MOST), TERMS)
    if not terms:
        return None
    measure = Spectra(spec=data.spec)
    curves = {m: measure.curves(own.sum(0)) for m, own in terms.items()}
    truth = next(iter(curves.values()))["truth"].numpy()
    k = wavenumbers(data.spec.grid).numpy()
    floor = FLOOR * truth.sum()
    figure, axes = sheet(10.4, max(3.9, 0.16 * len(curves) + 1.6), 1, 2)
    left, right = axes[0]
    length, unit = data.info["length_unit"], velocity_unit(data.spec)
    across = with_unit("wavenumber k", None if length is None else f"rad/{length}")
    frame(left, "a  Energy", x=across, y=with_unit("E(k)", None if unit == "1" else f"({unit})²"))
    frame(right, "b  Error over energy", x=across, y="error(k) / E(k)")
    answers = {m: np.maximum(curve["prediction"].numpy(), floor) for m, curve in curves.items()}
    resolved = truth > floor
    errors = {
        m: np.maximum((c["error"].numpy() / truth)[resolved], 1e-8) for m, c in curves.items()
    }
    for ax in (left, right):
        logarithmic(ax, "x", k.tolist())
        ax.set_xlim(k[0] / 1.05, k[-1] * 1.02)
    logarithmic(left, "y", [max(truth.min(), floor), *np.concatenate([truth, *answers.values()])])
    logarithmic(right, "y", [1.0, *np.concatenate(list(errors.values()))])
    right.axhline(1.0, color="0.4", lw=0.8, ls=":", zorder=1)
    for model in curves:
        left.plot(k, answers[model], **line_style(data, model))
        right.plot(k[resolved], errors[model], **line_style(data, model))
    left.plot(k, np.maximum(truth, floor), **line_style(data, "truth"), alpha=0.85)
    for ax in (left, right):
        _mark_wavenumber_bands(ax, data, k)
    label_ends(left, [Label(k[-1], float(max(truth[-1], floor)), "truth", COLOURS["truth"])])
    last = float(k[resolved][-1])
    label_ends(right, [Label(last, float(own[-1]), m, data.colour(m)) for m, own in errors.items()])
    rest = len(data.models) - len(curves)
    more = f" {rest} further models are in the tables." if rest > 0 else ""
    caption = (
        "Mean over the test frames of (a) the radial spectrum of the kinetic energy of u and v "
        "about their means, and (b) the spectrum of the error over that of the truth, which "
        "includes phase: at 1 (dotted) a model knows only the energy of a scale. Shaded: thirds of "
        f"the resolved wavenumbers, the bands of the tables.{more}"
    )
    alt = (
        f"Energy spectra of the truth and {len(curves)} models on {data.name}, and spectra of "
        "their errors, against wavenumber, both axes logarithmic."
    )
    return Drawn(figure, caption, alt)


def _mark_wavenumber_bands(ax: Axes, data: DatasetResults, k: np.ndarray) -> None:
    rings = num_rings(data.spec.grid)
    low_end, high_end = ax.get_xlim()
    for number, (name, (low, high)) in enumerate(BANDS.items()):
        first, last = int(low * rings + 1e-9), int(high * rings + 1e-9) - 1
        start = low_end if first == 0 else float((k[first - 1] + k[first]) / 2)
        stop = high_end if last + 1 >= rings else float((k[last] + k[last + 1]) / 2)
        _mark_band(ax, name, start, stop, (start * stop) ** 0.5, is_shaded=number % 2 == 1)


def _mark_band(
    ax: Axes, name: str, start: float, stop: float, middle: float, *, is_shaded: bool
) -> None:
    """Name a band along the top."""
    if is_shaded:
        ax.axvspan(start, stop, color="0.94", lw=0, zorder=0)
    style: dict[str, Any] = {"ha": "center", "va": "top", "fontsize": SMALL, "color": "0.45"}
    ax.text(middle, 0.985, name, transform=ax.get_xaxis_transform(), **style)


def power_spectra(data: DatasetResults) -> Drawn | None:
    """Power spectral density at the probes, and a table of predicted over true energy by band."""
    series = probe_series(data, data.shown(8))
    rows = [m for m in data.models if data.value(m, "psd_ratio_low") is not None]
    if series is None or len(series.time) < LEAST_FRAMES or not rows:
        return None
    dt, clock = data.spec.dt or 1.0, time_unit(data)
    frequency, power = power_density(series.truth, dt)
    f, truth = frequency[1:].numpy(), power.mean(1)[1:].numpy()
    floor = _POWER_SHOWN * truth.max()
    density = {
        m: np.maximum(power_density(v, dt)[1].mean(1)[1:].numpy(), floor)
        for m, v in series.models.items()
    }
    truth = np.maximum(truth, floor)
    figure, axes = sheet(10.4, max(3.9, 0.2 * len(rows) + 1.2), 1, 2, width_ratios=[1.35, 1])
    left, right = axes[0]
    unit = None if series.unit == "1" else f"({series.unit})² {clock or ''}".strip()
    frame(
        left,
        f"a  Power spectral density of {series.channel}, one-step predictions",
        x=with_unit("frequency f", None if clock is None else _inverse(clock)),
        y=with_unit("P(f)", unit),
    )
    logarithmic(left, "y", np.stack([truth, *density.values()]).flatten().tolist())
    left.plot(f, truth, **line_style(data, "truth"), alpha=0.8)
    for model, own in density.items():
        left.plot(f, own, **line_style(data, model))
    left.set_xlim(0, f[-1])
    for place, band in enumerate(("low", "mid", "high")):
        start, stop = place * f[-1] / 3, (place + 1) * f[-1] / 3
        _mark_band(left, band, start, stop, (start + stop) / 2, is_shaded=place == 1)
    ends = [Label(f[-1], float(own[-1]), m, data.colour(m)) for m, own in density.items()]
    label_ends(left, [*ends, Label(f[-1], float(truth[-1]), "truth", COLOURS["truth"])])
    _draw_ratios(right, data, rows)
    caption = (
        f"(a) Density of {series.channel} in {data.trajectory(0)}, mean over "
        f"{len(series.places)} probes, Hann window; the bands are thirds of the frequencies. (b) "
        "Predicted over true energy of all trajectories by band (1 is correct, below 1 energy is "
        "missing), mean over components. Every frame is predicted from the true frame before it: "
        "persistence, which repeats the truth one step late, is correct by construction, and the "
        "frequencies of a rollout are not shown."
    )
    alt = f"Power spectra in time of truth and {len(density)} models on {data.name}, with a table."
    return Drawn(figure, caption, alt)


def _draw_ratios(ax: Axes, data: DatasetResults, rows: list[str]) -> None:
    """A table of models and bands, with rules above and below."""
    ax.set_axis_off()
    ax.set_title("b  Predicted / true energy", fontsize=NORMAL + 1, loc="left")
    ax.set_xlim(0, 1)
    ax.set_ylim(max(len(rows), _TABLE_ROWS) + 0.3, -1.2)
    for y, width in ((-1.1, 1.0), (-0.1, 0.6), (len(rows) + 0.05, 1.0)):
        ax.axhline(y, color="0.2", lw=width)
    style: dict[str, Any] = {"va": "center", "fontsize": SMALL}
    for row, model in enumerate(rows):
        ax.text(0, row + 0.45, model, color=data.colour(model), **style)
    for x, band in ((0.64, "low"), (0.82, "mid"), (1.0, "high")):
        ax.text(x, -0.6, band, ha="right", **style)
        for row, model in enumerate(rows):
            number = _short(data.value(model, f"psd_ratio_{band}"))
            ax.text(x, row + 0.45, number, ha="right", **style)


def _short(value: float | None) -> str:
    if value is None:
        return "–"
    return f"{value:.3f}" if value < 10 else f"{value:.1f}" if value < 1e4 else f"{value:.1e}"


def _inverse(unit: str) -> str:
    """``1/s`` of ``s``, ``U/D`` of ``D/U``."""
    above, _, below = unit.partition("/")
    return f"{below or '1'}/{above}"
