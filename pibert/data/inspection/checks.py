"""Checks of recordings: what looks wrong, why, and what to do about it.

``inspect`` surveys recordings and checks the facts; nothing is changed. The limits were set on
simulated wakes and vortices and on measured jets (tests/data/test_inspection.py): what these
contain is not called wrong.
"""

import math
import shlex
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from pibert.data.inspection.survey import Survey, survey
from pibert.data.provenance import predicted_by
from pibert.data.readers.recordings import Recordings
from pibert.data.readers.shared.calibration import DELAY, SCALE, advise, too_close
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
from pibert.physics import find_family

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


_minor = partial(Finding, serious=False)


def check_units(facts: Survey) -> Iterator[Finding]:
    units = {channel.name: channel.unit for channel in facts.channels}
    if not {"u", "v"} <= set(units):
        return
    velocity, conversion = units["u"], facts.conversion
    mistyped = list(_mistyped_units(facts, velocity))
    pixels = _check_pixels(facts, velocity)
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
            f"{1 / conversion.mismatch:g}; the divergence reported here is right, in 1/s",
            "convert the data: that brings all of them to metres and seconds",
            # Other kinds are converted before they are used.
            serious=facts.kind == "native",
        )
    if conversion is not None:
        yield from _check_time_step(facts, conversion)


def _check_pixels(facts: Survey, velocity: str) -> Finding | None:
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
    # Native files are in metres; the numbers of the source decide.
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


def _check_time_step(facts: Survey, conversion: Conversion) -> Iterator[Finding]:
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

    def missing(what: str, known: str, option: str, serious: bool = False) -> Finding:
        rates = "rates of change" if what == "time" else "velocity gradients"
        return Finding(
            "unit missing",
            f"{what} unit unknown while {known}",
            f"{rates} have a meaning only if both fit together",
            f"pass {option}, or what it is",
            serious,
        )

    if length is not None and velocity in UNKNOWN:
        known = f"lengths are {facts.length_unit}"
        yield missing("velocity", known, "--unit m/s", length.factor != 1)
    elif speed is not None and facts.length_unit is None:
        yield missing("length", f"velocities are {velocity}", "--length-unit m")
    elif length is not None and speed is not None and facts.time_unit in UNKNOWN:
        yield missing("time", f"velocities are {velocity}", "--time-unit s")
    elif velocity in UNKNOWN and facts.length_unit is None and facts.kind != "native":
        yield _minor(
            "no units",
            "coordinates and velocity have no unit",
            "they are taken as dimensionless",
            "if they are not, pass --unit and --length-unit",
        )


