"""Forces from the momentum balance, against flows whose force is known."""

import math

import pytest
import torch
from torch import Tensor

from pibert.evaluation.forces import mean_force, rectangle_around
from pibert.fields import Grid

SHAPE = (80, 120)
GRID = Grid(SHAPE, dx=0.05, dy=0.06, origin=(-2.0, -2.37))


def coordinates() -> tuple[Tensor, Tensor]:
    return GRID.coordinates(torch.float64)


def disk(radius: float = 0.5) -> Tensor:
    x, y = coordinates()
    return x**2 + y**2 < radius**2


def force(velocity: Tensor, viscosity: float = 0.0, dt: float = 0.1) -> list[float]:
    body = disk()
    around = rectangle_around(body, ~body, GRID)
    assert around is not None
    known = torch.where(body, 0.0, velocity)
    return mean_force(known, around, GRID, viscosity=viscosity, dt=dt).tolist()


def stream(speed: float, *, sink: float = 0.0, circulation: float = 0.0) -> Tensor:
    """A uniform stream with a sink and a vortex at the origin, which are potential flows."""
    x, y = coordinates()
    r2 = (x**2 + y**2).clamp(min=1e-3) * 2 * math.pi
    u = speed - sink * x / r2 - circulation * y / r2
    v = -sink * y / r2 + circulation * x / r2
    return torch.stack((u, v))


def test_a_sink_has_drag_and_a_vortex_has_lift() -> None:
    """Blasius: F_x = U Q of a sink of strength Q; Kutta and Joukowski: F_y = -U G."""
    for speed, sink, circulation in ((1.0, 0.5, 0.0), (2.0, 0.0, 0.7), (1.5, 0.4, -0.3)):
        flow = stream(speed, sink=sink, circulation=circulation)
        expected = [speed * sink, -speed * circulation]
        assert force(flow[None].expand(3, -1, -1, -1)) == pytest.approx(expected, abs=2e-3)


def test_a_cylinder_in_potential_flow_has_no_drag() -> None:
    x, y = coordinates()
    r2 = (x**2 + y**2).clamp(min=1e-3)
    doublet = 0.25 / r2**2
    flow = torch.stack((1 - doublet * (x**2 - y**2), -doublet * 2 * x * y))
    assert force(flow[None]) == pytest.approx([0.0, 0.0], abs=2e-3)


def test_viscous_stress_and_pressure_of_a_channel_flow_balance() -> None:
    _, y = coordinates()
    flow = torch.stack((3.0 - 0.4 * y**2, 0 * y))
    assert force(flow[None], viscosity=0.5) == pytest.approx([0.0, 0.0], abs=1e-9)


def test_fluid_that_accelerates_as_a_whole_needs_no_force() -> None:
    body, ramp = disk(), 1 + 0.1 * torch.arange(5, dtype=torch.float64)
    flow = ramp[:, None, None, None] * torch.tensor([1.0, 0.0]).double()[:, None, None]
    around = rectangle_around(body, ~body, GRID)
    assert around is not None
    # No body is taken out here: the pressure gradient accelerates the fluid everywhere.
    found = mean_force(flow.expand(5, 2, *SHAPE), around, GRID, viscosity=0.0, dt=0.2)
    assert found.tolist() == pytest.approx([0.0, 0.0], abs=1e-9)


def test_the_force_is_a_mean_in_time() -> None:
    """A sink whose strength changes in time has the drag of its mean strength."""
    frames = torch.stack([stream(1.0, sink=s) for s in (0.1, 0.7, 0.4, 0.7, 0.1)])
    assert force(frames)[0] == pytest.approx(0.4, abs=3e-3)


def test_the_rectangle_keeps_away_from_bodies_borders_and_gaps() -> None:
    body = disk()
    around = rectangle_around(body, ~body, GRID)
    assert around is not None
    top, bottom, left, right = around
    rows, columns = body.any(1).nonzero()[:, 0], body.any(0).nonzero()[:, 0]
    height = len(rows) * GRID.dy
    assert (int(rows[0]) - top) * GRID.dy == pytest.approx(height, abs=GRID.dy)
    assert (right - int(columns[-1])) * GRID.dx == pytest.approx(height, abs=GRID.dx)
    gap = ~body
    gap[top + 1, (left + right) // 2] = False
    assert rectangle_around(body, gap, GRID) is None
    assert rectangle_around(torch.zeros(SHAPE, dtype=torch.bool), gap, GRID) is None
    at_border = torch.zeros(SHAPE, dtype=torch.bool)
    at_border[:4, 50:54] = True
    assert rectangle_around(at_border, ~at_border, GRID) is None
