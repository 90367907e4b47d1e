"""NetCDF files, 3 and 4, with or without the attributes of the CF conventions.

Dimensions give the order of the axes; ``standard_name``, ``axis`` and ``units`` the meaning of a
variable. Packed values are unpacked; fill values and values outside the valid range are missing.
Times that count from a date become seconds since the first frame.
"""

import contextlib
import re
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from pibert.data.hdf5 import DAMAGED, PerProcess, open_hdf5
from pibert.data.provenance import own_record, own_spec, restored
from pibert.data.readers.recordings import Hints, Recordings, SourceError, reading
from pibert.data.readers.shared.assembly import make_recordings
from pibert.data.readers.shared.roles import CHANNELS, Variable, find_axis, meaning
from pibert.data.readers.shared.stores import Where
from pibert.data.wording import import_extra

TITLE = "NetCDF (.nc)"
HINTS = ("channels", "axes", "shape")
MEASURED = True

UPLOADS = _SUFFIXES = (".nc", ".nc4", ".cdf", ".netcdf")
_CLASSIC = (b"CDF\x01", b"CDF\x02")
_HDF5 = b"\x89HDF"
_STANDARD_NAMES = {
    "x": r"projection_x_coordinate|longitude|grid_longitude",
    "y": r"projection_y_coordinate|latitude|grid_latitude",
    "t": r"time",
    "u": r"eastward_(wind|sea_water_velocity)|x_wind|(sea_)?water_x_velocity|sea_water_x_velocity",
    "v": r"northward_(wind|sea_water_velocity)|y_wind|(sea_)?water_y_velocity|sea_water_y_velocity",
    "p": r"(air|surface_air|sea_water)_pressure",
    "T": r"(air|sea_water|sea_surface)_temperature",
    "valid": r"validity_flag|confidence_flag",  # PIVPy: above 0 is valid
}
_COORDINATES = {"lon": "x", "longitude": "x", "lat": "y", "latitude": "y"}
_UNWRITTEN = 9.9e36
"""The fill value that the library leaves where nothing was written is above this."""
_UNWRITTEN_WHOLE = {"i2": -32767, "u2": 65535, "i4": -(2**31) + 1, "u4": 2**32 - 1}
_UNWRITTEN_WHOLE |= {"i8": -(2**63) + 2, "u8": 2**64 - 2}
"""The same for whole numbers, by type; bytes have none."""
_SINCE = re.compile(r"(\w+)\s+since\s+", re.IGNORECASE)
_SECONDS = {
    **dict.fromkeys(("s", "sec", "second"), 1.0),
    **dict.fromkeys(("min", "minute"), 60.0),
    **dict.fromkeys(("h", "hr", "hour"), 3600.0),
    **dict.fromkeys(("d", "day"), 86400.0),
    **{"ms": 1e-3, "millisecond": 1e-3, "microsecond": 1e-6},
}


def recognise(path: Path) -> bool:
    if not path.is_file() or _head(path) != _HDF5 or path.suffix.lower() in _SUFFIXES:
        return path.is_file() and (_head(path) in _CLASSIC or path.suffix.lower() in _SUFFIXES)
    with open_hdf5(path) as file:
        return "_NCProperties" in file.attrs


def open_recordings(path: Path, hints: Hints = Hints()) -> Recordings:
    return _recordings(NetcdfStore(path), hints)


def open_dataset(dataset: Any, hints: Hints, name: str) -> Recordings:
    """An xarray ``Dataset`` in memory, as if it were read from a file."""
    for key, item in dataset.variables.items():
        if item.dtype.kind in "mM":  # as in a file
            since = item.values.reshape(-1)[:1]
            seconds = (item.values - since) / np.timedelta64(1, "s")
            dataset = dataset.assign({key: (item.dims, seconds, {**item.attrs, "units": "s"})})
    return _recordings(_DatasetStore(Path(name), dataset), hints)


