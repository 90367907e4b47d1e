"""Foreign fields as trajectories: brought onto the uniform grid that a trajectory needs.

A uniform grid is kept as it is, with axes in ascending order; the rest is resampled linearly
(``layout`` says how). The error of an interpolation is estimated by repeating
it with every second line, or half of the points, left out: the rms error at those as a share of the
field's fluctuation. With all points it is smaller, for smooth fields by about four (lines) or two
(points).
"""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor

from pibert.data.sources.gridding.lattice import find_uniform
from pibert.data.sources.gridding.layout import Layout, find_layout, percent
from pibert.data.sources.recordings import Hints, SourceError, describe_parameter
from pibert.fields import FieldSpec, FrameSource, Grid, Sides, Trajectory

_COORDINATES = ("x", "y", "z", "t")


def on_uniform_grid(
    name: str,
    fields: Mapping[str, np.ndarray],
    x: np.ndarray,
    y: np.ndarray,
    *,
    time: np.ndarray | None = None,
    valid: np.ndarray | None = None,
    body: np.ndarray | None = None,
    filled: np.ndarray | None = None,
    units: Mapping[str, str] = {},
    length_unit: str | None = None,
    time_unit: str | None = None,
    sides: Sides = Sides(),
    viscosity: float | None = None,
    parameters: Mapping[str, float] = {},
    source: Mapping[str, Any] = {},
    local: Mapping[str, Any] = {},
    hints: Hints = Hints(),
) -> tuple[Trajectory, tuple[str, ...]]:
    """A trajectory in memory from fields on any kind of points.

    Args:
        name: Of the trajectory.
        fields: Channel to (t, y, x) on a grid, or (t, n) at scattered points.
        x: Axis of the columns, mesh of the fields' shape, or coordinate of the points.
        y: Likewise.
        time: Of the frames; without it they are counted.
        valid: False where a value is missing or wrong: like one field, or without t.
        body: True inside a solid body, likewise.
        filled: True where a program put in a value that was not measured, likewise.
        units: Of the channels; what is not named is dimensionless.
        length_unit: Of x and y.
        time_unit: Of time.
        sides: What bounds the grid.
        viscosity: The kinematic one, if known.
        parameters: Of the flow.
        source: Source facts.
        local: What was done to the data before.
        hints: Channels and shape that the user states.

    Returns:
        The trajectory, and in words what was noticed and done.
    """
    fields = _renamed(name, fields, hints)
    frames = _frame_shape(name, fields)
    layout = find_layout(name, x, y, frames[1:], hints)
    solid = None if body is None else _flat_mask(name, "body", body, frames)
    known = _known(name, fields, valid, solid, frames)
    states, placed_valid = layout.place(fields, known)
    placed_body = None if solid is None else layout.place_mask(solid)
    remarks, notes = [*layout.remarks], dict(layout.notes)
    missing = float((~known if solid is None else ~known & ~solid).mean())
    if missing > 0:
        remarks.append(f"{percent(missing)} of the values are missing or marked invalid")
    if layout.check is not None:
        notes["error"] = layout.estimate_error(fields, known)
        remarks.append(error_in_words(notes["error"]))
    if placed_body is not None:
        placed_valid |= placed_body
    placed_filled = None
    if filled is not None:
        put_in = _flat_mask(name, "filled", filled, frames) & known
        placed_filled = layout.place_mask(put_in) if put_in.any() else None
    trajectory = describe(
        name,
        torch.from_numpy(states),
        layout,
        channels=tuple(fields),
        time=time,
        valid=_as_mask(placed_valid) if not placed_valid.all() else None,
        body=None if placed_body is None else _as_mask(placed_body),
        filled=None if placed_filled is None else _as_mask(placed_filled),
        units=units,
        length_unit=length_unit,
        time_unit=time_unit,
        sides=sides,
        viscosity=viscosity,
        parameters=parameters,
        source=source,
        local={**local, "gridding": notes},
    )
    return trajectory, tuple(remarks)


