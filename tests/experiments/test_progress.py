"""A run that was stopped is told from one that is finished."""

import json
from pathlib import Path
from typing import Any

import pytest

from pibert.experiments.progress import unfinished


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
    ("epochs", "best", "valid", "schedule"),
    [
        (40, 32, VALID, {}),
        (32, 22, VALID, {"patience": 10}),  # stopped early, as planned
        (32, 20, VALID, {"patience": 10, "validate_every": 5}),
    ],
)
def test_a_finished_run_is_not_remarked_on(
    tmp_path: Path, epochs: int, best: int, valid: Any, schedule: dict[str, Any]
):
    assert unfinished(made(tmp_path, epochs, best, valid, **schedule)) is None


@pytest.mark.parametrize(
    ("epochs", "best", "valid", "schedule"),
    [
        (32, 22, VALID, {}),
        (32, 23, VALID, {"patience": 10}),
        (32, 22, VALID, {"patience": 10, "validate_every": 5}),
        (32, 1, None, {"patience": 10}),  # nothing is validated, so nothing stops it
    ],
)
def test_a_run_that_was_stopped_says_how_far_it_came_and_how_to_go_on(
    tmp_path: Path, epochs: int, best: int, valid: Any, schedule: dict[str, Any]
):
    told = unfinished(made(tmp_path, epochs, best, valid, **schedule))
    assert told is not None
    assert "not finished, epoch 32 of 40" in told and f"pibert resume {tmp_path}" in told


def test_a_model_without_epochs_is_not_remarked_on(tmp_path: Path):
    assert unfinished(tmp_path) is None
    made(tmp_path, 1, 1, VALID)
    (tmp_path / "log.jsonl").unlink()
    assert unfinished(tmp_path) is None
