"""Building blocks of figures: colour scales, masks, and files written whole."""

import os
import struct
from pathlib import Path

import pytest
import torch

from pibert.report.figures import (
    DPI,
    blank,
    layer_of,
    picture_path,
    write_figure,
)


def test_masked_points_do_not_count_and_others_must_be_finite() -> None:
    values, known = torch.zeros(3, 5), torch.ones(3, 5, dtype=torch.bool)
    values[1, 2] = torch.nan
    with pytest.raises(ValueError, match="1 values that are not finite"):
        layer_of(values, known)
    known[1, 2] = False
    assert layer_of(values, known).limit == 0.0


def test_a_picture_is_written_whole_and_replaces_an_older_one(tmp_path: Path) -> None:
    path = picture_path(tmp_path / "new" / "flow.png")
    path.write_text("old")
    write_figure(blank(2, 1), path)
    head = path.read_bytes()[:24]
    assert head.startswith(b"\x89PNG\r\n\x1a\n")
    assert struct.unpack(">II", head[16:24]) == (2 * DPI, DPI)
    assert os.listdir(path.parent) == ["flow.png"]
    with pytest.raises(ValueError, match=r"\.png, found 'flow\.gif'"):
        picture_path(tmp_path / "flow.gif")
