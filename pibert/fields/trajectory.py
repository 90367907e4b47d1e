"""Recorded flows, in memory or read on request, and batches of training windows."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, Self, cast, runtime_checkable

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from pibert import sample_rng
from pibert.fields.spec import FieldSpec

MASKS = ("body", "valid", "filled")
"""Attributes of a trajectory that are masks."""


@runtime_checkable
class FrameSource(Protocol):
    """Frames that are read on request, from a file or as a view of other frames."""

    @property
    def shape(self) -> tuple[int, ...]:
        """(t, c, y, x) of fields, (t, y, x) of masks."""
        ...

    def read(self, frames: slice, channels: Sequence[int] | None = None) -> Tensor:
        """The frames of a slice with positive step; of fields, the channels by index."""
        ...


@dataclass(frozen=True, eq=False, kw_only=True)
class Trajectory:
    """One recorded or simulated flow in physical units.

    A point is known if it lies outside the body and is valid. Values elsewhere are undefined and
    may be NaN. A known point is measured (or simulated) unless it was filled: filled values may be
    model input, but they are not ground truth.
    """

    name: str
    states: Float[Tensor, "t c y x"] | FrameSource
    time: Float[Tensor, " t"]
    """Strictly increasing; the frame number if the source states no time."""
    spec: FieldSpec
    """A static body is also the body of its grid."""
    parameters: Mapping[str, float] = field(default_factory=dict)
    """Values of the parameters of the spec; a missing one is unknown."""
    body: Bool[Tensor, "... y x"] | FrameSource | None = None
    """True inside a solid body: (y, x), or (t, y, x) if the body moves."""
    valid: Bool[Tensor, "... y x"] | FrameSource | None = None
    """False where a measurement is missing or an outlier: (y, x) or (t, y, x)."""
    filled: Bool[Tensor, "... y x"] | FrameSource | None = None
    """True where a program or a model filled in the value: (y, x) or (t, y, x)."""
    series: Mapping[str, Float[Tensor, " n"]] = field(default_factory=dict)
    """Values per frame, such as the displacement of a body or the lift on it."""
    source: Mapping[str, Any] = field(default_factory=dict)
    """Facts that the source states, as plain JSON; None: unknown."""
    local: Mapping[str, Any] = field(default_factory=dict)
    """Processing steps applied to the source's data (stride, crop, resize ...)."""
    length_unit: str | None = None
    time_unit: str | None = None

    def __post_init__(self) -> None:
        shape, grid = tuple(self.states.shape), self.spec.grid
        expected = (len(self.time), len(self.spec.channels), *grid.shape)
        if not expected[0] and not shape[0]:
            raise ValueError(
                f"trajectory {self.name!r}: expected at least one frame, found none; leave it out"
            )
        if shape != expected:
            raise ValueError(
                f"trajectory {self.name!r}: expected states of shape (t, c, y, x) = {expected} "
                f"from its time, channels and grid, found {shape}"
            )
        object.__setattr__(self, "time", self.time.to(torch.float64))
        if not bool(self.time.isfinite().all()) or bool((self.time.diff() <= 0).any()):
            raise ValueError(f"trajectory {self.name!r}: time must increase from frame to frame")
        for mask_name in MASKS:
            mask = getattr(self, mask_name)
            if mask is not None and tuple(mask.shape) not in (shape[2:], (shape[0], *shape[2:])):
                raise ValueError(
                    f"trajectory {self.name!r}: expected a {mask_name} mask of shape {shape[2:]} "
                    f"or {(shape[0], *shape[2:])}, found {tuple(mask.shape)}"
                )
        for name, values in self.series.items():
            if tuple(values.shape) != (shape[0],):
                raise ValueError(
                    f"trajectory {self.name!r}: expected one value of {name!r} per frame, "
                    f"({shape[0]},), found shape {tuple(values.shape)}"
                )
        declared = self.spec.parameter_names
        if unknown := sorted(set(self.parameters) - set(declared)):
            raise ValueError(
                f"trajectory {self.name!r}: expected parameters {list(declared)}, found {unknown}"
            )
        for name, value in self.parameters.items():
            if not math.isfinite(value):
                raise ValueError(
                    f"trajectory {self.name!r}: parameter {name!r} must be finite, found {value}; "
                    "leave it out where it is unknown"
                )
        self._reconcile_bodies()

    def _reconcile_bodies(self) -> None:
        """Use one static body, whether the grid or the trajectory has it."""
        grid = self.spec.grid
        if self.body is None:
            object.__setattr__(self, "body", grid.body)
            return
        static = self.body if isinstance(self.body, Tensor) and self.body.ndim == 2 else None
        if grid.body is None and static is not None:
            spec = replace(self.spec, grid=replace(grid, body=static))
            object.__setattr__(self, "spec", spec)
        elif grid.body is not None and (static is None or not torch.equal(grid.body, static)):
            raise ValueError(
                f"trajectory {self.name!r}: its body differs from the body of its grid; give one"
            )

    @property
    def num_frames(self) -> int:
        return len(self.time)

    def read(
        self, frames: slice = slice(None), channels: Sequence[int] | None = None
    ) -> Float[Tensor, "t c y x"]:
        """Read frames and channels; the rest stays on disk."""
        if isinstance(self.states, Tensor):
            states = self.states[frames]
            return states if channels is None else states[:, list(channels)]
        return self.states.read(frames, channels)

    def known(self, frames: slice = slice(None)) -> Bool[Tensor, "t y x"]:
        """Return where frames are fluid and valid."""
        count = len(range(*frames.indices(self.num_frames)))
        device = self.states.device if isinstance(self.states, Tensor) else None
        known = torch.ones(count, *self.spec.grid.shape, dtype=torch.bool, device=device)
        if self.body is not None:
            known &= ~read_mask(self.body, frames).to(known.device)
        if self.valid is not None:
            known &= read_mask(self.valid, frames).to(known.device)
        return known

    def measured(self, frames: slice = slice(None)) -> Bool[Tensor, "t y x"]:
        """Return the known points that were not filled: the ground truth."""
        known = self.known(frames)
        if self.filled is None:
            return known
        return known & ~read_mask(self.filled, frames).to(known.device)

    def load(self, device: torch.device | str | None = None) -> Self:
        """Return the trajectory with states and masks in memory, on a device if given."""

        def loaded(mask: Tensor | FrameSource | None) -> Tensor | None:
            if mask is None or (isinstance(mask, Tensor) and mask.ndim == 2):
                return mask
            return read_mask(mask, slice(None)).to(device)

        masks: dict[str, Any] = {name: loaded(getattr(self, name)) for name in MASKS}
        return replace(self, states=self.read().to(device), **masks)


