"""Recipes of wakes: a cylinder in a stream; two in tandem, the second on a spring."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from pibert.fields import Trajectory
from pibert.solver import cases
from pibert.solver.lattice import Scheme
from pibert.solver.recipes import Diverged, Progress
from pibert.solver.sampling import (
    DIMENSIONLESS,
    Disc,
    Scales,
    check_range,
    draw,
    simulate_case,
    spread,
)


@dataclass(frozen=True, kw_only=True)
class CylinderWakes:
    """Wakes of a circular cylinder in a uniform stream.

    The simulated domain is far larger than the view: ``domain`` says how large. At 16 D of width
    the blockage is 6 %, which raises the shedding frequency by about a hundredth.
    """

    case: ClassVar[str] = "cylinder"
    samples: int = 12
    seed: int = 0
    group: int = 6
    reynolds: tuple[float, float] = (60.0, 200.0)
    frames: int = 60
    interval: float = 0.5
    """Time between frames in D/U, or per Reynolds number."""
    interval_grows: bool = False
    """Whether the interval is to be multiplied by the Reynolds number: a camera of fixed rate in a
    faster and faster stream sees the flow move further between frames."""
    view: tuple[int, int] = (32, 64)
    """Rows and columns of a frame."""
    body: tuple[float, float, float] = (15.5, 12.5, 10.0)
    """Row and column of the centre and diameter in points of the view."""
    cells_per_point: int = 1
    domain: tuple[float, float] = (26.0, 16.0)
    """Length and width in D."""
    upstream: float = 8.0
    warm_up: float = 40.0
    """In D/U: the start from a disturbed stream is not shown."""
    speed: float = 0.1
    scheme: Scheme = "trt"
    smagorinsky: float = 0.0
    scales: Scales = DIMENSIONLESS

    def __post_init__(self) -> None:
        check_range("reynolds", self.reynolds)

    def simulate(
        self, indices: Sequence[int], *, device: str = "cpu", progress: Progress | None = None
    ) -> list[Trajectory | Diverged]:
        reynolds = [spread(self, i, "reynolds", self.reynolds) for i in indices]
        cells = self.body[2] * self.cells_per_point
        flow = cases.cylinder(
            reynolds,
            cells=cells,
            domain=self.domain,
            upstream=self.upstream,
            view=_edges(self.view, self.body),
            coarsen=self.cells_per_point,
            speed=self.speed,
            perturbation=[_swirl(self.seed, i) for i in indices],
            scheme=self.scheme,
            smagorinsky=self.smagorinsky,
            device=device,
        )
        assert flow.grid.shape == self.view
        times = [self.interval * (re if self.interval_grows else 1.0) for re in reynolds]
        return simulate_case(
            self,
            flow,
            indices,
            times,
            frames=self.frames,
            warm_up=self.warm_up,
            scales=self.scales,
            title="wake of a circular cylinder in a uniform stream",
            local={"domain": list(self.domain), "diameter_in_cells": cells},
            progress=progress,
        )


@dataclass(frozen=True, kw_only=True)
class TandemWakes:
    """Two cylinders in tandem, the second on a spring that lets it move across the stream.

    Reynolds numbers, mass ratios and repeats are taken in turn. The spring is the same for all: the
    reduced velocity grows with the stream, as in an experiment. Displacement and velocity of the
    second cylinder and the forces on it go with the frames.
    """

    case: ClassVar[str] = "tandem"
    samples: int = 8
    seed: int = 0
    group: int = 8
    reynolds: tuple[float, ...] = (100.0, 120.0, 150.0, 180.0)
    mass_ratios: tuple[float, ...] = (2.0, 8.0)
    """Mass of the body over that of the fluid it displaces."""
    damping_ratio: float = 0.01
    """Of critical damping."""
    reduced_velocity: float = 5.0
    """U / (f D) at the middle of the range of Reynolds numbers; f is the natural frequency."""
    gap: float = 3.0
    """From centre to centre, in D."""
    frames: int = 40
    interval: float = 0.5
    """As in ``CylinderWakes``."""
    interval_grows: bool = False
    burst: tuple[int, int] = (1, 1)
    """(2, 10) keeps the first two of every ten frames."""
    view: tuple[int, int] = (40, 64)
    body: tuple[float, float, float] = (19.5, 31.5, 8.0)
    """Row and column of the second cylinder's centre at rest and diameter, in points."""
    cells_per_point: int = 1
    domain: tuple[float, float] = (30.0, 16.0)
    upstream: float = 11.0
    """Of the second cylinder, in D."""
    warm_up: float = 30.0
    speed: float = 0.1
    scheme: Scheme = "trt"
    smagorinsky: float = 0.0
    scales: Scales = DIMENSIONLESS

    def simulate(
        self, indices: Sequence[int], *, device: str = "cpu", progress: Progress | None = None
    ) -> list[Trajectory | Diverged]:
        pairs = [(m, re) for re in self.reynolds for m in self.mass_ratios]
        masses, reynolds = zip(*(pairs[i % len(pairs)] for i in indices), strict=True)
        middle = 0.5 * (min(self.reynolds) + max(self.reynolds))
        reduced = [self.reduced_velocity * re / middle for re in reynolds]
        cells = self.body[2] * self.cells_per_point
        flow = cases.tandem(
            reynolds,
            mass_ratio=[0.25 * math.pi * mass for mass in masses],
            reduced_velocity=reduced,
            damping_ratio=[self.damping_ratio] * len(indices),
            cells=cells,
            gap=self.gap,
            domain=self.domain,
            upstream=self.upstream,
            view=_edges(self.view, self.body),
            coarsen=self.cells_per_point,
            speed=self.speed,
            perturbation=[_swirl(self.seed, i) for i in indices],
            scheme=self.scheme,
            smagorinsky=self.smagorinsky,
            device=device,
        )
        assert flow.grid.shape == self.view
        times = [self.interval * (re if self.interval_grows else 1.0) for re in reynolds]
        return simulate_case(
            self,
            flow,
            indices,
            times,
            frames=self.frames,
            warm_up=self.warm_up,
            burst=self.burst,
            parameters={"mass_ratio": masses, "reduced_velocity": reduced},
            mover=Disc(0.0, 0.0, 0.5),
            scales=self.scales,
            title="two cylinders in tandem, the second on a spring across the stream",
            local={
                "domain": list(self.domain),
                "diameter_in_cells": cells,
                "gap": self.gap,
                "damping_ratio": self.damping_ratio,
                "chosen_here": ["gap", "damping_ratio", "reduced_velocity"],
            },
            progress=progress,
        )


def _edges(
    view: tuple[int, int], body: tuple[float, float, float]
) -> tuple[float, float, float, float]:
    """Left, right, bottom and top of a view in D from the centre of the body."""
    row, column, diameter = body
    return (
        -(column + 0.5) / diameter,
        (view[1] - column - 0.5) / diameter,
        -(row + 0.5) / diameter,
        (view[0] - row - 0.5) / diameter,
    )


def _swirl(seed: int, index: int) -> float:
    """Strength of the vortex in the first flow, of either sign."""
    sign = 1.0 if draw(seed, index, "sign") < 0.5 else -1.0
    return sign * draw(seed, index, "swirl", 0.2, 0.5)
