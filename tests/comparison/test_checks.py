"""Which finished runs may enter: what they saw, and what they began with."""

import json
from pathlib import Path
from typing import Any

import pytest

from pibert.comparison.checks import refuse_other_training
from pibert.comparison.plan import Job
from tests.comparison.conftest import Carried


def copy_of(carried: Carried, folder: Path, **changes: Any) -> Path:
    """A run of the comparison whose record says other things of the experiment or its data."""
    source = Job("waves", "fno2d", 1).folder(carried.out)
    folder.mkdir()
    (folder / "model.safetensors").write_bytes((source / "model.safetensors").read_bytes())
    card = json.loads((source / "model.json").read_text())
    experiment = card["provenance"]["experiment"]
    experiment |= {key: value for key, value in changes.items() if key in experiment}
    experiment["data"] |= changes.get("parted", {})
    for key in changes.get("unrecorded", ()):
        del experiment["data"][key]
    card["provenance"]["data"] |= changes.get("source", {})
    (folder / "model.json").write_text(json.dumps(card))
    (folder / "config.json").write_text(json.dumps({"directory": str(folder.parent)}))
    return folder


def enter(carried: Carried, folder: Path) -> None:
    refuse_other_training(folder, carried.comparison.data["waves"], carried.flows)


def test_a_run_enters_with_a_start_of_the_same_split_or_of_other_flows(
    carried: Carried, tmp_path: Path
) -> None:
    copy_of(carried, tmp_path / "same")
    copy_of(carried, tmp_path / "other", source={"fingerprint": "0"}, parted={"split_seed": 7})
    for start in ("same", "other", "same/model.safetensors"):
        name = start.replace("/", "-")
        # From where the run was started, wherever that is now.
        enter(carried, copy_of(carried, tmp_path / f"from-{name}", start=start))


def test_the_first_of_several_starts_is_checked_too(carried: Carried, tmp_path: Path) -> None:
    copy_of(carried, tmp_path / "saw", parted={"split_seed": 7})
    copy_of(carried, tmp_path / "between", start="saw", source={"fingerprint": "0"})
    last = copy_of(carried, tmp_path / "last", start="between")
    with pytest.raises(ValueError, match=r"saw: .*split_seed is 7"):
        enter(carried, last)


def test_a_run_of_unknown_provenance_does_not_enter(carried: Carried, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="'gone'"):
        enter(carried, copy_of(carried, tmp_path / "orphan", start="gone"))
    silent = copy_of(carried, tmp_path / "silent")
    card = json.loads((silent / "model.json").read_text())
    (silent / "model.json").write_text(json.dumps(card | {"provenance": {}}))
    with pytest.raises(ValueError, match="silent: .*model.json"):
        enter(carried, copy_of(carried, tmp_path / "heir", start="silent"))
