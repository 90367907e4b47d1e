"""Learning samples: windows of trajectories, standardised, in an order that a seed fixes.

A window is ``history`` input frames followed by ``horizon`` frames to predict, all within one
segment and without a gap in time. With a horizon of zero a sample maps channels (and parameters) to
other channels of the same frame. Stride, channels and resolution are those of the trajectories
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

from pibert.data.resample import channel_indices
from pibert.data.splits import Segment, split_at_gaps
from pibert.data.wording import counted
from pibert.fields import Batch, FieldSpec, Normalizer, Parameter, Trajectory
from pibert.sample_rng import sample_seeds


@dataclass(frozen=True, kw_only=True)
class Window:
    """What one sample consists of."""

    history: int = 1
    """Input frames."""
    horizon: int = 1
    """Frames to predict; 0: the targets are channels of the newest input frame."""
    inputs: tuple[str, ...] = ()
    """Channels that a model sees; empty stands for all."""
    targets: tuple[str, ...] = ()
    """Channels to predict; empty stands for all."""

    def __post_init__(self) -> None:
        if self.history < 1 or self.horizon < 0:
            raise ValueError(
                "history must be 1 or more and horizon 0 or more, "
                f"found {self.history} and {self.horizon}"
            )
        if self.horizon == 0 and (not self.targets or set(self.targets) & set(self.inputs)):
            raise ValueError(
                "a horizon of 0 needs targets that are not among the inputs, "
                f"found {self.targets} and {self.inputs}"
            )

    @property
    def span(self) -> int:
        return self.history + self.horizon


class Samples(Dataset[Batch]):
    """All windows of some segments, in order; a map-style data set whose items are batches of one.

    The trajectories have one common spec; without segments all of every trajectory is used. The
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
        targets = window.targets or names
        inputs = window.inputs or tuple(n for n in names if window.horizon or n not in targets)
        wanted = channel_indices(names, inputs), channel_indices(names, targets)
        # Only these channels are read; inputs and targets are places among them.
        self.channels = sorted({*wanted[0], *wanted[1]})
        self.inputs, self.targets = ([self.channels.index(i) for i in part] for part in wanted)
        self.normalizer = Normalizer(
            tuple(normalizer.mean[i] for i in self.channels),
            tuple(normalizer.std[i] for i in self.channels),
        )
        self.has_filled = any(trajectory.filled is not None for trajectory in self.trajectories)
        """Whether some input points may be filled ones."""
        if segments is None:
            segments = [Segment(index) for index in range(len(self.trajectories))]
        self._segments = [piece for segment in segments for piece in self._pieces(segment)]
        counts = [max(0, stop - start - window.span + 1) for _, start, stop in self._segments]
        self._ends = list(itertools.accumulate(counts))
        if not self._ends or not self._ends[-1]:
            raise ValueError(
                f"no window of {counted(window.span, 'frame')} fits into "
                f"{counted(len(counts), 'segment')} (split where the time has gaps); take less "
                "history, a shorter horizon or more frames"
            )
        # Of every trajectory, as a model sees them: (trajectory, 16).
        self.parameters = torch.cat(
            [self.spec.encode_parameters(trajectory.parameters) for trajectory in trajectories]
        )

    def _pieces(self, segment: Segment) -> list[tuple[int, int, int]]:
        """A checked segment, split at the gaps in its time."""
        index, start, stop = segment
        if not 0 <= index < len(self.trajectories):
            raise ValueError(
                f"{segment} points nowhere: the set has "
                f"{counted(len(self.trajectories), 'trajectory')}"
            )
        trajectory = self.trajectories[index]
        length = trajectory.num_frames
        stop = length if stop is None else stop
        if not 0 <= start < stop <= length:
            raise ValueError(
                f"{segment} points nowhere: the trajectory has {counted(length, 'frame')}"
            )
        pieces = split_at_gaps(segment, trajectory.time, trajectory.spec.dt)
        return [(index, piece.start, piece.stop or stop) for piece in pieces]

    def __len__(self) -> int:
        return self._ends[-1]

    def locate(self, sample: int) -> tuple[int, int]:
        """Trajectory and first frame of a sample."""
        if not 0 <= sample < len(self):
            raise IndexError(f"sample {sample} of {len(self)}")
        place = bisect.bisect_right(self._ends, sample)
        index, start, _ = self._segments[place]
        return index, start + sample - (self._ends[place - 1] if place else 0)

    def __getitem__(self, sample: int) -> Batch:
        return self.batch([sample])

    def batch(self, samples: Sequence[int]) -> Batch:
        """The samples at some indices, in that order."""
        places = [self.locate(sample) for sample in samples]
        span, past = self.window.span, self.window.history
        read = [self.read(index, slice(start, start + span)) for index, start in places]
        # Fields (b, span, c, y, x), masks (b, span, y, x).
        z, known, measured = (torch.stack(part) for part in zip(*read, strict=True))
        future = slice(past, None) if self.window.horizon else slice(past - 1, past)
        y, filled = z[:, future, self.targets], None
        if self.has_filled:
            y = torch.where(measured[:, future, None], y, 0.0)
            filled = (known & ~measured)[:, :past].any(1)
        return Batch(
            x=z[:, :past, self.inputs].flatten(1, 2),
            y=y,
            parameters=self.parameters[[index for index, _ in places]].to(z.device),
            mask=known[:, :past].all(1),
            target_mask=measured[:, future],
            sample=(numbers := torch.tensor(list(samples), device=z.device)),
            seeds=sample_seeds(0, 0, numbers),
            filled=filled,
        )

    __getitems__ = batch
    """What a DataLoader calls with the indices of a batch."""

    def read(
        self, trajectory: int, frames: slice
    ) -> tuple[Float[Tensor, "t c y x"], Bool[Tensor, "t y x"], Bool[Tensor, "t y x"]]:
        """Some frames of a trajectory as models see them, where they are known, where measured."""
        source = self.trajectories[trajectory]
        fields = source.read(frames, self.channels)
        known = source.known(frames).to(fields.device)
        measured = known if source.filled is None else source.measured(frames).to(fields.device)
        return torch.where(known[:, None], self.normalizer.apply(fields), 0.0), known, measured


