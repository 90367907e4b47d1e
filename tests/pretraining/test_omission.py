import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from pibert import sample_rng
from pibert.fields import FieldSpec, Grid, Normalizer, Parameter
from pibert.physics.derivatives import gradient, laplacian
from pibert.pretraining.omission import OmittedTerms
from pibert.sample_rng import sample_seeds
from tests.helpers import refused
from tests.physics import exact

BOX = Grid.periodic((40, 64), dx=2 * math.pi / 64, dy=2 * math.pi / 40)
SEEDS = sample_seeds(0, 0, torch.arange(9))


def change_of(
    spec: FieldSpec, fields: list[Tensor], history: int, known: Tensor | None = None, **table: float
) -> tuple[OmittedTerms, Tensor]:
    """Changes of nine equal samples with channels (t, y, x), which differ in what they omit."""
    frames = torch.stack(fields, 1)[-history:].float()
    normalizer = Normalizer(
        tuple(0.1 * (i + 1) for i in range(len(fields))), tuple(1.0 + i for i in range(len(fields)))
    )
    z = normalizer.apply(frames).expand(9, *frames.shape)
    parameters = spec.encode_parameters(table).expand(9, 16)
    known = torch.ones(9, *spec.grid.shape, dtype=torch.bool) if known is None else known
    omission = OmittedTerms(spec, normalizer, history, parameters[:1])
    change = omission.change(torch.where(known[:, None, None], z, 0.0), parameters, known, SEEDS)
    std = torch.tensor(normalizer.std)[:, None, None]
    return omission, change * std


def lots(omission: OmittedTerms) -> list[str]:
    return [omission.terms[i] for i in sample_rng.integer(SEEDS, "omitted", len(omission.terms))]


def pressure_error(family: str, dt: float) -> float:
    """Of the change without pressure, against dt grad p on an exact Navier-Stokes solution."""
    nu = 0.05
    times = torch.tensor([0.0, dt], dtype=torch.float64)
    u, v, p = exact.taylor_green(BOX, times, nu, modes=(2, 1), stream=(0.3, 0.2))
    spec = FieldSpec(grid=BOX, dt=dt, viscosity=nu, family=family)
    omission, change = change_of(spec, [u, v], 2)
    expected = dt * torch.stack(gradient(p.mean(0), BOX, "spectral")).float()
    chosen = [i for i, term in enumerate(lots(omission)) if term == "pressure"]
    assert chosen
    return float((change[chosen] - expected).abs().max() / expected.abs().max())


@pytest.mark.parametrize("family", ["incompressible", "incompressible-momentum"])
def test_without_pressure_a_flow_lacks_the_pressure_gradient_to_first_order(family: str) -> None:
    coarse, fine = pressure_error(family, 0.04), pressure_error(family, 0.02)
    assert coarse < 0.1
    assert fine < 0.6 * coarse


def test_without_advection_or_diffusion_the_other_is_left() -> None:
    nu, dt = 0.1, 0.05
    times = torch.tensor([0.0, dt], dtype=torch.float64)
    u, v, _ = exact.taylor_green(BOX, times, nu, modes=(2, 1), stream=(0.5, 0.0))
    spec = FieldSpec(family="incompressible", grid=BOX, dt=dt, viscosity=nu)
    omission, change = change_of(spec, [u, v], 2)
    still, _, _ = exact.taylor_green(BOX, times[1:], nu, modes=(2, 1))  # decays, does not move
    inviscid, _, _ = exact.taylor_green(BOX, times[1:], 1e-12, modes=(2, 1), stream=(0.5, 0.0))
    # With a stream that is not carried along, the vortices stay where they were.
    expected = {"advection": still[0] + 0.5 - u[1], "diffusion": inviscid[0] - u[1]}
    for term, value in expected.items():
        chosen = [i for i, lot in enumerate(lots(omission)) if lot == term]
        assert chosen
        error = (change[chosen, 0] - value.float()).abs().max() / value.abs().max()
        assert error < 0.06, term


def test_burgers_flow_without_advection_decays_and_without_diffusion_steepens() -> None:
    nu, dt = 0.05, 0.02
    u, v = exact.burgers_mode(BOX, torch.tensor([0.0, dt]).double(), nu)
    spec = FieldSpec(family="burgers", grid=BOX, dt=dt, viscosity=nu)
    omission, change = change_of(spec, [u, v], 2)
    velocity = torch.stack((u, v), 1)
    along_x, along_y = gradient(velocity[0], BOX, "spectral")
    carried = -(velocity[0, :1] * along_x + velocity[0, 1:] * along_y)
    spread = nu * laplacian(velocity[0], BOX, "spectral")
    for term, left in {"advection": spread, "diffusion": carried}.items():
        chosen = [i for i, lot in enumerate(lots(omission)) if lot == term]
        expected = (velocity[0] + dt * left - velocity[1]).float()
        assert chosen
        assert (change[chosen] - expected).abs().max() < 0.05 * expected.abs().max(), term


