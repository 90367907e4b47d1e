"""Provenance: whether a model predicted the fields, and whether coordinates and times are stated.

Files of predictions have the kind ``predicted``, the model's name, the fingerprint of its weights
and, with prediction intervals, their level. They are not ground truth to learn or to score from.
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
    """Source facts of a prediction; ``level`` is that of its prediction intervals, if any."""
    made = {"model": model, "weights_sha256": weights_sha256, "bars_level": level}
    kept = {key: value for key, value in source.items() if key not in made}
    return {**kept, "kind": PREDICTED, "predicted_from": source.get("kind"), **made}


def predicted_by(source: Mapping[str, Any]) -> str | None:
    """The model that source facts name, in words; None where the fields were not predicted."""
    if source.get("kind") != PREDICTED:
        return None
    weights, level = source.get("weights_sha256"), source.get("bars_level")
    text = f"predicted by {source.get('model') or 'an unnamed model'}"
    text += f" (weights {str(weights)[:12]})" if weights else ""
    return text if level is None else f"{text}, with prediction intervals of level {level:g}"


def own_facts(stated: Any) -> dict[str, Any]:
    """Source facts in the JSON that files of other formats carry if this package wrote them."""
    try:
        found = json.loads(str(stated)).get("source", {})
    except (ValueError, AttributeError, RecursionError):
        return {}
    return dict(found) if isinstance(found, dict) else {}


FRAMES = ("frame", "frames")
"""Units of times that count frames in a file's own words."""


def counts_points(trajectory: "Trajectory") -> bool:
    """Whether its coordinates are the numbers of the points."""
    grid = trajectory.spec.grid
    return trajectory.length_unit is None and (grid.dx, grid.dy, *grid.origin) == (1, 1, 0, 0)


def counts_frames(trajectory: "Trajectory") -> bool:
    """Whether its times are the numbers of the frames."""
    stated = trajectory.spec.dt is not None or trajectory.time_unit is not None
    return not stated and bool((trajectory.time == trajectory.time.round()).all())
