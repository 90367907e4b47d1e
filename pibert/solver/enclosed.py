"""Recipes of flows between walls: cavities, tubes, dams."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from pibert.fields import Trajectory
from pibert.solver import cases
from pibert.solver.recipes import Diverged, Progress
from pibert.solver.sampling import check_range, simulate_case, spread


@dataclass(frozen=True, kw_only=True)
class LidDrivenCavities:
    """Square boxes of fluid that starts from rest under a moving lid."""

    case: ClassVar[str] = "cavity"
    samples: int = 12
    seed: int = 0
    group: int = 12
    reynolds: tuple[float, float] = (50.0, 1000.0)
    frames: int = 40
    interval: float = 0.25
    points: int = 64
    cells_per_point: int = 1
    speed: float = 0.1

    def __post_init__(self) -> None:
        check_range("reynolds", self.reynolds)

    def simulate(
        self, indices: Sequence[int], *, device: str = "cpu", progress: Progress | None = None
    ) -> list[Trajectory | Diverged]:
        reynolds = [spread(self, i, "reynolds", self.reynolds, log=True) for i in indices]
        flow = cases.cavity(
            reynolds,
            cells=self.points * self.cells_per_point,
            coarsen=self.cells_per_point,
            speed=self.speed,
            device=device,
        )
        times = [self.interval] * len(indices)
        return simulate_case(
            self,
            flow,
            indices,
            times,
            frames=self.frames,
            title="start of the flow in a lid-driven square cavity",
            progress=progress,
        )


@dataclass(frozen=True, kw_only=True)
class Tubes:
    """A uniform stream becomes Poiseuille flow between two walls."""

    case: ClassVar[str] = "tube"
    samples: int = 12
    seed: int = 0
    group: int = 12
    reynolds: tuple[float, float] = (20.0, 400.0)
    frames: int = 40
    interval: float = 0.25
    points: int = 32
    """Across the tube."""
    length: float = 4.0
    """Of the view, in widths of the tube."""
    cells_per_point: int = 1
    speed: float = 0.05

    def __post_init__(self) -> None:
        check_range("reynolds", self.reynolds)

    def simulate(
        self, indices: Sequence[int], *, device: str = "cpu", progress: Progress | None = None
    ) -> list[Trajectory | Diverged]:
        reynolds = [spread(self, i, "reynolds", self.reynolds, log=True) for i in indices]
        flow = cases.tube(
            reynolds,
            cells=self.points * self.cells_per_point,
            length=self.length,
            coarsen=self.cells_per_point,
            speed=self.speed,
            scheme="regularised",
            device=device,
        )
        return simulate_case(
            self,
            flow,
            indices,
            [self.interval] * len(indices),
            frames=self.frames,
            title="start of the developing flow in a plane channel",
            progress=progress,
        )


@dataclass(frozen=True, kw_only=True)
class Dams:
    """Flow over a barrier on the bottom of a channel; D is the height of the barrier."""

    case: ClassVar[str] = "dam"
    samples: int = 12
    seed: int = 0
    group: int = 12
    reynolds: tuple[float, float] = (50.0, 400.0)
    frames: int = 60
    interval: float = 0.5
    points: int = 8
    """In the height of the barrier."""
    height: float = 4.0
    length: float = 12.0
    position: float = 3.0
    width: float = 0.5
    cells_per_point: int = 2
    speed: float = 0.1

    def __post_init__(self) -> None:
        check_range("reynolds", self.reynolds)

    def simulate(
        self, indices: Sequence[int], *, device: str = "cpu", progress: Progress | None = None
    ) -> list[Trajectory | Diverged]:
        reynolds = [spread(self, i, "reynolds", self.reynolds, log=True) for i in indices]
        flow = cases.dam(
            reynolds,
            cells=self.points * self.cells_per_point,
            height=self.height,
            length=self.length,
            position=self.position,
            width=self.width,
            coarsen=self.cells_per_point,
            speed=self.speed,
            device=device,
        )
        return simulate_case(
            self,
            flow,
            indices,
            [self.interval] * len(indices),
            frames=self.frames,
            title="start of the flow over a barrier in a channel",
            progress=progress,
        )
