"""Fields turned round, for files whose rows, columns or components run the other way.

Rows that are stored from top to bottom need ``y``; a component that counts downward, with rows in
the right order, needs ``v``; both together mirror the flow. Coordinates stay what they are: the
first row of the result lies at the origin, and a side keeps to its row or column.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from torch import Tensor

from pibert.data.sources.recordings import Recordings
from pibert.fields import MASKS, FrameSource, Sides, Trajectory, read_mask

FLIPS = ("x", "y", "u", "v")
_AXES = {"x": -1, "y": -2}


def flip_recordings(recordings: Recordings, flip: Sequence[str]) -> Recordings:
    """The same recordings, each turned round when it is loaded."""
    if not set(flip) <= set(FLIPS) or len(set(flip)) != len(flip):
        raise ValueError(
            f"--flip takes some of {', '.join(FLIPS)}, each once, found {', '.join(flip)}"
        )
    if not flip:
        return recordings
    remark = f"flipped as stated: {', '.join(flip)}"
    return replace(
        recordings,
        load=lambda name: flip_trajectory(recordings.load(name), tuple(flip)),
        remarks=(*recordings.remarks, remark),
    )


def flip_trajectory(trajectory: Trajectory, flip: tuple[str, ...]) -> Trajectory:
    """A lazy view with the order of rows and columns and the sign of components turned."""
    spec = trajectory.spec
    missing = [name for name in flip if name not in _AXES and name not in spec.channels]
    if missing:
        raise ValueError(
            f"trajectory {trajectory.name!r} has no channel {missing[0]!r} to flip; it has "
            f"{', '.join(spec.channels)}"
        )
    axes = tuple(_AXES[name] for name in flip if name in _AXES)
    signs = tuple(-1.0 if name in flip else 1.0 for name in spec.channels)
    left, right, bottom, top = spec.grid.sides
    if "x" in flip:
        left, right = right, left
    if "y" in flip:
        bottom, top = top, bottom
    grid = replace(spec.grid, body=None, sides=Sides(left, right, bottom, top))
    masks: dict[str, Any] = {n: _flip_mask(getattr(trajectory, n), axes) for n in MASKS}
    return replace(
        trajectory,
        states=_FlippedFields(trajectory, axes, signs),
        spec=replace(spec, grid=grid),
        local={**trajectory.local, "flip": list(flip)},
        **masks,
    )


class _FlippedFields:
    def __init__(self, base: Trajectory, axes: tuple[int, ...], signs: tuple[float, ...]) -> None:
        self.base, self.axes, self.signs = base, axes, signs

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.base.states.shape)

    def read(self, frames: slice, channels: Sequence[int] | None = None) -> Tensor:
        fields = self.base.read(frames, channels).flip(self.axes)
        signs = self.signs if channels is None else [self.signs[i] for i in channels]
        return fields * fields.new_tensor(signs)[:, None, None]


class _FlippedMask:
    def __init__(self, base: FrameSource, axes: tuple[int, ...]) -> None:
        self.base, self.axes = base, axes

    @property
    def shape(self) -> tuple[int, ...]:
        return self.base.shape

    def read(self, frames: slice, channels: Sequence[int] | None = None) -> Tensor:
        return read_mask(self.base, frames).flip(self.axes)


def _flip_mask(
    mask: Tensor | FrameSource | None, axes: tuple[int, ...]
) -> Tensor | FrameSource | None:
    if mask is None or isinstance(mask, Tensor):
        return None if mask is None else mask.flip(axes)
    return _FlippedMask(mask, axes)
