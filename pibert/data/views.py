"""Trajectories by name, and views: frames that a function computes when they are read.

Bind the arguments of a module-level function with ``functools.partial``: such views can be pickled
for worker processes.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool
from torch import Tensor

from pibert.fields import FrameSource, Trajectory, read_mask

Mask = Tensor | FrameSource | None
BLOCK_VALUES = 1 << 22
"""Values of a block when a whole trajectory is read."""


class ByName:
    """Trajectories by index or name."""

    path: Path
    names: tuple[str, ...]
    load: Callable[[str], Trajectory]

    def __len__(self) -> int:
        return len(self.names)

    def __iter__(self) -> Iterator[Trajectory]:
        return map(self.load, self.names)

    def __getitem__(self, key: int | str) -> Trajectory:
        name = self.names[key] if isinstance(key, int) else key
        if name not in self.names:
            some = ", ".join(self.names[:8]) + (", ..." if len(self) > 8 else "")
            raise KeyError(f"{self.path}: no trajectory {name!r}; there are: {some}")
        return self.load(name)


@dataclass(frozen=True, eq=False)
class MappedFrames:
    """A ``FrameSource`` whose frames a function computes."""

    shape: tuple[int, ...]
    """(t, c, y, x) of fields, (t, y, x) of masks."""
    compute: Callable[..., Tensor]
    """Takes ``(frames, channels)`` for fields, channels None for all; ``(frames)`` for masks."""

    def read(self, frames: slice, channels: Sequence[int] | None = None) -> Tensor:
        frames = slice(*frames.indices(self.shape[0]))
        return self.compute(frames) if len(self.shape) == 3 else self.compute(frames, channels)


def mask_shape(fields: Trajectory | FrameSource) -> tuple[int, ...]:
    """Return the shape (t, y, x) of a mask for each frame."""
    t, _, ny, nx = (fields.states if isinstance(fields, Trajectory) else fields).shape
    return t, ny, nx


def finite_points(fields: Trajectory | FrameSource, valid: Mask = None) -> MappedFrames:
    """Return a mask: all channels are finite and, if a mask is given, the point is valid."""
    return MappedFrames(mask_shape(fields), partial(_finite, fields, valid))


def _finite(fields: Trajectory | FrameSource, valid: Mask, frames: slice) -> Bool[Tensor, "t y x"]:
    finite = fields.read(frames).isfinite().all(1)
    return finite if valid is None else finite & read_mask(valid, frames).to(finite.device)


def map_mask(
    mask: Mask, change: Callable[[Tensor], Tensor], shape: tuple[int, int] | None = None
) -> Mask:
    """Map the points (last two axes) of a mask, lazily if it is not in memory.

    ``shape`` gives the rows and columns of the result, if they change.
    """
    if mask is None or isinstance(mask, Tensor):
        return None if mask is None else change(mask.cpu())
    return MappedFrames(
        (mask.shape[0], *(shape or mask.shape[1:])), partial(_changed, mask, change)
    )


def _changed(mask: FrameSource, change: Callable[[Tensor], Tensor], frames: slice) -> Tensor:
    return change(mask.read(frames))


def pick(values: Sequence[Any], channels: Sequence[int] | None) -> list[Any]:
    """Return the values of the channels; all if ``channels`` is None."""
    return list(values) if channels is None else [values[channel] for channel in channels]


def frame_blocks(fields: Trajectory, first: int = 0, stop: int | None = None) -> Iterator[slice]:
    """Yield slices of frames that fit in memory."""
    t, c, ny, nx = fields.states.shape
    step, stop = max(1, BLOCK_VALUES // (c * ny * nx)), t if stop is None else stop
    return (slice(start, min(start + step, stop)) for start in range(first, stop, step))


def scale_channels(
    fields: Trajectory, factors: Sequence[float], frames: slice, channels: Sequence[int] | None
) -> Tensor:
    """Return fields times one factor per channel, in single precision at least."""
    values = fields.read(frames, channels)
    values = values.to(torch.promote_types(values.dtype, torch.float32))
    return values * values.new_tensor(pick(factors, channels))[:, None, None]


def with_state(trajectory: Trajectory, names: Sequence[str]) -> Trajectory:
    """Return the trajectory with the series among some names as channels, constant in space.

    They are the state of a structure, such as the displacement of a body.
    """
    spec = trajectory.spec
    state = [n for n in dict.fromkeys(names) if n in trajectory.series and n not in spec.channels]
    if not state:
        return trajectory
    for name in state:
        if not bool(trajectory.series[name].isfinite().all()):
            raise ValueError(
                f"trajectory {trajectory.name!r}: the series {name!r} has values that are not "
                "finite; cut them off, or train without the state of the structure"
            )
    values = torch.stack([trajectory.series[name] for name in state], dim=1)
    t, c, ny, nx = trajectory.states.shape
    return replace(
        trajectory,
        states=MappedFrames((t, c + len(state), ny, nx), partial(_stated, trajectory, values)),
        spec=replace(
            spec,
            channels=(*spec.channels, *state),
            units=(*spec.units, *["1"] * len(state)),
            state=(*spec.state, *state),
        ),
    )


def _stated(
    base: Trajectory, values: Tensor, frames: slice, channels: Sequence[int] | None
) -> Tensor:
    """Read fields and series (t, k) as channels."""
    count = base.states.shape[1]
    wanted = range(count + values.shape[1]) if channels is None else channels
    fields = base.read(frames, [c for c in wanted if c < count])
    uniform = values[frames][:, [c - count for c in wanted if c >= count]].to(fields)
    state = uniform[..., None, None].expand(-1, -1, *fields.shape[-2:])
    both = torch.cat((fields, state), dim=1)
    # Series come after fields, in whatever order they are asked for.
    order = sorted(range(len(wanted)), key=lambda place: wanted[place] >= count)
    return both[:, [order.index(place) for place in range(len(wanted))]]


def spread(count: int, wanted: int) -> list[int]:
    """Return at most ``wanted`` different indices below ``count``, evenly spread."""
    wanted = min(count, wanted)
    return [round(i * (count - 1) / max(1, wanted - 1)) for i in range(wanted)]
