"""The log: whole lines, exact means, lines of unknown epochs dropped, a full disk survived."""

import math
from pathlib import Path
from typing import Any

import torch

from pibert.training.journal import Journal, LogSums, means, read_log

CPU = torch.device("cpu")


def record(epoch: int, **changes: Any) -> dict[str, Any]:
    return {
        "kind": "epoch",
        "epoch": epoch,
        "step": 4 * epoch,
        "learning_rate": 1e-3,
        "train": {"loss": 1.0 / epoch},
        "valid": {"loss": 2.0 / epoch},
        **changes,
    }


def write_run(folder: Path, *epochs: int, step: int = 0, kept: int = 0) -> list[str]:
    lines: list[str] = []
    journal = Journal(folder, lines.append)
    journal.open({"total_steps": 12}, epochs=kept, step=step)
    for epoch in epochs:
        journal.write(record(epoch))
    return lines


def test_means_are_over_samples_whatever_the_pieces_and_processes() -> None:
    first, second = LogSums(CPU), LogSums(CPU)
    first.add(torch.tensor(1.0), {"a": torch.tensor(10.0)}, 3)
    first.add(torch.tensor(4.0), {"a": torch.tensor(20.0)}, 1)
    second.add(torch.tensor(7.0), {"b": torch.tensor(5.0)}, 4)
    found = means([first.to_plain(), second.to_plain(), LogSums(CPU).to_plain()])
    assert found == {"loss": (3.0 + 4.0 + 28.0) / 8, "a": 50.0 / 4, "b": 5.0}


def test_a_resumed_log_drops_what_its_state_does_not_know(tmp_path: Path) -> None:
    write_run(tmp_path, 1, 2, 3)
    with (tmp_path / "log.jsonl").open("a") as file:
        file.write('{"kind": "epoch", "epo')  # killed in writing
    write_run(tmp_path, 2, 3, step=7, kept=1)
    epochs = [line.get("epoch") for line in read_log(tmp_path / "log.jsonl")]
    assert epochs == [None, 1, 2, 3]


def test_a_resumed_log_reports_the_epochs_that_it_lost(tmp_path: Path) -> None:
    write_run(tmp_path, 1, 2, 3)
    log = tmp_path / "log.jsonl"
    lines = log.read_text().splitlines(keepends=True)
    log.write_text("".join(lines[:2] + lines[3:]))
    (text,) = write_run(tmp_path, 4, step=12, kept=3)
    assert "1 of the 3 finished epochs" in text
    assert [line["epoch"] for line in read_log(log)[1:]] == [1, 3, 4]
    assert write_run(tmp_path, 5, step=4, kept=1) == []


def test_values_that_are_not_finite_are_null(tmp_path: Path) -> None:
    journal = Journal(tmp_path, print)
    journal.open({}, epochs=0, step=0)
    journal.write(record(1, valid={"loss": math.nan, "other": math.inf}))
    assert read_log(tmp_path / "log.jsonl")[-1]["valid"] == {"loss": None, "other": None}


def test_a_full_disk_is_reported_and_does_not_stop_the_log(tmp_path: Path) -> None:
    lines: list[str] = []
    journal = Journal(tmp_path, lines.append)
    journal.open({}, epochs=0, step=0)
    log = tmp_path / "log.jsonl"
    log.rename(tmp_path / "kept.jsonl")
    log.symlink_to("/dev/full")
    journal.write(record(1))
    journal.write(record(2))
    log.unlink()
    (tmp_path / "kept.jsonl").rename(log)
    journal.write(record(3))
    assert len(lines) == 2 and all("No space left on device" in text for text in lines)
    assert [line.get("epoch") for line in read_log(log)] == [None, 3]