def _recordings(store: "NetcdfStore", hints: Hints) -> Recordings:
    path, dataset = store.path, store.open()
    source: dict[str, Any] = {
        key: str(dataset.attrs[key])
        for key in ("title", "institution", "source", "references")
        if key in dataset.attrs
    }
    record = own_record(dataset.attrs.get("pibert"))
    source |= record.get("source", {})
    own = own_spec(record)
    if record:
        hints = replace(hints, time_unit=None)  # the record states it
    if own is not None and not hints.channels and set(own.channels) <= set(dataset.variables):
        hints = replace(hints, channels={name: name for name in own.channels})
    delay = 0.0
    with contextlib.suppress(TypeError, ValueError):
        delay = float(dataset.attrs.get("delta_t"))
    found = {str(key): item for key, item in dataset.variables.items()}
    variables = _at_fields([_variable(key, item, dataset) for key, item in found.items()], found)
    if not variables:
        raise SourceError(
            f"{path}: no variables at its top level; write those of a group to a file"
        )
    for variable in variables:
        if meaning(variable)[0] == "t" and len(variable.shape) < 2:
            store.seconds = _seconds(path, variable.key, dataset.variables[variable.key].attrs)
    notes = []
    if store.seconds is not None:
        notes.append("dates became seconds since the first frame")
    if delay:
        source["delta_t"] = delay
        notes.append(
            f"the file states delta_t = {delay:g} without a unit; if that is the time between the "
            "two images of a pair, give it with its unit (in PIVPy files from TSI microseconds: "
            f"--pulse-delay {delay:g}us)"
        )
    if any((variable.unit or "").startswith("degree") for variable in variables):
        notes.append("the grid is in degrees, not in a length: derivatives need it projected")
    recordings = make_recordings("netcdf", store, variables, hints, source=source, notes=notes)
    _check_points(path, recordings[0].local["arrays"], found)
    if record:
        return recordings.changed(partial(restored, record=record))
    return recordings


def _at_fields(variables: list[Variable], items: Mapping[str, Any]) -> list[Variable]:
    """Leave out coordinates of other points than those of the fields, such as faces of cells."""
    fields = [v.key for v in variables if len(v.shape) > 1 and meaning(v)[0] in CHANNELS]
    used = {name for key in fields for name in items[key].dims}
    return [
        v
        for v in variables
        if not (used and len(v.shape) == 1 and meaning(v)[0] in ("x", "y"))
        or set(items[v.key].dims) <= used
    ]


def _check_points(path: Path, arrays: Mapping[str, str], items: Mapping[str, Any]) -> None:
    """Refuse fields on different points of a staggered grid."""
    points = {
        our: {str(name) for name, size in items[key].sizes.items() if size > 1}
        for our, key in arrays.items()
    }
    first = next(iter(points))
    for our, names in points.items():
        if names != points[first]:
            stated = [", ".join(sorted(each)) for each in (points[first], names)]
            raise SourceError(
                f"{path}: {first!r} has the dimensions {stated[0]}, {our!r} {stated[1]}: they lie "
                "on different points of a staggered grid; interpolate them to the same points, or "
                "name only fields that lie there (--channels)"
            )


