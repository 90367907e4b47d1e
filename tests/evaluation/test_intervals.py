"""Intervals: coverage, pairing, blocks against correlated frames, and what is refused."""

import math
from collections.abc import Iterator

import pytest
import torch
from jaxtyping import Float, config
from torch import Tensor

from pibert.evaluation.intervals import (
    TooFew,
    difference,
    draw_blocks,
    draw_trajectories,
    interval,
)


@pytest.fixture
def no_shape_checks() -> Iterator[None]:
    """Call the package as a user does: the checks of the test run would answer before our own."""
    config.update("jaxtyping_disable", True)
    yield
    config.update("jaxtyping_disable", False)


class Ratio:
    """Sum of the first term over the sum of the second: a mean, where the second counts."""

    def values(self, sums: Float[Tensor, "*draws k"]) -> Float[Tensor, "*draws entry"]:
        return sums[..., :1] / sums[..., 1:]


def terms(x: Tensor) -> Tensor:
    return torch.stack((x, torch.ones_like(x)), -1)


def autoregressive(length: int, memory: float, generator: torch.Generator) -> Tensor:
    """Mean 0, variance 1, correlation memory^lag."""
    noise = torch.randn(length, generator=generator, dtype=torch.float64)
    x = noise.clone()
    for t in range(1, length):
        x[t] = memory * x[t - 1] + math.sqrt(1 - memory**2) * noise[t]
    return x


def width(found: tuple[Tensor, ...]) -> float:
    return float(found[2] - found[1])


