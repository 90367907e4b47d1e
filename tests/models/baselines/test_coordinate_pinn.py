"""The network of one flow: size, exact derivatives, and a fit of decaying vortices."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pibert.fields import Grid
from pibert.models import count_parameters
from pibert.models.baselines.coordinate_pinn import CoordinatePINN, fit_trajectory
from pibert.physics.exact import taylor_green

GRID = Grid.periodic((16, 20), dx=0.3, dy=0.25)
CORNER = (..., slice(0, 8), slice(0, 11))
TIMES = torch.tensor([0.0, 0.17, 0.4, 0.55, 0.8, 1.0], dtype=torch.float64)
VISCOSITY = 0.1


def flow(times: float | Tensor) -> Tensor:
    """(u, v) of a part of the vortices."""
    u, v, _ = taylor_green(GRID, times, VISCOSITY)
    return torch.stack((u, v), dim=-3)[CORNER]


def coordinates() -> tuple[Tensor, Tensor]:
    x, y = GRID.coordinates(torch.float64)
    return x[CORNER], y[CORNER]


def make(**options: Any) -> CoordinatePINN:
    generator = torch.Generator().manual_seed(0)
    return CoordinatePINN(
        TIMES, coordinates(), 0.7, VISCOSITY, generator=generator, **options
    ).double()


def some_points(count: int = 30) -> Tensor:
    share = torch.rand(count, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    return share * torch.tensor([1.0, 3.0, 1.75], dtype=torch.float64)


def test_the_default_has_the_published_number_of_parameters() -> None:
    assert count_parameters(make()) == 3_062


def test_inputs_are_scaled_to_the_unit_cube() -> None:
    model, seen = make(), []
    model.network.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    x, y = coordinates()
    model(torch.tensor([[0.0, x.min(), y.max()], [1.0, x.max(), y.min()]], dtype=torch.float64))
    torch.testing.assert_close(
        seen[0], torch.tensor([[-1.0, -1.0, 1.0], [1.0, 1.0, -1.0]]).double()
    )


def test_the_velocity_is_free_of_divergence_whatever_the_weights() -> None:
    model, points = make(), some_points().requires_grad_()
    _, psi_x, psi_y = _gradient(model(points)[:, 0], points)
    velocity = model.velocity(points)
    torch.testing.assert_close(velocity, torch.stack((psi_y, -psi_x), dim=1))
    divergence = _gradient(psi_y, points)[1] - _gradient(psi_x, points)[2]
    assert divergence.abs().max() < 1e-12 * _gradient(psi_y, points)[1].abs().max()


def _gradient(values: Tensor, points: Tensor) -> tuple[Tensor, ...]:
    return torch.autograd.grad(values.sum(), points, create_graph=True)[0].unbind(1)


class _Vortices(nn.Module):
    """Stream function and pressure of the exact flow, in the units of the network around it."""

    def __init__(self, model: CoordinatePINN, decays: bool = True) -> None:
        super().__init__()
        self.outer, self.decays = [model], decays
        self.register_parameter("nothing", nn.Parameter(torch.zeros((), dtype=torch.float64)))

    def forward(self, scaled: Tensor) -> Tensor:
        outer = self.outer[0]
        t, x, y = (scaled * outer.reach + outer.middle).T
        kx, ky = 2 * math.pi / (20 * 0.3), 2 * math.pi / (16 * 0.25)
        decay = torch.exp(-VISCOSITY * (kx**2 + ky**2) * t) if self.decays else torch.ones_like(t)
        psi = -decay / ky * torch.cos(kx * x) * torch.cos(ky * y)
        wave = torch.cos(2 * kx * x) + (kx / ky) ** 2 * torch.cos(2 * ky * y)
        pressure = -(decay**2) / 4 * wave
        units = (outer.speed * outer.length, outer.speed**2)
        return torch.stack((psi / units[0], pressure / units[1]), dim=1)


def test_an_exact_flow_has_its_velocity_and_no_residual() -> None:
    model = make()
    model.network = _Vortices(model)  # type: ignore[assignment]
    torch.testing.assert_close(model.velocity_at(0.3), flow(0.3))
    assert model.residual(some_points()).abs().max() < 1e-12


def test_a_flow_that_does_not_decay_breaks_the_equation_by_its_viscous_force() -> None:
    model = make()
    model.network = _Vortices(model, decays=False)  # type: ignore[assignment]
    points = some_points()
    rate = VISCOSITY * ((2 * math.pi / 6) ** 2 + (2 * math.pi / 4) ** 2)
    expected = rate * model.velocity(points) * (model.length / model.speed**2)
    torch.testing.assert_close(model.residual(points), expected)


def test_a_fit_to_scattered_times_finds_the_flow_between_them() -> None:
    told: list[tuple[int, float]] = []
    options: dict[str, Any] = {"points": 64, "depth": 3, "learning_rate": 1e-2}
    known = torch.ones(6, 8, 11, dtype=torch.bool)
    known[:, 2, 3] = False
    velocity = torch.where(known[:, None], flow(TIMES), math.nan)
    arguments = (TIMES, coordinates(), velocity, known, VISCOSITY)
    start = fit_trajectory(*arguments, seed=0, steps=0, refinements=0, **options)
    model = fit_trajectory(
        *arguments,
        seed=0,
        steps=100,
        refinements=80,
        on_progress=lambda done, loss: told.append((done, loss)),
        **options,
    )
    truth = flow(0.3)
    error = (model.velocity_at(0.3) - truth).norm() / truth.norm()
    assert error < 0.2 and (start.velocity_at(0.3) - truth).norm() > 0.7 * truth.norm()
    assert [done for done, _ in told] == [100, 180] and told[1][1] < 0.5 * told[0][1]
    assert told[1][1] < 0.1
    residual = model.residual(some_points()).square().sum(1).mean()
    assert residual < 0.1


def test_the_same_seed_gives_the_same_fit_and_leaves_the_process_alone() -> None:
    def fit(seed: int) -> Tensor:
        model = fit_trajectory(
            TIMES, coordinates(), flow(TIMES), None, VISCOSITY, seed=seed, steps=3, refinements=2,
            points=20, depth=2,
        )  # fmt: skip
        return model.velocity_at(0.5)

    first = fit(1)
    assert torch.equal(first, fit(1)) and not torch.allclose(first, fit(2))


def test_wrong_input_is_named(no_shape_checks: None) -> None:
    with pytest.raises(ValueError, match=r"shape \(t, 2, y, x\) = \(6, 2, 8, 11\), found \(5, 2"):
        fit_trajectory(TIMES, coordinates(), flow(TIMES)[:5], None, VISCOSITY, seed=0)
    nothing = torch.zeros(6, 8, 11, dtype=torch.bool)
    with pytest.raises(ValueError, match="where the velocity is known, found none"):
        fit_trajectory(TIMES, coordinates(), flow(TIMES), nothing, VISCOSITY, seed=0)
    broken = flow(TIMES)
    broken[2, 0, 3, 3] = math.nan
    with pytest.raises(ValueError, match="expected finite velocities"):
        fit_trajectory(TIMES, coordinates(), broken, None, VISCOSITY, seed=0)
    with pytest.raises(ValueError, match="viscosity must be zero or positive, found -1"):
        CoordinatePINN(TIMES, coordinates(), 1.0, -1.0)
