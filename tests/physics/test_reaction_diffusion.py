"""Diagnostics of concentrations: positivity and conservation."""

import math

import pytest
import torch

from pibert.fields import Grid
from pibert.physics import exact
from pibert.physics.families.reaction_diffusion import (
    EXCHANGE,
    FISHER_KPP,
    GRAY_SCOTT,
    Reaction,
    conservation,
    positivity,
)
from tests.physics.helpers import noise


def test_positivity_is_the_mean_depth_below_zero() -> None:
    c = torch.tensor([[[1.0, -2.0], [0.0, -4.0]], [[1.0, 2.0], [0.0, 3.0]]])
    assert positivity(c).tolist() == [1.5, 0.0]


@pytest.mark.parametrize("reaction", [FISHER_KPP, GRAY_SCOTT, EXCHANGE])
def test_only_the_reactions_called_conservative_conserve(reaction: Reaction) -> None:
    species = [noise(4, 4, seed=k).square() for k in range(len(reaction.species))]
    made = reaction.production(species, dict.fromkeys(reaction.coefficients, 0.7))
    balanced = bool(torch.stack(made).sum(0).abs().max() < 1e-14)
    assert balanced == reaction.conservative
    assert max(m.abs().max().item() for m in made) > 0.1


@pytest.mark.parametrize("reaction", [FISHER_KPP, GRAY_SCOTT, EXCHANGE])
def test_no_reaction_takes_away_what_is_not_there(reaction: Reaction) -> None:
    for absent in range(len(reaction.species)):
        species = [noise(4, 4, seed=k).square() for k in range(len(reaction.species))]
        species[absent] = torch.zeros_like(species[absent])
        made = reaction.production(species, dict.fromkeys(reaction.coefficients, 0.7))
        assert (made[absent] >= 0).all()


def test_diffusion_and_exchange_conserve_the_total() -> None:
    grid = Grid.periodic((12, 16), 2 / 16, 3 / 12)
    t = torch.linspace(0, 2, 5, dtype=torch.float64)
    heat = exact.heat_mode(grid, t, 0.1)
    moved = 0.4 * (1 - torch.exp(-t))[:, None, None]
    drift = conservation([1 + heat - moved, 0.5 + moved.expand_as(heat)], grid)
    assert drift.shape == (5,) and drift.abs().max() < 1e-13
    gained = conservation([1 + heat + moved], grid)
    torch.testing.assert_close(gained, moved.flatten())


def test_no_flux_sides_conserve_and_a_growing_front_does_not() -> None:
    n = 20
    grid = Grid((5, n), 0.1, 0.3, origin=(0.05, 0.0))
    t = torch.linspace(0, 1, 4, dtype=torch.float64)
    x, _ = grid.coordinates(torch.float64)
    k = math.pi * 3 / (n * grid.dx)
    mode = 2 + torch.exp(-(k**2) * t)[:, None, None] * torch.cos(k * x)
    assert conservation([mode], grid).abs().max() < 1e-13
    front = exact.fisher_front(grid, t, 0.01, 2.0, start=0.3)
    assert conservation([front], grid)[-1] > 0.5


def test_cells_in_the_body_do_not_count() -> None:
    body = torch.zeros(4, 5, dtype=torch.bool)
    body[1, 2] = True
    frames = torch.ones(2, 4, 5, dtype=torch.float64)
    frames[1, 1, 2] = 100
    assert conservation([frames], Grid((4, 5), body=body)).tolist() == [0, 0]
    frames[1, 0, 0] = 2
    assert conservation([frames], Grid((4, 5), body=body)).tolist() == pytest.approx([0, 1 / 19])
