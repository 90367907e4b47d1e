"""xarray in and out: axes and channels by name, in the caller's units, order and directions.

Dimensions are y, x, time or t (optional for a history of one frame) and at most one more, of any
name, for the samples. A Dataset has a variable per channel, a DataArray a dimension ``channel`` or
``variable``. Falling coordinates are flipped for the model, and back.

A spec states no units of length and time; those of its velocity are assumed, as derivatives need
consistent units. If the velocity has none (diameters, convective times), coordinates are compared
as numbers. This module is imported only for labelled fields: xarray is an extra.
"""

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
import torch
import xarray as xr
from jaxtyping import Bool, Float, Shaped
from torch import Tensor

from pibert.data.provenance import FRAMES
from pibert.data.units import VELOCITY, Unit, parse_unit
from pibert.fields import FieldSpec, Grid
from pibert.inference.model_input import Arrays, Converted, Mask, as_tensor, check_frames, known_of
from pibert.notes import Note

CHANNEL_AXES = ("channel", "variable")
_PURE = ("", "1", "-", "dimensionless", "none")
EVEN = 0.01
"""Accepted deviation of coordinates from an even spacing, as a share of it."""
_CHC = "chc"
"""PIVPy's choice codes: above 0 at valid vectors."""
Labelled = xr.Dataset | xr.DataArray


def convert_labelled(
    fields: Labelled, mask: Mask | None, grid: Grid | None, spec: FieldSpec, history: int
) -> Converted:
    """Labelled fields as a batch, in the order and the units of the spec."""
    labels = Labels(fields, spec)
    values = labels.values()
    check_frames(values, spec, history)
    known = labels.known(mask, values)
    return Converted(values, known, grid or labels.grid(), labels, tuple(labels.notes))


