"""The roles of a file's named arrays: channels, coordinates, time, masks.

Names are interpreted by ``naming.standard_name``; a unit may follow an underscore: ``x_mm``,
``dt_s``. Arrays with a channel axis are split into channels. ``Hints`` of the user come first.

The order of the axes of an array is a word such as ``tcyx`` (letters: see ``stores``). The lengths
of the coordinates decide; if they are ambiguous, the order that is usual in such files, with a
short channel axis.
"""

import itertools
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pibert.data.readers.recordings import Hints, SourceError
from pibert.data.readers.shared.naming import standard_name, standard_unit
from pibert.data.readers.shared.stores import Piece

MOST_CHANNELS = 8
"""Largest length of an unnamed axis that may be the channel axis."""
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
_REMEDY = (
    "name the channels (--channels u=NAME,v=NAME, in Python channels={'u': 'NAME'}), or the order "
    "of the axes (--axes tcyx, in Python axes='tcyx'); stack frames that are separate arrays"
)
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
"""Names of flags: what they mark, and whether by numbers above 0 or by 0. The meaning of ``mask``
and ``chc`` follows from the values (``assembly``)."""
_DIMENSIONS = {
    "t": ("t", "time", "nt", "frame", "frames", "snapshot"),
    "y": ("y", "lat", "latitude", "ny", "j", "row", "rows"),
    "x": ("x", "lon", "longitude", "nx", "i", "column", "columns"),
    "c": ("c", "channel", "channels", "component"),
    "b": ("b", "case", "member", "sample", "trajectory", "run"),
}
"""Names of the dimensions of an array, by the letters of ``stores``."""
_TURBULENCE = ("k", "tke", "nut", "mut", "epsilon")
"""Fields of a turbulence model; an ``omega`` beside them is its dissipation rate."""


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
    """Our name for it where the file states more than its key."""

    @property
    def base(self) -> str:
        """The key without its groups."""
        return self.key.rsplit("/", 1)[-1]

    @property
    def plain(self) -> str:
        return re.sub(r"[^a-z0-9]", "", self.base.lower())

    @property
    def is_vector(self) -> bool:
        """Whether it has one axis, or two of which one has length 1, as vectors of MATLAB."""
        return len(self.shape) == 1 or (len(self.shape) == 2 and min(self.shape) == 1)

    @property
    def flag(self) -> tuple[str, bool] | None:
        """A value of ``FLAGS`` where it is a flag."""
        return FLAGS.get(self.name or self.plain)

    def __str__(self) -> str:
        return f"{self.key} {self.dtype.name} {self.shape}"


def meaning(variable: Variable) -> tuple[str | None, str | None]:
    """Return our name for a variable and its unit, as far as its file states them."""
    name, unit = standard_name(variable.base)
    name = variable.name or name or STEPS.get(variable.plain)
    if name is None:
        stem, _, suffix = variable.base.rpartition("_")
        while stem and name is None:
            found = standard_name(stem)[0] or STEPS.get(re.sub(r"[^a-z]", "", stem.lower()))
            if found and re.fullmatch(_UNITS.get(found, "$^"), suffix):
                name, unit = found, suffix.replace("mps", "m_s").replace("_", "/")
            stem, _, more = stem.rpartition("_")
            suffix = f"{more}_{suffix}"
    if variable.unit is not None:
        unit = standard_unit(variable.unit)
    return name, unit


def find_axis(dimension: str) -> str | None:
    """Return the letter of an axis by the name of its dimension; None if it is unknown."""
    return next((a for a, names in _DIMENSIONS.items() if dimension.lower() in names), None)


def _fits(axes: str, shape: tuple[int, ...], lengths: Mapping[str, int]) -> bool:
    size = dict(zip(axes, shape, strict=False))
    return len(axes) == len(shape) and all(size.get(a, n) == n for a, n in lengths.items())


Choice = tuple[Variable, int | None]
"""An array, and the index of a channel on its channel axis."""


