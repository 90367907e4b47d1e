"""The moving cylinder: its mounting, what it does to the fluid and the fluid to it."""

import math

import pytest
import torch
from torch import Tensor

from pibert.fields import Boundary
from pibert.solver.boundaries import Box, Links, Side, make_links
from pibert.solver.immersed import RETRACTION, ImmersedCylinder, Oscillator
from pibert.solver.lattice import Fluid, equilibrium, interior, make_step, moments, pad
from pibert.solver.wakes import cylinder
from tests.helpers import refused

DOUBLE = torch.float64
SHAPE = (30, 34)


def reals(*values: float) -> Tensor:
    return torch.tensor(values, dtype=DOUBLE)


def small_body(oscillator: Oscillator, travel: float = 6.0) -> ImmersedCylinder:
    return ImmersedCylinder(
        oscillator, centre=(15.3, 14.2), diameter=7.0, travel=travel, shape=SHAPE, dtype=DOUBLE
    )


def held(batch: int) -> Oscillator:
    """A mounting that does not move."""
    zero = torch.zeros(batch, dtype=DOUBLE)
    return Oscillator(torch.full_like(zero, math.inf), zero, zero)


def still(batch: int = 1, shape: tuple[int, int] = SHAPE, speed: float = 0.0) -> Tensor:
    u = torch.full((batch, *shape), speed, dtype=DOUBLE)
    return pad(equilibrium(torch.zeros_like(u), u, torch.zeros_like(u)))


def watch(
    body: ImmersedCylinder, f: Tensor, steps: int, *, viscosity: float = 0.05
) -> tuple[Tensor, Tensor, Tensor]:
    """Populations, displacement and force (b, t) of steps in a periodic box."""
    links = make_links((f.shape[2] - 2, f.shape[3] - 2), Box.periodic(), None, DOUBLE)
    step = make_step(Fluid(viscosity=torch.full((len(f), 1, 1), viscosity, dtype=DOUBLE)))
    links.fill(f, f)
    places, forces = [], []
    for _ in range(steps):
        before, f = f, step(f)
        forces.append(body.advance(f))
        links.fill(f, before)
        places.append(body.displacement)
    return f, torch.stack(places, 1), torch.stack(forces, 1)


def test_the_mounting_follows_from_dimensionless_numbers() -> None:
    mounting = Oscillator.from_numbers(
        mass_ratio=reals(2.0),
        reduced_velocity=reals(5.0),
        damping_ratio=reals(0.1),
        diameter=10.0,
        speed=0.05,
    )
    # m = 2 * 100; the period is 5 D / U = 1000 steps.
    omega = 2 * math.pi / 1000
    assert mounting.mass.item() == 200
    assert mounting.stiffness.item() == pytest.approx(200 * omega**2)
    assert mounting.damping.item() == pytest.approx(2 * 0.1 * 200 * omega)


def test_a_very_heavy_body_swings_as_in_vacuum() -> None:
    omega, ratios = 2 * math.pi / 60, reals(0.0, 0.05)
    mass = torch.full((2,), 1e12, dtype=DOUBLE)
    body = small_body(Oscillator(mass, 2 * ratios * mass * omega, mass * omega**2))
    body.displacement += 0.5
    _, place, _ = watch(body, still(2), 240)
    t = torch.arange(1, 241, dtype=DOUBLE)
    torch.testing.assert_close(place[0], 0.5 * torch.cos(omega * t), rtol=0, atol=0.015)
    # The trapezoidal rule keeps the energy of an undamped swing.
    energy = mass * omega**2 * body.displacement**2 + mass * body.velocity**2
    assert energy[0].item() == pytest.approx(0.25 * 1e12 * omega**2, rel=1e-6)
    slow = omega * math.sqrt(1 - 0.05**2)
    swing = torch.cos(slow * t) + 0.05 * omega / slow * torch.sin(slow * t)
    decay = 0.5 * torch.exp(-0.05 * omega * t) * swing
    torch.testing.assert_close(place[1], decay, rtol=0, atol=0.015)


