"""Velocity of a vorticity on periodic grids, as input of PIBERT and of the baselines."""

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor

from pibert.export.graph import PhysicalStep, trace
from pibert.fields import Boundary, FieldSpec, Grid, Normalizer, Sides
from pibert.inference import read_model, save_model
from pibert.models.equation_terms import EquationTerms, velocity_of
from pibert.physics import spectral
from tests.helpers import assert_close, randomise, tiny_model

PERIODIC = Sides(*[Boundary.PERIODIC] * 4)


def box(shape: tuple[int, int] = (16, 24), sides: Sides = PERIODIC) -> Grid:
    ny, nx = shape
    return Grid(shape, dx=2 * math.pi / nx, dy=4 * math.pi / ny, sides=sides)


def vorticity_spec(grid: Grid) -> FieldSpec:
    return FieldSpec(channels=("omega",), units=("1/s",), grid=grid, dt=0.1)


def taylor_green(grid: Grid) -> tuple[Tensor, Tensor, Tensor]:
    """U = cos x sin (y / 2) / 2, v = -sin x cos (y / 2), and its vorticity v_x - u_y."""
    x, y = grid.coordinates(torch.float64)
    x, y = torch.broadcast_tensors(x, y)
    u, v = 0.5 * x.cos() * (y / 2).sin(), -x.sin() * (y / 2).cos()
    omega = -x.cos() * (y / 2).cos() - 0.25 * x.cos() * (y / 2).cos()
    return u, v, omega


@pytest.mark.parametrize("shape", [(16, 24), (15, 21), (8, 9)])
def test_the_velocity_of_a_taylor_green_vortex_is_exact(shape: tuple[int, int]) -> None:
    grid = box(shape)
    u, v, omega = taylor_green(grid)
    found = velocity_of(omega[None, None] + 3.0, grid)  # a mean has no velocity
    assert_close(found[0], torch.stack((u, v)), rtol=1e-12)
    assert found.mean((-2, -1)).abs().max() < 1e-13


def test_a_random_vorticity_has_the_velocity_of_the_solver() -> None:
    grid = box((18, 16))
    omega = spectral.random_field(grid, torch.Generator().manual_seed(0), lambda k: k**-2)
    expected = spectral.velocity_of(torch.fft.rfft2(omega), spectral.modes_of(grid))
    assert_close(velocity_of(omega[None, None], grid)[0], expected, rtol=1e-10)
    # Free of divergence whatever the vorticity.
    noise = torch.randn(1, 1, 18, 16, dtype=torch.float64)
    u, v = (torch.fft.rfft2(part) for part in velocity_of(noise, grid)[0])
    modes = spectral.modes_of(grid)
    assert (modes.kx * u + modes.ky * v).abs().max() < 1e-9


def test_the_terms_are_products_advection_and_velocity() -> None:
    grid = box((64, 64))
    u, v, omega = taylor_green(grid)
    terms = EquationTerms(vorticity_spec(grid), vorticity=True).double()
    terms.set_normalizer(Normalizer((0.5,), (2.0,)))
    terms.scales.fill_(1.0)
    found = terms((omega[None, None] - 0.5) / 2.0, None)[0]
    assert len(found) == terms.num_terms == 4
    # omega = -5/4 cos x cos (y/2) is advected by the flow whose stream function is proportional.
    assert_close(found[0], omega**2, rtol=1e-9)
    assert found[1].abs().max() < 1e-3 * float((u * omega).abs().max())
    assert_close(found[2:], torch.stack((u, v)), rtol=1e-9)
    # Shifted by a uniform stream of vorticity, the advection is that of the shifted field.
    bump = omega + 0.3 * torch.cos(2 * grid.coordinates(torch.float64)[0])
    second = terms((bump[None, None] - 0.5) / 2.0, None)[0]
    assert second[1].abs().max() > 0.05


def test_without_periodic_sides_or_with_a_body_or_a_velocity_there_is_no_derived_velocity() -> None:
    walls = Sides(Boundary.PERIODIC, Boundary.PERIODIC, Boundary.WALL, Boundary.WALL)
    assert EquationTerms(vorticity_spec(box(sides=walls)), vorticity=True).num_terms == 1
    assert EquationTerms(vorticity_spec(box())).num_terms == 1
    body = torch.zeros(16, 24, dtype=torch.bool)
    body[3:5, 4:6] = True
    solid = Grid((16, 24), dx=0.1, dy=0.1, sides=PERIODIC, body=body)
    assert EquationTerms(vorticity_spec(solid), vorticity=True).num_terms == 1
    both = FieldSpec(channels=("u", "v", "omega"), units=(), grid=box(), family="incompressible")
    assert EquationTerms(both, vorticity=True).num_terms == 6 + 3


def test_a_frame_with_an_unknown_point_has_no_velocity_and_others_keep_theirs() -> None:
    grid = box()
    omega = taylor_green(grid)[2].expand(2, 1, -1, -1)
    terms = EquationTerms(vorticity_spec(grid), vorticity=True).double()
    known = torch.ones(2, 16, 24, dtype=torch.bool)
    known[1, 2, 3] = False
    found, whole = terms(omega, known), terms(omega, None)
    assert torch.equal(found[0], whole[0])
    assert not found[1, 1:].any() and not found[1, 0, 2, 3] and found[1, 0].any()
    terms.calibrate(omega, known)
    assert_close(terms(omega, known)[0, 2:].square().mean((1, 2)), torch.ones(2).double())


@pytest.mark.parametrize("name", ["pibert-mr", "unet"])
def test_models_with_the_velocity_of_the_vorticity_are_exported(name: str, tmp_path: Path) -> None:
    spec = vorticity_spec(box())
    option = "vorticity_velocity" if name == "pibert-mr" else "equation_terms"
    plain = tiny_model(name, spec)
    model = randomise(tiny_model(name, spec, **{option: True}))
    added = sum(p.numel() for p in model.parameters()) - sum(p.numel() for p in plain.parameters())
    assert added > 0
    normalizer = Normalizer((0.1,), (1.3,))
    model.calibrate(torch.randn(4, 1, 16, 24), normalizer)
    save_model(tmp_path, model, normalizer, trained={"forward": True})
    saved = read_model(tmp_path)
    step = PhysicalStep(saved.model, saved.normalizer)
    fields = torch.randn(2, 1, 1, 16, 24)
    mask = torch.ones(2, 16, 24, dtype=torch.bool)
    mask[1, 3:5, 2:7] = False
    assert list(step.inputs()) == ["fields", "mask"]
    with torch.no_grad():
        found = trace(step).module()(fields=fields, mask=mask)
        assert_close(found, step(fields, mask), rtol=2e-5)
