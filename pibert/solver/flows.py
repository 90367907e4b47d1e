"""Data sets of lattice Boltzmann flows: wakes, cavities, tubes, dams, as recipes.

Parameters of sample i of n are spread evenly over their range with a jitter of their own: the range
is covered whatever n is, samples simulated side by side are alike, and no sample depends on
another. Frames show u, v and the pressure over density; lengths, times and speeds are in units of
the flow's own D and U, or in SI units where the recipe states a diameter and a viscosity.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from torch import Tensor

from pibert.fields import FieldSpec, Parameter, Trajectory
from pibert.solver import cases
from pibert.solver.lattice import Scheme
from pibert.solver.recipes import Diverged, Progress, generator_of
from pibert.solver.stepping import CHANNELS, Case, Solution, Status, run

METHOD = "lattice Boltzmann D2Q9"
COMPILATION_PAYS = 2e8
"""Site updates above which compiling the step takes less time than it saves."""


@dataclass(frozen=True, kw_only=True)
class Scales:
    """What D and U are in the units of the trajectories."""

    diameter: float | None = None
    """D in m; without it everything stays in units of D and U."""
    viscosity: float = 1.0e-6
    """In m^2/s."""

    def lengths_and_speeds(self, reynolds: float) -> tuple[float, float]:
        if self.diameter is None:
            return 1.0, 1.0
        return self.diameter, reynolds * self.viscosity / self.diameter


DIMENSIONLESS = Scales()


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
        _check_range("reynolds", self.reynolds)

    def simulate(
        self, indices: Sequence[int], *, device: str = "cpu", progress: Progress | None = None
    ) -> list[Trajectory | Diverged]:
        reynolds = [_spread(self, i, "reynolds", self.reynolds) for i in indices]
        swirls = [_draw(self.seed, i, "swirl", 0.2, 0.5) * _sign(self.seed, i) for i in indices]
        row, column, diameter = self.body
        cells = diameter * self.cells_per_point
        flow = cases.cylinder(
            reynolds,
            cells=cells,
            domain=self.domain,
            upstream=self.upstream,
            view=(
                -(column + 0.5) / diameter,
                (self.view[1] - column - 0.5) / diameter,
                -(row + 0.5) / diameter,
                (self.view[0] - row - 0.5) / diameter,
            ),
            coarsen=self.cells_per_point,
            speed=self.speed,
            perturbation=swirls,
            scheme=self.scheme,
            smagorinsky=self.smagorinsky,
            device=device,
        )
        assert flow.grid.shape == self.view
        times = [self.interval * (re if self.interval_grows else 1.0) for re in reynolds]
        return _trajectories(
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
        _check_range("reynolds", self.reynolds)

    def simulate(
        self, indices: Sequence[int], *, device: str = "cpu", progress: Progress | None = None
    ) -> list[Trajectory | Diverged]:
        reynolds = [_spread(self, i, "reynolds", self.reynolds, log=True) for i in indices]
        flow = cases.cavity(
            reynolds,
            cells=self.points * self.cells_per_point,
            coarsen=self.cells_per_point,
            speed=self.speed,
            device=device,
        )
        times = [self.interval] * len(indices)
        return _trajectories(
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
        _check_range("reynolds", self.reynolds)

    def simulate(
        self, indices: Sequence[int], *, device: str = "cpu", progress: Progress | None = None
    ) -> list[Trajectory | Diverged]:
        reynolds = [_spread(self, i, "reynolds", self.reynolds, log=True) for i in indices]
        flow = cases.tube(
            reynolds,
            cells=self.points * self.cells_per_point,
            length=self.length,
            coarsen=self.cells_per_point,
            speed=self.speed,
            scheme="regularised",
            device=device,
        )
        return _trajectories(
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
        _check_range("reynolds", self.reynolds)

    def simulate(
        self, indices: Sequence[int], *, device: str = "cpu", progress: Progress | None = None
    ) -> list[Trajectory | Diverged]:
        reynolds = [_spread(self, i, "reynolds", self.reynolds, log=True) for i in indices]
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
        return _trajectories(
            self,
            flow,
            indices,
            [self.interval] * len(indices),
            frames=self.frames,
            title="start of the flow over a barrier in a channel",
            progress=progress,
        )


def _trajectories(
    recipe: Any,
    flow: Case,
    indices: Sequence[int],
    intervals: Sequence[float],
    *,
    frames: int,
    title: str,
    warm_up: float = 0.0,
    scales: Scales = DIMENSIONLESS,
    local: dict[str, Any] | None = None,
    progress: Progress | None = None,
) -> list[Trajectory | Diverged]:
    """Run a case and make a trajectory of every sample that came through."""
    every = [interval / flow.dt for interval in intervals]
    updates = flow.start[:, 0].numel() * (flow.steps(warm_up) + frames * max(every))
    solution = run(
        flow,
        frames,
        every,
        warm_up=flow.steps(warm_up),
        raise_on_divergence=False,
        compiled=updates > COMPILATION_PAYS,
        progress=progress,
    )
    outcomes: list[Trajectory | Diverged] = []
    for place, index in enumerate(indices):
        name = f"{recipe.case}-{index:04d}"
        reynolds = flow.reynolds[place].item()
        if solution.status[place] is Status.DIVERGED:
            outcomes.append(Diverged(name, f"diverged at Re {reynolds:g}"))
            continue
        outcomes.append(
            Trajectory(
                name=name,
                **_in_units(solution, place, flow, reynolds, intervals[place], scales),
                source={"kind": "simulated", "title": title, "method": METHOD},
                local={
                    "seed": recipe.seed,
                    "sample": index,
                    "scheme": flow.fluid.scheme,
                    "smagorinsky": flow.fluid.smagorinsky,
                    "speed_in_cells_per_step": flow.speed,
                    "warm_up": warm_up,
                    **(local or {}),
                },
            )
        )
    return outcomes


def _in_units(
    solution: Solution, place: int, flow: Case, reynolds: float, interval: float, scales: Scales
) -> dict[str, Any]:
    """Fields, time, spec and what else of a trajectory depends on its units."""
    length, speed = scales.lengths_and_speeds(reynolds)
    is_si = scales.diameter is not None
    grid, size = flow.grid, torch.tensor([speed, speed, speed**2])
    spec = FieldSpec(
        channels=CHANNELS,
        units=("m/s", "m/s", "m^2/s^2") if is_si else (),
        parameters=(Parameter(name="Re", scaling="log"),),
        dt=interval * length / speed,
        grid=replace(
            grid,
            dx=grid.dx * length,
            dy=grid.dy * length,
            origin=(grid.origin[0] * length, grid.origin[1] * length),
        ),
        family="incompressible",
        reference_velocity=None if is_si else 1.0,
        reference_length=length,
        viscosity=scales.viscosity if is_si else None,
    )
    return {
        "states": solution.fields[place] * size[:, None, None],
        "time": solution.time[place] * length / speed,
        "spec": spec,
        "parameters": {"Re": reynolds},
        "series": _series(solution, place, flow),
        "length_unit": "m" if is_si else "D",
        "time_unit": "s" if is_si else "D/U",
    }


def _series(solution: Solution, place: int, flow: Case) -> dict[str, Tensor]:
    """Coefficients of drag and lift at the frames."""
    if not solution.force.shape[1]:
        return {}
    histories = zip(("drag", "lift"), solution.force.unbind(2), strict=True)
    return {name: solution.at_frames(values, flow.dt)[place] for name, values in histories}


def _spread(
    recipe: Any, index: int, what: str, bounds: tuple[float, float], log: bool = False
) -> float:
    low, high = (math.log(b) for b in bounds) if log else bounds
    value = low + (high - low) * (index + _draw(recipe.seed, index, what)) / recipe.samples
    return math.exp(value) if log else value


def _draw(seed: int, index: int, what: str, low: float = 0.0, high: float = 1.0) -> float:
    generator = generator_of(seed, index, what)
    return low + (high - low) * torch.rand((), generator=generator, dtype=torch.float64).item()


def _sign(seed: int, index: int) -> float:
    return 1.0 if _draw(seed, index, "sign") < 0.5 else -1.0


def _check_range(name: str, bounds: tuple[float, float]) -> None:
    if not 0 < bounds[0] <= bounds[1]:
        raise ValueError(f"{name} must be two positive numbers, the lower first, found {bounds}")
