"""Units, spacing and time step that the user states, beside what the file states.

Readers give what a file states; here the user's statements (``Hints``) join it, for every kind of
data. A statement that contradicts the file is an error unless ``Hints.override_units`` is set: then
it replaces what the file states, with a note. Points and frames that are only counted contradict
nothing. Pixels are calibrated at the end (``calibration``).
"""

import math
from dataclasses import dataclass, fields, replace
from typing import Any

from pibert.data.counted import FRAMES, counts_frames
from pibert.data.sources.assembly.naming import standard_unit
from pibert.data.sources.calibration import advise, calibrate, doubt_pixels
from pibert.data.sources.recordings import Hints, Recordings, SourceError
from pibert.data.units import (
    UNKNOWN,
    VELOCITY,
    Unit,
    doubt_unit,
    names_pixels,
    parse_unit,
    same_unit,
)
from pibert.fields import Trajectory
from pibert.remarks import warn

_FRAMES = (*UNKNOWN, *FRAMES)
_MEASURED = ("piv", "native", "netcdf", "table", "arrays", "hdf5", "matlab")
"""Kinds that may hold pixels; their first trajectory costs nothing to load."""
_SAME = 1e-3
"""Relative: spacings that differ by less are the same."""
_SAME_STEP = 1e-2
"""Likewise for time steps, which come from rounded times."""


def state_recordings(recordings: Recordings, hints: Hints) -> Recordings:
    """The same recordings with what the user states of their units, spacing, time and scale."""
    hints = _spelled(hints)
    if recordings.kind not in _MEASURED and not _recorded(hints):
        return recordings
    if not recordings.names:
        return recordings
    first, notes = state(recordings[0], hints)
    if recordings.kind != "native" and first.num_frames > 1 and _lacks_time_step(first):
        notes += ("the data state no time between the frames; give it (--dt)",)
    return replace(
        recordings,
        load=_Loader(recordings, hints, first, notes),
        remarks=tuple(dict.fromkeys((*recordings.remarks, *notes))),
    )


@dataclass(frozen=True, eq=False)
class _Loader:
    """Loads trajectories by name; may be pickled if the recordings may."""

    recordings: Recordings
    hints: Hints
    first: Trajectory
    notes: tuple[str, ...]
    """Those on the first trajectory; of the others, other notes are told as they are loaded."""

    def __call__(self, name: str) -> Trajectory:
        if name == self.recordings.names[0]:
            return self.first
        trajectory, notes = state(self.recordings[name], self.hints)
        for note in notes:
            if note not in self.notes:
                warn(f"{name}: {note}")
        return trajectory


def state(trajectory: Trajectory, hints: Hints) -> tuple[Trajectory, tuple[str, ...]]:
    """The trajectory with the user's metadata, and notes on what was done and what looks wrong."""
    notes: list[str] = []
    stated = trajectory
    steps = (_with_spacing, _with_time_step, _with_units, calibrate, _without_frames, _with_seconds)
    for step in steps:
        stated = step(stated, hints, notes)
    notes += doubt_pixels(stated, hints)
    if said := _recorded(hints):
        known = {**stated.local.get("hints", {}), **said}
        stated = replace(stated, local={**stated.local, "hints": known})
    return stated, tuple(dict.fromkeys(notes))


def _recorded(hints: Hints) -> dict[str, Any]:
    """What the user states, as plain values; flips and masks are recorded elsewhere."""
    said = {field.name: getattr(hints, field.name) for field in fields(hints)}
    said |= {"channels": dict(hints.channels), "parameters": dict(hints.parameters)}
    said["shape"] = list(hints.shape or ())
    elsewhere = ("flip", "body", "mask")
    return {name: value for name, value in said.items() if value and name not in elsewhere}


def _spelled(hints: Hints) -> Hints:
    """The units that the user states, in our spelling; what looks mistyped is warned of."""
    quantities = {"unit": "velocity", "length_unit": "length", "time_unit": "time"}
    units = {name: standard_unit(text) for name in quantities if (text := getattr(hints, name))}
    for name, text in units.items():
        doubt, found = doubt_unit(text, quantities[name]), parse_unit(text)
        # The pulse delay makes a velocity of a displacement.
        moves = name == "unit" and found is not None and found.is_like(1, 0)
        if doubt is not None and not (moves and hints.pulse_delay):
            warn(f"{_option(name)}: {doubt}; it is kept, and nothing is converted")
    return replace(hints, **units)  # type: ignore[arg-type]


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _contradiction(
    trajectory: Trajectory, given: str, stated: str, advice: str = "leave the option out"
) -> SourceError:
    return SourceError(
        f"{trajectory.name}: {given} was given, but the data state {stated}; {advice}, or add "
        "--override-units if the data are wrong"
    )


def _with_spacing(trajectory: Trajectory, hints: Hints, notes: list[str]) -> Trajectory:
    """The coordinates stretched to the user's spacing, origin and all."""
    grid, unit = trajectory.spec.grid, trajectory.length_unit
    given = {"dx": hints.dx, "dy": hints.dy}
    if not any(given.values()):
        return trajectory
    steps = {}
    for name, step in given.items():
        own = getattr(grid, name)
        counted = unit in UNKNOWN and own == 1
        if step is None and counted:
            raise SourceError(
                f"{trajectory.name}: a spacing is given along one axis only, and the points along "
                f"the other are counted; give {_option(name)} in the same unit too"
            )
        steps[name] = step or own
        if counted or math.isclose(own, steps[name], rel_tol=_SAME):
            continue
        found = _with_unit(f"a spacing of {own:g}", unit) + f" along {name[1]}"
        if not hints.override_units:
            advice = "leave the option out"
            if names_pixels(unit) or unit in UNKNOWN:
                advice += ", give the size of a pixel (--scale) if the positions are pixels"
            raise _contradiction(trajectory, f"{_option(name)} {step:g}", found, advice)
        notes.append(f"{_option(name)} {step:g} replaced {found}")
    dx, dy = steps["dx"], steps["dy"]
    origin = (grid.origin[0] * dx / grid.dx, grid.origin[1] * dy / grid.dy)
    spec = replace(trajectory.spec, grid=replace(grid, dx=dx, dy=dy, origin=origin))
    return replace(trajectory, spec=spec)


