"""Numbers written as text, separated by white space."""

import warnings

import numpy as np


def parse_numbers(text: bytes, dtype: str) -> np.ndarray:
    """The numbers of a text.

    Args:
        text: Nothing but numbers and white space.
        dtype: Such as ``f4`` or ``i8``, in the machine's byte order.

    Raises:
        ValueError: If the text holds anything else, or a whole number out of the type's range.
    """
    kind, count = np.dtype(dtype), count_words(text)
    if not count:
        return np.empty(0, kind)
    with warnings.catch_warnings():
        # Of text that is no number some versions of NumPy warn; others raise ValueError.
        warnings.simplefilter("error", DeprecationWarning)
        try:
            values = np.fromstring(text, f"{kind.kind}8", sep=" ")
        except (DeprecationWarning, ValueError):
            raise ValueError("a list of numbers holds something else") from None
    if len(values) != count:  # NumPy takes 1-2 for two numbers
        raise ValueError("a list of numbers holds something else")
    if kind.kind == "f":
        with np.errstate(over="ignore"):
            return values.astype(kind)
    limits = np.iinfo(kind)
    low, high = values.min(), values.max()
    if low < limits.min or high > limits.max:
        raise ValueError(f"numbers from {low} to {high}, out of the range of {kind.name}")
    return values.astype(kind)


def count_words(text: bytes) -> int:
    """How many words a text has, counted without making them."""
    is_space = np.frombuffer(text, np.uint8) <= ord(" ")
    starts = is_space[:-1] & ~is_space[1:]
    return int(starts.sum()) + int(len(is_space) > 0 and not is_space[0])
