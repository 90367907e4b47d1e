"""The same flows by our own lattice Boltzmann solver, on the CPU."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from pibert.fields import Trajectory
from pibert.solver import run
from pibert.solver.recipes import Diverged
from pibert.solver.wakes import CylinderWakes, tandem

DOMAIN, UPSTREAM = (32.0, 20.0), 10.0
"""Length and width, and distance from the inflow to the body, in D."""
WAKE_CELLS, VIBRATION_CELLS = 20, 12
"""Cells across the body: of the fixed one with frames, and of the vibrating one."""
POINTS = 10
"""Points of a frame across the body."""


@dataclass(frozen=True, kw_only=True)
class FixedWakes(CylinderWakes):
    """Wakes at given Reynolds numbers, in a view from -2 to 6 D along and -2 to 2 D across."""

    numbers: tuple[float, ...]
    view: tuple[int, int] = (40, 80)
    body: tuple[float, float, float] = (19.5, 19.5, float(POINTS))
    cells_per_point: int = WAKE_CELLS // POINTS
    domain: tuple[float, float] = DOMAIN
    upstream: float = UPSTREAM

    def draw(self, index: int) -> dict[str, float]:
        return {"Re": self.numbers[index]}


def simulate_wake(reynolds: float, *, warm_up: float, frames: int, interval: float) -> Trajectory:
    """Return the frames of one wake, with drag and lift at the frames."""
    recipe = FixedWakes(
        numbers=(reynolds,), samples=1, warm_up=warm_up, frames=frames, interval=interval
    )
    (found,) = recipe.simulate([0])
    if isinstance(found, Diverged):
        raise FloatingPointError(f"the lattice Boltzmann solver {found.reason}")
    return found


def simulate_vibration(
    reynolds: float,
    mass: float,
    reduced_velocity: Sequence[float],
    *,
    warm_up: float,
    span: float,
    cells: int = VIBRATION_CELLS,
) -> dict[str, np.ndarray]:
    """Return ``time`` (t,) and ``displacement``, ``drag``, ``lift`` (flow, t); no damping."""
    count = len(reduced_velocity)
    case = tandem(
        [reynolds] * count,
        mass=[mass] * count,
        reduced_velocity=list(reduced_velocity),
        damping_ratio=[0.0] * count,
        cells=float(cells),
        gap=None,
        domain=DOMAIN,
        upstream=UPSTREAM,
        view=(-1.0, 1.0, -1.0, 1.0),
        perturbation=0.5,
    )
    solution = run(case, 2, case.steps(span), warm_up=case.steps(warm_up), compiled=True)
    motion = {name: values.double().numpy() for name, values in solution.motion.items()}
    steps = motion["displacement"].shape[1]
    return {"time": case.dt * np.arange(1, steps + 1), **motion}
