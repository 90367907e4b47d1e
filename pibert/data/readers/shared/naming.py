"""The meaning of names and units in other formats.

Coordinates are ``x``, ``y``, ``z`` and ``t``; channels ``u``, ``v``, ``w`` (velocity along x, y,
z), ``p``, ``T``, ``rho`` and ``omega`` (vorticity). Case does not matter, but ``T`` alone is the
temperature and ``t`` the time.
"""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from pibert.data.readers.recordings import SourceError

FLAGS = ("valid", "invalid", "outlier")
"""The user's names for flags: above 0 marks valid vectors; other than 0 invalid ones."""
_AXES = "xyz"
_COMPONENTS = "uvw"
_SCALARS = {
    **dict.fromkeys(("p", "pressure", "staticpressure", "press"), "p"),
    **dict.fromkeys(("temperature", "temp"), "T"),
    **dict.fromkeys(("rho", "density"), "rho"),
    **dict.fromkeys(("omega", "omegaz", "vorticity", "vorticityz", "vort"), "omega"),
    **dict.fromkeys(("t", "time", "times"), "t"),
}
_COORDINATE = re.compile(
    r"(?:(?P<a>[xyz])(?:coord|coordinate|coordinates|pos|position|c|cent(?:er|re)s?)?"
    r"|(?:coord|coordinate|pos|position)(?P<b>[xyz]))"
)
_VELOCITY = re.compile(
    r"(?:(?P<a>[uvw])(?:velocity|vel|component)?"
    r"|(?:velocity|vel|v|u)(?P<b>[xyz])"
    r"|(?P<c>[xyz])(?:velocity|vel)"
    r"|(?:velocity|vel)(?P<d>[uvw]))"
)
# ParaView's names for the components of a vector: "U:0", "Points_2". "U_0" may also be a frame.
_NUMBERED_COMPONENT = re.compile(r"(?:(u|v|vel|velocity):|(points|coordinates)[:_ ])([012])")
_COMPONENT = re.compile(r"(u|v|vel|velocity)[_ ](\d+)", re.IGNORECASE)
# STAR-CCM+'s names: "Velocity[i]".
_INDEXED_COMPONENT = re.compile(r"(velocity|position)\s*\[([ijk])\]", re.IGNORECASE)
_CONDITION = re.compile(r"\s*@.*$")
_BRACKETED = re.compile(r"^(.*?)\s*[\[({]\s*([^\])}]*)\s*[\])}]\s*$")
_LENGTHS = r"(?:[munkcµμ]?m|px|pix|pixels?|in|ft)"
_TIMES = r"(?:[munµμ]?s|sec|frames?|dt)"
_BARE_UNIT = re.compile(rf"^(.*\S)\s+({_LENGTHS}(?:\s*/\s*{_TIMES})?|Pa|kPa|K|1/s)$")
# As in "x_mm", the name of a variable that cannot contain a space.
_SUFFIXED = re.compile(r"^([xyzt]|time|dt)_(mm|cm|um|m|px|s|ms|us)$")
# Common in NetCDF files: "meters", "milliseconds".
_WORD = re.compile(
    r"\b(?:(milli|micro|nano|centi|kilo)?(met(?:er|re)|second)|(minute|hour|hr|day))s?\b",
    re.IGNORECASE,
)
_PREFIXES = {"milli": "m", "micro": "u", "nano": "n", "centi": "c", "kilo": "k"}
_SPELLINGS = {"-": "1", "": "1", "sec": "s", "m s-1": "m/s", "m s^-1": "m/s", "m.s-1": "m/s"}


def standard_name(text: str) -> tuple[str | None, str | None]:
    """Return our name for a column or variable and its unit; None where the text has none.

    ``"U [m/s]"`` gives ``("u", "m/s")``, ``"X pixel"`` ``("x", "px")``, ``"u @ Re=100"``
    ``("u", None)`` and ``"CHC"`` ``(None, None)``.
    """
    name, unit = split_unit(text)
    return _meaning(name), unit


def name_columns(path: Path, names: Sequence[str], channels: Mapping[str, str]) -> list[str | None]:
    """Return our names for the columns of a text; None for unknown ones.

    ``channels`` maps our names to the file's, as the user states them; another column of such a
    name becomes unknown.
    """
    bare = [split_unit(name)[0] for name in names]
    theirs = list(channels.values())
    for column in theirs:
        if column not in (*names, *bare):
            raise SourceError(f"{path}: no column {column!r}; there are: {', '.join(names)}")
        if theirs.count(column) > 1:
            raise SourceError(f"{path}: the column {column!r} is named more than once")
    components = _numbered_components(bare)
    found: list[str | None] = []
    for name, plain in zip(names, bare, strict=True):
        ours = [our for our, column in channels.items() if column in (name, plain)]
        our = components.get(plain) or standard_name(name)[0]
        found.append(ours[0] if ours else None if our in channels else our)
    return found


