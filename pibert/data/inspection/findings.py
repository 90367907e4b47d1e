"""Findings, and those about how recordings are described: units and times.

What their fields show is judged in ``pibert.data.inspection.judge``.
"""

import math
import shlex
from collections.abc import Iterator
from dataclasses import dataclass

from pibert.data.inspection.survey import Survey
from pibert.data.sources.calibration import DELAY, SCALE, advise, too_close
from pibert.data.units import (
    QUANTITIES,
    UNKNOWN,
    Conversion,
    doubt_unit,
    looks_like_pixels,
    names_pixels,
    parse_unit,
)
from pibert.data.wording import counted

_VIEWS = 3.0
"""Widths of the view that fluid may cross from frame to frame; the rest is a wrong scale, or frames
that have nothing to do with each other."""


@dataclass(frozen=True)
class Finding:
    """Something that looks wrong, or that one should know before using the data."""

    topic: str
    """One or two words: ``rows flipped``."""
    seen: str
    why: str
    advice: str
    serious: bool = True
    """False for what may well be right."""


def judge_units(facts: Survey) -> Iterator[Finding]:
    units = {channel.name: channel.unit for channel in facts.channels}
    if not {"u", "v"} <= set(units):
        return
    velocity, conversion = units["u"], facts.conversion
    mistyped = list(_mistyped_units(facts, velocity))
    pixels = _judge_pixels(facts, velocity)
    if names_pixels(facts.length_unit) and too_close(*facts.spacing):
        yield Finding(
            "wrong units",
            f"spacing {facts.spacing[0]:g} x {facts.spacing[1]:g} px, velocity in {velocity}",
            "no vectors of an image are closer than a pixel, so these positions are not in pixels",
            "give the right units with --unit and --length-unit, and add --override-units",
        )
    elif mistyped:
        yield from mistyped
    elif pixels is not None:
        yield pixels
    elif conversion is None:
        yield from _unknown_units(facts, velocity)
    elif not math.isclose(conversion.mismatch, 1, rel_tol=1e-6):
        yield Finding(
            "mixed units",
            f"coordinates in {facts.length_unit}, time in {facts.time_unit or 's'}, velocity in "
            f"{velocity}",
            "velocity gradients of the numbers as they are stored would be wrong by a factor of "
            f"{1 / conversion.mismatch:g}; the divergence told here is right, in 1/s",
            "convert the data: that brings all of them to metres and seconds",
            # Other kinds are converted before they are used.
            serious=facts.kind == "native",
        )
    if conversion is not None:
        yield from _pace(facts, conversion)


def _judge_pixels(facts: Survey, velocity: str) -> Finding | None:
    """Lengths and velocities that are pixels, look like them, or count points."""
    (dx, dy), length = facts.spacing, facts.length_unit
    seen = f"spacing {dx:g} x {dy:g} {length or '(no unit)'}, velocity in {velocity}"
    why = "derivatives and a Reynolds number of pixels mean nothing physical"
    stated = names_pixels(length) or names_pixels(velocity)
    original = stated or facts.kind != "native"
    convert = f"pibert convert {shlex.quote(facts.path) if original else 'ORIGINAL'} OUT.h5"
    convert += "" if SCALE in facts.source else " --scale LENGTH/px"
    convert += "" if DELAY in facts.source else " --pulse-delay TIME"
    advice = f"{advise(facts.source)}: {convert}"
    if stated:
        return Finding("pixels", seen, why, advice)
    unit = parse_unit(facts.local.get("hints", {}).get("length_unit"))
    # Native files are in metres; the numbers of the source are those that tell.
    size = unit.factor if unit is not None and "length" in facts.local.get("units", {}) else 1.0
    steps, origin = ([value / size for value in pair] for pair in (facts.spacing, facts.origin))
    scaled = "calibration" in facts.local or facts.local.get("hints", {}).get("dx")
    if not scaled and (length in UNKNOWN or unit is not None or length == "m"):
        if looks_like_pixels(steps, origin, least=2 if length in UNKNOWN else 4):
            return Finding(
                "pixels",
                seen,
                f"positions are whole numbers, {steps[0]:g} x {steps[1]:g} apart, as those of "
                f"interrogation windows in an image are; {why}",
                f"if they are pixels, whatever unit was stated, {advice}",
                serious=length not in UNKNOWN or velocity not in UNKNOWN,
            )
    if (dx, dy) == (1, 1) and length in (*UNKNOWN, "m"):
        return Finding(
            "counted points",
            seen,
            "the points are counted, so derivatives and a Reynolds number mean nothing physical",
            "give the size of a step (--dx, --dy, --length-unit), and velocities in the same units",
            serious=length == "m" or velocity not in UNKNOWN,
        )
    return None


