"""The user's metadata (``Hints``), combined with the file's.

Readers return what a file states. For every kind of data, ``state_recordings`` applies the user's
units, spacing, time step and calibration, ``state_facts`` family, sides and parameters. A
contradiction with the file is an error unless ``override_units`` or ``override_metadata`` is set;
then the user's value replaces the file's, with a note. Counted points and frames contradict
nothing.

Data of other formats with velocity channels and no stated family are assumed to be incompressible
flow; ``local["family"]`` then gives the reason. A reader with better knowledge writes its reason
there.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch

from pibert.data.provenance import FRAMES, counts_frames
from pibert.data.readers.recordings import (
    NO_FAMILY,
    Hints,
    Recordings,
    SourceError,
    describe_parameter,
    read_sides,
)
from pibert.data.readers.shared.calibration import advise, calibrate, doubt_units, replace_stated
from pibert.data.readers.shared.naming import standard_unit
from pibert.data.splits import find_gaps
from pibert.data.units import (
    UNKNOWN,
    VELOCITY,
    doubt_unit,
    names_pixels,
    parse_unit,
    same_unit,
    share_units,
)
from pibert.fields import Boundary, FieldSpec, Sides, Trajectory
from pibert.notes import warn
from pibert.physics import find_family

_FRAMES = (*UNKNOWN, *FRAMES)
_SAME = 1e-3
"""Spacings with a smaller relative difference are the same."""
_SAME_STEP = 1e-2
"""The limit for time steps, which come from rounded times."""


def state_recordings(recordings: Recordings, hints: Hints, *, measured: bool) -> Recordings:
    """Apply the user's units, spacing, time step and scale.

    Data that are not ``measured``, so cannot be in pixels, are unchanged without such hints.
    """
    hints = _spelled(hints)
    if not recordings.names or not (measured or _recorded(hints)):
        return recordings
    first, notes = state(recordings[0], hints)
    counted = first.time_unit in FRAMES or counts_frames(first)
    asked = recordings.kind != "native" or hints.time_unit is not None
    if asked and first.num_frames > 1 and counted:
        notes += (
            "the data state no time between the frames; give it (--dt, in a configuration "
            "data.hints.dt)",
        )

    def load(name: str) -> Trajectory:
        """Load a trajectory; notes that the first trajectory did not have become warnings."""
        if name == recordings.names[0]:
            return first
        trajectory, noticed = state(recordings[name], hints)
        for note in noticed:
            if note not in notes:
                warn(f"{name}: {note}")
        return trajectory

    return replace(recordings, load=load, notes=tuple(dict.fromkeys((*recordings.notes, *notes))))


def state(trajectory: Trajectory, hints: Hints) -> tuple[Trajectory, tuple[str, ...]]:
    """Return the trajectory with the user's metadata, and notes on changes and doubts."""
    notes: list[str] = []
    stated = trajectory
    for step in (_with_spacing, _with_time_step, _with_units, calibrate):
        stated = step(stated, hints, notes)
    stated = _with_seconds(stated, hints)
    notes += doubt_units(stated, hints)
    if given := _recorded(hints):
        known = {**stated.local.get("hints", {}), **given}
        stated = replace(stated, local={**stated.local, "hints": known})
    return stated, tuple(dict.fromkeys(notes))


def _recorded(hints: Hints) -> dict[str, Any]:
    """Return the hints as plain values; flips and masks are recorded elsewhere."""
    given = vars(hints) | {"channels": dict(hints.channels), "parameters": dict(hints.parameters)}
    given["shape"] = list(hints.shape or ())
    elsewhere = ("flip", "rotate", "body", "mask")
    return {name: value for name, value in given.items() if value and name not in elsewhere}


def _spelled(hints: Hints) -> Hints:
    """Return the user's units in our spelling; warn of those that look mistyped."""
    quantities = {"unit": "velocity", "length_unit": "length", "time_unit": "time"}
    units = {name: standard_unit(text) for name in quantities if (text := getattr(hints, name))}
    for name, text in units.items():
        doubt, found = doubt_unit(text, quantities[name]), parse_unit(text)
        # The pulse delay turns a displacement into a velocity.
        moves = name == "unit" and found is not None and found.is_like(1, 0)
        if doubt is None or (moves and hints.pulse_delay):
            continue
        if found is not None:
            raise SourceError(f"{_option(name)}: {doubt}; give a unit of {quantities[name]}")
        warn(f"{_option(name)}: {doubt}; it is kept, and nothing is converted")
    return replace(hints, **units)  # type: ignore[arg-type]


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _with_unit(text: str, unit: str | None) -> str:
    return text if unit in UNKNOWN else f"{text} {unit}"