def test_the_value_is_that_of_the_plain_sum() -> None:
    rows = torch.rand(24, 2, dtype=torch.float64)
    weights = draw_trajectories(torch.arange(24) // 2, seed=0)
    found = interval(Ratio(), rows, weights)
    assert torch.equal(found.value, Ratio().values(rows.sum(0)))
    assert bool(found.low <= found.value) and bool(found.value <= found.high)


def test_rows_of_a_trajectory_move_together_and_every_draw_has_as_many_trajectories() -> None:
    groups = torch.tensor([7, 3, 7, 9, 3, *range(20, 30)])
    weights = draw_trajectories(groups, draws=50, seed=1)
    assert weights.shape == (50, 15)
    assert torch.equal(weights[:, 0], weights[:, 2]) and torch.equal(weights[:, 1], weights[:, 4])
    one_each = weights[:, [0, 1, 3, *range(5, 15)]]
    assert torch.equal(one_each.sum(1), torch.full((50,), 13.0, dtype=torch.float64))
    assert not torch.equal(weights[:, 0], weights[:, 1])


def test_draws_are_those_of_the_seed() -> None:
    groups = torch.arange(12)
    first = draw_trajectories(groups, draws=5, seed=3)
    assert torch.equal(first, draw_trajectories(groups, draws=5, seed=3))
    assert not torch.equal(first, draw_trajectories(groups, draws=5, seed=4))


def test_an_interval_of_ninety_percent_holds_the_truth_about_so_often() -> None:
    generator = torch.Generator().manual_seed(0)
    weights = draw_trajectories(torch.arange(60), draws=400, seed=0)
    samples = torch.randn(500, 60, generator=generator, dtype=torch.float64).exp()
    hits = 0
    for x in samples:
        found = interval(Ratio(), terms(x), weights, level=0.9)
        hits += bool(found.low <= math.exp(0.5)) and bool(math.exp(0.5) <= found.high)
    # Of a skewed distribution; the standard error of the share is 0.013.
    assert 0.83 < hits / 500 < 0.93


def test_the_interval_has_the_width_of_theory() -> None:
    x = torch.randn(400, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    found = interval(Ratio(), terms(x), draw_trajectories(torch.arange(400), draws=4000, seed=0))
    expected = 2 * 1.96 * float(x.std()) / math.sqrt(400)
    assert abs(width(found) / expected - 1) < 0.06


def test_pairing_cancels_what_is_hard_for_both() -> None:
    generator = torch.Generator().manual_seed(0)
    hard = torch.rand(40, generator=generator, dtype=torch.float64) * 10
    slight = 0.1 * torch.randn(2, 40, generator=generator, dtype=torch.float64)
    a, b = hard + slight[0] + 0.2, hard + slight[1]
    weights = draw_trajectories(torch.arange(40), seed=0)
    paired = difference(Ratio(), terms(a), terms(b), weights)
    alone = [interval(Ratio(), terms(x), weights) for x in (a, b)]
    assert width(paired[:3]) < 0.1 * min(width(found) for found in alone)
    assert bool(alone[0].low < alone[1].high), "apart, the two would not be told from each other"
    assert bool(paired.significant) and abs(float(paired.value) - 0.2) < 0.1
    reverse = difference(Ratio(), terms(b), terms(a), weights)
    assert bool(reverse.significant) and torch.equal(reverse.value, -paired.value)


def test_models_that_differ_by_chance_are_seldom_called_different() -> None:
    generator = torch.Generator().manual_seed(5)
    weights = draw_trajectories(torch.arange(50), draws=400, seed=0)
    marks = 0
    for _ in range(300):
        a, b = torch.randn(2, 50, generator=generator, dtype=torch.float64)
        marks += bool(difference(Ratio(), terms(a), terms(b), weights).significant)
    assert marks / 300 < 0.1


def test_blocks_see_that_neighbouring_frames_say_the_same() -> None:
    x = autoregressive(4000, 0.9, torch.Generator().manual_seed(0))
    groups = torch.zeros(4000, dtype=torch.long)
    singly = interval(Ratio(), terms(x), draw_blocks(groups, block=1, draws=500, seed=0))
    blocks = interval(Ratio(), terms(x), draw_blocks(groups, block=100, draws=500, seed=0))
    # Correlated frames are worth (1 - 0.9) / (1 + 0.9) of independent ones: 4.4 times the width.
    assert 3.2 < width(blocks) / width(singly) < 5.2


def test_blocks_are_runs_within_their_recording_and_favour_no_frame() -> None:
    groups = torch.tensor([0] * 31 + [1] * 23)
    weights = draw_blocks(groups, block=5, draws=4000, seed=0)
    assert torch.equal(weights[:, :31].sum(1), torch.full((4000,), 31.0, dtype=torch.float64))
    assert torch.equal(weights[:, 31:].sum(1), torch.full((4000,), 23.0, dtype=torch.float64))
    assert float((weights.mean(0) - 1).abs().max()) < 0.1
    single = draw_blocks(torch.zeros(50, dtype=torch.long), block=5, draws=200, seed=0)
    jumps = (single != single.roll(1, 1)).sum(1)
    assert int(jumps.max()) <= 20, "ten blocks have twenty ends"


def test_too_little_data_is_refused_with_the_number_found() -> None:
    with pytest.raises(TooFew, match="at least 10 trajectories.*found 9"):
        draw_trajectories(torch.arange(9), seed=0)
    with pytest.raises(TooFew, match="at least 10 blocks of 7 frames.*found 9 in 69"):
        draw_blocks(torch.zeros(69, dtype=torch.long), block=7, seed=0)
    assert draw_blocks(torch.zeros(70, dtype=torch.long), block=7, seed=0).shape == (1000, 70)
    assert issubclass(TooFew, ValueError)


def test_wrong_arguments_are_refused(no_shape_checks: None) -> None:
    rows = torch.rand(12, 2, dtype=torch.float64)
    weights = draw_trajectories(torch.arange(12), draws=20, seed=0)
    with pytest.raises(ValueError, match="weights of 12 rows, found 11"):
        interval(Ratio(), rows, weights[:, :11])
    with pytest.raises(ValueError, match="the same frames for both models"):
        difference(Ratio(), rows, rows[:11], weights)
    with pytest.raises(ValueError, match="level between 0 and 1, found 95"):
        interval(Ratio(), rows, weights, level=95.0)
    with pytest.raises(ValueError, match="at least 1 frame, found 0"):
        draw_blocks(torch.zeros(20, dtype=torch.long), block=0, seed=0)
    with pytest.raises(ValueError, match="at least 1 draw"):
        draw_trajectories(torch.arange(12), draws=0, seed=0)


def test_rows_with_more_axes_have_intervals_of_their_own() -> None:
    rows = torch.rand(15, 4, 2, dtype=torch.float64)
    weights = draw_trajectories(torch.arange(15), seed=0)
    together = interval(Ratio(), rows, weights)
    alone = interval(Ratio(), rows[:, 2], weights)
    assert together.low.shape == (4, 1)
    for mine, other in zip(together, alone, strict=True):
        assert torch.allclose(mine[2], other)


def test_draws_without_a_value_are_left_out_unless_they_are_many() -> None:
    rows = torch.rand(30, 2, dtype=torch.float64)
    rows[1:, 1] = 0  # a single row counts: a third of all draws is without it
    rows[1:, 0] = 0
    weights = draw_trajectories(torch.arange(30), seed=0)
    found = interval(Ratio(), rows, weights)
    assert bool(found.value.isfinite()) and bool(found.low.isnan()) and bool(found.high.isnan())
    rows[:5, 1] = 1
    assert bool(interval(Ratio(), rows, weights).low.isfinite())


def test_an_infinite_value_has_an_infinite_end() -> None:
    rows = torch.ones(12, 2, dtype=torch.float64)
    rows[:, 1] = 0
    found = interval(Ratio(), rows, draw_trajectories(torch.arange(12), seed=0))
    assert all(bool(part.isinf()) for part in found)


def test_rows_that_are_all_alike_have_an_interval_of_round_off() -> None:
    for value in (0.1, 3.3):
        rows = terms(torch.full((100,), value, dtype=torch.float64))
        found = interval(Ratio(), rows, draw_trajectories(torch.arange(100), draws=100, seed=0))
        assert [float(end) for end in found] == pytest.approx([value] * 3, rel=1e-12)


def test_an_interval_that_leaves_out_its_own_value_is_none() -> None:
    class Distance(Ratio):
        """Of the mean from zero: in every draw it is larger than over all rows, where it is 0."""

        def values(self, sums: Float[Tensor, "*draws k"]) -> Float[Tensor, "*draws entry"]:
            return super().values(sums).abs()

    x = torch.randn(400, generator=torch.Generator().manual_seed(4)).double()
    x -= x.mean()
    weights = draw_trajectories(torch.arange(400), draws=500, seed=0)
    signed, distance = (interval(own, terms(x), weights) for own in (Ratio(), Distance()))
    assert signed.low < 0 < signed.high
    assert distance.value < 1e-15 and distance.low.isnan() and distance.high.isnan()
