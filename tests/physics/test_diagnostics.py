"""Waves and concentrations: dispersion, reflection, positivity and conservation."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from pibert.fields import Boundary, Grid
from pibert.physics import find_family
from pibert.physics.derivatives import d2dx2
from pibert.physics.families.euler import conserved_variables, euler_conservation
from pibert.physics.families.heat import amount_change, overshoot
from pibert.physics.families.wave import boundary_reflection, dispersion
from tests.helpers import refused
from tests.physics import exact
from tests.physics.test_euler import GAMMA, sensor, sound_wave

BOX = Grid.periodic((12, 16), 2 / 16, 3 / 12)


def times(count: int, dt: float) -> Tensor:
    return dt * torch.arange(count, dtype=torch.float64)


def test_exact_waves_disperse_with_the_speed_times_the_wavenumber() -> None:
    t = times(9, 0.05)
    waves = [
        exact.travelling_wave(BOX, t, 0.8, modes=(1, 0))[0],
        0.5 * exact.travelling_wave(BOX, t, 0.8, modes=(2, -1))[0],
        0.3 * exact.standing_wave(BOX, t, 0.8, modes=(0, 3))[0],
    ]
    found, expected = dispersion(torch.stack(waves).sum(0), BOX, 0.05, 0.8)
    strong = torch.isfinite(found)
    assert strong.nonzero().tolist() == [[0, 1], [3, 0], [9, 0], [11, 2]]
    torch.testing.assert_close(found[strong], expected[strong], rtol=1e-9, atol=0)
    by_hand = 0.8 * math.hypot(2 * math.pi * 2 / 2, 2 * math.pi / 3)
    assert expected[11, 2].item() == pytest.approx(by_hand)


def test_the_lag_of_the_leapfrog_scheme_is_measured() -> None:
    dt, k = 0.05, 2 * math.pi * 5 / 2
    first, second = exact.travelling_wave(BOX, times(2, dt), 1.0, modes=(5, 0))[0]
    frames = [first, second]
    for _ in range(6):
        frames.append(2 * frames[-1] - frames[-2] + dt**2 * d2dx2(frames[-1], BOX))
    measured = dispersion(torch.stack(frames), BOX, dt, 1.0)[0][0, 5].item()
    scheme = 2 / dt * math.asin(dt / BOX.dx * math.sin(k * BOX.dx / 2))
    assert measured == pytest.approx(scheme, rel=1e-9)
    assert measured < 0.95 * k


def pulse_against_a_side(side: str, echo: float, speed: float = 1.5) -> tuple[Tensor, Grid, float]:
    """A pulse that runs out through the side and returns ``echo`` times as high."""
    dt, step = 0.004, 0.01
    s = step * torch.arange(101, dtype=torch.float64)
    t = dt * torch.arange(int(2 / (speed * dt)), dtype=torch.float64)[:, None]

    def pulse(z: Tensor) -> Tensor:
        return torch.exp(-(((z - 0.4) / 0.08) ** 2))

    line = pulse(s - speed * t) + echo * pulse(2 - s - speed * t)  # (t, s)
    if side in ("left", "bottom"):
        line = line.flip(-1)
    if side in ("left", "right"):
        return line[:, None, :].expand(-1, 5, -1), Grid((5, 101), step, 0.3), dt
    return line[:, :, None].expand(-1, -1, 5), Grid((101, 5), 0.3, step), dt


@pytest.mark.parametrize("side", ["left", "right", "bottom", "top"])
@pytest.mark.parametrize("echo", [-1.0, 1.0, 0.5, 0.0])
def test_reflection_is_the_energy_share_of_the_echo(side: str, echo: float) -> None:
    frames, grid, dt = pulse_against_a_side(side, echo)
    found = boundary_reflection(frames, grid, dt, 1.5, side)
    assert found.item() == pytest.approx(echo**2, abs=1e-3)


def test_a_side_that_no_wave_reaches_does_not_count() -> None:
    frames, grid, dt = pulse_against_a_side("right", 0.5)
    frames = torch.where(torch.arange(101) < 20, 0.0, frames)  # nothing near the left side
    sides = grid.sides._replace(bottom=Boundary.WALL, top=Boundary.WALL)
    grid = replace(grid, sides=sides)
    assert boundary_reflection(frames, grid, dt, 1.5, "left").isnan()
    found = find_family("wave").diagnostics({"u": frames}, grid, dt=dt, speed=1.5)
    assert float(found["reflection"]) == pytest.approx(0.25, abs=1e-3)


def test_the_error_of_the_frequencies_is_weighted_with_the_energy() -> None:
    t = times(9, 0.05)
    strong = exact.travelling_wave(BOX, t, 0.8, modes=(1, 0))[0]
    slow = exact.travelling_wave(BOX, t, 0.4, modes=(2, -1))[0]  # half of its frequency
    found = find_family("wave").diagnostics({"u": strong + 0.5 * slow}, BOX, dt=0.05, speed=0.8)
    share = 0.25 / 1.25  # of the energy
    assert float(found["dispersion_error"]) == pytest.approx(0.5 * share, rel=1e-2)


def test_diffusion_conserves_the_total() -> None:
    grid = Grid.periodic((12, 16), 2 / 16, 3 / 12)
    t = torch.linspace(0, 2, 5, dtype=torch.float64)
    heat = exact.heat_mode(grid, t, 0.1)
    moved = 0.4 * (1 - torch.exp(-t))[:, None, None]
    drift = amount_change(1.5 + heat, grid)
    assert drift.shape == (5,) and drift.abs().max() < 1e-13
    gained = amount_change(1 + heat + moved, grid)
    torch.testing.assert_close(gained, moved.flatten())


def test_cells_in_the_body_do_not_count() -> None:
    body = torch.zeros(4, 5, dtype=torch.bool)
    body[1, 2] = True
    frames = torch.ones(2, 4, 5, dtype=torch.float64)
    frames[1, 1, 2] = 100
    assert amount_change(frames, Grid((4, 5), body=body)).tolist() == [0, 0]
    frames[1, 0, 0] = 2
    assert amount_change(frames, Grid((4, 5), body=body)).tolist() == pytest.approx([0, 1 / 19])


def rusanov_step(q: Tensor, grid: Grid, dt: float) -> Tensor:
    """One conservative step of (rho, rho u, rho v, E) (4, y, x) along x on a periodic box."""
    rho, mx, my, energy = q
    u, v = mx / rho, my / rho
    p = (GAMMA - 1) * (energy - rho * (u**2 + v**2) / 2)
    flux = torch.stack((mx, mx * u + p, my * u, (energy + p) * u))
    fastest = (u.abs() + (GAMMA * p / rho).sqrt()).max()
    ahead_q, ahead_flux = q.roll(-1, -1), flux.roll(-1, -1)
    face = (flux + ahead_flux) / 2 - fastest / 2 * (ahead_q - q)
    return q - dt / grid.dx * (face - face.roll(1, -1))


def test_totals_are_conserved_across_shocks_and_not_by_a_wrong_flow() -> None:
    grid = Grid.periodic((5, 80), 0.05, 0.1)
    fields = sound_wave(grid, 0.9)
    q = torch.stack(conserved_variables(*fields.values()))
    frames = [q]
    for _ in range(60):
        frames.append(rusanov_step(frames[-1], grid, 0.008))
    rho, mx, my, energy = torch.stack(frames, dim=1)  # each (t, y, x)
    u, v = mx / rho, my / rho
    flow = {"rho": rho, "u": u, "v": v, "p": (GAMMA - 1) * (energy - rho * (u**2 + v**2) / 2)}
    assert sensor({k: f[-1] for k, f in flow.items()}, grid).max() > 0.5
    drift = euler_conservation(flow, grid)
    assert [d.shape for d in drift.values()] == [(1, 61), (2, 61), (1, 61)]
    assert max(d.abs().max().item() for d in drift.values()) < 1e-12
    doubled = flow | {"p": torch.cat((flow["p"][:-1], 2 * flow["p"][-1:]))}
    assert euler_conservation(doubled, grid)["energy"][0, -1] > 0.5
    assert euler_conservation(doubled, grid)["mass"].abs().max() < 1e-12
    gusty = flow | {"u": torch.cat((flow["u"][:-1], flow["u"][-1:] + 0.5))}
    assert euler_conservation(gusty, grid)["momentum"][0, -1] > 0.1
    with refused("periodic"):
        euler_conservation(flow, Grid((5, 80)))


def test_diffusion_makes_no_new_extremes() -> None:
    field = torch.rand(5, 4, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    field[0, 0, 0], field[0, 0, 1] = 1.0, 0.0
    assert float(overshoot(field)) == 0.0
    field[3, 2, 2], field[4, 1, 1] = 1.25, -0.1
    assert float(overshoot(field)) == pytest.approx(0.25)
    torch.testing.assert_close(overshoot(field[None] * 4 + 3), torch.tensor([0.25]).double())


def test_negativity_is_the_mean_depth_below_zero() -> None:
    family = find_family("reaction-diffusion")
    frames = torch.tensor([[[1.0, -2.0], [0.0, -4.0]], [[1.0, 2.0], [0.0, 3.0]]])
    fields = dict.fromkeys(family.channels, frames)
    found = family.diagnostics(fields, Grid((2, 2)), dt=None)
    assert found["negativity"].item() == pytest.approx(0.75)


def test_divergence_and_momentum_of_a_flow_in_a_box() -> None:
    y, x = (2 * math.pi / n * torch.arange(n, dtype=torch.float64) for n in (24, 36))
    box = Grid.periodic((24, 36), 2 * math.pi / 36, 2 * math.pi / 24)
    turning = torch.sin(y)[:, None].expand(2, 24, 36)  # u(y): no divergence
    gust = torch.tensor([0.0, 0.5])[:, None, None]
    flow = {"u": turning + gust, "v": torch.zeros(2, 24, 36, dtype=torch.float64)}
    found = find_family("incompressible").diagnostics(flow, box, dt=0.1)
    assert float(found["divergence_share"]) == pytest.approx(0.0, abs=1e-12)
    assert float(found["momentum_drift"]) == pytest.approx(0.25 * math.sqrt(2))  # of u_rms = 0.7
    squeezed = {"u": torch.cos(x).expand(2, 24, 36), "v": flow["v"]}  # u(x): nothing else
    view = Grid((24, 36), box.dx, box.dy)
    found = find_family("incompressible").diagnostics(squeezed, view, dt=1.0)
    assert float(found["divergence_share"]) == pytest.approx(1.0)
    assert "momentum_drift" not in found


def test_density_and_pressure_that_are_not_positive_are_counted() -> None:
    fields = sound_wave(Grid.periodic((5, 80), 0.05, 0.1), 0.1)
    flow = {name: field.expand(3, 5, 80).clone() for name, field in fields.items()}
    grid = Grid((5, 80))
    found = find_family("euler").diagnostics(flow, grid, dt=1.0)
    assert found == {"unphysical_share": 0}
    flow["p"][1, 2] = -0.1
    found = find_family("euler").diagnostics(flow, grid, dt=1.0)
    assert float(found["unphysical_share"]) == pytest.approx(80 / (2 * 3 * 5 * 80))
