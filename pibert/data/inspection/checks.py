"""Checks of recordings: each finding states what was seen, why it matters and what to do.

``inspect`` surveys recordings and checks the facts; it changes nothing. The limits were set on
simulated wakes and vortices and on measured jets (tests/data/test_inspection.py), which pass all
checks.
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
"""Widths of the view that fluid may cross between two frames; more is a wrong scale."""
_FLIPPED = 1.12
"""Cancellation above which the terms of the divergence grow together; noise has 1."""
_EXCHANGED = 0.8
"""Exchanging the axes must reduce the cancellation to this share."""
_OUTLIERS = 0.01
_ZEROS = 3e-4


@dataclass(frozen=True)
class Finding:
    """A problem, or a fact to know before using the data."""

    topic: str
    """One or two words: ``rows flipped``."""
    seen: str
    why: str
    advice: str
    serious: bool = True
    """False for what may well be right."""


_minor = partial(Finding, serious=False)


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
    # Without a known value there are no fields to check.
    checks = (_origin, _points) if facts.is_empty else _CHECKS
    problems = [finding for check in checks for finding in check(facts)]
    return Inspection(facts, tuple(sorted(problems, key=lambda problem: not problem.serious)))


def _origin(facts: Survey) -> Iterator[Finding]:
    predicted = predicted_by(facts.source)
    if predicted is not None:
        yield _minor(
            "predicted",
            predicted,
            "these fields contain the errors of that model and are not ground truth",
            "do not train, calibrate or score on them as if they were measured or simulated",
        )


def _units(facts: Survey) -> Iterator[Finding]:
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
            "vectors of an image are at least a pixel apart, so these positions are not in pixels",
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
            "velocity gradients of the stored numbers would be wrong by a factor of "
            f"{1 / conversion.mismatch:g}; the divergence reported here is right, in 1/s",
            "convert the data to metres and seconds (pibert convert)",
            serious=facts.kind == "native",  # other kinds are converted before use
        )
    if conversion is not None:
        yield from _check_time_step(facts, conversion)


def _check_pixels(facts: Survey, velocity: str) -> Finding | None:
    """Lengths and velocities that are pixels, look like them, or count points."""
    (dx, dy), length = facts.spacing, facts.length_unit
    seen = f"spacing {dx:g} x {dy:g} {length or '(no unit)'}, velocity in {velocity}"
    why = "derivatives and a Reynolds number of pixels have no physical meaning"
    stated = names_pixels(length) or names_pixels(velocity)
    original = stated or facts.kind != "native"
    convert = f"pibert convert {shlex.quote(facts.path) if original else 'ORIGINAL'} OUT.h5"
    convert += "" if SCALE in facts.source else " --scale LENGTH/px"
    convert += "" if DELAY in facts.source else " --pulse-delay TIME"
    advice = f"{advise(facts.source)}: {convert}"
    if stated:
        return Finding("pixels", seen, why, advice)
    hints = facts.local.get("hints", {})
    unit = parse_unit(hints.get("length_unit"))
    # Native files are in metres; the numbers of the source decide.
    size = unit.factor if unit is not None and "length" in facts.local.get("units", {}) else 1.0
    steps, origin = ([value / size for value in pair] for pair in (facts.spacing, facts.origin))
    scaled = "calibration" in facts.local or hints.get("dx")
    if not scaled and (length in UNKNOWN or unit is not None or length == "m"):
        if looks_like_pixels(steps, origin, least=2 if length in UNKNOWN else 4):
            return Finding(
                "pixels",
                seen,
                f"positions are whole numbers, {steps[0]:g} x {steps[1]:g} apart, like "
                f"interrogation windows of an image; {why}",
                f"if they are pixels, {advice}",
                serious=length not in UNKNOWN or velocity not in UNKNOWN,
            )
    if (dx, dy) == (1, 1) and length in (*UNKNOWN, "m"):
        return Finding(
            "counted points",
            seen,
            "the coordinates count points: derivatives and a Reynolds number have no meaning",
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
                "lengths, times and velocities cannot be brought to one system",
                f"convert the original file with the right unit: {option} "
                f"{QUANTITIES[quantity].usual[0]}, for instance",
            )


def _check_time_step(facts: Survey, conversion: Conversion) -> Iterator[Finding]:
    """The distance that fluid moves from frame to frame, compared with the size of the view."""
    closed = all(side in ("wall", "slip", "periodic") for side in facts.sides)
    if facts.dt is None or facts.frames[1] == 1 or closed:
        return  # fluid circulates in a closed box
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
            "predict one from another",
            "check --unit, --length-unit, --time-unit and --dt",
        )


def _unknown_units(facts: Survey, velocity: str) -> Iterator[Finding]:
    """Units that cannot be brought together, unless they are those of a dimensionless flow."""
    length, speed = parse_unit(facts.length_unit), parse_unit(velocity)

    def missing(what: str, known: str, option: str, serious: bool = False) -> Finding:
        return Finding(
            "unit missing",
            f"{what} unit unknown while {known}",
            "derivatives have a meaning only if both fit together",
            f"give it, such as {option}",
            serious,
        )

    if length is not None and velocity in UNKNOWN:
        known = f"lengths are {facts.length_unit}"
        yield missing("velocity", known, "--unit m/s", length.factor != 1)
    elif speed is not None and facts.length_unit is None:
        yield missing("length", f"velocities are {velocity}", "--length-unit m")
    elif length is not None and speed is not None and facts.time_unit in UNKNOWN:
        option = "--dt 0.01" if facts.frame_numbers else "--time-unit s"
        yield missing("time", f"velocities are {velocity}", option)
    elif velocity in UNKNOWN and facts.length_unit is None and facts.kind != "native":
        yield _minor(
            "no units",
            "coordinates and velocity have no unit",
            "they are treated as dimensionless",
            "if they are not, pass --unit and --length-unit",
        )


def _time(facts: Survey) -> Iterator[Finding]:
    if facts.frames[1] == 1:
        return
    low, high = facts.steps
    steps = f"time steps between {low:.4g} and {high:.4g} times the usual one"
    if facts.frame_numbers:
        yield _minor(
            "no time step",
            "the frames have numbers, but no time",
            "rates of change and predicted speeds have no unit",
            "give the time step (--dt)",
        )
    elif high > 1.5:
        yield Finding(
            "time gaps",
            steps,
            "frames are missing, so one step of a model would cover different times",
            "give the right step (--dt) if the times are wrong, else resample in time"
            if facts.dt is None
            else "nothing, if it was recorded in bursts: no sample crosses a gap",
            serious=facts.dt is None,
        )
    elif high > 1.001 or low < 0.999:
        yield Finding(
            "uneven time",
            steps,
            "a model predicts at equal steps",
            "give the step (--dt) if the differences are rounding, or resample in time",
            serious=low < 0.9 or high > 1.1,
        )
    if facts.pairs and facts.repeated == facts.pairs:
        yield Finding(
            "same frame",
            f"all of {counted(facts.pairs, 'pair')} of neighbouring frames are identical",
            "the flow is steady, or one frame was stored many times",
            "keep one frame (pibert convert --max-frames 1)",
        )
    elif facts.repeated:
        yield Finding(
            "repeated frames",
            f"{facts.repeated} of {facts.pairs} pairs of neighbouring frames are identical",
            "a camera or an export that repeats frames teaches a model to stand still",
            "use every second frame (pibert convert --stride 2) or remove the repeated ones",
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
        more = "" if turned is exchanged else " and v had the other sign"
        yield Finding(
            "axes exchanged",
            f"{level}, but {turned.level:.2f} if x and y were exchanged{more}",
            "du/dx and dv/dy should cancel in a nearly incompressible flow",
            "read it with the axes in the other order (--axes, such as tcxy for tcyx) or with the "
            "components exchanged (--channels u=...,v=...); check the picture",
        )
    elif now.cancellation > _FLIPPED and divergence.flipped.level < 0.8 * now.level:
        yield Finding(
            "rows flipped",
            f"{level}, but {divergence.flipped.level:.2f} if v had the other sign",
            "du/dx and dv/dy grow together: rows may be stored from top to bottom, as in images, "
            "or v may point down; flows that expand can look like this too",
            "if the picture is upside down pass --flip y, which reverses the rows, else --flip v, "
            "which changes the sign of v",
        )
    elif divergence.stretch is not None and not 0.8 < divergence.stretch < 1.25:
        yield _minor(
            "spacing",
            f"{level}, and would vanish if dy were {divergence.stretch:.2f} times as large",
            "dx and dy, or the units of u and v, do not seem to fit each other; an axisymmetric "
            "flow can look like this too",
            "check both and give --dx and --dy",
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
                f"{channel.name}: {channel.fill:g} is far from all other values",
                "it looks like a code for missing values, or a single outlier",
                "set such points to NaN in the source: they become missing points",
            )
        elif max(abs(channel.low), abs(channel.high)) > 100 * channel.usual > 0:
            yield Finding(
                "huge values",
                f"{channel.name}: from {channel.low:g} to {channel.high:g}, while 99 of 100 lie "
                f"within {channel.usual:g}",
                "a few values would dominate every statistic",
                "look for outliers, fill values or a simulation that diverged",
            )
        if channel.low == channel.high or channel.std <= 1e-7 * abs(channel.mean):
            yield Finding(
                "constant channel",
                f"{channel.name} is {channel.mean:g} in all frames read",
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
            "convert the data: such points become missing, frame by frame",
            serious=facts.is_empty,
        )
    gridding = facts.local.get("gridding") or {}
    scattered = gridding.get("method") == "linear in triangles"
    if facts.missing_share > 0.2:
        yield Finding(
            "missing points",
            f"{facts.missing_share:.0%} of the points outside bodies are missing",
            "bodies and points outside a domain that is not a rectangle count as missing"
            if scattered
            else "PIV usually has below 5 to 10 %",
            "compare the picture with the geometry, or check that the mask or flag is not inverted",
            serious=not scattered,
        )
    if facts.filled_share:
        yield _minor(
            "filled vectors",
            f"{facts.filled_share:.2%} of the vectors outside bodies were filled by a program or a "
            "model, not measured",
            "they are model input, but not targets or ground truth",
            "nothing: training, scores and calibration exclude them",
        )
    yield from _zeros(facts)
    for axis, side, kept in (("x", facts.sides[0], "columns"), ("y", facts.sides[2], "rows")):
        if axis in facts.repeated_ends and side == "periodic":
            yield Finding(
                "repeated end",
                f"the last {kept[:-1]} equals the first, and {axis} is periodic",
                "a periodic grid leaves out the end, which repeats the start: derivatives and the "
                "length of the domain are wrong",
                f"leave it out: pibert convert {shlex.quote(facts.path)} OUT.h5 --crop {kept}=:-1, "
                "with the options you gave here",
            )
    if facts.outliers is not None and facts.outliers > _OUTLIERS:
        yield Finding(
            "outliers",
            f"{facts.outliers:.1%} of the vectors are far from the median of their neighbours",
            "they are spurious vectors, or structures of one or two cells",
            "see the picture; replace them: "
            f"pibert fill {shlex.quote(facts.path)} --out OUT.h5, with the options you gave here",
            serious=facts.outliers > 4 * _OUTLIERS,
        )
    if gridding.get("method", "none") != "none":
        yield _minor(
            "resampled",
            f"the points were not uniform: {gridding.get('from')} points became "
            f"{gridding.get('to')} ({gridding['method']})",
            "interpolation smooths, and changes the divergence",
            "give a shape (--shape) that resolves the smallest structures",
        )
    if facts.differing:
        yield _minor(
            "different grids",
            f"{len(facts.differing)} of {facts.opened} trajectories differ in channels or grid "
            f"from the first: {', '.join(facts.differing[:4])}",
            "a model is trained on one grid",
            "convert with one size (--size) and one choice of channels (--keep)",
        )


def _zeros(facts: Survey) -> Iterator[Finding]:
    """Exact zeros beside moving fluid: bodies and missing vectors that count as measured."""
    if "openfoam" in (facts.kind, facts.local.get("kind")):
        return  # every cell is fluid, and its zeros are fluid at rest
    convert = f"pibert convert {shlex.quote(facts.path)} OUT.h5"
    again = "with the options that you gave here"
    share = facts.zeros_static / (facts.shape[0] * facts.shape[1])
    if share > _ZEROS:
        yield Finding(
            "zero vectors",
            f"the velocity is exactly 0 at {counted(facts.zeros_static, 'point')} ({share:.2%} of "
            "the grid) in all frames read",
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
_CHECKS = (_origin, _axes, _units, _time, _values, _points)
