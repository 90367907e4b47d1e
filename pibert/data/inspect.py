"""What recordings are, and what looks wrong with them.

``inspect`` surveys recordings and judges the facts. A finding says what was seen, why that looks
wrong and what to do; nothing is changed. The limits were set on simulated wakes and vortices and on
measured jets (tests/data/test_inspect.py): what these contain is not called wrong.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

from pibert.data.sources.recordings import Recordings
from pibert.data.survey import Survey, survey

_FLIPPED = 1.12
"""Cancellation above which the terms of the divergence grow together; noise has 1."""
_EXCHANGED = 0.8
"""Exchanging the axes must bring the cancellation below this share of what it was."""
_OUTLIERS = 0.01
_ZEROS = 3e-4
_LENGTHS = {"m": 1.0, "cm": 1e-2, "mm": 1e-3, "um": 1e-6, "µm": 1e-6, "km": 1e3}
_TIMES = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "min": 60.0}
_PER = re.compile(r"(\S+?)[\s*.·]+(\S+?)\^?(?:-1|⁻¹)")
_PIXELS = ("px", "pix", "pixel", "pixels")


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


@dataclass(frozen=True)
class Inspection:
    """Facts and findings."""

    facts: Survey
    problems: tuple[Finding, ...]

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return self.facts.to_dict() | {"problems": [asdict(problem) for problem in self.problems]}


def inspect(recordings: Recordings) -> Inspection:
    """Look at a few trajectories and frames of any recordings, and say what looks wrong."""
    facts = survey(recordings)
    problems = [finding for judge in _JUDGES for finding in judge(facts)]
    return Inspection(facts, tuple(sorted(problems, key=lambda problem: not problem.serious)))


def _axes(facts: Survey) -> Iterator[Finding]:
    divergence = facts.divergence
    if divergence is None or facts.family == "euler":
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
            "read it with the axes in the other order (axes, such as tcxy for tcyx) or with the "
            "components exchanged (channels u=..., v=...); compare the picture with what you know",
        )
    elif now.cancellation > _FLIPPED and divergence.flipped.level < 0.8 * now.level:
        yield Finding(
            "rows flipped",
            f"{level}, but {divergence.flipped.level:.2f} if v had the other sign",
            "du/dx and dv/dy grow together, which looks like rows stored from top to bottom (as in "
            "images) or v counted downward",
            "turn the rows or the sign of v before converting; flows that expand or mix through "
            "the plane may look like this too",
        )
    elif divergence.stretch is not None and not 0.8 < divergence.stretch < 1.25:
        yield Finding(
            "spacing",
            f"{level}, and would vanish if dy were {divergence.stretch:.2f} times as large",
            "dx and dy, or the units of u and v, do not seem to fit each other",
            "check both and give dx and dy; an axisymmetric flow may look like this too",
            serious=False,
        )
    elif now.level > 0.55:
        yield Finding(
            "divergence",
            f"{level}; noise has 0.71",
            "plane incompressible flow has almost none, a plane cut through turbulence about 0.4",
            "look for noise, wrong spacing (dx, dy) or components in different units",
            serious=False,
        )


def _lengths(facts: Survey) -> Iterator[Finding]:
    dx, dy = facts.spacing
    names = [channel.name for channel in facts.channels]
    velocity = facts.channels[names.index("u")].unit if "u" in names else "1"
    length, time = _parts(velocity)
    whole = all(step >= 1 and step == int(step) for step in (dx, dy))
    pixels = facts.length_unit in _PIXELS or length in _PIXELS
    if pixels or (whole and facts.length_unit in (None, "m")):
        yield Finding(
            "pixels",
            f"spacing {dx:g} x {dy:g} {facts.length_unit or '(no unit)'}, velocity in {velocity}",
            "lengths look like pixels or counted points, so derivatives and a Reynolds number mean "
            "nothing physical",
            "give the size of a step (dx, dy, length_unit), and velocities in the same units",
            serious=pixels or facts.length_unit == "m" or velocity != "1",
        )
    elif (
        facts.length_unit in _LENGTHS
        and length in _LENGTHS
        and _LENGTHS[length] != _LENGTHS[facts.length_unit]
    ):
        factor = _LENGTHS[facts.length_unit] / _LENGTHS[length]
        yield Finding(
            "mixed units",
            f"coordinates in {facts.length_unit}, velocity in {velocity}",
            f"velocity gradients come out wrong by a factor of {factor:g}",
            f"give dx={dx * factor:.6g} and dy={dy * factor:.6g} with length_unit={length}",
        )
    if facts.time_unit in _TIMES and time in _TIMES and _TIMES[time] != _TIMES[facts.time_unit]:
        yield Finding(
            "mixed units",
            f"time in {facts.time_unit}, velocity in {velocity}",
            "velocity times the time step is not a length of the grid",
            f"give dt in {time} and time_unit={time}",
        )
    if not pixels and "u" in names and (facts.length_unit is None or velocity == "1"):
        unknown = velocity == "1" and facts.length_unit is None
        yield Finding(
            "no units" if unknown else "unit missing",
            f"coordinates in {facts.length_unit or 'no unit'}, velocity in "
            f"{'no unit' if velocity == '1' else velocity}",
            "they are taken as dimensionless"
            if unknown
            else "velocity gradients have a meaning only if both fit together",
            f"if {'they are not' if unknown else 'both have units'}, give unit and length_unit",
            serious=False,
        )


def _parts(unit: str) -> tuple[str, str]:
    """Length and time of a velocity's unit: ``m/s``, ``m s-1``, ``px/frame``."""
    length, mark, time = unit.partition("/")
    if not mark:
        power = _PER.fullmatch(unit.strip())
        length, time = power.groups() if power else (unit, "")
    return length.strip(), time.strip()


