"""Estimates of the memory that a request takes, known before any of it is taken.

They are multiples of the sizes of the arrays, and upper bounds of what a process takes
(``tests/serve/test_memory.py``).
"""

from math import prod
from typing import NamedTuple

from pibert.predictor import Predictor
from pibert.serve.asked import Asked
from pibert.serve.limits import MB

MOST_AHEAD, AHEAD = 4, 8 * MB
"""Blocks, and bytes of blocks, that may lie unread before a job stands back; one always may."""


class Cost(NamedTuple):
    """Bytes of one job."""

    start: int
    """While its fields are checked, resampled and standardised."""
    blocks: int
    """After that, while its blocks are made, encoded, read and sent."""
    ahead: int
    """Number of blocks that may lie unread."""


def cost_of(asked: Asked, predictor: Predictor) -> Cost:
    fields, history, horizon = asked.fields.nbytes, predictor.history, predictor.horizon
    shape = predictor.spec.grid.shape
    window = 4 * asked.samples * len(predictor.spec.channels) * (history + horizon) * prod(shape)
    # Resampling to the model's grid and back: eight matrices along each axis, in double precision.
    weights = 64 * sum(n * m for n, m in zip(asked.fields.shape[-2:], shape, strict=False))
    block, kept = fields * horizon // history, 4 * window + weights
    if asked.level is not None:  # error bars: three arrays of frames, and the input is kept
        block, kept = 3 * block, kept + 3 * fields
    if asked.route == "explain":  # maps of the input and of the prediction
        kept += 12 * (fields + block)
    ahead = min(MOST_AHEAD, max(1, AHEAD // max(1, block)))
    # Resampling around points that are not known takes more.
    has_gaps = asked.mask is not None or predictor.spec.grid.body is not None
    start = (20 if has_gaps else 8) * fields + 4 * window + 2 * weights
    return Cost(start, (ahead + (16 if has_gaps else 7)) * block + kept, ahead)
