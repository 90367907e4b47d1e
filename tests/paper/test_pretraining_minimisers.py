"""Proposition "population minimiser" and theorem "oracle inequality toward the solenoidal class".

Population minimiser: right, read as E[x | all that the network sees] at the masked points. The loss
does not look at visible points, so nothing is said there; and a network that is not told the mask
must condition on what it sees alone, where a removed value and a true zero look the same.

Oracle inequality: true but empty. Its right side is the risk of g* plus something nonnegative,
while minimality already gives the risk of g* minus something nonnegative. Any g with a risk below
that of g* satisfies it, the unpenalised conditional mean too, however far it is from solenoidal
(tested). What the argument does prove, for every g* with D g* = 0:

    E|x - g_l|^2 + lambda E|D g_l|^2 <= E|x - g*|^2
    E dist(g_l, ker D)^2 <= c_H^2 E|D g_l|^2 <= (c_H^2 / lambda) E|x - g*|^2

with c_H = 1 / the smallest nonzero singular value of D.

All risks here are exact: x is Gaussian, half of it is seen, and the maps are linear.
"""

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor

from pibert.fields import Grid
from pibert.physics.derivatives import divergence
from tests.paper.helpers import noise

STRENGTHS = (0.01, 0.3, 1.0, 10.0, 1000.0)


@dataclass(frozen=True)
class Gaussian:
    """x ~ N(0, covariance), of which the entries ``seen`` are visible."""

    covariance: Tensor
    seen: Tensor

    @property
    def conditional_mean(self) -> Tensor:
        """The matrix that maps what is seen to E[x | seen]."""
        cross = self.covariance[:, self.seen]
        return torch.linalg.solve(cross[self.seen], cross.mT).mT

    def risk(self, g: Tensor, rows: Tensor | None = None) -> Tensor:
        """E|x - g x_seen|^2 for a matrix g, over some entries of x or all."""
        cross = self.covariance[:, self.seen]
        second = self.covariance - 2 * cross @ g.mT + g @ cross[self.seen] @ g.mT
        diagonal = second.diagonal()
        return diagonal.sum() if rows is None else diagonal[rows].sum()

    def mean_square(self, g: Tensor) -> Tensor:
        """E|g x_seen|^2."""
        return (g @ self.covariance[self.seen][:, self.seen] @ g.mT).trace()


def make_gaussian(size: int, num_seen: int, seed: int = 0) -> Gaussian:
    root = noise(size, size, seed=seed) / size**0.5
    order = torch.randperm(size, generator=torch.Generator().manual_seed(seed))
    return Gaussian(root @ root.mT + 0.05 * torch.eye(size).double(), order[:num_seen].sort()[0])


def divergence_matrix(grid: Grid) -> Tensor:
    """The discrete divergence of (u, v), flattened, as a matrix."""
    ny, nx = grid.shape
    units = torch.eye(2 * ny * nx, dtype=torch.float64).view(-1, 2, ny, nx)
    return divergence(units[:, 0], units[:, 1], grid).flatten(1).mT


# Masked physics prediction


def test_least_squares_on_many_samples_finds_the_conditional_mean() -> None:
    flow = make_gaussian(6, 3)
    hidden = [i for i in range(6) if i not in flow.seen.tolist()]
    x = noise(200_000, 6, seed=1) @ torch.linalg.cholesky(flow.covariance).mT
    fitted = torch.linalg.lstsq(x[:, flow.seen], x[:, hidden]).solution.mT
    expected = flow.conditional_mean[hidden]
    assert (fitted - expected).abs().max() < 0.02
    assert expected.abs().max() > 0.2


def test_samples_and_formulas_give_the_same_risk() -> None:
    flow = make_gaussian(6, 3)
    g = noise(6, 3, seed=2)
    x = noise(200_000, 6, seed=1) @ torch.linalg.cholesky(flow.covariance).mT
    sampled = (x - x[:, flow.seen] @ g.mT).square().sum(1).mean()
    assert abs(sampled / flow.risk(g) - 1) < 0.02


def test_leaving_the_conditional_mean_raises_the_risk_by_the_distance() -> None:
    flow = make_gaussian(8, 4)
    best = flow.conditional_mean
    for seed in range(10):
        step = 0.1 * noise(8, 4, seed=seed)
        raised = flow.risk(best + step) - flow.risk(best)
        assert raised > 0
        assert abs(raised - flow.mean_square(step)) < 1e-10


def test_a_nonlinear_predictor_is_no_better() -> None:
    flow = make_gaussian(4, 2)
    x = noise(100_000, 4, seed=1) @ torch.linalg.cholesky(flow.covariance).mT
    seen = x[:, flow.seen]
    best = seen @ flow.conditional_mean.mT
    least = (x - best).square().sum(1).mean()
    for bend in (torch.tanh(seen), seen**2, (seen > 0).double()):
        bent = best + 0.2 * bend @ noise(2, 4, seed=2)
        raised = (x - bent).square().sum(1).mean() - least
        assert abs(raised / (bent - best).square().sum(1).mean() - 1) < 0.1


def test_the_masked_loss_says_nothing_at_visible_points() -> None:
    flow = make_gaussian(6, 3)
    hidden = torch.tensor([i for i in range(6) if i not in flow.seen.tolist()])
    other = flow.conditional_mean.clone()
    other[flow.seen] += 1.0
    assert flow.risk(other, hidden) == flow.risk(flow.conditional_mean, hidden)
    assert flow.risk(other) > flow.risk(flow.conditional_mean) + 0.1


