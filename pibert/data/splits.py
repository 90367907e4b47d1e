"""Splits of a data set: training, validation, calibration and test.

A split is a list of segments, stretches of frames of single trajectories; windows never leave their
segment, nor cross a gap in time. A published index of single pairs is such a list too: one segment
per entry, as long as one window. Validation selects models; calibration (of uncertainty) uses data
that neither training nor selection uses.

Splits by parameter ask how a model generalises. The test values of a parameter lie between those
of training (interpolation), above them or below them; validation and calibration flows always
come from the training range, and no value is in two splits.
"""

import itertools
import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Self

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from pibert.data.wording import counted

SPLITS = ("train", "valid", "calibration", "test")

GAP = 1.5
"""A time step of at least this many dt is a gap: the frames around it are not neighbours."""


RANGES = ("interpolation", "higher", "lower")
"""Kinds of splits by the value of a parameter."""


@dataclass(frozen=True)
class SplitRule:
    """How flows are split, written as ``KIND``, ``KIND:PARAMETER`` or ``KIND:PARAMETER:RANGE``.

    - ``trajectory``, ``time``, ``stated``: whole flows at random, in time, as the data state;
    - ``higher:Re``, ``lower:Re``: the test split has the highest or lowest values of Re, as many
      as its share; ``higher:Re:8000``: all above 8000; ``lower:Re:3000``: all below 3000;
    - ``interpolation:Re``: test values are drawn between the lowest and the highest;
      ``interpolation:Re:4000..6000``: all from 4000 to 6000;
    - ``conditions:Re,gap``: whole combinations of Re and gap at random; ``conditions``: of all
      parameters that vary.
    """

    kind: str
    names: tuple[str, ...] = ()
    limits: tuple[float, ...] = ()
    """Of the test values: one for ``higher`` and ``lower``, two for ``interpolation``."""

    @classmethod
    def parse(cls, text: str) -> Self:
        kind, *rest = (word.strip() for word in text.split(":"))
        names = tuple(name.strip() for name in rest[0].split(",")) if rest else ()
        fits = {
            **dict.fromkeys(("trajectory", "time", "stated"), not rest),
            **dict.fromkeys(RANGES, len(names) == 1 and len(rest) <= 2),
            "conditions": len(rest) <= 1,
        }
        try:
            limits = tuple(float(limit) for limit in "".join(rest[1:]).split("..") if rest[1:])
            ends = 2 if kind == "interpolation" else 1
            if not fits[kind] or not all(names) or len(limits) not in (0, ends):
                raise ValueError
            if not all(map(math.isfinite, limits)) or sorted(set(limits)) != list(limits):
                raise ValueError
        except (KeyError, ValueError):
            raise ValueError(
                "split: expected trajectory, time, stated, conditions, conditions:PARAMETER,..., "
                "interpolation:PARAMETER, higher:PARAMETER or lower:PARAMETER, the last three also "
                "with a range of test values (interpolation:Re:4000..6000, higher:Re:8000, "
                f"lower:Re:3000), found {text!r}"
            ) from None
        return cls(kind, names, limits)

    def __str__(self) -> str:
        limits = "..".join(f"{limit:g}" for limit in self.limits)
        return ":".join(filter(None, (self.kind, ",".join(self.names), limits)))

    def holds_out(self, value: float) -> bool:
        """Return whether a value of the parameter is in the range of the test split."""
        first, last = self.limits[0], self.limits[-1]
        if self.kind == "interpolation":
            return first <= value <= last
        return value > first if self.kind == "higher" else value < first


class Segment(NamedTuple):
    """Frames start <= t < stop of the trajectory at an index; None: to its end."""

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
        """Return the size of each split: shares rounded down, the rest to the test split."""
        # The tolerance makes 0.29 * 100 give 29.
        counts = {name: math.floor(getattr(self, name) * total + 1e-9) for name in SPLITS[:3]}
        return counts | {"test": total - sum(counts.values())}

    def positive(self) -> tuple[str, ...]:
        """Return the splits that must not be empty."""
        return tuple(name for name in SPLITS if getattr(self, name) > 1e-9)

    @property
    def test(self) -> float:
        return 1 - self.train - self.valid - self.calibration


@dataclass(frozen=True)
class Split:
    """The segments of every split."""

    train: tuple[Segment, ...]
    valid: tuple[Segment, ...]
    calibration: tuple[Segment, ...]
    test: tuple[Segment, ...]


