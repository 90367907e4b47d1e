"""Provenance: whether a model predicted the fields, and whether coordinates and times are stated.

Predictions have the kind ``predicted``, the model's name, the fingerprint of its weights and the
level of prediction intervals. They are not ground truth for training or scores.
"""

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:  # the command line imports this module before it needs torch
    from pibert.fields import Trajectory


PREDICTED = "predicted"


def predicted_source(
    source: Mapping[str, Any], model: str, weights_sha256: str | None, level: float | None
) -> dict[str, Any]:
    """Return source facts of a prediction; ``level`` is that of its prediction intervals."""
    facts = {"model": model, "weights_sha256": weights_sha256, "bars_level": level}
    return {**source, "kind": PREDICTED, "predicted_from": source.get("kind"), **facts}


def predicted_by(source: Mapping[str, Any]) -> str | None:
    """Describe the model that predicted the fields; None if they were not predicted."""
    if source.get("kind") != PREDICTED:
        return None
    weights, level = source.get("weights_sha256"), source.get("bars_level")
    text = f"predicted by {source.get('model') or 'an unnamed model'}"
    text += f" (weights {str(weights)[:12]})" if weights else ""
    return text if level is None else f"{text}, with prediction intervals of level {level:g}"


def own_facts(stated: Any) -> dict[str, Any]:
    """Parse the source facts that this package writes as JSON into files of other formats."""
    try:
        found = json.loads(str(stated)).get("source", {})
    except (ValueError, AttributeError, RecursionError):
        return {}
    return dict(found) if isinstance(found, dict) else {}


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
