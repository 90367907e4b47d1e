"""Fill missing vectors and replace outliers of recordings, block by block.

A vector is missing if the recording marks it as not valid or a value is not finite, and flagged if
it does not fit its neighbours (``outliers.flag_outliers``). A given function, such as a model's
reconstruction, computes both from the others; the output marks them as filled. Every other value
keeps its bits (of float32). Points inside a body are never filled, nor are frames without a sound
vector. Points that no frame of a recording knows are masked: they are filled only on request.
Vectors that were filled before keep their mark and count as sound.

The suffix names the format: a native file holds any number of recordings, files for other programs
one. The fields are read twice, because the counts are written before them.

Without a model, ``thin_plate`` computes the missing vectors of each frame and component as the
surface of least bending energy through the others (thin-plate spline on the grid). Uncertainties
are filled alike, within the range of their frame.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from pibert.data.convert import refuse_overwriting, share_of
from pibert.data.generate import IDENTITY
from pibert.data.outliers import flag_outliers, usual_noise
from pibert.data.readers.recordings import Recordings
from pibert.data.units import UNCERTAINTY
from pibert.data.views import MappedFrames, frame_blocks, mask_shape
from pibert.data.writers import check_output, write_trajectories
from pibert.fields import FieldSpec, Trajectory, read_mask
from pibert.models.reconstruction import fill_smoothly

Repair = Callable[[Tensor, Tensor, Mapping[str, float]], Tensor]
"""(fields (b, h, c, y, x), known (b, h, y, x), parameters) -> fields without gaps."""

_LEAST_FRAMES = 5
"""Shorter recordings do not tell masked points from those that are missing by chance."""
_PLATE_STEPS = 200
"""Conjugate gradient steps of a thin plate, enough for gaps of some twenty points."""
_PLATE_VALUES = 1 << 15
"""Values that are filled at once."""


def count_filled(trajectory: Trajectory, frames: slice = slice(None)) -> tuple[int, int]:
    """Count filled and known points of frames; zeros if the recording marks no filled points."""
    measured = known = 0
    chosen = range(trajectory.num_frames)[frames] if trajectory.filled is not None else range(0)
    for block in frame_blocks(trajectory, chosen.start, chosen.stop):
        known += int(trajectory.known(block).sum())
        measured += int(trajectory.measured(block).sum())
    return known - measured, known


@dataclass(frozen=True, kw_only=True)
class FillSettings:
    """The vectors to fill and the function that computes them."""

    repair: Repair
    spec: FieldSpec
    """Channels, units and grid of ``repair``; points of the grid's body are not filled."""
    history: int = 1
    """Frames that ``repair`` takes, the newest last."""
    noise: float | Literal["usual"] | None = None
    """Accepted fluctuation of the velocity in the outlier test; usual: ``outliers.usual_noise`` of
    each recording; None: no test."""
    fill_masked: bool = False
    """Also fill points that no frame knows."""
    provenance: Mapping[str, Any] | None = None
    """Written beside the counts: the model, for instance."""
    fit: Callable[[Trajectory, Callable[[str], None]], Trajectory] = lambda recording, _: recording
    """Converts a recording to the units of ``spec``, with notes, or raises."""

    def __post_init__(self) -> None:
        if isinstance(self.noise, float | int) and not 0 < self.noise < math.inf:
            raise ValueError(f"expected a positive noise level, found {self.noise}")
        if self.noise is not None and self.spec.velocity is None:
            raise ValueError(
                f"the outlier test needs a velocity, found {list(self.spec.channels)}; turn "
                "it off (--no-flag-outliers)"
            )


