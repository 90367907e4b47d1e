"""xarray in and out: axes and channels by name, in the caller's units, order and directions.

Dimensions are y, x, time or t (which may be absent for a history of one frame) and at most one
more, of any name, for the samples. A Dataset has a variable per channel, a DataArray a dimension
``channel`` or ``variable``. Falling coordinates are turned round for the model, and back.

Imported only for labelled fields: xarray is an extra.
"""

from collections.abc import Hashable, Sequence
from typing import Any

import numpy as np
import torch
import xarray as xr
from jaxtyping import Bool, Float, Shaped
from torch import Tensor

from pibert.fields import FieldSpec, Grid
from pibert.predictor.arrays import Mask, Taken, as_tensor, check_frames, known_of
from pibert.predictor.labels import Clock, channel_factor, even_step, length_factor
from pibert.remarks import warn

CHANNEL_AXES = ("channel", "variable")
_CHC = "chc"
"""PIVPy's choice codes: above 0 at valid vectors."""
Labelled = xr.Dataset | xr.DataArray


def take_labelled(
    fields: Labelled, mask: Mask | None, grid: Grid | None, spec: FieldSpec, history: int
) -> Taken:
    """Labelled fields as a batch, in the order and the units of the spec."""
    labels = Labels(fields, spec)
    values = labels.values()
    check_frames(values, spec, history)
    return Taken(values, labels.known(mask, values), grid or labels.grid(), labels)


