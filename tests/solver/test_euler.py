"""Compressible flow against exact solutions: shock tube, vortex, entropy wave; conservation."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from pibert.fields import Grid, Trajectory
from pibert.physics.families.euler import conserved_variables
from pibert.solver import euler
from pibert.solver.euler import CompressibleEuler, advance, hllc
from pibert.solver.recipes import Diverged
from tests.helpers import refused
from tests.physics import exact
from tests.physics.helpers import measured_order

AIR = torch.tensor([1.4], dtype=torch.float64)
RECIPE = CompressibleEuler(samples=6, shape=(24, 40), size=(1.0, 1.5), frames=4, interval=0.1)


def gas(rho: Tensor, u: Tensor, v: Tensor, p: Tensor) -> Tensor:
    return torch.stack([part.expand_as(rho) for part in (rho, u, v, p)])[None]


def sod(places: Tensor, t: float) -> Tensor:
    """(rho, u, p) of Sod's tube (1, 0, 1 | 0.125, 0, 0.1) at distances from the diaphragm.

    Between the waves p = 0.30313 and u = 0.92745 solve f_l(p) + f_r(p) = 0 (Toro, 2009, 4.3).
    """
    g, p, u = 1.4, 0.303130178, 0.927452620
    c_l, s = math.sqrt(1.4), places / t
    shock = math.sqrt(1.4 * 0.1 / 0.125) * math.sqrt(
        (g + 1) / (2 * g) * p / 0.1 + (g - 1) / (2 * g)
    )
    ratio = (g - 1) / (g + 1)
    behind = 0.125 * (p / 0.1 + ratio) / (ratio * p / 0.1 + 1)
    inner = p ** (1 / g)
    c_inner = c_l * p ** ((g - 1) / (2 * g))
    fan = 2 / (g + 1) + ratio / c_l * (-s)
    pieces = [
        (s < -c_l, (1.0, 0.0, 1.0)),
        (
            s < u - c_inner,
            (fan ** (2 / (g - 1)), 2 / (g + 1) * (c_l + s), fan ** (2 * g / (g - 1))),
        ),
        (s < u, (inner, u, p)),
        (s < shock, (behind, u, p)),
        (s >= shock, (0.125, 0.0, 0.1)),
    ]
    found = torch.zeros(3, len(places), dtype=torch.float64)
    todo = torch.ones(len(places), dtype=torch.bool)
    for where, values in pieces:
        for row, value in enumerate(values):
            value = torch.as_tensor(value, dtype=torch.float64).expand_as(places)
            found[row] = torch.where(todo & where, value, found[row])
        todo &= ~where
    return found


@pytest.mark.parametrize("turned", [False, True], ids=["along x", "along y"])
def test_sod_shock_tube_converges_with_first_order(turned: bool) -> None:
    """A box of length 2 with two diaphragms, at 1/2 and 3/2: two tubes back to back."""
    errors = []
    for n in (64, 128, 256):
        shape = (n, 8) if turned else (8, n)
        grid = Grid.periodic(shape, dx=0.1 if turned else 2 / n, dy=2 / n if turned else 0.1)
        along = (torch.arange(n, dtype=torch.float64) + 0.5) * 2 / n - 1
        distance = along.abs() - 0.5
        density = torch.where(distance < 0, 1.0, 0.125).double()
        rho = (density[:, None] if turned else density[None]).expand(shape)
        p = torch.where(rho > 0.5, 1.0, 0.1).double()
        still = torch.zeros_like(p)
        found = advance(gas(rho, still, still, p), grid, AIR, 0.2)[0]
        line = found[:, :, 3] if turned else found[:, 3]
        rho_x, u_x, p_x = sod(distance, 0.2)
        speed, across = (line[2], line[1]) if turned else (line[1], line[2])
        off = (line[0] - rho_x).abs() + (speed * along.sign() - u_x).abs() + (line[3] - p_x).abs()
        errors.append(float(off.mean()) / 3)
        assert across.abs().max() < 1e-13
    assert measured_order(errors) > 0.8
    assert errors[-1] < 0.006


def test_the_isentropic_vortex_is_carried_to_second_order() -> None:
    errors = []
    for n in (32, 64):
        grid = Grid.periodic((n, n // 4 * 5), dx=5 / (n // 4 * 5), dy=4 / n)
        start = torch.stack(exact.isentropic_vortex(grid, 0.0, radius=0.4))[None]
        end = torch.stack(exact.isentropic_vortex(grid, 0.3, radius=0.4))[None]
        errors.append(float((advance(start, grid, AIR, 0.3) - end).abs().mean()))
    assert measured_order(errors) > 1.8
    assert errors[-1] < 1e-3


def test_mass_momentum_and_energy_are_conserved_to_rounding() -> None:
    drawn = [RECIPE.draw(index) for index in range(6)]
    gamma = torch.tensor([s.parameters["gamma"] for s in drawn], dtype=torch.float64)
    frames = [torch.stack([sample.start for sample in drawn])]
    for _ in range(3):
        frames.append(advance(frames[-1], RECIPE.grid, gamma, 0.1))
    states = torch.stack(frames, 1)
    assert (states[:, -1] - states[:, 0]).abs().flatten(1).amax(1).min() > 0.05
    rho, u, v, p = states.unbind(2)
    totals = torch.stack(conserved_variables(rho, u, v, p, gamma[:, None])).sum((-2, -1))
    mass, energy = totals[0], totals[3]
    momentum = (mass * energy).sqrt()
    drift = (totals - totals[..., :1]) / torch.stack((mass, momentum, momentum, energy))
    assert drift.abs().max() < 1e-13


def state(*values: float) -> list[Tensor]:
    return [torch.full((1, 1, 1), value, dtype=torch.float64) for value in values]


def own_flux(rho: float, u: float, v: float, p: float) -> list[float]:
    energy = p / 0.4 + rho * (u * u + v * v) / 2
    return [rho * u, rho * u * u + p, rho * u * v, (energy + p) * u]


def flux(left: tuple[float, ...], right: tuple[float, ...]) -> list[float]:
    return [f.item() for f in hllc(state(*left), state(*right), AIR[:, None, None])]


def test_the_flux_is_that_of_the_gas_itself_and_upwind_beyond_sound() -> None:
    slow, fast, faster = (1.2, 0.3, -0.5, 0.9), (0.8, 3.1, 0.2, 1.1), (1.2, 3.3, -0.5, 0.9)
    assert flux(slow, slow) == pytest.approx(own_flux(*slow))
    assert flux(faster, fast) == pytest.approx(own_flux(*faster))
    back, behind = (1.2, -3.3, -0.5, 0.9), (0.8, -3.1, 0.2, 1.1)
    assert flux(back, behind) == pytest.approx(own_flux(*behind))


@pytest.mark.parametrize("speed", [2.0, -3.0], ids=["drawn apart", "driven together"])
def test_density_and_pressure_stay_positive_in_hard_cases(speed: float) -> None:
    """Gas drawn apart at speed 2 almost leaves a vacuum (Einfeldt's 1-2-3 problem)."""
    grid = Grid.periodic((8, 100), dx=0.02, dy=0.02)
    x, _ = grid.coordinates(torch.float64)
    u = torch.where((x > 0.49) & (x < 1.49), speed, -speed).double()
    one = torch.ones_like(u)
    found = advance(gas(one, u, 0 * one, 0.4 * one), grid, AIR, 0.15)
    assert found.isfinite().all()
    assert found[:, 0].min() > 0 and found[:, 3].min() > 0
    assert found[:, 0].min() < 0.05 if speed > 0 else found[:, 0].max() > 3


def test_a_gas_without_pressure_is_reported_as_diverged(monkeypatch: pytest.MonkeyPatch) -> None:
    def hollow(*arguments: object) -> tuple[Tensor, ...]:
        one = torch.ones(RECIPE.shape, dtype=torch.float64)
        return one, 0 * one, 0 * one, -one

    monkeypatch.setitem(euler.STARTS, "shear", hollow)
    first, second, third = RECIPE.simulate([0, 1, 2])
    assert isinstance(first, Trajectory) and isinstance(third, Trajectory)
    assert isinstance(second, Diverged) and "gamma" in second.reason


def test_impossible_gases_and_starts_are_refused() -> None:
    with refused("gamma"):
        replace(RECIPE, gamma=(1.0, 1.4))
    with refused("starts", "smooth, shear, riemann"):
        replace(RECIPE, starts=())
