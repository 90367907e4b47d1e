"""Spectra in space and in time.

Radial spectra, with definitions, window and bands of ``evaluation/scales.py``:

    E(k)          half the squared Fourier modes of u and v in the ring of wavenumber k
    error(k)/E(k) the same of prediction minus truth, over the truth: at 1 a model knows no more of
                  structures of that size than their energy

Power spectra at probes are those of ``evaluation/temporal.py``, of one-step (teacher-forced)
predictions, in which persistence keeps the frequencies of the flow too.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Tensor

from pibert.evaluation.measure import velocity_unit
from pibert.evaluation.scales import BANDS, FLOOR, Spectra, wavenumbers
from pibert.evaluation.temporal import LEAST_FRAMES, power_density
from pibert.report.comparison.plots import (
    Plot,
    frame,
    line_style,
    logarithmic,
    sheet,
    side_legend,
    time_unit,
)
from pibert.report.comparison.results import DatasetResults
from pibert.report.comparison.time import probe_series
from pibert.report.figures import SMALL, with_unit

TERMS = "terms/physical/spectra"
_MOST = 9
_POWER_SHOWN = 1e-7
"""Power below this share of the maximum is rounding."""
_FARTHEST = 100.0
"""Largest ratio of powers that is shown."""


def spectra(data: DatasetResults) -> Plot | None:
    """Radial spectra of truth and models, and of the models' errors."""
    terms = data.arrays_of(data.shown(_MOST), TERMS)
    if not terms:
        return None
    measure = Spectra(spec=data.spec)
    curves = {m: measure.curves(rows.sum(0)) for m, rows in terms.items()}
    truth = next(iter(curves.values()))["truth"].numpy()
    k = wavenumbers(data.spec.grid).numpy()
    floor = FLOOR * truth.sum()
    figure, axes = sheet(10.4, max(3.9, 0.16 * len(curves) + 1.6), 1, 2)
    left, right = axes[0]
    length, unit = data.info["length_unit"], velocity_unit(data.spec)
    across = with_unit("wavenumber k", None if length is None else f"rad/{length}")
    frame(left, "a  Energy", x=across, y=with_unit("E(k)", None if unit == "1" else f"({unit})²"))
    frame(right, "b  Error over energy", x=across, y="error(k) / E(k)")
    predicted = {m: np.maximum(curve["prediction"].numpy(), floor) for m, curve in curves.items()}
    resolved = truth > floor
    errors = {
        m: np.maximum((c["error"].numpy() / truth)[resolved], 1e-8) for m, c in curves.items()
    }
    for ax in (left, right):
        logarithmic(ax, "x", k.tolist())
        ax.set_xlim(k[0] / 1.05, k[-1] * 1.02)
    logarithmic(left, "y", [max(truth.min(), floor), *np.concatenate([truth, *predicted.values()])])
    logarithmic(right, "y", [1.0, *np.concatenate(list(errors.values()))])
    right.axhline(1.0, color="0.4", lw=0.8, ls=":", zorder=1)
    for model in curves:
        left.plot(k, predicted[model], **line_style(data, model))
        right.plot(k[resolved], errors[model], **line_style(data, model))
    (line,) = left.plot(k, np.maximum(truth, floor), **line_style(data, "truth"), alpha=0.85)
    left.legend(handles=[line], fontsize=SMALL, frameon=False, loc="lower left")
    for ax in (left, right):
        inner = [(int(high * len(k) + 1e-9) + 0.5) * k[0] for _, high in BANDS.values()][:-1]
        _mark_bands(ax, [ax.get_xlim()[0], *inner, ax.get_xlim()[1]])
    side_legend(right)
    caption = (
        "Mean over the test frames of (a) the radial spectrum of the kinetic energy of u and v "
        "about their means, and (b) the spectrum of the error over that of the truth, which "
        "includes phase: at 1 (dotted) a model knows only the energy of a scale. Shaded: thirds of "
        "the resolved wavenumbers, the bands of the tables."
    )
    return Plot(figure, caption)


