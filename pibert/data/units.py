"""Conversion of units to one system: metres, seconds, metres per second.

Derivatives and residuals have a meaning only if coordinates, times and velocities are in units of
one system; measured fields often have coordinates in mm and velocities in m/s. If these units are
known, ``in_consistent_units`` converts lengths, times and every channel that is a product of powers
of length and time (velocity, vorticity, kinematic pressure) to metres and seconds. Channels in Pa
or K, in diameters or without a unit keep theirs. Pixels need a calibration
(``readers.shared.calibration``): the size of a pixel and, for displacements, the time between the
two images of a pair.
"""

import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NamedTuple

from pibert.data.views import MappedFrames, scale_channels
from pibert.fields import Trajectory

VELOCITY = ("u", "v", "w")
UNCERTAINTY = {f"uncertainty_{name}": name for name in VELOCITY}
"""Channels with the uncertainty of a velocity component, and that component."""
UNKNOWN = (None, "1", "unknown")
"""Units of data that state none."""
_LENGTHS = {
    **{"m": 1.0, "dm": 1e-1, "cm": 1e-2, "mm": 1e-3, "um": 1e-6, "nm": 1e-9, "km": 1e3},
    **dict.fromkeys(("in", "inch", "inches"), 0.0254),
    **dict.fromkeys(("ft", "foot", "feet"), 0.3048),
    **dict.fromkeys(("micron", "microns"), 1e-6),
}
_TIMES = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "ns": 1e-9, "min": 60.0, "h": 3600.0, "day": 86400.0}
_PLAIN = str.maketrans("µμ⁻¹²³", "uu-123")
_WORD = re.compile(r"\b[^\W\d]\w*")
_SCALE = re.compile(
    r"[A-Z]\w*|[^\W\dms]|[a-z]_\w+|px|pix(?:els?)?|vox(?:els?)?|frames?|steps?|cells?|degrees"
    r"|unknown|d[txy]|lu|ts|chords?|diameters?|delta|eta|lambda|nu|tau|theta"
)
"""A word for a scale of the flow (``D``, ``U_inf``, ``u_tau``) or of the recording."""
_FACTOR = re.compile(r"\s*([*·.]|/|)\s*(?:1|([a-z]+)(?:\^?(-?\d+))?)\s*", re.IGNORECASE)
PIXEL = re.compile(r"\b(?:px|pix|pixels?)\b", re.IGNORECASE)


class Unit(NamedTuple):
    """A product of powers of length and time: ``factor`` m^length s^time."""

    length: int
    time: int
    of_length: float = 1.0
    """Factor of the units of length."""
    of_time: float = 1.0
    """Factor of the units of time."""

    @property
    def factor(self) -> float:
        return self.of_length * self.of_time

    @property
    def si_name(self) -> str:
        """Such as ``m^2/s^2`` or ``1/s``."""
        powers = {"m": self.length, "s": self.time}
        above, below = (
            [name if abs(n) == 1 else f"{name}^{abs(n)}" for name, n in powers.items() if n * s > 0]
            for s in (1, -1)
        )
        return "/".join([" ".join(above) or "1", *below])

    def is_like(self, length: int, time: int) -> bool:
        return (self.length, self.time) == (length, time)


_UNITS = {
    **{name: Unit(1, 0, of_length=factor) for name, factor in _LENGTHS.items()},
    **{name: Unit(0, 1, of_time=factor) for name, factor in _TIMES.items()},
    **dict.fromkeys(("knot", "knots"), Unit(1, -1, 1852.0, 1 / 3600)),
    "mph": Unit(1, -1, 1609.344, 1 / 3600),
}


