"""Learning curves of a comparison as one table."""

import csv
import json
from pathlib import Path

import pytest

from pibert.comparison.curves import COLUMNS, curves_of
from pibert.comparison.plan import Job
from tests.comparison.conftest import Carried


def test_every_epoch_of_every_run_has_a_row(carried: Carried) -> None:
    with (carried.out / "curves.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert tuple(rows[0]) == COLUMNS
    own = [row for row in rows if (row["model"], row["seed"]) == ("pibert", "1")]
    assert [row["stage"] for row in own] == ["pretraining"] * 2 + ["training"] * 3
    folder = Job("waves", "pibert", 1).folder(carried.out)
    lines = [json.loads(text) for text in (folder / "log.jsonl").read_text().splitlines()]
    epochs = [line for line in lines if line["kind"] == "epoch"]
    for row, line in zip(own[2:], epochs, strict=True):
        assert int(row["epoch"]) == line["epoch"] and int(row["step"]) == line["step"]
        assert float(row["learning_rate"]) == line["learning_rate"]
        assert float(row["train_loss"]) == line["train"]["loss"]
        assert float(row["valid_error"]) == line["valid"]["reconstruction"]
        assert row["best"] == str(int(line["best"]))
    size = lines[0]["samples_per_epoch"]
    assert [int(row["samples"]) for row in own] == [size * n for n in range(1, 6)]
    elapsed = [float(row["elapsed"]) for row in own]
    assert elapsed == sorted(elapsed)
    assert elapsed[-1] == pytest.approx(sum(float(row["seconds"]) for row in own), abs=0.01)
    assert not any(row["model"] == "persistence" for row in rows)


def test_what_a_log_does_not_tell_is_left_empty(tmp_path: Path) -> None:
    lines = [
        {"kind": "start"},
        {"kind": "epoch", "epoch": 1, "step": 3, "train": {"loss": None}, "valid": None},
    ]
    (tmp_path / "log.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (row,) = curves_of(tmp_path)
    assert (row["epoch"], row["step"]) == (1, 3)
    assert [row[key] for key in ("samples", "train_loss", "valid_loss", "seconds")] == [None] * 4
    assert list(curves_of(tmp_path / "absent")) == []
