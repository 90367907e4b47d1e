"""Which frames go where: counts, disjointness, groups, gaps."""

import pytest
import torch

from pibert.data.splits import (
    SPLITS,
    Segment,
    Shares,
    Split,
    split_at_gaps,
    split_in_time,
    split_trajectories,
)


def indices(split: Split) -> dict[str, list[int]]:
    return {part: [s.trajectory for s in getattr(split, part)] for part in SPLITS}


def test_a_group_stays_together() -> None:
    groups = [f"Re{(7 * i) % 13}" for i in range(60)]
    split = split_trajectories(groups, Shares(train=0.5, valid=0.2, calibration=0.1), seed=0)
    homes: dict[str, set[str]] = {}
    for part, members in indices(split).items():
        for index in members:
            homes.setdefault(groups[index], set()).add(part)
    assert all(len(parts) == 1 for parts in homes.values())
    sizes = {part: len(members) for part, members in indices(split).items()}
    assert abs(sizes["train"] - 30) <= 2 and abs(sizes["valid"] - 12) <= 2


def test_an_empty_split_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"for each of train, valid, test, found 2 traj.* time"):
        split_trajectories(range(2), Shares(), seed=0)
    with pytest.raises(ValueError, match=r"6 trajectories in 1 group: nothing is left for valid"):
        split_trajectories(["a"] * 6, Shares(), seed=0)
    with pytest.raises(ValueError, match="sum to at most 1"):
        Shares(train=0.9, valid=0.2)


@pytest.mark.parametrize(
    ("total", "shares", "sizes"),
    [
        (3, Shares(), [1, 1, 0, 1]),
        (9, Shares(), [7, 1, 0, 1]),
        (92, Shares(), [73, 9, 0, 10]),
        (4, Shares(calibration=0.05), [1, 1, 1, 1]),
        (6, Shares(train=0.9, valid=0.1), [5, 1, 0, 0]),
        (100, Shares(train=0.29, valid=0.57), [29, 57, 0, 14]),  # which floats cannot hold
    ],
)
def test_no_split_of_a_small_set_is_empty(total: int, shares: Shares, sizes: list[int]) -> None:
    parts = indices(split_trajectories(range(total), shares, seed=0))
    assert [len(parts[part]) for part in SPLITS] == sizes
    assert sorted(sum(parts.values(), [])) == list(range(total))
    if total > 9:
        assert parts != indices(split_trajectories(range(total), shares, seed=1))


def test_a_split_in_time_by_hand() -> None:
    shares = Shares(train=0.5, valid=0.25)
    split = split_in_time([28, 18], shares, guard=4)
    # 28 - 2 * 4 = 20 frames: 10, 5, 5.  18 - 8 = 10: 5, 2, 3.
    assert split.train == (Segment(0, 0, 10), Segment(1, 0, 5))
    assert split.valid == (Segment(0, 14, 19), Segment(1, 9, 11))
    assert split.calibration == ()
    assert split.test == (Segment(0, 23, 28), Segment(1, 15, 18))


def test_a_trajectory_too_short_for_its_gaps_is_named() -> None:
    with pytest.raises(ValueError, match="1 has 12 frames: too few .*'valid'.*data.guard"):
        split_in_time([100, 12], Shares(), guard=3)
    with pytest.raises(ValueError, match="guard must be zero or positive, found -1"):
        split_in_time([100], Shares(), guard=-1)


def test_a_segment_is_split_at_gaps_in_time() -> None:
    """Pairs every ten frames, and a step of just under and of just 1.5 dt at the end."""
    steps = torch.tensor([1, 9, 1, 9, 1, 1.49, 1.5], dtype=torch.float64)
    time = torch.cat((torch.tensor([3.0]), 3 + 0.2 * steps.cumsum(0)))
    assert split_at_gaps(Segment(4), time, 0.2) == [
        Segment(4, 0, 2),
        Segment(4, 2, 4),
        Segment(4, 4, 7),
        Segment(4, 7, 8),
    ]
    assert split_at_gaps(Segment(4, 3, 6), time, 0.2) == [Segment(4, 3, 4), Segment(4, 4, 6)]
    assert split_at_gaps(Segment(4, 4, 7), time, 0.2) == [Segment(4, 4, 7)]
    assert split_at_gaps(Segment(4), time, None) == [Segment(4, 0, 8)]
