"""What a comparison refuses: the folder of another one, and runs that may have seen the test split.

A finished run takes part only if it was trained on the same data, split and represented in the same
way. The same holds for the weights that it started from, and for those that they started from, as
far as they were trained on these data; other flows do no harm.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_type_hints

from pibert import config
from pibert.comparison.plan import Candidate, Comparison, with_candidates
from pibert.data.partial import replace_file
from pibert.experiments.experiment import DataConfig
from pibert.experiments.flows import IDENTITIES, Flows
from pibert.inference import load
from pibert.inference.model_file import find_model
from pibert.textfiles import read_json

NAME = "comparison.json"
_FREE = ("path", "hints", "in_memory", "labelled")
"""Settings of data that change neither what they are nor how they are split."""


def claim_folder(comparison: Comparison, out: Path) -> None:
    """Store the comparison in its folder; the folder of another one is refused."""
    asked = refuse_other(comparison, out)
    out.mkdir(parents=True, exist_ok=True)
    replace_file(out / NAME, (json.dumps(asked, indent=1) + "\n").encode())


def refuse_other(comparison: Comparison, out: Path) -> dict[str, Any]:
    """Refuse a folder that holds another comparison; returns what is to be stored.

    Candidates, data sets and seeds may be added or left out. Shared settings must not change, nor a
    candidate or a data set under its old name.
    """
    path, asked = out / NAME, config.as_plain(comparison)
    if out.exists() and not out.is_dir():
        raise FileExistsError(f"{out} is a file; name a folder for the comparison")
    if path.exists():
        there, kinds = _read(path), get_type_hints(Comparison)
        for what, kind in (("candidates", Candidate), ("data", DataConfig)):
            for name in sorted(set(there[what]) & set(asked[what])):
                if _as_read_today(there[what][name], kind) != asked[what][name]:
                    raise ValueError(
                        f"{out}: {'candidate' if what == 'candidates' else 'data set'} {name!r} "
                        "has other settings there; choose another folder, or another name"
                    )
        for name in sorted(set(asked) - {"candidates", "data", "seeds"}):
            if _as_read_today(there.get(name), kinds[name]) != asked[name]:
                raise ValueError(
                    f"{out} holds another comparison: {name} is {there.get(name)!r} there and "
                    f"{asked[name]!r} here; choose another folder"
                )
        for what in ("candidates", "data"):
            asked[what] = {**there[what], **asked[what]}
    elif out.exists() and any(not entry.name.startswith(".") for entry in out.iterdir()):
        raise FileExistsError(f"{out} is not empty and no comparison; choose another folder")
    return dict(asked)


def _as_read_today(value: Any, kind: Any) -> Any:
    """A stored setting; what is new in it since then has its default."""
    try:
        return config.as_plain(config.as_kind(value, kind))
    except ValueError:  # it differs, which the caller reports
        return value


def _read(path: Path) -> dict[str, dict[str, object]]:
    try:
        content = read_json(path)
        content = with_candidates(content) if isinstance(content, dict) else {}
        if not all(isinstance(content.get(what), dict) for what in ("candidates", "data")):
            raise ValueError("expected candidates and data in it")
    except ValueError as error:
        raise ValueError(
            f"{path}: not a stored comparison ({error}); choose another folder"
        ) from None
    return content


def refuse_other_training(folder: Path, data: DataConfig, flows: Flows) -> None:
    """Refuse a run that may have seen the test split, or whose errors are not comparable.

    Args:
        folder: Of the run.
        data: Those of the comparison.
        flows: The same, prepared.
    """
    provenance = _provenance(folder)
    _refuse_other_data(folder, provenance, data, flows)
    if load(folder).normalizer != flows.normalizer:
        start = provenance["experiment"].get("start")
        why = f", because it started from {start!r} and keeps its statistics" if start else ""
        raise ValueError(
            f"{folder}: its fields are not standardised by the training split{why}: errors in "
            "standardised units are not comparable; take a run trained on these data alone"
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
                f"{mine.get(what)!r} here); it may have seen the test split"
            )
    # Parsed first, because older model files lack newer settings.
    stored = config.as_plain(
        config.parse(DataConfig, provenance["experiment"]["data"], f"{folder}: data")
    )
    for name, value in config.as_plain(data).items():
        if name not in _FREE and stored[name] != value:
            raise ValueError(
                f"{folder}: trained on data split or represented differently: data.{name} is "
                f"{stored[name]!r} there and {value!r} here; it may have seen the test split"
            )


def _refuse_starts(
    folder: Path, provenance: Mapping[str, Any], data: DataConfig, flows: Flows
) -> None:
    """Check what a run started from, and so on back to the first."""
    start = provenance["experiment"].get("start")
    if start is None:
        return
    place = _place_of(folder, start)
    theirs, mine = _provenance(place), flows.source
    if any(mine.get(what) and theirs["data"].get(what) == mine[what] for what in IDENTITIES):
        _refuse_other_data(place, theirs, data, flows)
    _refuse_starts(place, theirs, data, flows)


def _place_of(folder: Path, start: str) -> Path:
    """The folder of the model that a run started from; relative to where the run was launched."""
    record = folder / "config.json"
    stated = read_json(record) if record.exists() else {}
    began_in = stated.get("directory", ".") if isinstance(stated, dict) else "."
    place = Path(str(began_in)) / str(start)
    try:
        place = place if place.exists() else find_model(start)
    except FileNotFoundError:
        raise ValueError(
            f"{folder}: it started from {start!r}, which cannot be found, so it is unknown what "
            "that has seen; restore it, or take a run without a start"
        ) from None
    return place.parent if place.is_file() else place


def _provenance(folder: Path) -> dict[str, Any]:
    card = read_json(folder / "model.json")
    found = (card.get("provenance") if isinstance(card, dict) else None) or {}
    if not all(isinstance(found.get(part), dict) for part in ("data", "experiment")):
        raise ValueError(
            f"{folder}: its model.json does not state what it was trained on, so it is unknown "
            "whether it saw the test split; take a run of pibert train"
        )
    return dict(found)
