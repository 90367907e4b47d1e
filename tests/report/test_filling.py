"""The picture of a filled frame: drawn for any mixture of gaps, outliers and bodies."""

import math
import struct
from pathlib import Path

import numpy as np
import pytest
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from pibert.data.filling import Example
from pibert.fields import FieldSpec, Grid
from pibert.report import filling
from pibert.report.filling import draw_filling

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
    return Example(
        name="a",
        frame=3,
        spec=FieldSpec(channels=tuple("uvpT")[:channels], grid=Grid(SHAPE, 0.1, 0.2)),
        before=before,
        after=after,
        missing=masks[0],
        flagged=masks[1],
        body=masks[2],
    )


def kept_figures(monkeypatch: pytest.MonkeyPatch) -> list[Figure]:
    """The figures that would be written."""
    drawn: list[Figure] = []

    def keep(figure: Figure, path: Path) -> Path:
        drawn.append(figure)
        return path

    monkeypatch.setattr(filling, "write_figure", keep)
    return drawn


@pytest.mark.parametrize("channels", [1, 2, 4])
@pytest.mark.parametrize(("missing", "flagged"), [(True, True), (True, False), (False, True)])
def test_a_row_per_channel_is_drawn(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, channels: int, missing: bool, flagged: bool
) -> None:
    drawn = kept_figures(monkeypatch)
    draw_filling(tmp_path / "a.png", example(channels, missing, flagged), title="a title")
    panels = [ax for ax in drawn[0].axes if isinstance(ax, Axes) and ax.images]
    assert len(panels) == 3 * channels
    (legend,) = drawn[0].legends
    words = [text.get_text() for text in legend.get_texts()]
    assert ("missing: 15" in words, "flagged: 1" in words) == (missing, flagged)


def test_the_change_is_that_of_flagged_vectors_and_missing_ones_are_grey(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = kept_figures(monkeypatch)
    one = example()
    draw_filling(tmp_path / "a.png", one)
    before, after, change = (
        np.ma.masked_array(drawn[0].axes[i].images[0].get_array()) for i in range(3)
    )
    assert torch.equal(torch.from_numpy(before.mask), one.missing | one.body)
    assert torch.equal(torch.from_numpy(after.mask), one.body)
    assert torch.equal(torch.from_numpy(~change.mask), one.flagged)
    assert change.compressed() == pytest.approx([-3.0])


def test_a_file_is_written_with_missing_points_left(tmp_path: Path) -> None:
    one = example()
    one.after[:, 2, 3] = math.nan
    path = draw_filling(tmp_path / "new" / "a.png", one, title="u")
    head = path.read_bytes()[:24]
    assert head.startswith(b"\x89PNG") and struct.unpack(">II", head[16:24])[0] > 800
