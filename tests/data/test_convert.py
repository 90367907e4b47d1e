"""Conversion to the native format: values, masks and provenance arrive; the input stays."""

import math
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from pibert.data.convert import convert
from pibert.data.format import Reader, check, write
from pibert.data.readers import open_recordings
from pibert.data.resample import Region
from pibert.fields import Trajectory, read_mask
from tests.data.helpers import SHAPE, disc, make_trajectory, random_states, recorded


class Lazy:
    """States that are read when asked for, in the type of the source."""

    def __init__(self, states: Tensor) -> None:
        self.states, self.largest = states, 0

    @property
    def shape(self) -> tuple[int, ...]:
        return tuple(self.states.shape)

    def read(self, frames: slice, channels: Sequence[int] | None = None) -> Tensor:
        part = self.states[frames]
        self.largest = max(self.largest, len(part))
        return part if channels is None else part[:, list(channels)]


def lazy_trajectory(states: Tensor, **changes: Any) -> Trajectory:
    return replace(make_trajectory(states=states.float()), states=Lazy(states), **changes)


def test_values_masks_and_provenance_arrive(tmp_path: Path) -> None:
    states = random_states(6, 2, *SHAPE).double()
    original = lazy_trajectory(states, body=disc(), source={"title": "a tank", "doi": None})
    out = convert(recorded(original), tmp_path / "out.h5")
    check(out)
    (copy,) = Reader(out)
    torch.testing.assert_close(copy.read(), states.float(), rtol=0, atol=0)
    assert torch.equal(copy.known(), original.known())
    assert copy.valid is None
    assert copy.source == {"title": "a tank", "doi": None}
    assert copy.local["file"] == "flow.h5" and copy.local["kind"] == "arrays"
    assert "not_finite" not in copy.local
    assert copy.parameters == original.parameters and copy.length_unit == "m"
    assert os.listdir(tmp_path) == ["out.h5"]


def test_values_that_are_not_finite_become_missing_points_frame_by_frame(tmp_path: Path) -> None:
    states = random_states(4, 2, *SHAPE).double()
    states[1, 0, 2, 5] = math.nan
    states[2, 1, 4, 6] = math.inf
    states[3, 1, 0, 0] = 1e300  # finite, but not in single precision
    states[:, :, 1, 2] = math.nan  # inside the body, where values mean nothing
    valid = torch.ones(SHAPE, dtype=torch.bool)
    valid[3, 3] = False
    original = lazy_trajectory(states, body=disc(), valid=valid)
    notes: list[str] = []
    out = convert(recorded(original), tmp_path / "out.h5", on_note=notes.append)
    check(out)
    (copy,) = Reader(out)
    expected = valid.repeat(4, 1, 1)
    for frame, row, column in ((1, 2, 5), (2, 4, 6), (3, 0, 0)):
        expected[frame, row, column] = False
    assert copy.valid is not None
    assert torch.equal(read_mask(copy.valid, slice(None)), expected)
    assert copy.local["not_finite"] == 3 and any("not finite: 3 values" in note for note in notes)
    with pytest.raises(ValueError, match="no finite value"):
        nothing = lazy_trajectory(torch.full((3, 2, *SHAPE), math.nan))
        convert(recorded(nothing), tmp_path / "nothing.h5")


def test_a_region_in_the_units_of_the_source_and_a_stretch_of_frames_are_cut(
    tmp_path: Path,
) -> None:
    original = make_trajectory(frames=11)
    spec, grid = original.spec, replace(original.spec.grid, dx=2.0, dy=3.0, origin=(10.0, -1.0))
    units = ("m/s",) * len(spec.channels)
    original = replace(
        original, spec=replace(spec, grid=grid, units=units), length_unit="mm", time_unit="s"
    )
    region = Region(x=(12.0, 16.5), rows=slice(1, -1))  # columns 1 to 3, in mm
    out = convert(
        recorded(original), tmp_path / "out.h5", frames=slice(4, 9), stride=2, region=region
    )
    check(out)
    (copy,) = Reader(out)
    rows, columns = SHAPE
    assert torch.equal(copy.read(), original.read()[4:9:2, :, 1:-1, 1:4])
    torch.testing.assert_close(copy.time, original.time[4:9:2])
    assert copy.spec.grid.origin == pytest.approx((0.012, 0.002))
    assert copy.local["crop"] == [1, rows - 2, 1, 3] and copy.local["frames"] == [4, 8]


def test_the_input_is_never_overwritten(tmp_path: Path) -> None:
    file = tmp_path / "a.h5"
    write(file, [make_trajectory()])
    before = file.read_bytes()
    link = tmp_path / "link.h5"
    link.symlink_to(file)
    pattern = tmp_path / "?.h5"
    for source, target in ((file, file), (file, link), (tmp_path, link), (pattern, file)):
        with pytest.raises(ValueError, match="is the input or a file of it"):
            convert(open_recordings(source), target)
    assert file.read_bytes() == before


def in_millimetres(name: str = "a") -> Trajectory:
    original = make_trajectory(name)
    spec = replace(original.spec, units=("mm/s", "mm/s"))
    return replace(original, spec=spec, length_unit="mm")


def test_units_are_converted_and_noted_once(tmp_path: Path) -> None:
    original, notes = in_millimetres(), list[str]()
    recordings, shares = recorded(original, in_millimetres("b")), list[float]()
    out = convert(recordings, tmp_path / "out.h5", on_note=notes.append, on_progress=shares.append)
    check(out)
    assert shares == sorted(shares) and shares[-1] == 1.0
    copy = Reader(out)["b"]
    torch.testing.assert_close(copy.read(), 1e-3 * original.read())
    assert copy.length_unit == "m" and copy.spec.units == ("m/s", "m/s")
    assert copy.spec.grid.dx == pytest.approx(1e-4) and copy.spec.dt == original.spec.dt
    changes = {"length": "mm -> m", "u": "mm/s -> m/s", "v": "mm/s -> m/s"}
    assert copy.local["units"] == changes
    (note,) = notes
    assert all(f"{name} {text}" in note for name, text in changes.items())
    convert(recordings, out, units="keep", on_note=notes.append)
    kept = Reader(out)["b"]
    torch.testing.assert_close(kept.read(), original.read(), rtol=0, atol=0)
    assert kept.length_unit == "mm" and kept.spec.units == ("mm/s", "mm/s") and notes == [note]
