"""Frames that wait on the disk until their number is known.

The file has no name: it goes with the process, however that ends.
"""

import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

_TYPES = {torch.float32: np.float32, torch.bool: np.bool_}


class Spool:
    """A ``FrameSource`` that grows.

    Args:
        folder: On whose disk the frames lie.
        shape: Of one frame.
        dtype: float32 for fields, bool for masks.
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
