"""Family, sides and parameters of recordings: what the user states and what can be inferred.

``open_recordings`` of the package applies this to recordings of every kind, files of the native
format included. What a file leaves unknown is filled in. What contradicts a file is refused, unless
the user asks to replace it. Data of other formats with velocity channels and no stated family are
taken as incompressible flow; the local representation then says so under ``family``. A reader that
knows better writes the reason there itself.
"""

import math
import re
from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

from pibert.data.sources.recordings import (
    NO_FAMILY,
    Hints,
    Recordings,
    describe_parameter,
    read_sides,
)
from pibert.data.units import doubt_unit
from pibert.fields import Boundary, FieldSpec, Sides, Trajectory
from pibert.physics import find_family
from pibert.remarks import warn

_INFERRED = "incompressible"
_REASON = "inferred from the velocity channels u, v"
_OTHER_FLOWS = ("rho", "density", "t", "temperature", "energy", "buoyancy", "h", "height")
"""Channels, in lower case, of flows that may be compressible or driven by buoyancy or waves."""
_PRESSURE = re.compile(r"[hkMm]?Pa|m?bar|atm|psi|N/m(2|\^2)")
_DENSITY = "density"
_VISCOSITY = "viscosity"
"""A parameter that a spec may state for all samples, which then comes first."""
_REMEDY = (
    "state the governing equations with --family (hint family in a configuration), or "
    f"{NO_FAMILY} if no family fits"
)


def state_facts(recordings: Recordings, hints: Hints) -> Recordings:
    """The same recordings, with family, sides and parameters set when they are loaded."""
    if hints.family not in (None, NO_FAMILY):
        find_family(hints.family)
    is_native = recordings.kind == "native"
    return replace(
        recordings, load=partial(_load, recordings=recordings, hints=hints, infers=not is_native)
    )


def family_note(trajectory: Trajectory) -> str | None:
    """In words, that no family is stated and what is assumed, or what its equations lack."""
    spec, family = trajectory.spec, trajectory.spec.family
    if family is None and trajectory.local.get("hints", {}).get("family") != NO_FAMILY:
        reason = trajectory.local.get("family")
        known = f"assumed, because {reason}" if reason else "stated"
        return f"no PDE family is {known}. Training then has no physics terms: {_REMEDY}"
    if family is not None and "family" in trajectory.local:
        return (
            f"family not stated; assuming {family} flow without forces because the channels u and "
            f"v are a velocity; {_REMEDY}"
        )
    missing = () if family is None else set(find_family(family).channels) - set(spec.channels)
    if missing:
        return f"the equations of family {family!r} need the channels {', '.join(sorted(missing))}"
    return None


def _load(name: str, *, recordings: Recordings, hints: Hints, infers: bool) -> Trajectory:
    trajectory = recordings.load(name)
    spec, local = trajectory.spec, dict(trajectory.local)
    family = _family(spec, local, hints, infers)
    sides = Sides(**{**spec.grid.sides._asdict(), **read_sides(hints.sides)})
    parameters = {**trajectory.parameters, **hints.parameters}
    _check(trajectory, hints, family, sides)
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
    """The family; ``local`` is told whether it is inferred."""
    if hints.family is not None:
        local.pop("family", None)
        return None if hints.family == NO_FAMILY else hints.family
    if spec.family is None and infers and "family" not in local and _looks_incompressible(spec):
        local["family"] = _REASON
        return _INFERRED
    return spec.family


def _looks_incompressible(spec: FieldSpec) -> bool:
    units = dict(zip(spec.channels, spec.units, strict=True))
    if not {"u", "v"} <= set(units) or any(name.lower() in _OTHER_FLOWS for name in units):
        return False
    return all(doubt_unit(units[name], "velocity") is None for name in ("u", "v"))


def _check_pressure(
    trajectory: Trajectory, family: str | None, parameters: Mapping[str, float]
) -> None:
    """Refuse pressure in Pa without the density that the equations divide it by."""
    unit = dict(zip(trajectory.spec.channels, trajectory.spec.units, strict=True)).get("p", "1")
    if family is None or _DENSITY in parameters or not _PRESSURE.fullmatch(unit):
        return
    if _DENSITY in find_family(family).coefficients:
        raise ValueError(
            f"trajectory {trajectory.name!r}: p is in {unit}, and the equations of family "
            f"{family!r} take it as kinematic (divided by the density, m2/s2) if no density is "
            f"stated; add --parameter {_DENSITY}=NUMBER, or state --family {_INFERRED}, which "
            "needs no pressure"
        )


def _check(trajectory: Trajectory, hints: Hints, family: str | None, sides: Sides) -> None:
    """Refuse what contradicts the file, or tell that it is replaced."""
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
