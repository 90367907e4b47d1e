"""Remarks on what a user gave: taken, but perhaps not what was meant."""

import sys
import warnings


class InputWarning(UserWarning):
    """An input that can be worked with, but perhaps not the one that is meant."""


def warn(message: str) -> None:
    """Of an input, with the line outside this package that gave it; a loop says it once."""
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("pibert."):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, InputWarning, stacklevel=level)
