"""The result of every reader: trajectories that are described at once and read on demand."""

import lzma
import math
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypeVar

from pibert.data.hdf5 import DAMAGED, HDF5Error
from pibert.data.splits import Split
from pibert.data.units import parse_duration, parse_scale
from pibert.data.views import ByName
from pibert.fields import Boundary, Parameter, Sides, Trajectory


class SourceError(ValueError):
    """A file that violates its format; the message gives the remedy."""


class DamagedError(SourceError):
    """A file on which its reader failed."""


class TooLargeError(SourceError):
    """A file that takes more memory to read than it may."""


class TooSlowError(SourceError):
    """A file that takes more time to read than it may."""


Value = TypeVar("Value")

NO_FAMILY = "none"
"""The user's value of ``family`` where no PDE family fits the data."""
_SIDES = {
    "x": ("left", "right"),
    "y": ("bottom", "top"),
    **{side: (side,) for side in Sides._fields},
}


def read_sides(stated: str | Mapping[str, str]) -> dict[str, str]:
    """Boundaries by side, from ``left=inflow,x=periodic``, a mapping, or one for all sides."""
    if isinstance(stated, str):
        if stated.strip() and "=" not in stated and "," not in stated:
            stated = f"x={stated},y={stated}"
        pairs = (text.partition("=") for text in stated.split(",") if text.strip())
        stated = {name: kind for name, _, kind in pairs}
    sides: dict[str, str] = {}
    for name, kind in ((name.strip(), kind.strip()) for name, kind in stated.items()):
        if name not in _SIDES or kind not in tuple(Boundary):
            raise ValueError(
                f"sides: expected one of {', '.join(Boundary)}, for all sides or as "
                f"NAME=KIND,... with names among {', '.join(_SIDES)}; found {name}={kind}"
            )
        sides |= dict.fromkeys(_SIDES[name], str(kind))
    for a, b in (_SIDES["x"], _SIDES["y"]):
        periodic = [side for side in (a, b) if sides.get(side) == Boundary.PERIODIC]
        if len(periodic) == 1:
            raise ValueError(
                f"sides: {a} and {b} must both be periodic or neither, found only {periodic[0]}"
            )
    return sides