def _with_spacing(trajectory: Trajectory, hints: Hints, notes: list[str]) -> Trajectory:
    """Scale the coordinates, including the origin, to the user's spacing."""
    grid, unit = trajectory.spec.grid, trajectory.length_unit
    given = {"dx": hints.dx, "dy": hints.dy}
    if not any(given.values()):
        return trajectory
    steps = {}
    for name, step in given.items():
        stated = getattr(grid, name)
        counted = unit in UNKNOWN and stated == 1
        if step is None and counted:
            raise SourceError(
                f"{trajectory.name}: a spacing is given along one axis only, and the points along "
                f"the other are counted; give {_option(name)} in the same unit too"
            )
        steps[name] = step or stated
        if not counted and not math.isclose(stated, steps[name], rel_tol=_SAME):
            found = _with_unit(f"a spacing of {stated:g}", unit) + f" along {name[1]}"
            advice = "leave the option out"
            if names_pixels(unit) or unit in UNKNOWN:
                advice += ", give the size of a pixel (--scale) if the positions are pixels"
            text = f"{_option(name)} {step:g}"
            replace_stated(trajectory, hints, notes, text, found, advice)
    dx, dy = steps["dx"], steps["dy"]
    origin = (grid.origin[0] * dx / grid.dx, grid.origin[1] * dy / grid.dy)
    spec = replace(trajectory.spec, grid=replace(grid, dx=dx, dy=dy, origin=origin))
    return replace(trajectory, spec=spec)


def _with_time_step(trajectory: Trajectory, hints: Hints, notes: list[str]) -> Trajectory:
    dt, time, spec = hints.dt, trajectory.time, trajectory.spec
    if dt is None:
        return trajectory
    steps = time.diff()
    if _counts_frames(trajectory, hints):
        least = float(steps.min())
        if spec.dt not in (None, dt) or (spec.dt is None and least != 1):
            found = f"{least:g}" if least == steps.max() else f"{least:g} to {steps.max():g}"
            notes.append(f"--dt {dt:g}: times with steps of {found} were read as frame numbers")
        step = dt * least if bool((steps % least == 0).all()) else None
        numbered = replace(trajectory, time=dt * (time - time[0]), time_unit=None)
        return replace(numbered, spec=replace(spec, dt=step))
    if spec.dt is not None and math.isclose(spec.dt, dt, rel_tol=_SAME_STEP):
        return trajectory
    gaps, scale = find_gaps(time, dt if spec.dt is None else spec.dt), dt / (spec.dt or dt)
    off = ((steps / dt - 1).abs() > _SAME_STEP)[~gaps]
    if spec.dt is not None or bool(off.any()) or 2 * len(off) < len(steps):
        low, high = (spec.dt, spec.dt) if spec.dt is not None else (steps.min(), steps.max())
        found = f"steps of {low:g}" if low == high else f"time steps from {low:g} to {high:g}"
        clock = hints.time_unit if trajectory.time_unit in UNKNOWN else trajectory.time_unit
        given = _with_unit(f"--dt {dt:g}", hints.time_unit or clock)
        replace_stated(trajectory, hints, notes, given, _with_unit(found, clock))
        if spec.dt is None:  # the times are wrong
            gaps = torch.zeros_like(gaps)
    # Frames are dt apart but for gaps, which keep their number of steps.
    past = torch.where(gaps, scale * steps, 0.0).cumsum(0) + dt * (~gaps).to(steps).cumsum(0)
    even = time[0] + torch.cat([past.new_zeros(1), past])
    return replace(trajectory, time=even, spec=replace(spec, dt=dt))


