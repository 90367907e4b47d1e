"""Classic flows against published figures, coarse enough to be quick; finer ones are slow."""

from typing import Any

import pytest
import torch

from pibert.fields import Boundary
from pibert.solver.enclosed import cavity, dam, tube
from pibert.solver.stepping import run
from pibert.solver.wakes import cylinder, tandem
from tests.helpers import refused

# Ghia, Ghia and Shin (1982), tables I and II, Re = 100: u on the vertical and v on the horizontal
# centre line; a choice of their points.
GHIA_U = {
    0.0547: -0.03717,
    0.1719: -0.10150,
    0.2813: -0.15662,
    0.4531: -0.21090,
    0.5: -0.20581,
    0.6172: -0.13641,
    0.7344: 0.00332,
    0.8516: 0.23151,
    0.9531: 0.68717,
}
GHIA_V = {
    0.0625: 0.09233,
    0.1563: 0.16077,
    0.2266: 0.17507,
    0.5: 0.05454,
    0.8047: -0.24533,
    0.8594: -0.22445,
    0.9063: -0.16914,
    0.9453: -0.10313,
}


def along(profile: torch.Tensor, place: float) -> float:
    """Linear interpolation in values at cell centres (k + 1/2) / n."""
    position = place * len(profile) - 0.5
    low = int(position)
    share = position - low
    return float((1 - share) * profile[low] + share * profile[low + 1])


def test_the_cavity_at_re_100_follows_ghia() -> None:
    case = cavity([100.0], cells=40, speed=0.2)
    steps = case.steps(25.0)
    u, v, _ = run(case, 2, steps).fields[0, -1]
    middle = slice(19, 21)
    u_line, v_line = u[:, middle].mean(1), v[middle].mean(0)
    off = [abs(along(u_line, y) - value) for y, value in GHIA_U.items()]
    off += [abs(along(v_line, x) - value) for x, value in GHIA_V.items()]
    assert max(off) < 0.01


def test_the_cylinder_at_re_20_has_a_steady_drag() -> None:
    """2.0 to 2.05 in an unbounded stream; this narrow domain, 10 D wide, adds to that."""
    case = cylinder(
        [20.0],
        cells=8.0,
        domain=(14.0, 10.0),
        upstream=5.0,
        sponge=2.0,
        view=(-1.0, 4.0, -1.0, 1.0),
    )
    steps = case.steps(20.0)
    solution = run(case, 2, steps)
    drag, lift = solution.force[0, -200:].T
    assert 2.2 < drag.mean() < 2.6
    assert drag.std() < 0.02 and lift.abs().max() < 1e-3
    # Behind the body the flow turns back: a recirculation bubble.
    x, y = case.grid.coordinates()
    wake = (x > 0.55) & (x < 1.0) & (y.abs() < 0.1)
    assert (solution.fields[0, -1, 0][wake] < 0).all()


def test_wrong_cases_are_refused() -> None:
    with refused("Reynolds"):
        cavity([100.0, -1.0])
    with refused("no cell"):
        cylinder([40.0], cells=4.0, domain=(8.0, 6.0), upstream=3.0, view=(40.0, 50.0, -1.0, 1.0))
    with refused("sponge"):
        cylinder([40.0], cells=4.0, domain=(8.0, 6.0), upstream=3.0, sponge=0.0)


def test_the_tube_becomes_poiseuille_flow() -> None:
    """Far behind the inflow: 1.5 U on the axis, the same flux everywhere, no cross flow."""
    case = tube([10.0], cells=12, length=4.0, sponge=2.0, speed=0.04, dtype=torch.float64)
    u, v, p = run(case, 2, case.steps(12.0)).fields[0, -1]
    y = (torch.arange(12, dtype=torch.float64) + 0.5) / 12
    column = 36
    torch.testing.assert_close(u[:, column], 6 * y * (1 - y), rtol=0, atol=0.02)
    flux = u.mean(0)
    assert (flux - 1).abs().max() < 1e-3
    assert v[:, column].abs().max() < 0.005
    # dp/dx = -12 / Re in units of rho U^2 / D.
    slope = (p[:, column + 6] - p[:, column - 6]).mean() / (12 * case.grid.dx)
    assert slope.item() == pytest.approx(-1.2, rel=0.05)
    left, right, bottom, top = case.grid.sides
    assert (left, right) == (Boundary.INFLOW, Boundary.OPEN)
    assert bottom == top == Boundary.WALL


def test_the_barrier_accelerates_and_separates_the_flow() -> None:
    case = dam([30.0], cells=6, height=4.0, length=10.0, position=3.0, speed=0.08)
    solution = run(case, 2, case.steps(20.0))
    u, v, _ = solution.fields[0, -1].double()
    assert case.grid.body is not None
    # Half a D wide from x = 3 D, one D high, standing on the bottom.
    assert case.grid.body.sum() == 6 * 3
    assert case.grid.body[:6, 18:21].all()
    # Mass goes over it: the same flux in front of it, above it and behind it.
    fluxes = u.sum(0) / 24
    torch.testing.assert_close(
        fluxes[[6, 19, 40]], torch.ones(3, dtype=torch.float64), rtol=0, atol=0.03
    )
    assert u[6:, 19].mean() > 1.2
    assert (u[:4, 23] < 0).any()  # it turns back behind
    assert solution.force[0, -1, 0] > 0


def test_the_second_of_two_cylinders_is_in_the_wake_of_the_first() -> None:
    numbers: Any = {"mass": [2.0], "reduced_velocity": [5.0], "damping_ratio": [0.0]}
    case = tandem(
        [100.0], cells=8.0, gap=3.0, domain=(16.0, 8.0), upstream=7.0, sponge=2.0, **numbers
    )
    solution = run(case, 2, case.steps(6.0))
    assert set(solution.motion) == {"displacement", "velocity", "drag", "lift"}
    first = solution.force[0, -100:, 0].mean()
    second = solution.motion["drag"][0, -100:].mean()
    assert first > 1.0
    assert second < 0.5 * first
    # The first one stands three D in front of the origin; the one that moves is no fixed body.
    x, y = case.grid.coordinates()
    assert case.grid.body is not None
    assert torch.equal(case.grid.body, torch.hypot(x + 3, y) < 0.5)
    alone = tandem([100.0], cells=8.0, gap=None, domain=(16.0, 8.0), upstream=7.0, **numbers)
    assert alone.grid.body is None and not len(alone.links.second)
