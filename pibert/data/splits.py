"""Splits of a data set: training, validation, calibration and test.

A split is a list of segments, stretches of frames of single trajectories; windows never leave their
segment, nor cross a gap in time. A published index of single pairs is such a list too: one segment
per entry, as long as one window. Validation selects models; calibration (of uncertainty) is seen by
neither training nor selection.
"""

import itertools
import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from pibert.data.wording import counted

SPLITS = ("train", "valid", "calibration", "test")

GAP = 1.5
"""A step in time of at least so many dt is a gap: the frames around it are no neighbours."""


class Segment(NamedTuple):
    """Frames start <= t < stop of the trajectory at an index; to its end without a stop."""

    trajectory: int
    start: int = 0
    stop: int | None = None


@dataclass(frozen=True, kw_only=True)
class Shares:
    """Shares of training, validation and calibration; the rest is the test split."""

    train: float = 0.8
    valid: float = 0.1
    calibration: float = 0.0

    def __post_init__(self) -> None:
        shares = (self.train, self.valid, self.calibration)
        if not all(share >= 0 for share in shares) or sum(shares) > 1 + 1e-9:
            raise ValueError(
                "shares of train, valid and calibration must be zero or positive and sum to at "
                f"most 1, found {shares}"
            )

    def counts(self, total: int) -> dict[str, int]:
        """How many of a total each split gets: shares rounded down, the rest to the test split."""
        # 0.29 * 100 is 29.
        counts = {part: math.floor(getattr(self, part) * total + 1e-9) for part in SPLITS[:3]}
        return counts | {"test": total - sum(counts.values())}

    def positive(self) -> tuple[str, ...]:
        """The splits that must not be empty."""
        parts = [part for part in SPLITS[:3] if getattr(self, part) > 0]
        rest = 1 - self.train - self.valid - self.calibration
        return (*parts, "test") if rest > 1e-9 else tuple(parts)


@dataclass(frozen=True)
class Split:
    """The segments of every split."""

    train: tuple[Segment, ...]
    valid: tuple[Segment, ...]
    calibration: tuple[Segment, ...]
    test: tuple[Segment, ...]


def condition(parameters: Mapping[str, float], names: Sequence[str]) -> tuple[float | None, ...]:
    """What repetitions of a flow agree in: the values of these parameters."""
    return tuple(parameters.get(name) for name in names)


def split_trajectories(groups: Sequence[Hashable], shares: Shares, *, seed: int) -> Split:
    """Whole trajectories, drawn at random; those of one group go to the same split.

    Groups are dealt in random order; each split is filled until the next group would miss its count
    by more than stopping does. Every split of a small set gets at least one group, as long as there
    are as many groups as splits: 8 trajectories with the default shares give 6, 1 and 1. Published
    splits that name only a seed cannot be reproduced from it, but their counts can: 92 single
    trajectories with shares 0.8 and 0.1 give 73, 9 and 10.

    ``groups`` has the group of each trajectory; ``range(n)`` for n independent ones.
    """
    members: dict[Hashable, list[int]] = {}
    for index, group in enumerate(groups):
        members.setdefault(group, []).append(index)
    dealt = list(members.values())
    order = torch.randperm(len(dealt), generator=torch.Generator().manual_seed(seed)).tolist()

    counts = _at_least_one(shares, len(groups))
    filled: dict[str, list[int]] = {part: [] for part in SPLITS}
    place = 0
    for number, group_members in enumerate(dealt[i] for i in order):
        left = len(dealt) - number
        while place < len(SPLITS) - 1:
            have, want = len(filled[SPLITS[place]]), counts[SPLITS[place]]
            too_many = have + len(group_members) - want
            spare = left - sum(counts[part] > 0 for part in SPLITS[place + 1 :])
            if want and (not have or (too_many < want - have and spare > 0)):
                break
            place += 1
        filled[SPLITS[place]] += group_members
    used = shares.positive()
    if empty := [part for part in used if not filled[part]]:
        raise ValueError(
            f"expected at least {len(used)} trajectories or groups of them, one for each of "
            f"{', '.join(used)}, found {counted(len(groups), 'trajectory')} in "
            f"{counted(len(dealt), 'group')}: nothing is left for {', '.join(empty)}; add data, "
            "split each trajectory in time (data.split = 'time'), or set the share of a split to 0"
        )
    parts = (tuple(Segment(index) for index in sorted(filled[part])) for part in SPLITS)
    return Split(*parts)


def _at_least_one(shares: Shares, total: int) -> dict[str, int]:
    """The counts of the shares, but no split is empty where there is enough for all.

    What an empty split gets is taken from the split that is furthest above its share.
    """
    counts, used = shares.counts(total), shares.positive()
    rest = 1 - shares.train - shares.valid - shares.calibration
    above = {part: counts[part] - total * getattr(shares, part, rest) for part in SPLITS}
    for part in used:
        givers = [other for other in SPLITS if counts[other] > (other in used)]
        if not counts[part] and givers:
            giver = max(givers, key=lambda other: above[other])
            above[giver] -= 1
            counts[giver] -= 1
            counts[part] = 1
    return counts


def split_in_time(lengths: Sequence[int], shares: Shares, *, guard: int) -> Split:
    """Consecutive stretches of every trajectory, with ``guard`` frames between them in no split.

    The flow should lose its memory within the guard frames. Shares are of the remaining frames.
    """
    if guard < 0:
        raise ValueError(f"guard must be zero or positive, found {guard}")
    parts: dict[str, list[Segment]] = {part: [] for part in SPLITS}
    used = shares.positive()
    for index, length in enumerate(lengths):
        counts = shares.counts(length - guard * (len(used) - 1))
        # Without a test share the frames lost to rounding go to the last part there is.
        counts[used[-1]] += counts["test"] if used[-1] != "test" else 0
        start = 0
        for part in used:
            if counts[part] < 1:
                what = f"trajectory {index} has {counted(length, 'frame')}"
                if length == 1:
                    raise ValueError(
                        f"{what}: a single frame has no next one to step to; leave it out, or give "
                        "a recording of several frames"
                    )
                raise ValueError(
                    f"{what}: too few for a split {part!r} and gaps of {counted(guard, 'frame')}; "
                    "lower data.guard, raise its share, or split by whole trajectories"
                )
            parts[part].append(Segment(index, start, start + counts[part]))
            start += counts[part] + guard
    return Split(*(tuple(parts[part]) for part in SPLITS))


def find_gaps(time: Float[Tensor, " t"], dt: float) -> Bool[Tensor, " steps"]:
    """Which steps from frame to frame are gaps."""
    # A step of just GAP is one, whatever rounding makes of it.
    return time.diff() / dt > GAP - 1e-6


def split_at_gaps(segment: Segment, time: Float[Tensor, " t"], dt: float | None) -> list[Segment]:
    """The stretches of a segment in which neighbouring frames are dt apart; without dt, all of it.

    ``time`` is that of all frames of the trajectory.
    """
    index, start, stop = segment
    stop = len(time) if stop is None else stop
    jumps = [] if dt is None else find_gaps(time[start:stop], dt).nonzero().flatten().tolist()
    edges = [start, *(start + 1 + jump for jump in jumps), stop]
    return [Segment(index, a, b) for a, b in itertools.pairwise(edges)]