def parse_unit(text: str | None, more: Mapping[str, Unit] = {}) -> Unit | None:
    """Parse ``mm/s``, ``m s-1``, ``m²/s²``, ``1/ms``; None if not made of lengths and times.

    ``more`` adds names of units, such as ``px`` if the size of a pixel is known.
    """
    rest = (text or "").strip().translate(_PLAIN)
    known = {**_UNITS, **more}
    unit = Unit(0, 0)
    while rest:
        found = _FACTOR.match(rest)
        if found is None:
            return None
        rest = rest[found.end() :]
        mark, name = found[1], found[2]
        power = int(found[3] or 1) * (-1 if mark == "/" else 1)
        if name in known:
            factor = known[name]
            unit = Unit(
                unit.length + power * factor.length,
                unit.time + power * factor.time,
                unit.of_length * factor.of_length**power,
                unit.of_time * factor.of_time**power,
            )
        elif name is not None:
            return None
    return None if unit.is_like(0, 0) else unit


def has_velocity_unit(channel: str) -> bool:
    """Whether a channel is a velocity component or its uncertainty."""
    return channel in VELOCITY or channel in UNCERTAINTY


def share_units(channels: Sequence[str], units: Sequence[str]) -> tuple[str, ...]:
    """Return the units, those of uncertainties that state none being those of their components."""
    stated = dict(zip(channels, units, strict=True))
    return tuple(
        stated.get(UNCERTAINTY.get(channel, ""), unit) if unit in UNKNOWN else unit
        for channel, unit in stated.items()
    )


def names_pixels(unit: str | None) -> bool:
    """Return whether a unit contains pixels: ``px``, ``px/frame``, ``pixel/s``."""
    return PIXEL.search(unit or "") is not None


def looks_like_pixels(steps: Sequence[float], origin: Sequence[float], least: int = 2) -> bool:
    """Return whether coordinates have integer steps from a half-integer origin, like windows.

    Steps and origin are numbers of the source; ``least`` is the smallest spacing that counts.
    """
    spaced = all(step > least - 0.5 and _is_whole(step) for step in steps)
    return spaced and all(_is_whole(2 * start) for start in origin)


def _is_whole(value: float) -> bool:
    return math.isclose(value, round(value), rel_tol=1e-6, abs_tol=1e-6)


def same_unit(first: str, second: str) -> bool:
    """Return whether two texts name the same unit, such as ``m/s`` and ``m s-1``."""
    one, other = parse_unit(first), parse_unit(second)
    if one is None or other is None:
        return first == second
    return one.is_like(other.length, other.time) and math.isclose(one.factor, other.factor)


class Quantity(NamedTuple):
    """Powers of length and time of a quantity, and its usual units."""

    powers: tuple[int, int]
    usual: tuple[str, ...]


QUANTITIES = {
    "length": Quantity((1, 0), ("m", "mm", "cm", "um", "km", "in", "ft")),
    "time": Quantity((0, 1), ("s", "ms", "us", "min", "h", "day")),
    "velocity": Quantity((1, -1), ("m/s", "mm/s", "cm/s", "km/h", "ft/s")),
}


def doubt_unit(text: str | None, quantity: str) -> str | None:
    """Return a message on an unknown unit of a quantity of ``QUANTITIES``; None if it is known.

    Scales of a flow (``D``, ``U``, ``D/U``), pixels, frames and ``1`` are known too.
    """
    powers, usual = QUANTITIES[quantity]
    text = text or "1"

    def fits(name: str) -> bool:
        unit = parse_unit(name)
        return unit is not None and unit.is_like(*powers)

    words = {*_WORD.findall(text)}
    strange = {word for word in words if _SCALE.fullmatch(word) is None}
    if fits(text):
        return None
    if fits(text.lower()):
        return f"{text!r} is not a known unit of {quantity} (did you mean {text.lower()}?)"
    # A scale beside known units: px/ms.
    if not strange or (parse_unit(text) is None and strange < words and strange <= {*_UNITS}):
        return None
    return f"{text!r} is not a known unit of {quantity} (expected one such as {usual[0]})"


