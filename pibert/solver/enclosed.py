"""Recipes of flows between walls: cavities, tubes, dams. All start from rest or from the stream."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

from pibert.solver import cases
from pibert.solver.sampling import LatticeRecipe, check_range, spread
from pibert.solver.stepping import Case


@dataclass(frozen=True, kw_only=True)
class EnclosedFlows(LatticeRecipe):
    """Flows that differ by their Reynolds number, spread evenly in its logarithm."""

    reynolds: tuple[float, float]

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range("reynolds", self.reynolds)

    def draw(self, index: int) -> dict[str, float]:
        return {"Re": spread(self, index, "reynolds", self.reynolds, log=True)}


@dataclass(frozen=True, kw_only=True)
class LidDrivenCavities(EnclosedFlows):
    """Square boxes of fluid that starts from rest under a moving lid; D is the side."""

    case: ClassVar[str] = "cavity"
    title: ClassVar[str] = "start of the flow in a lid-driven square cavity"
    reynolds: tuple[float, float] = (50.0, 1000.0)
    interval: float = 0.25
    points: int = 64

    def make_case(
        self, indices: Sequence[int], drawn: Mapping[str, Sequence[float]], device: str
    ) -> Case:
        return cases.cavity(
            drawn["Re"],
            cells=self.points * self.cells_per_point,
            coarsen=self.cells_per_point,
            speed=self.speed,
            device=device,
        )


@dataclass(frozen=True, kw_only=True)
class Tubes(EnclosedFlows):
    """A uniform stream becomes Poiseuille flow between two walls; D is their distance."""

    case: ClassVar[str] = "tube"
    title: ClassVar[str] = "start of the developing flow in a plane channel"
    reynolds: tuple[float, float] = (20.0, 400.0)
    interval: float = 0.25
    points: int = 32
    """Across the tube."""
    length: float = 4.0
    """Of the view, in D."""
    speed: float = 0.05

    def make_case(
        self, indices: Sequence[int], drawn: Mapping[str, Sequence[float]], device: str
    ) -> Case:
        return cases.tube(
            drawn["Re"],
            cells=self.points * self.cells_per_point,
            length=self.length,
            coarsen=self.cells_per_point,
            speed=self.speed,
            scheme="regularised",
            device=device,
        )


@dataclass(frozen=True, kw_only=True)
class Dams(EnclosedFlows):
    """Flow over a barrier on the bottom of a channel; D is the height of the barrier."""

    case: ClassVar[str] = "dam"
    title: ClassVar[str] = "start of the flow over a barrier in a channel"
    coefficients: ClassVar[tuple[str, ...]] = ("drag",)
    reynolds: tuple[float, float] = (50.0, 400.0)
    frames: int = 60
    points: int = 8
    """In the height of the barrier."""
    height: float = 4.0
    """Of the channel; all lengths in D."""
    length: float = 12.0
    position: float = 3.0
    width: float = 0.5
    cells_per_point: int = 2

    def make_case(
        self, indices: Sequence[int], drawn: Mapping[str, Sequence[float]], device: str
    ) -> Case:
        return cases.dam(
            drawn["Re"],
            cells=self.points * self.cells_per_point,
            height=self.height,
            length=self.length,
            position=self.position,
            width=self.width,
            coarsen=self.cells_per_point,
            speed=self.speed,
            device=device,
        )
