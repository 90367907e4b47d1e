"""The level of the paired tests: how often models without a difference are called different.

Every model has the same expected error on every flow. The energies of flows have heavy tails, so
that a few flows make up most of the error. A good or bad seed changes the errors of all flows.
"""

import pytest
import torch

from pibert.comparison.paired import holm, p_value

RIVALS = 6
TAIL = 1.5
"""Standard deviation of the logarithm of the energies: of ten the largest has 44 %."""


def share_of_false(
    *, flows: int, seeds: int, noise: tuple[float, float, float], simulations: int
) -> float:
    """Return in what share of simulations any of six tests has a corrected p below 0.05.

    ``noise`` is that of the flows, of the tested model's seeds, and of the rivals' seeds, each as
    standard deviation of the logarithm of an error.
    """
    generator = torch.Generator().manual_seed(flows + 100 * seeds)

    def normal(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    found = 0
    of_flows, of_mine, of_theirs = noise
    for _ in range(simulations):
        energies = (TAIL * normal(flows)).exp()

        def errors(of_seeds: float, energies: torch.Tensor = energies) -> torch.Tensor:
            exponent = of_flows * normal(flows) + of_seeds * normal(seeds, 1)
            return energies * (exponent - (of_flows**2 + of_seeds**2) / 2).exp()

        mine = errors(of_mine)
        tests = holm([p_value(mine, errors(of_theirs)) for _ in range(RIVALS)])
        found += any(p is not None and p < 0.05 for p in tests)
    return found / simulations


@pytest.mark.parametrize(
    ("seeds", "noise"), [(1, (0.1, 0, 0)), (3, (0.02, 0.03, 0.03)), (3, (0.02, 0.03, 0.2))]
)
def test_equal_models_are_seldom_called_different(
    seeds: int, noise: tuple[float, float, float]
) -> None:
    share = share_of_false(flows=10, seeds=seeds, noise=noise, simulations=200)
    assert share <= 0.05 + 2 * (0.05 * 0.95 / 200) ** 0.5


@pytest.mark.slow
@pytest.mark.parametrize("flows", [10, 20])
@pytest.mark.parametrize(
    ("seeds", "noise"),
    [
        (1, (0.02, 0, 0)),
        (1, (0.5, 0, 0)),
        *((n, noise) for n in (2, 3, 5) for noise in [
            (0.02, 0.03, 0.03), (0.1, 0.03, 0.03), (0.001, 0.03, 0.03),
            (0.02, 0.03, 0.2), (0.02, 0.2, 0.03),
        ]),
    ],
)  # fmt: skip
def test_the_level_is_at_most_five_percent(
    flows: int, seeds: int, noise: tuple[float, float, float]
) -> None:
    share = share_of_false(flows=flows, seeds=seeds, noise=noise, simulations=1000)
    print(f"{flows} flows, {seeds} seeds, noise {noise}: {share:.1%}")
    assert share <= 0.05 + 2 * (0.05 * 0.95 / 1000) ** 0.5
