"""Fields that a model predicted: what their source facts say, and how they are told from others.

Files of predictions have the kind ``predicted``, the model's name, the fingerprint of its weights
and, where they hold error bars, the level of these. They are no truth to learn or to score from.
"""

import json
from collections.abc import Mapping
from typing import Any

PREDICTED = "predicted"


def predicted_source(
    source: Mapping[str, Any], model: str, weights_sha256: str | None, level: float | None
) -> dict[str, Any]:
    """Source facts of what a model predicted.

    Args:
        source: Of the fields that it started from.
        model: Its name.
        weights_sha256: Their fingerprint.
        level: Of the error bars, if there are any.
    """
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
    return text if level is None else f"{text}, with bars of level {level:g}"


def own_facts(stated: Any) -> dict[str, Any]:
    """Source facts in the JSON that files of other formats carry if this package wrote them."""
    try:
        found = json.loads(str(stated)).get("source", {})
    except (ValueError, AttributeError, RecursionError):
        return {}
    return dict(found) if isinstance(found, dict) else {}