def _mark_bands(ax: Axes, edges: Sequence[float]) -> None:
    """Shade the middle one of three bands, and name all along the top."""
    ax.axvspan(edges[1], edges[2], color="0.94", lw=0, zorder=0)
    is_log = ax.get_xscale() == "log"
    for name, low, high in zip(BANDS, edges[:-1], edges[1:], strict=True):
        middle = (low * high) ** 0.5 if is_log else (low + high) / 2
        above = ax.get_xaxis_transform()
        style: dict[str, Any] = {"ha": "center", "va": "top", "fontsize": SMALL, "color": "0.45"}
        ax.text(middle, 0.985, name, transform=above, **style)


def power_spectra(data: DatasetResults) -> Plot | None:
    """Power spectral density at the probes."""
    series = probe_series(data, data.shown(8))
    if series is None or len(series.time) < LEAST_FRAMES:
        return None
    shown = {"truth": series.truth, **series.models}
    title = f"Power spectral density of {series.label}, one-step predictions"
    figure, axes, _ = draw_power(data, shown, title, series.unit, _POWER_SHOWN)
    for ax in axes:
        _mark_bands(ax, np.linspace(0, ax.get_xlim()[1], 4).tolist())
    caption = (
        f"Density of {series.label} in {data.trajectory(0)}, mean over {len(series.probes)} "
        "probes, Hann window; (b) predicted over true, from 0.01 to 100. The bands are thirds of "
        "the frequencies, for which the table has ratios. Every frame is predicted from the true "
        "frame before it: persistence, which repeats the truth one step late, is correct by "
        "construction, and the frequencies of a rollout are not shown."
    )
    return Plot(figure, caption)


def draw_power(
    data: DatasetResults, series: Mapping[str, Tensor], title: str, unit: str, lowest: float
) -> tuple[Figure, Sequence[Axes], float]:
    """Mean power densities of series (t, probe) by model, and their ratio to the truth.

    Powers below ``lowest`` times the maximum of the truth are drawn there, and ratios where the
    truth is above. Also returns the frequency of the highest peak of the truth.
    """
    clock, curves = time_unit(data), {}
    for name, values in series.items():
        frequency, power = power_density(values, data.spec.dt or 1.0)
        curves[name] = power.mean(1)[1:].numpy()
    f, floor = frequency[1:].numpy(), lowest * curves["truth"].max()
    shown = {name: np.maximum(values, floor) for name, values in curves.items()}
    figure, axes = sheet(11.4, max(3.9, 0.16 * len(shown) + 1.2), 1, 2)
    left, right = axes[0]
    across = with_unit("frequency f", None if clock is None else inverse_unit(clock))
    density = None if unit == "1" else f"({unit})² {clock or ''}".strip()
    frame(left, f"a  {title}", x=across, y=with_unit("P(f)", density))
    frame(right, "b  Predicted over true", x=across, y="ratio")
    logarithmic(left, "y", np.concatenate(list(shown.values())).tolist())
    resolved = curves["truth"] > floor
    ratios = {
        name: (values / curves["truth"])[resolved].clip(1 / _FARTHEST, _FARTHEST)
        for name, values in shown.items()
    }
    logarithmic(right, "y", [0.5, 2.0, *np.concatenate(list(ratios.values()))])
    for name, values in shown.items():
        left.plot(f, values, **line_style(data, name))
        right.plot(f[resolved], ratios[name], **line_style(data, name))
    for ax in (left, right):
        ax.set_xlim(0, f[-1])
    side_legend(right)
    return figure, (left, right), float(f[curves["truth"].argmax()])


def inverse_unit(unit: str) -> str:
    """``1/s`` of ``s``, ``U/D`` of ``D/U``."""
    above, _, below = unit.partition("/")
    return f"{below or '1'}/{above}"
