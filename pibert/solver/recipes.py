"""Recipes: the settings of a simulated data set, and the outcome of each sample.

A recipe is a frozen dataclass of plain values: parameter ranges, resolution, frames, seed. The same
recipe gives the same trajectories, bit for bit on the same hardware and version. Each sample has a
random generator seeded by the recipe's seed and its own number, so it does not depend on which
other samples are simulated.
"""

import hashlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch

from pibert.config import Count, Positive, check
from pibert.fields import Trajectory

Progress = Callable[[float], None]
"""Called now and then with the completed share of the work, 0 to 1."""


class _Ascending:
    """Limit of a pair of numbers: the lower one comes first."""

    def __contains__(self, pair: tuple[float, float]) -> bool:
        return pair[0] <= pair[1]

    def __str__(self) -> str:
        return "with the lower number first"


Range = Annotated[tuple[Positive, Positive], _Ascending()]
"""Lowest and highest value of a parameter."""


@dataclass(frozen=True)
class Diverged:
    """A sample that diverged; it is counted and never saved."""

    name: str
    reason: str


@dataclass(frozen=True, kw_only=True)
class Recipe(ABC):
    """A set of trajectories to simulate."""

    samples: Count
    """Number of trajectories."""
    seed: int = 0
    group: Count = 32
    """Number of samples that are simulated together in one array."""

    case: ClassVar[str]

    def __post_init__(self) -> None:
        check(self)

    @abstractmethod
    def simulate(
        self, indices: Sequence[int], *, device: str = "cpu", progress: Progress | None = None
    ) -> list[Trajectory | Diverged]:
        """Simulate the samples with these numbers; returns them in order."""


def generator_of(seed: int, index: int, purpose: str = "") -> torch.Generator:
    """The random generator of one sample, for one purpose."""
    digest = hashlib.sha256(f"{seed}/{index}/{purpose}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)


def uniform(generator: torch.Generator, limits: tuple[float, float]) -> float:
    """A random number between two limits."""
    share = torch.rand((), dtype=torch.float64, generator=generator).item()
    return limits[0] + share * (limits[1] - limits[0])
