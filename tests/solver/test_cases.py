"""Classic flows against published figures, coarse enough to be quick; finer ones are slow."""

import pytest
import torch

from pibert.solver.cases import cavity, cylinder
from pibert.solver.stepping import run
from tests.physics.helpers import unchecked

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
    x, y = solution.grid.coordinates()
    wake = (x > 0.55) & (x < 1.0) & (y.abs() < 0.1)
    assert (solution.fields[0, -1, 0][wake] < 0).all()


def test_a_high_reynolds_number_stays_bounded_with_the_regularised_scheme() -> None:
    case = cylinder(
        [2000.0],
        cells=10.0,
        domain=(8.0, 6.0),
        upstream=3.0,
        sponge=2.0,
        perturbation=0.3,
        scheme="regularised",
        smagorinsky=0.1,
    )
    solution = run(case, 5, 200)
    assert solution.force[0, -1, 0] > 0.3


@pytest.mark.slow
def test_the_cylinder_sheds_vortices_at_re_100() -> None:
    """St 0.164 to 0.167, drag 1.32 to 1.36 unbounded, and 1.50 to 1.54 at Re 40.

    Twelve cells across the body in a domain 24 D wide give some per cent more drag.
    """
    case = cylinder([40.0, 100.0], cells=12.0, domain=(36.0, 24.0), upstream=12.0, perturbation=0.5)
    with unchecked():
        solution = run(case, 2, case.steps(50.0), warm_up=case.steps(60.0), compiled=True)
    drag, lift = solution.force.double().mean(1)[:, 0], solution.force[1, :, 1].double()
    rising = ((lift[:-1] <= 0) & (lift[1:] > 0)).nonzero()[:, 0].double()
    strouhal = (len(rising) - 1) / ((rising[-1] - rising[0]).item() * case.dt)
    print(f"drag {drag[0]:.3f} at Re 40, {drag[1]:.3f} at Re 100, Strouhal number {strouhal:.4f}")
    assert 1.50 < drag[0] < 1.63
    assert 1.32 < drag[1] < 1.46
    assert 0.160 < strouhal < 0.171
    assert 0.28 < lift.abs().max() < 0.42


def test_wrong_cases_are_refused() -> None:
    with pytest.raises(ValueError, match="positive Reynolds numbers"):
        cavity([100.0, -1.0])
    with pytest.raises(ValueError, match="shows no cell"):
        cylinder([40.0], cells=4.0, domain=(8.0, 6.0), upstream=3.0, view=(40.0, 50.0, -1.0, 1.0))
    with pytest.raises(ValueError, match="sponge"):
        cylinder([40.0], cells=4.0, domain=(8.0, 6.0), upstream=3.0, sponge=0.0)