def test_the_fluid_at_the_surface_moves_with_the_body() -> None:
    mass = reals(1e9)
    body = small_body(Oscillator(mass, 0 * mass, mass * (2 * math.pi / 100) ** 2))
    body.displacement += 1.5
    f, place, _ = watch(body, still(speed=0.05), 88)
    velocity = torch.stack(moments(interior(f))[1:], 1)
    raw = velocity.clone()
    body.correct(velocity)
    angle = torch.linspace(0.1, 6.1, 23, dtype=DOUBLE)
    radius = 3.5 - RETRACTION
    x = 15.3 + radius * torch.cos(angle)
    y = 14.2 + place[0, -1] + radius * torch.sin(angle)

    def kernel(r: Tensor) -> Tensor:
        r = r.abs()
        inner = (1 + (1 - 3 * r**2).clamp(min=0).sqrt()) / 3
        outer = (5 - 3 * r - (1 - 3 * (1 - r) ** 2).clamp(min=0).sqrt()) / 6
        return inner * (r < 0.5) + outer * ((r >= 0.5) & (r < 1.5))

    columns, rows = (torch.arange(n, dtype=DOUBLE) for n in (SHAPE[1], SHAPE[0]))
    weight = kernel(y[:, None] - rows)[:, :, None] * kernel(x[:, None] - columns)[:, None]
    u, v = torch.einsum("nyx,kyx->kn", weight, velocity[0])
    assert body.velocity.item() > 0.05
    # These points lie between the markers.
    assert u.abs().max() < 2e-3 and (v - body.velocity).abs().max() < 2e-3
    assert torch.einsum("nyx,yx->n", weight, raw[0, 0]).abs().max() > 2e-3


def test_fluid_and_body_exchange_momentum_and_lose_none() -> None:
    """Adrift without a spring: what one gains the other loses, step by step."""
    mass = reals(150.0)
    body = small_body(Oscillator(mass, 0 * mass, 0 * mass))
    body.velocity += 0.02
    f = still(speed=0.03)
    start = moments(interior(f))[1].sum()  # no kick yet
    inner = math.pi / 4 * 7.0**2

    def total(f: Tensor) -> tuple[Tensor, Tensor]:
        velocity = torch.stack(moments(interior(f))[1:], 1)
        body.correct(velocity)
        along, across = velocity[0].sum((1, 2))
        return along, across + (mass - inner) * body.velocity

    first = total(f)[1]
    f, _, force = watch(body, f, 60)
    along, across = total(f)
    torch.testing.assert_close(across, first, rtol=0, atol=1e-12)
    assert 0 < body.velocity.item() < 0.019
    # The body is not free along x: its mounting takes what the fluid loses.
    drag = force[0, :, 0].sum()
    torch.testing.assert_close(start - along, drag, rtol=0, atol=1e-12)
    # Along y the force is what accelerates the body, and what the fluid inside it takes.
    gained = mass[0] * (body.velocity[0] - 0.02)
    torch.testing.assert_close(force[0, :, 1].sum(), gained, rtol=0, atol=1e-12)
    assert drag > 0.1


@pytest.mark.slow
def test_a_small_swing_in_still_fluid_has_the_force_of_stokes() -> None:
    """F = -m' y'' (1 + 4 K1(z) / (z K0(z))), z = R sqrt(i omega / nu), m' the mass displaced.

    For R = 3 sqrt(2 nu / omega) the bracket is 1.6701 - 0.7734i. Ten cells across the body add a
    tenth of a displaced mass or two, and the box some per cent.
    """
    diameter, period, shape = 10.0, 600, (104, 96)
    omega = 2 * math.pi / period
    mass = reals(1e12)
    body = ImmersedCylinder(
        Oscillator(mass, 0 * mass, mass * omega**2),
        centre=(47.2, 51.4),
        diameter=diameter,
        travel=2.0,
        shape=shape,
        dtype=DOUBLE,
    )
    body.displacement += 0.3
    viscosity = omega * (diameter / 6) ** 2 / 2
    _, _, force = watch(body, still(shape=shape), 2 * period, viscosity=viscosity)
    lift = force[0, period:, 1]
    t = torch.arange(period + 1, 2 * period + 1, dtype=DOUBLE)
    # y = 0.3 cos(omega t)
    size = 0.5 * period * math.pi / 4 * diameter**2 * omega**2 * 0.3
    in_phase = (lift @ torch.cos(omega * t)).item() / size
    quadrature = (lift @ torch.sin(omega * t)).item() / size
    print(f"in phase {in_phase:.4f}, quadrature {quadrature:.4f}")
    assert 1.65 < in_phase < 1.95
    assert quadrature == pytest.approx(0.7734, rel=0.08)


