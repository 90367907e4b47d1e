"""What ``pibert.flow`` takes, as arrays by name: arrays, tensors, masks, xarray."""

import re
from collections.abc import Mapping, Sequence
from typing import Any


def as_arrays(data: Any, name: str) -> Any:
    """Arrays by name, or an xarray ``Dataset``."""
    if hasattr(data, "data_vars"):
        return data
    if hasattr(data, "to_dataset"):
        axis = next((dim for dim in ("channel", "variable", "c") if dim in data.dims), None)
        if axis is not None:
            return data.to_dataset(dim=axis)
        return data.to_dataset(name=data.name or name)
    if hasattr(data, "to_csv"):
        raise TypeError(
            "expected arrays of at least two dimensions, found a table of pandas; write it with "
            "to_csv(PATH, index=False) and read it with pibert.read(PATH)"
        )
    if not isinstance(data, Mapping):
        data = {name: data}
    if not data:
        raise ValueError("expected arrays by channel name, found none")
    found = {key: _array(value) for key, value in data.items()}
    for key, array in found.items():
        if array.dtype.kind not in "fiub":
            raise TypeError(
                f"{key}: expected numbers in an array, found {array.dtype}; give a NumPy array, a "
                "tensor, arrays by name, xarray, or the path of a file"
            )
    return found


def named_channels(
    channels: Sequence[str] | Mapping[str, str], arrays: Any, axes: str | None
) -> dict[str, str]:
    """The part of the arrays that is each channel, by its name."""
    if isinstance(channels, Mapping):
        return dict(channels)
    if isinstance(channels, str) or len(set(channels)) < len(channels):
        raise ValueError(
            f"expected channels with different names such as ('u', 'v'), found {channels!r}"
        )
    if set(channels) <= set(arrays):
        return {name: name for name in channels}
    key, array = max(arrays.items(), key=lambda item: item[1].ndim)  # not a coordinate
    places = (axes.index("c"),) if axes and "c" in axes else (-3, -1)
    if array.ndim > 3 and len(channels) not in [array.shape[place] for place in places]:
        raise ValueError(
            f"{key}: expected a name for every channel of an array of shape {array.shape}, found "
            f"{', '.join(channels)}; choose some of them later: flow.select(channels=...)"
        )
    return {our: f"{key}:{index}" for index, our in enumerate(channels)}


def check_values(arrays: Any) -> None:
    """Refuse arrays without a number; infinite values are kept as unknown, with a note."""
    import numpy as np

    from pibert.notes import Note, warn

    for key, array in arrays.items():
        if not array.size or array.dtype.kind != "f":
            continue
        if not np.isfinite(array).any():
            raise ValueError(
                f"{key}: expected fields with known values, found only NaN or infinity; check how "
                "they were read"
            )
        if count := int(np.isinf(array).sum()):
            text = f"{count} of the values of {key!r} are infinite and taken as unknown"
            warn(Note("infinite", text, "make them NaN if they are missing", subject=str(key)))


def _array(value: Any) -> Any:
    import numpy as np

    if hasattr(value, "detach"):
        value = value.detach().cpu().numpy()
    if isinstance(value, np.ma.MaskedArray):
        if value.dtype == bool:
            return np.ma.filled(value, False)
        return np.ma.filled(value.astype(float), np.nan)
    return np.asarray(value)


def with_mask(arrays: Any, role: str, mask: Any) -> Any:
    """Add the user's mask to the arrays as ``role``, together with those that they have."""
    from pibert.data.readers.shared.roles import FLAGS

    is_dataset = hasattr(arrays, "data_vars")
    mask = _labelled(arrays, mask) if is_dataset else _array(mask)
    if mask.dtype != bool:
        raise TypeError(f"expected a mask of True and False, found {mask.dtype}; compare it first")
    for key in list(arrays):
        kind, marks = FLAGS.get(re.sub(r"[^a-z0-9]", "", str(key).lower()), (None, True))
        if kind == role:
            own = (arrays[key] > 0) == marks
            mask = own & mask if role == "valid" else own | mask
            arrays = arrays.drop_vars(key) if is_dataset else _without(arrays, key)
        elif kind == "chc" and role == "valid":
            raise ValueError(
                f"the data mark vectors in {key!r} themselves: leave it out, and give "
                f"mask=({key} > 0) & mask"
            )
    return arrays.assign({role: mask}) if is_dataset else {**arrays, role: mask}


def _without(arrays: Mapping[str, Any], key: str) -> dict[str, Any]:
    return {name: array for name, array in arrays.items() if name != key}


def _labelled(dataset: Any, mask: Any) -> Any:
    """A mask with the dimensions of a ``Dataset``."""
    from pibert.data.readers.shared.roles import find_axis

    if hasattr(mask, "dims"):
        return mask
    import xarray

    mask, dims = _array(mask), {find_axis(str(dim)): dim for dim in dataset.dims}
    names = tuple(dims.get(axis) for axis in "tyx"[-mask.ndim :])
    if len(names) != mask.ndim or mask.shape != tuple(dataset.sizes.get(name) for name in names):
        sizes = ", ".join(f"{name} {size}" for name, size in dataset.sizes.items())
        raise ValueError(
            f"expected a mask of shape (y, x) or (time, y, x) for data of {sizes}, found "
            f"{mask.shape}; give it as a DataArray"
        )
    return xarray.DataArray(mask, dims=names)
