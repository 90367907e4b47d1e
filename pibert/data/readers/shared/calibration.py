"""PIV calibration: pixels into metres.

Positions in pixels times the scale (metres per pixel) are metres; displacements in pixels times the
scale over the pulse delay, the time between the two images of a pair, are m/s. The pulse delay is
not the time between vector fields (``Hints.dt``).

Readers store the values of a header in the source facts ``metres_per_pixel`` (one number, or those
along x and y) and ``seconds_between_images``; they apply unless the user states others. The applied
calibration is in ``local["calibration"]``.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from pibert.data.readers.recordings import Hints, SourceError
from pibert.data.units import (
    UNKNOWN,
    VELOCITY,
    Unit,
    doubt_unit,
    has_velocity_unit,
    looks_like_pixels,
    names_pixels,
    parse_duration,
    parse_scale,
    parse_unit,
    rescale,
)
from pibert.fields import Trajectory

SCALE, DELAY = "metres_per_pixel", "seconds_between_images"
"""Source facts of a calibration."""
_WANTED = {
    SCALE: "the size of a pixel (such as --scale 0.05mm/px)",
    DELAY: "the time between the two images of a pair (such as --pulse-delay 27ms)",
}
_OPTIONS = {SCALE: "--scale", DELAY: "--pulse-delay"}
_UNIT_HINTS = {"velocity": "unit", "length": "length_unit", "time": "time_unit"}
_LARGEST_SHIFT = 5
"""In distances of the vectors; windows overlap by at most three quarters."""
_NEEDS = {"px": SCALE, "frame": DELAY}
"""The facts that convert these units."""
_PLAIN = {"px": Unit(1, 0), "frame": Unit(0, 1)}
_SAME = 1e-3
"""Scales and delays with a smaller relative difference are the same."""

Numbers = tuple[float, float]
"""Along x and y."""


def calibrate(trajectory: Trajectory, hints: Hints, notes: list[str]) -> Trajectory:
    """Return the trajectory in metres and m/s if it is in pixels and its calibration is known.

    With ``scale`` and ``pulse_delay`` in the hints, lengths and velocities without a unit are
    pixels and displacements in pixels. ``notes`` gets a report.
    """
    given: dict[str, Numbers] = {}
    if hints.scale is not None:
        given[SCALE] = (parse_scale(hints.scale),) * 2
    if hints.pulse_delay is not None:
        given[DELAY] = (parse_duration(hints.pulse_delay),) * 2
    before = trajectory.local.get("hints", {})
    stated_units = (hints.unit, hints.length_unit, before.get("unit"), before.get("length_unit"))
    if not given and any(map(names_pixels, stated_units)):
        return trajectory  # the user wants pixels, now or when the file was made
    units = _units(trajectory, given)
    needed = {fact for what in ("x", "y", *VELOCITY) for fact in _facts_for(units.get(what))}
    if idle := [_OPTIONS[fact] for fact in given if fact not in needed]:
        stated = ", ".join(dict.fromkeys(unit for unit in units.values() if unit))
        raise SourceError(
            f"{trajectory.name}: {' and '.join(idle)} was given, but the data state {stated}; "
            "leave it out, or add --length-unit px --unit px/frame --override-units"
        )
    found = {fact: _settled(trajectory, fact, given, hints, notes) for fact in sorted(needed)}
    known = {fact: value for fact, value in found.items() if value is not None}
    if len(known) < len(needed) and given:
        raise SourceError(
            f"{trajectory.name}: {' and '.join(_OPTIONS[fact] for fact in given)} was given "
            f"without {' and '.join(_OPTIONS[fact] for fact in found if fact not in known)}, but "
            f"velocities are taken as {units.get('u')}; give both, or the unit of velocities that "
            "are calibrated already (--unit)"
        )
    if len(known) < len(needed) or not known:
        return trajectory
    grid = trajectory.spec.grid
    if names_pixels(units["x"]) and too_close(grid.dx, grid.dy) and not hints.override_units:
        raise SourceError(
            f"{trajectory.name}: {_closeness(trajectory)}; give the right ones (--unit, "
            "--length-unit) instead of --scale, with --override-units if the data state pixels"
        )
    return _rescaled(trajectory, units, known, given, notes)


def replace_stated(
    trajectory: Trajectory,
    hints: Hints,
    notes: list[str],
    given: str,
    stated: str,
    advice: str = "leave the option out",
) -> None:
    """Note that an option replaces what the data state; refuse it without ``override_units``."""
    if not hints.override_units:
        raise SourceError(
            f"{trajectory.name}: {given} was given, but the data state {stated}; {advice}, or add "
            "--override-units if the data are wrong"
        )
    notes.append(f"{given} replaced what the data state: {stated}")


def _rescaled(
    trajectory: Trajectory,
    units: Mapping[str, str | None],
    known: Mapping[str, Numbers],
    given: Mapping[str, Numbers],
    notes: list[str],
) -> Trajectory:
    channels, dt = trajectory.spec.channels, trajectory.spec.dt
    metric = {what: unit for what in units if (unit := _in_metres(what, units[what], known))}
    factors = {what: metric[what].factor if what in metric else 1.0 for what in (*units, "u")}
    scaled = rescale(
        trajectory,
        length=(factors["x"], factors["y"]),
        channels=tuple(factors[channel] for channel in channels),
        velocity=factors["u"],
        units=tuple(metric[c].si_name if c in metric else units[c] or "1" for c in channels),
    )
    record = {fact: _plain(values) for fact, values in known.items()}
    origin = {fact: "user" if fact in given else "header" for fact in record}
    changes = {what: f"{units[what]} -> {unit.si_name}" for what, unit in metric.items()}
    amounts = ", ".join(f"{_amounts({fact: record[fact]})} ({origin[fact]})" for fact in record)
    notes.append(f"calibrated with {amounts}: {', '.join(dict.fromkeys(changes.values()))}")
    notes += _doubt_displacements(trajectory, units)
    delay, clock = known.get(DELAY), parse_unit(trajectory.time_unit or "s")
    if delay and dt is not None and clock and delay[0] > 1.01 * dt * clock.of_time:
        notes.append(
            f"{_amounts({DELAY: delay[0]})} is longer than the time between frames, "
            f"{1e3 * dt * clock.of_time:.6g} ms: --pulse-delay is the time between the two images "
            "of a pair, --dt that between vector fields"
        )
    return replace(
        scaled,
        length_unit=metric["x"].si_name if "x" in metric else trajectory.length_unit,
        local={**trajectory.local, "calibration": {**record, "from": origin, "units": changes}},
    )


def _doubt_displacements(trajectory: Trajectory, units: Mapping[str, str | None]) -> list[str]:
    """Return a note if displacements of the first frame exceed any interrogation window."""
    spec = trajectory.spec
    if spec.velocity is None or units["u"] != "px/frame" or units["x"] != "px":
        return []
    shift = trajectory.read(slice(0, 1))[0, list(spec.velocity)].norm(dim=0)
    shift = shift[trajectory.known(slice(0, 1))[0] & shift.isfinite()]
    apart = max(spec.grid.dx, spec.grid.dy)
    if not len(shift) or (usual := float(shift.median())) <= _LARGEST_SHIFT * apart:
        return []
    return [
        f"displacements of {usual:.3g} px between vectors {apart:g} px apart are too large for a "
        "pair of images: if the PIV program divided them by a time, such as OpenPIV's dt, give "
        "--unit px/s instead of --pulse-delay"
    ]


def doubt_units(trajectory: Trajectory, hints: Hints) -> list[str]:
    """Return notes on units in the data that are not known, and on pixels."""
    spec, before = trajectory.spec, trajectory.local.get("hints", {})
    given = {source.get(name) for source in (vars(hints), before) for name in _UNIT_HINTS.values()}
    stated = {"length": trajectory.length_unit, "time": trajectory.time_unit}
    if spec.velocity is not None:
        text = spec.units[spec.velocity[0]]
        displacement = (unit := parse_unit(text)) is not None and unit.is_like(1, 0)
        stated["velocity"] = None if displacement else text
    notes = [
        f"{doubt}; it is kept, and nothing is converted; replace a wrong one with "
        f"--{name.replace('_', '-')} and --override-units"
        for what, name in _UNIT_HINTS.items()
        if stated.get(what) not in given and (doubt := doubt_unit(stated.get(what), what))
    ]
    return notes + doubt_pixels(trajectory, hints)


def doubt_pixels(trajectory: Trajectory, hints: Hints) -> list[str]:
    """Return notes on lengths and velocities that are pixels, or look like them."""
    spec, length = trajectory.spec, trajectory.length_unit
    velocity = dict(zip(spec.channels, spec.units, strict=True)).get("u")
    if names_pixels(length) and too_close(spec.grid.dx, spec.grid.dy):
        return [f"{_closeness(trajectory)} (--unit and --length-unit with --override-units)"]
    stated = f"lengths {_in_unit(length)}, velocities {_in_unit(velocity)}"
    if names_pixels(length) or names_pixels(velocity):
        return [f"{stated}: {advise(trajectory.source)}"]
    steps, origin = (spec.grid.dx, spec.grid.dy), spec.grid.origin
    unstated = length in UNKNOWN and velocity in UNKNOWN
    declared = hints.length_unit or (hints.unit and length in UNKNOWN)
    scaled = hints.scale or hints.dx
    if (unstated and looks_like_pixels(steps, origin)) or (
        declared and not scaled and looks_like_pixels(steps, origin, least=4)
    ):
        otherwise = "give --unit and --length-unit" if unstated else "nothing is wrong"
        return [
            f"positions {steps[0]:g} x {steps[1]:g} apart look like pixels ({stated}): if so, "
            f"{advise({})}; else {otherwise}"
        ]
    return []


def _in_unit(unit: str | None) -> str:
    return "without a unit" if unit in UNKNOWN else f"in {unit}"


def advise(source: Mapping[str, Any]) -> str:
    """Name the options that convert pixels to metres, beside what the source facts state."""
    known = {fact: source[fact] for fact in (SCALE, DELAY) if source.get(fact) is not None}
    wanted = [text for fact, text in _WANTED.items() if fact not in known]
    header = f"; the header states {_amounts(known)}" if known else ""
    return f"give {' and '.join(wanted)}{header}" if wanted else f"leave pixel units out{header}"


def too_close(dx: float, dy: float) -> bool:
    """Return whether positions are closer than a pixel, so cannot be in pixels."""
    return min(dx, dy) < 0.99


def _closeness(trajectory: Trajectory) -> str:
    grid = trajectory.spec.grid
    return (
        f"positions are only {grid.dx:g} x {grid.dy:g} pixels apart: vectors of an image are never "
        "so close, so the unit seems to be wrong"
    )


def _units(trajectory: Trajectory, given: Mapping[str, Numbers]) -> dict[str, str | None]:
    """Return the units of x, y and the channels; a velocity in a length is per frame."""
    spec, length = trajectory.spec, trajectory.length_unit
    if length in UNKNOWN and SCALE in given:
        if (spec.grid.dx, spec.grid.dy) == (1, 1):
            raise SourceError(
                f"{trajectory.name}: the points are only counted; give their spacing in pixels "
                "(--dx 16 --dy 16 --length-unit px)"
            )
        length = "px"
    units: dict[str, str | None] = {"x": length, "y": length}
    for channel, unit in zip(spec.channels, spec.units, strict=True):
        found = parse_unit(unit, _PLAIN)
        if has_velocity_unit(channel) and unit in UNKNOWN and given:
            unit = "px/frame"
        elif has_velocity_unit(channel) and found is not None and found.is_like(1, 0):
            unit = f"{unit}/frame"
        units[channel] = unit
    return units


def _facts_for(unit: str | None) -> list[str]:
    """Return the facts that convert a unit to metres and seconds."""
    if parse_unit(unit, _PLAIN) is None:
        return []
    return [fact for name, fact in _NEEDS.items() if re.search(rf"\b{name}\b", unit or "")]


def _settled(
    trajectory: Trajectory, fact: str, given: Mapping[str, Numbers], hints: Hints, notes: list[str]
) -> Numbers | None:
    """Return the user's value, unless it contradicts the header's; else the header's."""
    value, ours = trajectory.source.get(fact), given.get(fact)
    if value is None:
        return ours
    along_x, along_y = value if isinstance(value, list | tuple) else (value, value)
    stated = (float(along_x), float(along_y))
    if ours is None:
        return stated
    if not all(math.isclose(a, b, rel_tol=_SAME) for a, b in zip(ours, stated, strict=True)):
        texts = [_amounts({fact: _plain(values)}) for values in (ours, stated)]
        replace_stated(trajectory, hints, notes, f"{_OPTIONS[fact]} {texts[0]}", texts[1])
    return ours


