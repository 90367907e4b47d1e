"""Learning curves: any log of any length gives a picture, and the best epoch is found."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure

from pibert.report.curves import best_epoch, draw_curves, read_epochs


def entry(epoch: int, valid: float | None, **others: Any) -> dict[str, Any]:
    record = {"kind": "epoch", "epoch": epoch, "learning_rate": 1e-3, "train": {"loss": 2 / epoch}}
    return record | ({"valid": {"loss": valid}} if valid is not None else {}) | others


def write_log(folder: Path, records: list[dict[str, Any]], tail: str = "") -> Path:
    lines = [json.dumps({"kind": "start", "total_steps": 9}), *map(json.dumps, records)]
    path = folder / "log.jsonl"
    path.write_text("\n".join(lines) + "\n" + tail)
    return path


def lines_of(figure: Figure) -> dict[str, list[list[float]]]:
    """The points of the lines of the first panel, by their label."""
    lines = figure.axes[0].get_lines()
    return {str(line.get_label()): np.asarray(line.get_xydata()).tolist() for line in lines}


def test_the_lines_are_those_of_the_log(tmp_path: Path, drawn: list[Figure]) -> None:
    """Also where a validation is left out; a value that is not finite leaves a gap."""
    records = [entry(1, 5.0), entry(2, None), entry(3, math.nan), entry(4, 2.0)]
    records[3]["train"]["loss"] = None
    draw_curves(write_log(tmp_path, records), tmp_path / "curves.png")
    found = lines_of(drawn[0])
    np.testing.assert_array_equal(found["train"], [[1, 2.0], [2, 1.0], [3, 2 / 3], [4, math.nan]])
    np.testing.assert_array_equal(found["valid"], [[1, 5.0], [3, math.nan], [4, 2.0]])


def test_the_best_epoch_is_the_last_that_the_log_calls_so(tmp_path: Path) -> None:
    # The quantity that decides need not be the loss.
    records = [entry(1, 1.0, best=True), entry(2, 3.0, best=True), entry(3, 2.0, best=False)]
    assert best_epoch(read_epochs(write_log(tmp_path, records))) == 2
    unvalidated = write_log(tmp_path, [entry(n, None, best=True) for n in (1, 2)])
    assert best_epoch(read_epochs(unvalidated)) is None
    draw_curves(unvalidated, tmp_path / "curves.png")


def test_an_epoch_that_was_done_again_counts_once_and_half_a_line_not(tmp_path: Path) -> None:
    records = [entry(1, 1.0), entry(2, 9.0), entry(2, 3.0), entry(3, 4.0)]
    log = write_log(tmp_path, records, tail='{"kind": "epoch", "epo')
    found = [(record["epoch"], record["valid"]["loss"]) for record in read_epochs(log)]
    assert found == [(1, 1.0), (2, 3.0), (3, 4.0)]


def test_a_log_without_epochs_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"log.jsonl.*found none"):
        draw_curves(write_log(tmp_path, []), tmp_path / "curves.png")