@dataclass(frozen=True)
class Conversion:
    """Factors that convert a trajectory to metres and seconds."""

    length: float
    time: float
    channels: tuple[float, ...]
    velocity: float
    """The factor of the first velocity channel."""
    units: tuple[str, ...]
    """Units of the channels afterwards."""
    changes: Mapping[str, str]
    """``{"length": "mm -> m", "u": "mm/s -> m/s"}``; empty if all is SI already."""

    @property
    def mismatch(self) -> float:
        """The factor by which velocity gradients would be wrong; 1 if the units are consistent."""
        return self.velocity * self.time / self.length


def find_conversion(
    length_unit: str | None, time_unit: str | None, channels: Sequence[str], units: Sequence[str]
) -> Conversion | None:
    """Return the conversion; None if the unit of lengths, times or velocities is unknown.

    Times without a unit count as seconds if velocities are per second.
    """
    length, clock = parse_unit(length_unit), parse_unit(time_unit)
    parsed = {name: parse_unit(unit) for name, unit in zip(channels, units, strict=True)}
    speeds = [parsed[name] for name in VELOCITY if name in parsed]
    if length is None or not length.is_like(1, 0) or not speeds:
        return None
    if any(speed is None or not speed.is_like(1, -1) for speed in speeds):
        return None
    if time_unit is None and all(speed.of_time == 1 for speed in speeds if speed):
        clock = Unit(0, 1)
    if clock is None or not clock.is_like(0, 1):
        return None
    stated = {"length": length_unit, "time": time_unit, **dict(zip(channels, units, strict=True))}
    known = {"length": length, "time": clock, **parsed}
    return Conversion(
        length.factor,
        clock.factor,
        tuple(unit.factor if unit else 1.0 for unit in parsed.values()),
        next(speed.factor for speed in speeds if speed),
        tuple(
            text if unit is None or unit.factor == 1 else unit.si_name
            for unit, text in zip(parsed.values(), units, strict=True)
        ),
        {
            name: f"{stated[name]} -> {unit.si_name}"
            for name, unit in known.items()
            if unit is not None and unit.factor != 1
        },
    )


def assume_units(
    trajectory: Trajectory, units: Sequence[str], add_note: Callable[[str], None]
) -> Trajectory:
    """Give channels without a unit these units, with a note.

    Data without units whose positions look like pixels are refused.
    """
    spec, grid = trajectory.spec, trajectory.spec.grid
    named = list(zip(spec.channels, spec.units, units, strict=True))
    missing = {name: unit for name, stated, unit in named if stated == "1" != unit}
    if not missing:
        return trajectory
    if trajectory.length_unit in UNKNOWN and looks_like_pixels((grid.dx, grid.dy), grid.origin):
        raise ValueError(
            f"trajectory {trajectory.name!r}: no unit is stated, and its positions, whole numbers "
            f"{grid.dx:g} x {grid.dy:g} apart, look like pixels; give --scale and --pulse-delay if "
            "they are, else their units (--unit, --length-unit)"
        )
    listed = ", ".join(f"{name} in {unit}" for name, unit in missing.items())
    add_note(f"no unit is stated: assuming the model's, {listed} (--unit)")
    assumed = tuple(missing.get(name, stated) for name, stated, _ in named)
    return replace(trajectory, spec=replace(spec, units=assumed))


def in_consistent_units(trajectory: Trajectory) -> Trajectory:
    """Return a lazy view in metres and seconds; the trajectory itself if its units are unknown.

    The reference length has the unit of the coordinates, the reference velocity that of u, and the
    viscosity that of their product, as in Re = U D / nu. Parameters and series keep their numbers:
    they state no units. ``local["units"]`` records the changes.
    """
    spec = trajectory.spec
    found = find_conversion(trajectory.length_unit, trajectory.time_unit, spec.channels, spec.units)
    if found is None or not found.changes:
        return trajectory
    local = {**trajectory.local, "units": dict(found.changes)}
    if isinstance(plane := local.get("plane"), Mapping):  # where the plane lies in space
        local["plane"] = {**plane, "position": found.length * plane["position"]}
    return replace(
        rescale(
            trajectory,
            length=(found.length, found.length),
            channels=found.channels,
            velocity=found.velocity,
            units=found.units,
            time=found.time,
        ),
        length_unit="m",
        time_unit=None if trajectory.time_unit is None else "s",
        local=local,
    )