def _mistyped_units(facts: Survey, velocity: str) -> Iterator[Finding]:
    stated = {"length": facts.length_unit, "time": facts.time_unit, "velocity": velocity}
    for quantity, text in stated.items():
        doubt = doubt_unit(text, quantity)
        if doubt is not None:
            option = "--unit" if quantity == "velocity" else f"--{quantity}-unit"
            yield Finding(
                "unknown unit",
                doubt,
                "lengths, times and velocities cannot be brought together",
                f"convert the original file anew with {option} {QUANTITIES[quantity].usual[0]}, or "
                "what it is",
            )


def _pace(facts: Survey, conversion: Conversion) -> Iterator[Finding]:
    """How far fluid goes from frame to frame, beside the size of the view."""
    closed = all(side in ("wall", "slip", "periodic") for side in facts.sides)
    if facts.dt is None or facts.frames[1] == 1 or closed:
        return  # in a closed box it goes round and round
    (ny, nx), (dx, dy) = facts.shape, facts.spacing
    view = conversion.length * max(nx * dx, ny * dy)
    speed = conversion.velocity * max(c.usual for c in facts.channels if c.name in ("u", "v"))
    views = speed * conversion.time * facts.dt / view
    if views > _VIEWS:
        yield Finding(
            "scale",
            f"at {speed:.3g} m/s fluid crosses the view, {view:.3g} m wide, {views:.3g} times "
            "from one frame to the next",
            "the unit of velocities, lengths or times is wrong, or the frames are too far apart to "
            "tell the next from the last",
            "check --unit, --length-unit, --time-unit and --dt",
        )


def _unknown_units(facts: Survey, velocity: str) -> Iterator[Finding]:
    """Units that cannot be brought together, unless they are those of a dimensionless flow."""
    length, speed = parse_unit(facts.length_unit), parse_unit(velocity)
    if length is not None and velocity in UNKNOWN:
        yield Finding(
            "unit missing",
            f"velocity unit unknown while lengths are {facts.length_unit}",
            "velocity gradients have a meaning only if both fit together",
            "pass --unit m/s, or what it is",
            serious=length.factor != 1,
        )
    elif speed is not None and facts.length_unit is None:
        yield Finding(
            "unit missing",
            f"length unit unknown while velocities are {velocity}",
            "velocity gradients have a meaning only if both fit together",
            "pass --length-unit m, or what it is",
            serious=False,
        )
    elif length is not None and speed is not None and facts.time_unit in UNKNOWN:
        yield Finding(
            "unit missing",
            f"time unit unknown while velocities are {velocity}",
            "rates of change have a meaning only if both fit together",
            "pass --time-unit s, or what it is",
            serious=False,
        )
    elif velocity in UNKNOWN and facts.length_unit is None and facts.kind != "native":
        yield Finding(
            "no units",
            "coordinates and velocity have no unit",
            "they are taken as dimensionless",
            "if they are not, pass --unit and --length-unit",
            serious=False,
        )


def judge_time(facts: Survey) -> Iterator[Finding]:
    if facts.frames[1] == 1:
        return
    low, high = facts.steps
    if facts.frame_numbers:
        yield Finding(
            "no time step",
            "the frames have numbers, but no time",
            "rates of change and the speed of prediction have no unit",
            "give it (--dt)",
            serious=False,
        )
    elif high > 1.5:
        yield Finding(
            "time gaps",
            f"time steps between {low:.3g} and {high:.3g} times the usual one",
            "frames are missing, so one step of a model would stand for different times",
            "give the right step (--dt) if the times are wrong, else resample in time"
            if facts.dt is None
            else "nothing, if it was recorded in bursts: no sample reaches across a gap",
            serious=facts.dt is None,
        )
    elif high > 1.001 or low < 0.999:
        yield Finding(
            "uneven time",
            f"time steps between {low:.4g} and {high:.4g} times the usual one",
            "a model that steps forward needs equal steps",
            "give the step (--dt) if the differences are rounding, or resample in time",
            serious=low < 0.9 or high > 1.1,
        )
    if facts.pairs and facts.repeated == facts.pairs:
        yield Finding(
            "same frame",
            f"in all of {counted(facts.pairs, 'pair')} of neighbouring frames both are the same",
            "the flow is steady, or one frame was stored many times",
            "keep one frame (pibert convert --max-frames 1)",
        )
    elif facts.repeated:
        yield Finding(
            "repeated frames",
            f"{facts.repeated} of {facts.pairs} pairs of neighbouring frames are the same",
            "a camera or an export that repeats frames teaches a model to stand still",
            "take every second frame (pibert convert --stride 2) or leave the repeated ones out",
        )