class NetcdfStore(PerProcess):
    """The variables of a NetCDF file, unpacked."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self.seconds: tuple[str, float] | None = None
        """The variable that counts from a date, and its unit in seconds."""

    def _open(self) -> Any:
        return _open(self.path)

    def read(self, key: str, where: Where) -> np.ndarray:
        dataset = self.open()
        with reading(self.path, "this NetCDF file"):
            item = dataset.variables[key]
            values = np.asarray(item[where].values)
        if values.dtype.kind == "f":
            values = np.where(np.abs(values) > _UNWRITTEN, np.nan, values)
        low, high = _valid_range(item)
        if bool((outside := (values < low) | (values > high)).any()):
            values = np.where(outside, np.nan, values)
        if self.seconds is not None and self.seconds[0] == key:
            values = (values - values.reshape(-1)[0]) * self.seconds[1]
        return values


class _DatasetStore(NetcdfStore):
    """A dataset in memory."""

    def __init__(self, path: Path, dataset: Any) -> None:
        self.path, self.seconds, self._dataset = path, None, dataset

    def open(self) -> Any:
        return self._dataset


def _open(path: Path) -> Any:
    head = _head(path)
    if head[:4] != _HDF5 and head not in _CLASSIC:
        raise SourceError(f"{path}: not a NetCDF file, or of the form CDF5; write it as NetCDF4")
    engine = "h5netcdf" if head == _HDF5 else "scipy"
    import_extra(engine, "reading this NetCDF file")
    xarray = import_extra("xarray", "reading NetCDF files")
    options: dict[str, Any] = {}
    # No values are read yet: a lack of memory is damage, too.
    with reading(path, "this NetCDF file", errors=(*DAMAGED, EOFError, MemoryError)):
        if engine == "h5netcdf":
            # Find damage here: h5netcdf leaves half-made objects that raise when they are deleted.
            with open_hdf5(path) as file:
                file.visititems(lambda name, item: None)
            options = {"driver_kwds": {"locking": False}}
        dataset = xarray.open_dataset(
            path, engine=engine, decode_cf=False, cache=False, backend_kwargs=options
        )
        for item in dataset.variables.values():
            unwritten = _UNWRITTEN_WHOLE.get(item.dtype.str[1:])
            if unwritten is not None and item.ndim > 1 and "_Unsigned" not in item.attrs:
                item.attrs.setdefault("_FillValue", item.dtype.type(unwritten))
        return xarray.decode_cf(dataset, decode_times=False)


def _valid_range(item: Any) -> tuple[float, float]:
    """Return the least and the largest valid value of a variable, by its attributes in CF."""
    names = ("valid_range", "valid_min", "valid_max")
    stated = {name: np.ravel(item.attrs[name]) for name in names if name in item.attrs}
    stated = {name: ends for name, ends in stated.items() if len(ends) and ends.dtype.kind in "fiu"}
    both = stated.get("valid_range", np.array([-np.inf, np.inf]))
    low, high = (
        float(stated.get(name, both)[end]) for name, end in (("valid_min", 0), ("valid_max", -1))
    )
    packed = np.dtype(item.encoding.get("dtype", item.dtype)).kind in "iu"
    if packed and all(ends.dtype.kind in "iu" for ends in stated.values()):
        # The limits are packed, too; half a step allows for rounding.
        scale, offset = (
            item.encoding.get(n, d) for n, d in (("scale_factor", 1), ("add_offset", 0))
        )
        low, high = sorted((scale * low + offset, scale * high + offset))
        low, high = low - abs(scale) / 2, high + abs(scale) / 2
    return low, high


def _variable(key: str, item: Any, dataset: Any) -> Variable:
    letters = [_letter(str(name), size, dataset) for name, size in item.sizes.items()]
    plane = [letter for letter in letters if letter in ("x", "y")]
    axes = "".join(letters) if all(letters) and sorted(plane) == ["x", "y"] else None
    standard = str(item.attrs.get("standard_name", ""))
    name = next((n for n, form in _STANDARD_NAMES.items() if re.fullmatch(form, standard)), None)
    if key.lower() == "chc" and "pivpy_schema_version" in dataset.attrs:
        name = "valid"
    if name is None and str(item.attrs.get("axis", "")).lower() in ("x", "y", "t"):
        name = str(item.attrs["axis"]).lower()
    if name is None:
        name = _COORDINATES.get(key.lower())
    unit = item.attrs.get("units")
    if unit is not None and _SINCE.match(str(unit)):
        unit = "s"
    elif str(unit).startswith("degrees_"):
        unit = "degrees"
    return Variable(
        key=key,
        shape=tuple(item.shape),
        dtype=np.dtype(item.dtype),
        unit=None if unit is None else str(unit),
        axes=axes,
        name=name,
    )


def _letter(dimension: str, size: int, dataset: Any) -> str:
    """Return the axis letter of a dimension; empty if it is unknown."""
    names = [dimension.lower()]
    if dimension in dataset.variables:
        attributes = dataset.variables[dimension].attrs
        names += [str(attributes.get(key, "")).lower() for key in ("axis", "standard_name")]
    return next(filter(None, map(find_axis, names)), "1" if size == 1 else "")


def _seconds(path: Path, key: str, attributes: Mapping[str, Any]) -> tuple[str, float] | None:
    found = _SINCE.match(str(attributes.get("units", "")))
    if found is None:
        return None
    word = found[1].lower()
    factor = _SECONDS.get(word) or _SECONDS.get(word.removesuffix("s"))
    if factor is None:
        raise SourceError(
            f"{path}: time {key!r} is in {found[1]!r}, of no fixed length; write seconds"
        )
    return key, factor


def _head(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(4)
    except OSError:
        return b""
