"""Which of a file's named arrays is what: channels, coordinates, time, masks.

A name counts as ``naming.standard_name`` reads it, with a unit after an underscore as well:
``x_mm``, ``dt_s``. Arrays with a channel axis are taken apart. What the user states (``Hints``)
comes first.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pibert.data.readers.recordings import Hints, SourceError
from pibert.data.readers.shared.naming import MOST_CHANNELS, AxisOrder, standard_name, standard_unit
from pibert.data.readers.shared.stores import Piece

CHANNELS = ("u", "v", "w", "p", "T", "rho", "omega")
DEFAULT_CHANNELS = {2: ("u", "v"), 3: ("u", "v", "p")}

_UNITS = {
    **dict.fromkeys(("x", "y", "dx", "dy"), "m|mm|cm|um|km|px"),
    **dict.fromkeys(("t", "dt"), "s|ms|us"),
    **dict.fromkeys(("u", "v"), "m_s|mm_s|cm_s|mps"),
}
STEPS = {"dt": "dt", "deltat": "dt", "timestep": "dt", "dx": "dx", "dy": "dy"}
STEPS |= {"re": "Re", "reynolds": "Re", "reynoldsnumber": "Re"}
"""Names of single numbers."""
_PACKED = ("uv", "uvp", "uvw", "velocity", "vel", "fields", "field", "data", "states", "solution")
FLAGS = {
    **dict.fromkeys(("outlier", "outliers", "invalid"), ("valid", False)),
    **dict.fromkeys(("valid", "validmask"), ("valid", True)),
    **dict.fromkeys(("body", "bodymask", "solid", "solidmask", "obstacle"), ("body", True)),
    **dict.fromkeys(("fluid", "fluidmask"), ("body", False)),
    **dict.fromkeys(("filled", "interpolated"), ("filled", True)),
    "mask": ("mask", True),
    "chc": ("chc", True),
}
"""Names of flags: what they mark, and whether by numbers above 0 or by 0. What ``mask`` and ``chc``
mark the fields and the flags themselves decide."""
_TURBULENCE = ("k", "tke", "nut", "mut", "epsilon")
"""Fields of a turbulence model; an ``omega`` beside them is its dissipation rate."""
_NUMBERED = re.compile(r"([a-z]+)[_-]?\d+")


@dataclass(frozen=True, kw_only=True)
class Variable:
    """A named array as its file describes it."""

    key: str
    shape: tuple[int, ...]
    dtype: np.dtype
    unit: str | None = None
    axes: str | None = None
    """Order of its axes where the file names them."""
    name: str | None = None
    """What it is in our words where the file states more than its key."""

    @property
    def flag(self) -> tuple[str, bool] | None:
        """What it marks, a value of ``FLAGS``, where it is a flag."""
        return FLAGS.get(self.name or self.plain)

    @property
    def plain(self) -> str:
        return re.sub(r"[^a-z0-9]", "", self.key.rsplit("/", 1)[-1].lower())

    def __str__(self) -> str:
        return f"{self.key} {self.dtype.name} {self.shape}"


@dataclass(frozen=True, kw_only=True)
class Roles:
    """What was found in a file."""

    channels: Mapping[str, Piece]
    units: Mapping[str, str]
    x: Variable | None
    y: Variable | None
    t: Variable | None
    steps: Mapping[str, Variable]
    """The single numbers dt, dx, dy and Re."""
    flags: Mapping[str, tuple[Piece, bool]]
    """``valid``, ``body``, ``filled``, ``mask`` or ``chc``: where it lies; whether numbers above
    0 mark it."""
    unused: tuple[str, ...]
    notes: tuple[str, ...]


def meaning(variable: Variable) -> tuple[str | None, str | None]:
    """Our name for a variable and its unit, as far as its file states them."""
    base = variable.key.rsplit("/", 1)[-1]
    name, unit = standard_name(base)
    name = variable.name or name or STEPS.get(variable.plain)
    if name is None:
        stem, _, suffix = base.rpartition("_")
        while stem and name is None:
            found = standard_name(stem)[0] or STEPS.get(re.sub(r"[^a-z]", "", stem.lower()))
            if found and re.fullmatch(_UNITS.get(found, "$^"), suffix):
                name, unit = found, suffix.replace("mps", "m_s").replace("_", "/")
            stem, _, more = stem.rpartition("_")
            suffix = f"{more}_{suffix}"
    if variable.unit is not None:
        unit = standard_unit(variable.unit)
    return name, unit


Choice = tuple[Variable, int | None]
"""An array, and the place of a channel on its channel axis."""


class RoleFinder:
    """Finds what the arrays of a file are; SourceError with all arrays if that is not clear."""

    def __init__(self, path: Path, variables: Sequence[Variable], hints: Hints, order: str) -> None:
        self.path, self.there, self.hints = path, variables, hints
        self.variables = [v for v in variables if v.dtype.kind in "fiub"]
        self.named = {
            our: theirs
            for our, theirs in hints.channels.items()
            if our not in ("x", "y", "t") and our not in FLAGS
        }
        self.names = {variable.key: meaning(variable) for variable in self.variables}
        self.notes: list[str] = []
        self.x, self.y, self.t = (self.coordinate(name) for name in "xyt")
        vectors = {"x": self.x, "y": self.y, "t": self.t}
        mesh = self.x.shape if self.x is not None and len(self.x.shape) == 2 else None
        try:
            self.order = AxisOrder(
                usual=order,
                stated=hints.axes,
                lengths={k: v.shape[0] for k, v in vectors.items() if v and len(v.shape) == 1},
                mesh=mesh,
            )
        except ValueError as error:
            raise SourceError(f"{path}: {error}") from error
        self.steps = {
            name: variable
            for variable in self.variables
            if (name := self.names[variable.key][0]) in ("dt", "dx", "dy", "Re")
            and int(np.prod(variable.shape)) == 1
        }

    def roles(self) -> Roles:
        used = {v.key for v in (self.x, self.y, self.t, *self.steps.values()) if v is not None}
        marks = [self.find(our) for our in self.hints.channels if our in FLAGS]
        named = self.named.values()
        others = (v for v in self.variables if v.key not in used and v not in marks)
        fields = [v for v in others if v.flag is None or v.key in named]
        chosen = self.named_channels(fields) if self.named else self.find_channels(fields)
        pieces = self.pieces(chosen)
        taken = {piece.key for piece in pieces.values()}
        return Roles(
            channels=pieces,
            units={our: unit for our in pieces if (unit := self.names[chosen[our][0].key][1])},
            x=self.x,
            y=self.y,
            t=self.t,
            steps=self.steps,
            flags=self.flags(chosen, pieces),
            unused=tuple(str(v) for v in fields if v.key not in taken),
            notes=tuple(self.notes),
        )

    def find(self, our: str) -> Variable:
        """The array that the user gives one of our names to."""
        theirs = self.hints.channels[our]
        found = [v for v in self.variables if theirs in (v.key, v.key.rsplit("/", 1)[-1])]
        if not found:
            raise self.fail(f"{our!r} should be {theirs!r}, which is not there")
        return found[0]

    def coordinate(self, name: str) -> Variable | None:
        if name in self.hints.channels:
            return self.find(name)
        claimed, ranks = self.hints.channels.values(), (0, 1) if name == "t" else (1, 2)
        fitting = (v for v in self.variables if self.names[v.key][0] == name)
        found = [v for v in fitting if v.key not in claimed and len(v.shape) in ranks]
        if name == "t":
            found.sort(key=lambda v: -len(v.shape))  # a single time is that of a single frame
        if len(found) > 1:
            self.notes.append(f"{name} was taken from {found[0].key!r}, not {found[1].key!r}")
        return found[0] if found else None

    def named_channels(self, fields: Sequence[Variable]) -> dict[str, Choice]:
        """The channels that the user names: an array, ``ARRAY:2`` of a packed one, or ``2``."""
        chosen: dict[str, Choice] = {}
        for our, theirs in self.named.items():
            key, _, place = theirs.rpartition(":") if ":" in theirs else (theirs, "", "")
            if theirs.isdecimal() and len(self.packed(fields)) == 1:
                key, place = self.packed(fields)[0].key, theirs
            found = [v for v in fields if key in (v.key, v.key.rsplit("/", 1)[-1])]
            if not found or (place and not place.isdecimal()):
                raise self.fail(f"the channel {our!r} should be {theirs!r}, which is not there")
            chosen[our] = found[0], int(place) if place else None
        return chosen

    def find_channels(self, fields: Sequence[Variable]) -> dict[str, Choice]:
        chosen: dict[str, Choice] = {}
        packed = self.packed(fields)
        turbulence = [v.key for v in fields if v.plain in _TURBULENCE]
        for variable in fields:
            name = self.names[variable.key][0]
            if name not in CHANNELS or variable in packed or len(variable.shape) < 1:
                continue
            if variable.plain == "omega" and turbulence:
                self.notes.append(
                    f"{variable.key!r} was not taken for the vorticity, because it stands beside "
                    f"{', '.join(turbulence)}: a turbulence model calls its dissipation rate so"
                )
                continue
            if name in chosen:
                kept = chosen[name][0].key
                self.notes.append(f"{name} was taken from {kept!r}, not {variable.key!r}")
            else:
                chosen[name] = variable, None
        if not chosen and not packed:
            packed = [v for v in fields if len(v.shape) >= 2]
            if len(packed) != 1:
                raise self.fail("no velocity or other field was found by name" + _frames(fields))
        if packed and not {"u", "v"} <= chosen.keys():
            chosen = self.unpacked(packed[0]) | chosen
        if len({"u", "v"} & chosen.keys()) == 1:
            one, other = ("u", "v") if "u" in chosen else ("v", "u")
            raise self.fail(f"there is {one!r} but no {other!r}")
        # In the order of CHANNELS; others at the end.
        return {name: chosen[name] for name in sorted(chosen, key=[*CHANNELS, *chosen].index)}

    def packed(self, fields: Sequence[Variable]) -> list[Variable]:
        """Arrays with a channel axis."""
        plain = {variable.plain for variable in fields}
        names = _PACKED if {"u", "v"} <= plain else (*_PACKED, "u", "v")
        likely = [v for v in fields if v.plain in names or "c" in (v.axes or "")]
        return [v for v in likely if "c" in self.axes_of(v)]

    def unpacked(self, variable: Variable) -> dict[str, Choice]:
        axes = self.axes_of(variable)
        if "c" not in axes:
            if "t" in axes and variable.shape[axes.index("t")] in DEFAULT_CHANNELS:
                self.notes.append(
                    f"{variable.key!r} of shape {variable.shape} was read as {axes}; if it holds "
                    f"channels, give its axes as {axes.replace('t', 'c')}"
                )
            name = self.names[variable.key][0] or variable.plain or "field"
            return {name: (variable, None)}
        count = variable.shape[axes.index("c")]
        names = DEFAULT_CHANNELS.get(count) or tuple(f"c{i}" for i in range(count))
        if variable.plain == "uvw" and count == 3:
            names = ("u", "v", "w")
        elif variable.plain not in ("uv", "uvp"):
            self.notes.append(
                f"the {count} channels of {variable.key!r} were taken for {', '.join(names)}"
            )
        return {name: (variable, place) for place, name in enumerate(names)}

    def pieces(self, chosen: Mapping[str, Choice]) -> dict[str, Piece]:
        """Where the channels lie; one besides the velocity that does not fit is left out."""
        pieces: dict[str, Piece] = {}
        first: tuple[str, dict[str, int]] | None = None
        for our, (variable, channel) in chosen.items():
            axes = self.axes_of(variable, channel=channel is not None)
            pairs = zip(axes, variable.shape, strict=False)
            size = {letter: n for letter, n in pairs if letter in "btyx"}
            first = first or (our, size)
            if size != first[1] and our not in ("u", "v") and not self.named:
                self.notes.append(f"{variable} was left out: its shape is not that of {first[0]}")
                continue
            if not axes:
                raise self.fail(f"{variable.key!r}: {self.order.explain(variable.shape)}")
            if size != first[1]:
                shapes = f"{chosen[first[0]][0].shape} and {variable.shape}"
                raise self.fail(f"{first[0]!r} and {our!r} differ in shape, {shapes}")
            if 0 in variable.shape:
                raise self.fail(f"{variable.key!r} is empty")
            count = variable.shape[axes.index("c")] if "c" in axes else 1
            if channel is None and count > 1:
                raise self.fail(
                    f"{variable.key!r} was read as {axes} with {count} channels; name one of them "
                    f"as '{variable.key}:0', or give its axes"
                )
            if channel is not None and channel >= count:
                there = f"{variable.key!r} of shape {variable.shape}"
                raise self.fail(f"{there} has no channel {channel}")
            pieces[our] = Piece(variable.key, axes, channel)
        if not pieces:
            raise self.fail("there is no field in it")
        return pieces

    def axes_of(self, variable: Variable, *, channel: bool | None = None) -> str:
        """The order of an array's axes, empty where none fits; of a channel of it, if so stated."""
        if variable.axes is not None:
            return variable.axes
        most = 1 if channel is False else 3 if variable.plain in ("u", "v") else MOST_CHANNELS
        packed = variable.plain in _PACKED and variable.plain not in ("field", "data")
        return self.order.find(
            variable.shape, most=most, channels_first=packed if channel is None else channel
        )

    def flags(
        self, chosen: Mapping[str, Choice], pieces: Mapping[str, Piece]
    ) -> dict[str, tuple[Piece, bool]]:
        our = next(iter(pieces))
        size = dict(zip(pieces[our].axes, chosen[our][0].shape, strict=True))
        found: dict[str, tuple[Piece, bool]] = {}
        stated = [(self.find(name), FLAGS[name]) for name in self.hints.channels if name in FLAGS]
        for variable in self.variables:
            if variable.flag is not None and variable.key not in self.hints.channels.values():
                stated.append((variable, variable.flag))
        for variable, (kind, marks) in stated:
            orders = ["".join(a for a in pieces[our].axes if a in keep) for keep in ("btyx", "yx")]
            if variable.axes is not None:
                orders = [variable.axes]
            fitting = [axes for axes in orders if tuple(map(size.get, axes)) == variable.shape]
            if not fitting or kind in found:
                self.notes.append(f"the mask {variable} was not used: its shape does not fit")
                continue
            found[kind] = Piece(variable.key, fitting[0]), marks
        return found

    def fail(self, problem: str) -> SourceError:
        more = len(self.there) - 12
        listed = [*map(str, self.there[:12]), *([f"and {more} more"] if more > 0 else [])]
        return SourceError(
            f"{self.path}: {problem}. There is: {'; '.join(listed) or 'nothing'}. Name the "
            "channels, as u=NAME v=NAME, or the order of the axes, as tcyx"
        )


def _frames(fields: Sequence[Variable]) -> str:
    """Advice on arrays such as ``u_0``, ``u_1``, ``v_0``: their numbers are those of frames."""
    numbered = [v for v in fields if _NUMBERED.fullmatch(v.key.rsplit("/", 1)[-1].lower())]
    if not numbered:
        return ""
    some, stem = ", ".join(v.key for v in numbered[:4]), re.sub(r"\d+$", "", numbered[0].key)
    return (
        f"; {some} look like frames, an array each, but they might also be passes or planes. If "
        "they are frames, stack those of each component and save the result, in Python: "
        f"np.savez('stacked.npz', u=np.stack([data[f'{stem}{{i}}'] for i in range(N)]), v=...). To "
        "convert one of them, name its arrays in --channels"
    )
