"""Shared by lattice Boltzmann flows: layout of the domain, parameters, units, trajectories.

A flow is simulated in units of a length D and a speed U, time in D/U; ``cells`` is D in cells and
``speed`` is U in cells per step, both the same for all samples, which differ in their viscosity
U D / Re. The error falls with cells^-2 and with (U / c_s)^2, the square of the Mach number;
c_s = 0.577. Cell centres are the grid points. Walls lie half a cell beyond the outermost centres.

The Reynolds number of sample i of n lies in the i-th of n equal intervals of its range, at a random
position: the range is covered whatever n is, samples that are simulated together are similar, and
no sample depends on another. Frames show u, v and the pressure over density, in units of D and U,
or in SI units if the recipe states a diameter and a viscosity.
"""

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from pibert.config import Count, NonNegative, Positive, check
from pibert.fields import (
    Boundary,
    FieldSpec,
    Grid,
    MovingBody,
    Parameter,
    Sides,
    Spring,
    Trajectory,
)
from pibert.solver.boundaries import Box, Shape, inside, make_links
from pibert.solver.lattice import Fluid, Scheme
from pibert.solver.recipes import Diverged, Progress, Recipe, generator_of, uniform
from pibert.solver.stepping import CHANNELS, Case, Solution, run

Drawn = Mapping[str, Sequence[float]]
"""The parameters of some samples by name."""
METHOD = "lattice Boltzmann D2Q9"
COMPILATION_PAYS = 2e8
"""Site updates above which compiling the step takes less time than it saves."""


@dataclass(frozen=True, kw_only=True)
class Scales:
    """D and U in the units of the trajectories."""

    diameter: Positive | None = None
    """D in m; without it everything stays in units of D and U."""
    viscosity: Positive = 1.0e-6
    """In m^2/s."""

    def __post_init__(self) -> None:
        check(self)


DIMENSIONLESS = Scales()


