"""Named arrays in files, read by slices, and their frames as fields and masks.

A store can be pickled: it keeps paths, and every process opens the file itself. The order of an
array's axes is a word of letters: ``t`` time, ``c`` channel, ``y`` row, ``x`` column, ``b`` one
flow of several, ``1`` an axis of length 1 without a meaning.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import h5py
import numpy as np
import torch
from torch import Tensor

from pibert.data.format import SPACING_TOLERANCE
from pibert.data.hdf5 import PerProcess, open_hdf5
from pibert.data.readers.recordings import SourceError, reading
from pibert.data.readers.shared.interpolation import count_steps
from pibert.data.views import pick


def uniform_step(axis: np.ndarray, positions: np.ndarray | None = None) -> float | None:
    """Return the step of a uniform axis, negative if it descends; None for any other.

    With ``positions``, in steps, the axis may have gaps.
    """
    if axis.ndim != 1 or len(axis) < 2 or not np.isfinite(axis).all():
        return None
    positions = np.arange(len(axis)) if positions is None else positions
    # Coordinates keep a step only up to their rounding.
    share = float(np.finfo(axis.dtype).eps) if axis.dtype.kind == "f" else 0.0
    axis = axis.astype(np.float64)
    step = float((axis[-1] - axis[0]) / positions[-1])
    rounding = min(4 * share * np.abs(axis).max(), 0.1 * abs(step))
    limit = max(SPACING_TOLERANCE * abs(step), rounding)
    off = np.abs(np.diff(axis) - step * np.diff(positions)).max()
    return None if step == 0 or off > limit else step


def smooth_time(time: np.ndarray) -> tuple[np.ndarray, float | None]:
    """Return times in float64, without the rounding of an even step, and that step.

    Times may have gaps of whole steps.
    """
    exact = time.astype(np.float64)
    positions = count_steps(exact) if len(exact) > 1 else None
    step = None if positions is None else uniform_step(time, positions)
    if positions is None or step is None:
        return exact, None
    return exact[0] + step * positions, step


_FILL_CODES = np.array(
    [*(-99, -999, -9999, -99999, 9999, 99999, -32768, -32767), 1e20, -1e20, 1e30, -1e30, 1e35],
    np.float32,
)
"""Numbers that programs write for missing values without saying so."""


def find_fill_codes(fields: np.ndarray) -> np.ndarray:
    """Return where fields (t, c, ...) have the code of a missing value, as a mask.

    A code is far outside the range of the other values of its frame: further than ten times this
    range; or all values of a frame are codes.
    """
    if not (np.abs(fields) >= np.abs(_FILL_CODES).min()).any():
        return np.zeros(fields.shape, bool)
    coded = np.isin(fields.astype(np.float32), _FILL_CODES)
    for index in np.argwhere(coded.any(tuple(range(2, fields.ndim)))):
        frame, codes = fields[tuple(index)], coded[tuple(index)]
        others = frame[~codes & np.isfinite(frame)]
        low, high = (others.min(), others.max()) if len(others) else (0, 0)
        codes &= np.maximum(low - frame, frame - high) > 10 * (high - low)
    return coded


def describe_fill_codes(channels: Sequence[str], fields: np.ndarray) -> list[str]:
    """Return a note on the codes of missing values in some frames (t, c, ...) of the channels."""
    coded = find_fill_codes(fields)
    found = {
        f"{channel} {code:g}"
        for index, channel in enumerate(channels)
        for code in np.unique(fields[:, index][coded[:, index]])
    }
    return [
        f"codes of missing values, far outside the range of the others, were left out: {text}"
        for text in [", ".join(sorted(found))]
        if text
    ]


Where = tuple[int | slice, ...]
"""An index, or a slice with positive step, for each axis."""


@runtime_checkable
class Store(Protocol):
    """The named arrays of a file."""

    path: Path

    def read(self, key: str, where: Where) -> np.ndarray: ...


@dataclass(frozen=True)
class Piece:
    """The location of one channel: array, order of its axes, index on the channel axis."""

    key: str
    axes: str
    channel: int | None = None


class ArraySource:
    """Channels of arrays in a store as (t, c, y, x) in float32, rows and columns ascending.

    Codes of missing values become NaN.
    """

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
        self.shape: tuple[int, ...] = (shape[0], len(self.pieces), *shape[1:])

    def read(self, frames: slice, channels: Sequence[int] | None = None) -> Tensor:
        fields = self.read_stored(frames, channels)
        fields[find_fill_codes(fields)] = np.nan
        return torch.from_numpy(fields)

    def read_stored(self, frames: slice, channels: Sequence[int] | None = None) -> np.ndarray:
        """Return the fields with the codes of missing values."""
        chosen = pick(self.pieces, channels)
        arrays: dict[str, tuple[int, np.ndarray]] = {}
        for key in dict.fromkeys(piece.key for piece in chosen):
            packed = [piece for piece in chosen if piece.key == key]
            indices = [piece.channel or 0 for piece in packed]
            span = slice(min(indices), max(indices) + 1)
            arrays[key] = span.start, self._block(key, packed[0].axes, frames, span)
        found = ((piece.channel or 0, *arrays[piece.key]) for piece in chosen)
        blocks = [array[:, index - start] for index, start, array in found]
        fields = np.stack(blocks, axis=1) if blocks else np.empty((0, 0, *self.shape[2:]))
        return np.array(np.flip(fields, self.flips), np.float32, order="C")

    def _block(self, key: str, axes: str, frames: slice, span: slice) -> np.ndarray:
        """Read some frames and neighbouring channels of an array as (t, c, y, x)."""
        frames = slice(*frames.indices(self.shape[0]))
        where: dict[str, int | slice] = {"t": frames, "c": span, "b": self.member, "1": 0}
        array = self.store.read(key, tuple(where.get(letter, slice(None)) for letter in axes))
        if array.dtype.kind not in "fiub":
            raise SourceError(
                f"{self.store.path}: {key!r} holds complex numbers or records; save its real part, "
                "or each part as an array"
            )
        left = [letter for letter in axes if letter in "tcyx"]
        array = array.transpose([left.index(letter) for letter in "tcyx" if letter in left])
        if "c" not in left:
            array = array[:, None] if "t" in left else array[None]
        return array if "t" in left else array[None][frames]


def read_flags(flags: ArraySource, marks: bool | int, frames: slice) -> Tensor:
    """Return the points marked by numbers above 0 (True), by 0 (False), or by a code."""
    numbers = flags.read(frames)[:, 0]
    return numbers > 0 if marks is True else numbers == int(marks)


class Hdf5Store(PerProcess):
    """The datasets of an HDF5 file and, as ``@name``, its attributes.

    Values that attributes of the CF conventions pack are unpacked; fill values become NaN. The axes
    of MATLAB's files are in MATLAB's order.
    """

    def __init__(self, path: Path, *, matlab: bool = False) -> None:
        self.path, self.matlab = path.absolute(), matlab

    def _open(self) -> h5py.File:
        with reading(self.path):
            return open_hdf5(self.path)

    def read(self, key: str, where: Where) -> np.ndarray:
        with reading(self.path):
            if key.startswith("@"):
                return np.asarray(self.open().attrs[key[1:]])
            dataset = self.open()[key]
            if not self.matlab:
                return _unpacked(dataset, np.asarray(dataset[where]))
            if len(where) != dataset.ndim:
                # A MATLAB vector has two axes.
                return np.asarray(np.asarray(dataset).reshape(-1)[where])
            return np.asarray(dataset[where[::-1]]).T


def _unpacked(dataset: h5py.Dataset, values: np.ndarray) -> np.ndarray:
    if values.dtype.kind not in "fiu":
        return values
    names = [n for n in ("_FillValue", "missing_value") if n in dataset.attrs]
    codes = [np.asarray(dataset.attrs[name]) for name in names]
    # HDF5's own fill value is 0 if nobody states another.
    codes += [np.asarray(dataset.fillvalue)] if dataset.fillvalue else []
    packing = [n for n in ("scale_factor", "add_offset") if n in dataset.attrs]
    if not (codes or packing):
        return values
    missing = [np.isin(values, code) for code in codes if code.dtype.kind in "fiu"]
    values = np.where(np.any([np.zeros(values.shape, bool), *missing], axis=0), np.nan, values)
    scale, offset = dataset.attrs.get("scale_factor", 1), dataset.attrs.get("add_offset", 0)
    return np.asarray(values * np.ravel(scale)[0] + np.ravel(offset)[0])


class MemoryStore:
    """Arrays by name that ``load(path, key)`` reads whole; they stay in memory."""

    def __init__(self, path: Path, load: Callable[[Path, str], np.ndarray]) -> None:
        self.path, self.load = path.absolute(), load
        self._arrays: dict[str, np.ndarray] = {}

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_arrays": {}}

    def read(self, key: str, where: Where) -> np.ndarray:
        if key not in self._arrays:
            self._arrays[key] = np.asarray(self.load(self.path, key))
        array = self._arrays[key]
        # A MATLAB vector has two axes.
        return np.asarray((array if len(where) == array.ndim else array.reshape(-1))[where])