def thin_plate(
    recordings: Recordings,
    *,
    flag_outliers: bool = True,
    noise: float | None = None,
    fill_masked: bool = False,
) -> FillSettings:
    """Settings to fill recordings without a model.

    ``noise`` is the accepted fluctuation of the velocity; None: ``outliers.usual_noise``.
    """
    first = recordings[0]
    spec = replace(first.spec, grid=replace(first.spec.grid, body=None))
    spacing = (spec.grid.dy, spec.grid.dx)
    uncertainties = [i for i, name in enumerate(spec.channels) if name in UNCERTAINTY]
    if min(spec.grid.shape) < 3:
        raise ValueError(f"a thin plate needs 3 x 3 points or more, found {spec.grid.shape}")

    def repair(fields: Tensor, known: Tensor, parameters: Mapping[str, float]) -> Tensor:
        frames, marks = fields.flatten(0, 1).double(), known.flatten(0, 1)
        # Fields of order one: their squares must not underflow.
        seen = torch.where(marks[:, None], frames, 0.0)
        size = seen.abs().amax((-2, -1), keepdim=True).clamp(min=torch.finfo(torch.float64).tiny)
        together = max(1, _PLATE_VALUES // seen[0].numel())  # they stay in the cache
        parts = zip((seen / size).split(together), marks.split(together), strict=True)
        smooth = [fill_smoothly(*part, spacing, steps=_PLATE_STEPS) for part in parts]
        filled = torch.cat(smooth) * size
        for channel in uncertainties:  # a smooth surface may dip below zero
            least, most = (
                torch.where(marks, frames[:, channel], sign * math.inf) for sign in (1, -1)
            )
            lowest, highest = least.amin((-2, -1), True), most.amax((-2, -1), True)
            filled[:, channel] = filled[:, channel].clamp(lowest, highest)
        return filled.view(fields.shape)

    def fit(recording: Trajectory, note: Callable[[str], None]) -> Trajectory:
        own = recording.spec
        if own.channels != spec.channels or (own.grid.dy, own.grid.dx) != spacing:
            raise ValueError(
                f"trajectory {recording.name!r}: expected the channels {list(spec.channels)} and "
                f"the spacing of {first.name!r}, found {list(own.channels)} and "
                f"({own.grid.dx:g}, {own.grid.dy:g}); fill the recordings one by one"
            )
        return recording

    if spec.velocity is None and noise is None:
        flag_outliers = False
    return FillSettings(
        repair=repair,
        spec=spec,
        noise=(noise or "usual") if flag_outliers else None,
        fill_masked=fill_masked,
        provenance={"method": "thin plate"},
        fit=fit,
    )


class Gaps(NamedTuple):
    """Fields of frames and masks (t, y, x) of their vectors."""

    fields: Float[Tensor, "t c y x"]
    fluid: Bool[Tensor, "t y x"]
    """Outside the bodies of recording and model."""
    masked: Bool[Tensor, "t y x"]
    """Known in no frame, and left so."""
    missing: Bool[Tensor, "t y x"]
    flagged: Bool[Tensor, "t y x"]
    sound: Bool[Tensor, "t y x"]
    """Known, finite, and in agreement with their neighbours."""
    replaced: Bool[Tensor, "t y x"]
    """Missing or flagged, in a frame with a sound vector."""
    lost: Bool[Tensor, "t y x"]
    """Outside the recording's body and still missing afterwards."""


class Filler:
    """One recording with its gaps filled; adds up how far flagged vectors move."""

    def __init__(
        self, base: Trajectory, settings: FillSettings, report: Callable[[float], None]
    ) -> None:
        self.base, self.settings, self.report = base, settings, report
        channels = len(settings.spec.channels)
        self.squares, self.largest = torch.zeros(2, channels, dtype=torch.float64)
        self.moved = 0
        noise, velocity = settings.noise, settings.spec.velocity
        self.noise = usual_noise(base, velocity or ()) if noise == "usual" else noise
        self.masked = torch.zeros(base.spec.grid.shape, dtype=torch.bool)
        if not settings.fill_masked and base.num_frames >= _LEAST_FRAMES:
            self.masked = ~torch.stack([_known(base, f).any(0) for f in frame_blocks(base)]).any(0)

    def find_gaps(self, frames: slice) -> Gaps:
        """Find the vectors of frames that are missing or do not fit their neighbours."""
        base, spec, noise = self.base, self.settings.spec, self.noise
        fields = base.read(frames).to("cpu", torch.float32)
        outside = replace(base, valid=None).known(frames).cpu()
        fluid = outside if spec.grid.body is None else outside & ~spec.grid.body
        known = _known(base, frames, fields)
        usable = fluid & known
        flagged = torch.zeros_like(usable)
        if noise is not None and spec.velocity is not None:
            vectors = fields[:, list(spec.velocity)]
            flagged = flag_outliers(vectors, noise=noise, known=usable)
        masked = fluid & self.masked
        sound, missing = usable & ~flagged, fluid & ~usable & ~masked
        replaced = (missing | flagged) & sound.any(2).any(1)[:, None, None]
        lost = outside & ~(known | replaced)
        return Gaps(fields, fluid, masked, missing, flagged, sound, replaced, lost)

    def fill(self, frames: slice, channels: Sequence[int] | None = None) -> Tensor:
        """Return fields of frames with their gaps filled."""
        base, history = self.base, self.settings.history
        wanted = range(frames.start, frames.stop, frames.step or 1)
        # A window ends at its frame; the first frames have no such window and share the first one.
        first = max(0, min(wanted[0] - history + 1, base.num_frames - history))
        gaps = self.find_gaps(slice(first, max(wanted[-1] + 1, first + history)))
        indices = torch.tensor([frame - first for frame in wanted])
        before, replaced = gaps.fields[indices], gaps.replaced[indices]
        after = before.clone()
        todo = replaced.any(2).any(1).nonzero().flatten()
        if len(todo):
            start = (indices[todo] - history + 1).clamp(min=0)
            windows = start[:, None] + torch.arange(history)
            names = self.settings.spec.parameter_names
            known = {name: value for name, value in base.parameters.items() if name in names}
            answer = self.settings.repair(gaps.fields[windows], gaps.sound[windows], known)
            newest = answer.to("cpu", torch.float32)[torch.arange(len(todo)), indices[todo] - start]
            after[todo] = torch.where(replaced[todo][:, None], newest, before[todo])
        change = (after - before).movedim(1, 0)[:, gaps.flagged[indices] & replaced].double()
        if change.shape[1]:
            self.squares += change.square().sum(1)
            self.largest = torch.maximum(self.largest, change.abs().amax(1))
            self.moved += change.shape[1]
        self.report((wanted[-1] + 1) / base.num_frames)
        return after if channels is None else after[:, list(channels)]

    def valid(self, frames: slice) -> Tensor:
        """The valid mask of a recording with vectors that could not be filled."""
        return ~self.find_gaps(frames).lost

    def filled(self, frames: slice) -> Tensor:
        """The filled mask: vectors that are replaced here, and those that were filled before."""
        replaced, before = self.find_gaps(frames).replaced, self.base.filled
        return replaced if before is None else replaced | read_mask(before, frames).cpu()


def _known(base: Trajectory, frames: slice, fields: Tensor | None = None) -> Tensor:
    """Where vectors of frames are known and finite."""
    fields = base.read(frames) if fields is None else fields
    return base.known(frames).cpu() & fields.isfinite().all(1).cpu()


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
    length_unit: str | None = None


@dataclass(frozen=True, kw_only=True)
class FillReport:
    """Counts over all recordings."""

    vectors: int
    """Points outside bodies, over all frames."""
    masked: int
    """Known in no frame of their recording; they stay empty."""
    missing: int
    flagged: int
    filled: int
    change: dict[str, float]
    """Root mean square change of the flagged vectors, by channel."""
    largest: dict[str, float]
    noise: float | None
    """Accepted fluctuation in the outlier test, the largest of the recordings; None: no test."""
    example: Example
    """The frame with most filled vectors."""


def fill_recordings(
    recordings: Recordings,
    out: Path | str,
    settings: FillSettings,
    *,
    on_progress: Callable[[float], None] | None = None,
    on_note: Callable[[str], None] | None = None,
) -> FillReport:
    """Write a file of the recordings without gaps; it appears whole or not at all.

    The recordings have the channels and the grid of the settings. The suffix of ``out`` is one of
    ``WRITERS``; an older file is replaced, but never a file of the input. ``on_progress`` gets the
    share that is done, 0 to 1.
    """
    out = Path(out)
    check_output(out, recordings)
    refuse_overwriting(recordings.path, out)
    fillers: list[Filler] = []
    for number, name in enumerate(recordings.names):
        base = settings.fit(recordings[name], on_note or (lambda text: None))
        fillers.append(Filler(base, settings, share_of(on_progress, number, len(recordings))))
    counts = [_count(filler) for filler in fillers]
    noise = max((filler.noise for filler in fillers if filler.noise is not None), default=None)
    total = sum(counts, Counter())
    if not total["replaced"]:
        raise ValueError(_nothing_to_fill(recordings.path, total, noise))

    write_trajectories(out, map(partial(_describe, recordings), fillers, counts))
    squares = torch.stack([filler.squares for filler in fillers]).sum(0)
    moved = max(1, sum(filler.moved for filler in fillers))
    largest = torch.stack([filler.largest for filler in fillers]).amax(0)
    channels = settings.spec.channels
    worst = max(range(len(counts)), key=lambda i: counts[i]["most"])
    return FillReport(
        vectors=total["fluid"],
        masked=total["masked"],
        missing=total["missing"],
        flagged=total["flagged"],
        filled=total["replaced"],
        change=dict(zip(channels, (squares / moved).sqrt().tolist(), strict=True)),
        largest=dict(zip(channels, largest.tolist(), strict=True)),
        noise=noise,
        example=_example(fillers[worst], counts[worst]["frame"]),
    )


def _count(filler: Filler) -> Counter[str]:
    """Count the vectors of a recording by the masks of ``Gaps``, and find the example.

    ``frame`` is the frame with most vectors to fill, ``most`` their number.
    """
    counts: Counter[str] = Counter()
    for frames in frame_blocks(filler.base):
        gaps = filler.find_gaps(frames)
        for name in ("fluid", "masked", "missing", "flagged", "replaced", "lost"):
            counts[name] += int(getattr(gaps, name).sum())
        most, frame = gaps.replaced.sum((1, 2)).max(0)
        if int(most) > counts["most"]:
            counts["most"], counts["frame"] = int(most), frames.start + int(frame)
    return counts


def _nothing_to_fill(path: Path, counts: Counter[str], noise: float | None) -> str:
    if counts["missing"]:
        return f"{path}: nothing to fill from: frames with missing vectors have no other vector"
    where = f"{path}: nothing to fill: no vector is missing"
    if counts["masked"]:
        where += " (except at points that no frame knows, which --fill-masked fills)"
    if noise is None:
        return f"{where}, and outliers were not tested"
    return f"{where} or flagged; a noise level below {noise:.3g} flags more"


def _describe(recordings: Recordings, filler: Filler, counts: Counter[str]) -> Trajectory:
    """The trajectory to write, with the counts in ``local``."""
    base, settings = filler.base, filler.settings
    local: dict[str, Any] = {
        "file": recordings.path.name,
        "kind": recordings.kind,
        **{key: value for key, value in base.local.items() if key not in IDENTITY},
    }
    local["filling"] = {
        "masked": counts["masked"],
        "missing": counts["missing"],
        "flagged": counts["flagged"],
        "filled": counts["replaced"],
        "noise": filler.noise,
        **(settings.provenance or {}),
    }
    shape = mask_shape(base)
    return replace(
        base,
        states=MappedFrames(tuple(base.states.shape), filler.fill),
        valid=MappedFrames(shape, filler.valid) if counts["lost"] else None,
        filled=MappedFrames(shape, filler.filled) if counts["replaced"] else base.filled,
        local=local,
    )


def _example(filler: Filler, frame: int) -> Example:
    frames = slice(frame, frame + 1)
    gaps = filler.find_gaps(frames)
    return Example(
        name=filler.base.name,
        frame=frame,
        spec=filler.base.spec,
        before=gaps.fields[0],
        after=Filler(filler.base, filler.settings, lambda share: None).fill(frames)[0],
        missing=gaps.missing[0],
        flagged=gaps.flagged[0],
        body=(~gaps.fluid | gaps.masked)[0],
        length_unit=filler.base.length_unit,
    )
