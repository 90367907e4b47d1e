"""Every family: its residual vanishes on exact solutions at its order, and on no others."""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor

from pibert.fields import (
    Boundary,
    FieldSpec,
    Grid,
    Normalizer,
    Parameter,
    Sides,
    is_solenoidal,
    known_coefficients,
)
from pibert.models.attention import PhysicsBias
from pibert.models.baselines.pitt import VOCABULARY, EquationText
from pibert.physics import FAMILIES, Family, find_family, magnitude, masked_residuals
from pibert.physics.derivatives import Order, ddx, divergence, laplacian, vorticity
from pibert.physics.families import ReactionDiffusion
from pibert.physics.families.family import midpoint
from pibert.physics.families.reaction_diffusion import Reaction
from pibert.pretraining.negatives import Negatives, NegativesConfig
from tests.helpers import refused
from tests.physics import exact
from tests.physics.helpers import measured_order, noise

Fields = dict[str, Tensor]


class Case(NamedTuple):
    """An exact solution of a family."""

    family: Family
    make: Callable[[Grid, Tensor], Fields]
    coefficients: Mapping[str, Any]


def exchange(species: Sequence[Tensor], k: Mapping[str, Any]) -> tuple[Tensor, ...]:
    conversion = k["forward"] * species[0] - k["backward"] * species[1]
    return -conversion, conversion


EXCHANGE = Reaction(species=("a", "b"), coefficients=("forward", "backward"), production=exchange)


def exchange_mode(grid: Grid, t: Tensor) -> Fields:
    """Equal diffusion: a + b decays as the heat mode, k1 a - k2 b also by the reaction."""
    total = exact.heat_mode(grid, t, 0.1)
    excess = 0.3 * exact.heat_mode(grid, t, 0.1, modes=(2, 1)) * torch.exp(-2.0 * t)[:, None, None]
    return {"a": (1.5 * total + excess) / 2, "b": (0.5 * total - excess) / 2}


def named(names: str, values: tuple[Tensor, ...]) -> Fields:
    return dict(zip(names.split(), values, strict=False))


CASES = {
    "vorticity": Case(
        FAMILIES["incompressible"],
        lambda g, t: named("u v", exact.taylor_green(g, t, 0.05, stream=(0.4, 0.2))),
        {"viscosity": 0.05},
    ),
    "momentum": Case(
        FAMILIES["incompressible-momentum"],
        lambda g, t: named("u v p", exact.taylor_green(g, t, 0.05, stream=(0.4, 0.2), density=1.3)),
        {"viscosity": 0.05, "density": 1.3},
    ),
    "heat": Case(
        FAMILIES["heat"], lambda g, t: {"u": exact.heat_mode(g, t, 0.1)}, {"diffusivity": 0.1}
    ),
    "wave": Case(
        FAMILIES["wave"], lambda g, t: {"u": exact.standing_wave(g, t, 0.8)[0]}, {"speed": 0.8}
    ),
    "wave with rates": Case(
        FAMILIES["wave"],
        lambda g, t: named("u u_t", exact.travelling_wave(g, t, 0.8, modes=(1, 1))),
        {"speed": 0.8},
    ),
    "first-order wave": Case(
        FAMILIES["wave-first-order"],
        lambda g, t: named("u u_t", exact.standing_wave(g, t, 0.8)),
        {"speed": 0.8},
    ),
    "exchange": Case(
        ReactionDiffusion("exchange", EXCHANGE),
        exchange_mode,
        {"diffusivity_a": 0.1, "diffusivity_b": 0.1, "forward": 0.5, "backward": 1.5},
    ),
    "euler": Case(
        FAMILIES["euler"],
        lambda g, t: named("rho u v p", exact.isentropic_vortex(g, t, strength=1.0)),
        {"gamma": 1.4},
    ),
    "burgers": Case(
        FAMILIES["burgers"],
        lambda g, t: named("u v", exact.burgers_mode(g, t, 0.1)),
        {"viscosity": 0.1},
    ),
}


