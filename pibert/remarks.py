"""Remarks on what a user gave: taken, but perhaps not what was meant."""

import contextlib
import sys
import warnings
from collections.abc import Iterator
from contextvars import ContextVar

_collected: ContextVar[list[str] | None] = ContextVar("collected", default=None)


class InputWarning(UserWarning):
    """An input that can be worked with, but perhaps not the one that is meant."""


def warn(message: str) -> None:
    """Of an input, with the line outside this package that gave it; a loop says it once."""
    collected = _collected.get()
    if collected is not None:
        collected.append(message)
        return
    level, frame = 2, sys._getframe(1)
    while frame.f_back is not None and frame.f_globals.get("__name__", "").startswith("pibert."):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, InputWarning, stacklevel=level)


@contextlib.contextmanager
def collecting_warnings() -> Iterator[list[str]]:
    """Collect the messages of ``warn`` in a list; Python's own filters hold for all threads."""
    messages: list[str] = []
    token = _collected.set(messages)
    try:
        yield messages
    finally:
        _collected.reset(token)