class Labels:
    """What the caller's labels are, and answers that carry them."""

    def __init__(self, fields: Labelled, spec: FieldSpec) -> None:
        self._fields, self._spec = fields, spec
        self._axis, self._arrays = _by_channel(fields, spec)
        dims = {name: tuple(map(str, array.dims)) for name, array in self._arrays.items()}
        first = next(iter(dims.values()))
        called = {*first, *map(str, fields.coords)}
        self._time = "t" if "t" in called and "time" not in called else "time"
        others = [dim for dim in first if dim not in (self._time, "y", "x")]
        same = all(set(own) == set(first) for own in dims.values())
        if not {"y", "x"} <= set(first) or len(others) > 1 or not same:
            raise ValueError(
                "expected channels with the dimensions y, x, time (or t) and at most one more for "
                f"samples, the same for all, found {first if same else dims}; rename or select"
            )
        self._sample, self._has_time = others[0] if others else None, self._time in first
        self._turned = tuple(
            place for place, axis in ((-2, "y"), (-1, "x")) if self._step(axis) < 0
        )
        """Axes that fall; y and x are the last ones."""
        self._factors = [
            channel_factor(name, array.attrs.get("units"), unit)
            for (name, array), unit in zip(self._arrays.items(), spec.units, strict=True)
        ]
        self._clock = None
        if self._time in fields.coords:
            time = fields.coords[self._time]
            self._clock = Clock(time.values, time.attrs.get("units"), spec)

    def values(self) -> Float[Tensor, "b h c y x"]:
        parts = [
            as_tensor(self._in_order(array), f"channel {name!r}")
            for name, array in self._arrays.items()
        ]
        wide = max((part.dtype for part in parts), key=lambda kind: kind.itemsize)
        return torch.stack(
            [part.to(wide) * factor for part, factor in zip(parts, self._factors, strict=True)],
            dim=2,
        )

    def known(self, mask: Mask | None, values: Tensor) -> Bool[Tensor, "b h y x"]:
        if mask is None and isinstance(self._fields, xr.Dataset) and _CHC in self._fields:
            warn(
                f"the dataset marks invalid vectors in {_CHC!r}, but all finite values are used; "
                f"give mask=dataset.{_CHC} > 0 to leave out the invalid ones"
            )
        if not isinstance(mask, xr.Dataset | xr.DataArray):
            known = known_of(mask, values, self._sample is None)
            return known.flip(self._turned)
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
        """As the coordinates have it; None without them."""
        sizes = self._fields.sizes
        if not all(axis in self._fields.indexes and sizes[axis] > 1 for axis in ("y", "x")):
            return None
        dy, dx = (
            self._step(axis)
            * length_factor(axis, self._fields[axis].attrs.get("units"), self._spec)
            for axis in ("y", "x")
        )
        return Grid((sizes["y"], sizes["x"]), abs(dx), abs(dy))

    def frames(self, values: Float[Tensor, "b t c y x"], start: int) -> Any:
        times = None if self._clock is None else self._clock.after(start, values.shape[1])
        time = {}
        if times is not None:
            attrs = self._fields.coords[self._time].attrs
            time[self._time] = xr.Variable((self._time,), times, attrs)
        return self._rebuilt(values, True, time)

    def window(self, values: Float[Tensor, "b h c y x"]) -> Any:
        coords, axis = self._fields.coords, self._time
        time = {n: c.variable for n, c in coords.items() if n == axis or axis in c.dims}
        return self._rebuilt(values, self._has_time, time)

    def map(self, values: Shaped[Tensor, "b ..."], axes: tuple[str, ...]) -> Any:
        data = values.numpy() if self._sample else values.numpy()[0]
        dims = (*((self._sample,) if self._sample else ()), *axes)
        data = np.flip(data, self._turned) if "y" in axes else data
        return xr.DataArray(data, coords=self._kept(self._fields, dims), dims=dims)

    def _step(self, axis: str) -> float:
        """Of a coordinate; 1 where there is none."""
        index = self._fields.indexes.get(axis)
        return 1.0 if index is None or len(index) < 2 else even_step(axis, index.to_numpy())

    def _in_order(self, array: xr.DataArray) -> np.ndarray:
        """(sample, time, y, x), growing; with the axes that the caller left out."""
        order = [dim for dim in (self._sample, self._time, "y", "x") if dim in array.dims]
        data = np.asarray(array.transpose(*order).values)
        if not self._has_time:
            data = np.expand_dims(data, -3)
        if self._sample is None:
            data = data[None]
        return np.flip(data, self._turned)

    def _rebuilt(self, values: Tensor, has_time: bool, time: dict[Any, Any]) -> Any:
        """(sample, time, channel, y, x), growing, as the caller's fields are."""
        data = np.flip(values.numpy(), self._turned)
        data = data if self._sample else data[0]
        data = data if has_time else data.take(0, axis=-4)
        dims = [d for d in (self._sample, self._time if has_time else None, "y", "x") if d]
        named = {}
        for place, (name, array) in enumerate(self._arrays.items()):
            part = data[..., place, :, :]
            if self._factors[place] != 1:
                part = part / data.dtype.type(self._factors[place])
            coords = {**self._kept(array, dims), **time}
            named[name] = xr.DataArray(part, coords=coords, dims=dims, attrs=array.attrs)
        if isinstance(self._fields, xr.DataArray):
            return self._stacked(self._fields, named, has_time)
        order = [str(name) for name in self._fields.data_vars if name in named]
        answer = {n: named[n].transpose(*self._dims(self._fields[n], has_time)) for n in order}
        return xr.Dataset(answer, attrs=self._fields.attrs)

    def _stacked(
        self, fields: xr.DataArray, named: dict[str, xr.DataArray], has_time: bool
    ) -> xr.DataArray:
        """Channels along their axis, in the caller's order."""
        axis, names, labels = self._axis, list(named), {}
        if axis in fields.indexes:
            names = [str(name) for name in fields.indexes[axis] if name in named]
            kept = fields.sel({axis: names}).coords
            labels = {name: c.variable for name, c in kept.items() if c.dims == (axis,)}
        parts = [named[name] for name in names]
        whole = xr.concat(parts, dim=axis, coords="minimal", compat="override")
        whole = whole.assign_coords(labels).transpose(*self._dims(fields, has_time))
        return whole.rename(fields.name)

    def _dims(self, array: xr.DataArray, has_time: bool) -> list[Hashable]:
        """Of an answer: those of the fields, and time where they had none."""
        dims = list(array.dims)
        if has_time and self._time not in dims:
            dims.insert(0 if self._sample is None else 1 + dims.index(self._sample), self._time)
        return dims

    def _kept(self, array: Labelled, dims: Sequence[Hashable | None]) -> dict[Any, Any]:
        """Coordinates that an answer shares with the fields."""
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
