"""Frames of arrays in foreign files, read when they are asked for.

A store gives parts of a file's named arrays. It may be pickled: it keeps paths, and every process
opens the file for itself. The order of an array's axes is a word of letters: ``t`` time, ``c``
channel, ``y`` row, ``x`` column, ``b`` one flow of several, ``1`` an axis of one entry without a
meaning.
"""

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import h5py
import numpy as np
import torch
from torch import Tensor

from pibert.data.hdf5 import DAMAGED, HDF5Error, open_hdf5
from pibert.data.sources.recordings import SourceError
from pibert.fields import FrameSource

Where = tuple[int | slice, ...]


@runtime_checkable
class Store(Protocol):
    """The named arrays of a file."""

    path: Path

    def read(self, key: str, where: Where) -> np.ndarray:
        """A part of an array: a number or a slice with positive step for each axis."""
        ...


@dataclass(frozen=True)
class Piece:
    """Where one channel lies: an array, the order of its axes, its place on the channel axis."""

    key: str
    axes: str
    channel: int | None = None


class ArraySource:
    """Channels of arrays in a store as (t, c, y, x) in float32, rows and columns ascending."""

    def __init__(
        self,
        store: Store,
        pieces: Sequence[Piece],
        shape: tuple[int, ...],
        *,
        flip_y: bool = False,
        flip_x: bool = False,
        member: int = 0,
    ) -> None:
        self.store, self.pieces, self.member = store, tuple(pieces), member
        self.flips = tuple(axis for axis, flip in ((-2, flip_y), (-1, flip_x)) if flip)
        self._shape = (shape[0], len(self.pieces), *shape[1:])

    @property
    def shape(self) -> tuple[int, ...]:
        return self._shape

    def read(self, frames: slice, channels: Sequence[int] | None = None) -> Tensor:
        chosen = self.pieces if channels is None else [self.pieces[i] for i in channels]
        arrays: dict[str, tuple[int, np.ndarray]] = {}
        for key in dict.fromkeys(piece.key for piece in chosen):
            places = [piece.channel or 0 for piece in chosen if piece.key == key]
            axes = next(piece.axes for piece in chosen if piece.key == key)
            span = slice(min(places), max(places) + 1)
            arrays[key] = span.start, self._part(key, axes, frames, span)
        blocks = []
        for piece in chosen:
            start, array = arrays[piece.key]
            blocks.append(array[:, (piece.channel or 0) - start])
        fields = np.stack(blocks, axis=1) if blocks else np.empty((0, 0, *self._shape[2:]))
        return torch.from_numpy(np.ascontiguousarray(np.flip(fields, self.flips), np.float32))

    def _part(self, key: str, axes: str, frames: slice, span: slice) -> np.ndarray:
        """Some frames and neighbouring channels of an array as (t, c, y, x)."""
        frames = slice(*frames.indices(self._shape[0]))
        places: dict[str, int | slice] = {"t": frames, "c": span, "b": self.member, "1": 0}
        array = self.store.read(key, tuple(places.get(letter, slice(None)) for letter in axes))
        left = [letter for letter in axes if letter in "tcyx"]
        array = array.transpose([left.index(letter) for letter in "tcyx" if letter in left])
        if "c" not in left:
            array = array[:, None] if "t" in left else array[None]
        return array if "t" in left else array[None][frames]


class FlagSource:
    """A flag per point and frame, as ``is_marked`` reads it off numbers."""

    def __init__(self, flags: ArraySource, marks: bool | int = True) -> None:
        self.flags, self.marks = flags, marks

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.flags.shape[0], *self.flags.shape[2:])

    def read(self, frames: slice, channels: Sequence[int] | None = None) -> Tensor:
        assert channels is None
        return is_marked(self.flags.read(frames)[:, 0], self.marks)


def is_marked(flags: Tensor, marks: bool | int) -> Tensor:
    """Where numbers mark a point: above 0 (True), at 0 (False), or at a code of their own."""
    if marks is True:
        return flags > 0
    return flags == int(marks)


class KnownSource:
    """True where every channel is finite and, where a file says so, a point is valid."""

    def __init__(self, fields: FrameSource, valid: FrameSource | Tensor | None = None) -> None:
        self.fields, self.valid = fields, valid

    @property
    def shape(self) -> tuple[int, ...]:
        return (self.fields.shape[0], *self.fields.shape[2:])

    def read(self, frames: slice, channels: Sequence[int] | None = None) -> Tensor:
        assert channels is None
        known = self.fields.read(frames).isfinite().all(1)
        if isinstance(self.valid, Tensor):
            return known & self.valid
        return known if self.valid is None else known & self.valid.read(frames)


class Hdf5Store:
    """The datasets of an HDF5 file and, as ``@name``, its attributes.

    Of MATLAB's files the axes are in MATLAB's order.
    """

    def __init__(self, path: Path, *, matlab: bool = False) -> None:
        self.path, self.matlab = path.absolute(), matlab
        self._pid = -1
        self._file: h5py.File | None = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_pid": -1, "_file": None}

    def open(self) -> h5py.File:
        if self._file is None or self._pid != os.getpid():
            if self._file is not None:
                # It came through a fork: HDF5 would hand out the parent's descriptor again.
                self._file.close()
            try:
                self._file = open_hdf5(self.path)
            except (OSError, RuntimeError) as error:
                raise damaged(self.path, error) from error
            self._pid = os.getpid()
        return self._file

    def read(self, key: str, where: Where) -> np.ndarray:
        try:
            if key.startswith("@"):
                return np.asarray(self.open().attrs[key[1:]])
            dataset = self.open()[key]
            if not self.matlab:
                return np.asarray(dataset[where])
            if len(where) != dataset.ndim:
                # A vector of MATLAB has two axes.
                return np.asarray(np.asarray(dataset).reshape(-1)[where])
            return np.asarray(dataset[where[::-1]]).T
        except HDF5Error:
            raise
        except DAMAGED as error:
            raise damaged(self.path, error) from error


def damaged(path: Path, error: Exception) -> SourceError:
    problem = "truncated" if "truncated" in str(error) else f"not readable ({error})"
    return SourceError(f"{path}: the file is {problem}: get a new copy of it")