def describe(
    name: str,
    states: Tensor | FrameSource,
    layout: Layout,
    *,
    channels: tuple[str, ...],
    time: np.ndarray | None = None,
    valid: Tensor | FrameSource | None = None,
    body: Tensor | FrameSource | None = None,
    filled: Tensor | FrameSource | None = None,
    units: Mapping[str, str] = {},
    length_unit: str | None = None,
    time_unit: str | None = None,
    sides: Sides = Sides(),
    viscosity: float | None = None,
    parameters: Mapping[str, float] = {},
    source: Mapping[str, Any] = {},
    local: Mapping[str, Any] = {},
) -> Trajectory:
    """The trajectory of states that lie on the layout's grid already.

    Units and steps are the business of ``metadata``, family, sides and parameters of ``stated``.
    """
    times, dt = _times(name, time, states.shape[0])
    spec = FieldSpec(
        channels=channels,
        units=tuple(units.get(channel) or "1" for channel in channels),
        parameters=tuple(map(describe_parameter, parameters)),
        dt=dt,
        grid=Grid(layout.shape, layout.dx, layout.dy, sides, origin=layout.origin),
        viscosity=viscosity,
    )
    return Trajectory(
        name=name,
        states=states,
        time=torch.from_numpy(times),
        spec=spec,
        parameters={key: float(value) for key, value in parameters.items()},
        valid=valid,
        body=body,
        filled=filled,
        source=dict(source),
        local=dict(local),
        length_unit=length_unit,
        time_unit=time_unit,
    )


def error_in_words(error: Mapping[str, float]) -> str:
    if not error:
        return "the interpolation error could not be estimated: too few points or constant fields"
    worst = max(error, key=lambda channel: error[channel])
    return (
        f"interpolation error: {percent(error[worst])} of the fluctuation of {worst} (the worst "
        "channel) with half of the points or lines left out, less with all"
    )


def _renamed(name: str, fields: Mapping[str, np.ndarray], hints: Hints) -> dict[str, np.ndarray]:
    """Fields under our names."""
    named = {ours: theirs for ours, theirs in hints.channels.items() if ours not in _COORDINATES}
    wrong = [theirs for theirs in named.values() if theirs not in fields]
    if wrong:
        raise SourceError(f"{name}: no field {wrong[0]!r}; there are: {', '.join(fields)}")
    ours = {theirs: ours for ours, theirs in named.items()}
    return {
        ours.get(key, key): np.asarray(values)
        for key, values in fields.items()
        # A field whose name the user gave to another one makes way.
        if key in ours or named.get(key) not in fields
    }


def _frame_shape(name: str, fields: Mapping[str, np.ndarray]) -> tuple[int, ...]:
    shapes = {values.shape for values in fields.values()}
    if len(shapes) != 1 or len(min(shapes)) not in (2, 3) or 0 in min(shapes):
        raise SourceError(
            f"{name}: expected fields of one shape (t, y, x) or (t, n), found "
            + (", ".join(f"{key} {values.shape}" for key, values in fields.items()) or "none")
        )
    return shapes.pop()


def _flat_mask(name: str, kind: str, mask: np.ndarray, frames: tuple[int, ...]) -> np.ndarray:
    mask = np.asarray(mask, bool)
    if mask.shape not in (frames, frames[1:]):
        raise SourceError(
            f"{name}: expected a mask {kind!r} of shape {frames} or {frames[1:]}, "
            f"found {mask.shape}"
        )
    return mask.reshape(-1, math.prod(frames[1:]))


def _known(
    name: str,
    fields: Mapping[str, np.ndarray],
    valid: np.ndarray | None,
    solid: np.ndarray | None,
    frames: tuple[int, ...],
) -> np.ndarray:
    """Points (t, n) that are fluid, valid and finite in every channel."""
    known = np.ones((frames[0], math.prod(frames[1:])), bool)
    for values in fields.values():
        known &= np.isfinite(values).reshape(known.shape)
    if valid is not None:
        known &= _flat_mask(name, "valid", valid, frames)
    return known if solid is None else known & ~solid


def _as_mask(mask: np.ndarray) -> Tensor:
    """One frame where all are the same."""
    return torch.from_numpy(mask[0].copy() if (mask == mask[0]).all() else mask)


def _times(name: str, time: np.ndarray | None, count: int) -> tuple[np.ndarray, float | None]:
    if time is None:
        return np.arange(count, dtype=np.float64), None
    time = np.array(time, dtype=np.float64).reshape(-1)
    if len(time) != count or not np.isfinite(time).all() or (np.diff(time) <= 0).any():
        raise SourceError(
            f"{name}: expected {count} times that grow from frame to frame, found {len(time)}"
            + (f" from {time.min():g} to {time.max():g}" if len(time) else "")
        )
    uniform = find_uniform(time) if count > 1 else None
    if uniform is None or len(uniform[2]) != uniform[2][-1] + 1:
        return time, None
    first, step, positions = uniform
    return first + step * positions, step
