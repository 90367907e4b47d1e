"""Notes on unfinished runs, and files that are not the config of a run."""

import json
from pathlib import Path
from typing import Any

import pytest

from pibert.experiments.run_folder import read_record, unfinished


def made(folder: Path, epochs: int, best: int, valid: Any, **schedule: Any) -> Path:
    facts = {"epochs": 40, "patience": None, "validate_every": 1, **schedule}
    record = {"experiment": {}, "stage": "train", "schedule": facts}
    (folder / "config.json").write_text(json.dumps(record))
    lines: list[dict[str, Any]] = [{"kind": "start"}]
    for epoch in range(1, epochs + 1):
        lines.append({"kind": "epoch", "epoch": epoch, "best_epoch": best, "valid": valid})
    (folder / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return folder


VALID = {"loss": 1.0}


@pytest.mark.parametrize(
    ("epochs", "best", "valid", "schedule", "finished"),
    [
        (40, 32, VALID, {}, True),
        (32, 22, VALID, {"patience": 10}, True),  # stopped early, as planned
        (32, 22, VALID, {}, False),
        (32, 23, VALID, {"patience": 10}, False),
        (32, 1, None, {"patience": 10}, False),  # nothing is validated, so nothing stops it
    ],
)
def test_only_a_stopped_run_gets_a_note_on_how_to_resume_it(
    tmp_path: Path, epochs: int, best: int, valid: Any, schedule: dict[str, Any], finished: bool
):
    assert unfinished(tmp_path) is None
    note = unfinished(made(tmp_path, epochs, best, valid, **schedule))
    if finished:
        assert note is None
    else:
        assert note is not None and "32 of 40" in note and f"pibert resume {tmp_path}" in note
    (tmp_path / "log.jsonl").unlink()
    assert unfinished(tmp_path) is None


@pytest.mark.parametrize(
    "content",
    [
        "",
        "[]",
        '{"experiment": {}}',
        '{"experiment": 3, "stage": "train"}',
        '{"experiment": {}, "stage": "rest"}',
    ],
)
def test_a_file_that_is_not_the_config_of_a_run_is_refused(tmp_path: Path, content: str) -> None:
    path = tmp_path / "config.json"
    path.write_text(content)
    with pytest.raises(ValueError, match=r"config.json: not the config of a run"):
        read_record(path)
