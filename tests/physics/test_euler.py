"""Compressible flow: equation of state and shocks."""

import math

import pytest
import torch
from torch import Tensor

from pibert.fields import Grid
from pibert.physics import find_family
from pibert.physics.derivatives import Order
from pibert.physics.families.euler import Euler, conserved_variables, shock_sensor
from tests.physics import exact

GAMMA = 1.4
Fields = dict[str, Tensor]


def moving_shock(grid: Grid, t: Tensor, ratio: float = 3.0, along: str = "x") -> Fields:
    """A shock that runs along x or y into gas at rest (Rankine-Hugoniot), from the middle."""
    mach = math.sqrt(1 + (GAMMA + 1) / (2 * GAMMA) * (ratio - 1))
    sound = math.sqrt(GAMMA)
    density = (GAMMA + 1) * mach**2 / ((GAMMA - 1) * mach**2 + 2)
    gust = 2 * sound / (GAMMA + 1) * (mach - 1 / mach)
    x, y = grid.coordinates(torch.float64)
    s = x if along == "x" else y
    behind = (s < s.mean() + mach * sound * t[:, None, None]).double()
    velocity, still = gust * behind, torch.zeros_like(behind)
    u, v = (velocity, still) if along == "x" else (still, velocity)
    return {"rho": 1 + (density - 1) * behind, "u": u, "v": v, "p": 1 + (ratio - 1) * behind}


def sound_wave(grid: Grid, amplitude: float) -> Fields:
    """A linear pressure wave along x, 32 points long."""
    x, _ = grid.coordinates(torch.float64)
    wave = amplitude * torch.sin(2 * math.pi * x / (32 * grid.dx))
    u = math.sqrt(GAMMA) * wave / GAMMA
    return {"rho": 1 + wave / GAMMA, "u": u, "v": torch.zeros_like(u), "p": 1 + wave}


def sensor(fields: Fields, grid: Grid) -> Tensor:
    return shock_sensor(fields["rho"], fields["u"], fields["v"], fields["p"], grid)


def test_conserved_variables_match_hand_computed_numbers() -> None:
    rho, u, v, p = (torch.full((2, 2), c) for c in (2.0, 3.0, -1.0, 0.8))
    found = [q[0, 0].item() for q in conserved_variables(rho, u, v, p)]
    assert found == pytest.approx([2, 6, -2, 0.8 / 0.4 + 2 * (9 + 1) / 2])


def expansion(grid: Grid, t: Tensor) -> Fields:
    """Uniform expansion: velocity x / t, density t^-2, pressure t^-2 gamma."""
    x, y = grid.coordinates(torch.float64)
    t = t[:, None, None]
    one = torch.ones_like(x)
    return {"rho": one / t**2, "u": x / t, "v": y / t, "p": one * t ** (-2 * GAMMA)}


def test_the_energy_residual_knows_gamma() -> None:
    grid, dt = Grid((8, 9), 0.1, 0.2, origin=(-0.3, 0.4)), 1e-3
    fields = expansion(grid, torch.tensor([1 - dt / 2, 1 + dt / 2], dtype=torch.float64))
    family = find_family("euler")
    right = family.residuals(fields, grid, dt=dt, order=4)
    assert max(r.abs().max().item() for r in right.values()) < 1e-4
    wrong = family.residuals(fields, grid, dt=dt, order=4, gamma=1.6)["energy"]
    expected = torch.full_like(wrong, 2 * (1.6 - GAMMA) / (1.6 - 1))
    torch.testing.assert_close(wrong, expected, rtol=0, atol=1e-4)


@pytest.mark.parametrize("along", ["x", "y"])
@pytest.mark.parametrize("ratio", [1.5, 3.0, 30.0])
def test_the_sensor_flags_a_shock_and_nothing_else(ratio: float, along: str) -> None:
    grid = Grid((40, 30), 0.1, 0.07)
    fields = moving_shock(grid, torch.zeros(1, dtype=torch.float64), ratio, along)
    found = sensor(fields, grid)[0]
    line = found[20] if along == "x" else found[:, 15]
    middle = len(line) // 2
    assert (line[middle - 1 : middle + 1] > 0.9).all()
    far = torch.cat((line[: middle - 3], line[middle + 3 :]))
    assert (far < 1e-12).all()


def test_the_sensor_ignores_sound_vortices_contacts_and_expansions() -> None:
    grid = Grid.periodic((32, 64), 0.1, 0.13)
    t = torch.zeros(1, dtype=torch.float64)
    assert sensor(sound_wave(grid, 0.05), grid).max() < 0.01
    fine = Grid.periodic((96, 128), 0.1, 0.13)
    rho, u, v, p = exact.isentropic_vortex(fine, 0.0)
    assert shock_sensor(rho, u, v, p, fine).max() < 0.01
    contact = moving_shock(grid, t)
    contact |= {"p": torch.ones_like(contact["p"]), "u": torch.ones_like(contact["u"])}
    assert sensor(contact, grid).max() == 0
    apart = moving_shock(Grid((32, 64), 0.1, 0.13), t)
    apart["u"] = -apart["u"]
    assert sensor(apart, Grid((32, 64), 0.1, 0.13)).max() == 0


@pytest.mark.parametrize("order", [2, 4])
def test_residuals_are_weighted_down_in_shocks_where_the_bare_ones_are_large(order: Order) -> None:
    grid, dt = Grid((12, 60), 0.05, 0.07), 1e-3
    fields = moving_shock(grid, torch.tensor([0.0, dt], dtype=torch.float64))
    aware = Euler().residuals(fields, grid, dt=dt, order=order)
    bare = Euler(shock_threshold=None).residuals(fields, grid, dt=dt, order=order)
    for term in Euler.terms:
        assert bare[term].abs().max() > 1
        assert aware[term].abs().max() < 0.02 * bare[term].abs().max()


def test_the_sensor_has_finite_gradients_in_still_gas_and_at_zero_pressure() -> None:
    grid = Grid.periodic((6, 6))
    for pressure in (1.0, 0.0):
        values = {"rho": 1.0, "u": 0.0, "v": 0.0, "p": pressure}
        fields = {k: torch.full((6, 6), c, requires_grad=True) for k, c in values.items()}
        sensor(fields, grid).sum().backward()
        assert all(f.grad is not None and torch.isfinite(f.grad).all() for f in fields.values())