def check_axis_units(path: Path, *units: str | None) -> str | None:
    """Return the unit of x and y; refuse coordinates that state different units."""
    if len(stated := {unit for unit in units if unit is not None}) > 1:
        raise SourceError(
            f"{path}: x and y are in {' and '.join(sorted(stated))}; convert them to one unit"
        )
    return next(iter(stated), None)


def take_flags(fields: dict[str, np.ndarray], channels: Mapping[str, str]) -> np.ndarray | None:
    """Remove the user's flags from fields; return where they mark vectors as valid."""
    found = [name for name in FLAGS if name in channels and name in fields]
    marks = [marks_valid(name, fields.pop(name)) for name in found]
    return np.logical_and.reduce(marks) if marks else None


def marks_valid(flag: str, values: np.ndarray) -> np.ndarray:
    """Return where a column of flags, by its name in ``FLAGS``, marks vectors as valid."""
    return values > 0 if flag == "valid" else values == 0


def left_out(names: Sequence[str]) -> str:
    """Return a note on columns that were not read, and how to use one."""
    key = split_unit(names[0])[0]
    kept = re.sub(r"\W+", "_", key).strip("_").lower() or "field"
    return (
        f"columns left out: {', '.join(names)}; use one with --channels '{kept}={key}' as a "
        f"channel, 'valid={key}' as a flag above 0 at valid vectors, or 'invalid={key}' as one "
        "that is 0 there"
    )


def _numbered_components(names: Sequence[str]) -> dict[str, str]:
    """Return columns ``U_0``, ``U_1`` and ``U_2`` of one vector; those of several are frames."""
    found = {name: match for name in names if (match := _COMPONENT.fullmatch(name))}
    numbers = [match[2] for match in found.values()]
    if len({match[1] for match in found.values()}) != 1 or sorted(numbers) != ["0", "1", "2"]:
        return {}
    return {name: _COMPONENTS[int(match[2])] for name, match in found.items()}


def split_unit(text: str) -> tuple[str, str | None]:
    """Return a header's name without its unit and conditions, and the unit."""
    name = _CONDITION.sub("", text.strip().strip("\"'")).strip()
    if _INDEXED_COMPONENT.fullmatch(name):
        return name, None
    found = _BRACKETED.match(name) or _BARE_UNIT.match(name) or _SUFFIXED.match(name)
    if found is None or not found[1]:
        return name, None
    return found[1].strip(), standard_unit(found[2])


def standard_unit(text: str) -> str:
    """Return one spelling per unit: ``px`` for pixels, ``um`` for micrometres, ``1`` for none."""
    text = re.sub(r"^[\[(]([^\[\]()]*)[\])]$", r"\1", text.strip())  # [mm/s]
    unit = text.strip().replace("µ", "u").replace("μ", "u").replace("**", "^")
    unit = re.sub(r"\^?\{(-?\d+)\}", r"^\1", unit)  # as in TeX: m s^{-1}

    def symbol(word: re.Match[str]) -> str:
        prefix, base, long = (text and text.lower() for text in word.groups())
        short = _PREFIXES.get(prefix or "", "") + (base or "")[:1]
        return {"minute": "min", "hour": "h", "hr": "h", "day": "day"}.get(long or "", short)

    unit = _WORD.sub(symbol, unit)
    unit = re.sub(r"\bpix(?:els?)?\b", "px", re.sub(r"\s*/\s*", "/", unit), flags=re.IGNORECASE)
    unit = re.sub(r"/(?:frames|dt)\b", "/frame", re.sub(r"\bsec\b", "s", unit))
    unit = re.sub(r"\s+per\s+", "/", unit)
    return _SPELLINGS.get(unit, unit)


def _meaning(name: str) -> str | None:
    if name == "T":
        return "T"
    name = name.lower()
    if indexed := _INDEXED_COMPONENT.fullmatch(name):
        return (_COMPONENTS if indexed[1] == "velocity" else _AXES)["ijk".index(indexed[2])]
    if numbered := _NUMBERED_COMPONENT.fullmatch(name):
        return (_COMPONENTS if numbered[1] else _AXES)[int(numbered[3])]
    name = re.sub(r"[\s_.:-]", "", name)
    if coordinate := _COORDINATE.fullmatch(name):
        return coordinate["a"] or coordinate["b"]
    if velocity := _VELOCITY.fullmatch(name):
        letter = next(group for group in velocity.groups() if group)
        return letter if letter in _COMPONENTS else _COMPONENTS[_AXES.index(letter)]
    return _SCALARS.get(name)
