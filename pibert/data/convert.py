"""Recordings of any kind into the native format, block by block.

Values become float32. A value that is not finite at a point that counts as known makes the point
missing in that frame; how many there were is recorded in the local representation. Units that are
known are brought to metres and seconds (``pibert.data.units``).
"""

import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from pibert.data.format import Writer
from pibert.data.generate import IDENTITY
from pibert.data.readers.recordings import Recordings
from pibert.data.readers.shared.files import expand_pattern
from pibert.data.readers.shared.metadata import family_note
from pibert.data.resample import Region, crop, represent
from pibert.data.units import UNKNOWN, describe_conversion, in_consistent_units
from pibert.data.views import MappedFrames, frame_blocks, mask_shape
from pibert.data.wording import counted
from pibert.fields import Trajectory, read_mask


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

    An older file is replaced, but never a part of the input. ``stride``, ``max_frames``,
    ``frames``, ``channels`` and ``size`` are as for ``resample.represent``; ``region`` is the part
    of the grid to keep, in the source's units. ``names`` are the trajectories to write (default:
    all). ``units="keep"`` leaves lengths, times and velocities in the units of the source.
    ``on_progress`` gets the share that is done, 0 to 1, ``on_remark`` notes on units and family,
    once for all that are alike.
    """
    out = Path(out)
    refuse_overwriting(recordings.path, out)
    names = recordings.names if names is None else tuple(names)
    remark = on_remark or (lambda text: None)
    reported: set[str | None] = {None}
    with Writer(out) as writer:
        for done, name in enumerate(names):
            report = share_of(on_progress, done, len(names))
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
                if note not in reported:
                    remark(note or "")
                    reported.add(note)
            view = _with_finite_values(view, report)
            if "not_finite" in view.local:
                broken = counted(view.local["not_finite"], "value")
                remark(f"{name}: not finite: {broken}; such points are not valid")
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
    units = (trajectory.length_unit, *(spec.units[place] for place in spec.velocity or ()))
    if spec.velocity is None or any(unit not in UNKNOWN for unit in units):
        return None
    return (
        "coordinates and velocity have no unit and are taken as dimensionless; if they are not, "
        "pass --unit and --length-unit"
    )


def share_of(
    on_progress: Callable[[float], None] | None, done: int, total: int
) -> Callable[[float], None]:
    """Reports the progress of one of several items as that of all of them."""

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
        valid = MappedFrames(mask_shape(trajectory), partial(_read_finite, trajectory))
        local["not_finite"] = broken
    read = partial(_read_float32, trajectory, report)
    return replace(
        trajectory,
        states=MappedFrames(tuple(trajectory.states.shape), read),
        valid=valid,
        filled=trajectory.filled if has_filled else None,
        local=local,
    )


def _count_values(trajectory: Trajectory) -> tuple[int, int, bool]:
    """Values at known points that float32 cannot hold, those that it can, whether any is filled.

    This reads all fields once more than writing does; a mask has to be known before the fields are
    written.
    """
    wrong = right = 0
    has_filled = False
    for frames in frame_blocks(trajectory):
        finite = trajectory.read(frames).float().isfinite()
        known = trajectory.known(frames)[:, None].to(finite.device)
        wrong += int((~finite & known).sum())
        right += int((finite & known).sum())
        if trajectory.filled is not None and not has_filled:
            has_filled = bool(read_mask(trajectory.filled, frames).any())
    return wrong, right, has_filled


def _read_float32(
    trajectory: Trajectory,
    report: Callable[[float], None],
    frames: slice,
    channels: Sequence[int] | None,
) -> Tensor:
    """Fields in single precision; reports how far reading has come."""
    fields = trajectory.read(frames, channels).to(torch.float32)
    report(frames.stop / trajectory.num_frames)
    return fields


def _read_finite(trajectory: Trajectory, frames: slice) -> Tensor:
    """Valid where the trajectory is and every channel is finite."""
    valid = trajectory.read(frames).float().isfinite().all(1)
    if trajectory.body is not None:
        # Values inside a body mean nothing; the body alone marks them.
        valid |= ~replace(trajectory, valid=None).known(frames)
    return valid if trajectory.valid is None else valid & read_mask(trajectory.valid, frames)