class Labels(Arrays):
    """The caller's labels, and results that carry them."""

    def __init__(self, fields: Labelled, spec: FieldSpec) -> None:
        self._fields, self._spec = fields, spec
        self._axis, self._arrays = _by_channel(fields, spec)
        dims = {name: tuple(map(str, array.dims)) for name, array in self._arrays.items()}
        first = next(iter(dims.values()))
        names = {*first, *map(str, fields.coords)}
        self._time = "t" if "t" in names and "time" not in names else "time"
        others = [dim for dim in first if dim not in (self._time, "y", "x")]
        same = all(set(each) == set(first) for each in dims.values())
        if not {"y", "x"} <= set(first) or len(others) > 1 or not same:
            raise ValueError(
                "expected channels with the dimensions y, x, time (or t) and at most one more for "
                f"samples, the same for all, found {first if same else dims}; rename or select"
            )
        self._sample, self._has_time = others[0] if others else None, self._time in first
        self._falling = tuple(n for n, axis in ((-2, "y"), (-1, "x")) if self._step(axis) < 0)
        """Axes to reverse; y and x are the last ones."""
        self._factors = [
            channel_factor(name, array.attrs.get("units"), unit)
            for (name, array), unit in zip(self._arrays.items(), spec.units, strict=True)
        ]
        self.notes: list[Note] = []
        self._clock = None
        if self._time in fields.coords:
            time = fields.coords[self._time]
            self._clock = Clock(time.values, time.attrs.get("units"), spec)
            self.notes += self._clock.notes

    def values(self) -> Float[Tensor, "b h c y x"]:
        channels = [
            as_tensor(self._in_order(array), f"channel {name!r}") * factor
            for (name, array), factor in zip(self._arrays.items(), self._factors, strict=True)
        ]
        widest = max((channel.dtype for channel in channels), key=lambda dtype: dtype.itemsize)
        return torch.stack([channel.to(widest) for channel in channels], dim=2)

    def known(self, mask: Mask | None, values: Tensor) -> Bool[Tensor, "b h y x"]:
        if mask is None and isinstance(self._fields, xr.Dataset) and _CHC in self._fields:
            text = f"the dataset marks invalid vectors in {_CHC!r}, but all finite values are used"
            remedy = f"give mask=dataset.{_CHC} > 0 to leave out the invalid ones"
            self.notes.append(Note("unused-flags", text, remedy))
        if not isinstance(mask, xr.Dataset | xr.DataArray):
            return known_of(mask, values, self._sample is None).flip(self._falling)
        if isinstance(mask, xr.Dataset):
            _refuse_missing(self._spec, [str(name) for name in mask.data_vars])
            mask = mask[list(self._spec.channels)].to_array("channel")
        for axis in CHANNEL_AXES:
            mask = mask.all(axis) if axis in mask.dims else mask
        template = next(iter(self._arrays.values()))
        try:
            _, mask = xr.align(template, mask, join="exact")
            mask = mask.broadcast_like(template).transpose(*template.dims)
        except ValueError as error:
            raise ValueError(
                f"expected a mask over dimensions and coordinates of the fields "
                f"{tuple(template.dims)}, found {tuple(mask.dims)} ({error})"
            ) from None
        return as_tensor(self._in_order(mask), "the mask")

    def grid(self) -> Grid | None:
        """The grid that the coordinates state; None without them."""
        sizes = self._fields.sizes
        if not all(axis in self._fields.indexes and sizes[axis] > 1 for axis in ("y", "x")):
            return None
        units = {axis: self._fields[axis].attrs.get("units") for axis in ("y", "x")}
        dy, dx = (abs(self._step(n)) * length_factor(n, units[n], self._spec) for n in ("y", "x"))
        return Grid((sizes["y"], sizes["x"]), dx, dy)

    def frames(self, values: Float[Tensor, "b t c y x"], start: int) -> Any:
        clock, count = self._clock, values.shape[1]
        if clock is not None:
            times, attrs = clock.after(start, count), self._fields.coords[self._time].attrs
        else:
            dt, velocity = self._spec.dt, _velocity_unit(self._spec)
            times = None if dt is None else dt * np.arange(start + 1, start + count + 1)
            attrs = {"long_name": "time after the last given frame"}
            attrs |= {"units": "s"} if velocity is not None and velocity.of_time == 1 else {}
        time = {} if times is None else {self._time: xr.Variable((self._time,), times, attrs)}
        return self._rebuilt(values, True, time)

    def window(self, values: Float[Tensor, "b h c y x"]) -> Any:
        coords, axis = self._fields.coords, self._time
        time = {n: c.variable for n, c in coords.items() if n == axis or axis in c.dims}
        return self._rebuilt(values, self._has_time, time)

    def map(self, values: Shaped[Tensor, "b ..."], axes: tuple[str, ...]) -> Any:
        data = values.numpy() if self._sample else values.numpy()[0]
        dims = (*((self._sample,) if self._sample else ()), *axes)
        data = np.flip(data, self._falling) if "y" in axes else data
        return xr.DataArray(data, coords=self._kept(self._fields, dims), dims=dims)

    def _step(self, axis: str) -> float:
        """Of a coordinate; 1 if there is none."""
        index = self._fields.indexes.get(axis)
        return 1.0 if index is None or len(index) < 2 else even_step(axis, index.to_numpy())

    def _in_order(self, array: xr.DataArray) -> np.ndarray:
        """(sample, time, y, x), rising; with the axes that the caller left out."""
        order = [dim for dim in (self._sample, self._time, "y", "x") if dim in array.dims]
        data = np.asarray(array.transpose(*order).values)
        data = data if self._has_time else np.expand_dims(data, -3)
        return np.flip(data if self._sample else data[None], self._falling)

    def _rebuilt(self, values: Tensor, has_time: bool, time: dict[Any, Any]) -> Any:
        """(sample, time, channel, y, x), rising, in the caller's form."""
        data = np.flip(values.numpy(), self._falling)
        data = data if self._sample else data[0]
        data = data if has_time else data.take(0, axis=-4)
        dims = [d for d in (self._sample, self._time if has_time else None, "y", "x") if d]
        named = {}
        for index, (name, array) in enumerate(self._arrays.items()):
            channel = data[..., index, :, :]
            if self._factors[index] != 1:
                channel = channel / data.dtype.type(self._factors[index])
            coords = {**self._kept(array, dims), **time}
            named[name] = xr.DataArray(channel, coords=coords, dims=dims, attrs=array.attrs)
        if isinstance(self._fields, xr.DataArray):
            return self._stacked(self._fields, named, has_time)
        order = [str(name) for name in self._fields.data_vars if name in named]
        variables = {n: named[n].transpose(*self._dims(self._fields[n], has_time)) for n in order}
        return xr.Dataset(variables, attrs=self._fields.attrs)

    def _stacked(
        self, fields: xr.DataArray, named: dict[str, xr.DataArray], has_time: bool
    ) -> xr.DataArray:
        """Channels along their axis, in the caller's order."""
        axis, names, labels = self._axis, list(named), {}
        if axis in fields.indexes:
            names = [str(name) for name in fields.indexes[axis] if name in named]
            kept = fields.sel({axis: names}).coords
            labels = {name: c.variable for name, c in kept.items() if c.dims == (axis,)}
        channels = [named[name] for name in names]
        whole = xr.concat(channels, dim=axis, coords="minimal", compat="override")
        whole = whole.assign_coords(labels).transpose(*self._dims(fields, has_time))
        return whole.rename(fields.name)

    def _dims(self, array: xr.DataArray, has_time: bool) -> list[Hashable]:
        """Those of the fields, and time if they had none."""
        dims = list(array.dims)
        if has_time and self._time not in dims:
            dims.insert(0 if self._sample is None else 1 + dims.index(self._sample), self._time)
        return dims

    def _kept(self, array: Labelled, dims: Sequence[Hashable | None]) -> dict[Any, Any]:
        """Coordinates that a result shares with the fields."""
        return {
            name: coord.variable  # alone: as a DataArray it would bring others with it
            for name, coord in array.coords.items()
            if name not in (self._time, self._axis) and set(coord.dims) <= set(dims) - {self._time}
        }