def test_every_sample_moves_as_if_alone() -> None:
    masses, omega = (80.0, 200.0, 500.0), 2 * math.pi / 80

    def swing(*mass: float) -> tuple[Tensor, Tensor]:
        heavy = reals(*mass)
        body = small_body(Oscillator(heavy, 0 * heavy, heavy * omega**2))
        body.displacement += 0.7
        _, place, force = watch(body, still(len(mass)), 40)
        return place, force

    place, force = swing(*masses)
    for sample, mass in enumerate(masses):
        alone, push = swing(mass)
        torch.testing.assert_close(place[sample], alone[0], rtol=0, atol=1e-12)
        torch.testing.assert_close(force[sample], push[0], rtol=0, atol=1e-12)
    assert (place[0] - place[1]).abs().max() > 0.01


def test_a_held_body_has_nearly_the_drag_of_a_curved_wall() -> None:
    case = cylinder(
        [20.0], cells=8.0, domain=(10.0, 8.0), upstream=4.0, sponge=2.0, view=None, dtype=DOUBLE
    )
    body = ImmersedCylinder(
        held(1),
        centre=(4.0 * 8 - 0.5, 31.5),
        diameter=8.0,
        travel=0.0,
        shape=(64, 80),
        dtype=DOUBLE,
    )
    step, forces = make_step(case.fluid), []
    for links in (case.links, open_links((64, 80), 0.1)):
        f = pad(case.start)
        links.fill(f, f)
        for _ in range(600):
            before, f = f, step(f)
            immersed = body.advance(f) if links is not case.links else None
            on_wall = links.fill(f, before)
            force = on_wall if immersed is None else immersed
        assert force is not None
        forces.append(force)
    wall, (drag, lift) = forces[0][0, 0].item(), forces[1][0].tolist()
    print(f"drag {drag:.5f}, at a curved wall {wall:.5f}")
    assert drag == pytest.approx(wall, rel=0.03)
    assert abs(lift) < 1e-6 and body.displacement.item() == 0


def open_links(shape: tuple[int, int], speed: float) -> Links:
    stream = (speed, 0.0)
    out = Side(Boundary.OUTFLOW, stream)
    return make_links(shape, Box(Side(Boundary.INFLOW, stream), out, out, out), None, DOUBLE)


def test_a_body_beyond_its_travel_is_reported_and_the_others_continue() -> None:
    mass = reals(200.0, 200.0, 200.0)
    body = small_body(Oscillator(mass, 0 * mass, 0 * mass), travel=3.0)
    body.velocity += reals(0.01, 0.2, 0.01)
    f = still(3)
    f[2] = torch.nan
    f, place, _ = watch(body, f, 40)
    assert body.lost.tolist() == [False, True, True]
    assert f[:2].isfinite().all() and 0 < place[0, -1] < 0.4
    gone = body.lost
    body.park(gone)
    assert not body.lost.any()
    assert (body.displacement[gone] == 0).all() and (body.velocity[gone] == 0).all()
    f[gone] = 0.0
    f, place, force = watch(body, f, 2)
    assert f.isfinite().all() and (place[1:] == 0).all() and (force[1:] == 0).all()


def test_bodies_too_light_or_out_of_the_domain_are_refused() -> None:
    with refused("heavier", 0.5):
        small_body(Oscillator(reals(24.5), reals(0.0), reals(0.0)))
    with refused("-2 to 30", "0 to 29"):
        small_body(held(1), travel=10.0)
