"""Whether a finished run may enter a comparison: what it saw, and what it began with.

A run must have been trained on the same data, parted and represented in the same way; otherwise
it may have seen the test part. The same holds for the weights that it began with, and for those
that they began with, as far as they were trained on these data; other flows do no harm.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pibert import config
from pibert.experiments.experiment import DataConfig
from pibert.experiments.flows import IDENTITIES, Flows
from pibert.predictor import load
from pibert.predictor.shipped import find_model
from pibert.textfiles import read_json

_FREE = ("path", "hints", "in_memory", "labelled")
"""Settings of data that change neither what they are nor how they are parted."""


def refuse_other_training(folder: Path, data: DataConfig, flows: Flows) -> None:
    """Refuse a run that may have seen the test part, or whose errors would not compare.

    Args:
        folder: Of the run.
        data: Those of the comparison.
        flows: The same, prepared.
    """
    provenance = _provenance(folder)
    _refuse_other_data(folder, provenance, data, flows)
    if load(folder).normalizer != flows.normalizer:
        start = provenance["experiment"].get("start")
        why = f", as it began with {start!r} and keeps its numbers" if start else ""
        raise ValueError(
            f"{folder}: its fields are standardised otherwise than by the training part{why}: "
            "errors in standardised units would not compare"
        )
    _refuse_starts(folder, provenance, data, flows)


def _refuse_other_data(
    folder: Path, provenance: Mapping[str, Any], data: DataConfig, flows: Flows
) -> None:
    theirs, mine = provenance["data"], flows.source
    for what in IDENTITIES:
        if theirs.get(what) != mine.get(what):
            raise ValueError(
                f"{folder}: trained on other data than these ({what} {theirs.get(what)!r} there, "
                f"{mine.get(what)!r} here); it may have seen the test part"
            )
    # By way of a plan: an older record has not all of the settings.
    parsed = config.parse(DataConfig, provenance["experiment"]["data"], f"{folder}: data")
    parted = config.as_plain(parsed)
    for name, value in config.as_plain(data).items():
        if name not in _FREE and parted[name] != value:
            raise ValueError(
                f"{folder}: trained on data parted or represented otherwise: data.{name} is "
                f"{parted[name]!r} there and {value!r} here; it may have seen the test part"
            )


def _refuse_starts(
    folder: Path, provenance: Mapping[str, Any], data: DataConfig, flows: Flows
) -> None:
    """What a run began with, and so on to the first."""
    start = provenance["experiment"].get("start")
    if start is None:
        return
    place = _place_of(folder, start)
    theirs, mine = _provenance(place), flows.source
    if any(mine.get(what) and theirs["data"].get(what) == mine[what] for what in IDENTITIES):
        _refuse_other_data(place, theirs, data, flows)
    _refuse_starts(place, theirs, data, flows)


def _place_of(folder: Path, start: str) -> Path:
    """The folder of a model that a run began with; relative paths begin where the run did."""
    record = folder / "config.json"
    stated = read_json(record) if record.exists() else {}
    began_in = stated.get("directory", ".") if isinstance(stated, dict) else "."
    place = Path(str(began_in)) / str(start)
    try:
        place = place if place.exists() else find_model(start)
    except FileNotFoundError:
        raise ValueError(
            f"{folder}: it began with {start!r}, which is not there (any more), so nobody knows "
            "what that has seen; bring it back, or take a run without a start"
        ) from None
    return place.parent if place.is_file() else place


def _provenance(folder: Path) -> dict[str, Any]:
    card = read_json(folder / "model.json")
    found = (card.get("provenance") if isinstance(card, dict) else None) or {}
    if not all(isinstance(found.get(part), dict) for part in ("data", "experiment")):
        raise ValueError(
            f"{folder}: its model.json does not tell what it was trained on, so nobody knows "
            "whether it saw the test part; take a run of pibert train"
        )
    return dict(found)