def _in_metres(what: str, unit: str | None, known: Mapping[str, Numbers]) -> Unit | None:
    """Return the unit in metres and seconds; None if it needs no calibration or another one."""
    facts = _facts_for(unit)
    scale, delay = (known.get(fact, (1.0, 1.0)) for fact in (SCALE, DELAY))
    if not facts or not set(facts) <= set(known):
        return None
    if scale[0] != scale[1] and what not in ("x", "y", "u", "v"):
        return None
    axis = int(what in ("y", "v"))
    more = {"px": Unit(1, 0, of_length=scale[axis]), "frame": Unit(0, 1, of_time=delay[axis])}
    return parse_unit(unit, more)


def _plain(values: Numbers) -> float | list[float]:
    return values[0] if values[0] == values[1] else list(values)


def _amounts(facts: Mapping[str, Any]) -> str:
    """Return a text such as ``50 um/px and a pulse delay of 27 ms``."""
    texts = []
    if (scale := facts.get(SCALE)) is not None:
        sizes = scale if isinstance(scale, list | tuple) else [scale]
        texts.append(" x ".join(f"{1e6 * size:.6g} um/px" for size in sizes))
    if (delay := facts.get(DELAY)) is not None:
        texts.append(f"a pulse delay of {1e3 * delay:.6g} ms")
    return " and ".join(texts)