def test_a_wave_without_restoring_force_keeps_its_velocity() -> None:
    dt = 0.05
    times = torch.arange(3, dtype=torch.float64) * dt
    u, u_t = exact.standing_wave(BOX, times + 0.7, 1.5, modes=(2, 1))
    spec = FieldSpec(grid=BOX, dt=dt, channels=("u",), family="wave")
    _, change = change_of(spec, [u], 3)
    acceleration = -(u[2] - 2 * u[1] + u[0])
    torch.testing.assert_close(change[0, 0], acceleration.float(), atol=1e-5, rtol=0)
    both = replace(spec, channels=("u", "u_t"), units=(), family="wave-first-order")
    _, change = change_of(both, [u, u_t], 2)
    torch.testing.assert_close(change[0, 0], (u[1] + dt * u_t[1] - u[2]).float(), atol=1e-5, rtol=0)
    torch.testing.assert_close(change[0, 1], (u_t[1] - u_t[2]).float(), atol=1e-5, rtol=0)


@pytest.mark.parametrize("periodic", [True, False])
def test_reaction_and_diffusion_are_left_out_in_turn(periodic: bool) -> None:
    """Of Fisher's equation: logistic growth at every point, or the decay of a wave."""
    dt, growth, diffusivity = 0.2, 3.0, 0.05
    grid = BOX if periodic else replace(BOX, sides=type(BOX.sides)())
    spec = FieldSpec(
        grid=grid,
        dt=dt,
        channels=("u",),
        family="reaction-diffusion",
        parameters=(Parameter(name="diffusivity"), Parameter(name="growth")),
    )
    before = 0.5 + 0.3 * exact.heat_mode(BOX, 0.0, 1.0, modes=(2, 1))
    now = before + 0.01
    omission, change = change_of(
        spec, [torch.stack((before, now))], 2, diffusivity=diffusivity, growth=growth
    )
    share = before / (1 - before) * math.exp(growth * dt)
    expected = {
        "diffusion": share / (1 + share) - now,
        "reaction": 0.5 + 0.3 * exact.heat_mode(BOX, dt, diffusivity, modes=(2, 1)) - now,
    }
    inner = (slice(4, -4), slice(4, -4))  # the rim of an open grid follows the truth
    for term, value in expected.items():
        chosen = [i for i, lot in enumerate(lots(omission)) if lot == term]
        assert chosen
        error = (change[chosen, 0] - value.float())[:, *inner].abs().max() / value.abs().max()
        assert error < 0.02, term


def gas_error(dt: float) -> float:
    """Of the velocity without pressure, against dt grad p / rho in an exact vortex of a gas."""
    grid = Grid.periodic((96, 128), dx=0.1, dy=0.1)
    times = torch.tensor([0.0, dt], dtype=torch.float64)
    rho, u, v, p = exact.isentropic_vortex(grid, times)
    spec = FieldSpec(grid=grid, dt=dt, channels=("rho", "u", "v", "p"), family="euler")
    _, change = change_of(spec, [rho, u, v, p], 2)
    push = torch.stack(gradient(p.mean(0), grid, "spectral")) / rho.mean(0)
    assert change[0, 0].abs().max() < 0.1 * change[0, 1:3].abs().max()  # mass is not pushed
    return float((change[0, 1:3] - dt * push.float()).abs().max() / (dt * push).abs().max())


def test_a_gas_without_pressure_lacks_the_pressure_gradient_to_first_order() -> None:
    coarse, fine = gas_error(0.04), gas_error(0.02)
    assert coarse < 0.2
    assert fine < 0.7 * coarse


def test_points_beside_a_body_and_the_rim_follow_the_truth() -> None:
    grid = Grid((24, 32), dx=0.1, dy=0.1)
    u, v = exact.vortex_street(grid, torch.tensor([0.0, 0.4]).double(), spacing=1.5)
    known = torch.ones(9, 24, 32, dtype=torch.bool)
    known[:, 8:12, 6:10] = False
    spec = FieldSpec(family="incompressible", grid=grid, dt=0.4, viscosity=0.01)
    omission, change = change_of(spec, [u, v], 2, known)
    stepped = [i for i, lot in enumerate(lots(omission)) if lot != "diffusion"]
    part = change[stepped]
    assert bool(part.isfinite().all()) and part.abs().amax() < 6
    for points in (part[..., 8:12, 6:10], part[..., 7, 6:10], part[..., :2, :], part[..., -2:]):
        assert points.abs().max() < 1e-5
    assert part.abs().amax() > 0.1


@pytest.mark.parametrize(
    ("spec", "named"),
    [
        (FieldSpec(family=None), "no PDE family"),
        (FieldSpec(channels=("u",), family="heat", grid=BOX), "time step"),
        (FieldSpec(channels=("u",), family="reaction-diffusion", grid=BOX, dt=0.1), "none"),
        (FieldSpec(family="burgers", grid=BOX, dt=0.1), "burgers"),
    ],
)
def test_a_spec_without_an_omissible_term_is_refused(spec: FieldSpec, named: str) -> None:
    with refused(named):
        OmittedTerms(spec, Normalizer.identity(len(spec.channels)), 2)
