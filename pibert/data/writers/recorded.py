"""A trajectory in the words of the writers of frames."""

from collections.abc import Iterator

import torch

from pibert.data.writers.frames import Block, Description
from pibert.fields import Trajectory, read_mask

_BLOCK_VALUES = 1 << 22


def describe(trajectory: Trajectory) -> Description:
    """What is known of a trajectory before its frames are read."""
    return Description(
        name=trajectory.name,
        spec=trajectory.spec,
        parameters=trajectory.parameters,
        source=trajectory.source,
        local=trajectory.local,
        length_unit=trajectory.length_unit,
        time_unit=trajectory.time_unit,
        counted="frame",
        marks_filled=trajectory.filled is not None,
    )


def blocks_of(trajectory: Trajectory) -> Iterator[Block]:
    """The frames of a trajectory, a few at a time."""
    t, c, ny, nx = trajectory.states.shape
    step = max(1, _BLOCK_VALUES // (c * ny * nx))
    for start in range(0, t, step):
        frames = slice(start, min(start + step, t))
        known = trajectory.known(frames).cpu()
        filled = None
        if trajectory.filled is not None:
            filled = known & read_mask(trajectory.filled, frames).cpu()
        yield Block(
            fields=trajectory.read(frames).to("cpu", torch.float32),
            time=trajectory.time[frames],
            number=torch.arange(frames.start, frames.stop),
            known=known,
            filled=filled,
        )