def _with_time_step(trajectory: Trajectory, hints: Hints, notes: list[str]) -> Trajectory:
    dt, time, spec = hints.dt, trajectory.time, trajectory.spec
    if dt is None:
        return trajectory
    steps = time.diff()
    if _counts_frames(trajectory):
        if spec.dt not in (None, dt):
            notes.append(f"--dt {dt:g}: the times, {spec.dt:g} apart, were taken as frame numbers")
        step = dt * float(steps[0]) if bool((steps == steps[0]).all()) else None
        numbered = replace(trajectory, time=dt * (time - time[0]), time_unit=None)
        return replace(numbered, spec=replace(spec, dt=step))
    if spec.dt is not None and math.isclose(spec.dt, dt, rel_tol=_SAME_STEP):
        return trajectory
    even = time[0] + dt * time.new_tensor(range(len(time)))
    replaced = replace(trajectory, time=even, spec=replace(spec, dt=dt))
    if spec.dt is None and bool(((steps / dt - 1).abs() <= _SAME_STEP).all()):
        return replaced
    low, high = (spec.dt, spec.dt) if spec.dt is not None else (steps.min(), steps.max())
    found = f"steps of {low:g}" if low == high else f"time steps from {low:g} to {high:g}"
    found = _with_unit(found, trajectory.time_unit)
    if not hints.override_units:
        raise _contradiction(trajectory, f"--dt {dt:g}", found)
    given = _with_unit(f"--dt {dt:g}", hints.time_unit or trajectory.time_unit)
    notes.append(f"{given} replaced {found}")
    return replaced


def _counts_frames(trajectory: Trajectory) -> bool:
    """Whether its times are numbers of frames, some of which may be missing."""
    steps, unit = trajectory.time.diff(), trajectory.time_unit
    if not len(steps) or unit not in _FRAMES or bool((steps != steps.round()).any()):
        return False
    return unit not in UNKNOWN or bool((steps != steps[0]).any()) or float(steps[0]) == 1


def _lacks_time_step(trajectory: Trajectory) -> bool:
    """Whether its times are only counted, in the file's words or ours."""
    return trajectory.time_unit in FRAMES or counts_frames(trajectory)


def _without_frames(trajectory: Trajectory, hints: Hints, notes: list[str]) -> Trajectory:
    """Times in frames are mere counts where velocities are per second: they have no time step."""
    speeds = _speeds(trajectory)
    if trajectory.time_unit not in FRAMES or not speeds or None in speeds:
        return trajectory
    return replace(trajectory, time_unit=None, spec=replace(trajectory.spec, dt=None))


def _with_seconds(trajectory: Trajectory, hints: Hints, notes: list[str]) -> Trajectory:
    """A time step without a unit is in seconds where velocities are per second."""
    speeds = _speeds(trajectory)
    if hints.dt is None or trajectory.time_unit not in UNKNOWN or not speeds:
        return trajectory
    if any(unit is None or (unit.time, unit.of_time) != (-1, 1) for unit in speeds):
        return trajectory
    return replace(trajectory, time_unit="s")


def _speeds(trajectory: Trajectory) -> list[Unit | None]:
    """The units of the velocity channels; None for those that are not lengths over times."""
    units = dict(zip(trajectory.spec.channels, trajectory.spec.units, strict=True))
    found = [parse_unit(units[channel]) for channel in VELOCITY if channel in units]
    return [unit if unit is not None and unit.is_like(1, -1) else None for unit in found]


def _with_unit(text: str, unit: str | None) -> str:
    return text if unit in UNKNOWN else f"{text} {unit}"


def _with_units(trajectory: Trajectory, hints: Hints, notes: list[str]) -> Trajectory:
    spec = trajectory.spec
    if not (hints.unit or hints.length_unit or hints.time_unit):
        return trajectory

    def settle(option: str, what: str, stated: str | None) -> str | None:
        """The user's unit, unless it contradicts the one that the data state."""
        given = getattr(hints, option)
        if given is None or stated in UNKNOWN:
            return given or stated
        own = standard_unit(str(stated))
        if same_unit(own, given) or {own, given} == {"px", "px/frame"}:
            return stated
        if hints.override_units:
            notes.append(f"{_option(option)} {given} replaced what the data state: {what} in {own}")
            return str(given)
        advice = "leave the option out"
        if names_pixels(own) and not names_pixels(given):
            advice = f"to convert pixels {advise(trajectory.source)}"
        elif own in _FRAMES:
            advice = "give the time between frames (--dt)"
        text = f"{_option(option)} {given}"
        raise _contradiction(trajectory, text, f"{what} in {own}", advice)

    units = [
        settle("unit", channel, unit) or "1" if channel in VELOCITY else unit
        for channel, unit in zip(spec.channels, spec.units, strict=True)
    ]
    return replace(
        trajectory,
        spec=replace(spec, units=tuple(units)),
        length_unit=settle("length_unit", "lengths", trajectory.length_unit),
        time_unit=settle("time_unit", "times", trajectory.time_unit),
    )
