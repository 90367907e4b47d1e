"""The physics of flows: derivatives, governing equations, exact solutions; pure functions."""

from pibert.physics.derivatives import Order, where_defined
from pibert.physics.families import (
    FAMILIES,
    Family,
    find_family,
    magnitude,
    masked_residuals,
)
from pibert.physics.velocity import is_solenoidal, velocity_of

__all__ = [
    "FAMILIES",
    "Family",
    "Order",
    "find_family",
    "is_solenoidal",
    "magnitude",
    "masked_residuals",
    "velocity_of",
    "where_defined",
]