def _by_channel(fields: Labelled, spec: FieldSpec) -> tuple[str | None, dict[str, xr.DataArray]]:
    """The axis of the channels, and each of them in the order of the spec."""
    if isinstance(fields, xr.Dataset):
        _refuse_missing(spec, [str(name) for name in fields.data_vars])
        return None, {name: fields[name] for name in spec.channels}
    axis = next((axis for axis in CHANNEL_AXES if axis in fields.dims), None)
    if axis is None:
        raise ValueError(
            f"expected a DataArray with a dimension {CHANNEL_AXES[0]!r}, found "
            f"{tuple(fields.dims)}; join the channels: xarray.concat([...], 'channel')"
        )
    if axis in fields.indexes:
        _refuse_missing(spec, [str(name) for name in fields.indexes[axis]])
        return axis, {name: fields.sel({axis: name}, drop=True) for name in spec.channels}
    if fields.sizes[axis] != len(spec.channels):
        raise ValueError(
            f"expected the {len(spec.channels)} channels {list(spec.channels)} along {axis!r}, "
            f"found {fields.sizes[axis]}"
        )
    return axis, {n: fields.isel({axis: i}, drop=True) for i, n in enumerate(spec.channels)}


def _refuse_missing(spec: FieldSpec, found: Sequence[str]) -> None:
    if missing := [name for name in spec.channels if name not in found]:
        raise ValueError(
            f"expected the channels {list(spec.channels)}, found {list(found)}: {missing} missing; "
            "rename them"
        )


def channel_factor(name: str, stated: Any, expected: str) -> float:
    """Convert a channel from the stated unit to that of the spec by this factor."""
    text = expected if stated is None else str(stated).strip()
    if text == expected.strip() or (text.lower() in _PURE and expected.strip().lower() in _PURE):
        return 1.0
    ours, theirs = parse_unit(expected), parse_unit(text)
    if ours is None or theirs is None or not theirs.is_like(ours.length, ours.time):
        raise ValueError(
            f"expected channel {name!r} in {expected!r}, the unit of the model, found {text!r}; "
            "convert it, or correct the attribute units"
        )
    return theirs.factor / ours.factor


