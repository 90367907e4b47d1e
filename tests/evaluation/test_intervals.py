"""Intervals: coverage, pairing, blocks against correlated frames, and what is refused."""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from pibert.evaluation.intervals import (
    TooFew,
    interval,
    resample_blocks,
    resample_starts,
    resample_trajectories,
)
from tests.helpers import refused


class Ratio:
    """Sum of the first term over the sum of the second: a mean, where the second counts."""

    def values(self, sums: Float[Tensor, "*batch k"]) -> Float[Tensor, "*batch entry"]:
        return sums[..., :1] / sums[..., 1:]


def terms(x: Tensor) -> Tensor:
    return torch.stack((x, torch.ones_like(x)), -1)


def test_trajectories_are_resampled_whole_and_in_the_same_number() -> None:
    groups = torch.tensor([7, 3, 7, 9, 3, *range(20, 30)])
    weights = resample_trajectories(groups, resamples=50, seed=1)
    assert weights.shape == (50, 15)
    assert torch.equal(weights[:, 0], weights[:, 2]) and torch.equal(weights[:, 1], weights[:, 4])
    one_each = weights[:, [0, 1, 3, *range(5, 15)]]
    assert torch.equal(one_each.sum(1), torch.full((50,), 13.0, dtype=torch.float64))
    assert not torch.equal(weights[:, 0], weights[:, 1])


def test_ninety_percent_interval_covers_the_truth_about_ninety_percent_of_the_time() -> None:
    generator = torch.Generator().manual_seed(0)
    weights = resample_trajectories(torch.arange(60), resamples=400, seed=0)
    samples = torch.randn(500, 60, generator=generator, dtype=torch.float64).exp()
    hits = 0
    for x in samples:
        found = interval(Ratio(), terms(x), weights, level=0.9)
        hits += bool(found.low <= math.exp(0.5)) and bool(math.exp(0.5) <= found.high)
    # Of a skewed distribution; the standard error of the share is 0.013.
    assert 0.83 < hits / 500 < 0.93


def test_blocks_are_runs_within_their_recording_and_favour_no_frame() -> None:
    groups = torch.tensor([0] * 31 + [1] * 23)
    weights = resample_blocks(groups, block=5, resamples=4000, seed=0)
    assert torch.equal(weights[:, :31].sum(1), torch.full((4000,), 31.0, dtype=torch.float64))
    assert torch.equal(weights[:, 31:].sum(1), torch.full((4000,), 23.0, dtype=torch.float64))
    assert float((weights.mean(0) - 1).abs().max()) < 0.1
    single = resample_blocks(torch.zeros(50, dtype=torch.long), block=5, resamples=200, seed=0)
    jumps = (single != single.roll(1, 1)).sum(1)
    assert int(jumps.max()) <= 20, "ten blocks have twenty ends"


def test_too_little_data_is_refused_with_the_number_found() -> None:
    with refused("at least 10", "found 9", error=TooFew):
        resample_trajectories(torch.arange(9), seed=0)
    with refused("at least 10", "found 9 in 69", error=TooFew):
        resample_blocks(torch.zeros(69, dtype=torch.long), block=7, seed=0)
    assert resample_blocks(torch.zeros(70, dtype=torch.long), block=7, seed=0).shape == (1000, 70)
    assert issubclass(TooFew, ValueError)


def test_resamples_without_a_value_are_left_out_unless_they_are_many() -> None:
    rows = torch.rand(30, 2, dtype=torch.float64)
    rows[1:, 1] = 0  # a single row counts: a third of all resamples lacks it
    rows[1:, 0] = 0
    weights = resample_trajectories(torch.arange(30), seed=0)
    found = interval(Ratio(), rows, weights)
    assert bool(found.value.isfinite()) and bool(found.low.isnan()) and bool(found.high.isnan())
    rows[:5, 1] = 1
    assert bool(interval(Ratio(), rows, weights).low.isfinite())


def test_starts_of_one_flow_move_together_where_there_are_enough_flows() -> None:
    groups, frames = torch.arange(12).repeat_interleave(3), torch.arange(3).repeat(12) * 100
    weights, method = resample_starts(groups, frames, block=None, resamples=40, seed=2)
    assert method == "12 flows"
    assert torch.equal(weights[:, ::3], weights[:, 1::3])


def test_interval_over_flows_covers_the_mean_although_starts_of_a_flow_are_alike() -> None:
    """Starts that share most of their error: as independent rows they would be too certain."""
    generator = torch.Generator().manual_seed(3)
    groups, frames = torch.arange(40).repeat_interleave(5), torch.arange(5).repeat(40)
    weights, _ = resample_starts(groups, frames, block=None, resamples=300, seed=0)
    naive = resample_trajectories(torch.arange(200), resamples=300, seed=0)
    hits, naive_hits = 0, 0
    for _ in range(300):
        own = torch.randn(40, 1, generator=generator, dtype=torch.float64)
        noise = torch.randn(40, 5, generator=generator, dtype=torch.float64)
        rows = terms((own + 0.2 * noise).flatten())
        found, tight = (interval(Ratio(), rows, w, level=0.9) for w in (weights, naive))
        hits += bool(found.low <= 0 <= found.high)
        naive_hits += bool(tight.low <= 0 <= tight.high)
    assert 0.83 < hits / 300 < 0.95 and naive_hits / 300 < 0.7


def test_starts_in_few_flows_are_resampled_by_blocks_of_time() -> None:
    groups = torch.zeros(24, dtype=torch.long)
    frames = torch.arange(24) * 10 + 7
    weights, method = resample_starts(groups, frames, block=20, resamples=40, seed=2)
    assert method == "12 stretches of 20 frames"
    assert torch.equal(weights[:, ::2], weights[:, 1::2])
    for block in (None, 30):
        with refused("at least 10 trajectories", error=TooFew):
            resample_starts(groups, frames, block=block, seed=2)
