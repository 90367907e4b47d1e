"""NumPy arrays and tensors of the caller as one batch, and results of the same kind.

A result has no batch axis where the input had none, and always a time axis.
"""

from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor

from pibert.fields import FieldSpec, Grid
from pibert.notes import Note

Fields = TypeVar("Fields")
"""Frames in physical units as NumPy, torch or xarray; the result is of the same kind.

Arrays are (batch, history, channel, y, x), (history, channel, y, x) or, for a history of one frame,
(channel, y, x).
"""
Mask = Any
"""True where known: (y, x), (batch, y, x) or (batch, history, y, x), without the batch for one
sample; NumPy, torch or, with labelled fields, xarray."""


class Arrays:
    """Converts results to the caller's NumPy arrays or tensors.

    Results have a batch axis and are on the caller's grid.

    Args:
        is_numpy: Whether the input was a NumPy array.
        missing: Leading axes that the input lacks: 1, the batch; 2, the batch and the frames.
    """

    def __init__(self, is_numpy: bool, missing: int) -> None:
        self._is_numpy, self._missing = is_numpy, missing

    def frames(self, values: Float[Tensor, "b t c y x"], start: int) -> Any:
        """Predicted frames, of which ``start`` came before."""
        return self._convert(values, min(1, self._missing))

    def window(self, values: Float[Tensor, "b h c y x"]) -> Any:
        """Frames in place of the input."""
        return self._convert(values, self._missing)

    def map(self, values: Shaped[Tensor, "b ..."], axes: tuple[str, ...]) -> Any:
        """Values per sample; ``axes`` names those after the first."""
        return self._convert(values, min(1, self._missing))

    def _convert(self, values: Tensor, missing: int) -> Any:
        values = values[(0,) * missing]
        return values.numpy() if self._is_numpy else values


@dataclass(frozen=True, eq=False)
class Converted:
    """The input of the caller as tensors."""

    fields: Float[Tensor, "b h c y x"]
    """In the units of the spec."""
    known: Bool[Tensor, "b h y x"]
    grid: Grid | None
    """As the caller or the labels state it."""
    kind: Arrays
    notes: tuple[Note, ...] = ()


def convert_arrays(
    fields: Any, mask: Mask | None, grid: Grid | None, spec: FieldSpec, history: int
) -> Converted:
    """Arrays as a batch, checked for their type and shape."""
    values = as_tensor(fields, "fields")
    missing = 5 - values.ndim
    full = values[(None,) * missing] if missing in (1, 2) else values
    check_frames(full, spec, history, tuple(values.shape))
    kind = Arrays(isinstance(fields, np.ndarray), missing)
    return Converted(full, known_of(mask, full, missing > 0), grid, kind)


def as_tensor(values: Any, what: str) -> Tensor:
    """A tensor of the same type, in the machine's byte order; floating point, or bool of a mask."""
    allowed = ("bool",) if what == "the mask" else ("float32", "float64")
    if isinstance(values, Tensor):
        found = str(values.dtype).removeprefix("torch.")
    elif isinstance(values, np.ndarray) and not isinstance(values, np.ma.MaskedArray):
        found = values.dtype.newbyteorder("=").name
    else:
        raise ValueError(
            f"expected {what} as a NumPy array or a tensor (fields also as xarray), found "
            f"{type(values).__name__}; for missing values pass a mask that is False there"
        )
    if found not in allowed:
        remedy = "True where known" if what == "the mask" else "convert them"
        raise ValueError(f"expected {what} in {' or '.join(allowed)}, found {found}; {remedy}")
    if isinstance(values, Tensor):
        return values
    # A copy in the machine's byte order: files give arrays that are read-only or swapped.
    return torch.from_numpy(np.array(values, values.dtype.newbyteorder("="), order="C"))


def check_frames(
    values: Tensor, spec: FieldSpec, history: int, shape: tuple[int, ...] | None = None
) -> None:
    """Raise unless this is a batch of windows; ``shape`` is that of the caller's array."""
    expected = (history, len(spec.channels))
    if values.ndim == 5 and values.shape[1:3] == expected and min(values.shape) > 0:
        return
    found = tuple(values.shape) if shape is None else shape
    remedy = "bring them to the model's frames and channels"
    if history == 1 and len(found) == 4 and found[1] == len(spec.channels):
        remedy = "a batch of single frames needs a time axis: fields[:, None]"
    elif values.ndim == 5 and values.shape[1] > history:
        remedy = f"give the {history} newest, the frames that the model takes"
    raise ValueError(
        "expected fields of shape (batch, history, channel, y, x) = (batch, "
        f"{', '.join(map(str, (*expected, *spec.grid.shape)))}), on this grid or another, without "
        f"the batch for one sample, with channels {list(spec.channels)}, found {found}; {remedy}"
    )


def known_of(
    mask: Mask | None, fields: Float[Tensor, "b h c y x"], is_single: bool
) -> Bool[Tensor, "b h y x"]:
    """A mask of every frame of a batch; ``is_single``: the input has no batch axis."""
    b, h, _, ny, nx = fields.shape
    if mask is None:
        return torch.ones(b, h, ny, nx, dtype=torch.bool, device=fields.device)
    known = as_tensor(mask, "the mask").to(fields.device)
    shapes = [(ny, nx), (h, ny, nx)] if is_single else [(ny, nx), (b, ny, nx), (b, h, ny, nx)]
    if tuple(known.shape) not in shapes:
        raise ValueError(
            f"expected a mask, True where known, of shape {' or '.join(map(str, shapes))}, found "
            f"{tuple(known.shape)}"
        )
    if known.ndim == 3 and not is_single:
        known = known[:, None]
    return known.expand(b, h, ny, nx)