def describe_conversion(trajectory: Trajectory) -> str:
    """Describe the changes that ``in_consistent_units`` made to a trajectory."""
    changes = ", ".join(f"{what} {change}" for what, change in trajectory.local["units"].items())
    kept = [what for what in ("parameters", "series") if getattr(trajectory, what)]
    return f"units: {changes}" + (f"; {' and '.join(kept)} keep their numbers" if kept else "")


def rescale(
    trajectory: Trajectory,
    *,
    length: tuple[float, float],
    channels: tuple[float, ...],
    velocity: float,
    units: tuple[str, ...],
    time: float = 1.0,
) -> Trajectory:
    """Return a lazy view with scaled numbers.

    ``length`` has the factors of the coordinates along x and y, ``channels`` that of each channel,
    ``velocity`` that of the reference velocity; ``units`` are those of the channels afterwards.
    """
    spec, grid = trajectory.spec, trajectory.spec.grid
    along_x, along_y = length
    scaled = replace(
        spec,
        units=units,
        dt=_times(spec.dt, time),
        grid=replace(
            grid,
            dx=along_x * grid.dx,
            dy=along_y * grid.dy,
            origin=(along_x * grid.origin[0], along_y * grid.origin[1]),
        ),
        reference_length=_times(spec.reference_length, along_x),
        reference_velocity=_times(spec.reference_velocity, velocity),
        viscosity=_times(spec.viscosity, along_x * velocity),
        bodies=tuple(
            replace(
                body,
                radius=along_x * body.radius,
                centre=(along_x * body.centre[0], along_y * body.centre[1]),
                unit=(along_x if body.axis == "x" else along_y) * body.unit,
            )
            for body in spec.bodies
        ),
    )
    states = trajectory.states
    if any(factor != 1 for factor in channels):
        states = MappedFrames(tuple(states.shape), partial(scale_channels, trajectory, channels))
    return replace(trajectory, states=states, time=time * trajectory.time, spec=scaled)


def _times(value: float | None, factor: float) -> float | None:
    return None if value is None else factor * value


_AMOUNT = re.compile(r"\s*(\d+\.?\d*(?:[eE][-+]?\d+)?|\.\d+)\s*([^\s\d.].*)")


def parse_scale(text: str) -> float:
    """Return metres per pixel of a scale such as ``0.05 mm/px``, ``50um/px`` or ``20px/mm``."""
    value, name = _amount(text)
    above, _, below = name.partition("/")
    inverse = PIXEL.fullmatch(above.strip()) is not None
    pixel, length = (above, below) if inverse else (below, above)
    unit = parse_unit(length)
    if value is None or unit is None or not (unit.is_like(1, 0) and PIXEL.fullmatch(pixel.strip())):
        raise ValueError(
            "--scale takes the size of a pixel, such as 0.05mm/px, 50um/px or 20px/mm, "
            f"found {text!r}"
        )
    return unit.factor / value if inverse else unit.factor * value


def parse_duration(text: str) -> float:
    """Return seconds of a time such as ``27ms`` or ``500 us``."""
    value, name = _amount(text)
    unit = parse_unit(name)
    if value is None or unit is None or not unit.is_like(0, 1):
        raise ValueError(
            f"--pulse-delay takes a time with its unit, such as 27ms or 500us, found {text!r}"
        )
    return unit.factor * value


def _amount(text: str) -> tuple[float | None, str]:
    """Return a positive number and its unit; None and an empty text if it is not one."""
    match = _AMOUNT.fullmatch(text)
    value = float(match[1]) if match else math.nan
    return (value, match[2]) if match and 0 < value < math.inf else (None, "")