class BatchOrder(Sampler[list[int]]):
    """The sample indices of every batch, a function of (seed, epoch, step) alone.

    A batch may be split over processes, as evenly as possible, and each share into micro-batches:
    iterating gives these pieces, those of this process. ``go_to`` chooses the epoch, and the step
    to start at when a run resumes.
    """

    def __init__(
        self,
        num_samples: int,
        batch_size: int,
        *,
        seed: int,
        shuffle: bool = True,
        drop_last: bool = False,
        rank: int = 0,
        world_size: int = 1,
        micro_batch: int | None = None,
    ) -> None:
        if batch_size < 1 or num_samples < 1:
            raise ValueError(
                f"batch size and number of samples must be positive, found {batch_size} and "
                f"{num_samples}"
            )
        if drop_last and num_samples < batch_size:
            raise ValueError(f"{num_samples} samples do not fill a batch of {batch_size}")
        if not 0 <= rank < world_size:
            raise ValueError(f"there is no process {rank} among {world_size}")
        if micro_batch is not None and micro_batch < 1:
            raise ValueError(f"micro_batch must be positive or None, found {micro_batch}")
        self.num_samples, self.batch_size, self.seed = num_samples, batch_size, seed
        self.shuffle, self.drop_last = shuffle, drop_last
        self.rank, self.world_size, self.micro_batch = rank, world_size, micro_batch
        self.epoch, self.step = 0, 0

    @property
    def steps_per_epoch(self) -> int:
        whole, rest = divmod(self.num_samples, self.batch_size)
        return whole + (rest > 0 and not self.drop_last)

    def go_to(self, epoch: int, step: int = 0) -> None:
        if epoch < 0 or not 0 <= step <= self.steps_per_epoch:
            raise ValueError(
                f"there is no step {step} in epoch {epoch}: an epoch has {self.steps_per_epoch}"
            )
        self.epoch, self.step = epoch, step

    def size(self, step: int) -> int:
        """Samples of a batch, over all processes."""
        return min(self.batch_size, self.num_samples - step * self.batch_size)

    def pieces(self, step: int) -> list[int]:
        """Samples of each micro-batch of this process; it may have none."""
        return [stop - start for start, stop in self.places(step)]

    def places(self, step: int) -> list[tuple[int, int]]:
        """Where each micro-batch begins and ends in the order of the epoch."""
        size, first = self.size(step), step * self.batch_size
        start = first + size * self.rank // self.world_size
        end = first + size * (self.rank + 1) // self.world_size
        length = self.micro_batch or max(size, 1)
        return [(place, min(place + length, end)) for place in range(start, end, length)]

    def __len__(self) -> int:
        """Pieces left in the epoch."""
        return sum(len(self.places(step)) for step in range(self.step, self.steps_per_epoch))

    def __iter__(self) -> Iterator[list[int]]:
        yield from (indices.tolist() for indices in self.batches())

    def batches(self, device: torch.device | str | None = None) -> Iterator[Int[Tensor, " b"]]:
        """The same as tensors, brought to a device together."""
        order = self._order(self.epoch).to(device)
        for step in range(self.step, self.steps_per_epoch):
            for start, stop in self.places(step):
                yield order[start:stop]

    def _order(self, epoch: int) -> Tensor:
        if not self.shuffle:
            return torch.arange(self.num_samples)
        # Seeds mixed, so that (seed, epoch + 1) and (seed + 1, epoch) are unrelated.
        mixed = int(np.random.SeedSequence([self.seed, epoch]).generate_state(1, np.uint64)[0])
        generator = torch.Generator().manual_seed(mixed >> 1)
        return torch.randperm(self.num_samples, generator=generator)


