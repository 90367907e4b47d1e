"""Provenance: whether a model predicted the fields, and whether coordinates and times are stated.

Predictions have the kind ``predicted``, the model's name, the fingerprint of its weights and the
level of prediction intervals. They are not ground truth for training or scores.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # the command line imports this module before it needs torch
    from pibert.fields import FieldSpec, Trajectory


PREDICTED = "predicted"


def predicted_source(
    source: Mapping[str, Any], model: str, weights_sha256: str | None, level: float | None
) -> dict[str, Any]:
    """Return source facts of a prediction; ``level`` is that of its prediction intervals."""
    facts = {"model": model, "weights_sha256": weights_sha256, "interval_level": level}
    return {**source, "kind": PREDICTED, "predicted_from": source.get("kind"), **facts}


def predicted_by(source: Mapping[str, Any]) -> str | None:
    """Describe the model that predicted the fields; None if they were not predicted."""
    if source.get("kind") != PREDICTED:
        return None
    weights, level = source.get("weights_sha256"), source.get("interval_level")
    level = level or source.get("bars_level")  # its name in earlier versions
    text = f"predicted by {source.get('model') or 'an unnamed model'}"
    text += f" (weights {str(weights)[:12]})" if weights else ""
    return text if level is None else f"{text}, with prediction intervals of level {level:g}"


def own_record(stated: Any) -> dict[str, Any]:
    """Parse the JSON that this package writes into files of other formats; empty if it is none."""
    try:
        found = json.loads(str(stated))
    except (ValueError, RecursionError):
        return {}
    if not isinstance(found, dict):
        return {}
    return {**found, "source": found["source"] if isinstance(found.get("source"), dict) else {}}


def own_spec(record: Mapping[str, Any]) -> "FieldSpec | None":
    """Return the spec that a record states; None if it states none, or a damaged one."""
    from pibert.fields import FieldSpec

    try:
        return FieldSpec.from_dict(record["spec"])
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError):
        return None


def restored(trajectory: "Trajectory", record: Mapping[str, Any]) -> "Trajectory":
    """Return what was read from a file with the spec and facts that its record states.

    Other programs keep the record when they crop or rescale the fields. So it is ignored unless
    channels, grid and units agree with those that were read.
    """
    from pibert.data.format.reading import keeps_step
    from pibert.data.units import UNKNOWN, same_unit

    spec, grid, own = trajectory.spec, trajectory.spec.grid, own_spec(record)
    if own is None or own.channels != spec.channels or own.grid.shape != grid.shape:
        return trajectory
    try:
        parameters = {name: float(value) for name, value in record["parameters"].items()}
        local, length, clock = (record[key] for key in ("local", "length_unit", "time_unit"))
        time, dt = trajectory.time.cpu(), spec.dt and (own.dt or spec.dt)
        if own.dt is None and clock is None and bool((time == time.round()).all()):
            dt = None  # frame numbers
        elif spec.dt is None and own.dt and keeps_step(time.numpy(), own.dt):
            dt = own.dt  # in bursts whose distance is no whole number of steps
        # Keeps a reader from inferring a family that the data were written without.
        stated = {"family": "the file states none"} if own.family is None else {}
        changed = replace(
            trajectory,
            spec=replace(own, grid=replace(own.grid, body=grid.body), dt=dt),
            parameters=parameters,
            local={**stated, **local, **trajectory.local},
            length_unit=None if length is None else str(length),
            time_unit=None if clock is None else str(clock),
        )
    except (KeyError, TypeError, ValueError, AttributeError):
        return trajectory

    def close(mine: float, theirs: float, scale: float) -> bool:
        return math.isclose(mine, theirs, rel_tol=1e-6, abs_tol=1e-6 * scale)

    def agree(mine: str | None, theirs: str | None) -> bool:
        return mine in UNKNOWN or same_unit(str(mine), str(theirs))

    pairs = [(grid.dx, own.grid.dx, grid.dx), (grid.dy, own.grid.dy, grid.dy)]
    pairs += zip(grid.origin, own.grid.origin, (grid.dx, grid.dy), strict=True)
    pairs += [(spec.dt, own.dt, 0.0)] if spec.dt and own.dt else []
    units = [*zip(spec.units, own.units, strict=True), (trajectory.length_unit, length)]
    units += [(trajectory.time_unit, clock)]
    same = all(close(*pair) for pair in pairs) and all(agree(*pair) for pair in units)
    return changed if same else trajectory


FRAMES = ("frame", "frames")
"""Units of time in files that count frames."""


def counts_points(trajectory: "Trajectory") -> bool:
    """Return whether the coordinates are the indices of the points."""
    grid = trajectory.spec.grid
    return trajectory.length_unit is None and (grid.dx, grid.dy, *grid.origin) == (1, 1, 0, 0)


def counts_frames(trajectory: "Trajectory") -> bool:
    """Return whether the times are frame numbers."""
    stated = trajectory.spec.dt is not None or trajectory.time_unit is not None
    return not stated and bool((trajectory.time == trajectory.time.round()).all())


def frame_step(trajectory: "Trajectory") -> float | None:
    """Return the time between neighbouring frames, in numbers of frames where these are counted.

    None: the frames are not even, or their step is not known. Frames further apart are no
    neighbours.
    """
    steps = trajectory.time.diff()
    if trajectory.spec.dt is not None or not len(steps) or not counts_frames(trajectory):
        return trajectory.spec.dt
    least = float(steps.min())
    is_even = bool((steps % least == 0).all()) and float((steps == least).double().mean()) >= 0.5
    return least if is_even else None