def read_mask(mask: Tensor | FrameSource, frames: slice) -> Bool[Tensor, "*t y x"]:
    """Read frames of a mask; a static mask is returned unchanged."""
    if isinstance(mask, Tensor):
        return mask if mask.ndim == 2 else mask[frames]
    return mask.read(frames)


@dataclass(frozen=True)
class Batch:
    """Standardised inputs and targets of a model; unknown points are zero."""

    x: Float[Tensor, "b hc y x"]
    """The input frames folded into channels, the newest last."""
    y: Float[Tensor, "b s c2 y x"]
    """The frames to predict."""
    parameters: Float[Tensor, "b 16"]
    """As ``FieldSpec.encode_parameters`` returns them."""
    mask: Bool[Tensor, "b y x"]
    """True where every input frame is known."""
    target_mask: Bool[Tensor, "b s y x"]
    """True where the frame to predict was measured: known and not filled."""
    sample: Int[Tensor, " b"]
    """Index of each sample in its data set."""
    seeds: Int[Tensor, " b"]
    """Seeds of the random numbers of each sample (``pibert.sample_rng``)."""
    position: int = 0
    """Position of the first sample in the order of the epoch; the others follow it."""
    filled: Bool[Tensor, "b y x"] | None = None
    """True where an input frame was filled: such points are not targets."""

    def __len__(self) -> int:
        return len(self.x)

    def to(self, device: torch.device | str) -> Self:
        return self.map(lambda tensor: tensor.to(device, non_blocking=True))

    def pin_memory(self) -> Self:
        return self.map(lambda tensor: tensor.pin_memory())

    def reseeded(self, seed: int, epoch: int, position: int = 0) -> Self:
        """Return the samples with their seeds and position in an epoch of a run."""
        return replace(
            self, seeds=sample_rng.sample_seeds(seed, epoch, self.sample), position=position
        )

    def map(self, move: Callable[[Tensor], Tensor]) -> Self:
        """Apply a function to every tensor."""
        tensors = {n: move(v) for n, v in vars(self).items() if isinstance(v, Tensor)}
        return replace(self, **cast(Any, tensors))
