"""Which frames go where: counts, disjointness, groups, gaps."""

import pytest
import torch

from pibert.data.splits import (
    SPLITS,
    Segment,
    Shares,
    Split,
    SplitRule,
    split_at_gaps,
    split_by_parameter,
    split_in_time,
    split_trajectories,
)
from tests.helpers import refused


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
    with refused("train, valid, test", "found 2", "time"):
        split_trajectories(range(2), Shares(), seed=0)
    with refused("6 trajectories", "1 group", "valid"):
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
    with refused("12 frames", "'valid'", "data.guard"):
        split_in_time([100, 12], Shares(), guard=3)
    with refused("guard", "found -1"):
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


RE = [float(v) for v in (900, 100, 500, 300, 100, 700, 200, 800, 400, 600, 1000, 500)]
"""Ten values; two of them occur twice."""


def values_of(split: Split) -> dict[str, set[float]]:
    return {name: {RE[i] for i in members} for name, members in indices(split).items()}


@pytest.mark.parametrize("text", ["higher:Re", "lower:Re", "interpolation:Re", "higher:Re:650"])
@pytest.mark.parametrize("seed", range(20))
def test_no_value_of_a_parameter_is_in_two_splits(text: str, seed: int) -> None:
    """Validation and calibration values lie within the training range, test values as asked."""
    rule, shares = SplitRule.parse(text), Shares(train=0.5, valid=0.2, calibration=0.1)
    split = split_by_parameter(RE, rule, shares, seed=seed)
    assert sorted(sum(indices(split).values(), [])) == list(range(len(RE)))
    values = values_of(split)
    assert sum(map(len, values.values())) == len(set(RE))
    assert all(values[name] for name in SPLITS)
    low, high = min(values["train"]), max(values["train"])
    assert all(low < value < high for name in ("valid", "calibration") for value in values[name])
    assert all(
        {"higher": value > high, "lower": value < low, "interpolation": low < value < high}[
            rule.kind
        ]
        for value in values["test"]
    )
    if not rule.limits:
        assert abs(len(split.test) - 2.4) < 1.5


def test_a_test_range_by_hand() -> None:
    shares = Shares(train=0.8, valid=0.2)
    for text, test in {
        "higher:Re:800": {900, 1000},
        "lower:Re:200": {100},
        "interpolation:Re:300..500": {300, 400, 500},
        "lower:Re:2.5e2": {100, 200},
    }.items():
        rule = SplitRule.parse(text)
        assert values_of(split_by_parameter(RE, rule, shares, seed=0))["test"] == test
        assert SplitRule.parse(str(rule)) == rule
    # Without a range the highest values are taken, up to the share of the flows.
    split = split_by_parameter(
        RE, SplitRule.parse("higher:Re"), Shares(train=0.5, valid=0.1), seed=0
    )
    assert values_of(split)["test"] == {700, 800, 900, 1000} | {600}


@pytest.mark.parametrize(
    ("values", "text", "message"),
    [
        ([5.0] * 4, "higher:Re", "different values of 'Re', found 5 in 4 flows"),
        (
            RE,
            "higher:Re:1000",
            "no flow is in the test range; .*10 values of 'Re', 100",
        ),
        (RE, "lower:Re:5000", "all flows are in the test range"),
        (RE, "interpolation:Re:50..300", "on both sides of the test range"),
        (RE, "lower:Re:850", "nothing is left for valid.*2 values outside.*900, 1000.*add flows"),
        ([1.0, 2.0], "interpolation:Re", "no flow is in the test range"),
        ([1.0, 2.0, 3.0], "higher:Re", "nothing is left for valid"),
    ],
)
def test_a_range_that_does_not_match_the_data_is_refused(
    values: list[float], text: str, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        split_by_parameter(values, SplitRule.parse(text), Shares(), seed=0)
    with refused("shares", "above 0"):
        split_by_parameter(RE, SplitRule.parse("lower:Re"), Shares(train=0.9), seed=0)


@pytest.mark.parametrize(
    "text",
    [
        *("", "random", "higher", "higher:", "higher:Re:", "higher:Re:fast", "higher:Re,gap"),
        *("higher:Re:1..2", "lower:Re:nan", "interpolation:Re:4", "interpolation:Re:6..4"),
        *("time:Re", "trajectory:Re", "conditions:", "conditions:Re:3", "lower:Re:1:2"),
    ],
)
def test_a_split_that_cannot_be_read_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=f"higher:Re:8000.*found {text!r}"):
        SplitRule.parse(text)
