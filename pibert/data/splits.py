"""Which parts of a data set train, select, calibrate and test.

A part is a list of segments, stretches of frames of single trajectories; windows never leave their
segment, nor cross a gap in time. A published index of single pairs is such a list too: one segment
per entry, as long as one window. The parts are training, validation (selection), calibration (of
uncertainty: neither training nor selection sees it) and test.
"""

import itertools
import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from pibert.data.wording import counted
from pibert.fields import Trajectory

PARTS = ("train", "valid", "calibration", "test")

GAP = 1.5
"""A step in time of at least so many dt is a gap: the frames around it are no neighbours."""


class Segment(NamedTuple):
    """Frames start <= t < stop of the trajectory at an index; to its end without a stop."""

    trajectory: int
    start: int = 0
    stop: int | None = None


@dataclass(frozen=True, kw_only=True)
class Shares:
    """Shares of training, validation and calibration; the test part is the rest."""

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
        """How many of a total each part gets: shares rounded down, the rest to the test part."""
        counts = {part: _floor(getattr(self, part) * total) for part in PARTS[:3]}
        return counts | {"test": total - sum(counts.values())}

    def positive(self) -> tuple[str, ...]:
        """The parts that should not be empty."""
        parts = [part for part in PARTS[:3] if getattr(self, part) > 0]
        rest = 1 - self.train - self.valid - self.calibration
        return (*parts, "test") if rest > 1e-9 else tuple(parts)


@dataclass(frozen=True)
class Split:
    """The segments of every part."""

    train: tuple[Segment, ...]
    valid: tuple[Segment, ...]
    calibration: tuple[Segment, ...]
    test: tuple[Segment, ...]


def condition(parameters: Mapping[str, float], names: Sequence[str]) -> tuple[float | None, ...]:
    """What repetitions of a flow agree in: the values of these parameters."""
    return tuple(parameters.get(name) for name in names)


def split_trajectories(groups: Sequence[Hashable], shares: Shares, *, seed: int) -> Split:
    """Whole trajectories, drawn at random; those of one group go to the same part.

    Groups are dealt in random order, each part being filled until the next group would miss its
    count by more than stopping does. Of a small set every part gets at least one group, as long as
    there are as many groups as parts: 8 trajectories with the default shares give 6, 1 and 1.
    Published splits that name only a seed cannot be reproduced
    from it (their permutation is not known); their counts can: 92 single trajectories with shares
    0.8 and 0.1 give 73, 9 and 10.

    Args:
        groups: The group of each trajectory; ``range(n)`` for n independent ones.
        shares: Of the number of trajectories.
        seed: Of the order in which groups are dealt.
    """
    members: dict[Hashable, list[int]] = {}
    for index, group in enumerate(groups):
        members.setdefault(group, []).append(index)
    dealt = list(members.values())
    order = torch.randperm(len(dealt), generator=torch.Generator().manual_seed(seed)).tolist()

    counts = _at_least_one(shares, len(groups))
    filled: dict[str, list[int]] = {part: [] for part in PARTS}
    place = 0
    for number, group_members in enumerate(dealt[i] for i in order):
        left = len(dealt) - number
        while place < len(PARTS) - 1:
            have, want = len(filled[PARTS[place]]), counts[PARTS[place]]
            too_many = have + len(group_members) - want
            spare = left - sum(counts[part] > 0 for part in PARTS[place + 1 :])
            if want and (not have or (too_many < want - have and spare > 0)):
                break
            place += 1
        filled[PARTS[place]] += group_members
    empty = [part for part in shares.positive() if not filled[part]]
    if empty:
        used = shares.positive()
        raise ValueError(
            f"expected at least {len(used)} trajectories or groups of them, one for each of "
            f"{', '.join(used)}, found {counted(len(groups), 'trajectory')} in "
            f"{counted(len(dealt), 'group')}: nothing is left for {', '.join(empty)}; add data, "
            "split each trajectory in time (data.split = 'time'), or set the share of a part to 0"
        )
    parts = (tuple(Segment(index) for index in sorted(filled[part])) for part in PARTS)
    return Split(*parts)


def _at_least_one(shares: Shares, total: int) -> dict[str, int]:
    """The counts of the shares, but none of the parts is empty where there is enough for all.

    What an empty part gets is taken from the part that is furthest above its share.
    """
    counts, used = shares.counts(total), shares.positive()
    rest = 1 - shares.train - shares.valid - shares.calibration
    above = {part: counts[part] - total * getattr(shares, part, rest) for part in PARTS}
    for part in used:
        givers = [other for other in PARTS if counts[other] > (other in used)]
        if not counts[part] and givers:
            giver = max(givers, key=lambda other: above[other])
            above[giver] -= 1
            counts[giver] -= 1
            counts[part] = 1
    return counts


def label_split(trajectories: Sequence[Trajectory], split: Split, *, seed: int) -> list[Trajectory]:
    """The trajectories with the parts they belong to, and the seed, in their provenance."""
    parts: list[list[str]] = [[] for _ in trajectories]
    for part in PARTS:
        for index in sorted({segment.trajectory for segment in getattr(split, part)}):
            parts[index].append(part)
    return [
        replace(
            trajectory,
            local={**trajectory.local, "split": "+".join(own) or None, "split_seed": seed},
        )
        for trajectory, own in zip(trajectories, parts, strict=True)
    ]


def split_in_time(lengths: Sequence[int], shares: Shares, *, guard: int) -> Split:
    """Consecutive stretches of every trajectory, with frames between them that belong to none.

    Args:
        lengths: The number of frames of each trajectory.
        shares: Of the frames that the guard gaps leave.
        guard: Frames left out between two parts. The flow should forget itself within them.
    """
    if guard < 0:
        raise ValueError(f"guard must be zero or positive, found {guard}")
    parts: dict[str, list[Segment]] = {part: [] for part in PARTS}
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
                    f"{what}: too few for a part {part!r} and gaps of {counted(guard, 'frame')}; "
                    "lower data.guard, raise the part's share, or part whole trajectories"
                )
            parts[part].append(Segment(index, start, start + counts[part]))
            start += counts[part] + guard
    return Split(*(tuple(parts[part]) for part in PARTS))


def find_gaps(time: Float[Tensor, " t"], dt: float) -> Bool[Tensor, " steps"]:
    """Which steps from frame to frame are gaps."""
    # A step of just GAP is one, whatever rounding makes of it.
    return time.diff() / dt > GAP - 1e-6


def split_at_gaps(segment: Segment, time: Float[Tensor, " t"], dt: float | None) -> list[Segment]:
    """The stretches of a segment in which neighbouring frames are dt apart.

    Args:
        segment: Some frames of a trajectory.
        time: Of all frames of that trajectory.
        dt: Time between neighbouring frames; without it no gap can be told.
    """
    index, start, stop = segment
    stop = len(time) if stop is None else stop
    jumps = [] if dt is None else find_gaps(time[start:stop], dt).nonzero().flatten().tolist()
    edges = [start, *(start + 1 + jump for jump in jumps), stop]
    return [Segment(index, a, b) for a, b in itertools.pairwise(edges)]


def _floor(value: float) -> int:
    """Rounded down, but 0.29 * 100 is 29."""
    return math.floor(value + 1e-9)
