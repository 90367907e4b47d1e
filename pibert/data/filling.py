"""Recordings with gaps into a file without them, block by block.

A vector is missing where the recording marks it as not valid or a value is not finite, and flagged
where it does not fit its neighbours (``normalize.flag_outliers``). Both are replaced by what a
given function computes from the others, such as a model's reconstruction, and marked as filled;
every other value keeps its bits (of float32). Points inside a body are never filled, nor are frames
without a sound vector. Vectors that were filled before keep their mark and count as sound.

The suffix names the format: a native file holds any number of recordings, files for other programs
one. The fields are read twice: how many vectors are missing or flagged is written before them.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from pibert.data.convert import refuse_overwriting, share_of
from pibert.data.format import Writer
from pibert.data.generate import IDENTITY
from pibert.data.normalize import flag_outliers
from pibert.data.readers.recordings import Recordings
from pibert.data.views import MappedFrames, frame_blocks, mask_shape
from pibert.data.writers import WRITERS, blocks_of, describe
from pibert.fields import FieldSpec, Trajectory, read_mask

NATIVE = ".h5"
Repair = Callable[[Tensor, Tensor, Mapping[str, float]], Tensor]
"""(fields (b, h, c, y, x), known (b, h, y, x), parameters) -> fields without gaps."""

_BLOCK = 256
"""Frames of masks read at a time."""
THRESHOLD = 4.0
"""Of the median test: twice the usual one, so that resolved shear layers stay below it."""


def count_filled(trajectory: Trajectory, frames: slice = slice(None)) -> tuple[int, int]:
    """Filled and known points of some frames of a recording that marks filled ones; else zeros."""
    measured = known = 0
    chosen = range(trajectory.num_frames)[frames] if trajectory.filled is not None else range(0)
    for start in range(chosen.start, chosen.stop, _BLOCK):
        block = slice(start, min(start + _BLOCK, chosen.stop))
        known += int(trajectory.known(block).sum())
        measured += int(trajectory.measured(block).sum())
    return known - measured, known


@dataclass(frozen=True, kw_only=True)
class FillSettings:
    """What to fill, and with what."""

    repair: Repair
    spec: FieldSpec
    """Channels, units and grid that ``repair`` takes; points of the grid's body are not filled."""
    history: int = 1
    """Frames that ``repair`` takes, the newest last."""
    noise: float | None = None
    """Accepted fluctuation of the velocity in the outlier test; None: no test."""
    provenance: Mapping[str, Any] | None = None
    """Written beside the counts: the model, for instance."""
    fit: Callable[[Trajectory, Callable[[str], None]], Trajectory] = lambda recording, _: recording
    """Brings a recording into the units of ``spec``, with notes, or raises."""

    def __post_init__(self) -> None:
        if self.noise is not None and not (math.isfinite(self.noise) and self.noise > 0):
            raise ValueError(f"expected a positive noise level, found {self.noise}")
        if self.noise is not None and self.spec.velocity is None:
            raise ValueError(
                f"outliers are looked for among the vectors (u, v), found channels "
                f"{list(self.spec.channels)}; do not ask for it"
            )


class Gaps(NamedTuple):
    """Masks of some frames, each (t, y, x)."""

    missing: Bool[Tensor, "t y x"]
    flagged: Bool[Tensor, "t y x"]
    sound: Bool[Tensor, "t y x"]
    """Known, finite, and fit their neighbours."""
    replaced: Bool[Tensor, "t y x"]
    """Missing or flagged, in a frame of which something is sound."""


def find_gaps(
    trajectory: Trajectory, frames: slice, fields: Float[Tensor, "t c y x"], settings: FillSettings
) -> Gaps:
    """Which vectors of some frames are missing or do not fit their neighbours."""
    fluid = fluid_points(trajectory, frames, settings)
    usable = fluid & trajectory.known(frames).cpu() & fields.isfinite().all(1)
    flagged = torch.zeros_like(usable)
    if settings.noise is not None and settings.spec.velocity is not None:
        flagged = flag_outliers(
            fields[:, list(settings.spec.velocity)],
            noise=settings.noise,
            known=usable,
            threshold=THRESHOLD,
        )
    sound, missing = usable & ~flagged, fluid & ~usable
    can_fill = sound.any(2).any(1)[:, None, None]
    return Gaps(missing, flagged, sound, (missing | flagged) & can_fill)


def fluid_points(trajectory: Trajectory, frames: slice, settings: FillSettings) -> Tensor:
    fluid = replace(trajectory, valid=None).known(frames).cpu()
    solid = settings.spec.grid.body
    return fluid if solid is None else fluid & ~solid


def known_after(trajectory: Trajectory, frames: slice, fields: Tensor, gaps: Gaps) -> Tensor:
    before = trajectory.known(frames).cpu() & fields.isfinite().all(1)
    return before | gaps.replaced


class Changes:
    """How far flagged vectors are moved."""

    def __init__(self, channels: int) -> None:
        self.squares = torch.zeros(channels, dtype=torch.float64)
        self.largest = torch.zeros(channels, dtype=torch.float64)
        self.count = 0

    def add(self, before: Tensor, after: Tensor, flagged: Tensor) -> None:
        moved = (after - before).movedim(1, 0)[:, flagged].double()
        if moved.shape[1]:
            self.squares += moved.square().sum(1)
            self.largest = torch.maximum(self.largest, moved.abs().amax(1))
            self.count += moved.shape[1]

    @property
    def rms(self) -> list[float]:
        return (self.squares / max(1, self.count)).sqrt().tolist()


