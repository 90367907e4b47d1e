"""Quantiles and p-values against the theory of exchangeable scores."""

import itertools
import math

import pytest
import torch

from pibert.inference.conformal import (
    corrected_level,
    grouped_p_values,
    grouped_quantile,
    highest_level,
    left_out_coverage,
)
from tests.helpers import refused


@pytest.mark.parametrize(("level", "n"), [(0.5, 9), (0.8, 9), (0.9, 9), (0.9, 10), (0.95, 40)])
def test_one_score_per_group_gives_the_rank_of_split_conformal_prediction(level: float, n: int):
    scores = torch.arange(1.0, n + 1)[torch.randperm(n)]
    found = grouped_quantile(scores[:, None], torch.ones(n), corrected_level(level, n))
    assert found == math.ceil((n + 1) * level - 1e-9)


def test_coverage_over_all_orders_is_exact():
    # Of n + 1 different scores each is the last equally often: coverage is ceil((n+1) level)/(n+1).
    n, level, covered = 4, 0.7, 0
    orders = list(itertools.permutations(range(n + 1)))
    for order in orders:
        known = torch.tensor(order[:n], dtype=torch.float64)
        limit = grouped_quantile(known[:, None], torch.ones(n), corrected_level(level, n))
        covered += int(order[n] <= limit)
    assert covered / len(orders) == math.ceil((n + 1) * level) / (n + 1) == 0.8


@pytest.mark.parametrize("level", [0.5, 0.8, 0.9])
def test_dependent_scores_of_exchangeable_groups_are_covered(level: float):
    # Groups differ by a common factor: within a group scores say little more than one of them does.
    generator = torch.Generator().manual_seed(1)
    groups, inside, trials = 12, 50, 2000
    size = torch.randn(trials, groups + 1, 1, generator=generator).exp()
    scores = size * torch.rand(trials, groups + 1, inside, generator=generator)
    known, new = scores[:, :-1], scores[:, -1]
    wanted = corrected_level(level, groups)
    limits = grouped_quantile(known.movedim(0, 1), torch.ones(groups), wanted)
    covered = (new <= limits[..., None]).double().mean(-1)
    error = float(covered.std()) / math.sqrt(trials)
    assert level - 3 * error <= float(covered.mean())
    # The pooled quantile, which takes all scores for independent, covers less than it says.
    pooled = grouped_quantile(
        known.movedim(0, 1), torch.ones(groups), corrected_level(level, groups * inside)
    )
    if level > 0.85:  # low quantiles of a mixture of groups err to the other side
        assert float((new <= pooled[..., None]).double().mean()) < level


def test_a_level_that_the_count_cannot_give_is_refused_with_the_highest():
    assert corrected_level(0.9, 9) == pytest.approx(1.0)
    with refused("0.95", 19, "found 9", "0.9:"):
        corrected_level(0.95, 9)
    assert highest_level(19) == 0.95
    with pytest.raises(ValueError, match="between 0 and 1"):
        corrected_level(90.0, 9)


def test_p_values_of_exchangeable_scores_are_no_smaller_than_they_should_be():
    generator = torch.Generator().manual_seed(3)
    groups, inside, trials = 39, 8, 1500
    shift = torch.randn(trials, groups + 1, 1, generator=generator)
    scores = shift + 0.3 * torch.randn(trials, groups + 1, inside, generator=generator)
    p = torch.stack(
        [grouped_p_values(own[-1, :1], own[:-1], torch.ones(groups), groups)[0] for own in scores]
    )
    for rate in (0.05, 0.1, 0.3):
        false_alarms = float((p <= rate).double().mean())
        assert false_alarms <= rate + 3 * math.sqrt(rate * (1 - rate) / trials)
    assert float((p <= 0.3).double().mean()) > 0.2  # valid, but not silent
    assert float(p.min()) >= 1 / (groups + 1)


def test_p_values_count_by_hand():
    atoms = torch.tensor([[1.0, 3.0], [2.0, 4.0], [0.0, 0.0]])
    p = grouped_p_values(torch.tensor([2.5, 9.0, -1.0]), atoms, torch.ones(3), 3)
    assert p.tolist() == pytest.approx([(1 + 0.5 + 0.5 + 0.0) / 4, 1 / 4, 1.0])


def test_a_left_out_trajectory_does_not_widen_its_intervals():
    atoms = torch.tensor([[[1.0]], [[2.0]], [[3.0]], [[100.0]]])
    counts = torch.full((4,), 3)
    covered = left_out_coverage(atoms, torch.ones(4), 0.5, counts)
    assert covered[:, 0].tolist() == [1.0, 1.0, 0.0, 0.0]
