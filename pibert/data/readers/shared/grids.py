"""Fields on any points, placed on the uniform grid that a trajectory needs.

All data are points (x, y) with values: axes of a grid, two-dimensional meshes in either order, or
scattered points. A uniform grid is kept, with ascending axes; points of another lattice are
interpolated bilinearly, all others linearly in triangles, and the error of the grid is measured
(``interpolation``).
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pibert.data.readers.recordings import SourceError, describe_parameter
from pibert.data.readers.shared.interpolation import (
    GridError,
    Interpolation,
    Lattice,
    Triangulation,
    check_shape,
    describe_error,
    describe_rounding,
    find_even_times,
    find_lattice,
    fit_axis,
    percent,
)
from pibert.fields import FieldSpec, FrameSource, Grid, Sides, Trajectory


@dataclass(frozen=True, eq=False, kw_only=True)
class Layout:
    """The uniform grid for a set of points, and the interpolation to it."""

    shape: tuple[int, int]
    origin: tuple[float, float]
    dx: float
    dy: float
    points: np.ndarray
    """(n, 2) in the source's order."""
    interpolation: Interpolation
    notes: tuple[str, ...]
    record: Mapping[str, Any]
    """Facts for ``Trajectory.local``."""

    @property
    def is_kept(self) -> bool:
        """Whether the points are those of the grid, so that no value is interpolated."""
        return self.record["method"] == "none"

    def place(
        self, fields: Mapping[str, np.ndarray], known: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Return states (t, c, y, x) in float32 and the valid points (t, y, x).

        ``fields`` map channels to values (t, ...) in the source's order; ``known`` is (t, n).
        """
        t, (ny, nx) = len(known), self.shape
        states = np.empty((t, len(fields), ny, nx), np.float32)
        for channel, values in enumerate(fields.values()):
            placed, valid = self.interpolation.apply(values.reshape(t, -1), known)
            states[:, channel] = placed.reshape(t, ny, nx)
        return states, valid.reshape(t, ny, nx)

    def place_mask(self, mask: np.ndarray) -> np.ndarray:
        """Return a mask (t, n) as (t, y, x): true where half of the support is."""
        return self.interpolation.covers(mask).reshape(-1, *self.shape)

    def measured_record(
        self, fields: Mapping[str, np.ndarray], known: np.ndarray
    ) -> tuple[dict[str, Any], list[str]]:
        """Return the facts with the error of the middle frame, and notes, if the grid has one.

        Arguments are those of ``place``.
        """
        if self.is_kept:
            return dict(self.record), []
        middle = slice(len(known) // 2, len(known) // 2 + 1)
        fields = {name: values[middle] for name, values in fields.items()}
        states, valid = self.place(fields, known[middle])
        values = np.stack([values.reshape(-1) for values in fields.values()])
        error = GridError(tuple(fields))
        points = (self.points - self.origin) / (self.dx, self.dy)
        error.add(points, np.where(known[middle], values, np.nan), states[0], valid[0])
        return {**self.record, "error": error.relative}, [describe_error(error.relative)]


def find_layout(
    name: str,
    x: np.ndarray,
    y: np.ndarray,
    shape: tuple[int, ...],
    wanted: tuple[int, int] | None = None,
) -> Layout:
    """Find a uniform grid for points; messages name ``name``.

    ``x`` and ``y`` are axes, meshes of the fields' shape, or coordinates of the points; ``shape``
    is that of one frame: (y, x), (x, y) or (n,). ``wanted`` is the shape to resample to.
    """
    if wanted is not None:
        check_shape(name, wanted)
    x, y, notes, record = _as_points(name, np.asarray(x), np.asarray(y), shape)
    points, lattice = np.stack([x, y], -1).astype(float), find_lattice(name, x, y)
    if lattice is None:
        return _scattered(name, points, notes, record, wanted)
    return _on_lattice(points, lattice, notes, record, wanted)


def _as_points(
    name: str, x: np.ndarray, y: np.ndarray, shape: tuple[int, ...]
) -> tuple[np.ndarray, np.ndarray, list[str], dict[str, Any]]:
    """Return x and y for every value, in the order of the values, and how the grid is stored."""
    found, transposed = (x.shape, y.shape), False
    are_axes = x.ndim == y.ndim == 1 and len(shape) == 2
    if are_axes:
        transposed = shape == (len(x), len(y)) and len(x) != len(y)
        x, y = np.meshgrid(x, y, indexing="ij" if transposed else "xy")
    elif x.ndim == 2 and x.shape == y.shape == shape:
        transposed = bool(np.ptp(x[:, 0]) > np.ptp(x[0]) and np.ptp(y[0]) > np.ptp(y[:, 0]))
    if x.shape != shape or y.shape != shape:
        raise SourceError(
            f"{name}: the coordinates do not fit fields of shape {shape}: expected their two axes "
            f"or an x and a y per value, found x {found[0]} and y {found[1]}"
        )
    if not (np.isfinite(x).all() and np.isfinite(y).all()):
        raise SourceError(f"{name}: every point needs finite coordinates; some x or y are not")
    notes: list[str] = []
    record: dict[str, Any] = {}
    if transposed:
        notes.append("the fields were stored x first; they were transposed")
        record["transposed"] = True
    if len(shape) == 2:
        rows, columns = (y.T, x.T) if transposed else (y, x)
        for axis, levels, ran, lines in (
            ("x", columns[0], "leftward", "columns"),
            ("y", rows[:, 0], "downward", "rows"),
        ):
            steps = np.diff(levels)
            if len(steps) and (steps < 0).all():
                notes.append(f"{axis} ran {ran}; {lines} were flipped")
                record["flipped"] = [*record.get("flipped", []), axis]
            elif are_axes and not (steps > 0).all():
                notes.append(f"{axis} was not in ascending order; {lines} were sorted")
                record["sorted"] = [*record.get("sorted", []), axis]
    return x.ravel(), y.ravel(), notes, record


def _on_lattice(
    points: np.ndarray,
    lattice: Lattice,
    notes: list[str],
    record: dict[str, Any],
    wanted: tuple[int, int] | None,
) -> Layout:
    rows, columns = wanted or lattice.nodes.shape
    x, y = fit_axis(lattice.columns, columns), fit_axis(lattice.rows, rows)
    shape = (len(y.low), len(x.low))
    record["method"] = "none"
    if not (x.exact and y.exact):
        uneven = " and ".join(n for n, axis in (("x", x), ("y", y)) if not axis.exact)
        notes.append(
            f"the spacing of {uneven} is not uniform; resampled bilinearly from "
            f"{lattice.nodes.shape[0]} x {lattice.nodes.shape[1]} to {shape[0]} x {shape[1]}"
        )
        record |= {"method": "bilinear", "from": list(lattice.nodes.shape), "to": list(shape)}
    for what, levels in (("columns", lattice.columns), ("rows", lattice.rows)):
        notes += describe_rounding(f"positions of {what}", levels)
    if x.exact and y.exact and wanted is not None:
        notes.append("the grid is uniform and was kept; the requested shape was not used")
    found = int((lattice.nodes >= 0).sum())
    if repeated := len(points) - found:
        notes.append(f"{repeated} of {len(points)} points repeat another: the first one counts")
        record["repeated"] = repeated
    absent = 1 - found / (shape[0] * shape[1])
    if absent > 0 and x.exact and y.exact:
        notes.append(f"{percent(absent)} of the grid's points are missing: marked invalid")
    return Layout(
        shape=shape,
        origin=(x.first, y.first),
        dx=x.step,
        dy=y.step,
        points=points,
        interpolation=lattice.interpolation(x, y),
        notes=tuple(notes),
        record=record,
    )


def _scattered(
    name: str,
    points: np.ndarray,
    notes: list[str],
    record: dict[str, Any],
    wanted: tuple[int, int] | None,
) -> Layout:
    mesh = Triangulation(name, points)
    rows, columns = shape = wanted or mesh.even_size(name)
    (left, bottom), (right, top) = mesh.low, mesh.high
    x, y = np.linspace(left, right, columns), np.linspace(bottom, top, rows)
    interpolation = mesh.interpolation(np.stack(np.meshgrid(x, y), -1).reshape(-1, 2))
    notes.append(
        f"{len(points)} scattered points; resampled linearly in Delaunay triangles to {rows} x "
        f"{columns}"
    )
    outside = float((interpolation.weight.sum(-1) == 0).mean())
    if outside > 0:
        notes.append(f"{percent(outside)} of the grid lies outside or in holes: marked invalid")
    return Layout(
        shape=shape,
        origin=(float(left), float(bottom)),
        dx=float(right - left) / (columns - 1),
        dy=float(top - bottom) / (rows - 1),
        points=points,
        interpolation=interpolation,
        notes=tuple(notes),
        record=record | {"method": "linear in triangles", "from": len(points), "to": list(shape)},
    )


def on_uniform_grid(
    name: str,
    fields: Mapping[str, np.ndarray],
    x: np.ndarray,
    y: np.ndarray,
    *,
    valid: np.ndarray | None = None,
    body: np.ndarray | None = None,
    filled: np.ndarray | None = None,
    local: Mapping[str, Any] = {},
    shape: tuple[int, int] | None = None,
    **stated: Any,
) -> tuple[Trajectory, tuple[str, ...]]:
    """Return a trajectory in memory from fields on any kind of points, and notes.

    ``fields`` map channels to (t, y, x) on a grid, or (t, n) at scattered points; ``x`` and ``y``
    are as for ``find_layout``. The masks have the shape of a field, or lack t: ``valid`` is False
    where a value is missing or wrong, ``filled`` True where one was filled in and not measured.
    ``shape`` is that to resample to (rows, columns); ``stated`` are other keywords of ``describe``.
    """
    frames, *others = {values.shape for values in fields.values()} or [()]
    if others or len(frames) not in (2, 3) or 0 in frames:
        raise SourceError(
            f"{name}: expected fields of one shape (t, y, x) or (t, n), found "
            + (", ".join(f"{key} {values.shape}" for key, values in fields.items()) or "none")
        )
    layout = find_layout(name, x, y, frames[1:], shape)
    solid = None if body is None else _flat_mask(name, "body", body, frames)
    # Points (t, n) that are fluid, valid and finite in every channel.
    known = np.ones((frames[0], math.prod(frames[1:])), bool)
    for values in fields.values():
        known &= np.isfinite(values).reshape(known.shape)
    if valid is not None:
        known &= _flat_mask(name, "valid", valid, frames)
    if solid is not None:
        known &= ~solid
    states, placed_valid = layout.place(fields, known)
    record, noticed = layout.measured_record(fields, known)
    notes = list(layout.notes)
    missing = float((~known if solid is None else ~known & ~solid).mean())
    if missing > 0:
        notes.append(f"{percent(missing)} of the values are missing or marked invalid")
    masks: dict[str, Any] = {}
    if solid is not None:
        placed_body = layout.place_mask(solid)
        placed_valid |= placed_body
        masks["body"] = _as_mask(placed_body)
    if filled is not None:
        filled = _flat_mask(name, "filled", filled, frames) & known
        if filled.any():
            masks["filled"] = _as_mask(layout.place_mask(filled))
    if not placed_valid.all():
        masks["valid"] = _as_mask(placed_valid)
    local, channels = {**local, "gridding": record}, tuple(fields)
    placed = torch.from_numpy(states)
    trajectory = describe(name, placed, layout, channels=channels, local=local, **masks, **stated)
    return trajectory, (*notes, *noticed, *describe_times(stated.get("time")))


def describe(
    name: str,
    states: Tensor | FrameSource,
    layout: Layout,
    *,
    channels: tuple[str, ...],
    time: np.ndarray | None = None,
    units: Mapping[str, str] = {},
    sides: Sides = Sides(),
    viscosity: float | None = None,
    parameters: Mapping[str, float] = {},
    counted: bool = False,
    **stated: Any,
) -> Trajectory:
    """Return the trajectory of states on the layout's grid.

    Frames without times are counted; channels without units are dimensionless. If the times are
    ``counted``, they are frame numbers, which state no time step. ``stated`` are further fields of
    ``Trajectory``: masks, source facts, units of length and time.
    """
    times, dt = _times(name, time, states.shape[0])
    spec = FieldSpec(
        channels=channels,
        units=tuple(units.get(channel) or "1" for channel in channels),
        parameters=tuple(map(describe_parameter, parameters)),
        dt=None if counted else dt,
        grid=Grid(layout.shape, layout.dx, layout.dy, sides, origin=layout.origin),
        viscosity=viscosity,
    )
    return Trajectory(
        name=name,
        states=states,
        time=torch.from_numpy(times),
        spec=spec,
        parameters={key: float(value) for key, value in parameters.items()},
        **stated,
    )


def _flat_mask(name: str, kind: str, mask: np.ndarray, frames: tuple[int, ...]) -> np.ndarray:
    mask = np.asarray(mask, bool)
    if mask.shape not in (frames, frames[1:]):
        raise SourceError(
            f"{name}: expected a mask {kind!r} of shape {frames} or {frames[1:]}, "
            f"found {mask.shape}"
        )
    return mask.reshape(-1, math.prod(frames[1:]))


def _as_mask(mask: np.ndarray) -> Tensor:
    """Return a mask (t, y, x), or (y, x) if all frames are the same."""
    return torch.from_numpy(mask[0].copy() if (mask == mask[0]).all() else mask)


def describe_times(time: np.ndarray | None) -> list[str]:
    """Return a note if uniform steps were fitted to rounded times."""
    if time is None:
        return []
    return describe_rounding("times", np.ravel(time).astype(np.float64), find_even_times)


def _times(name: str, time: np.ndarray | None, count: int) -> tuple[np.ndarray, float | None]:
    """Return the times without the rounding of an even step, and the step that all but gaps keep.

    Gaps are whole numbers of steps; times that are uneven otherwise are returned as they are.
    """
    if time is None:
        return np.arange(count, dtype=np.float64), None
    time = np.array(time, dtype=np.float64).reshape(-1)
    if len(time) != count or not np.isfinite(time).all() or (np.diff(time) <= 0).any():
        raise SourceError(
            f"{name}: expected {count} increasing times, found {len(time)}"
            + (f" from {time.min():g} to {time.max():g}" if len(time) else "")
        )
    uniform = find_even_times(time) if count > 1 else None
    if uniform is None:
        return time, None
    first, step, positions = uniform
    return first + step * positions, step
