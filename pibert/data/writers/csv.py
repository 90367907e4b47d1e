"""Writers of text: fields with a line per point, or the series of bodies with a line per frame."""

import csv
import io
import os

import numpy as np
import torch

from pibert.data.partial import flush_folder, partial_path, replace_file
from pibert.data.writers.frames import Block, FrameWriter


class TableWriter(FrameWriter):
    """Time, coordinates and fields in columns, with a line for every point of every frame.

    Unknown values are ``nan``; filled ones have a 1 in a last column. The table reader reads it.
    """

    def _begin(self) -> None:
        about, spec = self.about, self.about.whole_spec
        units = {"time": about.time_unit, "x": about.length_unit, "y": about.length_unit}
        units |= dict(zip(spec.channels, spec.units, strict=True))
        names = [
            name if unit in (None, "1") else f"{name} [{unit}]" for name, unit in units.items()
        ]
        self._partial = partial_path(self.path)
        self.resources.callback(self._partial.unlink, missing_ok=True)
        self._file = self.resources.enter_context(self._partial.open("xb", buffering=0))
        self._write(",".join([*names, *["filled"] * about.marks_filled]) + "\n")

    def _append(self, block: Block) -> None:
        x, y = (axis.flatten() for axis in self.about.spec.grid.coordinates(torch.float64))
        parts = [block.masked] if block.low is None else [block.masked, block.intervals]
        parts += [] if block.filled is None else [block.filled[:, None]]
        for time, *frame in zip(block.time, *parts, strict=True):
            columns = [time.expand_as(x), x, y, *torch.cat(frame).double().flatten(1)]
            text = io.StringIO()
            # Fields are float32; the times and coordinates float64.
            formats = ["%.16g"] * 3 + ["%.9g"] * (len(columns) - 3)
            np.savetxt(text, torch.stack(columns, 1).numpy(), formats, ",")
            self._write(text.getvalue())

    def _write(self, text: str) -> None:
        todo = memoryview(text.encode())
        while todo:
            todo = todo[self._file.write(todo) :]

    def _finish(self) -> None:
        os.fsync(self._file.fileno())
        self._file.close()
        os.replace(self._partial, self.path)
        flush_folder(self.path.parent)


class CsvWriter(FrameWriter):
    """Times, series and the ends of their prediction intervals, in columns."""

    def check(self) -> None:
        """Raise if there is no series."""
        super().check()
        if not self.about.series:
            raise ValueError(
                f"{self.path}: expected series to write, such as the displacement of a body, found "
                "none; write fields to .h5, .nc, .pvd or .xdmf"
            )

    def _begin(self) -> None:
        self._text = io.StringIO()
        self._rows = csv.writer(self._text, lineterminator="\n")
        self._rows.writerow(["time", *self.about.series])

    def _append(self, block: Block) -> None:
        columns = [block.time, *(block.series[name] for name in self.about.series)]
        rows = zip(*(column.double().tolist() for column in columns), strict=True)
        self._rows.writerows([f"{value:.9g}" for value in row] for row in rows)

    def _finish(self) -> None:
        replace_file(self.path, self._text.getvalue().encode())
