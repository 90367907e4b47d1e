"""Pictures of the statistics of a recording: contours with arrows, spectra, modes."""

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from torch import Tensor

from pibert.evaluation.flow_statistics import FlowStatistics
from pibert.evaluation.measure import velocity_unit
from pibert.report.figures import (
    FORMATS,
    GREY,
    NORMAL,
    SIGNED,
    SMALL,
    VALUES,
    blank,
    is_signed,
    layer_of,
    maps_and_curves,
    name_axes,
    picture_path,
    with_unit,
    write_figure,
)

_LEVELS = 21
_ARROWS = 22
"""Most arrows along the longer side of a panel."""
_MODES = 4


def draw_statistics(
    folder: Path, found: FlowStatistics, file_format: str = FORMATS[0]
) -> list[Path]:
    """Draw a file of each subject that was computed into a folder."""
    figures = {"mean": _draw_mean(found), "fluctuations": _draw_fluctuations(found)}
    if found.spectra is not None:
        figures["spectra"] = _draw_spectra(found)
    if found.phase is not None:
        figures["phases"] = _draw_phases(found)
    if found.pod is not None:
        figures["pod"] = _draw_pod(found)
    if found.spod is not None and found.spod.peaks(1):
        figures["spod"] = _draw_spod(found)
    if found.dmd is not None:
        figures["dmd"] = _draw_dmd(found)
    for figure in figures.values():
        figure.suptitle(f"{found.flow.name}, {found.flow.num_frames} frames", fontsize=NORMAL)
    return [
        write_figure(figure, picture_path(folder / f"{name}.{file_format}"))
        for name, figure in figures.items()
    ]