def _time(facts: Survey) -> Iterator[Finding]:
    if facts.frames[1] == 1:
        return
    low, high = facts.steps
    if facts.frame_numbers:
        yield Finding(
            "no time step",
            "the frames have numbers, but no time",
            "rates of change and the speed of prediction have no unit",
            "give dt",
            serious=False,
        )
    elif high > 1.5:
        yield Finding(
            "time gaps",
            f"time steps between {low:.3g} and {high:.3g} times the usual one",
            "frames are missing, so one step of a model would stand for different times",
            "cut the recording at the gaps, or give dt if the times are wrong",
        )
    elif high > 1.001 or low < 0.999:
        yield Finding(
            "uneven time",
            f"time steps between {low:.4g} and {high:.4g} times the usual one",
            "a model that steps forward needs equal steps",
            "give dt if the differences are rounding, or resample in time",
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
                "it cannot be standardised and tells a model nothing",
                "leave it out, or read another column as this channel",
            )
    if facts.frames_read and all(c.half and c.low < c.high for c in facts.channels):
        yield Finding(
            "16-bit values",
            "every value is one of a 16-bit float: 3 to 4 digits",
            "derivatives amplify the rounding",
            "use the original precision if you have it",
            serious=False,
        )


def _points(facts: Survey) -> Iterator[Finding]:
    if facts.not_finite:
        yield Finding(
            "not finite",
            f"{facts.not_finite} values in {facts.frames_read} frames are NaN or infinite",
            "they are not marked as missing",
            "converting marks these points as missing, frame by frame",
            serious=False,
        )
    gridding = facts.local.get("gridding") or {}
    scattered = gridding.get("method") == "linear in triangles"
    if facts.missing_share > 0.2:
        yield Finding(
            "missing points",
            f"{facts.missing_share:.0%} of the points outside bodies are missing",
            "bodies, and what lies outside a domain that is not a rectangle, count as missing"
            if scattered
            else "that is more than usual in PIV (below 5 to 10 %)",
            "compare the picture with the geometry"
            if scattered
            else "check that the mask or the flag is read the right way round",
            serious=not scattered,
        )
    if facts.zeros > _ZEROS:
        yield Finding(
            "zero vectors",
            f"every channel is exactly 0 at {facts.zeros:.2%} of the points, next to moving fluid",
            "the rim of a body stored as zeros: it counts as fluid"
            if facts.zeros_static
            else "missing vectors stored as zeros: they count as measured",
            "mark them (body or valid), or set them to NaN in the source",
        )
    if facts.outliers is not None and facts.outliers > _OUTLIERS:
        yield Finding(
            "outliers",
            f"{facts.outliers:.1%} of the vectors are far from the median of their neighbours",
            "spurious vectors, or structures of one or two cells",
            "mark them as not valid before training; see the picture",
            serious=facts.outliers > 4 * _OUTLIERS,
        )
    if gridding.get("method", "none") != "none":
        yield Finding(
            "resampled",
            f"the points were not uniform: brought from {_size(gridding.get('from'))} to "
            f"{_size(gridding.get('to'))} points ({gridding['method']})",
            "interpolation smooths, and the divergence of what it gives is not that of the source",
            "give the shape you want, fine enough for the smallest structures",
            serious=False,
        )
    if facts.differing:
        some = ", ".join(facts.differing[:4])
        yield Finding(
            "different grids",
            f"{len(facts.differing)} of {facts.opened} trajectories have other channels or another "
            f"grid than the first: {some}",
            "a model is trained on one grid",
            "convert with one size and one choice of channels",
            serious=False,
        )


def _size(counts: Any) -> str:
    return " x ".join(map(str, counts)) if isinstance(counts, list | tuple) else str(counts)


_JUDGES: tuple[Callable[[Survey], Iterator[Finding]], ...] = (
    _axes,
    _lengths,
    _time,
    _values,
    _points,
)