def _counts_frames(trajectory: Trajectory, hints: Hints) -> bool:
    """Return whether its times are frame numbers, some of which may be missing."""
    steps, unit, dt = trajectory.time.diff(), trajectory.time_unit, trajectory.spec.dt
    if not len(steps) or unit not in _FRAMES or bool((steps != steps.round()).any()):
        return False
    if unit not in UNKNOWN:
        return True
    if dt is not None:
        return hints.time_unit is None and float(steps.min()) == 1
    return math.gcd(*(int(step) for step in steps.tolist())) == 1


def _with_seconds(trajectory: Trajectory, hints: Hints) -> Trajectory:
    """Settle the unit of time where velocities are lengths over times.

    Times in frames are then counts without a time step, and a given time step without a unit is
    in seconds if velocities are per second.
    """
    units = dict(zip(trajectory.spec.channels, trajectory.spec.units, strict=True))
    speeds = [parse_unit(units[channel]) for channel in VELOCITY if channel in units]
    if not speeds or any(unit is None or not unit.is_like(1, -1) for unit in speeds):
        return trajectory
    if trajectory.time_unit in FRAMES:
        return replace(trajectory, time_unit=None, spec=replace(trajectory.spec, dt=None))
    per_second = all(unit is not None and unit.of_time == 1 for unit in speeds)
    if hints.dt is not None and trajectory.time_unit in UNKNOWN and per_second:
        return replace(trajectory, time_unit="s")
    return trajectory


def _with_units(trajectory: Trajectory, hints: Hints, notes: list[str]) -> Trajectory:
    spec = trajectory.spec

    def settle(option: str, what: str, stated: str | None) -> str | None:
        """Return the user's unit, unless it contradicts the one that the data state."""
        given = getattr(hints, option)
        if given is None or stated in UNKNOWN:
            return given or stated
        unit = standard_unit(str(stated))
        if same_unit(unit, given) or {unit, given} == {"px", "px/frame"}:
            return stated
        advice = "leave the option out"
        if names_pixels(unit) and not names_pixels(given):
            advice = f"to convert pixels {advise(trajectory.source)}"
        elif unit in _FRAMES:
            advice = "give the time between frames (--dt)"
        text = f"{_option(option)} {given}"
        replace_stated(trajectory, hints, notes, text, f"{what} in {unit}", advice)
        return str(given)

    units = tuple(
        settle("unit", channel, unit) or "1" if channel in VELOCITY else unit
        for channel, unit in zip(spec.channels, spec.units, strict=True)
    )
    clock = settle("time_unit", "times", trajectory.time_unit)
    if hints.dt is None and trajectory.num_frames > 1 and counts_frames(trajectory):
        clock = None  # a unit does not make frame numbers times
    return replace(
        trajectory,
        spec=replace(spec, units=share_units(spec.channels, units)),
        length_unit=settle("length_unit", "lengths", trajectory.length_unit),
        time_unit=clock,
    )


_INFERRED = "incompressible"
_REASON = "inferred from the velocity channels u, v"
_OTHER_FLOWS = ("rho", "density", "t", "temperature", "energy", "buoyancy", "h", "height")
"""Channels, in lower case, of flows that may be compressible or driven by buoyancy or waves."""
_PRESSURE = re.compile(r"[hkMm]?Pa|m?bar|atm|psi|N/m(2|\^2)")
_DENSITY = "density"
_VISCOSITY = "viscosity"
"""A parameter that a spec may state for all samples; the spec's value then counts."""
_REMEDY = (
    "state it with --family NAME (in a configuration data.hints.family); "
    f"{NO_FAMILY}: no known family fits"
)


def state_facts(recordings: Recordings, hints: Hints) -> Recordings:
    """Apply the user's family, sides and parameters to trajectories when they are loaded."""
    if hints.family not in (None, NO_FAMILY):
        find_family(hints.family)
    return recordings.changed(partial(_with_facts, hints=hints, infers=recordings.kind != "native"))


def family_note(trajectory: Trajectory) -> str | None:
    """Return a note that no family is stated and which one is assumed, or on missing channels."""
    spec, family = trajectory.spec, trajectory.spec.family
    if family is None and trajectory.local.get("hints", {}).get("family") != NO_FAMILY:
        reason = trajectory.local.get("family")
        known = f"assumed, because {reason}" if reason else "stated"
        return f"no PDE family is {known}. Training then has no physics terms: {_REMEDY}"
    if family is not None and "family" in trajectory.local:
        return (
            f"the family of the governing equations is not stated: assuming {family} flow without "
            f"forces, because u and v are a velocity; {_REMEDY}"
        )
    missing = () if family is None else set(find_family(family).channels) - set(spec.channels)
    if missing:
        return f"the equations of family {family!r} need the channels {', '.join(sorted(missing))}"
    return None


