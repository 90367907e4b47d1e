"""Recordings with gaps into a file without them, block by block (``pibert.data.gaps``).

The suffix names the format: a native file holds any number of recordings, files for other programs
one. The fields are read twice: how many vectors are missing or flagged is written before them.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from pibert.data.convert import refuse_overwriting
from pibert.data.format import Writer
from pibert.data.gaps import (
    Changes,
    FilledFields,
    FilledPoints,
    FillSettings,
    StillKnown,
    fitting,
    fluid_points,
    judge,
    known_after,
)
from pibert.data.generate import IDENTITY
from pibert.data.sources.recordings import Recordings
from pibert.data.writers import WRITERS, blocks_of, describe
from pibert.fields import FieldSpec, Trajectory

NATIVE = ".h5"
_BLOCK_VALUES = 1 << 22


@dataclass(frozen=True, kw_only=True)
class Example:
    """One frame before and after."""

    name: str
    frame: int
    spec: FieldSpec
    before: Float[Tensor, "c y x"]
    after: Float[Tensor, "c y x"]
    missing: Bool[Tensor, "y x"]
    flagged: Bool[Tensor, "y x"]
    body: Bool[Tensor, "y x"]


@dataclass(frozen=True, kw_only=True)
class FillReport:
    """What was done to all recordings together."""

    vectors: int
    """Points outside bodies, over all frames."""
    missing: int
    flagged: int
    filled: int
    change: dict[str, float]
    """Root mean square change of the flagged vectors, by channel."""
    largest: dict[str, float]
    example: Example
    """The frame with most vectors filled."""


def fill_recordings(
    recordings: Recordings,
    out: Path | str,
    settings: FillSettings,
    *,
    on_progress: Callable[[float], None] | None = None,
    on_remark: Callable[[str], None] | None = None,
) -> FillReport:
    """Write a file of the recordings without gaps; it appears whole or not at all.

    Args:
        recordings: Of the channels and the grid of the settings. Known units are brought to metres
            and seconds where the settings' are.
        out: The file to write, with a suffix of ``WRITERS``; an older one is replaced, but never a
            part of the input.
        settings: What to fill, and with what.
        on_progress: Called with the share that is done, 0 to 1.
        on_remark: Called with what may be wrong, in words.
    """
    out = Path(out)
    check_output(out, recordings)
    refuse_overwriting(recordings.path, out)
    remark = on_remark or (lambda text: None)
    counts: dict[str, _Counts] = {}
    for name in recordings.names:
        trajectory = fitting(recordings[name], settings, remark)
        counts[name] = _count(trajectory, settings)
    if not any(one.filled for one in counts.values()):
        raise ValueError(_nothing_to_fill(recordings.path, list(counts.values()), settings))
    worst = max(counts, key=lambda name: counts[name].most)
    changes = Changes(len(settings.spec.channels))
    example: Example | None = None

    def made() -> Iterator[Trajectory]:
        nonlocal example
        for done, name in enumerate(recordings.names):
            trajectory = fitting(recordings[name], settings, lambda text: None)
            filled = FilledFields(trajectory, settings, changes)
            if on_progress is not None:
                filled.report = _share_of(on_progress, done, len(recordings))
            yield _described(trajectory, filled, counts[name], recordings, settings)
            if name == worst:
                example = _example(trajectory, counts[name].frame, settings)

    _write(out, made())
    assert example is not None
    channels = settings.spec.channels
    return FillReport(
        vectors=sum(one.fluid for one in counts.values()),
        missing=sum(one.missing for one in counts.values()),
        flagged=sum(one.flagged for one in counts.values()),
        filled=sum(one.filled for one in counts.values()),
        change=dict(zip(channels, changes.rms, strict=True)),
        largest=dict(zip(channels, changes.largest.tolist(), strict=True)),
        example=example,
    )


def check_output(out: Path, recordings: Recordings) -> None:
    """Refuse a name whose format is not written, or cannot hold all recordings."""
    suffix = out.suffix.lower()
    if suffix not in WRITERS:
        raise ValueError(
            f"{out}: expected a name that ends in {', '.join(WRITERS)}, found "
            f"{suffix or out.name!r}; choose one of these formats"
        )
    if suffix != NATIVE and len(recordings) > 1:
        raise ValueError(
            f"{out}: a {suffix} file holds one recording, found {len(recordings)} in "
            f"{recordings.path}; write a {NATIVE} file, or fill them one by one"
        )


def _write(out: Path, trajectories: Iterator[Trajectory]) -> None:
    if out.suffix.lower() == NATIVE:
        with Writer(out) as native:
            for trajectory in trajectories:
                native.add(trajectory)
        return
    for trajectory in trajectories:  # the only one
        kind = WRITERS[out.suffix.lower()]
        with kind(out, describe(trajectory), overwrite=True) as writer:
            for block in blocks_of(trajectory):
                writer.append(block)


@dataclass
class _Counts:
    """What the first pass over a trajectory finds."""

    fluid: int = 0
    missing: int = 0
    flagged: int = 0
    filled: int = 0
    most: int = 0
    frame: int = 0
    """The frame with most vectors to fill, and how many those are."""
    left: int = 0
    """Vectors outside the recording's own body that stay missing."""