@dataclass(frozen=True, kw_only=True)
class Hints:
    """Metadata that the user states; None leaves it to the file."""

    channels: Mapping[str, str] = field(default_factory=dict)
    """Our name to the file's: ``{"u": "Vx", "v": "Vy"}``."""
    axes: str | None = None
    """Order of the axes of an array, such as ``tcyx`` or ``yxt``."""
    dt: float | None = None
    """Time between frames (vector fields); ``pulse_delay`` is that between the images of a pair."""
    dx: float | None = None
    dy: float | None = None
    length_unit: str | None = None
    time_unit: str | None = None
    unit: str | None = None
    """Of the velocity components."""
    scale: str | None = None
    """Size of a pixel: ``0.05mm/px`` or ``20px/mm``."""
    pulse_delay: str | None = None
    """Time between the two images of a pair: ``27ms``."""
    override_units: bool = False
    """Whether units, spacing, time step and calibration may replace what the file states."""
    shape: tuple[int, int] | None = None
    """Rows and columns of the grid that scattered or non-uniform points are resampled to."""
    parameters: Mapping[str, float] = field(default_factory=dict)
    """Such as ``{"Re": 100.0}``."""
    family: str | None = None
    """A key of ``pibert.physics.FAMILIES``, or ``none``: no known one."""
    sides: str | Mapping[str, str] = ""
    """Boundaries of the grid, as ``read_sides`` takes them."""
    override_metadata: bool = False
    """Whether family, sides and parameters may replace what the file states."""
    flip: tuple[str, ...] = ()
    """Reverse the order of columns (``x``) or rows (``y``), or the sign of ``u`` or ``v``."""
    rotate: int = 0
    """Rotate by this multiple of 90 degrees, anticlockwise about the origin, after flips."""
    body: tuple[str, ...] = ()
    """Solid regions, in the syntax of ``pibert.data.readers.shared.regions``."""
    mask: tuple[str, ...] = ()
    """Regions without measurements, in the same syntax."""

    def __post_init__(self) -> None:
        for name in ("dt", "dx", "dy"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise ValueError(f"{name} must be positive, found {value}")
        letters = self.axes or "yx"
        if not {*"yx"} <= {*letters} <= {*"btcyx"} or len({*letters}) != len(letters):
            raise ValueError(
                "--axes must be a word of the letters b, t, c, y, x such as tcyx, with y and x, "
                f"found {self.axes!r}"
            )
        for name, value in self.parameters.items():
            if not math.isfinite(value):
                raise ValueError(f"parameter {name!r} must be a finite number, found {value}")
        read_sides(self.sides)
        if self.scale is not None:
            parse_scale(self.scale)
        if self.pulse_delay is not None:
            parse_duration(self.pulse_delay)


def describe_parameter(name: str) -> Parameter:
    """Describe a parameter by its name; models see the logarithm of a Reynolds number."""
    return Parameter(name=name, scaling="log" if name == "Re" else "linear")


def check_channels(path: Path, hints: Hints, stored: Mapping[str, str]) -> None:
    """Refuse channels that a format with fixed names (``stored``: ours to its) does not have."""
    for ours, theirs in hints.channels.items():
        if stored.get(ours) != theirs:
            known = ", ".join(f"{name}={key}" for name, key in stored.items())
            raise SourceError(
                f"{path}: there is no channel {ours}={theirs}; data of this kind have: {known}"
            )


def rename_channels(path: Path, hints: Hints, found: Mapping[str, Value]) -> dict[str, Value]:
    """Return channels of a file under the user's names."""
    ours = {theirs: our for our, theirs in hints.channels.items()}
    if wrong := [key for key in ours if key not in found or ours[key] in {*found} - {*ours}]:
        raise SourceError(
            f"{path}: {wrong[0]!r} cannot become {ours[wrong[0]]!r}; there are: {', '.join(found)}"
        )
    return {ours.get(key, key): value for key, value in found.items()}


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Add the path to messages that do not name the file."""
    try:
        yield
    except ValueError as error:
        if path.name in str(error):
            raise
        raise SourceError(f"{path}: {error}") from error


PARSING = (OSError, EOFError, LookupError, ValueError, ArithmeticError, zlib.error, lzma.LZMAError)
"""Errors of our own parsers on a damaged file."""


@contextmanager
def reading(
    path: Path,
    what: str = "the file",
    *,
    remedy: str = "get a new copy of it",
    errors: tuple[type[Exception], ...] = DAMAGED,
) -> Iterator[None]:
    """Turn errors on the content of a file into a ``SourceError`` that names the file."""
    try:
        yield
    except (SourceError, HDF5Error):
        raise
    except errors as error:
        problem = str(error)
        if isinstance(error, LookupError):
            problem = f"{error} is missing" if isinstance(error, KeyError) else "it ends too early"
        raise SourceError(f"{path}: {what} cannot be read ({problem}); {remedy}") from error


@dataclass(frozen=True, eq=False, kw_only=True)
class Recordings(ByName):
    """The trajectories of a file or folder, by position or name."""

    kind: str
    """The reader, a key of ``pibert.data.readers.READERS``."""
    path: Path
    names: tuple[str, ...]
    load: Callable[[str], Trajectory]
    """Describes the trajectory of a name; its fields are read on demand."""
    notes: tuple[str, ...] = ()
    """What the reader noticed, assumed or changed, for the user."""
    published_split: Callable[[], Split] | None = None
    """Returns the publishers' split, whose segments count the frames as stored; None: there is
    none. It may read small files."""

    def changed(
        self, change: Callable[[Trajectory], Trajectory], notes: Iterable[str] = ()
    ) -> "Recordings":
        """Return the recordings with a change of every trajectory when it is loaded."""
        load = self.load
        return replace(self, load=lambda name: change(load(name)), notes=(*self.notes, *notes))
