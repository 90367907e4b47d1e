"""Training samples: standardised windows of trajectories, in an order that a seed fixes.

A window is ``history`` input frames followed by ``horizon`` frames to predict, all within one
segment and without a gap in time. Stride, channels and resolution are those of the trajectories
(``resample.represent``).
"""

import bisect
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from operator import attrgetter
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler

from pibert.config import Count, check
from pibert.data.provenance import frame_step
from pibert.data.splits import Segment, split_at_gaps
from pibert.data.wording import counted
from pibert.fields import Batch, FieldSpec, Normalizer, Parameter, Trajectory
from pibert.sample_rng import sample_seeds


@dataclass(frozen=True, kw_only=True)
class Window:
    """Frames of one sample."""

    history: Count = 1
    """Input frames."""
    horizon: Count = 1
    """Frames to predict."""

    def __post_init__(self) -> None:
        check(self)

    @property
    def span(self) -> int:
        return self.history + self.horizon


class Samples(Dataset[Batch]):
    """All windows of segments, in order; a map-style data set whose items are batches of one.

    The trajectories have one common spec; the default segments are whole trajectories. The
    normalizer has the statistics of every channel, from the training split; ``spec`` has names and
    statistics of the parameters (default: those of the trajectories).
    """

    def __init__(
        self,
        trajectories: Sequence[Trajectory],
        segments: Sequence[Segment] | None = None,
        *,
        window: Window,
        normalizer: Normalizer,
        spec: FieldSpec | None = None,
    ) -> None:
        self.trajectories, self.window = tuple(trajectories), window
        self.spec = common_spec(trajectories) if spec is None else spec
        names = self.spec.channels
        if len(normalizer.mean) != len(names):
            raise ValueError(
                f"expected statistics of {len(names)} channels {list(names)}, "
                f"found {len(normalizer.mean)}"
            )
        self.normalizer = normalizer
        self.has_filled = any(trajectory.filled is not None for trajectory in self.trajectories)
        """Whether input points may be filled."""
        if segments is None:
            segments = [Segment(index) for index in range(len(self.trajectories))]
        self._segments = [piece for segment in segments for piece in self._pieces(segment)]
        counts = [max(0, stop - start - window.span + 1) for _, start, stop in self._segments]
        self._ends = list(itertools.accumulate(counts))
        if not self._ends or not self._ends[-1]:
            raise ValueError(
                f"no window of {counted(window.span, 'frame')} fits into "
                f"{counted(len(counts), 'segment')} (split at gaps in time); use less history, a "
                "shorter horizon or more frames"
            )
        # Encoded parameters (trajectory, 16).
        self.parameters = torch.cat(
            [self.spec.encode_parameters(trajectory.parameters) for trajectory in trajectories]
        )

    def _pieces(self, segment: Segment) -> list[tuple[int, int, int]]:
        """Check a segment and split it at the gaps in its time."""
        index, start, stop = segment
        count = len(self.trajectories)
        length = self.trajectories[index].num_frames if 0 <= index < count else 0
        stop = length if stop is None else stop
        if not 0 <= start < stop <= length:
            raise ValueError(
                f"{segment} does not exist: the set has {counted(count, 'trajectory')}, this one "
                f"has {counted(length, 'frame')}"
            )
        trajectory = self.trajectories[index]
        pieces = split_at_gaps(segment, trajectory.time, frame_step(trajectory))
        return [(index, piece.start, piece.stop or stop) for piece in pieces]

    def __len__(self) -> int:
        return self._ends[-1]

    def locate(self, sample: int) -> tuple[int, int]:
        """Return trajectory and first frame of a sample."""
        if not 0 <= sample < len(self):
            raise IndexError(f"sample {sample} of {len(self)}")
        number = bisect.bisect_right(self._ends, sample)
        index, start, _ = self._segments[number]
        return index, start + sample - (self._ends[number - 1] if number else 0)

    def __getitem__(self, sample: int) -> Batch:
        return self.batch([sample])

    def batch(self, samples: Sequence[int]) -> Batch:
        """Return the samples at these indices, in this order."""
        origins = [self.locate(sample) for sample in samples]
        span, past = self.window.span, self.window.history
        read = [self.read(index, slice(start, start + span)) for index, start in origins]
        # Fields (b, span, c, y, x), masks (b, span, y, x).
        z, known, measured = (torch.stack(tensors) for tensors in zip(*read, strict=True))
        return make_batch(
            (z[:, :past], z[:, past:]),
            (known[:, :past], measured[:, past:]),
            self.parameters[[index for index, _ in origins]].to(z.device),
            torch.tensor(list(samples), device=z.device),
            measured[:, :past] if self.has_filled else None,
        )

    __getitems__ = batch
    """The method that a DataLoader calls with the indices of a batch."""

    def read(
        self, trajectory: int, frames: slice
    ) -> tuple[Float[Tensor, "t c y x"], Bool[Tensor, "t y x"], Bool[Tensor, "t y x"]]:
        """Return standardised frames of a trajectory, where they are known, where measured."""
        source = self.trajectories[trajectory]
        fields = source.read(frames)
        known = source.known(frames).to(fields.device)
        measured = known if source.filled is None else source.measured(frames).to(fields.device)
        return torch.where(known[:, None], self.normalizer.apply(fields), 0.0), known, measured


