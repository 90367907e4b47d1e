"""What lattice Boltzmann flows share: layout of the domain, parameters, units, trajectories.

A flow is simulated in units of a length D and a speed U, time in D/U; ``cells`` is D in cells and
``speed`` is U in cells per step, both alike for all samples, which differ by their viscosity
U D / Re. The error falls with cells^-2 and with (U / c_s)^2, the square of the Mach number;
c_s = 0.577. Cell centres are the grid points. Walls lie half a cell beyond the outermost centres.

Parameters of sample i of n are spread evenly over their range with a jitter of their own: the range
is covered whatever n is, samples simulated side by side are alike, and no sample depends on
another. Frames show u, v and the pressure over density, in units of D and U, or in SI units where
the recipe states a diameter and a viscosity.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from jaxtyping import Bool
from torch import Tensor

from pibert.fields import Boundary, FieldSpec, Grid, Parameter, Sides, Trajectory
from pibert.solver.boundaries import Box, Shape
from pibert.solver.recipes import Diverged, Progress, generator_of
from pibert.solver.stepping import CHANNELS, Case, Solution, Status, run

Drawn = Mapping[str, Sequence[float]]
"""The parameters of some samples by name."""
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

    def __post_init__(self) -> None:
        if not self.viscosity > 0 or not (self.diameter is None or self.diameter > 0):
            raise ValueError(
                "diameter and viscosity must be positive, "
                f"found {self.diameter} and {self.viscosity}"
            )

    def lengths_and_speeds(self, reynolds: float) -> tuple[float, float]:
        if self.diameter is None:
            return 1.0, 1.0
        return self.diameter, reynolds * self.viscosity / self.diameter


DIMENSIONLESS = Scales()


@dataclass(frozen=True, kw_only=True)
class LatticeRecipe(ABC):
    """Trajectories by lattice Boltzmann: a case draws parameters and sets up the flow."""

    samples: int = 12
    seed: int = 0
    group: int = 12
    frames: int = 40
    interval: float = 0.5
    """Time between frames in D/U, or per Reynolds number."""
    interval_grows: bool = False
    """Whether the interval is to be multiplied by the Reynolds number: a camera of fixed rate in a
    faster and faster stream sees the flow move further between frames."""
    burst: tuple[int, int] = (1, 1)
    """(2, 10) keeps the first two of every ten frames."""
    warm_up: float = 0.0
    """In D/U: what happens before the first frame."""
    cells_per_point: int = 1
    """Cells of the lattice along a point of the view; a frame shows their means."""
    speed: float = 0.1
    """U in cells per step."""
    scales: Scales = DIMENSIONLESS

    case: ClassVar[str]
    title: ClassVar[str]
    moving_radius: ClassVar[float | None] = None
    """Of the body that moves, in D; its centre at rest is the origin."""

    coefficients: ClassVar[tuple[str, ...]] = ("drag", "lift")
    """Of a fixed body, saved with the frames. Lift on a body that stands on a wall means little:
    the level of the pressure is in it."""

    def __post_init__(self) -> None:
        for name in ("samples", "group", "frames", "interval", "cells_per_point", "speed"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name} must be positive, found {getattr(self, name)}")
        if self.warm_up < 0 or not 1 <= self.burst[0] <= self.burst[1]:
            raise ValueError(
                "warm_up must not be negative and a burst keeps 1 or more of as many or more "
                f"frames, found {self.warm_up} and {self.burst}"
            )

    @abstractmethod
    def draw(self, index: int) -> dict[str, float]:
        """The parameters of a sample, ``Re`` first."""

    @abstractmethod
    def make_case(self, indices: Sequence[int], drawn: Drawn, device: str) -> Case:
        """The flow of these samples, given their parameters by name."""

    def choices(self) -> dict[str, Any]:
        """What else the provenance should say."""
        return {}

    def simulate(
        self, indices: Sequence[int], *, device: str = "cpu", progress: Progress | None = None
    ) -> list[Trajectory | Diverged]:
        every_sample = [self.draw(index) for index in indices]
        drawn = {key: [sample[key] for sample in every_sample] for key in every_sample[0]}
        flow = self.make_case(indices, drawn, device)
        intervals = [self.interval * (re if self.interval_grows else 1.0) for re in drawn["Re"]]
        every = [interval / flow.dt for interval in intervals]
        warm_up = flow.steps(self.warm_up)
        steps = warm_up + self.frames * max(every) * self.burst[1] / self.burst[0]
        solution = run(
            flow,
            self.frames,
            every,
            warm_up=warm_up,
            burst=self.burst,
            raise_on_divergence=False,
            compiled=steps * flow.start[:, 0].numel() > COMPILATION_PAYS,
            progress=progress,
        )
        return [
            self._outcome(solution, place, index, flow, every_sample[place], intervals[place])
            for place, index in enumerate(indices)
        ]

    def _outcome(
        self,
        solution: Solution,
        place: int,
        index: int,
        flow: Case,
        parameters: dict[str, float],
        interval: float,
    ) -> Trajectory | Diverged:
        name = f"{self.case}-{index:04d}"
        if solution.status[place] is Status.DIVERGED:
            return Diverged(name, f"diverged at Re {parameters['Re']:g}")
        radius = self.moving_radius
        return Trajectory(
            name=name,
            **_in_units(solution, place, flow, parameters, interval, self.scales),
            series=_series(solution, place, flow, self.coefficients),
            parameters=parameters,
            body=None if radius is None else _moving_body(solution, place, flow, radius),
            source={"kind": "simulated", "title": self.title, "method": METHOD},
            local={
                "seed": self.seed,
                "sample": index,
                "scheme": flow.fluid.scheme,
                "smagorinsky": flow.fluid.smagorinsky,
                "cells_in_length": flow.cells,
                "speed_in_cells_per_step": flow.speed,
                "warm_up": self.warm_up,
                **self.choices(),
            },
        )


def _in_units(
    solution: Solution,
    place: int,
    flow: Case,
    parameters: Mapping[str, float],
    interval: float,
    scales: Scales,
) -> dict[str, Any]:
    """Fields, time, spec and what else of a trajectory depends on its units."""
    length, speed = scales.lengths_and_speeds(parameters["Re"])
    is_si = scales.diameter is not None
    grid, size = flow.grid, torch.tensor([speed, speed, speed**2])
    spec = FieldSpec(
        channels=CHANNELS,
        units=("m/s", "m/s", "m^2/s^2") if is_si else (),
        parameters=tuple(
            Parameter(name=name, scaling="log" if name == "Re" else "linear") for name in parameters
        ),
        dt=interval * length / speed,
        grid=replace(
            grid,
            dx=grid.dx * length,
            dy=grid.dy * length,
            origin=(grid.origin[0] * length, grid.origin[1] * length),
            body=None if solution.motion else grid.body,
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
        "length_unit": "m" if is_si else "D",
        "time_unit": "s" if is_si else "D/U",
    }


def _series(
    solution: Solution, place: int, flow: Case, coefficients: tuple[str, ...]
) -> dict[str, Tensor]:
    """Forces at the frames as coefficients, of the body that moves if there is one."""
    histories = dict(solution.motion)
    if not histories and solution.force.shape[1]:
        both = dict(zip(("drag", "lift"), solution.force.unbind(2), strict=True))
        histories = {name: both[name] for name in coefficients}
    return {name: solution.at_frames(h, flow.dt)[place] for name, h in histories.items()}


def _moving_body(
    solution: Solution, place: int, flow: Case, radius: float
) -> Bool[Tensor, "t y x"]:
    """The body in every frame, together with those that stand still."""
    displacement = solution.at_frames(solution.motion["displacement"], flow.dt)[place]
    x, y = flow.grid.coordinates(torch.float64)
    body = torch.hypot(x, y - displacement.double()[:, None, None]) < radius
    return body if flow.grid.body is None else body | flow.grid.body


def spread(
    recipe: LatticeRecipe, index: int, what: str, bounds: tuple[float, float], log: bool = False
) -> float:
    """A value of sample i out of the i-th part of a range, in the logarithm if asked."""
    low, high = (math.log(b) for b in bounds) if log else bounds
    jitter = uniform(recipe.seed, index, what)
    value = low + (high - low) * (index + jitter) / recipe.samples
    return math.exp(value) if log else value


def uniform(seed: int, index: int, what: str, low: float = 0.0, high: float = 1.0) -> float:
    """A random number of a sample, for one purpose."""
    generator = generator_of(seed, index, what)
    return low + (high - low) * torch.rand((), generator=generator, dtype=torch.float64).item()


def check_range(name: str, bounds: tuple[float, float]) -> None:
    if not 0 < bounds[0] <= bounds[1]:
        raise ValueError(f"{name} must be two positive numbers, the lower first, found {bounds}")


def with_sponge(
    thin: Tensor,
    columns: int,
    cells: float,
    *,
    thick: float,
    front: float = 0.0,
    back: float,
) -> Tensor:
    """Viscosity (b, 1, x) that rises towards the outflow, and the inflow, over lengths in D."""
    x = torch.arange(columns, dtype=torch.float64)
    depth = (x - (columns - 1 - back * cells)) / (back * cells)
    if front:
        depth = torch.maximum(depth, 1 - x / (front * cells))
    rise = depth.clamp(0, 1) ** 2
    return thin + (thin.clamp(min=thick) - thin) * rise


def viscosity_of(
    reynolds: Sequence[float], cells: float, speed: float, dtype: torch.dtype, device: str
) -> Tensor:
    if not reynolds or min(reynolds) <= 0:
        raise ValueError(f"expected one or more positive Reynolds numbers, found {reynolds}")
    return (speed * cells / torch.tensor(reynolds, dtype=dtype, device=device))[:, None, None]


def window_of(
    low: float, high: float, centre: float, cells: float, size: int, coarsen: int
) -> slice:
    """The cells whose centres lie between two distances from a centre, given in D."""
    first = max(0, math.ceil(centre + low * cells - 1e-6))
    last = min(size, math.ceil(centre + high * cells - 1e-6))
    last -= (last - first) % coarsen
    if last - first < 1:
        raise ValueError(f"the view from {low} to {high} D shows no cell of the domain")
    return slice(first, last)


def grid_of(
    shape: tuple[int, int],
    box: Box,
    cells: float,
    origin: tuple[float, float],
    window: tuple[slice, slice] | None = None,
    body: Shape | None = None,
    coarsen: int = 1,
) -> Grid:
    """The grid of a view in units of D; ``origin`` is that of the domain's first cell, in cells."""
    rows, columns = window or (slice(0, shape[0]), slice(0, shape[1]))
    whole = (
        columns.start == 0,
        columns.stop == shape[1],
        rows.start == 0,
        rows.stop == shape[0],
    )
    sides = (
        side.kind if is_edge else Boundary.OPEN for side, is_edge in zip(box, whole, strict=True)
    )
    # A point of the view lies in the middle of the cells it is the mean of.
    y, x = (
        torch.arange(cut.start, cut.stop, coarsen, dtype=torch.float64) + (coarsen - 1) / 2
        for cut in (rows, columns)
    )
    solid = None if body is None else body(*reversed(torch.meshgrid(y, x, indexing="ij"))) < 0
    return Grid(
        (len(y), len(x)),
        dx=coarsen / cells,
        dy=coarsen / cells,
        sides=Sides(*sides),
        body=solid,
        origin=((origin[0] + float(x[0])) / cells, (origin[1] + float(y[0])) / cells),
    )