def condition(parameters: Mapping[str, float], names: Sequence[str]) -> tuple[float | None, ...]:
    """Return the values of parameters that repetitions of a flow share."""
    return tuple(parameters.get(name) for name in names)


def split_trajectories(groups: Sequence[Hashable], shares: Shares, *, seed: int) -> Split:
    """Assign whole trajectories to splits at random, those of one group to the same split.

    Groups are taken in random order; a split is full if the next group would take it further from
    its count. Every split of a small set gets at least one group, if there are enough: 8
    trajectories with the default shares give 6, 1 and 1. Published splits that name only a seed
    cannot be reproduced from it, but their counts can: 92 single trajectories with shares 0.8 and
    0.1 give 73, 9 and 10.

    ``groups`` has the group of each trajectory; ``range(n)`` for n independent ones.
    """
    members: dict[Hashable, list[int]] = {}
    for index, group in enumerate(groups):
        members.setdefault(group, []).append(index)
    dealt = list(members.values())
    order = torch.randperm(len(dealt), generator=torch.Generator().manual_seed(seed)).tolist()

    counts = _at_least_one(shares, len(groups))
    filled: dict[str, list[int]] = {name: [] for name in SPLITS}
    current = 0
    for number, group_members in enumerate(dealt[i] for i in order):
        left = len(dealt) - number
        while current < len(SPLITS) - 1:
            have, want = len(filled[SPLITS[current]]), counts[SPLITS[current]]
            too_many = have + len(group_members) - want
            spare = left - sum(counts[name] > 0 for name in SPLITS[current + 1 :])
            if want and (not have or (too_many < want - have and spare > 0)):
                break
            current += 1
        filled[SPLITS[current]] += group_members
    used = shares.positive()
    if empty := [name for name in used if not filled[name]]:
        raise ValueError(
            f"expected at least {len(used)} trajectories or groups of them, one for each of "
            f"{', '.join(used)}, found {counted(len(groups), 'trajectory')} in "
            f"{counted(len(dealt), 'group')}: nothing is left for {', '.join(empty)}; add data, "
            "split each trajectory in time (data.split = 'time'), or set the share of a split to 0"
        )
    return Split(*(tuple(map(Segment, sorted(filled[name]))) for name in SPLITS))


def split_by_parameter(
    values: Sequence[float], rule: SplitRule, shares: Shares, *, seed: int
) -> Split:
    """Split whole trajectories by the value of a parameter; flows of one value stay together.

    The test split is what the rule holds out; without limits, values drawn or taken from an end
    until they hold the test share of the flows. The lowest and the highest of the other values
    are in the training split, so that validation and calibration flows are in its range.

    ``values`` has the value of each trajectory.
    """
    levels = sorted(set(values))
    count = {level: values.count(level) for level in levels}
    if len(levels) < 2:
        raise ValueError(
            f"data.split = '{rule}': expected different values of {rule.names[0]!r}, found "
            f"{levels[0]:g} in {counted(len(values), 'flow')}; add flows, or choose another "
            "parameter or split"
        )
    if shares.train <= 0 or (shares.test < 1e-9 and not rule.limits):
        raise ValueError(
            f"data.split = '{rule}': expected shares of training and test flows above 0, found "
            f"{shares.train:g} and {shares.test:g}"
        )
    generator = torch.Generator().manual_seed(seed)

    def draw(choice: Sequence[float], wanted: int, *, shuffled: bool = True) -> list[float]:
        """Take values until one more would take the number of flows further from that wanted."""
        order = torch.randperm(len(choice), generator=generator).tolist()
        taken: list[float] = []
        have = 0
        for level in [choice[i] for i in order] if shuffled else choice:
            if taken and have + count[level] - wanted >= wanted - have:
                break
            taken.append(level)
            have += count[level]
        return taken if wanted else []

    share = _at_least_one(shares, len(values))["test"]
    if rule.limits:
        test = [level for level in levels if rule.holds_out(level)]
    elif rule.kind == "interpolation":
        test = draw(levels[1:-1], share)
    else:
        test = draw(levels if rule.kind == "lower" else levels[::-1], share, shuffled=False)
    seen = [level for level in levels if level not in test]
    _check_range(rule, levels, test, seen)
    known = 1 - shares.test
    inside = Shares(**{name: getattr(shares, name) / known for name in SPLITS[:3]})
    counts = _at_least_one(inside, sum(count[level] for level in seen))
    held: dict[str, list[float]] = {"test": test}
    free = seen[1:-1]
    for name in ("valid", "calibration"):
        held[name] = draw(free, counts[name])
        free = [level for level in free if level not in held[name]]
        if getattr(shares, name) > 1e-9 and not held[name]:
            raise ValueError(
                f"data.split = '{rule}': nothing is left for {name}, which takes values of "
                f"{rule.names[0]!r} between the lowest and the highest of training; found "
                f"{counted(len(seen), 'value')} outside the test range, {_listed(seen)}; add "
                f"flows, choose a smaller test range, or set data.shares.{name} to 0"
            )
    names = {level: name for name, taken in held.items() for level in taken}
    homes = [names.get(value, "train") for value in values]
    return Split(
        *(tuple(Segment(i) for i, home in enumerate(homes) if home == name) for name in SPLITS)
    )


