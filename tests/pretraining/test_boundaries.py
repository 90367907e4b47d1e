from dataclasses import replace

import pytest
import torch

from pibert.fields import Boundary, FieldSpec, Grid, Normalizer, Sides
from pibert.physics.derivatives import divergence
from pibert.pretraining.boundaries import BrokenBoundaries, side_distances, surface_distance
from pibert.sample_rng import sample_seeds

GRID = Grid((30, 48), dx=0.1, dy=0.15)
SEEDS = sample_seeds(0, 0, torch.arange(12))


def round_body(grid: Grid = GRID, centre: tuple[float, float] = (2.0, 2.2)) -> torch.Tensor:
    x, y = grid.coordinates()
    return (x - centre[0]) ** 2 + (y - centre[1]) ** 2 < 0.6**2


def test_distances_from_a_body_are_those_of_brute_force() -> None:
    body, reach = round_body(), 0.9
    found = surface_distance(body[None], GRID, reach)[0]
    x, y = GRID.coordinates()
    points = torch.stack((x, y), -1)
    half = GRID.cell_length / 2
    outside = torch.cdist(points.flatten(0, 1), points[body]).amin(1).view(GRID.shape) - half
    inside = torch.cdist(points.flatten(0, 1), points[~body]).amin(1).view(GRID.shape) - half
    expected = torch.where(body, -inside, outside).clamp(-reach, reach)
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("where", ["body", "left", "top"])
def test_an_addition_to_a_velocity_has_no_divergence_and_fades_out(where: str) -> None:
    sides = {"body": Sides(), "left": Sides(left=Boundary.INFLOW), "top": Sides(top=Boundary.WALL)}
    body = round_body() if where == "body" else None
    grid = replace(GRID, body=body, sides=sides[where])
    spec = FieldSpec(family="incompressible", grid=grid, channels=("p", "u", "v"))
    normalizer = Normalizer((0.3, 1.0, 0.0), (2.0, 0.5, 0.25))
    broken = BrokenBoundaries(spec, normalizer)
    assert broken.targets == (where,)
    known = torch.ones(12, *grid.shape, dtype=torch.bool)
    if body is not None:
        known &= ~body
    addition = broken.addition(known, SEEDS)
    pressure, u, v = (addition[:, i] * normalizer.std[i] for i in range(3))
    assert bool((pressure == 0).all())
    sizes = torch.hypot(u, v)
    # Stencils that touch the body see values that were cut off.
    inner = divergence(u, v, replace(grid, body=None))
    distance = (
        surface_distance(body[None], grid, 9.0)[0]
        if body is not None
        else side_distances(grid)[where]
    )
    away = (distance > 0.3).expand_as(u)
    assert inner[away].abs().max() < 1e-4 * sizes.max() / grid.dx
    far = distance > broken.reach[1] + 2 * max(grid.dx, grid.dy)
    assert bool(far.any()) and bool((sizes[:, far] == 0).all())
    at_surface = sizes[:, known[0] & (distance.abs() < 0.16)].amax(1)
    assert bool((at_surface > 0.2 * sizes.flatten(1).amax(1)).all())


def test_each_sample_may_have_its_own_body() -> None:
    broken = BrokenBoundaries(
        FieldSpec(family="incompressible", grid=GRID), Normalizer.identity(2), solid_unknown=True
    )
    bodies = torch.stack((round_body(), round_body(centre=(3.0, 1.2))))
    changed = broken.addition(~bodies, SEEDS[:2]).square().sum(1) > 0
    for body, change in zip(bodies, changed, strict=True):
        assert not bool((change & body).any())
        distance = surface_distance(body[None], GRID, 9.0)[0]
        assert bool(change.any()) and distance[change].max() < broken.reach[1] + 0.3