def test_a_network_that_is_not_told_the_mask_has_a_larger_least_risk() -> None:
    """One value, 1 or 0, hidden half of the time: zero is seen for both reasons."""
    joint = {(1, True): 0.25, (0, True): 0.25, (1, False): 0.25, (0, False): 0.25}  # (x, visible)

    def least_risk(sees_mask: bool) -> float:
        cells: dict[tuple[int, bool], list[tuple[int, float]]] = {}
        for (x, visible), p in joint.items():
            seen = x if visible else 0
            cells.setdefault((seen, visible if sees_mask else True), []).append((x, p))
        total = 0.0
        for outcomes in cells.values():
            mean = sum(x * p for x, p in outcomes) / sum(p for _, p in outcomes)
            total += sum(p * (x - mean) ** 2 for x, p in outcomes)
        return total

    assert least_risk(sees_mask=True) == pytest.approx(0.125)
    assert least_risk(sees_mask=False) == pytest.approx(1 / 6)


# The oracle inequality


@dataclass(frozen=True)
class Penalised:
    """A flow on a small torus, its divergence D, and the maps that the theorem compares."""

    flow: Gaussian
    d: Tensor

    def minimiser(self, strength: float) -> Tensor:
        """(1 + lambda D^T D)^-1 E[x | seen]."""
        identity = torch.eye(self.d.shape[1], dtype=torch.float64)
        return torch.linalg.solve(
            identity + strength * self.d.mT @ self.d, self.flow.conditional_mean
        )

    def penalised_risk(self, g: Tensor, strength: float) -> Tensor:
        return self.flow.risk(g) + strength * self.flow.mean_square(self.d @ g)

    @property
    def projection(self) -> Tensor:
        """Onto the divergence-free fields."""
        identity = torch.eye(self.d.shape[1], dtype=torch.float64)
        return identity - torch.linalg.pinv(self.d, rtol=1e-10) @ self.d

    @property
    def constant(self) -> float:
        """c_H."""
        values = torch.linalg.svdvals(self.d)
        return 1 / values[values > 1e-10 * values[0]].min().item()

    def solenoidal_maps(self) -> list[Tensor]:
        """The best divergence-free predictor, and random ones."""
        best = self.projection @ self.flow.conditional_mean
        others = [self.projection @ (best + 0.3 * noise(*best.shape, seed=s)) for s in range(5)]
        return [best, *others, torch.zeros_like(best)]


def make_penalised(shape: tuple[int, int] = (4, 5)) -> Penalised:
    size = 2 * shape[0] * shape[1]
    d = divergence_matrix(Grid.periodic(shape, dx=0.8, dy=1.3))
    return Penalised(make_gaussian(size, size // 2), d)


def test_the_closed_form_minimises_the_penalised_risk() -> None:
    case = make_penalised()
    for strength in STRENGTHS:
        g = case.minimiser(strength)
        for seed in range(5):
            step = 0.05 * noise(*g.shape, seed=seed)
            raised = case.penalised_risk(g + step, strength) - case.penalised_risk(g, strength)
            expected = case.flow.mean_square(step) + strength * case.flow.mean_square(case.d @ step)
            assert abs(raised - expected) < 1e-9 * expected


def test_risk_and_penalty_together_stay_below_every_solenoidal_predictor() -> None:
    case = make_penalised()
    oracles = case.solenoidal_maps()
    for oracle in oracles:
        assert (case.d @ oracle).abs().max() < 1e-12
    for strength in STRENGTHS:
        left = case.penalised_risk(case.minimiser(strength), strength)
        for oracle in oracles:
            assert left <= case.flow.risk(oracle)
    # It is sharp: for a strong penalty the minimiser becomes the best of them.
    gap = case.flow.risk(oracles[0]) - case.penalised_risk(case.minimiser(1e6), 1e6)
    assert 0 <= gap < 1e-4


def test_the_minimiser_approaches_the_solenoidal_fields_as_the_penalty_grows() -> None:
    case = make_penalised()
    outside = torch.eye(case.d.shape[1], dtype=torch.float64) - case.projection
    distances = []
    for strength in STRENGTHS:
        g = case.minimiser(strength)
        distance = case.flow.mean_square(outside @ g)
        penalty = case.flow.mean_square(case.d @ g)
        assert distance <= case.constant**2 * penalty * (1 + 1e-10)
        for oracle in case.solenoidal_maps():
            assert distance <= case.constant**2 / strength * case.flow.risk(oracle)
        distances.append(distance)
    assert all(b < a for a, b in zip(distances, distances[1:], strict=False))
    assert distances[-1] < 1e-4 * distances[0]


def test_the_constant_is_attained_by_the_flattest_mode_of_the_divergence() -> None:
    case = make_penalised()
    _, values, modes = torch.linalg.svd(case.d)
    index = int((values > 1e-10 * values[0]).sum()) - 1
    u = modes[index]
    outside = u - case.projection @ u
    assert abs(outside.norm() - case.constant * (case.d @ u).norm()) < 1e-10


def test_the_printed_inequality_holds_without_any_penalty_at_all() -> None:
    """The unpenalised conditional mean satisfies it too, so it implies nothing about divergence."""
    case = make_penalised()
    g = case.flow.conditional_mean
    extra = case.flow.mean_square(case.d @ g)
    assert extra > 0.1  # far from solenoidal
    for strength in STRENGTHS:
        for oracle in case.solenoidal_maps():
            printed = case.flow.risk(oracle) + case.constant**2 / strength * extra
            assert case.flow.risk(g) < case.flow.risk(oracle) < printed
