"""Writer of the native format (docs/data-format.md).

The format needs the number of frames first, so frames are spooled to a temporary file: writing
takes the space on the disk twice.

Unknown values, also inside a body, are NaN, as in the other formats. The ends of prediction
intervals are further channels; points without intervals are then not valid.
"""

import contextlib
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from pibert.data import format as native
from pibert.data.writers.frames import Block, FrameWriter
from pibert.fields import Trajectory

_TYPES = {torch.float32: np.float32, torch.bool: np.bool_}


class Spool:
    """A growing ``FrameSource`` of float32 fields or bool masks in an unnamed temporary file.

    ``shape`` is that of one frame.
    """

    def __init__(
        self, folder: Path, shape: tuple[int, ...], dtype: torch.dtype = torch.float32
    ) -> None:
        # Unbuffered, so that the write that fails raises the error.
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
        count, size = max(0, stop - start), self._bytes // self._type.itemsize
        self._file.seek(start * self._bytes)
        array = np.fromfile(self._file, self._type, count * size).reshape(count, *self._frame)
        values = torch.from_numpy(array)[::step]
        return values if channels is None else values[:, list(channels)]

    def close(self) -> None:
        self._file.close()


class NativeWriter(FrameWriter):
    """A file of one trajectory."""

    def _begin(self) -> None:
        spec = self.about.whole_spec
        # A list, because thousands of small tensors would fragment the heap.
        self._times: list[float] = []
        self._gaps = False
        self._fields = self._spool((len(spec.channels), *spec.grid.shape))
        self._valid = self._spool(spec.grid.shape, torch.bool)
        self._filled = self._spool(spec.grid.shape, torch.bool) if self.about.marks_filled else None
        self._body = self._spool(spec.grid.shape, torch.bool) if self.about.body_moves else None
        self._series: dict[str, list[float]] = {name: [] for name in self.about.series}

    def _spool(self, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Spool:
        return self.resources.enter_context(
            contextlib.closing(Spool(self.path.parent, shape, dtype))
        )

    def _append(self, block: Block) -> None:
        self._times.extend(block.time.tolist())
        fields, known = block.masked, block.known
        if self.about.interval_level is not None:
            ends = block.intervals
            fields = torch.cat((fields, ends), dim=1)
            known = known & ends.isfinite().all(1)
        self._fields.append(fields)
        valid = known | (self.about.body if block.body is None else block.body)
        self._valid.append(valid)
        self._gaps = self._gaps or not bool(valid.all())
        if self._filled is not None:
            assert block.filled is not None
            self._filled.append(block.filled)
        if self._body is not None:
            assert block.body is not None
            self._body.append(block.body)
        for name, values in self._series.items():
            values.extend(block.series[name].tolist())

    def _finish(self) -> None:
        about = self.about
        trajectory = Trajectory(
            name=about.name,
            states=self._fields,
            time=torch.tensor(self._times, dtype=torch.float64),
            spec=about.whole_spec,
            parameters=about.parameters,
            valid=self._valid if self._gaps else None,
            filled=self._filled,
            body=self._body,
            series={n: torch.tensor(v, dtype=torch.float64) for n, v in self._series.items()},
            source=about.source,
            local=about.local,
            length_unit=about.length_unit,
            time_unit=about.time_unit,
        )
        native.write(self.path, [trajectory])