def _with_facts(trajectory: Trajectory, *, hints: Hints, infers: bool) -> Trajectory:
    spec, local = trajectory.spec, dict(trajectory.local)
    family = _family(spec, local, hints, infers)
    sides = Sides(**{**spec.grid.sides._asdict(), **read_sides(hints.sides)})
    parameters = {**trajectory.parameters, **hints.parameters}
    _check_facts(trajectory, hints, family, sides)
    if hints.family is not None:
        _check_pressure(trajectory, family, parameters)
    declared = {parameter.name: parameter for parameter in spec.parameters}
    for key in hints.parameters:
        declared.setdefault(key, describe_parameter(key))
    return replace(
        trajectory,
        spec=replace(
            spec,
            family=family,
            grid=replace(spec.grid, sides=sides),
            parameters=tuple(declared.values()),
            viscosity=spec.viscosity and hints.parameters.get(_VISCOSITY, spec.viscosity),
        ),
        parameters=parameters,
        local=local,
    )


def _family(spec: FieldSpec, local: dict[str, Any], hints: Hints, infers: bool) -> str | None:
    """Return the family; ``local`` records whether it is inferred."""
    if hints.family is not None:
        local.pop("family", None)
        return None if hints.family == NO_FAMILY else hints.family
    units = dict(zip(spec.channels, spec.units, strict=True))
    is_other = not {"u", "v"} <= set(units) or any(name.lower() in _OTHER_FLOWS for name in units)
    if spec.family is not None or not infers or "family" in local or is_other:
        return spec.family
    if any(doubt_unit(units[name], "velocity") is not None for name in ("u", "v")):
        return None
    local["family"] = _REASON
    return _INFERRED


def _check_pressure(
    trajectory: Trajectory, family: str | None, parameters: Mapping[str, float]
) -> None:
    """Refuse pressure in Pa without the density that the equations divide it by."""
    unit = dict(zip(trajectory.spec.channels, trajectory.spec.units, strict=True)).get("p", "1")
    if family is None or _DENSITY in parameters or not _PRESSURE.fullmatch(unit):
        return
    if _DENSITY in find_family(family).coefficients:
        raise ValueError(
            f"trajectory {trajectory.name!r}: p is in {unit}, but the equations of family "
            f"{family!r} need kinematic pressure (divided by the density, m2/s2) if no density is "
            f"stated; add --parameter {_DENSITY}=NUMBER, or state --family {_INFERRED}, which "
            "needs no pressure"
        )


def _check_facts(trajectory: Trajectory, hints: Hints, family: str | None, sides: Sides) -> None:
    """Refuse facts that contradict the file, or warn that they replace the file's."""
    spec, changes = trajectory.spec, {}
    if spec.family not in (None, family) and "family" not in trajectory.local:
        changes["family"] = (spec.family, family or NO_FAMILY)
    for name, old, new in zip(Sides._fields, spec.grid.sides, sides, strict=True):
        if old not in (Boundary.OPEN, new):
            changes[f"side {name}"] = (str(old), str(new))
    for name, value in hints.parameters.items():
        known = trajectory.parameters.get(name, math.nan)
        if name == _VISCOSITY and spec.viscosity is not None:
            known = spec.viscosity
        if not (math.isnan(known) or math.isclose(known, value, rel_tol=1e-6)):
            changes[name] = (f"{known:g}", f"{value:g}")
    if not changes:
        return
    if not hints.override_metadata:
        both = "; ".join(
            f"{name} is {old} in the file, but you state {new}"
            for name, (old, new) in changes.items()
        )
        raise ValueError(
            f"trajectory {trajectory.name!r}: {both}; leave out what the file states, or replace "
            "it with --override-metadata (hint override_metadata in a configuration)"
        )
    replaced = ", ".join(f"{name} {old} -> {new}" for name, (old, new) in changes.items())
    warn(f"metadata of the file replaced: {replaced}")