@dataclass(frozen=True, kw_only=True)
class LatticeRecipe(Recipe):
    """Trajectories by lattice Boltzmann; a subclass draws parameters and sets up the flow."""

    samples: Count = 12
    group: Count = 12
    frames: Count = 40
    interval: Positive = 0.5
    """Time between frames in D/U, or per Reynolds number."""
    interval_grows: bool = False
    """Multiply the interval by the Reynolds number: a camera of fixed rate in a faster stream sees
    the flow move further between frames."""
    burst: tuple[Count, Count] = (1, 1)
    """(2, 10) keeps the first two of every ten frames."""
    warm_up: NonNegative = 0.0
    """Time before the first frame, in D/U."""
    cells_per_point: Count = 1
    """Lattice cells along a point of the view; a frame shows their means."""
    speed: Positive = 0.1
    """U in cells per step."""
    scales: Scales = DIMENSIONLESS

    title: ClassVar[str]
    moving_radius: ClassVar[float | None] = None
    """Radius of the moving body in D; its centre at rest is the origin."""
    coefficients: ClassVar[tuple[str, ...]] = ("drag", "lift")
    """Force coefficients of a fixed body that are saved with the frames. The lift on a body that
    stands on a wall contains the level of the pressure and is left out."""

    @abstractmethod
    def draw(self, index: int) -> dict[str, float]:
        """The parameters of a sample, ``Re`` first."""

    @abstractmethod
    def make_case(self, indices: Sequence[int], drawn: Drawn, device: str) -> Case:
        """The flow of these samples, given their parameters by name."""

    def choices(self) -> dict[str, Any]:
        """Further entries of the provenance."""
        return {}

    @property
    def spring(self) -> Spring | None:
        """The mounting of the moving body."""
        return None

    def draw_reynolds(self, index: int, bounds: tuple[float, float], *, log: bool = False) -> float:
        """A Reynolds number of sample i in the i-th interval of the range, or of its logarithm."""
        low, high = (math.log(b) for b in bounds) if log else bounds
        jitter = uniform(generator_of(self.seed, index, "reynolds"), (0.0, 1.0))
        value = low + (high - low) * (index + jitter) / self.samples
        return math.exp(value) if log else value

    def intervals(self, index: int) -> float:
        """Intervals between frames that a sample is simulated for, with its warm-up."""
        growth = self.draw(index)["Re"] if self.interval_grows else 1.0
        kept, of = self.burst
        # The first frame comes before the first step.
        return self.warm_up / (self.interval * growth) + (self.frames - 1) * of / kept

    def simulate(
        self, indices: Sequence[int], *, device: str = "cpu", progress: Progress | None = None
    ) -> list[Trajectory | Diverged]:
        parameters = [self.draw(index) for index in indices]
        drawn = {key: [sample[key] for sample in parameters] for key in parameters[0]}
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
            Diverged(f"{self.case}-{index:04d}", f"diverged at Re {drawn['Re'][row]:g}")
            if solution.diverged[row]
            else self._trajectory(solution, row, index, flow, parameters[row], intervals[row])
            for row, index in enumerate(indices)
        ]

    def _trajectory(
        self,
        solution: Solution,
        row: int,
        index: int,
        flow: Case,
        parameters: dict[str, float],
        interval: float,
    ) -> Trajectory:
        """Sample ``row`` of a solution in the units of the recipe."""
        is_si, length, speed = self.scales.diameter is not None, 1.0, 1.0
        if self.scales.diameter is not None:
            length = self.scales.diameter
            speed = parameters["Re"] * self.scales.viscosity / length
        grid, body = flow.grid, flow.grid.body
        series = _series(solution, row, flow, self.coefficients)
        bodies: tuple[MovingBody, ...] = ()
        if self.moving_radius is not None:
            moving = MovingBody(radius=self.moving_radius, spring=self.spring)
            is_inside = moving.inside(grid, series["displacement"].double())
            body = is_inside if body is None else is_inside | body
            # Series are in units of D, also where lengths are in metres.
            bodies = (replace(moving, radius=length * moving.radius, unit=length),)
        spec = FieldSpec(
            channels=CHANNELS,
            units=("m/s", "m/s", "m^2/s^2") if is_si else (),
            parameters=tuple(
                Parameter(name=name, scaling="log" if name == "Re" else "linear")
                for name in parameters
            ),
            dt=interval * length / speed,
            grid=replace(
                grid,
                dx=grid.dx * length,
                dy=grid.dy * length,
                origin=(grid.origin[0] * length, grid.origin[1] * length),
                body=None if self.moving_radius is not None else body,
            ),
            family="incompressible",
            reference_velocity=None if is_si else 1.0,
            reference_length=length,
            viscosity=self.scales.viscosity if is_si else None,
            bodies=bodies,
        )
        return Trajectory(
            name=f"{self.case}-{index:04d}",
            states=solution.fields[row] * torch.tensor([speed, speed, speed**2])[:, None, None],
            time=solution.time[row] * length / speed,
            spec=spec,
            length_unit="m" if is_si else "D",
            time_unit="s" if is_si else "D/U",
            series=series,
            parameters=parameters,
            body=None if self.moving_radius is None else body,
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


def _series(
    solution: Solution, row: int, flow: Case, coefficients: tuple[str, ...]
) -> dict[str, Float[Tensor, " t"]]:
    """Force coefficients at the frames, and the motion of a moving body."""
    histories = dict(solution.motion)
    if not histories and solution.force.shape[1]:
        both = dict(zip(("drag", "lift"), solution.force.unbind(2), strict=True))
        histories = {name: both[name] for name in coefficients}
    return {name: solution.at_frames(h, flow.dt)[row] for name, h in histories.items()}


def build_case(
    name: str,
    reynolds: Sequence[float],
    box: Box,
    *,
    start: Tensor,
    cells: float,
    speed: float,
    origin: tuple[float, float] = (0.5, 0.5),
    body: Shape | None = None,
    viscosity: Tensor | None = None,
    view: tuple[slice, slice] | None = None,
    coarsen: int = 1,
    scheme: Scheme = "trt",
    smagorinsky: float = 0.0,
    force: Tensor | None = None,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
) -> Case:
    """Put a case together; see ``Case`` and ``Fluid`` for the arguments.

    ``origin`` is (x, y) of the first cell, in cells. The viscosity is U D / Re if not given. The
    scheme ``trt`` is more accurate; ``regularised`` stays stable with few cells and at high
    Reynolds numbers.
    """
    rows, columns = shape = (start.shape[-2], start.shape[-1])
    view = view or (slice(0, rows), slice(0, columns))
    if viscosity is None:
        viscosity = viscosity_of(reynolds, cells, speed, dtype, device)
    return Case(
        name=name,
        reynolds=torch.tensor(reynolds),
        fluid=Fluid(
            viscosity=viscosity.to(device, dtype),
            scheme=scheme,
            smagorinsky=smagorinsky,
            force=force,
        ),
        links=make_links(shape, box, body, dtype, device),
        start=start.to(device, dtype),
        cells=cells,
        speed=speed,
        grid=_view_grid(shape, box, cells, origin, view, body, coarsen),
        view=view,
        coarsen=coarsen,
        solid=None if body is None else inside(shape, body).to(device),
    )


def viscosity_of(
    reynolds: Sequence[float],
    cells: float,
    speed: float,
    dtype: torch.dtype = torch.float64,
    device: torch.device | str = "cpu",
) -> Float[Tensor, "b 1 1"]:
    """U D / Re in lattice units."""
    if not reynolds or min(reynolds) <= 0:
        raise ValueError(f"expected one or more positive Reynolds numbers, found {reynolds}")
    return (speed * cells / torch.tensor(reynolds, dtype=dtype, device=device))[:, None, None]


def with_sponge(
    reynolds: Sequence[float],
    columns: int,
    cells: float,
    speed: float,
    *,
    outflow: float,
    inflow: float = 0.0,
) -> Float[Tensor, "b 1 x"]:
    """Viscosity that rises to that of Re = 10 towards the outflow and inflow, over lengths in D."""
    if not outflow > 0:
        raise ValueError(f"the sponge must have a positive length, found {outflow}")
    thin = viscosity_of(reynolds, cells, speed)
    x = torch.arange(columns, dtype=torch.float64)
    depth = (x - (columns - 1 - outflow * cells)) / (outflow * cells)
    if inflow:
        depth = torch.maximum(depth, 1 - x / (inflow * cells))
    return thin + (thin.clamp(min=speed * cells / 10) - thin) * depth.clamp(0, 1) ** 2


def _view_grid(
    shape: tuple[int, int],
    box: Box,
    cells: float,
    origin: tuple[float, float],
    view: tuple[slice, slice],
    body: Shape | None,
    coarsen: int,
) -> Grid:
    """The grid of a view in units of D; the arguments are those of ``build_case``."""
    rows, columns = view
    whole = (columns.start == 0, columns.stop == shape[1], rows.start == 0, rows.stop == shape[0])
    sides = (
        side.kind if is_edge else Boundary.OPEN for side, is_edge in zip(box, whole, strict=True)
    )
    # A point of the view lies in the middle of the cells that it averages.
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
