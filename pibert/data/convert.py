"""Convert recordings of any kind to the format of a file name, block by block.

Values become float32. A known point with a value that is not finite becomes missing in that frame;
``local`` records their number. Known units are converted to metres and seconds
(``pibert.data.units``).
"""

import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor

from pibert.data.generate import IDENTITY
from pibert.data.readers.recordings import Recordings
from pibert.data.readers.shared.files import expand_pattern
from pibert.data.readers.shared.metadata import family_note
from pibert.data.resample import Region, crop, represent
from pibert.data.units import UNKNOWN, describe_conversion, in_consistent_units
from pibert.data.views import MappedFrames, frame_blocks, mask_shape
from pibert.data.wording import counted
from pibert.data.writers import NATIVE, check_output, write_trajectories
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
    on_note: Callable[[str], None] | None = None,
) -> Path:
    """Write a file in the format of its suffix (``WRITERS``); it appears whole or not at all.

    An older file is replaced, but never a file of the input. ``stride``, ``max_frames``,
    ``frames``, ``channels`` and ``size`` are as for ``resample.represent``; ``region`` is the
    region of the grid to keep, in the source's units. ``names`` are the trajectories to write
    (default: all). ``units="keep"`` keeps the units of the source. ``on_progress`` gets the share
    that is done, 0 to 1, ``on_note`` each note once.
    """
    out = Path(out)
    refuse_overwriting(recordings.path, out)
    names = recordings.names if names is None else tuple(names)
    check_output(out, replace(recordings, names=names))
    is_native = out.suffix.lower() in NATIVE
    add_note = on_note or (lambda text: None)
    reported: set[str] = set()

    def views() -> Iterator[Trajectory]:
        for done, name in enumerate(names):
            report = share_of(on_progress, done, len(names))
            original = recordings[name] if region is None else crop(recordings[name], region)
            scaled = original if units == "keep" else in_consistent_units(original)
            view = represent(
                scaled, stride=stride, max_frames=max_frames, frames=frames, channels=channels
            )
            # What the maker of a native file was told is not repeated.
            told = recordings.kind == "native" and view.spec.family is not None
            notes = [] if told and "family" in view.local else [family_note(view)]
            if scaled is not original:
                notes.append(describe_conversion(scaled))
            elif recordings.kind != "native":
                notes.append(_missing_units(view))
            for note in filter(None, notes):
                if note not in reported:
                    add_note(note)
                    reported.add(note)
            view = _with_finite_values(view, report)
            if "not_finite" in view.local:
                broken = counted(view.local["not_finite"], "value")
                add_note(f"{name}: not finite: {broken}; such points are not valid")
            view = represent(view, size=size)
            local = {"file": recordings.path.name, "kind": recordings.kind, **view.local}
            for key in IDENTITY:  # a copy is not the complete set of its recipe
                local.pop(key, None)
            if view.series and not is_native:
                add_note(f"{name}: not written to {out.suffix} files: {', '.join(view.series)}")
            yield replace(view, local=local)

    write_trajectories(out, views())
    if on_progress is not None:
        on_progress(1.0)
    return out


def refuse_overwriting(path: Path, out: Path) -> None:
    """Raise if the output would replace a file of the input."""
    if not out.exists():
        return
    inside = path.is_dir() and path.resolve() in out.resolve().parents
    # A path that does not exist is a pattern of several files.
    files = [path] if path.exists() else expand_pattern(path)
    if inside or any(os.path.samefile(file, out) for file in files):
        raise ValueError(f"{out} is the input or a file of it; choose another name for the output")


def _missing_units(trajectory: Trajectory) -> str | None:
    """Return a note on a velocity field without any unit."""
    spec = trajectory.spec
    units = (trajectory.length_unit, *(spec.units[i] for i in spec.velocity or ()))
    if spec.velocity is None or any(unit not in UNKNOWN for unit in units):
        return None
    return (
        "coordinates and velocity have no unit and are treated as dimensionless; if they are not, "
        "pass --unit and --length-unit"
    )


def share_of(
    on_progress: Callable[[float], None] | None, done: int, total: int
) -> Callable[[float], None]:
    """Return a function that reports the progress of one of several items as that of all."""

    def report(share: float) -> None:
        if on_progress is not None:
            on_progress((done + share) / total)

    return report


def _with_finite_values(trajectory: Trajectory, report: Callable[[float], None]) -> Trajectory:
    """Return the trajectory in float32, finite at every known point."""
    broken, good, has_filled = _count_values(trajectory)
    local = dict(trajectory.local)
    valid = trajectory.valid
    if not good:
        raise ValueError(
            f"trajectory {trajectory.name!r} has no finite value at a known point; check it with "
            "pibert inspect, or leave it out"
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
    """Count values at known points that are not finite and that are; is any point filled?

    This reads all fields once more: masks are written before the fields.
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
    """Read fields in single precision and report the progress."""
    fields = trajectory.read(frames, channels).to(torch.float32)
    report(frames.stop / trajectory.num_frames)
    return fields


def _read_finite(trajectory: Trajectory, frames: slice) -> Tensor:
    """Read the valid mask: valid in the trajectory, and finite in every channel."""
    valid = trajectory.read(frames).float().isfinite().all(1)
    if trajectory.body is not None:
        # Values inside a body are undefined; the body mask alone marks them.
        valid |= ~replace(trajectory, valid=None).known(frames)
    return valid if trajectory.valid is None else valid & read_mask(trajectory.valid, frames)
