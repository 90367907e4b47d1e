"""Amounts with their units, as users write them: the size of a pixel, the delay between images."""

import math
import re

from pibert.data.units import PIXEL, parse_unit

_AMOUNT = re.compile(r"\s*([\d.]+(?:[eE][-+]?\d+)?)\s*([^\s\d].*)")


def parse_scale(text: str) -> float:
    """Metres per pixel of a scale such as ``0.05 mm/px``, ``50um/px`` or ``20px/mm``."""
    amount = _AMOUNT.fullmatch(text)
    above, slash, below = amount[2].partition("/") if amount else ("", "", "")
    inverse = PIXEL.fullmatch(above.strip()) is not None
    pixel, length = (above, below) if inverse else (below, above)
    unit = parse_unit(length)
    fits = slash and PIXEL.fullmatch(pixel.strip()) and unit is not None and unit.is_like(1, 0)
    value = _positive(amount[1]) if amount and fits else None
    if value is None or unit is None:
        raise ValueError(
            "--scale takes the size of a pixel, such as 0.05mm/px, 50um/px or 20px/mm, "
            f"found {text!r}"
        )
    return unit.factor / value if inverse else unit.factor * value


def parse_duration(text: str) -> float:
    """Seconds of a time such as ``27ms`` or ``500 us``."""
    amount = _AMOUNT.fullmatch(text)
    unit = parse_unit(amount[2]) if amount else None
    value = _positive(amount[1]) if amount and unit is not None and unit.is_like(0, 1) else None
    if value is None or unit is None:
        raise ValueError(
            f"--pulse-delay takes a time with its unit, such as 27ms or 500us, found {text!r}"
        )
    return unit.factor * value


def _positive(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if 0 < value < math.inf else None
