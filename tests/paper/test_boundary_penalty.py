"""Proposition "quadratic boundary penalty enforces Dirichlet data".

Right under conditions that the statement leaves out:

- B u = g has a solution. Otherwise the minimisers approach the best A u = f among the least-squares
  solutions of B u = g, and B u never reaches g;
- A and B together see every direction (ker A and ker B meet in zero). Otherwise minimisers are not
  unique and need not converge.

The proof also states A u -> f. That needs an f that is reachable under the constraint; in general
the residual tends to its constrained minimum. The distance falls like 1/mu.
"""

import torch
from torch import Tensor

from tests.paper.helpers import noise


def penalised(a: Tensor, f: Tensor, b: Tensor, g: Tensor, mu: float) -> Tensor:
    """The minimiser of |A u - f|^2 + mu |B u - g|^2."""
    rows = torch.cat((a, mu**0.5 * b))
    return torch.linalg.lstsq(rows, torch.cat((f, mu**0.5 * g))[:, None]).solution[:, 0]


def constrained(a: Tensor, f: Tensor, b: Tensor, g: Tensor) -> Tensor:
    """The least-squares solution of A u = f under B u = g, from its optimality conditions."""
    p, n = b.shape
    system = torch.zeros(n + p, n + p, dtype=a.dtype)
    system[:n, :n], system[:n, n:], system[n:, :n] = a.mT @ a, b.mT, b
    return torch.linalg.solve(system, torch.cat((a.mT @ f, g)))[:n]


def poisson(n: int = 12) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """A one-dimensional Poisson problem with values at both ends, and noise in the data."""
    a = torch.zeros(n - 2, n, dtype=torch.float64)
    for row in range(n - 2):
        a[row, row : row + 3] = torch.tensor([1.0, -2.0, 1.0]).double()
    a = torch.cat((a, 0.3 * noise(4, n)))  # observations, so that A u = f is not solvable
    b = torch.zeros(2, n, dtype=torch.float64)
    b[0, 0] = b[1, -1] = 1.0
    return a, noise(n + 2, seed=1), b, torch.tensor([1.0, -2.0], dtype=torch.float64)


def random_problem(seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    return noise(9, 7, seed=seed), noise(9, seed=seed + 1), noise(3, 7, seed=seed + 2), noise(3)


def test_the_minimiser_approaches_the_constrained_solution_like_one_over_mu() -> None:
    for problem in (poisson(), random_problem(10), random_problem(20)):
        limit = constrained(*problem)
        errors = [(penalised(*problem, mu) - limit).norm() for mu in (1e3, 1e4, 1e5, 1e6)]
        assert errors[0] > 1e-6
        for coarse, fine in zip(errors, errors[1:], strict=False):
            assert 9.5 < coarse / fine < 10.5
        assert errors[-1] < 1e-4 * limit.norm()


def test_the_boundary_values_are_reached_like_one_over_mu() -> None:
    a, f, b, g = poisson()
    gaps = [(b @ penalised(a, f, b, g, mu) - g).norm() for mu in (1e3, 1e4, 1e5)]
    assert gaps[0] > 1e-6
    for coarse, fine in zip(gaps, gaps[1:], strict=False):
        assert 9.5 < coarse / fine < 10.5


def test_the_residual_tends_to_its_constrained_minimum_and_not_to_zero() -> None:
    a, f, b, g = poisson()
    least = (a @ constrained(a, f, b, g) - f).norm()
    assert least > 1
    assert abs((a @ penalised(a, f, b, g, 1e7) - f).norm() - least) < 1e-5
    free = (a @ torch.linalg.lstsq(a, f[:, None]).solution[:, 0] - f).norm()
    assert free < 0.99 * least  # the constraint costs something


def test_contradictory_boundary_values_are_met_in_the_least_squares_sense() -> None:
    """One end is asked to be 1 and 3: the limit takes their mean, which satisfies neither."""
    a, f, _, _ = poisson()
    b = torch.zeros(2, a.shape[1], dtype=torch.float64)
    b[:, 0] = 1.0
    found = penalised(a, f, b, torch.tensor([1.0, 3.0], dtype=torch.float64), 1e7)
    expected = constrained(a, f, b[:1], torch.tensor([2.0], dtype=torch.float64))
    assert (found - expected).norm() < 1e-5
    assert abs(found[0] - 2) < 1e-5


def test_a_direction_that_neither_matrix_sees_leaves_minimisers_that_do_not_converge() -> None:
    a, f, b, g = random_problem(30)
    blind = noise(7, seed=40)
    blind = blind / blind.norm()
    hide = torch.eye(7, dtype=torch.float64) - blind[:, None] * blind
    a, b = a @ hide, b @ hide

    def value(u: Tensor, mu: float) -> Tensor:
        return (a @ u - f).square().sum() + mu * (b @ u - g).square().sum()

    runaways = []
    for mu in (1e2, 1e3, 1e4):
        system = a.mT @ a + mu * b.mT @ b
        u = torch.linalg.pinv(system, rtol=1e-12) @ (a.mT @ f + mu * b.mT @ g)
        other = u + mu * blind
        assert abs(value(other, mu) - value(u, mu)) < 1e-6 * value(u, mu)  # a minimiser as well
        runaways.append(other.norm())
    assert runaways[2] > 5 * runaways[1] > 25 * runaways[0]
