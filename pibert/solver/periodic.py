"""What the cases on a periodic box share: the recipe's common part, and the making of trajectories.

A case draws each sample (its parameters and its first state) from the sample's own random numbers,
and advances a batch of states by one interval. Everything in between is in float64, frames are
stored in float32. No operation mixes samples, so a sample is what it is in whatever company it is
made. A sample that is not finite at some frame has diverged.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from pibert.fields import FieldSpec, Grid, Parameter, Trajectory
from pibert.solver.recipes import Diverged, Progress

Range = tuple[float, float]
"""Lowest and highest value."""
States = Float[Tensor, "b c y x"]
Values = Mapping[str, Float[Tensor, " b"]]
"""The parameters of some samples by name."""


@dataclass(frozen=True, eq=False)
class Sample:
    """One drawn flow, ready to run."""

    parameters: Mapping[str, float]
    start: Float[Tensor, "c y x"]
    """In float64."""
    local: Mapping[str, Any] = field(default_factory=dict)
    """Choices that are not parameters, for the provenance."""


@dataclass(frozen=True, kw_only=True)
class PeriodicRecipe(ABC):
    """Trajectories on a doubly periodic box."""

    samples: int
    seed: int = 0
    group: int = 32
    shape: tuple[int, int] = (64, 64)
    """Rows and columns."""
    size: tuple[float, float] = (1.0, 1.0)
    """Length of the box along y and x, in the order of ``shape``."""
    frames: int = 21
    interval: float
    """Time between two frames."""
    warm_up: int = 0
    """Intervals that pass before the first frame, which is time 0."""

    case: ClassVar[str]
    title: ClassVar[str]
    method: ClassVar[str]
    channels: ClassVar[tuple[str, ...]]
    scalings: ClassVar[Mapping[str, Literal["linear", "log"]]]
    """The parameters, and how a model should see them."""

    def __post_init__(self) -> None:
        for name, least in (("samples", 1), ("group", 1), ("frames", 2), ("warm_up", 0)):
            if getattr(self, name) < least:
                raise ValueError(f"{name} must be at least {least}, found {getattr(self, name)}")
        if min(self.shape) < 8:
            raise ValueError(f"shape must be at least 8 rows and columns, found {self.shape}")
        if not all(0 < value < math.inf for value in (*self.size, self.interval)):
            raise ValueError(
                "size and interval must be positive and finite, "
                f"found {self.size} and {self.interval}"
            )

    def _check_ranges(self, *names: str) -> None:
        for name in names:
            low, high = getattr(self, name)
            if not 0 < low <= high < math.inf:
                raise ValueError(
                    f"{name} must be a range of positive numbers, the lower one first, "
                    f"found {(low, high)}"
                )

    @property
    def family(self) -> str | None:
        """The equation that the frames satisfy, a key of ``pibert.physics.FAMILIES``."""
        return self.case

    @property
    def grid(self) -> Grid:
        (rows, columns), (height, width) = self.shape, self.size
        return Grid.periodic(self.shape, dx=width / columns, dy=height / rows)

    @property
    def spec(self) -> FieldSpec:
        return FieldSpec(
            channels=self.channels,
            parameters=tuple(Parameter(name=n, scaling=s) for n, s in self.scalings.items()),
            dt=self.interval,
            grid=self.grid,
            family=self.family,
        )

    @abstractmethod
    def draw(self, index: int) -> Sample:
        """Parameters and first state of one sample."""

    @abstractmethod
    def advance(self, fields: States, parameters: Values) -> States:
        """The states one interval later; NaN where a sample cannot go on."""

    def simulate(
        self, indices: Sequence[int], *, device: str = "cpu", progress: Progress | None = None
    ) -> list[Trajectory | Diverged]:
        """The samples with these numbers, in order."""
        drawn = [self.draw(index) for index in indices]
        fields = torch.stack([sample.start for sample in drawn]).to(device)
        parameters = {
            name: torch.tensor([s.parameters[name] for s in drawn], dtype=fields.dtype).to(device)
            for name in self.scalings
        }
        frames: list[Tensor] = []
        total = self.warm_up + self.frames
        for step in range(total):
            if step:
                fields = self.advance(fields, parameters)
            if step >= self.warm_up:
                frames.append(fields.to("cpu", torch.float32))
            if progress is not None:
                progress((step + 1) / total)
        states = torch.stack(frames, 1)
        return [self._finish(*parts) for parts in zip(indices, drawn, states, strict=True)]

    def _finish(
        self, index: int, sample: Sample, states: Float[Tensor, "t c y x"]
    ) -> Trajectory | Diverged:
        name = f"{self.case}-{index:04d}"
        finite = states.isfinite().flatten(1).all(1)
        if not bool(finite.all()):
            frame = int(finite.int().argmin())
            values = ", ".join(f"{k} {v:g}" for k, v in sample.parameters.items())
            return Diverged(name, f"not finite at frame {frame} of {self.frames} ({values})")
        return Trajectory(
            name=name,
            states=states.clone(),
            time=torch.arange(self.frames, dtype=torch.float64) * self.interval,
            spec=self.spec,
            parameters=dict(sample.parameters),
            source={"kind": "simulated", "title": self.title, "method": self.method},
            local={"seed": self.seed, "sample": index, **sample.local},
        )


def uniform(generator: torch.Generator, limits: Range) -> float:
    """A number between the limits."""
    share = torch.rand((), dtype=torch.float64, generator=generator).item()
    return limits[0] + share * (limits[1] - limits[0])


def log_uniform(generator: torch.Generator, limits: Range) -> float:
    """A number between the limits, all of its orders of magnitude equally likely."""
    return math.exp(uniform(generator, (math.log(limits[0]), math.log(limits[1]))))


def whole_number(generator: torch.Generator, limits: tuple[int, int]) -> int:
    """One of the whole numbers from the lower to the upper limit."""
    return int(torch.randint(limits[0], limits[1] + 1, (), generator=generator))


def bump(grid: Grid, generator: torch.Generator, width: float) -> Float[Tensor, "y x"]:
    """A round hill of height 1 somewhere in the box: a Gaussian, smooth where the box closes."""
    rows, columns = grid.shape
    exponent = torch.zeros(grid.shape, dtype=torch.float64)
    lengths = (columns * grid.dx, rows * grid.dy)
    for place, length in zip(grid.coordinates(torch.float64), lengths, strict=True):
        centre = uniform(generator, (0.0, length))
        distance = length / math.pi * torch.sin(math.pi / length * (place - centre))
        exponent = exponent - (distance / width) ** 2 / 2
    return torch.exp(exponent)
