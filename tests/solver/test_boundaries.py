"""Boundaries: walls, streams that enter and leave, bodies and the force on them."""

import pytest
import torch
from torch import Tensor

from pibert.fields import Boundary
from pibert.solver.boundaries import Box, Side, make_links
from pibert.solver.lattice import Fluid, equilibrium, interior, make_step, moments, pad
from pibert.solver.stepping import run
from pibert.solver.wakes import circle
from tests.helpers import refused
from validation.flows import channel

DOUBLE = torch.float64
WALL, SLIP, PERIODIC = Side(Boundary.WALL), Side(Boundary.SLIP), Side(Boundary.PERIODIC)


def march(f: Tensor, box: Box, steps: int, viscosity: float = 0.05) -> Tensor:
    """Populations (without ghosts) some steps later."""
    rows, columns = f.shape[-2:]
    links = make_links((rows, columns), box, None, f.dtype)
    step = make_step(Fluid(viscosity=torch.full((len(f), 1, 1), viscosity, dtype=f.dtype)))
    f = pad(f)
    links.fill(f, f)
    for _ in range(steps):
        before, f = f, step(f)
        links.fill(f, before)
    return interior(f)


def bump(rows: int, columns: int, x: float, y: float, stream: float = 0.0) -> Tensor:
    """A pressure pulse in a uniform stream."""
    row, column = torch.meshgrid(
        torch.arange(rows, dtype=DOUBLE), torch.arange(columns, dtype=DOUBLE), indexing="ij"
    )
    r = 0.01 * torch.exp(-((row - y) ** 2 + (column - x) ** 2) / 18)[None]
    return equilibrium(r, torch.full_like(r, stream), torch.zeros_like(r))


def test_a_slip_wall_is_a_mirror() -> None:
    """The flow between slip walls is half of one that is symmetric about them."""
    f = bump(9, 12, 4.0, 2.0)
    mirrored = [0, 1, 4, 3, 2, 8, 7, 6, 5]
    twice = torch.cat((f, f.flip(2)[:, mirrored]), 2)
    half = march(f, Box(PERIODIC, PERIODIC, SLIP, SLIP), 40)
    whole = march(twice, Box.periodic(), 40)
    torch.testing.assert_close(half, whole[:, :, :9], rtol=0, atol=1e-14)


@pytest.mark.parametrize("box", [Box(WALL, WALL, WALL, WALL), Box(SLIP, SLIP, WALL, SLIP)])
def test_a_closed_box_keeps_its_mass(box: Box) -> None:
    f = bump(9, 12, 4.0, 2.0)
    after = march(f, box, 60)
    assert after.sum().item() == pytest.approx(f.sum().item(), abs=1e-13)
    assert (after - f).abs().max() > 1e-4


def test_couette_flow_is_exact() -> None:
    lid = Side(Boundary.WALL, (0.05, 0.0))
    after = march(
        torch.zeros(1, 9, 8, 3, dtype=DOUBLE), Box(PERIODIC, PERIODIC, WALL, lid), 1000, 0.3
    )
    height = (torch.arange(8, dtype=DOUBLE) + 0.5) / 8
    torch.testing.assert_close(moments(after)[1][0, :, 1], 0.05 * height, rtol=0, atol=1e-12)


def test_poiseuille_flow_is_exact_with_the_magic_number() -> None:
    eta = (torch.arange(7, dtype=DOUBLE) + 0.5) / 7
    case = channel([2.0, 8.0], cells=7, columns=3, speed=0.2, dtype=DOUBLE)
    u, v = run(case, 2, 1500).fields[:, -1, :2].unbind(1)
    assert (u[..., 1] - 4 * eta * (1 - eta)).abs().max() < 1e-11
    assert v.abs().max() < 1e-12


def test_poiseuille_flow_of_the_regularised_scheme_has_second_order() -> None:
    # At a fixed viscosity, so that only the grid changes.
    errors = []
    for cells, speed in ((6, 0.16), (12, 0.08)):
        eta = (torch.arange(cells, dtype=DOUBLE) + 0.5) / cells
        case = channel(
            [8.0], cells=cells, columns=2, speed=speed, scheme="regularised", dtype=DOUBLE
        )
        u = run(case, 2, 1600).fields[0, -1, 0, :, 1]
        errors.append((u - 4 * eta * (1 - eta)).abs().max().item())
    assert errors[1] < 5e-3
    assert 3.7 < errors[0] / errors[1] < 4.3


def test_sound_leaves_through_the_outflow() -> None:
    """What is left of a pulse after it has reached the outflow, against a wall in its place."""
    speed = 0.1
    f = bump(24, 60, 45.0, 11.5, speed)
    f[:, :, :] = f.mean(2, keepdim=True)  # a plane wave
    inflow, outflow = Side(Boundary.INFLOW, (speed, 0.0)), Side(Boundary.OUTFLOW, (speed, 0.0))
    steps = 60  # the wave along +x is back in the middle when it is reflected
    peak = {}
    for name, right in (("open", outflow), ("shut", Side(Boundary.INFLOW, (speed, 0.0)))):
        r, _, _ = moments(march(f, Box(inflow, right, SLIP, SLIP), steps))
        peak[name] = r[0, 12, 25:55].abs().max().item()
    start = moments(f)[0].abs().max().item()
    assert peak["shut"] > 0.3 * start
    assert peak["open"] < 0.04 * start


def test_the_force_is_what_the_fluid_loses() -> None:
    """In a periodic box, momentum of the fluid and impulse on the body add up."""
    shape = (20, 26)
    links = make_links(shape, Box.periodic(), circle(11.3, 9.2, 4.3), DOUBLE)
    solid = torch.hypot(
        torch.arange(26, dtype=DOUBLE)[None] - 11.3, torch.arange(20, dtype=DOUBLE)[:, None] - 9.2
    )
    fluid = solid >= 4.3
    r = torch.zeros(1, *shape, dtype=DOUBLE)
    f = pad(equilibrium(r, r + 0.05, r + 0.02))
    links.fill(f, f)
    step = make_step(Fluid(viscosity=torch.full((1, 1, 1), 0.05, dtype=DOUBLE)))

    def momentum(g: Tensor) -> Tensor:
        return torch.stack([part[0, fluid].sum() for part in moments(interior(g))[1:]])

    for _ in range(5):
        before, f = f, step(f)
        # Read before ``fill``: the ghosts and the body take part in no sum over the fluid.
        start = momentum(f)
        force = links.fill(f, before)
        assert force is not None and force[0, 0] > 0 and force[0, 1] > 0
        torch.testing.assert_close(momentum(step(f)) - start, -force[0], rtol=0, atol=1e-13)


def test_a_body_too_close_to_a_side_is_refused() -> None:
    with refused("two cells"):
        make_links((8, 8), Box.periodic(), circle(3.0, 1.0, 2.0))
