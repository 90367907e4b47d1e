"""What writing and reading agree in: names, sizes of blocks, text, and what a sound time is."""

from collections.abc import Iterator
from typing import Any

import h5py
import numpy as np
import torch
from torch import Tensor

from pibert.data.splits import GAP, find_gaps
from pibert.fields import Trajectory

FORMAT = "pibert-trajectories"
VERSION = 1
SPACING_TOLERANCE = 1e-3
"""Largest deviation from a uniform step, as a share of the step."""
NUMBERS = ("dt", "reference_velocity", "reference_length", "viscosity")
"""Attributes that are numbers, and left out where they are not known."""
_CHUNK_BYTES = 1 << 16
_BLOCK_BYTES = 1 << 20
GAPS = f"a step of {GAP:g} dt or more is a gap, but not all of them can be"
REWRITE = "write it again as docs/data-format.md says"


class FormatError(ValueError):
    """A file that does not hold what the format promises; the message says what to do."""


def find_not_finite(trajectory: Trajectory, frames: slice, block: Tensor) -> str | None:
    """Where a known point is not finite, in words."""
    wrong = ~block.isfinite()
    if not bool(wrong.any()):
        return None
    wrong &= trajectory.known(frames)[:, None].to(wrong.device)
    if not bool(wrong.any()):
        return None
    t, c, row, column = (int(i) for i in wrong.nonzero()[0])
    return (
        f"the field {trajectory.spec.channels[c]!r} is {block[t, c, row, column].item()} at a "
        f"known point (frame {frames.start + t}, row {row}, column {column})"
    )


def blocks(trajectory: Trajectory) -> Iterator[slice]:
    """Slices of frames small enough to hold in memory, on the borders of chunks."""
    t, c, ny, nx = trajectory.states.shape
    chunk = frames_in_chunk(4 * ny * nx, t)
    step = max(chunk, _frames_within(_BLOCK_BYTES, 4 * c * ny * nx, t) // chunk * chunk)
    return (slice(start, min(start + step, t)) for start in range(0, t, step))


def frames_in_chunk(frame_bytes: int, count: int) -> int:
    return _frames_within(_CHUNK_BYTES, frame_bytes, count)


def _frames_within(limit: int, frame_bytes: int, count: int) -> int:
    return max(1, min(count, limit // frame_bytes))


def keeps_step(time: np.ndarray, dt: float) -> bool:
    """Whether neighbouring frames are dt apart. A dt that no two frames keep is wrong."""
    gaps = find_gaps(torch.from_numpy(time), dt).numpy()
    if len(gaps) and gaps.all():
        return False
    off = np.abs(np.diff(time)[~gaps] / dt - 1)
    return bool((off <= SPACING_TOLERANCE).all())


def fixed_text(text: str) -> Any:
    """A string of fixed length: those of variable length lie outside HDF5's checksums."""
    data = text.encode()
    return np.array(data, dtype=h5py.string_dtype("utf-8", max(1, len(data))))


def as_text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)
