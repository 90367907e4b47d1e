"""Heat, waves, Burgers flow and reaction-diffusion against exact solutions, on non-square cells."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from pibert.fields import Grid, Trajectory
from pibert.physics import find_family
from pibert.physics.derivatives import gradient
from pibert.physics.families.reaction_diffusion import FISHER_KPP, GRAY_SCOTT
from pibert.solver.burgers import PRESETS, Burgers
from pibert.solver.linear import Wave, diffuse, propagate
from pibert.solver.periodic import bump
from pibert.solver.reaction_diffusion import react_and_diffuse
from tests.helpers import assert_close
from tests.physics import exact
from tests.physics.helpers import measured_order, noise

GRID = Grid.periodic((18, 25), dx=0.07, dy=0.11)


@pytest.mark.parametrize("time", [1e-3, 0.4, 3.0])
def test_every_mode_decays_exactly(time: float) -> None:
    diffusivity = torch.tensor([0.01, 0.3], dtype=torch.float64)
    start = exact.heat_mode(GRID, 0.0, 1.0, modes=(2, 3)) + 0.7
    found = diffuse(torch.stack((start, start)), GRID, diffusivity, time)
    for sample, alpha in zip(found, diffusivity.tolist(), strict=True):
        expected = exact.heat_mode(GRID, time, alpha, modes=(2, 3)) + 0.7
        torch.testing.assert_close(sample, expected, atol=1e-14, rtol=0)


def test_a_point_of_heat_becomes_the_heat_kernel() -> None:
    grid = Grid.periodic((60, 80), dx=0.05, dy=0.06)
    start = torch.zeros(1, 60, 80, dtype=torch.float64)
    start[0, 30, 40] = 1 / (0.05 * 0.06)
    found = diffuse(start, grid, torch.tensor([0.5], dtype=torch.float64), 0.05)
    kernel = exact.heat_kernel(grid, 0.05, 0.5, centre=(40 * 0.05, 30 * 0.06))
    torch.testing.assert_close(found[0], kernel, atol=1e-8, rtol=0)


@pytest.mark.parametrize("time", [1e-3, 0.4, 30.0])
def test_waves_run_exactly(time: float) -> None:
    speed = torch.tensor([0.3, 2.0], dtype=torch.float64)
    begin = [exact.travelling_wave(GRID, 0.0, c, modes=(2, -3)) for c in speed.tolist()]
    u, u_t = (torch.stack(parts) for parts in zip(*begin, strict=True))
    found = propagate(u, u_t, GRID, speed, time)
    for sample, c in enumerate(speed.tolist()):
        expected = exact.travelling_wave(GRID, time, c, modes=(2, -3))
        for part, value in zip(found, expected, strict=True):
            torch.testing.assert_close(part[sample], value, atol=1e-10, rtol=0)


def test_energy_is_kept_and_time_runs_backwards() -> None:
    speed = torch.tensor([1.3], dtype=torch.float64)
    start = noise(1, 18, 25), noise(1, 18, 25, seed=1)

    def energy(u: torch.Tensor, u_t: torch.Tensor) -> float:
        u_x, u_y = gradient(u, GRID, "spectral")
        return float((u_t**2 + 1.3**2 * (u_x**2 + u_y**2)).mean())

    # An odd number of columns, and rows without their Nyquist wave, whose gradient is not seen.
    spectrum = torch.fft.rfft2(torch.stack(start))
    spectrum[..., 9, :] = 0
    u, u_t = torch.fft.irfft2(spectrum, s=(18, 25))
    later = propagate(u, u_t, GRID, speed, 0.7)
    assert energy(*later) == pytest.approx(energy(u, u_t), rel=1e-12)
    back = propagate(later[0], -later[1], GRID, speed, 0.7)
    torch.testing.assert_close(back[0], u)
    torch.testing.assert_close(back[1], -u_t)


def test_open_waves_leave_and_do_not_come_back() -> None:
    """Frames do not depend on the size of the box, which grows with the number of frames."""
    short = Wave(
        samples=1,
        shape=(32, 40),
        frames=6,
        interval=0.05,
        speed=(1.0, 2.0),
        width=(0.08, 0.1),
        open_sides=True,
    )
    long = replace(short, frames=41)
    assert long.box.shape[0] > short.box.shape[0] > 32
    (few,), (many,) = short.simulate([0]), long.simulate([0])
    assert isinstance(few, Trajectory) and isinstance(many, Trajectory)
    assert few.spec.grid.shape == (32, 40) and not few.spec.grid.periodic_x
    assert_close(few.read(), many.read()[:6], rtol=1e-4)
    u = many.read().double()[:, 0]
    assert u[-1].abs().max() < 0.02 * u[0].abs().max()
    found = find_family("wave-first-order").diagnostics(
        {"u": u}, many.spec.grid, dt=many.spec.dt, **many.parameters
    )
    assert found["reflection"] < 0.05


def test_burgers_flow_matches_the_cole_hopf_solution() -> None:
    recipe = Burgers(samples=1, shape=(48, 64), size=(3.0, 2.0), interval=0.2, viscosity=(0.1, 0.1))
    before, after = (torch.stack(exact.burgers_mode(recipe.grid, t, 0.1)) for t in (0.0, 0.2))
    found = recipe.advance(before[None], {"viscosity": torch.tensor([0.1]).double()})[0]
    assert (found - after).abs().max() < 1e-6 * after.abs().max()
    assert (before - after).abs().max() > 0.1 * after.abs().max()


@pytest.mark.parametrize("name", PRESETS)
def test_presets_resolve_their_fronts_and_lose_speed(name: str) -> None:
    (trajectory,) = PRESETS[name].simulate([3])  # of low viscosity
    assert isinstance(trajectory, Trajectory)
    states = trajectory.read().double()
    size, cut = torch.fft.rfft2(states).abs(), states.shape[-1] // 3
    assert (size[..., cut - 3 : cut].amax((-3, -2, -1)) < 1e-2 * size.amax((-3, -2, -1))).all()
    assert (states.abs().amax((1, 2, 3)).diff() < 0.05).all()


DISH = Grid.periodic((20, 36), dx=0.5 / 20, dy=0.8 / 36)


def numbers(*values: float) -> Tensor:
    return torch.tensor(values, dtype=torch.float64)


def gray_scott(start: Tensor, time: float, steps: int) -> Tensor:
    coefficients = {"feed": numbers(0.037), "kill": numbers(0.06)}
    diffusivities = [numbers(2e-4), numbers(1e-4)]
    return react_and_diffuse(start, DISH, GRAY_SCOTT, diffusivities, coefficients, time, steps)


def test_gray_scott_is_of_order_four_in_time() -> None:
    hill = bump(DISH, torch.Generator().manual_seed(0), 0.1)
    start = torch.stack((1 - 0.5 * hill, 0.25 * hill))[None]
    reference = gray_scott(start, 24.0, 96)
    errors = [float((gray_scott(start, 24.0, n) - reference).abs().max()) for n in (12, 24, 48)]
    assert measured_order(errors) > 3.7
    assert errors[-1] < 1e-5
    assert (reference - start).abs().max() > 0.1


def test_without_a_reaction_it_is_heat() -> None:
    u = torch.rand(2, 1, 20, 36, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    diffusivity = numbers(1e-3, 2e-3)
    growth = {"growth": numbers(0.0, 0.0)}
    found = react_and_diffuse(u, DISH, FISHER_KPP, [diffusivity], growth, 0.7, 3)
    torch.testing.assert_close(found[:, 0], diffuse(u[:, 0], DISH, diffusivity, 0.7))


def test_without_diffusion_it_is_logistic_growth() -> None:
    u = torch.full((1, 1, 20, 36), 0.1, dtype=torch.float64)
    growth = {"growth": numbers(1.5)}
    found = react_and_diffuse(u, DISH, FISHER_KPP, [numbers(1e-3)], growth, 2.0, 40)
    expected = 1 / (1 + 9 * math.exp(-3.0))
    torch.testing.assert_close(found, torch.full_like(u, expected), rtol=1e-6, atol=0)


def test_fisher_fronts_match_ablowitz_and_zeppetella() -> None:
    """Speed 5 sqrt(D r / 6); there is another front, its mirror image, so that the box closes."""
    grid = Grid.periodic((8, 800), dx=0.1, dy=0.3)
    mirror = (400 + (torch.arange(800) - 400).abs()).clamp(max=799)

    def fronts(t: float) -> Tensor:
        return exact.fisher_front(grid, t, 0.5, 2.0, start=60.0)[:, mirror]

    start, growth = fronts(0.0)[None, None], {"growth": numbers(2.0)}
    found = react_and_diffuse(start, grid, FISHER_KPP, [numbers(0.5)], growth, 2.0, 40)
    torch.testing.assert_close(found[0, 0], fronts(2.0), atol=1e-5, rtol=0)