def make_loader(
    samples: Samples, order: BatchOrder, *, num_workers: int = 0, pin_memory: bool = False
) -> DataLoader[Batch]:
    """Batches in the given order, read ahead by worker processes that stay alive between epochs."""
    return DataLoader(
        samples,
        batch_sampler=order,
        collate_fn=_as_it_is,
        num_workers=num_workers,
        persistent_workers=num_workers > 0,
        pin_memory=pin_memory,
    )


def _as_it_is(batch: Any) -> Any:
    return batch


def common_spec(trajectories: Sequence[Trajectory]) -> FieldSpec:
    """What all trajectories share: the spec of a model for them.

    Channels, units, and shape, spacing and sides of the grid must agree. Body, origin, time step,
    family, reference scales and viscosity are kept where all agree. Parameters are those that any
    trajectory declares, not standardised: ``normalize.fit_parameters`` does that.
    """
    if not trajectories:
        raise ValueError("expected at least one trajectory, found none")
    first = trajectories[0]
    spec = first.spec
    parameters: dict[str, Parameter] = {}
    for trajectory in trajectories:
        other = trajectory.spec
        for what in ("channels", "units", "grid.shape", "grid.dx", "grid.dy", "grid.sides"):
            mine, theirs = attrgetter(what)(first.spec), attrgetter(what)(other)
            if not _same(mine, theirs):
                raise ValueError(
                    f"{what} of trajectories {first.name!r} and {trajectory.name!r} differ: "
                    f"{mine} and {theirs}; represent them alike first"
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
    if any(t.spec.grid.origin != grid.origin for t in trajectories):
        grid = replace(grid, origin=(0.0, 0.0))
    return replace(spec, grid=grid, parameters=tuple(parameters.values()))


def _same(a: object, b: object) -> bool:
    """Equal, or numbers that differ by rounding alone."""
    if isinstance(a, float) and isinstance(b, float):
        return a == b or abs(a - b) <= 1e-6 * max(abs(a), abs(b))
    return a == b