def _fill(
    base: Trajectory,
    settings: FillSettings,
    changes: Changes | None,
    report: Callable[[float], None] | None,
    frames: slice,
    channels: Sequence[int] | None,
) -> Tensor:
    """Fields of some frames with their gaps filled."""
    wanted, history = range(frames.start, frames.stop, frames.step), settings.history
    # A window ends at its frame; the first frames have no such window and share the first one.
    first = max(0, min(wanted[0] - history + 1, base.num_frames - history))
    around = slice(first, max(wanted[-1] + 1, first + history))
    fields = base.read(around).to("cpu", torch.float32)
    gaps = find_gaps(base, around, fields, settings)
    places = torch.tensor([frame - first for frame in wanted])
    before, replaced = fields[places], gaps.replaced[places]
    after = before.clone()
    todo = replaced.any(2).any(1).nonzero().flatten()
    if len(todo):
        start = (places[todo] - history + 1).clamp(min=0)
        windows = start[:, None] + torch.arange(history)
        names = settings.spec.parameter_names
        known = {name: value for name, value in base.parameters.items() if name in names}
        answer = settings.repair(fields[windows], gaps.sound[windows], known)
        newest = answer.to("cpu", torch.float32)[torch.arange(len(todo)), places[todo] - start]
        after[todo] = torch.where(replaced[todo][:, None], newest, before[todo])
    if changes is not None:
        changes.add(before, after, gaps.flagged[places] & replaced)
    if report is not None:
        report((wanted[-1] + 1) / base.num_frames)
    return after if channels is None else after[:, list(channels)]


def _still_known(base: Trajectory, settings: FillSettings, frames: slice) -> Tensor:
    """The valid mask where some vectors could not be filled."""
    fields = base.read(frames).to("cpu", torch.float32)
    gaps = find_gaps(base, frames, fields, settings)
    inside = ~replace(base, valid=None).known(frames).cpu()
    return known_after(base, frames, fields, gaps) | inside


def _filled_points(base: Trajectory, settings: FillSettings, frames: slice) -> Tensor:
    """The filled mask: vectors that are replaced here, and those that were filled before."""
    fields = base.read(frames).to("cpu", torch.float32)
    replaced = find_gaps(base, frames, fields, settings).replaced
    return replaced if base.filled is None else replaced | read_mask(base.filled, frames).cpu()


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

    The recordings have the channels and the grid of the settings. The suffix of ``out`` is one of
    ``WRITERS``; an older file is replaced, but never a part of the input. ``on_progress`` gets the
    share that is done, 0 to 1, ``on_remark`` what may be wrong.
    """
    out = Path(out)
    check_output(out, recordings)
    refuse_overwriting(recordings.path, out)
    remark = on_remark or (lambda text: None)
    counts: dict[str, _Counts] = {}
    for name in recordings.names:
        trajectory = settings.fit(recordings[name], remark)
        counts[name] = _count(trajectory, settings)
    if not any(one.filled for one in counts.values()):
        raise ValueError(_nothing_to_fill(recordings.path, list(counts.values()), settings))
    worst = max(counts, key=lambda name: counts[name].most)
    changes = Changes(len(settings.spec.channels))
    example: Example | None = None

    def made() -> Iterator[Trajectory]:
        nonlocal example
        for done, name in enumerate(recordings.names):
            trajectory = settings.fit(recordings[name], lambda text: None)
            report = share_of(on_progress, done, len(recordings))
            compute = partial(_fill, trajectory, settings, changes, report)
            yield _described(trajectory, compute, counts[name], recordings, settings)
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
    for frames in frame_blocks(trajectory):
        fields = trajectory.read(frames).to("cpu", torch.float32)
        verdict = find_gaps(trajectory, frames, fields, settings)
        found.fluid += int(fluid_points(trajectory, frames, settings).sum())
        found.missing += int(verdict.missing.sum())
        found.flagged += int(verdict.flagged.sum())
        found.filled += int(verdict.replaced.sum())
        per_frame = verdict.replaced.sum((1, 2))
        if int(per_frame.max()) > found.most:
            found.most = int(per_frame.max())
            found.frame = frames.start + int(per_frame.argmax())
        fluid = replace(trajectory, valid=None).known(frames).cpu()
        found.left += int((fluid & ~known_after(trajectory, frames, fields, verdict)).sum())
    return found


def _nothing_to_fill(path: Path, counts: list[_Counts], settings: FillSettings) -> str:
    if any(one.missing for one in counts):
        return f"{path}: nothing to fill from: the frames with missing vectors hold no other"
    where = f"{path}: nothing to fill: no vector is missing"
    if settings.noise is None:
        return f"{where}, and outliers were not looked for"
    return f"{where} or flagged; a noise level below {settings.noise:.3g} flags more"


def _described(
    trajectory: Trajectory,
    compute: Callable[..., Tensor],
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
    shape, valid, filled = mask_shape(trajectory), None, trajectory.filled
    if counts.left:
        valid = MappedFrames(shape, partial(_still_known, trajectory, settings))
    if counts.filled:
        filled = MappedFrames(shape, partial(_filled_points, trajectory, settings))
    states = MappedFrames(tuple(trajectory.states.shape), compute)
    return replace(trajectory, states=states, valid=valid, filled=filled, local=local)


def _example(trajectory: Trajectory, frame: int, settings: FillSettings) -> Example:
    frames = slice(frame, frame + 1)
    before = trajectory.read(frames).to("cpu", torch.float32)
    verdict = find_gaps(trajectory, frames, before, settings)
    return Example(
        name=trajectory.name,
        frame=frame,
        spec=trajectory.spec,
        before=before[0],
        after=_fill(trajectory, settings, None, None, slice(frame, frame + 1, 1), None)[0],
        missing=verdict.missing[0],
        flagged=verdict.flagged[0],
        body=~fluid_points(trajectory, frames, settings)[0],
    )
