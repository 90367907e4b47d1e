"""Numbers as text, with as many digits as they are worth.

Plain text; large and small ones as ``2.44e-4``, which each kind of markup sets in its own way.
"""

import math

UNKNOWN = "–"
"""Where nothing was measured."""


def digits(value: int | float, count: int = 3) -> str:
    """So many significant digits."""
    number = float(value)
    if math.isnan(number):
        return UNKNOWN
    if math.isinf(number):
        return "∞" if number > 0 else "−∞"
    if number == 0:
        return "0"
    mantissa, _, exponent = f"{number:.{count - 1}e}".partition("e")
    power = int(exponent)
    if -4 < power < count + 2:
        return f"{float(f'{mantissa}e{power}'):.{max(0, count - 1 - power)}f}"
    return f"{mantissa}e{power}"


def near_one(value: int | float, places: int = 3) -> str:
    """Decimals enough to see two digits of what is missing to 1, six at most."""
    number = float(value)
    missing = 1 - number
    if not math.isfinite(number) or abs(number) >= 10:
        return digits(number)
    if 0 < missing < 1:
        places = max(places, min(6, math.ceil(-math.log10(missing)) + 1))
    text = f"{number:.{places}f}"
    # What is not perfect is not rounded up to it.
    if missing > 0 and float(text) >= 1:
        text = "0." + "9" * places
    return text.removeprefix("-") if float(text) == 0 else text


def percent(value: int | float) -> str:
    return f"{100 * float(value):.0f} %" if math.isfinite(value) else UNKNOWN


def integer(value: int | float) -> str:
    """With commas between thousands."""
    return f"{round(value):,}"


def scaled(value: int | float) -> str:
    """Three digits and k, M, G or T."""
    return _with_suffix(float(value), ("", " k", " M", " G", " T"))


def size(value: int | float) -> str:
    """Bytes."""
    return _with_suffix(float(value), (" B", " kB", " MB", " GB", " TB"))


def _with_suffix(value: float, suffixes: tuple[str, ...]) -> str:
    step = 0
    while abs(value) >= 999.5 and step + 1 < len(suffixes):
        value, step = value / 1000, step + 1
    text = f"{value:.0f}" if value == round(value) and not step else digits(value)
    return text + suffixes[step]


def duration(seconds: int | float) -> str:
    """Seconds, minutes or hours."""
    if seconds < 99.5:
        return f"{digits(seconds)} s"
    return f"{seconds / 60:.1f} min" if seconds < 5970 else f"{seconds / 3600:.1f} h"