def _map(
    ax: Axes,
    found: FlowStatistics,
    title: str,
    values: Tensor,
    *,
    arrows: Tensor | None = None,
    signed: bool = False,
    bar: bool = True,
) -> None:
    """Filled contours of a field, NaN in grey, and arrows of a velocity (2, y, x).

    A field without any value is a grey panel without a colour bar.
    """
    grid = found.spec.grid
    x = grid.origin[0] + grid.dx * np.arange(grid.shape[1])
    y = grid.origin[1] + grid.dy * np.arange(grid.shape[0])
    ax.set_facecolor(GREY)
    ax.set_aspect("equal")
    ax.set_title(title, fontsize=NORMAL)
    ax.locator_params(nbins=5)
    ax.set_xlabel(with_unit("x", found.flow.length_unit), fontsize=SMALL)
    ax.set_ylabel(with_unit("y", found.flow.length_unit), fontsize=SMALL)
    if not bool(values.isfinite().any()):
        ax.set(xlim=(x[0], x[-1]), ylim=(y[0], y[-1]))
        return
    layer = layer_of(values.nan_to_num(), values.isfinite())
    low, high = layer.inner
    colours = VALUES
    if is_signed(low, high, always=signed):
        low, high, colours = -layer.robust_limit, layer.robust_limit, SIGNED
    if not high > low:
        low, high = low - 0.5, high + 0.5
    levels = np.linspace(low, high, _LEVELS)
    image = ax.contourf(x, y, layer.values, levels=levels, cmap=colours, extend="both")
    if bar:
        ticks = [tick for tick in MaxNLocator(5).tick_values(low, high) if low <= tick <= high]
        colorbar = ax.figure.colorbar(
            image, cax=ax.inset_axes((1.03, 0.0, 0.045, 1.0)), ticks=ticks
        )
        colorbar.ax.tick_params(labelsize=SMALL, length=2)
    if arrows is not None:
        step = math.ceil(max(grid.shape) / _ARROWS)
        rows, columns = slice(step // 2, None, step), slice(step // 2, None, step)
        u, v = (part[rows, columns].double().numpy() for part in arrows[:2])
        longest = float(np.nanquantile(np.hypot(u, v), 0.99)) or 1.0
        size = longest / (1.2 * step * min(grid.dx, grid.dy))
        how: dict[str, Any] = {"angles": "xy", "scale_units": "xy", "scale": size}
        ax.quiver(x[columns], y[rows], u, v, color="black", width=0.004, alpha=0.8, **how)


def _draw_mean(found: FlowStatistics) -> Figure:
    figure, axes, _ = maps_and_curves(found.spec.grid, 2, 2)
    unit, vectors = velocity_unit(found.spec), found.mean[list(found.velocity)]
    speed = vectors[:2].square().sum(0).sqrt()
    _map(axes[0], found, with_unit("mean speed and velocity", unit), speed, arrows=vectors)
    label = with_unit("vorticity of the mean flow", found.gradient_unit)
    _map(axes[1], found, label, found.vorticity, signed=True)
    return figure


def _draw_fluctuations(found: FlowStatistics) -> Figure:
    figure, axes, _ = maps_and_curves(found.spec.grid, 4, 2)
    unit = velocity_unit(found.spec)
    square = None if unit == "1" else f"({unit})²"
    first, second, *_ = found.velocity
    a, b = (found.spec.channels[i] for i in (first, second))
    _map(axes[0], found, with_unit(f"rms of {a}", unit), found.rms[first])
    _map(axes[1], found, with_unit(f"rms of {b}", unit), found.rms[second])
    _map(axes[2], found, with_unit(f"<{a}'{b}'>", square), found.stress[0, 1], signed=True)
    label = "turbulent kinetic energy" + ("" if len(found.velocity) > 2 else ", two components")
    _map(axes[3], found, with_unit(label, square), found.tke)
    return figure


def _draw_spectra(found: FlowStatistics) -> Figure:
    assert found.spectra is not None
    spectra = found.spectra
    figure = blank(5.2, 3.4)
    ax = figure.subplots()
    for i in found.velocity:
        power = spectra.power[1:, :, i]
        lines = ax.loglog(
            spectra.frequency[1:], power.mean(1), lw=1.3, label=found.spec.channels[i]
        )
        colour = lines[0].get_color()
        ax.loglog(spectra.frequency[1:], power, lw=0.4, alpha=0.25, color=colour)
    if spectra.dominant is not None:
        label = f"dominant: {spectra.dominant:.4g} {found.frequency_unit}"
        ax.axvline(spectra.dominant, color="0.5", lw=0.8, ls="--", label=label)
    ax.tick_params(which="both", labelsize=SMALL)
    unit = velocity_unit(found.spec)
    density = "power spectral density" + ("" if unit == "1" else f" [({unit})²·{_time(found)}]")
    title = f"spectra at {len(spectra.probes)} probes (thin) and their mean"
    name_axes(ax, title, with_unit("frequency", found.frequency_unit), density)
    return figure


def _time(found: FlowStatistics) -> str:
    return found.frequency_unit.removeprefix("1/")


def _draw_phases(found: FlowStatistics) -> Figure:
    assert found.phase is not None
    count = len(found.phase.mean)
    figure, axes, _ = maps_and_curves(found.spec.grid, count, 2)
    change = found.phase.mean[:, list(found.velocity)] - found.mean[list(found.velocity)]
    name = found.spec.channels[found.velocity[1]]
    for number, ax in enumerate(axes):
        frames = int(found.phase.count[number].max())
        title = f"{name} − mean, phase {number}/{count} ({frames} frames)"
        _map(ax, found, title, change[number, 1], arrows=change[number], signed=True)
    return figure


def _mode_panels(
    axes: Sequence[Axes], found: FlowStatistics, modes: Sequence[Tensor], titles: Sequence[str]
) -> None:
    """Real parts of modes: the second component in colours, both as arrows."""
    name = found.spec.channels[found.velocity[1]]
    for ax, mode, title in zip(axes, modes, titles, strict=True):
        real = torch.view_as_real(mode)[..., 0] if mode.is_complex() else mode
        _map(ax, found, f"{title}: {name}", real[1], arrows=real, signed=True, bar=False)


def _draw_pod(found: FlowStatistics) -> Figure:
    assert found.pod is not None
    share = found.pod.share
    count = min(_MODES, len(share))
    figure, maps, (left, middle, right) = maps_and_curves(found.spec.grid, count, 2, curves=3)
    shown = share[:30]
    left.semilogy(range(1, len(shown) + 1), shown, "o-", ms=3, lw=0.8)
    left.xaxis.set_major_locator(MaxNLocator(integer=True))
    name_axes(left, "share of the energy", "POD mode", "share")
    middle.plot(range(1, len(share) + 1), share.cumsum(0), lw=1.0)
    middle.set(ylim=(0, 1.02), xscale="log")
    name_axes(middle, "cumulative share", "POD modes", "share")
    amplitudes = found.pod.coefficients[:, :2] / found.pod.energy[:2].sqrt()
    if amplitudes.shape[1] == 2:
        right.plot(amplitudes[:, 0], amplitudes[:, 1], ".", ms=2)
        right.set_aspect("equal", adjustable="datalim")
    name_axes(right, "a1, a2 over their rms", "a1", "a2")
    titles = [f"POD mode {i + 1}, {share[i]:.1%}" for i in range(count)]
    _mode_panels(maps, found, [found.field_of(mode) for mode in found.pod.modes[:count]], titles)
    return figure


def _draw_spod(found: FlowStatistics) -> Figure:
    assert found.spod is not None
    peaks = found.spod.peaks(_MODES)
    figure, maps, (ax,) = maps_and_curves(found.spec.grid, len(peaks), 2, curves=1)
    energy, frequency = found.spod.energy, found.spod.frequency
    for i in range(energy.shape[1]):
        label = {0: "first mode", 1: "second mode"}.get(i)
        shade = str(min(0.85, 0.75 * i / max(1, energy.shape[1] - 1) + 0.1 * bool(i)))
        width = 1.4 if not i else 0.7
        ax.loglog(frequency, energy[:, i], lw=width, color=shade, label=label, zorder=3 - 0.01 * i)
    ax.plot(frequency[peaks], energy[peaks, 0], "o", ms=4, color="#c1440e", label="shown above")
    name_axes(
        ax, "SPOD eigenvalues", with_unit("frequency", found.frequency_unit), "energy density"
    )
    titles = [f"f = {float(frequency[i]):.4g} {found.frequency_unit}" for i in peaks]
    _mode_panels(maps, found, [found.lifted(found.spod.modes[i, 0]) for i in peaks], titles)
    return figure


def _draw_dmd(found: FlowStatistics) -> Figure:
    assert found.dmd is not None
    count = min(_MODES, len(found.dmd.frequency))
    figure, maps, (left, right) = maps_and_curves(found.spec.grid, count, 2, curves=2)
    frequency, growth, amplitude = found.dmd.frequency, found.dmd.growth, found.dmd.amplitude
    left.axhline(0.0, color="0.7", lw=0.8)
    left.scatter(frequency, growth, s=10 + 120 * amplitude / amplitude.max(), alpha=0.6)
    unit = found.frequency_unit
    names = with_unit("frequency", unit), with_unit("growth rate", unit)
    name_axes(left, "DMD spectrum (area: amplitude)", *names)
    right.vlines(frequency, 0, amplitude, lw=1.2)
    right.plot(frequency, amplitude, "o", ms=3)
    label = with_unit("amplitude", velocity_unit(found.spec))
    name_axes(right, "amplitude (rms over time and field)", names[0], label)
    titles = [f"f = {float(frequency[i]):.4g} {unit}" for i in range(count)]
    _mode_panels(maps, found, [found.lifted(mode) for mode in found.dmd.modes[:count]], titles)
    return figure
