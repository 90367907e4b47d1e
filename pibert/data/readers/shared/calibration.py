"""Pixels into metres: the calibration of a PIV recording.

Positions in pixels times the scale (metres per pixel) are metres; displacements in pixels times the
scale over the pulse delay, the time between the two images of a pair, are m/s. The pulse delay is
not the time between vector fields (``Hints.dt``).

Readers put what a header states into the source facts ``metres_per_pixel`` (one number, or those
along x and y) and ``seconds_between_images``; that is used where the user states nothing. What was
done is in ``local["calibration"]``.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from pibert.data.readers.recordings import Hints, SourceError
from pibert.data.units import (
    UNKNOWN,
    VELOCITY,
    Unit,
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
_NEEDS = {"px": SCALE, "frame": DELAY}
"""What turns these parts of a unit into lengths and times."""
_PLAIN = {"px": Unit(1, 0), "frame": Unit(0, 1)}
_SAME = 1e-3
"""Relative: scales and delays that differ by less are the same."""

Numbers = tuple[float, float]
"""Along x and y."""


def calibrate(trajectory: Trajectory, hints: Hints, notes: list[str]) -> Trajectory:
    """The trajectory in metres and m/s where it is in pixels and its calibration is known.

    With ``scale`` and ``pulse_delay`` in the hints, lengths and velocities of unknown unit are
    pixels and displacements in pixels. What was done is added to ``notes``.
    """
    given: dict[str, Numbers] = {}
    if hints.scale is not None:
        given[SCALE] = (parse_scale(hints.scale),) * 2
    if hints.pulse_delay is not None:
        given[DELAY] = (parse_duration(hints.pulse_delay),) * 2
    before = trajectory.local.get("hints", {})
    stated_units = (hints.unit, hints.length_unit, before.get("unit"), before.get("length_unit"))
    if not given and any(map(names_pixels, stated_units)):
        return trajectory  # the user names pixels, now or when the file was made
    channels = trajectory.spec.channels
    units = _units(trajectory, given)
    needed = {fact for what in ("x", "y", *VELOCITY) for fact in _facts_for(units.get(what))}
    if idle := [_OPTIONS[fact] for fact in given if fact not in needed]:
        stated = ", ".join(dict.fromkeys(unit for unit in units.values() if unit))
        raise SourceError(
            f"{trajectory.name}: {' and '.join(idle)} was given, but the data state {stated}; "
            "leave the option out, or if they are pixels in truth add --length-unit px "
            "--unit px/frame --override-units"
        )
    known = {fact: _settled(trajectory, fact, given, hints, notes) for fact in sorted(needed)}
    missing = [_OPTIONS[fact] for fact, value in known.items() if value is None]
    if missing and given:
        raise SourceError(
            f"{trajectory.name}: {' and '.join(_OPTIONS[fact] for fact in given)} was given "
            f"without {' and '.join(missing)}, but velocities are taken as {units.get('u')}; give "
            "both, or the unit that velocities have if they are calibrated already (--unit)"
        )
    if missing or not known:
        return trajectory
    grid = trajectory.spec.grid
    if names_pixels(units["x"]) and too_close(grid.dx, grid.dy) and not hints.override_units:
        if names_pixels(trajectory.length_unit):
            raise SourceError(
                f"{trajectory.name}: {_closeness(trajectory)}; give the right ones (--unit, "
                "--length-unit) with --override-units"
            )
        raise SourceError(
            f"{trajectory.name}: --scale takes positions as pixels, but these are only "
            f"{_spacing(trajectory)} apart, closer than any vectors of an image; if they are "
            "calibrated already, give their units (--unit, --length-unit) instead of --scale, if "
            "they are pixels in truth add --override-units"
        )
    found = {what: unit for what in units if (unit := _in_metres(what, units[what], known))}
    factors = {what: found[what].factor if what in found else 1.0 for what in (*units, "u")}
    scaled = rescale(
        trajectory,
        length=(factors["x"], factors["y"]),
        channels=tuple(factors[channel] for channel in channels),
        velocity=factors["u"],
        units=tuple(found[c].si_name if c in found else units[c] or "1" for c in channels),
    )
    record = {fact: _plain(value) for fact, value in known.items() if value is not None}
    origin = {fact: "user" if fact in given else "header" for fact in record}
    changes = {what: f"{units[what]} -> {unit.si_name}" for what, unit in found.items()}
    amounts = ", ".join(f"{_amounts({fact: record[fact]})} ({origin[fact]})" for fact in record)
    notes.append(f"calibrated with {amounts}: {', '.join(dict.fromkeys(changes.values()))}")
    delay, clock, dt = known.get(DELAY), parse_unit(trajectory.time_unit or "s"), trajectory.spec.dt
    if delay and dt is not None and clock and delay[0] > 1.01 * dt * clock.of_time:
        notes.append(
            f"{_amounts({DELAY: delay[0]})} is longer than the time between frames, "
            f"{_amount(dt * clock.of_time, 's')}: --pulse-delay is the time between the two images "
            "of a pair, --dt that between vector fields"
        )
    return replace(
        scaled,
        length_unit=found["x"].si_name if "x" in found else trajectory.length_unit,
        local={**trajectory.local, "calibration": {**record, "from": origin, "units": changes}},
    )


def doubt_pixels(trajectory: Trajectory, hints: Hints) -> list[str]:
    """Notes on lengths and velocities that are pixels, or look like them."""
    spec, length = trajectory.spec, trajectory.length_unit
    units = dict(zip(spec.channels, spec.units, strict=True))
    if names_pixels(length) and too_close(spec.grid.dx, spec.grid.dy):
        return [f"{_closeness(trajectory)} (--unit and --length-unit with --override-units)"]
    if names_pixels(length) or names_pixels(units.get("u")):
        where = f"lengths {_in_unit(length)}, velocities {_in_unit(units.get('u'))}"
        return [f"{where}: {advise(trajectory.source)}"]
    steps, origin = (spec.grid.dx, spec.grid.dy), spec.grid.origin
    if length in UNKNOWN and units.get("u") in UNKNOWN and looks_like_pixels(steps, origin):
        return [
            f"positions are whole numbers without a unit, {steps[0]:g} x {steps[1]:g} "
            f"apart: if they are pixels, {advise({})}; else give --unit and --length-unit"
        ]
    declared = hints.length_unit or (hints.unit and length in UNKNOWN)
    if declared and not (hints.scale or hints.dx) and looks_like_pixels(steps, origin, least=4):
        return [
            f"positions {steps[0]:g} x {steps[1]:g} apart look like pixels, but lengths were "
            f"stated {_in_unit(length)}, velocities {_in_unit(units.get('u'))}; if they are "
            f"pixels, {advise({})} instead"
        ]
    return []


def _in_unit(unit: str | None) -> str:
    return "without a unit" if unit in UNKNOWN else f"in {unit}"


def advise(source: Mapping[str, Any]) -> str:
    """What to give so that pixels become metres, beside what the source facts state."""
    known = {fact: source[fact] for fact in (SCALE, DELAY) if source.get(fact) is not None}
    wanted = [text for fact, text in _WANTED.items() if fact not in known]
    header = f"; the header states {_amounts(known)}" if known else ""
    return f"give {' and '.join(wanted)}{header}" if wanted else f"leave pixel units out{header}"


def too_close(dx: float, dy: float) -> bool:
    """Whether positions are closer than a pixel, so that they cannot be in pixels."""
    return min(dx, dy) < 0.99


def _closeness(trajectory: Trajectory) -> str:
    return (
        f"positions are stated to be in {trajectory.length_unit}, but {_spacing(trajectory)} of "
        "them apart: no vectors are so close, so the units of the data seem to be wrong"
    )


def _spacing(trajectory: Trajectory) -> str:
    return f"{trajectory.spec.grid.dx:g} x {trajectory.spec.grid.dy:g}"


def _units(trajectory: Trajectory, given: Mapping[str, Numbers]) -> dict[str, str | None]:
    """Units of x, y and the channels; a velocity in a length is a displacement per frame."""
    spec, length = trajectory.spec, trajectory.length_unit
    if length in UNKNOWN and SCALE in given:
        if (spec.grid.dx, spec.grid.dy) == (1, 1):
            raise SourceError(
                f"{trajectory.name}: --scale needs positions in pixels, but the points are only "
                "counted; give their spacing in pixels (--dx 16 --dy 16 --length-unit px)"
            )
        length = "px"
    units: dict[str, str | None] = {"x": length, "y": length}
    for channel, unit in zip(spec.channels, spec.units, strict=True):
        found = parse_unit(unit, _PLAIN)
        if channel in VELOCITY and unit in UNKNOWN and given:
            unit = "px/frame"
        elif channel in VELOCITY and found is not None and found.is_like(1, 0):
            unit = f"{unit}/frame"
        units[channel] = unit
    return units


def _facts_for(unit: str | None) -> list[str]:
    """The facts that turn a unit into metres and seconds; none where it needs none."""
    if parse_unit(unit, _PLAIN) is None:
        return []
    return [fact for name, fact in _NEEDS.items() if re.search(rf"\b{name}\b", unit or "")]


def _settled(
    trajectory: Trajectory, fact: str, given: Mapping[str, Numbers], hints: Hints, notes: list[str]
) -> Numbers | None:
    """The user's value, unless it contradicts the header's; the header's where there is none."""
    value = trajectory.source.get(fact)
    if value is None:
        return given.get(fact)
    along_x, along_y = value if isinstance(value, list | tuple) else (value, value)
    stated = (float(along_x), float(along_y))
    mine = given.get(fact)
    if mine is None or all(map(partial(math.isclose, rel_tol=_SAME), mine, stated)):
        return mine or stated
    ours, theirs = (_amounts({fact: _plain(values)}) for values in (mine, stated))
    conflict = f"{_OPTIONS[fact]}: {ours} was given, but the header states {theirs}"
    if not hints.override_units:
        raise SourceError(
            f"{trajectory.name}: {conflict}; leave the option out, or add --override-units if the "
            "header is wrong"
        )
    notes.append(f"{conflict}; it was replaced")
    return mine