class Roles:
    """The roles of the arrays of a file; SourceError that lists all arrays if they are unclear.

    ``order`` is the usual order of axes in such files.
    """

    def __init__(self, path: Path, variables: Sequence[Variable], hints: Hints, order: str) -> None:
        self.path, self.hints = path, hints
        self._listed = [str(variable) for variable in variables]
        self._variables = [v for v in variables if v.dtype.kind in "fiub"]
        self._named = {
            our: theirs
            for our, theirs in hints.channels.items()
            if our not in ("x", "y", "t") and our not in FLAGS
        }
        self._names = {variable.key: meaning(variable) for variable in self._variables}
        self.notes: list[str] = []
        self.x, self.y, self.t = (self._coordinate(name) for name in "xyt")
        vectors = {"x": self.x, "y": self.y, "t": self.t}
        self._usual = order
        self._lengths = {k: max(v.shape) for k, v in vectors.items() if v and v.is_vector}
        is_mesh = self.x is not None and len(self.x.shape) == 2 and not self.x.is_vector
        self._mesh = self.x.shape if self.x is not None and is_mesh else None
        self.steps = {
            name: variable
            for variable in self._variables
            if (name := self._names[variable.key][0]) in ("dt", "dx", "dy", "Re")
            and int(np.prod(variable.shape)) == 1
        }
        """The single numbers dt, dx, dy and Re."""
        used = {v.key for v in (*vectors.values(), *self.steps.values()) if v is not None}
        used |= {self._find(our).key for our in hints.channels if our in FLAGS}
        named = self._named.values()
        others = (v for v in self._variables if v.key not in used)
        fields = [v for v in others if v.flag is None or v.key in named]
        chosen = self._named_channels(fields) if self._named else self._find_channels(fields)
        self.channels = self._pieces(chosen)
        self.units = {
            our: unit for our in self.channels if (unit := self._names[chosen[our][0].key][1])
        }
        first = next(iter(self.channels))
        self.size = dict(zip(self.channels[first].axes, chosen[first][0].shape, strict=True))
        """Length of each axis of the first channel."""
        self._note_order(chosen[first][0], self.channels[first].axes)
        self.flags = self._flags(self.channels[first].axes)
        """``valid``, ``body``, ``filled``, ``mask`` or ``chc``: its array, and whether numbers
        above 0 mark it."""
        taken = {piece.key for piece in self.channels.values()}
        self.unused = [str(v) for v in fields if v.key not in taken]

    def _find(self, our: str) -> Variable:
        """Return the array that the user gives one of our names to."""
        theirs = self.hints.channels[our]
        found = [v for v in self._variables if theirs in (v.key, v.base)]
        if not found:
            raise self._error(f"{our!r} should be {theirs!r}, which is not there")
        return found[0]

    def _coordinate(self, name: str) -> Variable | None:
        if name in self.hints.channels:
            return self._find(name)
        claimed, more = self.hints.channels.values(), 0 if name == "t" else 2
        fitting = (v for v in self._variables if self._names[v.key][0] == name)
        found = [
            v for v in fitting if v.key not in claimed and (v.is_vector or len(v.shape) == more)
        ]
        if name == "t":
            found.sort(key=lambda v: -len(v.shape))  # a single time belongs to a single frame
        if len(found) > 1:
            self.notes.append(f"{name} was read from {found[0].key!r}, not {found[1].key!r}")
        return found[0] if found else None

    def _named_channels(self, fields: Sequence[Variable]) -> dict[str, Choice]:
        """Return the channels that the user names: ``ARRAY``, ``ARRAY:2`` or ``2``."""
        chosen: dict[str, Choice] = {}
        for our, theirs in self._named.items():
            key, _, index = theirs.rpartition(":") if ":" in theirs else (theirs, "", "")
            if theirs.isdecimal() and len(self._packed(fields)) == 1:
                key, index = self._packed(fields)[0].key, theirs
            found = [v for v in fields if key in (v.key, v.base)]
            if not found or (index and not index.isdecimal()):
                raise self._error(f"the channel {our!r} should be {theirs!r}, which is not there")
            chosen[our] = found[0], int(index) if index else None
        return chosen

    def _find_channels(self, fields: Sequence[Variable]) -> dict[str, Choice]:
        chosen: dict[str, Choice] = {}
        packed = self._packed(fields)
        turbulence = [v.key for v in fields if v.plain in _TURBULENCE]
        for variable in fields:
            name = self._names[variable.key][0]
            if name not in CHANNELS or variable in packed or len(variable.shape) < 1:
                continue
            if variable.plain == "omega" and turbulence:
                self.notes.append(
                    f"{variable.key!r} beside {', '.join(turbulence)} is no vorticity: it was left "
                    "out"
                )
            elif name in chosen:
                kept = chosen[name][0].key
                self.notes.append(f"{name} was read from {kept!r}, not {variable.key!r}")
            else:
                chosen[name] = variable, None
        if not chosen and not packed:
            packed = [v for v in fields if len(v.shape) >= 2]
            if len(packed) != 1:
                raise self._error("no velocity or other field was found by name")
        if packed and not {"u", "v"} <= chosen.keys():
            chosen = self._unpacked(packed[0]) | chosen
        if len({"u", "v"} & chosen.keys()) == 1:
            one, other = ("u", "v") if "u" in chosen else ("v", "u")
            raise self._error(f"there is {one!r} but no {other!r}")
        # In the order of CHANNELS; others at the end.
        return {name: chosen[name] for name in sorted(chosen, key=[*CHANNELS, *chosen].index)}

    def _packed(self, fields: Sequence[Variable]) -> list[Variable]:
        """Return the arrays with a channel axis."""
        plain = {variable.plain for variable in fields}
        names = _PACKED if {"u", "v"} <= plain else (*_PACKED, "u", "v")
        likely = [v for v in fields if v.plain in names or "c" in (v.axes or "")]
        return [v for v in likely if "c" in self._axes(v)]

    def _unpacked(self, variable: Variable) -> dict[str, Choice]:
        axes = self._axes(variable)
        if "c" not in axes:
            if "t" in axes and variable.shape[axes.index("t")] in DEFAULT_CHANNELS:
                self.notes.append(
                    f"{variable.key!r} of shape {variable.shape} was read as {axes}; if it holds "
                    f"channels, give its axes as {axes.replace('t', 'c')}"
                )
            name = self._names[variable.key][0] or variable.plain or "field"
            return {name: (variable, None)}
        count = variable.shape[axes.index("c")]
        names = DEFAULT_CHANNELS.get(count) or tuple(f"c{i}" for i in range(count))
        if variable.plain == "uvw" and count == 3:
            names = ("u", "v", "w")
        elif variable.plain not in ("uv", "uvp"):
            self.notes.append(
                f"the {count} channels of {variable.key!r} were taken for {', '.join(names)}"
            )
        return {name: (variable, index) for index, name in enumerate(names)}

    def _pieces(self, chosen: Mapping[str, Choice]) -> dict[str, Piece]:
        """Locate the channels; one besides the velocity that does not fit is left out."""
        pieces: dict[str, Piece] = {}
        first: tuple[str, dict[str, int]] | None = None
        for our, (variable, channel) in chosen.items():
            axes, key, shape = (
                self._axes(variable, channel is not None),
                variable.key,
                variable.shape,
            )
            size = {axis: n for axis, n in zip(axes, shape, strict=False) if axis in "btyx"}
            first = first or (our, size)
            if size != first[1] and our not in ("u", "v") and not self._named:
                self.notes.append(f"{variable} was left out: its shape is not that of {first[0]}")
                continue
            if not axes:
                raise self._error(
                    f"{key!r}: the order of the axes ({self.hints.axes or 'not stated'}) is not "
                    f"clear for shape {shape} and coordinates of lengths {self._lengths}"
                )
            if size != first[1]:
                shapes = f"{chosen[first[0]][0].shape} and {shape}"
                raise self._error(f"{first[0]!r} and {our!r} differ in shape, {shapes}")
            if 0 in shape:
                raise self._error(
                    f"{key!r} is empty: expected at least one frame", "name a recording with frames"
                )
            count = shape[axes.index("c")] if "c" in axes else 1
            if channel is None and count > 1:
                raise self._error(
                    f"{key!r} was read as {axes} with {count} channels; name one of them as "
                    f"'{key}:0', or give its axes"
                )
            if channel is not None and channel >= count:
                raise self._error(f"{key!r} of shape {shape} has no channel {channel}")
            pieces[our] = Piece(key, axes, channel)
        if not pieces:
            raise self._error("there is no field in it")
        return pieces

    def _axes(self, variable: Variable, channel: bool | None = None) -> str:
        """Return the order of an array's axes, empty if none fits.

        ``channel`` states whether the user names one of its channels (None: not stated).
        """
        if variable.axes is not None:
            return variable.axes
        most = 1 if channel is False else 3 if variable.plain in ("u", "v") else MOST_CHANNELS
        packed = variable.plain in _PACKED and variable.plain not in ("field", "data")
        channels_first = packed if channel is None else channel
        shape, stated, lengths = variable.shape, self.hints.axes, self._lengths
        if stated is not None:
            # Users state the fullest order; arrays without channels or of one frame have less.
            orders = [stated, stated.replace("c", ""), stated.replace("t", "")]
            return next((axes for axes in orders if _fits(axes, shape, lengths)), "")
        axes = self._likeliest(shape, "yx", lengths, most, channels_first)
        if not axes and lengths.get("x") == lengths.get("y") is not None:  # scattered points
            axes = self._likeliest(shape, "x", {**lengths, "y": 0}, most, channels_first)
        return axes

    def _likeliest(
        self,
        shape: tuple[int, ...],
        plane: str,
        lengths: Mapping[str, int],
        most: int,
        channels_first: bool,
    ) -> str:
        """Return the most usual order of axes that fits, empty if none does.

        A channel axis has at most ``most`` entries. With ``channels_first``, a single axis besides
        the plane is more likely of channels than of time.
        """
        more = {0: [""], 1: ["t", "c"], 2: ["tc"], 3: ["btc"]}.get(len(shape) - len(plane), [])
        if channels_first and min(shape, default=0) <= 4:
            more = more[::-1]
        found = []
        for rank, extra in enumerate(more):
            for axes in map("".join, itertools.permutations(extra + plane)):
                size = dict(zip(axes, shape, strict=True))
                fits = _fits(axes, shape, lengths) and size.get("c", 1) <= most
                if self._mesh is not None:
                    # Both axes of a mesh belong to the fields, in the mesh's order.
                    fits &= (size["y"], size["x"]) == self._mesh and axes.find("y") < axes.find("x")
                if fits:
                    odd = size.get("c", 1) > min(size[letter] for letter in plane)
                    ranks = map(self._usual.index, axes)
                    inversions = sum(a > b for a, b in itertools.combinations(ranks, 2))
                    found.append((odd, rank, inversions, axes))
        return min(found)[-1] if found else ""

    def _note_order(self, variable: Variable, axes: str) -> None:
        """Note an assumed order of axes: the lengths of the coordinates allow others."""
        is_stated = variable.axes is not None or self.hints.axes is not None
        if is_stated or self._mesh is not None or "y" not in axes:
            return
        orders = {"".join(order) for order in itertools.permutations(axes)}
        others = (o for o in orders if o.replace("c", "") != axes.replace("c", ""))
        if any(_fits(order, variable.shape, self._lengths) for order in others):
            self.notes.append(
                f"the axes of {variable.key!r}, of shape {variable.shape}, were read as {axes}; if "
                "they are in another order, give it (--axes)"
            )

    def _flags(self, axes: str) -> dict[str, tuple[Piece, bool | int]]:
        found: dict[str, tuple[Piece, bool | int]] = {}
        hinted = self.hints.channels
        stated = [(self._find(name), FLAGS[name]) for name in hinted if name in FLAGS]
        stated += [(v, v.flag) for v in self._variables if v.flag and v.key not in hinted.values()]
        for variable, (kind, marks) in stated:
            kinds = ("btyx", "tyx", "yx")
            orders = ["".join(axis for axis in axes if axis in kept) for kept in kinds]
            orders += ["".join(axis for axis in kept if axis in axes) for kept in kinds]
            if variable.axes is not None:
                orders = [variable.axes]
            fitting = [order for order in orders if (*map(self.size.get, order),) == variable.shape]
            if kind in found:
                self.notes.append(f"the mask {variable} was not used: there is another one")
                continue
            if not fitting:
                shapes = dict.fromkeys(tuple(map(self.size.get, order)) for order in orders[:3])
                problem = (
                    f"the mask {variable} does not fit the fields: expected the shape "
                    + " or ".join(map(str, shapes))
                )
                if not self._named or variable.key in hinted.values():
                    raise self._error(
                        problem, "correct its shape, or name only what to read (--channels u=u,v=v)"
                    )
                self.notes.append(f"{problem}: not used")
                continue
            found[kind] = Piece(variable.key, fitting[0]), marks
        return found

    def _error(self, problem: str, remedy: str = _REMEDY) -> SourceError:
        listed, more = self._listed[:12], len(self._listed) - 12
        listed += [f"and {more} more"] if more > 0 else []
        return SourceError(
            f"{self.path}: {problem}. There is: {'; '.join(listed) or 'nothing'}. "
            f"{remedy[0].upper()}{remedy[1:]}"
        )
