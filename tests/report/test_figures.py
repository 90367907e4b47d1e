"""Building blocks of figures: colour scales, masks, and files written whole."""

import math
import os
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure

from pibert.data.filling import Example
from pibert.fields import FieldSpec, Grid
from pibert.report.figures import (
    DPI,
    blank,
    layer_of,
    picture_path,
    write_figure,
)
from pibert.report.filling import draw_filling
from tests.helpers import refused


def test_masked_points_do_not_count_and_others_must_be_finite() -> None:
    values, known = torch.zeros(3, 5), torch.ones(3, 5, dtype=torch.bool)
    values[1, 2] = torch.nan
    with refused("1 values", "not finite"):
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
    with refused(".png", ".pdf", "flow.gif"):
        picture_path(tmp_path / "flow.gif")


# Filled frames


SHAPE = (12, 20)


def example(channels: int = 2, missing: bool = True, flagged: bool = True) -> Example:
    generator = torch.Generator().manual_seed(0)
    after = torch.randn(channels, *SHAPE, generator=generator)
    before, masks = after.clone(), torch.zeros(3, *SHAPE, dtype=torch.bool)
    if missing:
        masks[0, 2:5, 3:8] = True
        before[:, masks[0]] = math.nan
    if flagged:
        masks[1, 8, 15] = True
        before[:, 8, 15] += 3.0
    masks[2, 6:8, 10:12] = True
    after[:, masks[2]] = before[:, masks[2]] = math.nan
    spec = FieldSpec(channels=tuple("uvpT")[:channels], grid=Grid(SHAPE, 0.1, 0.2))
    names = dict(zip(("missing", "flagged", "body"), masks, strict=True))
    names |= {"before": before, "after": after, "length_unit": "mm"}
    return Example(name="a", frame=3, spec=spec, **names)


def test_the_change_is_that_of_flagged_vectors_and_missing_ones_are_grey(
    tmp_path: Path, drawn: list[Figure]
) -> None:
    one = example()
    draw_filling(tmp_path / "a.png", one)
    before, after, change = (
        np.ma.masked_array(drawn[0].axes[i].images[0].get_array()) for i in range(3)
    )
    assert torch.equal(torch.from_numpy(before.mask), one.missing | one.body)
    assert torch.equal(torch.from_numpy(after.mask), one.body)
    assert torch.equal(torch.from_numpy(~change.mask), one.flagged)
    assert change.compressed() == pytest.approx([-3.0])
    lowest = drawn[0].axes[3]
    assert lowest.get_xlabel() == "x [mm]"
    assert "y [mm]" in lowest.get_ylabel()
