"""Recordings of any kind into the native format, block by block.

Values become float32. A value that is not finite at a point that counts as known makes the point
missing in that frame; how many there were is recorded in the local representation. Units that are
known are brought to metres and seconds (``pibert.data.units``).
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from pibert.data.crop import Region, crop
from pibert.data.format import Writer
from pibert.data.generate import IDENTITY
from pibert.data.resample import represent
from pibert.data.sources.numbered import expand_pattern
from pibert.data.sources.recordings import Recordings
from pibert.data.sources.stated import family_note
from pibert.data.units import UNKNOWN, describe_conversion, in_consistent_units
from pibert.data.wording import counted
from pibert.fields import Trajectory, read_mask

_BLOCK_VALUES = 1 << 22


def convert(
    recordings: Recordings,
    out: Path | str,
    *,
    names: Sequence[str] | None = None,
    stride: int = 1,
    max_frames: int | None = None,
    frames: slice = slice(None),
    region: Region | None = None,
    channels: Sequence[str] | None = None,
    size: tuple[int, int] | None = None,
    units: Literal["SI", "keep"] = "SI",
    on_progress: Callable[[float], None] | None = None,
    on_remark: Callable[[str], None] | None = None,
) -> Path:
    """Write a native file; it appears whole or not at all.

    Args:
        recordings: What to write; fields are read block by block.
        out: The file to write; an older one is replaced, but never a part of the input.
        names: Which trajectories; all if not given.
        stride: Every how many frames one is taken.
        max_frames: At most so many frames of each trajectory, counted after the stride.
        frames: Which frames of each, before the stride.
        region: The part of the grid to keep, in the source's units.
        channels: Names of the channels to keep, in this order.
        size: Rows and columns to bring the fields to.
        units: ``keep`` leaves lengths, times and velocities in the units of the source.
        on_progress: Called with the share that is done, 0 to 1.
        on_remark: Called with what was done to the units and what is assumed of the family, in
            words, once for all that are alike.
    """
    out = Path(out)
    refuse_overwriting(recordings.path, out)
    names = recordings.names if names is None else tuple(names)
    said: set[str] = set()
    with Writer(out) as writer:
        for done, name in enumerate(names):
            report = _share_of(on_progress, done, len(names))
            original = recordings[name] if region is None else crop(recordings[name], region)
            scaled = original if units == "keep" else in_consistent_units(original)
            view = represent(
                scaled, stride=stride, max_frames=max_frames, frames=frames, channels=channels
            )
            notes = [family_note(view)]
            if scaled is not original:
                notes.append(describe_conversion(scaled))
            elif recordings.kind != "native":
                notes.append(_missing_units(view))
            for note in notes:
                if note is not None and on_remark is not None and note not in said:
                    on_remark(note)
                    said.add(note)
            view = _with_finite_values(view, report)
            if on_remark is not None and "not_finite" in view.local:
                count = view.local["not_finite"]
                broken = counted(count, "value")
                on_remark(f"{name}: not finite: {broken}; such points are not valid")
            view = represent(view, size=size)
            local = {"file": recordings.path.name, "kind": recordings.kind, **view.local}
            for key in IDENTITY:  # a copy is not the set that the recipe stands for
                local.pop(key, None)
            writer.add(replace(view, local=local))
    if on_progress is not None:
        on_progress(1.0)
    return out


def refuse_overwriting(path: Path, out: Path) -> None:
    """Stop before a part of the input is replaced by the output."""
    if not out.exists():
        return
    inside = path.is_dir() and path.resolve() in out.resolve().parents
    # A path that is not there is a pattern of several files.
    files = [path] if path.exists() else expand_pattern(path)
    if inside or any(os.path.samefile(file, out) for file in files):
        raise ValueError(f"{out} is the input or a part of it; choose another name for the output")


def _missing_units(trajectory: Trajectory) -> str | None:
    """A note on a velocity field without any unit."""
    spec = trajectory.spec
    if spec.velocity is None or trajectory.length_unit not in UNKNOWN:
        return None
    if any(spec.units[place] not in UNKNOWN for place in spec.velocity):
        return None
    return (
        "coordinates and velocity have no unit and are taken as dimensionless; if they are not, "
        "pass --unit and --length-unit"
    )


def _share_of(
    on_progress: Callable[[float], None] | None, done: int, total: int
) -> Callable[[float], None]:
    def report(share: float) -> None:
        if on_progress is not None:
            on_progress((done + share) / total)

    return report


def _with_finite_values(trajectory: Trajectory, report: Callable[[float], None]) -> Trajectory:
    """The trajectory in float32, finite at every known point; marked as filled only if it is."""
    broken, good, has_filled = _count_values(trajectory)
    local = dict(trajectory.local)
    valid = trajectory.valid
    if not good:
        raise ValueError(
            f"trajectory {trajectory.name!r} holds no finite value at a known point; look at it "
            "with pibert inspect and leave it out"
        )
    if broken:
        valid = _FiniteMask(trajectory)
        local["not_finite"] = broken
    return replace(
        trajectory,
        states=_Float32(trajectory, report),
        valid=valid,
        filled=trajectory.filled if has_filled else None,
        local=local,
    )


def _count_values(trajectory: Trajectory) -> tuple[int, int, bool]:
    """Values at known points that float32 cannot hold, those that it can, whether any is filled.

    This reads all fields once more than writing does; a mask has to be known before the fields are
    written.
    """
    t, c, ny, nx = trajectory.states.shape
    step = max(1, _BLOCK_VALUES // (c * ny * nx))
    wrong = right = 0
    has_filled = False
    for start in range(0, t, step):
        frames = slice(start, min(start + step, t))
        finite = trajectory.read(frames).float().isfinite()
        known = trajectory.known(frames)[:, None].to(finite.device)
        wrong += int((~finite & known).sum())
        right += int((finite & known).sum())
        if trajectory.filled is not None and not has_filled:
            has_filled = bool(read_mask(trajectory.filled, frames).any())
    return wrong, right, has_filled


class _Float32:
    """Fields in single precision; tells how far reading has come."""

    def __init__(self, base: Trajectory, report: Callable[[float], None]) -> None:
        self.base, self.report = base, report

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.base.states.shape)

    def read(self, frames: slice, channels: Sequence[int] | None = None) -> Tensor:
        fields = self.base.read(frames, channels).to(torch.float32)
        self.report(frames.indices(self.shape[0])[1] / self.shape[0])
        return fields


class _FiniteMask:
    """Valid where the trajectory says so and every channel is finite."""

    def __init__(self, base: Trajectory) -> None:
        self.base = base

    @property
    def shape(self) -> tuple[int, ...]:
        t, _, ny, nx = self.base.states.shape
        return t, ny, nx

    def read(self, frames: slice, channels: Sequence[int] | None = None) -> Tensor:
        assert channels is None
        valid = self.base.read(frames).float().isfinite().all(1)
        if self.base.body is not None:
            # Values inside a body mean nothing; the body alone marks them.
            valid |= ~replace(self.base, valid=None).known(frames)
        return valid if self.base.valid is None else valid & read_mask(self.base.valid, frames)