def _in_metres(what: str, unit: str | None, known: Mapping[str, Numbers | None]) -> Unit | None:
    """The unit in metres and seconds; None where it needs no calibration, or another one."""
    facts = _facts_for(unit)
    if not facts or any(known.get(fact) is None for fact in facts):
        return None
    values = {fact: value for fact, value in known.items() if value is not None}
    scale, delay = (values.get(fact, (1.0, 1.0)) for fact in (SCALE, DELAY))
    if scale[0] != scale[1] and what not in ("x", "y", "u", "v"):
        return None
    axis = int(what in ("y", "v"))
    more = {"px": Unit(1, 0, of_length=scale[axis]), "frame": Unit(0, 1, of_time=delay[axis])}
    return parse_unit(unit, more)


def _plain(values: Numbers) -> float | list[float]:
    return values[0] if values[0] == values[1] else list(values)


def _amounts(facts: Mapping[str, Any]) -> str:
    """Such as ``50 um/px and a pulse delay of 27 ms``."""
    texts = []
    if (scale := facts.get(SCALE)) is not None:
        sizes = scale if isinstance(scale, list | tuple) else [scale]
        texts.append(" x ".join(f"{_amount(size, 'm')}/px" for size in sizes))
    if (delay := facts.get(DELAY)) is not None:
        texts.append(f"a pulse delay of {_amount(float(delay), 's')}")
    return " and ".join(texts)


def _amount(value: float, unit: str) -> str:
    prefix, size = next(
        ((p, size) for p, size in (("", 1.0), ("m", 1e-3), ("u", 1e-6)) if value >= size),
        ("n", 1e-9),
    )
    return f"{value / size:.6g} {prefix}{unit}"
