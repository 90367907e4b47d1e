"""Quantiles and p-values with finite-sample guarantees, over groups of dependent scores.

A score is the distance of a true value from its prediction, or how unusual an input is. Scores of
one group (a trajectory) depend on each other; groups are exchangeable. Each of K groups gets the
same mass 1 / (K + 1), shared evenly by its scores, and the group still to come gets the last share,
placed at infinity. The quantile of this mixture covers a random score of a new group with at least
its level (Lee, Barber and Willett, "Distribution-free inference with hierarchical data", 2023).
With one score per group it is split-conformal prediction: the score of rank ceil((K + 1) level).

So K groups give levels up to K / (K + 1) and no others, and p-values from 1 / (K + 1) up. A group
is kept as a fixed number of atoms, its upper quantiles: rounding makes intervals wider, never
narrower.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from pibert.data.dataset import Samples
from pibert.inference.windows import windows_by_trajectory

Units = Literal["trajectories", "windows"]
ENOUGH = 19
"""Trajectories that give a level of 0.95; with fewer, windows count as independent."""
FITTING = 0.25
"""Share of the trajectories that fit the difficulty and the reference."""
STARTS = 16
"""Windows of each trajectory where there are many."""
WINDOWS = 128
"""Windows that calibrate if they are the units: fewer give coarse quantiles and p-values, and more
of the same flows repeat each other."""
_VALUES = 1 << 26
"""Predicted values of the windows of a trajectory, at most: they are held in memory together."""

MORE_FLOWS = "calibrate on more flows"
"""Remedy for too few exchangeable units."""
COUNT_WINDOWS = f"{MORE_FLOWS}, or count windows: --independent windows, in Python units='windows'"
"""Remedy for too few trajectories."""
_LEAST = 12
"""Units for a level of 0.9: a quarter of them fit, nine calibrate."""
_ROUNDING = 1e-9
_SHORT = 0.05
"""A coverage may be this much below its level before it is reported."""


def is_short(coverage: float, level: float) -> bool:
    """Whether intervals of a level clearly cover too little."""
    return coverage < level - _SHORT


def highest_level(count: int) -> float:
    """The highest level that ``count`` groups can give."""
    return count / (count + 1)


def corrected_level(level: float, count: int, remedy: str = MORE_FLOWS) -> float:
    """The quantile of the scores of ``count`` units that covers a new one with ``level``.

    ValueError if no finite quantile does; ``remedy`` states how to get more units.
    """
    if not 0 < level < 1:
        raise ValueError(f"expected a level between 0 and 1, found {level}")
    if level > highest_level(count) + _ROUNDING:
        raise ValueError(
            f"level {level:g} needs at least {math.ceil(level / (1 - level) - _ROUNDING)} "
            f"independent calibration units, found {count}; the highest level they give is "
            f"{math.floor(highest_level(count) * 1000) / 1000:g}: ask for less, or {remedy}"
        )
    return min(1.0, level * (count + 1) / count)


def summarise(scores: Float[Tensor, " n"], atoms: int) -> Float[Tensor, " m"]:
    """``atoms`` upper quantiles of the scores, of equal weight, in increasing order."""
    if not len(scores):
        raise ValueError("expected at least one score, found none")
    steps = torch.arange(1, atoms + 1, device=scores.device)
    ranks = (steps * len(scores) + atoms - 1) // atoms - 1
    return scores.sort().values[ranks]


def grouped_quantile(
    atoms: Float[Tensor, "group *rest m"], weights: Float[Tensor, " group"], level: float
) -> Float[Tensor, "*rest"]:
    """The least atom at which the weighted share of atoms up to it reaches ``level``.

    Args:
        atoms: Of each group, of equal weight within it.
        weights: Of the groups; they are brought to a sum of one.
        level: As ``corrected_level`` gives it.
    """
    m = atoms.shape[-1]
    flat = atoms.movedim(0, -2).flatten(-2)  # (*rest, group * m)
    mass = (weights.double() / weights.double().sum() / m).repeat_interleave(m)
    values, order = flat.sort(dim=-1)
    reached = mass[order].cumsum(-1) >= level - _ROUNDING
    # Rounding may leave the whole sum just below one: then the last atom counts.
    first = torch.where(reached.any(-1), reached.int().argmax(-1), flat.shape[-1] - 1)
    return values.gather(-1, first[..., None])[..., 0]


def grouped_p_values(
    scores: Float[Tensor, " b"],
    atoms: Float[Tensor, "group m"],
    weights: Float[Tensor, " group"],
    count: int,
) -> Float[Tensor, " b"]:
    """The p-value of each score among exchangeable ones, from 1 / (count + 1) to 1.

    Args:
        scores: Of new inputs.
        atoms: Scores of each group, of equal weight within it.
        weights: Of the groups.
        count: Exchangeable units: groups, or windows if those count as independent.
    """
    share = weights.double() / weights.double().sum()
    above = (atoms[None] >= scores.to(atoms)[:, None, None]).double().mean(-1)  # (b, group)
    return (1 + count * (above * share).sum(-1)) / (count + 1)


def left_out_coverage(
    atoms: Float[Tensor, "group *rest m"],
    weights: Float[Tensor, " group"],
    level: float,
    counts: Int[Tensor, " group"],
) -> Float[Tensor, " group *rest"]:
    """Coverage of each group by the quantile of all others, which have ``counts`` units."""
    coverage = []
    for group in range(len(atoms)):
        others = [index for index in range(len(atoms)) if index != group]
        wanted = corrected_level(level, int(counts[group]))
        limit = grouped_quantile(atoms[others], weights[others], wanted)
        coverage.append((atoms[group] <= limit[..., None]).double().mean(-1))
    return torch.stack(coverage)


def choose_units(held_out: Samples, same_flows: bool, group_by: Sequence[str] = ()) -> Units:
    """``trajectories`` if enough of them calibrate, and did not train the model too."""
    groups = windows_by_trajectory(held_out, 1, group_by)
    enough = count_calibrating(len(groups)) >= ENOUGH and not same_flows
    return "trajectories" if enough else "windows"


def choose_starts(held_out: Samples, units: Units, group_by: Sequence[str] = ()) -> int:
    """Maximum number of windows of each trajectory; if they are the units, ``WINDOWS`` in all."""
    if units == "trajectories":
        return STARTS
    groups = windows_by_trajectory(held_out, 1, group_by)
    trajectories = sum(map(len, groups.values()))
    share = count_calibrating(len(groups)) / len(groups) if len(groups) > 1 else 1 - FITTING
    wanted = math.ceil(WINDOWS / (share * trajectories))
    spec = held_out.spec
    values = held_out.window.horizon * len(spec.channels) * math.prod(spec.grid.shape)
    return max(STARTS, min(wanted, _VALUES // values))


def count_calibrating(groups: int) -> int:
    """Number of trajectories that calibrate; a single one is split in time."""
    return groups - max(1, round(FITTING * groups)) if groups > 1 else 1


def split_groups(
    by_trajectory: Mapping[Any, Sequence[int]], seed: int
) -> tuple[list[Sequence[int]], list[Sequence[int]]]:
    """Windows to fit on and windows to calibrate on, trajectory by trajectory.

    A single trajectory is split in time, its first quarter to fit.
    """
    groups = list(by_trajectory.values())
    if len(groups) == 1:
        (only,) = groups
        first = max(1, round(FITTING * len(only)))
        if len(only) < 2:
            raise ValueError(
                f"expected at least {_LEAST} windows to calibrate on, found one; give the "
                "calibration split more frames, or calibrate fewer lead times"
            )
        return [only[:first]], [only[first:]]
    order = torch.randperm(len(groups), generator=torch.Generator().manual_seed(seed)).tolist()
    first = len(groups) - count_calibrating(len(groups))
    return [groups[i] for i in sorted(order[:first])], [groups[i] for i in sorted(order[first:])]


def count_units(units: str, windows: Int[Tensor, " group"]) -> int:
    """Number of exchangeable units."""
    return len(windows) if units == "trajectories" else int(windows.sum())


def refuse_one(units: str, windows: Int[Tensor, " group"]) -> None:
    """Raise if only one unit is left to calibrate: its largest error would be every width.

    That covers with level 0.5 over all calibrations, but any one of them with any share.
    """
    if count_units(units, windows) > 1:
        return
    how = f"{MORE_FLOWS} or longer ones, or for fewer lead times"
    if units == "trajectories":
        how = COUNT_WINDOWS
    raise ValueError(
        f"expected at least {_LEAST} {units}, a quarter of which fit the width and nine give level "
        f"0.9, found one beside those that fit; {how}"
    )


def weigh(units: str, windows: Int[Tensor, " group"]) -> Float[Tensor, " group"]:
    """The weight of each trajectory: the same, or by its windows."""
    return torch.ones(len(windows)) if units == "trajectories" else windows.float()
