"""From a lattice Boltzmann case to trajectories, and how recipes draw the numbers of a sample.

Parameters of sample i of n are spread evenly over their range with a jitter of their own: the range
is covered whatever n is, samples simulated side by side are alike, and no sample depends on
another. Frames show u, v and the pressure over density; lengths, times and speeds are in units of
the flow's own D and U, or in SI units where the recipe states a diameter and a viscosity.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from jaxtyping import Bool
from torch import Tensor

from pibert.fields import FieldSpec, Parameter, Trajectory
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


class Disc(NamedTuple):
    """A round body at rest, in units of D and of the grid's coordinates."""

    x: float
    y: float
    radius: float


def simulate_case(
    recipe: Any,
    flow: Case,
    indices: Sequence[int],
    intervals: Sequence[float],
    *,
    frames: int,
    title: str,
    warm_up: float = 0.0,
    burst: tuple[int, int] = (1, 1),
    parameters: Mapping[str, Sequence[float]] | None = None,
    mover: Disc | None = None,
    scales: Scales = DIMENSIONLESS,
    local: dict[str, Any] | None = None,
    progress: Progress | None = None,
) -> list[Trajectory | Diverged]:
    """Run a case and make a trajectory of every sample that came through.

    Args:
        recipe: Its case, seed and number of samples go into names and provenance.
        flow: The case, one sample per index.
        indices: The numbers of the samples.
        intervals: Time between frames of each sample, in D/U.
        frames: Of every sample.
        title: What the flow is, for the provenance.
        warm_up: In D/U.
        burst: See ``run``.
        parameters: More parameters than the Reynolds number, a value for each sample.
        mover: The body that moves, if there is one.
        scales: The units of the trajectories.
        local: More for the local part of the provenance.
        progress: Called now and then.
    """
    every = [interval / flow.dt for interval in intervals]
    steps = flow.steps(warm_up) + frames * max(every) * burst[1] / burst[0]
    solution = run(
        flow,
        frames,
        every,
        warm_up=flow.steps(warm_up),
        burst=burst,
        raise_on_divergence=False,
        compiled=steps * flow.start[:, 0].numel() > COMPILATION_PAYS,
        progress=progress,
    )
    outcomes: list[Trajectory | Diverged] = []
    more = parameters or {}
    for place, index in enumerate(indices):
        name = f"{recipe.case}-{index:04d}"
        reynolds = flow.reynolds[place].item()
        if solution.status[place] is Status.DIVERGED:
            outcomes.append(Diverged(name, f"diverged at Re {reynolds:g}"))
            continue
        outcomes.append(
            Trajectory(
                name=name,
                **_in_units(solution, place, flow, reynolds, intervals[place], scales, tuple(more)),
                parameters={"Re": reynolds} | {key: more[key][place] for key in more},
                body=None if mover is None else _moving_body(solution, place, flow, mover),
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
    solution: Solution,
    place: int,
    flow: Case,
    reynolds: float,
    interval: float,
    scales: Scales,
    more: tuple[str, ...],
) -> dict[str, Any]:
    """Fields, time, spec and what else of a trajectory depends on its units."""
    length, speed = scales.lengths_and_speeds(reynolds)
    is_si = scales.diameter is not None
    grid, size = flow.grid, torch.tensor([speed, speed, speed**2])
    spec = FieldSpec(
        channels=CHANNELS,
        units=("m/s", "m/s", "m^2/s^2") if is_si else (),
        parameters=(
            Parameter(name="Re", scaling="log"),
            *(Parameter(name=name) for name in more),
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
        "series": _series(solution, place, flow),
        "length_unit": "m" if is_si else "D",
        "time_unit": "s" if is_si else "D/U",
    }


def _series(solution: Solution, place: int, flow: Case) -> dict[str, Tensor]:
    """Coefficients of drag and lift at the frames, of the body that moves if there is one."""
    histories = dict(solution.motion)
    if not histories and solution.force.shape[1]:
        histories = dict(zip(("drag", "lift"), solution.force.unbind(2), strict=True))
    return {name: solution.at_frames(h, flow.dt)[place] for name, h in histories.items()}


def _moving_body(solution: Solution, place: int, flow: Case, disc: Disc) -> Bool[Tensor, "t y x"]:
    """The body in every frame, together with those that stand still."""
    displacement = solution.at_frames(solution.motion["displacement"], flow.dt)[place]
    x, y = flow.grid.coordinates(torch.float64)
    across = y - disc.y - displacement.double()[:, None, None]
    body = torch.hypot(x - disc.x, across) < disc.radius
    return body if flow.grid.body is None else body | flow.grid.body


def spread(
    recipe: Any, index: int, what: str, bounds: tuple[float, float], log: bool = False
) -> float:
    low, high = (math.log(b) for b in bounds) if log else bounds
    value = low + (high - low) * (index + draw(recipe.seed, index, what)) / recipe.samples
    return math.exp(value) if log else value


def draw(seed: int, index: int, what: str, low: float = 0.0, high: float = 1.0) -> float:
    generator = generator_of(seed, index, what)
    return low + (high - low) * torch.rand((), generator=generator, dtype=torch.float64).item()


def check_range(name: str, bounds: tuple[float, float]) -> None:
    if not 0 < bounds[0] <= bounds[1]:
        raise ValueError(f"{name} must be two positive numbers, the lower first, found {bounds}")
