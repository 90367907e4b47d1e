"""Explicit steps from one frame to the next under an equation that lacks a term.

The method is the classical Runge-Kutta method of order 4. The number of sub-steps is fixed
beforehand, from statistics of the training data, so that a step never waits for the device. Points
without a full stencil (next to unknown points, and the rim of a grid that is not periodic) are
interpolated linearly between the first frame and the true second one; they are the boundary values
of the others. Values are clamped, so a step cannot blow up.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Self

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from pibert.physics import spectral
from pibert.physics.derivatives import Order
from pibert.physics.grid import Boundary, Grid, Sides

State = Float[Tensor, "b c y x"]
Rate = Callable[[State], State]

ORDER: Order = 4
"""Of the differences in space."""
RIM = 2
"""Points beside a side that is not periodic, whose central stencils reach beyond it."""
MOST_STEPS = 32
"""Sub-steps between two frames. Diffusion that would need more is weakened to what these allow."""
COURANT, DIFFUSION = 1.5, 0.4
"""Cells crossed, and D dt / h^2, per sub-step; stable are 2.06 and 0.52."""


@dataclass(frozen=True, kw_only=True)
class StepPlan:
    """Grid, time and number of sub-steps from a frame to the next."""

    grid: Grid
    dt: float
    """Between the frames."""
    steps: int
    """Sub-steps."""
    diffusion: float
    """Factor, at most 1, that keeps diffusion stable in these steps."""

    @property
    def wrapped(self) -> Grid:
        """The grid with periodic sides: the rim does not count, one-sided stencils would cost."""
        return replace(self.grid, sides=Sides(*[Boundary.PERIODIC] * 4), body=None)

    def at_least(self, steps: int) -> Self:
        """The same plan with at least this many sub-steps."""
        return replace(self, steps=max(steps, self.steps))


def plan_steps(
    grid: Grid, dt: float, velocity: tuple[float, float] = (0.0, 0.0), diffusivity: float = 0.0
) -> StepPlan:
    """Sub-steps for velocities (along x and y) and diffusivities up to the given ones."""
    courant = dt * (velocity[0] / grid.dx + velocity[1] / grid.dy) / COURANT
    diffusion = dt * diffusivity * (grid.dx**-2 + grid.dy**-2) / DIFFUSION
    steps = min(MOST_STEPS, max(1, math.ceil(max(courant, diffusion))))
    return StepPlan(grid=grid, dt=dt, steps=steps, diffusion=min(1.0, steps / max(diffusion, 1e-9)))


def step(
    before: State,
    now: State,
    known: Bool[Tensor, "b y x"],
    rate: Rate,
    plan: StepPlan,
    slack: float = 0.0,
) -> State:
    """Advance a frame by the rate of change.

    Args:
        before: The first frame.
        now: The true second frame.
        known: Where both are known.
        rate: The rate of change, with stencils of ``ORDER`` on ``plan.wrapped``.
        plan: Sub-steps and time.
        slack: How far values may leave the range of both frames, in units of that range. Zero
            suits what obeys a maximum principle, as advection and diffusion do.
    """
    here = known[:, None]
    before, now = (torch.where(here, frame, 0.0) for frame in (before, now))
    inner = framed(plan.grid, RIM, known)
    usable = here & rate(torch.where(here, before, math.nan)).isfinite() & inner
    true_rate = (now - before) / plan.dt
    low, high = torch.minimum(before, now), torch.maximum(before, now)
    low, high = low.amin((-2, -1), keepdim=True), high.amax((-2, -1), keepdim=True)
    low, high = low - slack * (high - low), high + slack * (high - low)

    def total(state: Tensor) -> Tensor:
        return torch.where(usable, rate(state), true_rate)

    state, h = before, plan.dt / plan.steps
    for _ in range(plan.steps):
        first = total(state)
        second = total(state + h / 2 * first)
        third = total(state + h / 2 * second)
        fourth = total(state + h * third)
        change = h / 6 * (first + 2 * (second + third) + fourth)
        state = torch.minimum(torch.maximum(state + change, low), high)
    return state


def step_in_box(
    before: State,
    react: Rate,
    diffusivity: Float[Tensor, "b c 1 1"],
    grid: Grid,
    dt: float,
    steps: int,
) -> State:
    """Reaction and diffusion in a periodic box, the latter exact."""
    modes = spectral.modes_of(grid, before.device)
    h = dt / steps
    half = torch.exp(-h / 2 * diffusivity * modes.squared.to(before.dtype))
    state = torch.fft.rfft2(before)
    for _ in range(steps):
        state = spectral.runge_kutta_step(
            state, lambda s: torch.fft.rfft2(react(modes.field(s))), half, h
        )
    return modes.field(state)


def framed(grid: Grid, width: int, like: Tensor) -> Bool[Tensor, "y x"]:
    """Return False in the outermost points, this many, at sides that are not periodic."""
    inside = torch.zeros(like.shape[-2:], dtype=torch.bool, device=like.device)
    rows = slice(None) if grid.periodic_y else slice(width, -width)
    columns = slice(None) if grid.periodic_x else slice(width, -width)
    inside[rows, columns] = True
    return inside
