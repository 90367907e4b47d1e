"""Grids, derivatives, governing equations: pure functions of tensors."""

from pibert.physics.derivatives import Order, where_defined
from pibert.physics.families import FAMILIES, Family, find_family, magnitude, masked_residuals

__all__ = [
    "FAMILIES",
    "Family",
    "Order",
    "find_family",
    "magnitude",
    "masked_residuals",
    "where_defined",
]
