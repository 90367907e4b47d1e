"""What can be measured on recordings without reading them whole.

A survey opens a few trajectories spread evenly over the set and reads pairs of neighbouring frames
spread evenly over each, so that its cost is bounded however large the set is; it says how much it
read. Statistics are over known points: outside bodies, where the field is valid and finite.
"""

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from pibert.data.counted import FRAMES
from pibert.data.inspection.divergence import DivergenceFacts
from pibert.data.inspection.tally import ChannelFacts, Tally
from pibert.data.sources.recordings import Recordings
from pibert.data.sources.stated import family_note
from pibert.data.units import Conversion, find_conversion
from pibert.fields import Trajectory

_TRAJECTORIES = 16
_PAIRS = 32
"""Pairs of frames in all ..."""
_VALUES = 1 << 22
"""... or fewer, as long as they hold no more values than this: a few seconds of work."""


@dataclass(frozen=True, kw_only=True)
class Survey:
    """Plain facts about recordings; grid, channels and provenance are those of the first."""

    kind: str
    path: str
    name: str
    trajectories: int
    opened: int
    """How many trajectories were looked at."""
    differing: tuple[str, ...]
    """Those of them whose channels or grid are not those of the first."""
    frames: tuple[int, int]
    """Least and most frames of a trajectory."""
    frames_read: int
    shape: tuple[int, int]
    spacing: tuple[float, float]
    """dx and dy."""
    origin: tuple[float, float]
    length_unit: str | None
    time_unit: str | None
    dt: float | None
    time: tuple[float, float]
    frame_numbers: bool
    """Time is the frame number: the source states none."""
    steps: tuple[float, float]
    """Least and largest time step of any trajectory, as multiples of ``dt`` or its median step."""
    family: str | None
    sides: tuple[str, str, str, str]
    channels: tuple[ChannelFacts, ...]
    parameters: Mapping[str, tuple[float, float]]
    """Range of the values that are known."""
    series: tuple[str, ...]
    body_share: float
    missing_share: float
    """Of the points outside bodies, those that are marked as not valid."""
    filled_share: float
    """Of the points outside bodies, those that hold a value which was not measured."""
    not_finite: int
    """Values that are NaN or infinite although their points count as known."""
    zeros_static: int
    """Points of a trajectory whose velocity is exactly 0 in all frames that were read (where it is
    known), in regions that touch moving fluid; of the trajectory that has most of them."""
    zeros_varying: float
    """Share of the known vectors that are exactly 0 in some frames alone, likewise."""
    repeated: int
    """Pairs of neighbouring frames that are identical."""
    pairs: int
    outliers: float | None
    """Share of vectors that fail the normalised median test, a lenient one."""
    divergence: DivergenceFacts | None
    source: Mapping[str, Any]
    local: Mapping[str, Any]
    remarks: tuple[str, ...]

    @property
    def is_empty(self) -> bool:
        """Not one value is known in the frames that were read."""
        return all(channel.low > channel.high for channel in self.channels)

    @property
    def conversion(self) -> Conversion | None:
        """What would bring the data to metres and seconds, where their units are known."""
        names, units = zip(*((c.name, c.unit) for c in self.channels), strict=True)
        return find_conversion(self.length_unit, self.time_unit, names, units)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values; numbers that are not finite become None."""
        plain: dict[str, Any] = _plain(asdict(self))
        return plain


def survey(recordings: Recordings) -> Survey:
    """Look at a few trajectories and frames, spread evenly."""
    opened = [recordings[i] for i in spread(len(recordings), _TRAJECTORIES)]
    first = opened[0]
    alike = [t for t in opened if _layout(t) == _layout(first)]
    tally = Tally(first)
    for trajectory in alike:
        tally.add(trajectory, _pairs(trajectory, share_of=len(alike)))
    times = [t.time for t in opened]
    steps = [
        t.time.diff() / (t.spec.dt or t.time.diff().median()) for t in opened if t.num_frames > 1
    ]
    grid, spec = first.spec.grid, first.spec
    return Survey(
        kind=recordings.kind,
        path=str(recordings.path),
        name=recordings.path.name,
        trajectories=len(recordings),
        opened=len(opened),
        differing=tuple(t.name for t in opened if _layout(t) != _layout(first)),
        frames=(min(map(len, times)), max(map(len, times))),
        shape=grid.shape,
        spacing=(grid.dx, grid.dy),
        origin=grid.origin,
        length_unit=first.length_unit,
        time_unit=first.time_unit,
        dt=spec.dt,
        time=(min(t[0].item() for t in times), max(t[-1].item() for t in times)),
        frame_numbers=all(map(_counts, opened)),
        steps=(
            min((s.min().item() for s in steps), default=1.0),
            max((s.max().item() for s in steps), default=1.0),
        ),
        family=spec.family,
        sides=tuple(str(side) for side in grid.sides),  # type: ignore[arg-type]
        parameters=_parameter_ranges(opened),
        series=tuple(first.series),
        source=dict(first.source),
        local=dict(first.local),
        remarks=(*recordings.remarks, *filter(None, [family_note(first)])),
        **tally.facts(),
    )


def spread(count: int, wanted: int) -> list[int]:
    """At most so many different indices below ``count``, evenly from the first to the last."""
    wanted = min(count, wanted)
    return [round(i * (count - 1) / max(1, wanted - 1)) for i in range(wanted)]


def _pairs(trajectory: Trajectory, share_of: int) -> Iterator[slice]:
    """Pairs of neighbouring frames, so many that all trajectories together stay in bounds."""
    t, c, ny, nx = trajectory.states.shape
    affordable = _VALUES // (2 * c * ny * nx)
    wanted = max(1, min(_PAIRS, affordable) // share_of)
    return (slice(start, start + 2) for start in spread(max(1, t - 1), wanted))


def _parameter_ranges(trajectories: list[Trajectory]) -> dict[str, tuple[float, float]]:
    values: dict[str, list[float]] = {}
    for trajectory in trajectories:
        for name, value in trajectory.parameters.items():
            values.setdefault(name, []).append(value)
    return {name: (min(known), max(known)) for name, known in values.items()}


def _layout(trajectory: Trajectory) -> tuple[Any, ...]:
    spec = trajectory.spec
    return spec.channels, spec.grid.shape, round(spec.grid.dx, 12), round(spec.grid.dy, 12)


def _counts(trajectory: Trajectory) -> bool:
    """Whether its times are the numbers of its frames: 0, 1, 2 ..."""
    stated = trajectory.spec.dt is not None and trajectory.time_unit not in FRAMES
    return not stated and bool((trajectory.time.diff() == 1).all())


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value
