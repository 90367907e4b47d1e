"""Collision and streaming: conservation, decay of vortices, agreement of the operators."""

import pytest
import torch
from torch import Tensor

from pibert.solver.boundaries import Box, make_links
from pibert.solver.lattice import (
    WEIGHTS,
    Fluid,
    Scheme,
    equilibrium,
    interior,
    make_step,
    moments,
    pad,
)
from pibert.solver.stepping import Case, run
from tests.physics import exact
from tests.physics.helpers import unchecked
from validation.flows import taylor_green

SCHEMES: tuple[Scheme, ...] = ("trt", "regularised")
DOUBLE = torch.float64


def random_populations(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    noise = torch.randn(shape[0], 9, *shape[1:], generator=generator, dtype=DOUBLE)
    return 0.01 * noise * torch.tensor(WEIGHTS, dtype=DOUBLE)[:, None, None]


def vortex_error(case: Case, sample: int, time: float) -> float:
    """Largest error of u or v against the exact vortices, over their largest speed now."""
    steps = case.steps(time)
    solution = run(case, 2, steps)
    reynolds = case.reynolds[sample].item()
    u, v, _ = exact.taylor_green(case.grid, solution.time[sample, -1].item(), 1 / reynolds)
    error = (solution.fields[sample, -1, :2] - torch.stack((u, v))).abs().max()
    return float(error / torch.maximum(u.abs().max(), v.abs().max()))


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("smagorinsky", [0.0, 0.2])
def test_a_step_conserves_mass_and_momentum(scheme: Scheme, smagorinsky: float) -> None:
    viscosity = torch.tensor([0.003, 0.1], dtype=DOUBLE)[:, None, None]
    step = make_step(Fluid(viscosity=viscosity, scheme=scheme, smagorinsky=smagorinsky))
    links = make_links((6, 9), Box.periodic(), None, DOUBLE)
    f = pad(random_populations(2, 6, 9))
    links.fill(f, f)
    before = [part.sum((1, 2)) for part in moments(interior(f))]
    for _ in range(20):
        old, f = f, step(f)
        links.fill(f, old)
    after = [part.sum((1, 2)) for part in moments(interior(f))]
    for found, expected in zip(after, before, strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-14)
    assert (f - old).abs().max() > 1e-6


@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_body_force_adds_its_momentum_in_every_step(scheme: Scheme) -> None:
    force = torch.tensor([2e-4, -3e-4], dtype=DOUBLE).view(2, 1, 1, 1)
    viscosity = torch.full((1, 1, 1), 0.05, dtype=DOUBLE)
    fluid = Fluid(viscosity=viscosity, scheme=scheme, force=force)
    links = make_links((5, 7), Box.periodic(), None, DOUBLE)
    f = pad(random_populations(1, 5, 7))
    links.fill(f, f)
    new = make_step(fluid)(f)
    for found, start, push in zip(
        moments(interior(new)), moments(interior(f)), (0.0, 2e-4, -3e-4), strict=True
    ):
        assert found.mean().item() == pytest.approx(start.mean().item() + push, abs=1e-15)


@pytest.mark.parametrize("scheme", SCHEMES)
def test_vortices_decay_with_second_order(scheme: Scheme) -> None:
    # Diffusive scaling: the speed falls with the spacing, and the Mach number's error with it.
    errors = [
        vortex_error(
            taylor_green([40.0], shape=(n, n + n // 2), speed=0.8 / n, scheme=scheme, dtype=DOUBLE),
            0,
            0.5,
        )
        for n in (12, 24)
    ]
    assert errors[1] < 1e-2
    assert errors[0] / errors[1] > 3.5


def test_every_sample_of_a_batch_runs_as_if_alone() -> None:
    reynolds = [10.0, 40.0, 160.0]
    together = run(taylor_green(reynolds, shape=(8, 12), dtype=DOUBLE), 3, 25).fields
    for sample, number in enumerate(reynolds):
        alone = run(taylor_green([number], shape=(8, 12), dtype=DOUBLE), 3, 25).fields
        torch.testing.assert_close(together[sample], alone[0], rtol=0, atol=1e-13)
    assert (together[0] - together[1]).abs().max() > 1e-2


def test_the_smagorinsky_term_acts_as_a_viscosity_of_the_strain() -> None:
    """In a plane shear wave u = sin(k y) the added viscosity is (C dx)^2 |k cos(k y)|."""
    n, speed, constant, nu = 64, 0.05, 0.5, 0.01
    k = 2 * torch.pi / n
    y = torch.arange(n, dtype=DOUBLE)[None, :, None].expand(1, n, 3)
    u = speed * torch.sin(k * y)
    links = make_links((n, 3), Box.periodic(), None, DOUBLE)
    viscosity = torch.full((1, 1, 1), nu, dtype=DOUBLE)
    energy = {}
    for c in (0.0, constant):
        step = make_step(Fluid(viscosity=viscosity, smagorinsky=c))
        f = pad(equilibrium(torch.zeros_like(u), u, torch.zeros_like(u)))
        links.fill(f, f)
        # The stress needs some steps to form; the decay is measured after that.
        seen = []
        for count in range(60):
            if count in (40, 59):
                seen.append(moments(interior(f))[1].square().mean().item())
            old, f = f, step(f)
            links.fill(f, old)
        energy[c] = -(seen[1] - seen[0]) / 19
    # d/dt mean(u^2) = -2 mean((nu + (C^2 |u'|)) u'^2), and mean(|cos|^3) = 4 / (3 pi).
    gradient = speed * k * torch.exp(torch.tensor(-nu * k**2 * 50)).item()
    extra = 2 * constant**2 * gradient**3 * 4 / (3 * torch.pi)
    assert energy[constant] - energy[0.0] == pytest.approx(extra, rel=0.05)


@pytest.mark.slow
@pytest.mark.parametrize("scheme", SCHEMES)
def test_the_compiled_step_is_the_eager_one(scheme: Scheme) -> None:
    case = taylor_green([20.0, 50.0], shape=(10, 14), scheme=scheme, dtype=DOUBLE)
    with unchecked():
        eager, compiled = (run(case, 4, 10, compiled=choice).fields for choice in (False, True))
    torch.testing.assert_close(compiled, eager, rtol=0, atol=1e-12)