def _count(trajectory: Trajectory, settings: FillSettings) -> _Counts:
    found = _Counts()
    t, c, ny, nx = trajectory.states.shape
    step = max(1, _BLOCK_VALUES // (c * ny * nx))
    for start in range(0, t, step):
        frames = slice(start, min(start + step, t))
        fields = trajectory.read(frames).to("cpu", torch.float32)
        verdict = judge(trajectory, frames, fields, settings)
        found.fluid += int(fluid_points(trajectory, frames, settings).sum())
        found.missing += int(verdict.missing.sum())
        found.flagged += int(verdict.flagged.sum())
        found.filled += int(verdict.replaced.sum())
        per_frame = verdict.replaced.sum((1, 2))
        if int(per_frame.max()) > found.most:
            found.most, found.frame = int(per_frame.max()), start + int(per_frame.argmax())
        fluid = replace(trajectory, valid=None).known(frames).cpu()
        found.left += int((fluid & ~known_after(trajectory, frames, fields, verdict)).sum())
    return found


def _nothing_to_fill(path: Path, counts: list[_Counts], settings: FillSettings) -> str:
    hopeless = sum(one.missing for one in counts)
    if hopeless:
        return f"{path}: nothing to fill from: the frames with missing vectors hold no other"
    where = f"{path}: nothing to fill: no vector is missing"
    if settings.noise is None:
        return f"{where}, and outliers were not looked for"
    return f"{where} or flagged; a noise level below {settings.noise:.3g} flags more"


def _described(
    trajectory: Trajectory,
    filled: FilledFields,
    counts: _Counts,
    recordings: Recordings,
    settings: FillSettings,
) -> Trajectory:
    """The trajectory to write, with what was done to it."""
    local: dict[str, Any] = {
        "file": recordings.path.name,
        "kind": recordings.kind,
        **{key: value for key, value in trajectory.local.items() if key not in IDENTITY},
    }
    local["filling"] = {
        "missing": counts.missing,
        "flagged": counts.flagged,
        "filled": counts.filled,
        "noise": settings.noise,
        **(settings.provenance or {}),
    }
    valid = StillKnown(trajectory, settings) if counts.left else None
    marked = FilledPoints(trajectory, settings) if counts.filled else trajectory.filled
    return replace(trajectory, states=filled, valid=valid, filled=marked, local=local)


def _example(trajectory: Trajectory, frame: int, settings: FillSettings) -> Example:
    frames = slice(frame, frame + 1)
    before = trajectory.read(frames).to("cpu", torch.float32)
    verdict = judge(trajectory, frames, before, settings)
    return Example(
        name=trajectory.name,
        frame=frame,
        spec=trajectory.spec,
        before=before[0],
        after=FilledFields(trajectory, settings).read(frames)[0],
        missing=verdict.missing[0],
        flagged=verdict.flagged[0],
        body=~fluid_points(trajectory, frames, settings)[0],
    )


def _share_of(
    on_progress: Callable[[float], None], done: int, total: int
) -> Callable[[float], None]:
    return lambda share: on_progress((done + share) / total)
