"""Explicit steps: their order, and what they do where they are too few."""

import math

import pytest
import torch

from pibert.fields import Grid
from pibert.physics.stepping import DIFFUSION, MOST_STEPS, StepPlan, plan_steps, step

GRID = Grid.periodic((8, 12), dx=0.1, dy=0.2)


def growth_error(steps: int) -> float:
    """Of exponential growth from 1 over a unit of time."""
    before = torch.ones(1, 1, 8, 12, dtype=torch.float64)
    known = torch.ones(1, 8, 12, dtype=torch.bool)
    plan = StepPlan(grid=GRID, dt=1.0, steps=steps, diffusion=1.0)
    found = step(before, 3 * before, known, lambda state: state, plan, slack=9.0)
    return float((found - math.e).abs().max())


def test_a_step_is_of_fourth_order() -> None:
    coarse, fine = growth_error(4), growth_error(8)
    assert coarse < 1e-4
    assert coarse / fine == pytest.approx(16, rel=0.2)


def test_diffusion_that_needs_too_many_steps_is_weakened() -> None:
    diffusivity, squares = 10.0, GRID.dx**-2 + GRID.dy**-2
    plan = plan_steps(GRID, 1.0, diffusivity=diffusivity)
    assert plan.steps == MOST_STEPS
    number = plan.diffusion * diffusivity * squares / MOST_STEPS
    assert number == pytest.approx(DIFFUSION)  # as strong as these steps allow
    slow = plan_steps(GRID, 1.0, diffusivity=1e-2)
    assert slow.diffusion == 1.0
    assert 1e-2 * squares / slow.steps <= DIFFUSION < 1e-2 * squares / (slow.steps - 1)