def _check_range(
    rule: SplitRule, levels: Sequence[float], test: Sequence[float], seen: Sequence[float]
) -> None:
    """Refuse test ranges without flows, with all flows, or with an end of an interpolation."""
    name, problem = rule.names[0], ""
    if not test:
        problem = "no flow is in the test range"
    elif not seen:
        problem = "all flows are in the test range, none is left for training"
    elif rule.kind == "interpolation" and not seen[0] < min(test) <= max(test) < seen[-1]:
        problem = "training values are needed on both sides of the test range"
    if problem:
        raise ValueError(
            f"data.split = '{rule}': {problem}; the data have {counted(len(levels), 'value')} of "
            f"{name!r}, {_listed(levels)}; choose another range or split, or add flows"
        )


def _listed(levels: Sequence[float]) -> str:
    shown = [f"{level:g}" for level in levels]
    return ", ".join(shown if len(shown) <= 6 else [*shown[:3], "...", *shown[-2:]])


def _at_least_one(shares: Shares, total: int) -> dict[str, int]:
    """Return the counts of the shares, with no split empty if there is enough for all.

    An empty split gets one from the split that is furthest above its share.
    """
    counts, used = shares.counts(total), shares.positive()
    above = {name: counts[name] - total * getattr(shares, name) for name in SPLITS}
    for name in used:
        givers = [other for other in SPLITS if counts[other] > (other in used)]
        if not counts[name] and givers:
            giver = max(givers, key=lambda other: above[other])
            above[giver] -= 1
            counts[giver] -= 1
            counts[name] = 1
    return counts


def split_in_time(lengths: Sequence[int], shares: Shares, *, guard: int) -> Split:
    """Split every trajectory into consecutive segments, ``guard`` unused frames apart.

    The guard frames should decorrelate the flow. Shares are of the remaining frames.
    """
    if guard < 0:
        raise ValueError(f"guard must be zero or positive, found {guard}")
    segments: dict[str, list[Segment]] = {name: [] for name in SPLITS}
    used = shares.positive()
    for index, length in enumerate(lengths):
        counts = shares.counts(length - guard * (len(used) - 1))
        # Without a test share, the last split gets the frames lost to rounding.
        counts[used[-1]] += counts["test"] if used[-1] != "test" else 0
        start = 0
        for name in used:
            if counts[name] < 1:
                raise ValueError(
                    f"trajectory {index} has {counted(length, 'frame')}: too few for a split "
                    f"{name!r} and gaps of {counted(guard, 'frame')}; lower data.guard, raise its "
                    "share, split by whole trajectories, or use a longer recording"
                )
            segments[name].append(Segment(index, start, start + counts[name]))
            start += counts[name] + guard
    return Split(*map(tuple, segments.values()))


def find_gaps(time: Float[Tensor, " t"], dt: float) -> Bool[Tensor, " steps"]:
    """Return which steps from frame to frame are gaps."""
    # The tolerance includes a step of exactly GAP.
    return time.diff() / dt > GAP - 1e-6


def split_at_gaps(segment: Segment, time: Float[Tensor, " t"], dt: float | None) -> list[Segment]:
    """Split a segment where neighbouring frames are not dt apart; without dt, keep it whole.

    ``time`` is that of all frames of the trajectory, ``dt`` its ``frame_step``.
    """
    index, start, stop = segment
    stop = len(time) if stop is None else stop
    jumps = [] if dt is None else find_gaps(time[start:stop], dt).nonzero().flatten().tolist()
    edges = [start, *(start + 1 + jump for jump in jumps), stop]
    return [Segment(index, a, b) for a, b in itertools.pairwise(edges)]
