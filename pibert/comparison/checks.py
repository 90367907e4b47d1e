"""Checks of a comparison: its folder, and finished runs that may have seen the test split.

A finished run takes part only if it was trained on the same data, split and represented in the same
way. The same holds for the weights that it started from, and for those that they started from, as
far as they were trained on these data; other flows do no harm.
"""

import json
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any, get_type_hints

from pibert import config
from pibert.comparison.plan import Candidate, Comparison, with_candidates
from pibert.data.partial import replace_file
from pibert.experiments.experiment import DataConfig
from pibert.experiments.flows import IDENTITIES, Flows
from pibert.experiments.run_folder import FLOWS
from pibert.files import read_json
from pibert.inference import load
from pibert.inference.model_file import find_model

NAME = "comparison.json"
_FREE = ("path", "hints", "in_memory", "labelled", "test", "calibration")
"""Settings of data that change neither what models learn from nor how it is split."""


def claim_folder(comparison: Comparison, out: Path) -> None:
    """Store the comparison in its folder; the folder of another one is refused."""
    plain = refuse_other(comparison, out)
    out.mkdir(parents=True, exist_ok=True)
    replace_file(out / NAME, (json.dumps(plain, indent=1) + "\n").encode())


def refuse_other(comparison: Comparison, out: Path) -> dict[str, Any]:
    """Refuse a folder that holds another comparison; returns the content to store.

    Candidates, data sets and seeds may be added or left out; the paper's numbers may be shown, and
    another model tested.
    Other shared settings must not change, nor a candidate or a data set under its old name.
    """
    path, plain = out / NAME, dict(config.as_plain(comparison))
    if out.exists() and not out.is_dir():
        raise FileExistsError(f"{out} is a file; name a folder for the comparison")
    if path.exists():
        stored, kinds = _read(path), get_type_hints(Comparison)
        for what, kind in (("candidates", Candidate), ("data", DataConfig)):
            for name in sorted(set(stored[what]) & set(plain[what])):
                if _upgraded(stored[what][name], kind) != plain[what][name]:
                    raise ValueError(
                        f"{out}: {'candidate' if what == 'candidates' else 'data set'} {name!r} "
                        "has other settings there; choose another folder, or another name"
                    )
            plain[what] = {**stored[what], **plain[what]}
        added = {own.name: own.default for own in fields(Comparison) if "added" in own.metadata}
        for name in sorted(set(plain) - {"candidates", "data", "seeds", "published", "tested"}):
            before = _upgraded(stored.get(name, added.get(name)), kinds[name])
            if name == "rollout" and not before["free_run"] and "windows" not in stored[name]:
                before["free_run"] = plain[name]["free_run"]  # off by default in those versions
            if before != plain[name]:
                raise ValueError(
                    f"{out} holds another comparison: {name} is {stored.get(name)!r} there and "
                    f"{plain[name]!r} here; choose another folder"
                )
    elif out.exists() and any(not e.name.startswith((".", FLOWS)) for e in out.iterdir()):
        raise FileExistsError(f"{out} is not empty and no comparison; choose another folder")
    return plain


def _upgraded(value: Any, kind: Any) -> Any:
    """Return a stored setting in which settings that are new since then have their defaults."""
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
    """Refuse a run that may have seen the test split, or whose errors are not comparable."""
    provenance = _provenance(folder)
    _refuse_other_data(folder, provenance, data, flows)
    if load(folder).normalizer != flows.normalizer:
        start = provenance["experiment"].get("start")
        why = f", because it started from {start!r} and keeps its statistics" if start else ""
        raise ValueError(
            f"{folder}: its fields are not standardised by the training split{why}: errors in "
            "standardised units are not comparable; take a run trained only on these data"
        )
    while (start := provenance["experiment"].get("start")) is not None:
        folder = _start_folder(folder, start)
        provenance = _provenance(folder)
        sources = flows.source, flows.source.get("test", {})
        known = [(key, own[key]) for own in sources for key in IDENTITIES if own.get(key)]
        if any(provenance["data"].get(key) == value for key, value in known):
            _refuse_other_data(folder, provenance, data, flows)


def _refuse_other_data(
    folder: Path, provenance: Mapping[str, Any], data: DataConfig, flows: Flows
) -> None:
    theirs, mine = provenance["data"], flows.source
    for key in IDENTITIES:
        if theirs.get(key) != mine.get(key):
            raise ValueError(
                f"{folder}: trained on other data than these ({key} {theirs.get(key)!r} there, "
                f"{mine.get(key)!r} here); it may have seen the test split"
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


def _start_folder(folder: Path, start: str) -> Path:
    """Return the folder of a run's start, which is relative to where the run was launched."""
    record = folder / "config.json"
    stated = read_json(record) if record.exists() else {}
    launched_in = stated.get("directory", ".") if isinstance(stated, dict) else "."
    path = Path(str(launched_in)) / str(start)
    try:
        path = path if path.exists() else find_model(start)
    except FileNotFoundError:
        raise ValueError(
            f"{folder}: it started from {start!r}, which cannot be found, so it is unknown which "
            "flows that was trained on; restore it, or take a run without a start"
        ) from None
    return path.parent if path.is_file() else path


def _provenance(folder: Path) -> dict[str, Any]:
    card = read_json(folder / "model.json")
    provenance = (card.get("provenance") if isinstance(card, dict) else None) or {}
    if not all(isinstance(provenance.get(key), dict) for key in ("data", "experiment")):
        raise ValueError(
            f"{folder}: its model.json does not state what it was trained on, so it is unknown "
            "whether it saw the test split; take a run of pibert train"
        )
    return dict(provenance)
