"""What recordings are, and what looks wrong with them.

``inspect`` surveys recordings and judges the facts. A finding says what was seen, why that looks
wrong and what to do; nothing is changed. The limits were set on simulated wakes and vortices and on
measured jets (tests/data/test_inspection.py): what these contain is not called wrong.
"""

import shlex
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from typing import Any

from pibert.data.inspection.findings import Finding, judge_time, judge_units
from pibert.data.inspection.survey import Survey, survey
from pibert.data.provenance import predicted_by
from pibert.data.sources.recordings import Recordings
from pibert.data.wording import counted
from pibert.physics import find_family

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
    """Look at a few trajectories and frames of any recordings, and say what looks wrong."""
    facts = survey(recordings)
    # Where no value is known there is nothing else to say of the fields.
    judges = (_origin, _points) if facts.is_empty else _JUDGES
    problems = [finding for judge in judges for finding in judge(facts)]
    return Inspection(facts, tuple(sorted(problems, key=lambda problem: not problem.serious)))


def _origin(facts: Survey) -> Iterator[Finding]:
    made = predicted_by(facts.source)
    if made is not None:
        yield Finding(
            "predicted",
            made,
            "these fields are not ground truth: they contain the errors of that model",
            "do not train, calibrate or score on them as if they were measured or simulated",
            serious=False,
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
        yield Finding(
            "spacing",
            f"{level}, and would vanish if dy were {divergence.stretch:.2f} times as large",
            "dx and dy, or the units of u and v, do not seem to fit each other",
            "check both and give --dx and --dy; an axisymmetric flow may look like this too",
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
        yield Finding(
            "filled vectors",
            f"{facts.filled_share:.2%} of the vectors outside bodies were not measured: a program "
            "or a model filled them",
            "they serve as input of a model, but not as targets or ground truth",
            "nothing: training, scores and calibration leave them out",
            serious=False,
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
        yield Finding(
            "resampled",
            f"the points were not uniform: brought from {_size(gridding.get('from'))} to "
            f"{_size(gridding.get('to'))} points ({gridding['method']})",
            "interpolation smooths, and the divergence of what it gives is not that of the source",
            "give the shape you want (--shape), fine enough for the smallest structures",
            serious=False,
        )
    if facts.differing:
        some = ", ".join(facts.differing[:4])
        yield Finding(
            "different grids",
            f"{len(facts.differing)} of {facts.opened} trajectories have other channels or another "
            f"grid than the first: {some}",
            "a model is trained on one grid",
            "convert with one size (--size) and one choice of channels (--keep)",
            serious=False,
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


def _size(counts: Any) -> str:
    return " x ".join(map(str, counts)) if isinstance(counts, list | tuple) else str(counts)


_JUDGES: tuple[Callable[[Survey], Iterator[Finding]], ...] = (
    _origin,
    _axes,
    judge_units,
    judge_time,
    _values,
    _points,
)