def check_time(facts: Survey) -> Iterator[Finding]:
    if facts.frames[1] == 1:
        return
    low, high = facts.steps
    if facts.frame_numbers:
        yield _minor(
            "no time step",
            "the frames have numbers, but no time",
            "rates of change and the speed of prediction have no unit",
            "give it (--dt)",
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


_FLIPPED = 1.12
"""Cancellation above which the terms of the divergence grow together; noise has 1."""
_EXCHANGED = 0.8
"""Exchanging the axes must bring the cancellation below this share of what it was."""
_OUTLIERS = 0.01
_ZEROS = 3e-4


@dataclass(frozen=True)
class Inspection:
    """Facts and findings."""

    facts: Survey
    problems: tuple[Finding, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return self.facts.to_dict() | {"problems": [asdict(problem) for problem in self.problems]}


def inspect(recordings: Recordings) -> Inspection:
    """Survey a few trajectories and frames of any recordings, and report what looks wrong."""
    facts = survey(recordings)
    # Where no value is known there is nothing else to say of the fields.
    checks = (_origin, _points) if facts.is_empty else _CHECKS
    problems = [finding for check in checks for finding in check(facts)]
    return Inspection(facts, tuple(sorted(problems, key=lambda problem: not problem.serious)))


def _origin(facts: Survey) -> Iterator[Finding]:
    made = predicted_by(facts.source)
    if made is not None:
        yield _minor(
            "predicted",
            made,
            "these fields are not ground truth: they contain the errors of that model",
            "do not train, calibrate or score on them as if they were measured or simulated",
        )


def _axes(facts: Survey) -> Iterator[Finding]:
    divergence = facts.divergence
    stated = None if facts.family is None else find_family(facts.family)
    if divergence is None or (stated is not None and not stated.is_solenoidal):
        return
    now, exchanged = divergence.as_is, divergence.exchanged
    turned = min(exchanged, divergence.both, key=lambda pair: pair.cancellation)
    level = f"the divergence is {now.level:.2f} of the velocity gradient"
    # In incompressible flow du/dx and dv/dy are the smaller half of the gradient.
    if (
        now.share > 0.65
        and turned.share > 0.15
        and now.level > 0.2
        and turned.cancellation < _EXCHANGED * now.cancellation
    ):
        more = "" if turned is exchanged else " and the sign of v turned"
        yield Finding(
            "axes exchanged",
            f"{level}, but {turned.level:.2f} if x and y were exchanged{more}",
            "du/dx and dv/dy should cancel in a flow that is nearly incompressible",
            "read it with the axes in the other order (--axes, such as tcxy for tcyx) or with the "
            "components exchanged (--channels u=...,v=...); compare the picture with what you know",
        )
    elif now.cancellation > _FLIPPED and divergence.flipped.level < 0.8 * now.level:
        yield Finding(
            "rows flipped",
            f"{level}, but {divergence.flipped.level:.2f} if v had the other sign",
            "du/dx and dv/dy grow together, which looks like rows stored from top to bottom (as in "
            "images) or v counted downward",
            "if the picture stands upside down pass --flip y, which turns the rows, else --flip v, "
            "which turns the sign of v; flows that expand or mix through the plane may look like "
            "this too",
        )
    elif divergence.stretch is not None and not 0.8 < divergence.stretch < 1.25:
        yield _minor(
            "spacing",
            f"{level}, and would vanish if dy were {divergence.stretch:.2f} times as large",
            "dx and dy, or the units of u and v, do not seem to fit each other",
            "check both and give --dx and --dy; an axisymmetric flow may look like this too",
        )
    elif now.level > 0.55:
        yield _minor(
            "divergence",
            f"{level}; noise has 0.71",
            "plane incompressible flow has almost none, a plane cut through turbulence about 0.4",
            "look for noise, wrong spacing (dx, dy) or components in different units",
        )


def _values(facts: Survey) -> Iterator[Finding]:
    for channel in facts.channels:
        if channel.fill is not None:
            yield Finding(
                "fill value",
                f"{channel.name}: {channel.fill:g} stands far above all other values",
                "it looks like a mark for missing values (or a single wild one)",
                "set such points to NaN in the source: they become missing points",
            )
        elif max(abs(channel.low), abs(channel.high)) > 100 * channel.usual > 0:
            yield Finding(
                "huge values",
                f"{channel.name}: from {channel.low:g} to {channel.high:g}, while 99 of 100 lie "
                f"within {channel.usual:g}",
                "a few values would rule every statistic",
                "look for outliers, fill values or a simulation that diverged",
            )
        if channel.low == channel.high or channel.std <= 1e-7 * abs(channel.mean):
            yield Finding(
                "constant channel",
                f"{channel.name} is {channel.mean:g} everywhere that was looked at",
                "it cannot be standardised and carries no information",
                "leave it out, or read another column as this channel",
            )
    if facts.frames_read and all(c.half and c.low < c.high for c in facts.channels):
        yield _minor(
            "16-bit values",
            "every value is one of a 16-bit float: 3 to 4 digits",
            "derivatives amplify the rounding",
            "use the original precision if you have it",
        )


def _points(facts: Survey) -> Iterator[Finding]:
    if facts.not_finite:
        yield Finding(
            "not finite",
            f"NaN or infinite: {counted(facts.not_finite, 'value')} in "
            f"{counted(facts.frames_read, 'frame')}",
            "they are not marked as missing",
            "converting marks these points as missing, frame by frame",
            serious=facts.is_empty,
        )
    gridding = facts.local.get("gridding") or {}
    scattered = gridding.get("method") == "linear in triangles"
    if facts.missing_share > 0.2:
        yield Finding(
            "missing points",
            f"{facts.missing_share:.0%} of the points outside bodies are missing",
            "bodies, and what lies outside a domain that is not a rectangle, count as missing"
            if scattered
            else "there is nothing to look at"
            if facts.is_empty
            else "that is more than usual in PIV (below 5 to 10 %)",
            "compare the picture with the geometry"
            if scattered
            else "check that the mask or the flag is read the right way round",
            serious=not scattered,
        )
    if facts.filled_share:
        yield _minor(
            "filled vectors",
            f"{facts.filled_share:.2%} of the vectors outside bodies were not measured: a program "
            "or a model filled them",
            "they serve as input of a model, but not as targets or ground truth",
            "nothing: training, scores and calibration leave them out",
        )
    yield from _zeros(facts)
    if facts.outliers is not None and facts.outliers > _OUTLIERS:
        yield Finding(
            "outliers",
            f"{facts.outliers:.1%} of the vectors are far from the median of their neighbours",
            "spurious vectors, or structures of one or two cells",
            "mark them as not valid before training; see the picture",
            serious=facts.outliers > 4 * _OUTLIERS,
        )
    if gridding.get("method", "none") != "none":
        before, after = (
            " x ".join(map(str, size)) if isinstance(size, list | tuple) else str(size)
            for size in (gridding.get("from"), gridding.get("to"))
        )
        yield _minor(
            "resampled",
            f"the points were not uniform: brought from {before} to {after} points "
            f"({gridding['method']})",
            "interpolation smooths, and the divergence of what it gives is not that of the source",
            "give the shape you want (--shape), fine enough for the smallest structures",
        )
    if facts.differing:
        some = ", ".join(facts.differing[:4])
        yield _minor(
            "different grids",
            f"{len(facts.differing)} of {facts.opened} trajectories have other channels or another "
            f"grid than the first: {some}",
            "a model is trained on one grid",
            "convert with one size (--size) and one choice of channels (--keep)",
        )


def _zeros(facts: Survey) -> Iterator[Finding]:
    """Exact zeros beside moving fluid: bodies and missing vectors that count as measured.

    An OpenFOAM case has no such points: what has no cell is not fluid, and its zeros are fluid at
    rest.
    """
    if "openfoam" in (facts.kind, facts.local.get("kind")):
        return
    convert = f"pibert convert {shlex.quote(facts.path)} OUT.h5"
    again = "with the options that you gave here"
    share = facts.zeros_static / (facts.shape[0] * facts.shape[1])
    if share > _ZEROS:
        when = "the only frame" if facts.frames[1] == 1 else "all frames that were read"
        yield Finding(
            "zero vectors",
            f"the velocity is exactly 0 at {counted(facts.zeros_static, 'point')} ({share:.2%} of "
            f"the grid) in {when}",
            "a body or missing vectors, stored as zeros, count as measured fluid",
            f"{convert} --body zeros if they are a solid body, or --mask zeros if vectors are "
            f"missing, {again}",
        )
    if facts.zeros_varying > _ZEROS:
        yield Finding(
            "zero vectors",
            f"{facts.zeros_varying:.2%} of the vectors are exactly 0, at points that move in other "
            "frames",
            "missing vectors, or a moving body, stored as zeros, count as measured fluid",
            f"{convert} --mask zeros, {again}",
        )


_CHECKS: tuple[Callable[[Survey], Iterator[Finding]], ...]
_CHECKS = (_origin, _axes, check_units, check_time, _values, _points)