def length_factor(axis: str, stated: Any, spec: FieldSpec) -> float:
    """Convert a coordinate to the length unit of the spec by this factor."""
    velocity = _velocity_unit(spec)
    if stated is None or velocity is None:
        return 1.0
    unit = parse_unit(str(stated))
    if unit is None or not unit.is_like(1, 0):
        raise ValueError(
            f"expected the coordinate {axis!r} in a unit of length, such as mm, found "
            f"{str(stated)!r}; correct the attribute units"
        )
    return unit.factor / velocity.of_length


def even_step(axis: str, values: np.ndarray) -> float:
    """Signed spacing of an axis; ValueError if it is not even."""
    values = np.asarray(values, np.float64)
    step = (values[-1] - values[0]) / (len(values) - 1)
    off = np.abs(values - np.linspace(values[0], values[-1], len(values))).max()
    if not (np.isfinite(step) and step != 0 and off <= EVEN * abs(step)):
        raise ValueError(
            f"expected an evenly spaced coordinate {axis!r}, found deviations of up to {off:.3g} "
            f"between {values[0]:g} and {values[-1]:g}; interpolate: fields.interp({axis}=...)"
        )
    return float(step)


class Clock:
    """The times of predicted frames.

    Args:
        times: Of the given frames.
        stated: Their unit, if it is stated.
        spec: Its time step counts; if it has none, that of the given frames.
    """

    def __init__(self, times: np.ndarray, stated: Any, spec: FieldSpec) -> None:
        times = np.atleast_1d(times)
        if times.dtype.kind not in "iufmM":
            raise ValueError(
                f"expected times as numbers or datetime64, found {times.dtype}; convert them, or "
                "drop the coordinate time"
            )
        steps = np.diff(times)
        if (steps <= np.zeros(1, steps.dtype)).any():
            raise ValueError(
                "expected frames in the order of time, the newest last, found times that fall or "
                "repeat; sort them: fields.sortby('time')"
            )
        self._last, self.notes = times[-1], list[Note]()
        self._step = self._model_step(times, stated, spec)
        if not len(steps):
            return
        if self._step is None:
            self._step = steps[-1]
        off = np.abs(steps / self._step - 1)
        if off.max() > EVEN:
            text = (
                f"the frames are {steps[off.argmax()]} apart in time, the model's time step is "
                f"{self._step}: it sees the flow at another time scale"
            )
            self.notes.append(Note("time-step", text, "take frames that are one step apart"))

    def after(self, start: int, count: int) -> np.ndarray | None:
        """Times of ``count`` frames after the first ``start`` predicted ones; None: unknown."""
        if self._step is None:
            return None
        return self._last + self._step * np.arange(start + 1, start + count + 1)

    def _model_step(self, times: np.ndarray, stated: Any, spec: FieldSpec) -> Any:
        """The model's time step in the unit of the times."""
        if spec.dt is None:
            return None
        velocity = _velocity_unit(spec)
        if times.dtype.kind in "mM":
            if velocity is None:
                raise ValueError(
                    f"expected times as numbers in the unit of the model's time step {spec.dt:g}, "
                    f"found {times.dtype}: the model does not count seconds; replace the coordinate"
                )
            return np.timedelta64(round(spec.dt * velocity.of_time * 1e9), "ns")
        if str(stated).strip() in FRAMES:
            text = (
                "times count frames: predicted frames continue the count, as if frames were "
                f"{spec.dt:g} apart, the model's time step"
            )
            self.notes.append(Note("time-step-assumed", text))
            return 1.0
        unit = parse_unit(None if stated is None else str(stated))
        if velocity is None or unit is None or not unit.is_like(0, 1):
            return spec.dt
        return spec.dt * velocity.of_time / unit.factor


def _velocity_unit(spec: FieldSpec) -> Unit | None:
    """The unit of the velocity, if it is one of length and time."""
    for name, text in zip(spec.channels, spec.units, strict=True):
        unit = parse_unit(text)
        if name in VELOCITY and unit is not None and unit.is_like(1, -1):
            return unit
    return None
