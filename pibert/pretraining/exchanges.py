"""Right values in the wrong place: frames in another order, parameters of another trajectory."""

import itertools
import math

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from pibert.fields import FieldSpec
from pibert.physics import find_family

ALL_ORDERS = 4
"""Histories up to this are shuffled to any other order; longer ones have two frames exchanged."""


def wrong_orders(history: int, spec: FieldSpec) -> Int[Tensor, "n h"]:
    """Orders of the frames of a window that break its equation.

    The true order is not among them, nor the reverse order where the equation allows it.
    """
    true = tuple(range(history))
    if history <= ALL_ORDERS:
        orders = list(itertools.permutations(true))
    else:
        orders = []
        for i, j in itertools.combinations(true, 2):
            exchanged = list(true)
            exchanged[i], exchanged[j] = j, i
            orders.append(tuple(exchanged))
    allowed = {true}
    if spec.family is not None and find_family(spec.family).is_reversible(spec.channels):
        allowed.add(true[::-1])
    return torch.tensor([order for order in orders if order not in allowed])


def reorder(x: Float[Tensor, "b hc y x"], orders: Int[Tensor, "b h"]) -> Float[Tensor, "b hc y x"]:
    """The frames of each window in its order."""
    frames = x.unflatten(1, (orders.shape[1], -1))
    rows = torch.arange(len(x), device=x.device)[:, None]
    return frames[rows, orders].flatten(1, 2)


def parameters_differ(table: Float[Tensor, "n q"]) -> bool:
    """Whether any parameter has two known values."""
    if not len(table):
        return False
    low = torch.where(table.isnan(), math.inf, table).amin(0)
    high = torch.where(table.isnan(), -math.inf, table).amax(0)
    return bool((high - low > 1e-6).any())


def other_parameters(
    own: Float[Tensor, "b q"],
    table: Float[Tensor, "n q"],
    share: Float[Tensor, " b"],
    least: float,
) -> Float[Tensor, "b q"]:
    """A row of the table for each sample that differs from its own parameters.

    Unknown parameters stay unknown, and known ones known, so that what is unknown tells nothing. A
    sample of which nothing is known that the table knows to differ keeps its own parameters.

    Args:
        own: Standardised, NaN where unknown.
        table: The rows to choose from.
        share: A number in [0, 1) for each sample, which makes its choice.
        least: Smallest distance (root of the sum of squares) of a row to choose; where no row is
            that far, the most distant ones are chosen from.
    """
    distance = (own[:, None] - table).square().nansum(-1).sqrt()  # (b, n)
    bound = distance.amax(1, keepdim=True).clamp(max=least)
    far: Bool[Tensor, "b n"] = (distance >= bound) & (distance > 0)
    number = (share * far.sum(1)).long()
    row = (far.cumsum(1) <= number[:, None]).sum(1).clamp(max=len(table) - 1)
    other = table[row]
    return torch.where(own.isnan() | other.isnan(), own, other)