def periodic_box(n: int) -> Grid:
    """2 by 3 units, non-square cells."""
    return Grid.periodic((n + n // 4, n), 2 / n, 3 / (n + n // 4))


def frames_until(time: float, dt: float, count: int) -> Tensor:
    return time + dt * torch.arange(1 - count, 1, dtype=torch.float64)


def largest_residual(case: Case, grid: Grid, dt: float, order: Order) -> float:
    fields = case.make(grid, frames_until(0.3, dt, 3))
    residuals = case.family.residuals(fields, grid, dt=dt, order=order, **case.coefficients)
    assert tuple(residuals) == case.family.terms
    return max(r.abs().max().item() for r in residuals.values())


@pytest.mark.parametrize("order", [2, 4])
@pytest.mark.parametrize("name", CASES)
def test_residuals_vanish_with_the_order_in_space(name: str, order: Order) -> None:
    sizes = (96, 192) if name == "euler" else (16, 32, 64)
    power = 1 if order == 2 else 2  # the time step shrinks so that both errors have one order
    errors = [
        largest_residual(CASES[name], periodic_box(n), 0.5 * (4 / n) ** power, order) for n in sizes
    ]
    assert int(order) - 0.25 < measured_order(errors) < int(order) + 0.5


@pytest.mark.parametrize("name", CASES)
def test_residuals_vanish_with_second_order_in_time(name: str) -> None:
    grid = periodic_box(64 if name == "euler" else 16)
    errors = [largest_residual(CASES[name], grid, dt, "spectral") for dt in (0.08, 0.04, 0.02)]
    assert measured_order(errors) == pytest.approx(2, abs=0.2)


@pytest.mark.parametrize("order", [2, 4])
@pytest.mark.parametrize("name", ["vorticity", "momentum", "heat"])
def test_the_order_holds_up_to_sides_that_are_not_periodic(name: str, order: Order) -> None:
    case, errors = CASES[name], []
    for n in (48, 96, 192):
        box, dt = periodic_box(n), 1e-3 * (48 / n) ** 2
        view = Grid((n // 2, n // 2), box.dx, box.dy)
        fields = {
            k: f[..., : n // 2, : n // 2]
            for k, f in case.make(box, frames_until(0.3, dt, 2)).items()
        }
        residuals = case.family.residuals(fields, view, dt=dt, order=order, **case.coefficients)
        errors.append(residuals[case.family.terms[-1]].abs().max().item())
    assert int(order) - 0.25 < measured_order(errors) < int(order) + 0.6


def test_the_vorticity_residual_is_signed_and_scaled() -> None:
    grid, times = periodic_box(16), frames_until(0.3, 1e-4, 2)
    u, v, _ = exact.taylor_green(grid, times, 0.05)
    family = find_family("incompressible")
    found = family.residuals({"u": u, "v": v}, grid, dt=1e-4, order="spectral", viscosity=0.02)[
        "vorticity"
    ][..., 0, :, :]
    omega = vorticity(u[1], v[1], grid, "spectral")
    expected = (0.05 - 0.02) * laplacian(omega, grid, "spectral")
    torch.testing.assert_close(found, expected, rtol=1e-3, atol=1e-6)
    growing = family.residuals({"u": u.flip(0), "v": v.flip(0)}, grid, dt=1e-4, order="spectral")
    decay = -0.05 * laplacian(omega, grid, "spectral")
    torch.testing.assert_close(growing["vorticity"][..., 0, :, :], decay, rtol=1e-3, atol=1e-6)


def test_the_momentum_residual_without_pressure_is_minus_its_gradient() -> None:
    grid, times = periodic_box(16), frames_until(0.3, 1e-4, 2)
    u, v, p = exact.taylor_green(grid, times, 0.05)
    found = find_family("incompressible-momentum").residuals(
        {"u": u, "v": v}, grid, dt=1e-4, order="spectral", viscosity=0.05
    )["momentum"]
    middle = p.mean(0)
    kx, ky = 2 * math.pi / 2, 2 * math.pi / 3
    x, y = grid.coordinates(torch.float64)
    decay = math.exp(-2 * 0.05 * (kx**2 + ky**2) * 0.3) / 4
    p_x, p_y = (
        2 * kx * decay * torch.sin(2 * kx * x),
        2 * kx**2 / ky * decay * torch.sin(2 * ky * y),
    )
    torch.testing.assert_close(found, -torch.stack((p_x, p_y)), rtol=1e-3, atol=1e-4)
    assert middle.abs().max() > 0.1


def test_the_divergence_is_that_of_the_last_frame() -> None:
    grid = Grid((6, 7), dx=0.5, dy=0.25)
    x, y = grid.coordinates(torch.float64)
    fields = {"u": torch.stack((5 * x, 2 * x)), "v": torch.stack((9 * y, -5 * y))}
    for name in ("incompressible", "incompressible-momentum"):
        found = find_family(name).residuals(fields, grid, dt=0.1)["divergence"]
        torch.testing.assert_close(found, torch.full((1, 6, 7), -3.0, dtype=torch.float64))


def test_the_fisher_front_satisfies_its_equation_up_to_the_sides_and_no_other_growth() -> None:
    family = find_family("reaction-diffusion")
    errors = []
    for n in (40, 80, 160):
        grid, dt = Grid((5, n + 1), 10 / n, 0.3, origin=(-4.0, 0.0)), 2 / n
        fields = {"u": exact.fisher_front(grid, frames_until(0.5, dt, 2), 0.5, 2.0)}
        found = family.residuals(fields, grid, dt=dt, diffusivity=0.5, growth=2.0)
        errors.append(found["reaction_diffusion"].abs().max().item())
    assert 1.8 < measured_order(errors) < 2.5
    wrong = family.residuals(fields, grid, dt=dt, diffusivity=0.5, growth=1.0)
    u = fields["u"].mean(0)
    expected = (2.0 - 1.0) * u * (1 - u)
    torch.testing.assert_close(wrong["reaction_diffusion"][0], expected, atol=5e-3, rtol=0)


def test_gray_scott_kinetics_match_hand_computed_numbers() -> None:
    a, b = (torch.full((1, 6, 6), c, dtype=torch.float64) for c in (0.5, 0.25))
    grid, family = Grid.periodic((6, 6)), find_family("gray-scott")

    def uniform(**coefficients: Any) -> list[float]:
        found = family.residuals({"a": a, "b": b}, grid, **coefficients)["reaction_diffusion"]
        return found[:, 2, 3].tolist()

    assert uniform() == pytest.approx([0.03125, -0.03125])
    assert uniform(feed=0.04) == pytest.approx([0.03125 - 0.02, -0.03125 + 0.01])
    assert uniform(feed=0.04, kill=0.06) == pytest.approx([0.01125, -0.03125 + 0.025])
    x, y = Grid((6, 6)).coordinates(torch.float64)
    curved = {"a": a + (x**2)[None], "b": b + 3 * (y**2)[None]}
    diffusivities: dict[str, Any] = {"diffusivity_a": 0.1, "diffusivity_b": 0.2}
    spread_out = family.residuals(curved, Grid((6, 6)), **diffusivities)["reaction_diffusion"]
    local = family.residuals(curved, Grid((6, 6)))["reaction_diffusion"]
    torch.testing.assert_close((spread_out - local)[0], torch.full_like(x, -0.1 * 2))
    torch.testing.assert_close((spread_out - local)[1], torch.full_like(x, -0.2 * 6))


@pytest.mark.parametrize("name", CASES)
def test_one_frame_and_no_time_step_give_the_same_steady_proxy(name: str) -> None:
    case, grid = CASES[name], periodic_box(16)
    fields = case.make(grid, frames_until(0.3, 0.1, 3))
    single = {k: f[-1:] for k, f in fields.items()}
    proxy = case.family.residuals(single, grid, dt=0.1, **case.coefficients)
    without_dt = case.family.residuals(fields, grid, **case.coefficients)
    full = case.family.residuals(fields, grid, dt=0.1, **case.coefficients)
    for term in case.family.terms:
        torch.testing.assert_close(proxy[term], without_dt[term])
    term = case.family.terms[-1]
    assert (full[term] - proxy[term]).abs().max() > 1e-2


def test_a_missing_coefficient_omits_its_term() -> None:
    grid, fields = periodic_box(16), {"u": noise(2, 20, 16), "v": noise(2, 20, 16, seed=1)}
    for name in ("incompressible", "incompressible-momentum"):
        family = find_family(name)
        without = family.residuals(fields, grid, dt=0.1)[family.terms[1]]
        zero = family.residuals(fields, grid, dt=0.1, viscosity=0.0)[family.terms[1]]
        some = family.residuals(fields, grid, dt=0.1, viscosity=0.1)[family.terms[1]]
        torch.testing.assert_close(without, zero)
        assert (some - without).abs().max() > 1
    heat = find_family("heat").residuals({"u": fields["u"]}, grid, dt=0.1)["heat"][0]
    torch.testing.assert_close(heat, (fields["u"][1] - fields["u"][0]) / 0.1)


@pytest.mark.parametrize("name", FAMILIES)
def test_a_batch_with_its_own_coefficients_equals_its_samples(name: str) -> None:
    family, grid = FAMILIES[name], Grid.periodic((9, 8), 0.5, 0.3)
    channels = (*family.channels, *family.optional_channels)
    fields = {c: 2 + noise(2, 3, 3, 9, 8, seed=k).tanh() for k, c in enumerate(channels)}
    values: dict[str, Any] = {
        c: 1.2 + noise(2, 3, seed=k).square() for k, c in enumerate(family.coefficients)
    }
    whole = family.residuals(fields, grid, dt=0.1, **values)
    assert tuple(whole) == family.terms
    for i, j in ((0, 0), (1, 2)):
        one: dict[str, Any] = {c: v[i, j].item() for c, v in values.items()}
        part = family.residuals({c: f[i, j] for c, f in fields.items()}, grid, dt=0.1, **one)
        for term in family.terms:
            assert whole[term].shape == (2, 3, part[term].shape[0], 9, 8)
            torch.testing.assert_close(whole[term][i, j], part[term])


def test_wrong_inputs_are_refused_by_name() -> None:
    grid, u = Grid.periodic((8, 8)), noise(2, 8, 8)
    family = find_family("incompressible")
    with refused("'maxwell'", "incompressible"):
        find_family("maxwell")
    with refused("'incompressible'", ["v"]):
        family.residuals({"u": u}, grid)
    with refused(["viscosity"], ["nu"]):
        family.residuals({"u": u, "v": u}, grid, nu=0.1)
    with refused("dt"):
        family.residuals({"u": u, "v": u}, grid, dt=0.0)


def grid_with_a_point_body() -> Grid:
    body = torch.zeros(11, 12, dtype=torch.bool)
    body[5, 6] = True
    return Grid((11, 12), 0.5, 0.3, Sides(*[Boundary.PERIODIC] * 4), body)


def test_masked_residuals_exclude_every_stencil_that_touches_the_body() -> None:
    grid, family = grid_with_a_point_body(), find_family("incompressible")
    clean = {"u": noise(3, 2, 11, 12), "v": noise(3, 2, 11, 12, seed=1)}
    spoilt = {k: f.clone() for k, f in clean.items()}
    for f in spoilt.values():
        f[..., 5, 6] = math.nan
        f.requires_grad_()
    found, defined = masked_residuals(family, spoilt, grid, dt=0.1, viscosity=0.1)
    expected = family.residuals(clean, grid, dt=0.1, viscosity=0.1)
    rows, columns = torch.meshgrid(torch.arange(11) - 5, torch.arange(12) - 6, indexing="ij")
    distance = rows.abs() + columns.abs()
    assert torch.equal(defined["divergence"], (distance > 1).expand(3, 11, 12))
    assert torch.equal(defined["vorticity"], (distance > 2).expand(3, 11, 12))
    for term in family.terms:
        mask = defined[term].unsqueeze(-3)
        torch.testing.assert_close(found[term][mask], expected[term][mask])
        assert (found[term][~mask] == 0).all()
    torch.stack([magnitude(r).sum() for r in found.values()]).sum().backward()
    assert all(torch.isfinite(f.grad).all() for f in spoilt.values() if f.grad is not None)


def test_masked_residuals_combine_the_body_with_unknown_points_of_each_sample() -> None:
    grid, family = grid_with_a_point_body(), find_family("heat")
    known = torch.ones(2, 1, 11, 12)
    known[1, 0, 0, 0] = 0
    _, defined = masked_residuals(
        family, {"u": noise(2, 2, 11, 12)}, grid, known, dt=0.1, diffusivity=0.1
    )
    excluded = (~defined["heat"]).sum((-2, -1))
    assert excluded.tolist() == [5, 10]


def test_masked_residuals_ignore_a_body_of_another_resolution() -> None:
    fields = {"u": noise(2, 20, 20), "v": noise(2, 20, 20, seed=1)}
    family = find_family("incompressible-momentum")
    found, defined = masked_residuals(family, fields, grid_with_a_point_body(), dt=0.1)
    assert all(mask.all() and mask.shape == (20, 20) for mask in defined.values())
    expected = family.residuals(fields, grid_with_a_point_body(), dt=0.1)
    assert all(torch.equal(found[term], expected[term]) for term in family.terms)


def test_the_magnitude_is_the_norm_over_components_with_a_finite_gradient_at_zero() -> None:
    vector = torch.tensor([3.0, -4.0], dtype=torch.float64)[:, None, None].expand(2, 2, 3).clone()
    vector[:, 0, 0] = 0
    vector.requires_grad_()
    assert magnitude(vector).tolist() == [[0, 5, 5], [5, 5, 5]]
    assert magnitude(vector[1:]).tolist() == [[0, 4, 4], [4, 4, 4]]
    (magnitude(vector).sum() + magnitude(vector[1:]).sum()).backward()
    assert vector.grad is not None and torch.isfinite(vector.grad).all()
    assert vector.grad[:, 0, 0].tolist() == [0, 0]


@pytest.mark.parametrize("name", FAMILIES)
def test_velocity_and_divergence_attributes_agree_with_channels_and_terms(name: str) -> None:
    family = FAMILIES[name]
    assert (family.velocity is not None) is ({"u", "v"} <= set(family.channels))
    spec = FieldSpec(channels=("v", "u"), family=name)
    assert spec.velocity == (None if family.velocity is None else (1, 0))
    assert family.is_solenoidal is ("divergence" in family.terms)
    assert is_solenoidal(spec) is family.is_solenoidal
    assert 1 <= family.required_frames(family.channels) <= family.frames
    assert family.is_reversible(family.channels) is (name == "wave")


class Advection(Family):
    """q_t + q_x = 0, with the required attributes alone."""

    name = "advection"
    channels = ("q",)
    coefficients = {}
    terms = ("advection",)

    def _residuals(self, fields, grid, dt, order, coefficients):
        q, q_t = midpoint(fields["q"], dt)
        slope = ddx(q, grid, order)
        return {"advection": (slope if q_t is None else q_t + slope).unsqueeze(-3)}


def test_a_new_family_is_one_class_and_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    """Models, negatives and the equation's text take it as it is."""
    monkeypatch.setitem(FAMILIES, "advection", Advection())
    grid = Grid.periodic((8, 12))
    spec = FieldSpec(channels=("q",), family="advection", grid=grid, dt=0.1)
    assert spec.velocity is None
    bias = PhysicsBias(spec, 4, history=2)(noise(1, 2, 8, 12).float())
    assert bias.shape == (1, 6) and bool(bias.isfinite().all())
    negatives = Negatives(NegativesConfig(), spec, Normalizer.identity(1), 2)
    assert set(negatives.kinds) >= {"noise", "adversarial", "shuffled"}
    assert "advection" in negatives.unavailable["omitted"]
    text = EquationText(spec)
    words = [VOCABULARY[i] for i in text.encode(torch.zeros(1, 16))[0].tolist()]
    assert words[:3] == ["unknown", "&", "dt"]


# Coefficients


REYNOLDS = Parameter(name="Re", scaling="log", mean=2.0, std=0.5)


@pytest.mark.parametrize(
    ("parameter", "values", "viscosity", "expected"),
    [
        (REYNOLDS, [100.0, 400.0], None, [0.01, 0.0025]),  # nu = U L / Re
        (Parameter(name="viscosity", mean=1.0, std=2.0), [0.3], None, [0.3]),
        (REYNOLDS, [100.0], 0.7, 0.7),  # what the spec states comes first
    ],
)
def test_the_viscosity_comes_from_the_spec_or_the_parameters(
    parameter: Parameter, values: list[float], viscosity: float | None, expected: Any
) -> None:
    spec = FieldSpec(
        family="incompressible",
        parameters=(parameter,),
        reference_velocity=2.0,
        reference_length=0.5,
        viscosity=viscosity,
    )
    parameters = spec.encode_parameters({parameter.name: torch.tensor(values)})
    found = known_coefficients(find_family("incompressible"), spec, parameters)
    torch.testing.assert_close(torch.as_tensor(found["viscosity"]), torch.tensor(expected))


def test_unknown_coefficients_are_omitted_or_get_the_default_of_the_family() -> None:
    family = find_family("euler")
    spec = FieldSpec(channels=("rho", "u", "v", "p"), family="euler")
    assert known_coefficients(family, spec, torch.zeros(2, 16)) == {}
    declared = FieldSpec(
        family="incompressible",
        channels=("rho", "u", "v", "p"),
        parameters=(Parameter(name="gamma"),),
    )
    assert known_coefficients(family, declared, None) == {}
    parameters = torch.zeros(2, 16)
    parameters[:, 0] = torch.tensor([1.6, math.nan])
    found = known_coefficients(family, declared, parameters)
    torch.testing.assert_close(found["gamma"], torch.tensor([1.6, 1.4]))


def street_grid(n: int) -> Grid:
    sides = Sides(*[Boundary.PERIODIC] * 2, *[Boundary.OPEN] * 2)
    return Grid((n + 1, 2 * n), 4 / (2 * n), 2 / n, sides)


def test_the_vortex_street_is_divergence_free_and_periodic() -> None:
    errors = []
    for n in (32, 64, 128):
        grid = street_grid(n)
        u, v = exact.vortex_street(grid, 0.4, spacing=2.0)
        errors.append(divergence(u, v, grid, 4).abs().max().item())
    assert 3.5 < measured_order(errors) and errors[-1] < 1e-3 * vorticity(u, v, grid).abs().max()
