"""The package's own format (docs/data-format.md).

That format holds the number of frames in front of them, so they wait in a spool until it is known:
while the file is written it takes its space on the disk twice.

Unknown values, also inside a body, are NaN, as in the other formats. The ends of prediction
intervals are further channels. Points without intervals are then not valid: valid points are finite
in all channels.
"""

import tempfile
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from pibert.data import format as native
from pibert.data.writers.frames import Block, FrameWriter
from pibert.fields import FieldSpec, Trajectory

_TYPES = {torch.float32: np.float32, torch.bool: np.bool_}


class Spool:
    """A ``FrameSource`` of float32 fields or bool masks that grows, on the disk of a folder.

    ``shape`` is that of one frame. The file has no name: it goes with the process.
    """

    def __init__(
        self, folder: Path, shape: tuple[int, ...], dtype: torch.dtype = torch.float32
    ) -> None:
        # Unbuffered: an error of the disk then belongs to the write that met it.
        self._file = tempfile.TemporaryFile(dir=folder, buffering=0)
        self._frame, self._type, self._count = shape, np.dtype(_TYPES[dtype]), 0
        self._bytes = int(np.prod(shape)) * self._type.itemsize

    @property
    def shape(self) -> tuple[int, ...]:
        return (self._count, *self._frame)

    def append(self, frames: Tensor) -> None:
        array = np.ascontiguousarray(frames.cpu().numpy(), self._type)
        assert array.shape[1:] == self._frame
        todo = array.data.cast("B")
        self._file.seek(self._count * self._bytes)
        while todo:
            todo = todo[self._file.write(todo) :]
        self._count += len(array)

    def read(self, frames: slice, channels: Sequence[int] | None = None) -> Tensor:
        start, stop, step = frames.indices(self._count)
        array = np.empty((max(0, stop - start), *self._frame), self._type)
        view, place = array.data.cast("B"), 0
        self._file.seek(start * self._bytes)
        while place < len(view):
            found = self._file.readinto(view[place:])
            assert found
            place += found
        values = torch.from_numpy(array)[::step]
        return values if channels is None else values[:, list(channels)]

    def close(self) -> None:
        self._file.close()


class NativeWriter(FrameWriter):
    """A file of one trajectory."""

    _fields: Spool | None = None
    _valid: Spool | None = None
    _filled: Spool | None = None

    @property
    def _spec(self) -> FieldSpec:
        """Of all that is written."""
        spec, bars = self.about.spec, self.about.bar_units
        channels, units = (*spec.channels, *bars), (*spec.units, *bars.values())
        return replace(spec, channels=channels, units=units)

    def _begin(self) -> None:
        spec, folder = self._spec, self.path.parent
        # Not as tensors: thousands of small ones would keep the heap from being used again.
        self._times: list[float] = []
        self._gaps = False
        self._fields = Spool(folder, (len(spec.channels), *spec.grid.shape))
        self._valid = Spool(folder, spec.grid.shape, torch.bool)
        if self.about.marks_filled:
            self._filled = Spool(folder, spec.grid.shape, torch.bool)

    def _append(self, block: Block) -> None:
        assert self._fields is not None and self._valid is not None
        self._times.extend(block.time.tolist())
        fields, known = block.masked, block.known
        if self.about.bars is not None:
            ends = block.bars
            fields = torch.cat((fields, ends), dim=1)
            known = known & ends.isfinite().all(1)
        self._fields.append(fields)
        valid = known | self.about.body
        self._valid.append(valid)
        self._gaps = self._gaps or not bool(valid.all())
        if self._filled is not None:
            assert block.filled is not None
            self._filled.append(block.filled)

    def _finish(self) -> None:
        about = self.about
        assert self._fields is not None
        trajectory = Trajectory(
            name=about.name,
            states=self._fields,
            time=torch.tensor(self._times, dtype=torch.float64),
            spec=self._spec,
            parameters=about.parameters,
            valid=self._valid if self._gaps else None,
            filled=self._filled,
            source=about.source,
            local=about.local,
            length_unit=about.length_unit,
            time_unit=about.time_unit,
        )
        native.write(self.path, [trajectory])

    def _discard(self) -> None:
        for spool in (self._fields, self._valid, self._filled):
            if spool is not None:
                spool.close()
