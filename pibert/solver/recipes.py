"""What a data set is to be: recipes, and what comes of the samples they list.

A recipe is a frozen dataclass of plain values that say everything about a set of trajectories: the
ranges its parameters are drawn from, resolution, frames, seed. The same recipe gives the same
trajectories, bit for bit on the same hardware and version. Sample i is drawn from a generator of
its own, seeded by the recipe's seed and i, so that no sample depends on which others are made.
"""

import hashlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol, runtime_checkable

import torch

from pibert.fields import Trajectory

Progress = Callable[[float], None]
"""Called now and then with the share of the work that is done, 0 to 1."""


@dataclass(frozen=True)
class Diverged:
    """A sample that blew up; it is counted and never saved."""

    name: str
    reason: str


@runtime_checkable
class Recipe(Protocol):
    """A set of trajectories to simulate."""

    case: ClassVar[str]

    @property
    def samples(self) -> int:
        """How many trajectories."""
        ...

    @property
    def group(self) -> int:
        """How many samples are simulated side by side in one array."""
        ...

    @property
    def seed(self) -> int: ...

    def simulate(
        self, indices: Sequence[int], *, device: str = "cpu", progress: Progress | None = None
    ) -> list[Trajectory | Diverged]:
        """The samples with these numbers, in order."""
        ...


def generator_of(seed: int, index: int, purpose: str = "") -> torch.Generator:
    """The random numbers of one sample; they do not depend on any other sample."""
    digest = hashlib.sha256(f"{seed}/{index}/{purpose}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:8], "big") >> 1)
