"""Shared by the cases on a periodic box: settings and trajectories.

A case draws each sample (its parameters and first state) and advances a batch of states by one
interval. It computes in float64; frames are stored in float32. No operation mixes samples, so a
sample does not depend on the others in its batch. A sample that is not finite at some frame has
diverged.
"""

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal

import torch
from jaxtyping import Float
from torch import Tensor

from pibert.config import Bounds, NonNegativeInt, Positive
from pibert.fields import FieldSpec, Grid, Parameter, Trajectory
from pibert.solver.recipes import Diverged, Progress, Range, Recipe, uniform

Size = Annotated[int, Bounds(least=8)]
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
class PeriodicRecipe(Recipe):
    """Trajectories on a doubly periodic box."""

    shape: tuple[Size, Size] = (64, 64)
    """Rows and columns."""
    size: tuple[Positive, Positive] = (1.0, 1.0)
    """Length of the box along y and x, in the order of ``shape``."""
    frames: Annotated[int, Bounds(least=2)] = 21
    interval: Positive
    """Time between two frames."""
    warm_up: NonNegativeInt = 0
    """Intervals before the first frame, which is time 0."""

    title: ClassVar[str]
    method: ClassVar[str]
    channels: ClassVar[tuple[str, ...]]
    scalings: ClassVar[Mapping[str, Literal["linear", "log"]]]
    """The parameters, and how a model scales them."""

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
        """The states one interval later; NaN where a sample diverged."""

    def shown(self, fields: States) -> Float[Tensor, "b c rows columns"]:
        """The part of the states that frames have."""
        return fields

    def simulate(
        self, indices: Sequence[int], *, device: str = "cpu", progress: Progress | None = None
    ) -> list[Trajectory | Diverged]:
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
                frames.append(self.shown(fields).to("cpu", torch.float32))
            if progress is not None:
                progress((step + 1) / total)
        states = torch.stack(frames, 1)
        return [self._finish(*sample) for sample in zip(indices, drawn, states, strict=True)]

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


def log_uniform(generator: torch.Generator, limits: Range) -> float:
    """A random number between two limits, uniform in its logarithm."""
    return math.exp(uniform(generator, (math.log(limits[0]), math.log(limits[1]))))


def whole_number(generator: torch.Generator, limits: tuple[int, int]) -> int:
    """A random whole number between two limits, both included."""
    return int(torch.randint(limits[0], limits[1] + 1, (), generator=generator))


def bump(grid: Grid, generator: torch.Generator, width: float) -> Float[Tensor, "y x"]:
    """A Gaussian hill of height 1 at a random position, made periodic."""
    rows, columns = grid.shape
    exponent = torch.zeros(grid.shape, dtype=torch.float64)
    lengths = (columns * grid.dx, rows * grid.dy)
    for position, length in zip(grid.coordinates(torch.float64), lengths, strict=True):
        centre = uniform(generator, (0.0, length))
        distance = length / math.pi * torch.sin(math.pi / length * (position - centre))
        exponent = exponent - (distance / width) ** 2 / 2
    return torch.exp(exponent)
