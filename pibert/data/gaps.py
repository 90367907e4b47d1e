"""Gaps of a recording: which vectors are missing or spurious, and fields that have them filled.

A vector is missing where the recording marks it as not valid or a value is not finite, and flagged
where it does not fit its neighbours (``normalize.flag_outliers``). Both are replaced by what a
given function makes of the others, such as a model's reconstruction, and marked as filled; every
other value keeps its bits (of float32). Points inside a body are never filled, nor is a frame of
which no vector is sound. Vectors that were filled before keep their mark and count as sound.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from pibert.data.normalize import flag_outliers
from pibert.data.units import assume_units, in_consistent_units
from pibert.data.wording import counted
from pibert.fields import FieldSpec, Grid, Trajectory, read_mask

Repair = Callable[[Tensor, Tensor, Mapping[str, float]], Tensor]
"""(fields (b, h, c, y, x), known (b, h, y, x), parameters) -> fields without gaps."""

_BLOCK = 256
"""Frames of masks read at a time."""
THRESHOLD = 4.0
"""Of the median test: twice the usual one, so that resolved shear layers stay below it."""
_SPACING_TOLERANCE = 0.01
_OTHER_UNITS = 0.9
"""A spacing that differs by more (a factor of ten) is one in other units."""


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
    """Accepted fluctuation of the velocity in the test for outliers; None: none are looked for."""
    provenance: Mapping[str, Any] | None = None
    """What is written beside the counts: which model, for instance."""

    def __post_init__(self) -> None:
        if self.noise is not None and not (math.isfinite(self.noise) and self.noise > 0):
            raise ValueError(f"expected a positive noise level, found {self.noise}")
        if self.noise is not None and self.spec.velocity is None:
            raise ValueError(
                f"outliers are looked for among the vectors (u, v), found channels "
                f"{list(self.spec.channels)}; do not ask for it"
            )


class Verdict(NamedTuple):
    """What is wrong with some frames, each (t, y, x)."""

    missing: Bool[Tensor, "t y x"]
    flagged: Bool[Tensor, "t y x"]
    sound: Bool[Tensor, "t y x"]
    """Known, finite, and fit their neighbours."""
    replaced: Bool[Tensor, "t y x"]
    """Missing or flagged, in a frame of which something is sound."""


def judge(
    trajectory: Trajectory, frames: slice, fields: Float[Tensor, "t c y x"], settings: FillSettings
) -> Verdict:
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
    return Verdict(missing, flagged, sound, (missing | flagged) & can_fill)


def fluid_points(trajectory: Trajectory, frames: slice, settings: FillSettings) -> Tensor:
    fluid = replace(trajectory, valid=None).known(frames).cpu()
    solid = settings.spec.grid.body
    return fluid if solid is None else fluid & ~solid


def fitting(
    trajectory: Trajectory, settings: FillSettings, remark: Callable[[str], None]
) -> Trajectory:
    """The trajectory in the units of the settings, if it has their channels and grid."""
    spec, where = settings.spec, f"trajectory {trajectory.name!r}"
    if trajectory.spec.channels != spec.channels:
        raise ValueError(
            f"{where}: expected the channels {list(spec.channels)} of the model, found "
            f"{list(trajectory.spec.channels)}; choose and order them with pibert convert --keep, "
            "or name them with --channels"
        )
    if trajectory.spec.grid.shape != spec.grid.shape:
        (ny, nx), (rows, columns) = spec.grid.shape, trajectory.spec.grid.shape
        raise ValueError(
            f"{where}: expected the {ny} x {nx} points of the model, found {rows} x {columns}; "
            f"bring them together with pibert convert --size {ny}x{nx}, or train on this grid"
        )
    if trajectory.num_frames < settings.history:
        raise ValueError(
            f"{where}: expected at least {counted(settings.history, 'frame')}, which the model "
            f"takes, found {trajectory.num_frames}"
        )
    assume_units(trajectory, spec.units, remark)  # a note or a refusal; the file states none
    scaled = in_consistent_units(trajectory)
    fit = trajectory if trajectory.spec.units == spec.units else scaled
    for name, mine, theirs in zip(spec.channels, spec.units, fit.spec.units, strict=True):
        if mine != theirs and "1" not in (mine, theirs):
            raise ValueError(
                f"{where}: expected {name!r} in {mine}, as the model was trained, found {theirs}"
            )
    if not _alike(fit.spec.grid, spec.grid) and _alike(scaled.spec.grid, spec.grid):
        fit = scaled
    if fit is not trajectory:
        remark(f"{trajectory.name}: in metres and seconds, as the model")
    if not _alike(fit.spec.grid, spec.grid, _OTHER_UNITS):
        raise ValueError(
            f"{where}: points are ({fit.spec.grid.dx:g}, {fit.spec.grid.dy:g}) apart, those of the "
            f"model ({spec.grid.dx:g}, {spec.grid.dy:g}); is the unit of length another one? Say "
            "it with --length-unit, or the spacing with --dx and --dy"
        )
    if not _alike(fit.spec.grid, spec.grid):
        remark(
            f"{trajectory.name}: points are ({fit.spec.grid.dx:g}, {fit.spec.grid.dy:g}) "
            f"apart, those of the model ({spec.grid.dx:g}, {spec.grid.dy:g})"
        )
    return fit


def _alike(grid: Grid, other: Grid, tolerance: float = _SPACING_TOLERANCE) -> bool:
    """Whether the spacings agree."""
    pairs = ((grid.dx, other.dx), (grid.dy, other.dy))
    return all(math.isclose(mine, theirs, rel_tol=tolerance) for mine, theirs in pairs)


def known_after(trajectory: Trajectory, frames: slice, fields: Tensor, verdict: Verdict) -> Tensor:
    before = trajectory.known(frames).cpu() & fields.isfinite().all(1)
    return before | verdict.replaced


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


class FilledFields:
    """The fields of a trajectory with gaps filled when they are read."""

    def __init__(
        self, base: Trajectory, settings: FillSettings, changes: Changes | None = None
    ) -> None:
        self.base, self.settings, self.changes = base, settings, changes
        self.report: Callable[[float], None] = lambda share: None

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.base.states.shape)

    def read(self, frames: slice, channels: Sequence[int] | None = None) -> Tensor:
        wanted = range(*frames.indices(self.base.num_frames))
        history = self.settings.history
        # A window ends at its frame; the first frames have no such window and share the first one.
        first = max(0, min(wanted[0] - history + 1, self.base.num_frames - history))
        around = slice(first, max(wanted[-1] + 1, first + history))
        fields = self.base.read(around).to("cpu", torch.float32)
        verdict = judge(self.base, around, fields, self.settings)
        places = torch.tensor([frame - first for frame in wanted])
        before = fields[places]
        gaps = verdict.replaced[places]
        after = before.clone()
        todo = gaps.any(2).any(1).nonzero().flatten()
        if len(todo):
            start = (places[todo] - history + 1).clamp(min=0)
            windows = start[:, None] + torch.arange(history)
            answer = self.settings.repair(
                fields[windows], verdict.sound[windows], self._parameters()
            ).to("cpu", torch.float32)
            newest = answer[torch.arange(len(todo)), places[todo] - start]
            after[todo] = torch.where(gaps[todo][:, None], newest, before[todo])
        if self.changes is not None:
            self.changes.add(before, after, verdict.flagged[places] & gaps)
        self.report((wanted[-1] + 1) / self.base.num_frames)
        return after if channels is None else after[:, list(channels)]

    def _parameters(self) -> dict[str, float]:
        names = self.settings.spec.parameter_names
        return {name: value for name, value in self.base.parameters.items() if name in names}


class _JudgedMask(ABC):
    """A mask of a trajectory with gaps filled, made when it is read."""

    def __init__(self, base: Trajectory, settings: FillSettings) -> None:
        self.base, self.settings = base, settings

    @property
    def shape(self) -> tuple[int, ...]:
        t, _, ny, nx = self.base.states.shape
        return t, ny, nx

    def read(self, frames: slice, channels: Sequence[int] | None = None) -> Tensor:
        assert channels is None
        fields = self.base.read(frames).to("cpu", torch.float32)
        return self._mask(frames, fields, judge(self.base, frames, fields, self.settings))

    @abstractmethod
    def _mask(self, frames: slice, fields: Tensor, verdict: Verdict) -> Tensor: ...


class StillKnown(_JudgedMask):
    """The valid mask where some vectors could not be filled."""

    def _mask(self, frames: slice, fields: Tensor, verdict: Verdict) -> Tensor:
        inside = ~replace(self.base, valid=None).known(frames).cpu()
        return known_after(self.base, frames, fields, verdict) | inside


class FilledPoints(_JudgedMask):
    """The filled mask: vectors that are replaced here, and those that were filled before."""

    def _mask(self, frames: slice, fields: Tensor, verdict: Verdict) -> Tensor:
        if self.base.filled is None:
            return verdict.replaced
        return verdict.replaced | read_mask(self.base.filled, frames).cpu()
