"""Recipes of wakes: a cylinder in a stream; two in tandem, the second on a spring."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from pibert.solver import cases
from pibert.solver.lattice import Scheme
from pibert.solver.sampling import LatticeRecipe, check_range, spread, uniform
from pibert.solver.stepping import Case


@dataclass(frozen=True, kw_only=True)
class Wakes(LatticeRecipe):
    """What wakes share: the view, the body in it, the far larger domain that is simulated."""

    view: tuple[int, int]
    """Rows and columns of a frame."""
    body: tuple[float, float, float]
    """Row and column of the centre and diameter of the (second) cylinder, in points of the view."""
    domain: tuple[float, float]
    """Length and width in D."""
    upstream: float
    """From the inflow to the centre of the (second) cylinder, in D."""
    scheme: Scheme = "trt"
    smagorinsky: float = 0.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if min(*self.view, *self.domain, self.upstream, self.body[2]) <= 0:
            raise ValueError(
                "view, domain, upstream and the diameter of the body must be positive, found "
                f"{self.view}, {self.domain}, {self.upstream} and {self.body[2]}"
            )

    def checked(self, case: Case) -> Case:
        if case.grid.shape != self.view:
            raise ValueError(
                f"the view of {self.view} points does not lie in the domain of {self.domain} D, "
                f"only {case.grid.shape} of it do; take a larger domain or a smaller view"
            )
        return case

    def flow(self, indices: Sequence[int], device: str) -> dict[str, Any]:
        """The arguments that the cases of this module share."""
        return {
            "cells": self.body[2] * self.cells_per_point,
            "domain": self.domain,
            "upstream": self.upstream,
            "view": self._edges(),
            "coarsen": self.cells_per_point,
            "speed": self.speed,
            "perturbation": [self._swirl(index) for index in indices],
            "scheme": self.scheme,
            "smagorinsky": self.smagorinsky,
            "device": device,
        }

    def _edges(self) -> tuple[float, float, float, float]:
        """Left, right, bottom and top of the view in D from the centre of the body."""
        (rows, columns), (row, column, diameter) = self.view, self.body
        return (
            -(column + 0.5) / diameter,
            (columns - column - 0.5) / diameter,
            -(row + 0.5) / diameter,
            (rows - row - 0.5) / diameter,
        )

    def _swirl(self, index: int) -> float:
        """Strength of the vortex in the first flow, of either sign."""
        sign = 1.0 if uniform(self.seed, index, "sign") < 0.5 else -1.0
        return sign * uniform(self.seed, index, "swirl", 0.2, 0.5)

    def choices(self) -> dict[str, Any]:
        return {"domain": list(self.domain), "upstream": self.upstream}


@dataclass(frozen=True, kw_only=True)
class CylinderWakes(Wakes):
    """Wakes of a circular cylinder in a uniform stream, shedding when the first frame is taken."""

    case: ClassVar[str] = "cylinder"
    title: ClassVar[str] = "wake of a circular cylinder in a uniform stream"
    group: int = 6
    reynolds: tuple[float, float] = (60.0, 200.0)
    frames: int = 60
    view: tuple[int, int] = (32, 64)
    body: tuple[float, float, float] = (15.5, 12.5, 10.0)
    domain: tuple[float, float] = (22.0, 14.0)
    upstream: float = 7.0
    warm_up: float = 40.0

    def __post_init__(self) -> None:
        super().__post_init__()
        check_range("reynolds", self.reynolds)

    def draw(self, index: int) -> dict[str, float]:
        return {"Re": spread(self, index, "reynolds", self.reynolds)}

    def make_case(
        self, indices: Sequence[int], drawn: Mapping[str, Sequence[float]], device: str
    ) -> Case:
        return self.checked(cases.cylinder(drawn["Re"], **self.flow(indices, device)))


@dataclass(frozen=True, kw_only=True)
class TandemWakes(Wakes):
    """Two cylinders in tandem, the second on a spring that lets it move across the stream.

    Reynolds numbers and mass ratios are taken in turn. The natural frequency is the same for all,
    so that the reduced velocity grows with the stream, as in an experiment. Displacement and
    velocity of the second cylinder and the forces on it go with the frames.
    """

    case: ClassVar[str] = "tandem"
    title: ClassVar[str] = "two cylinders in tandem, the second on a spring across the stream"
    moving_radius: ClassVar[float | None] = 0.5
    samples: int = 8
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
    view: tuple[int, int] = (40, 64)
    body: tuple[float, float, float] = (19.5, 31.5, 8.0)
    domain: tuple[float, float] = (30.0, 16.0)
    upstream: float = 11.0
    warm_up: float = 30.0

    def draw(self, index: int) -> dict[str, float]:
        turn, which = divmod(index, len(self.mass_ratios))
        reynolds = self.reynolds[turn % len(self.reynolds)]
        middle = 0.5 * (min(self.reynolds) + max(self.reynolds))
        return {
            "Re": reynolds,
            "mass_ratio": self.mass_ratios[which],
            "reduced_velocity": self.reduced_velocity * reynolds / middle,
        }

    def make_case(
        self, indices: Sequence[int], drawn: Mapping[str, Sequence[float]], device: str
    ) -> Case:
        case = cases.tandem(
            drawn["Re"],
            mass=[0.25 * math.pi * ratio for ratio in drawn["mass_ratio"]],
            reduced_velocity=drawn["reduced_velocity"],
            damping_ratio=[self.damping_ratio] * len(indices),
            gap=self.gap,
            **self.flow(indices, device),
        )
        return self.checked(case)

    def choices(self) -> dict[str, Any]:
        return {
            **super().choices(),
            "gap": self.gap,
            "damping_ratio": self.damping_ratio,
            "chosen_here": ["gap", "damping_ratio", "reduced_velocity"],
        }
