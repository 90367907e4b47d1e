"""Reaction-diffusion against exact fronts, and its order in time."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from pibert.fields import Grid
from pibert.physics import exact
from pibert.physics.families.reaction_diffusion import FISHER_KPP, GRAY_SCOTT
from pibert.solver.heat import diffuse
from pibert.solver.periodic import bump
from pibert.solver.reaction_diffusion import PRESETS, ReactionDiffusion, react_and_diffuse
from tests.physics.helpers import measured_order

GRID = Grid.periodic((20, 36), dx=0.5 / 20, dy=0.8 / 36)


def numbers(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def gray_scott(start: Tensor, time: float, steps: int) -> Tensor:
    coefficients = {"feed": numbers(0.037), "kill": numbers(0.06)}
    diffusivities = [numbers(2e-4), numbers(1e-4)]
    return react_and_diffuse(start, GRID, GRAY_SCOTT, diffusivities, coefficients, time, steps)


def test_gray_scott_is_of_order_four_in_time() -> None:
    hill = bump(GRID, torch.Generator().manual_seed(0), 0.1)
    start = torch.stack((1 - 0.5 * hill, 0.25 * hill))[None]
    reference = gray_scott(start, 24.0, 96)
    errors = [float((gray_scott(start, 24.0, n) - reference).abs().max()) for n in (12, 24, 48)]
    assert measured_order(errors) > 3.7
    assert errors[-1] < 1e-5
    assert (reference - start).abs().max() > 0.1


@pytest.mark.parametrize("name", ["demo", "fisher-kpp"])
def test_presets_are_resolved_in_time_and_space(name: str) -> None:
    recipe = PRESETS[name]
    assert isinstance(recipe, ReactionDiffusion)
    sample = recipe.draw(0)
    parameters = {key: numbers(value) for key, value in sample.parameters.items()}
    fine = replace(recipe, step=recipe.step / 2)
    coarse = better = sample.start[None]
    for _ in range(2):
        coarse, better = recipe.advance(coarse, parameters), fine.advance(better, parameters)
    torch.testing.assert_close(coarse, better, atol=3e-5, rtol=0)
    assert coarse.min() > -1e-5
    spectrum = torch.fft.rfft2(coarse).abs()
    assert spectrum[..., -1].max() < 1e-4 * spectrum[..., 1].max()


def test_without_a_reaction_it_is_heat() -> None:
    u = torch.rand(2, 1, 20, 36, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    diffusivity = numbers(1e-3, 2e-3)
    growth = {"growth": numbers(0.0, 0.0)}
    found = react_and_diffuse(u, GRID, FISHER_KPP, [diffusivity], growth, 0.7, 3)
    torch.testing.assert_close(found[:, 0], diffuse(u[:, 0], GRID, diffusivity, 0.7))


def test_without_diffusion_it_is_logistic_growth() -> None:
    u = torch.full((1, 1, 20, 36), 0.1, dtype=torch.float64)
    growth = {"growth": numbers(1.5)}
    found = react_and_diffuse(u, GRID, FISHER_KPP, [numbers(1e-3)], growth, 2.0, 40)
    expected = 1 / (1 + 9 * math.exp(-3.0))
    torch.testing.assert_close(found, torch.full_like(u, expected), rtol=1e-6, atol=0)


def test_the_front_of_ablowitz_and_zeppetella_is_met() -> None:
    """Speed 5 sqrt(D r / 6); there is another front, its mirror image, so that the box closes."""
    grid = Grid.periodic((8, 800), dx=0.1, dy=0.3)
    mirror = (400 + (torch.arange(800) - 400).abs()).clamp(max=799)

    def fronts(t: float) -> Tensor:
        return exact.fisher_front(grid, t, 0.5, 2.0, start=60.0)[:, mirror]

    start, growth = fronts(0.0)[None, None], {"growth": numbers(2.0)}
    found = react_and_diffuse(start, grid, FISHER_KPP, [numbers(0.5)], growth, 2.0, 40)
    torch.testing.assert_close(found[0, 0], fronts(2.0), atol=1e-5, rtol=0)


def test_a_front_from_a_seed_runs_at_the_least_speed() -> None:
    """2 sqrt(D r) in the end; until then it falls back by sqrt(D / r) 3/2 ln t (Bramson, 1983)."""
    diffusivity, growth = numbers(2.0), {"growth": numbers(0.5)}
    grid = Grid.periodic((8, 320), dx=1.0, dy=1.0)
    x, _ = grid.coordinates(torch.float64)
    u = torch.exp(-(((x - 160) / 4) ** 2))[None, None]
    places = []
    for _ in range(2):
        u = react_and_diffuse(u, grid, FISHER_KPP, [diffusivity], growth, 24.0, 96)
        line = u[0, 0, 0, 160:]
        last = int((line > 0.5).nonzero().max())
        places.append(last + float((line[last] - 0.5) / (line[last] - line[last + 1])))
    expected = 2 * 24 - 2 * 1.5 * math.log(2)
    assert places[1] - places[0] == pytest.approx(expected, rel=0.01)
