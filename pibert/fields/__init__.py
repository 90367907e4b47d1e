"""Data types of flow fields: channels and units, grid, standardisation, recordings, batches.

Layout everywhere: ``(batch, time, channel, y, x)``, C-contiguous. The row index grows with y (row 0
is the bottom side), ``u`` points along x and ``v`` along y. Objects are immutable and checked on
construction; descriptions convert to plain JSON and back without loss.
"""

from pibert.fields.equations import is_solenoidal, known_coefficients
from pibert.fields.spec import PARAMETER_WIDTH, FieldSpec, Normalizer, Parameter
from pibert.fields.structure import (
    MASS_RATIO,
    REDUCED_VELOCITY,
    MovingBody,
    Spring,
    with_uniform_state,
)
from pibert.fields.trajectory import MASKS, Batch, FrameSource, Trajectory, read_mask
from pibert.physics.grid import Boundary, Grid, Sides, on_device

__all__ = [
    "MASKS",
    "MASS_RATIO",
    "PARAMETER_WIDTH",
    "REDUCED_VELOCITY",
    "Batch",
    "Boundary",
    "FieldSpec",
    "FrameSource",
    "Grid",
    "MovingBody",
    "Normalizer",
    "Parameter",
    "Sides",
    "Spring",
    "Trajectory",
    "is_solenoidal",
    "known_coefficients",
    "on_device",
    "read_mask",
    "with_uniform_state",
]
