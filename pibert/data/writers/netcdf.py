"""Writer of NetCDF 4 with the attributes of the CF conventions.

Channels are variables (t, y, x) in float32, NaN where unknown. The ends of prediction intervals,
``u_low`` and ``u_high``, and the flag ``filled``, 1 for a filled value, are ancillary variables.
Flows have PIVPy's flag ``chc``: 0 not valid, 1 measured, 2 filled. The attributes ``source`` and
``pibert`` (JSON) state the provenance and what is needed to read the file back unchanged.
"""

from collections.abc import Container
from typing import Any

import numpy as np

from pibert.data.format.reading import frames_in_chunk
from pibert.data.provenance import predicted_by
from pibert.data.wording import import_extra
from pibert.data.writers.frames import ENDS, Block, FrameWriter, vorticity

_LONG_NAMES = {
    "u": "velocity along x",
    "v": "velocity along y",
    "w": "velocity along z",
    "p": "pressure",
    "T": "temperature",
    "rho": "density",
    "vorticity": "vorticity",
}


class NetcdfWriter(FrameWriter):
    """A NetCDF file; needs the extra io."""

    def _begin(self) -> None:
        h5netcdf = import_extra("h5netcdf", "writing NetCDF files")
        self._output = self.grow(self.path, lambda sink: h5netcdf.File(sink, "w"))
        with self._output.changed() as file:
            self._describe(file)

    def _describe(self, file: Any) -> None:
        about, grid = self.about, self.about.spec.grid
        (ny, nx), (left, bottom) = grid.shape, grid.origin
        file.dimensions = {"t": None, "y": ny, "x": nx}
        time = file.create_variable("t", ("t",), "f8", chunks=(1024,))
        # PIVPy needs the name t; CF identifies times by their axis. The unit is a symbol, because
        # older versions of xarray decode "seconds" to time differences.
        time.attrs.update({"units": about.time_unit or "1", "axis": "T", "long_name": "time"})
        stated = {} if about.length_unit is None else {"units": about.length_unit}
        points = {"x": left + grid.dx * np.arange(nx), "y": bottom + grid.dy * np.arange(ny)}
        for name, values in points.items():
            axis = file.create_variable(name, (name,), "f8", data=values)
            axis.attrs.update(stated | {"axis": name.upper(), "long_name": name})
        units = dict(zip(about.spec.channels, about.spec.units, strict=True))
        if about.vorticity_unit is not None:
            units["vorticity"] = about.vorticity_unit
        units |= about.interval_units
        chunks = (frames_in_chunk(4 * ny * nx), ny, nx)
        for name, unit in units.items():
            variable = file.create_variable(
                name, ("t", "y", "x"), "f4", chunks=chunks, fillvalue=np.float32(np.nan)
            )
            variable.attrs.update({"units": unit, "long_name": self._long_name(name)})
            beside = [f"{name}_{end}" for end in ENDS] if about.interval_level is not None else []
            beside += ["filled"] if about.marks_filled else []
            if beside and name in about.spec.channels:
                variable.attrs["ancillary_variables"] = " ".join(beside)
        for name in about.series:
            file.create_variable(_series_name(name, units), ("t",), "f8", chunks=(1024,))
        if about.marks_filled:
            filled = file.create_variable("filled", ("t", "y", "x"), "u1", chunks=chunks)
            _describe_flag(filled, "value filled in by a program or a model", "measured filled")
        if about.spec.velocity is not None:
            choice = file.create_variable("chc", ("t", "y", "x"), "u1", chunks=chunks)
            _describe_flag(choice, "choice code of the vector", "invalid measured filled")
            file.attrs["pivpy_schema_version"] = "1"
        if about.body_moves:
            body = file.create_variable("body", ("t", "y", "x"), "u1", chunks=chunks)
            _describe_flag(body, "inside a solid body", "fluid body")
        elif grid.body is not None:
            body = file.create_variable("body", ("y", "x"), "u1", data=grid.body.numpy())
            _describe_flag(body, "inside a solid body", "fluid body")
        file.attrs["Conventions"] = "CF-1.11"
        file.attrs["title"] = about.name
        origin = predicted_by(about.source)
        origin = origin or ("with filled vectors" if about.marks_filled else None)
        file.attrs["source"] = f"PIBERT, {origin}" if origin else "PIBERT"
        file.attrs["pibert"] = about.to_json()

    def _long_name(self, name: str) -> str:
        channel, _, end = name.rpartition("_")
        if name not in self.about.interval_units:
            return _LONG_NAMES.get(name, name)
        which, level = "lower" if end == ENDS[0] else "upper", self.about.interval_level or 0
        return f"{which} end of the {100 * level:g} % prediction interval of {channel}"

    def _append(self, block: Block) -> None:
        old, new = self.count, self.count + len(block.time)
        fields = block.masked.numpy()
        values = {name: fields[:, i] for i, name in enumerate(self.about.spec.channels)}
        if self.about.vorticity_unit is not None:
            values["vorticity"] = vorticity(block, self.about).numpy()
        if self.about.interval_level is not None:
            ends = block.intervals.movedim(1, 0).numpy()
            values.update(zip(self.about.interval_units, ends, strict=True))
        if self.about.marks_filled:
            assert block.filled is not None
            values["filled"] = block.filled.numpy().astype("u1")
        if self.about.spec.velocity is not None:
            filled = 0 if block.filled is None else block.filled.numpy()
            values["chc"] = (block.known.numpy() * (1 + filled)).astype("u1")
        if block.body is not None:
            values["body"] = block.body.numpy().astype("u1")
        for name in self.about.series:
            values[_series_name(name, values)] = block.series[name].double().numpy()
        with self._output.changed() as file:
            file.resize_dimension("t", new)
            file["t"][old:new] = block.time.double().numpy()
            for name, array in values.items():
                file[name][old:new] = array

    def _finish(self) -> None:
        self._output.close()
        self._output.publish()


def _series_name(name: str, taken: Container[str]) -> str:
    """The name of a series, which may not be that of a field."""
    return f"{name}_series" if name in taken else name


def _describe_flag(variable: Any, long_name: str, meanings: str) -> None:
    variable.attrs["long_name"] = long_name
    variable.attrs["flag_values"] = np.arange(len(meanings.split()), dtype="u1")
    variable.attrs["flag_meanings"] = meanings
