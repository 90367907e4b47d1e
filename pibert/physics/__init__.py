"""The physics of flows: derivatives, governing equations, exact solutions; pure functions."""

from pibert.physics.derivatives import Order, where_defined
from pibert.physics.families import (
    FAMILIES,
    Family,
    find_family,
    is_solenoidal,
    magnitude,
    masked_residuals,
)

__all__ = [
    "FAMILIES",
    "Family",
    "Order",
    "find_family",
    "is_solenoidal",
    "magnitude",
    "masked_residuals",
    "where_defined",
]
