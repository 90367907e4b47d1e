"""Learning curves: any log of any length gives a picture, and the best epoch is found."""

import json
import math
import os
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from matplotlib.figure import Figure

from pibert.report import curves
from pibert.report.curves import best_epoch, draw_curves, read_epochs


def entry(epoch: int, valid: float | None, **others: Any) -> dict[str, Any]:
    record = {"kind": "epoch", "epoch": epoch, "learning_rate": 1e-3, "train": {"loss": 2 / epoch}}
    return record | ({"valid": {"loss": valid}} if valid is not None else {}) | others


def write_log(path: Path, records: list[dict[str, Any]], tail: str = "") -> Path:
    lines = [json.dumps({"kind": "start", "total_steps": 9}), *map(json.dumps, records)]
    path.write_text("\n".join(lines) + "\n" + tail)
    return path


def png_size(path: Path) -> tuple[int, int]:
    head = path.read_bytes()[:24]
    assert head.startswith(b"\x89PNG\r\n\x1a\n")
    width, height = struct.unpack(">II", head[16:24])
    return width, height


@pytest.fixture
def drawn(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """Figures that were written."""
    figures: list[Figure] = []
    write = curves.write_figure

    def keep(figure: Figure, path: Path) -> Path:
        figures.append(figure)
        return write(figure, path)

    monkeypatch.setattr(curves, "write_figure", keep)
    return figures


@pytest.mark.parametrize("count", [1, 2, 500])
def test_a_log_of_any_length_is_drawn(tmp_path: Path, count: int) -> None:
    log = write_log(tmp_path / "log.jsonl", [entry(n, 3 / n) for n in range(1, count + 1)])
    path = draw_curves(log, tmp_path / "new" / "curves.png")
    width, height = png_size(path)
    assert width > height > 300  # two panels beside each other
    assert os.listdir(path.parent) == ["curves.png"]


def test_the_lines_are_those_of_the_log(tmp_path: Path, drawn: list[Figure]) -> None:
    log = write_log(tmp_path / "log.jsonl", [entry(1, 5.0), entry(2, 0.5), entry(3, 2.0)])
    draw_curves(log, tmp_path / "curves.png")
    loss, rate = drawn[0].axes
    lines = {line.get_label(): np.asarray(line.get_ydata()) for line in loss.get_lines()}
    np.testing.assert_array_equal(lines["train"], [2.0, 1.0, 2 / 3])
    np.testing.assert_array_equal(lines["valid"], [5.0, 0.5, 2.0])
    assert loss.get_yscale() == "log"
    assert rate.get_title("left") == "learning rate"
    assert "best validation in epoch 2 (loss 0.5)" in drawn[0].get_suptitle()


def test_quantities_have_panels_and_names_with_a_slash_share_one(
    tmp_path: Path, drawn: list[Figure]
) -> None:
    valid = {"loss": 1.0, "auc/noise": 0.7, "auc/shuffled": 0.9, "relative_error": 0.1}
    records = [entry(n, None) for n in (1, 2)]
    for record in records:
        record["valid"] = valid
        record["train"]["divergence"] = -0.1
    draw_curves(write_log(tmp_path / "log.jsonl", records), tmp_path / "curves.png")
    titles = [ax.get_title("left") for ax in drawn[0].axes if ax.axison]
    assert titles == ["loss", "auc", "relative error", "divergence", "learning rate"]
    shared, negative = drawn[0].axes[1], drawn[0].axes[3]
    assert shared.get_legend_handles_labels()[1] == ["noise", "shuffled"]
    assert negative.get_yscale() == "linear"


def test_without_validation_there_is_no_best_epoch(tmp_path: Path, drawn: list[Figure]) -> None:
    records = [entry(n, None, best=True) for n in (1, 2)]
    log = write_log(tmp_path / "log.jsonl", records)
    assert best_epoch(read_epochs(log)) is None
    draw_curves(log, tmp_path / "curves.png")
    assert drawn[0].get_suptitle() == "epoch 2"


def test_the_best_epoch_is_the_last_that_the_log_calls_so(tmp_path: Path) -> None:
    # The quantity that decides need not be the loss.
    records = [entry(1, 1.0, best=True), entry(2, 3.0, best=True), entry(3, 2.0, best=False)]
    assert best_epoch(read_epochs(write_log(tmp_path / "log.jsonl", records))) == 2


def test_an_epoch_that_was_done_again_counts_once_and_half_a_line_not(tmp_path: Path) -> None:
    records = [entry(1, 1.0), entry(2, 9.0), entry(2, 3.0), entry(3, 4.0)]
    log = write_log(tmp_path / "log.jsonl", records, tail='{"kind": "epoch", "epo')
    found = [(record["epoch"], record["valid"]["loss"]) for record in read_epochs(log)]
    assert found == [(1, 1.0), (2, 3.0), (3, 4.0)]


def test_values_that_are_not_finite_leave_a_gap(tmp_path: Path, drawn: list[Figure]) -> None:
    records = [entry(1, 4.0), entry(2, math.nan), entry(3, 1.0)]
    records[2]["train"]["loss"] = None
    draw_curves(write_log(tmp_path / "log.jsonl", records), tmp_path / "curves.png")
    lines = {line.get_label(): line.get_ydata() for line in drawn[0].axes[0].get_lines()}
    np.testing.assert_array_equal(lines["valid"], [4.0, np.nan, 1.0])
    np.testing.assert_array_equal(lines["train"], [2.0, 1.0, np.nan])


def test_the_only_part_of_the_loss_is_not_drawn_twice(tmp_path: Path, drawn: list[Figure]) -> None:
    records = [entry(1, 4.0), entry(2, 3.0)]
    for record in records:
        for part in (record["train"], record["valid"]):
            part |= {"supervised": part["loss"], "reconstruction": part["loss"]}
    records[0]["train"]["reconstruction"] = 1.0
    draw_curves(write_log(tmp_path / "log.jsonl", records), tmp_path / "curves.png")
    titles = [ax.get_title("left") for ax in drawn[0].axes if ax.axison]
    assert titles == ["loss", "reconstruction", "learning rate"]


def test_validation_now_and_then_is_joined_by_a_line(tmp_path: Path, drawn: list[Figure]) -> None:
    records = [entry(1, None), entry(2, 4.0), entry(3, None), entry(4, 2.0)]
    records[2]["valid"] = None
    draw_curves(write_log(tmp_path / "log.jsonl", records), tmp_path / "curves.png")
    line = next(line for line in drawn[0].axes[0].get_lines() if line.get_label() == "valid")
    np.testing.assert_array_equal(line.get_xydata(), [[2, 4.0], [4, 2.0]])


def test_a_log_without_epochs_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="expected a record of an epoch, found none"):
        draw_curves(write_log(tmp_path / "log.jsonl", []), tmp_path / "curves.png")
