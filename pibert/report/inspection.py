"""The picture of an inspection: one frame, its derivatives, missing points, and statistics."""

import math
import os
from pathlib import Path

import numpy as np
import torch
from matplotlib.axes import Axes
from torch import Tensor

from pibert.data.inspection.checks import Inspection
from pibert.data.units import in_consistent_units
from pibert.fields import Trajectory, read_mask
from pibert.physics import derivatives
from pibert.report.figures import (
    Layer,
    add_bar,
    layer_of,
    maps_and_curves,
    name_axes,
    picture_path,
    show,
    with_unit,
    write_figure,
)

_CHANNELS = 6
_TRACE_FRAMES = 200
_TRACE_VALUES = 1 << 24
_FEW_FRAMES = 50
_DERIVED = ("vorticity", "divergence")


def draw_inspection(
    path: str | os.PathLike[str], trajectory: Trajectory, inspection: Inspection
) -> Path:
    """Draw the middle frame of a trajectory and statistics of a few hundred frames.

    Colour scales leave out the outermost hundredth of the values, which arrows on the bar mark.
    Bodies and missing points are grey. Fields are in the units of the source, derivatives per
    second where the units are known. The path is that of a PNG file; its folder is created, and an
    older file is replaced atomically.
    """
    path, spec = picture_path(path), trajectory.spec
    t, c, ny, nx = trajectory.states.shape
    count = max(1, min(t, _TRACE_FRAMES, _TRACE_VALUES // (c * ny * nx)))
    frames = slice((t - count) // 2, (t - count) // 2 + count)  # around the middle
    middle = t // 2
    fields, known = _read(trajectory, slice(middle, middle + 1))
    described = list(zip(spec.channels, spec.units, fields[0], strict=True))[:_CHANNELS]
    layers = {with_unit(name, unit): layer_of(field, known[0]) for name, unit, field in described}
    layers |= _derived_layers(trajectory, middle)
    series, known_series = _read(trajectory, frames)
    if not bool((known_series == known_series[0]).all()):
        layers["not known, share of frames"] = _share(~known_series, trajectory)
    if trajectory.filled is not None:
        filled = known_series & read_mask(trajectory.filled, frames).cpu()
        if bool(filled.any()):
            layers["filled, share of frames"] = _share(filled, trajectory)
    several = len(series) > 1
    if several and len(layers) == 1:  # the only channel as it begins and ends
        for which, frame in (("first", 0), ("last", t - 1)):
            ends, shown = _read(trajectory, slice(frame, frame + 1))
            layers[f"{which} frame"] = layer_of(ends[0, 0], shown[0])
    columns = 4 if len(layers) in (4, 7, 8) else 3
    grid = trajectory.spec.grid
    figure, axes, below = maps_and_curves(grid, len(layers), columns, 3 if several else 2)
    for ax, (label, layer) in zip(axes, layers.items(), strict=True):
        low, high, colours = _scale(label, layer)
        image = show(ax, layer, trajectory.spec.grid, low, high, colours)
        add_bar(ax, image, extend=layer.excess(low, high))
        ax.set_title(label, fontsize=10)
    _draw_histogram(below[0], fields[0], known[0], trajectory)
    _draw_spectrum(below[-1], fields[0], known[0], trajectory)
    if several:
        _draw_trace(below[1], series, known_series, trajectory.time[frames], trajectory)
    x, y = (with_unit(axis, trajectory.length_unit) for axis in "xy")
    axes[0].set(xlabel=x, ylabel=y)
    title = f"{inspection.facts.name}: {trajectory.name}, frame {middle} of {t}"
    if wrong := [problem.topic for problem in inspection.problems if problem.serious]:
        title += f"\nproblems: {', '.join(wrong)}"
    figure.suptitle(title, fontsize=11)
    return write_figure(figure, path)


def _read(trajectory: Trajectory, frames: slice) -> tuple[Tensor, Tensor]:
    """Fields (t, c, y, x) and known points (t, y, x); what is not finite is not known."""
    fields = trajectory.read(frames).to("cpu", torch.float64)
    known = trajectory.known(frames).cpu() & fields.isfinite().all(1)
    return torch.where(known[:, None], fields, 0.0), known


def _derived_layers(trajectory: Trajectory, frame: int) -> dict[str, Layer]:
    """Vorticity and divergence of a velocity, in units that fit together."""
    trajectory = in_consistent_units(trajectory)
    spec = trajectory.spec
    if not {"u", "v"} <= set(spec.channels) or min(spec.grid.shape) < 3:
        return {}
    fields, known = _read(trajectory, slice(frame, frame + 1))
    u, v = (fields[0, spec.channels.index(name)] for name in ("u", "v"))
    is_si = (trajectory.length_unit, spec.units[spec.channels.index("u")]) == ("m", "m/s")
    layers = {}
    for name in _DERIVED:
        operator = getattr(derivatives, name)
        values, defined = derivatives.where_defined(
            lambda u, v, operator=operator: operator(u, v, spec.grid), u, v, known=known[0]
        )
        layers[f"{name} [1/s]" if is_si else name] = layer_of(values, defined & known[0])
    return layers


def _share(marked: Tensor, trajectory: Trajectory) -> Layer:
    """Share of the frames in which a point outside a resting body is marked."""
    body = trajectory.spec.grid.body
    return layer_of(marked.double().mean(0), torch.ones_like(marked[0]) if body is None else ~body)


def _scale(label: str, layer: Layer) -> tuple[float, float, str]:
    """As ``Layer.scale``, of the inner 99 of 100 values."""
    if "share" in label:
        return 0.0, layer.limit, "magma_r"
    inner = Layer(np.ma.masked_array(layer.shown.clip(*layer.inner)))
    return inner.scale(signed=label.startswith(_DERIVED))


def _draw_histogram(ax: Axes, fields: Tensor, known: Tensor, trajectory: Trajectory) -> None:
    """Of every channel, in deviations from its mean, so that all fit one axis."""
    for name, field in list(zip(trajectory.spec.channels, fields, strict=True))[:_CHANNELS]:
        values = field[known]
        if len(values) > 1 and values.std() > 0:
            scaled = ((values - values.mean()) / values.std()).clamp(-6, 6)
            ax.hist(scaled.numpy(), bins=60, range=(-6, 6), histtype="step", label=name)
    ax.set_yscale("log")
    name_axes(ax, "values of this frame", "deviations from the mean (ends: beyond)", "points")


def _draw_trace(
    ax: Axes, fields: Tensor, known: Tensor, time: Tensor, trajectory: Trajectory
) -> None:
    """The channels over time at the known point, off the edges, where one of them varies most."""
    variance = torch.where(known.all(0), fields[:, _leader(trajectory)].var(0), -1.0)
    if min(variance.shape) >= 8:
        edge = torch.ones_like(variance, dtype=torch.bool)
        edge[2:-2, 2:-2] = False
        variance[edge] = -1.0
    row, column = divmod(int(variance.argmax()), variance.shape[1])
    for index, name in enumerate(trajectory.spec.channels[:_CHANNELS]):
        values = fields[:, index, row, column]
        if values.std() > 0:
            values = (values - values.mean()) / values.std()
        marker = "." if len(fields) <= _FEW_FRAMES else ""
        ax.plot(time.numpy(), values.numpy(), lw=0.8, marker=marker, ms=4, label=name)
    grid = trajectory.spec.grid
    x, y = grid.origin[0] + column * grid.dx, grid.origin[1] + row * grid.dy
    leading = trajectory.spec.channels[_leader(trajectory)]
    title = f"over time at ({x:.3g}, {y:.3g}), where {leading} varies most"
    name_axes(ax, title, with_unit("time", trajectory.time_unit), "deviations")


def _leader(trajectory: Trajectory) -> int:
    channels = trajectory.spec.channels
    return channels.index("v") if "v" in channels else 0


def _draw_spectrum(ax: Axes, fields: Tensor, known: Tensor, trajectory: Trajectory) -> None:
    """Energy over the wavenumber along x, mean over the rows without a missing point."""
    grid = trajectory.spec.grid
    rows = known.all(1)
    if grid.shape[1] < 8 or not bool(rows.any()):
        ax.text(0.5, 0.5, "no row without gaps", ha="center", transform=ax.transAxes, fontsize=9)
        ax.set_axis_off()
        return
    window = torch.hann_window(grid.shape[1], periodic=False, dtype=torch.float64)
    wavenumber = 2 * math.pi * torch.fft.rfftfreq(grid.shape[1], grid.dx)[1:]
    for name, field in list(zip(trajectory.spec.channels, fields, strict=True))[:_CHANNELS]:
        lines = field[rows]
        lines = (lines - lines.mean(1, keepdim=True)) * window
        energy = torch.fft.rfft(lines).abs().square().mean(0)[1:]
        if energy.sum() > 0:
            ax.loglog(wavenumber.numpy(), (energy / energy.sum()).numpy(), lw=0.9, label=name)
    unit = trajectory.length_unit and f"1/{trajectory.length_unit}"
    name_axes(ax, "spectrum along x", with_unit("wavenumber", unit), "share of energy")