def make_batch(
    fields: tuple[Float[Tensor, "b h c y x"], Float[Tensor, "b s c y x"]],
    masks: tuple[Bool[Tensor, "b h y x"], Bool[Tensor, "b s y x"]],
    parameters: Float[Tensor, "b 16"],
    sample: Int[Tensor, " b"],
    measured: Bool[Tensor, "b h y x"] | None,
) -> Batch:
    """Return a batch of windows.

    Args:
        fields: Input frames and frames to predict, standardised.
        masks: Where the former are known, and where the latter were measured.
        parameters: As ``FieldSpec.encode_parameters`` returns them.
        sample: Index of each sample in its data set.
        measured: Where the input frames were measured; None: no data has filled points.
    """
    (x, y), (known, target_mask) = fields, masks
    return Batch(
        x=x.flatten(1, 2),
        y=y if measured is None else torch.where(target_mask[:, :, None], y, 0.0),
        parameters=parameters,
        mask=known.all(1),
        target_mask=target_mask,
        sample=sample,
        seeds=sample_seeds(0, 0, sample),
        filled=None if measured is None else (known & ~measured).any(1),
    )


class BatchOrder(Sampler[list[int]]):
    """The sample indices of every batch, a function of (seed, epoch, step) alone.

    A batch is split evenly over processes, and each share into micro-batches; iteration gives the
    micro-batches of this process. ``go_to`` sets the epoch, and the step at which a run resumes.
    """

    def __init__(
        self,
        num_samples: int,
        batch_size: int,
        *,
        seed: int,
        shuffle: bool = True,
        rank: int = 0,
        world_size: int = 1,
        micro_batch: int | None = None,
    ) -> None:
        if min(batch_size, num_samples, micro_batch or 1) < 1 or not 0 <= rank < world_size:
            raise ValueError(
                f"expected positive numbers and a process below {world_size}, found {num_samples} "
                f"samples in batches of {batch_size} ({micro_batch}), process {rank}"
            )
        self.num_samples, self.batch_size, self.seed = num_samples, batch_size, seed
        self.shuffle, self.micro_batch = shuffle, micro_batch
        self.rank, self.world_size = rank, world_size
        self.epoch, self.step = 0, 0

    @property
    def steps_per_epoch(self) -> int:
        return -(-self.num_samples // self.batch_size)

    def go_to(self, epoch: int, step: int = 0) -> None:
        if epoch < 0 or not 0 <= step <= self.steps_per_epoch:
            raise ValueError(
                f"there is no step {step} in epoch {epoch}: an epoch has {self.steps_per_epoch}"
            )
        self.epoch, self.step = epoch, step

    def size(self, step: int) -> int:
        """Samples of a batch, over all processes."""
        return min(self.batch_size, self.num_samples - step * self.batch_size)

    def ranges(self, step: int) -> list[tuple[int, int]]:
        """Start and end of each micro-batch of this process in the order of the epoch."""
        size, first = self.size(step), step * self.batch_size
        begin = first + size * self.rank // self.world_size
        end = first + size * (self.rank + 1) // self.world_size
        length = self.micro_batch or max(size, 1)
        return [(start, min(start + length, end)) for start in range(begin, end, length)]

    def __len__(self) -> int:
        """Micro-batches left in the epoch."""
        return sum(len(self.ranges(step)) for step in range(self.step, self.steps_per_epoch))

    def __iter__(self) -> Iterator[list[int]]:
        yield from (indices.tolist() for indices in self.batches())

    def batches(self, device: torch.device | str | None = None) -> Iterator[Int[Tensor, " b"]]:
        """Yield the micro-batches as tensors on a device."""
        order = self._order(self.epoch).to(device)
        for step in range(self.step, self.steps_per_epoch):
            for start, stop in self.ranges(step):
                yield order[start:stop]

    def _order(self, epoch: int) -> Tensor:
        if not self.shuffle:
            return torch.arange(self.num_samples)
        # Seeds are mixed, so that (seed, epoch + 1) and (seed + 1, epoch) are unrelated.
        mixed = int(np.random.SeedSequence([self.seed, epoch]).generate_state(1, np.uint64)[0])
        generator = torch.Generator().manual_seed(mixed >> 1)
        return torch.randperm(self.num_samples, generator=generator)


def make_loader(
    samples: Samples, order: BatchOrder, *, num_workers: int = 0, pin_memory: bool = False
) -> DataLoader[Batch]:
    """Return batches in the given order, read ahead by persistent worker processes."""
    return DataLoader(
        samples,
        batch_sampler=order,
        collate_fn=_identity,
        num_workers=num_workers,
        persistent_workers=num_workers > 0,
        pin_memory=pin_memory,
    )


def _identity(batch: Any) -> Any:
    return batch


_ONE_GRID = ", or read them on one grid (CFDBench: options.in_points=true; EAGLE: options.box)"


def common_spec(trajectories: Sequence[Trajectory]) -> FieldSpec:
    """Return the spec that all trajectories share, for a model of them.

    Channels, units, and shape, spacing and sides of the grid must agree. Body, origin, time step,
    family, reference scales and viscosity are kept if all agree. Parameters are those that any
    trajectory declares, not yet standardised (``normalize.fit_parameters``).
    """
    if not trajectories:
        raise ValueError("expected at least one trajectory, found none")
    first = trajectories[0]
    spec = first.spec
    parameters: dict[str, Parameter] = {}
    for trajectory in trajectories:
        other = trajectory.spec
        for what in (
            "channels",
            "units",
            "state",
            "grid.shape",
            "grid.dx",
            "grid.dy",
            "grid.sides",
        ):
            mine, theirs = attrgetter(what)(first.spec), attrgetter(what)(other)
            if not _same(mine, theirs):
                raise ValueError(
                    f"{what} of trajectories {first.name!r} and {trajectory.name!r} differ: "
                    f"{mine} and {theirs}; bring them to one form with pibert convert"
                    + (_ONE_GRID if what in ("grid.dx", "grid.dy") else "")
                )
        for name in ("dt", "family", "reference_velocity", "reference_length", "viscosity"):
            if not _same(getattr(spec, name), getattr(other, name)):
                unstated: dict[str, Any] = {name: None}
                spec = replace(spec, **unstated)
        for declared in other.parameters:
            known = parameters.setdefault(declared.name, declared)
            if known.scaling != declared.scaling:
                raise ValueError(
                    f"parameter {declared.name!r} is scaled {known.scaling!r} and "
                    f"{declared.scaling!r}"
                )
    grid = spec.grid
    bodies = [t.spec.grid.body for t in trajectories]
    if any(b is None or grid.body is None or not torch.equal(b, grid.body) for b in bodies):
        grid = replace(grid, body=None)
    same_bodies = all(t.spec.bodies == spec.bodies for t in trajectories)
    same_origin = all(t.spec.grid.origin == grid.origin for t in trajectories)
    if spec.state and not (same_bodies and same_origin):
        raise ValueError(
            "the moving bodies of these trajectories, or the origins of their grids, differ; a "
            "model of their state needs one arrangement: train on one of them at a time"
        )
    if not same_origin:
        grid = replace(grid, origin=(0.0, 0.0))
    moving = spec.bodies if same_bodies and same_origin else ()
    return replace(spec, grid=grid, bodies=moving, parameters=tuple(parameters.values()))


def _same(a: object, b: object) -> bool:
    """Whether values are equal, up to rounding."""
    if isinstance(a, float) and isinstance(b, float):
        return a == b or abs(a - b) <= 1e-6 * max(abs(a), abs(b))
    return a == b
