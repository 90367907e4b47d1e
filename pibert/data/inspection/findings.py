"""Findings, and those about how recordings are described: units and times.

What their fields show is judged in ``pibert.data.inspection.judge``.
"""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass

from pibert.data.inspection.survey import Survey
from pibert.data.units import find_conversion, parse_unit

_PIXELS = re.compile(r"\b(px|pix|pixels?)\b")
_UNKNOWN = (None, "1", "unknown")


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
    (dx, dy), velocity = facts.spacing, units["u"]
    whole = all(step >= 1 and step == int(step) for step in (dx, dy))
    pixels = any(_PIXELS.search(unit or "") for unit in (facts.length_unit, velocity))
    conversion = find_conversion(
        facts.length_unit, facts.time_unit, tuple(units), tuple(units.values())
    )
    if pixels or (whole and facts.length_unit in (None, "m")):
        yield Finding(
            "pixels",
            f"spacing {dx:g} x {dy:g} {facts.length_unit or '(no unit)'}, velocity in {velocity}",
            "lengths look like pixels or counted points, so derivatives and a Reynolds number mean "
            "nothing physical",
            "give the size of a step (--dx, --dy, --length-unit), and velocities in the same units",
            serious=pixels or facts.length_unit == "m" or velocity not in _UNKNOWN,
        )
    elif conversion is None:
        yield from _unknown_units(facts, velocity)
    elif not math.isclose(conversion.mismatch, 1, rel_tol=1e-6):
        yield Finding(
            "mixed units",
            f"coordinates in {facts.length_unit}, time in {facts.time_unit or 's'}, velocity in "
            f"{velocity}",
            f"velocity gradients of these numbers are wrong by a factor of "
            f"{1 / conversion.mismatch:g}",
            "convert the data: that brings all of them to metres and seconds",
            # Other kinds are converted before they are used.
            serious=facts.kind == "native",
        )


def _unknown_units(facts: Survey, velocity: str) -> Iterator[Finding]:
    """Units that cannot be brought together, unless they are those of a dimensionless flow."""
    length, speed = parse_unit(facts.length_unit), parse_unit(velocity)
    if length is not None and velocity in _UNKNOWN:
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
    elif length is not None and speed is not None and facts.time_unit in _UNKNOWN:
        yield Finding(
            "unit missing",
            f"time unit unknown while velocities are {velocity}",
            "rates of change have a meaning only if both fit together",
            "pass --time-unit s, or what it is",
            serious=False,
        )
    elif velocity in _UNKNOWN and facts.length_unit is None and facts.kind != "native":
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
            f"all {facts.pairs} pairs of neighbouring frames that were read are identical",
            "the flow is steady, or one frame was stored many times",
            "keep one frame (max_frames=1)",
        )
    elif facts.repeated:
        yield Finding(
            "repeated frames",
            f"{facts.repeated} of {facts.pairs} pairs of neighbouring frames are identical",
            "a camera or an export that repeats frames teaches a model to stand still",
            "take every second frame (stride=2) or leave the repeated ones out",
        )
