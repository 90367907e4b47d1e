"""Which windows of the held-out flows fit and which calibrate, and what of them is independent."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch
from jaxtyping import Float, Int
from torch import Tensor

from pibert.data.dataset import Samples
from pibert.trust.forecasts import windows_by_trajectory

Units = Literal["trajectories", "windows"]
ENOUGH = 19
"""Trajectories that give a level of 0.95; with fewer, windows are taken for independent."""
FITTING = 0.25
"""Share of the trajectories that fit difficulty and reference."""
STARTS = 16
"""Windows of each trajectory where there are many."""
WINDOWS = 128
"""Windows that should calibrate where they are the units: quantiles and p-values of few are crude,
and many more of the same flows repeat each other."""
_VALUES = 1 << 26
"""Predicted values of the windows of a trajectory, at most: they are held in memory together."""


def choose_units(held_out: Samples, same_flows: bool, group_by: Sequence[str] = ()) -> Units:
    """Trajectories where enough of them calibrate that did not train the model too."""
    groups = windows_by_trajectory(held_out, 1, group_by)
    enough = count_calibrating(len(groups)) >= ENOUGH and not same_flows
    return "trajectories" if enough else "windows"


def choose_starts(held_out: Samples, units: Units, group_by: Sequence[str] = ()) -> int:
    """Windows of each trajectory, at most; where they are the units, for ``WINDOWS`` in all."""
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
    """How many of some trajectories calibrate: a single one does both, in parts."""
    return groups - max(1, round(FITTING * groups)) if groups > 1 else 1


def part_groups(
    by_trajectory: Mapping[Any, Sequence[int]], seed: int
) -> tuple[list[Sequence[int]], list[Sequence[int]]]:
    """Windows to fit on and windows to calibrate on, trajectory by trajectory.

    A single trajectory is parted in time, its first quarter to fit.
    """
    groups = list(by_trajectory.values())
    if len(groups) == 1:
        (only,) = groups
        first = max(1, round(FITTING * len(only)))
        if len(only) < 2:
            raise ValueError(
                "expected at least two windows to calibrate on, found one; give the calibration "
                "part more frames, or calibrate fewer lead times"
            )
        return [only[:first]], [only[first:]]
    order = torch.randperm(len(groups), generator=torch.Generator().manual_seed(seed)).tolist()
    first = len(groups) - count_calibrating(len(groups))
    return [groups[i] for i in sorted(order[:first])], [groups[i] for i in sorted(order[first:])]


def count_units(units: str, windows: Int[Tensor, " group"]) -> int:
    """How many exchangeable units there are."""
    return len(windows) if units == "trajectories" else int(windows.sum())


def weigh(units: str, windows: Int[Tensor, " group"]) -> Float[Tensor, " group"]:
    """The weight of each trajectory: the same, or by its windows."""
    return torch.ones(len(windows)) if units == "trajectories" else windows.float()
