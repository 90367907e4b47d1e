"""What the names in foreign files mean: columns, variables and their units in our words.

Coordinates are ``x``, ``y``, ``z`` and ``t``; channels ``u``, ``v``, ``w`` (velocity along x, y,
z), ``p``, ``T``, ``rho`` and ``omega`` (vorticity). A name counts whatever its case, but ``T``
alone is the temperature and ``t`` the time.
"""

import re

_AXES = "xyz"
_COMPONENTS = "uvw"
_SCALARS = {
    "p": "p",
    "pressure": "p",
    "staticpressure": "p",
    "press": "p",
    "temperature": "T",
    "temp": "T",
    "rho": "rho",
    "density": "rho",
    "omega": "omega",
    "omegaz": "omega",
    "vorticity": "omega",
    "vorticityz": "omega",
    "vort": "omega",
    "t": "t",
    "time": "t",
    "times": "t",
}
_COORDINATE = re.compile(
    r"(?:(?P<a>[xyz])(?:coord|coordinate|coordinates|pos|position)?"
    r"|(?:coord|coordinate|pos|position)(?P<b>[xyz]))"
)
_VELOCITY = re.compile(
    r"(?:(?P<a>[uvw])(?:velocity|vel|component)?"
    r"|(?:velocity|vel|v|u)(?P<b>[xyz])"
    r"|(?P<c>[xyz])(?:velocity|vel)"
    r"|(?:velocity|vel)(?P<d>[uvw]))"
)
# What ParaView writes for the components of a vector: "U:0", "Points_2".
_NUMBERED = re.compile(r"(u|v|vel|velocity|points|coordinates)[:_ ]([012])")
_CONDITION = re.compile(r"\s*@.*$")
_BRACKETED = re.compile(r"^(.*?)\s*[\[({]\s*([^\])}]*)\s*[\])}]\s*$")
_LENGTHS = r"(?:[munkcµμ]?m|px|pix|pixels?|in|ft)"
_TIMES = r"(?:[munµμ]?s|sec|frames?|dt)"
_BARE_UNIT = re.compile(rf"^(.*\S)\s+({_LENGTHS}(?:\s*/\s*{_TIMES})?|Pa|kPa|K|1/s)$")
# As in "x_mm", the name of a variable that cannot hold a space.
_SUFFIXED = re.compile(r"^([xyzt]|time|dt)_(mm|cm|um|m|px|s|ms|us)$")
# As NetCDF files often have it: "meters", "milliseconds".
_WORD = re.compile(
    r"\b(?:(milli|micro|nano|centi|kilo)?(met(?:er|re)|second)|(minute|hour))s?\b", re.IGNORECASE
)
_PREFIXES = {"milli": "m", "micro": "u", "nano": "n", "centi": "c", "kilo": "k"}
_SPELLINGS = {"-": "1", "": "1", "sec": "s", "m s-1": "m/s", "m s^-1": "m/s", "m.s-1": "m/s"}


def standard_name(text: str) -> tuple[str | None, str | None]:
    """Our name for a column or variable and its unit; None where the text does not say.

    ``"U [m/s]"`` gives ``("u", "m/s")``, ``"X pixel"`` ``("x", "px")``, ``"u @ Re=100"``
    ``("u", None)`` and ``"CHC"`` ``(None, None)``.
    """
    name, unit = split_unit(text)
    return _meaning(name), unit


def split_unit(text: str) -> tuple[str, str | None]:
    """A header's name without its unit and conditions, and the unit."""
    name = _CONDITION.sub("", text.strip().strip("\"'")).strip()
    found = _BRACKETED.match(name) or _BARE_UNIT.match(name) or _SUFFIXED.match(name)
    if found is None or not found[1]:
        return name, None
    return found[1].strip(), standard_unit(found[2])


def standard_unit(text: str) -> str:
    """One spelling per unit: ``px`` for pixels, ``um`` for micrometres, ``1`` for none."""
    unit = text.strip().replace("µ", "u").replace("μ", "u").replace("**", "^")
    unit = _WORD.sub(_symbol, unit)
    unit = re.sub(r"\bpix(?:els?)?\b", "px", re.sub(r"\s*/\s*", "/", unit), flags=re.IGNORECASE)
    unit = re.sub(r"/(?:frames|dt)\b", "/frame", re.sub(r"/sec\b", "/s", unit))
    return _SPELLINGS.get(unit, unit)


def _symbol(word: re.Match[str]) -> str:
    prefix, base, long = (text and text.lower() for text in word.groups())
    if long:
        return "min" if long == "minute" else "h"
    return _PREFIXES.get(prefix or "", "") + base[0]


def _meaning(name: str) -> str | None:
    if name == "T":
        return "T"
    name = name.lower()
    numbered = _NUMBERED.fullmatch(name)
    if numbered:
        names = _AXES if numbered[1] in ("points", "coordinates") else _COMPONENTS
        return names[int(numbered[2])]
    name = re.sub(r"[\s_.:-]", "", name)
    coordinate = _COORDINATE.fullmatch(name)
    if coordinate:
        return coordinate["a"] or coordinate["b"]
    velocity = _VELOCITY.fullmatch(name)
    if velocity:
        letter = next(group for group in velocity.groups() if group)
        return letter if letter in _COMPONENTS else _COMPONENTS[_AXES.index(letter)]
    return _SCALARS.get(name)
