"""Conversion to the native format: values, masks and provenance arrive; the input stays."""

import math
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from pibert.data.convert import convert
from pibert.data.crop import Region
from pibert.data.format import Reader, check, write
from pibert.data.sources import open_recordings
from pibert.data.sources.recordings import Hints, Recordings
from pibert.fields import Trajectory, read_mask
from tests.data.helpers import SHAPE, disc, make_trajectory, random_states

SHARED = Path(__file__).parents[2] / ".." / "shared" / "data"
FIELDS = (
    "jet_piv_train.npz",
    "cylinder_re100_pod.npz",
    "channel_comsol/lid_driven_a4.dat",
    "channel_comsol/ns_0_obstacle.dat",
    "channel_comsol/ns_4_obstacle.dat",
)


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


def recordings_of(*trajectories: Trajectory, path: Path = Path("place/flow.dat")) -> Recordings:
    table = {trajectory.name: trajectory for trajectory in trajectories}
    return Recordings(kind="table", path=path, names=tuple(table), load=table.__getitem__)


def lazy_trajectory(states: Tensor, **changes: Any) -> Trajectory:
    return replace(make_trajectory(states=states.float()), states=Lazy(states), **changes)


def test_values_masks_and_provenance_arrive(tmp_path: Path) -> None:
    states = random_states(6, 2, *SHAPE).double()
    original = lazy_trajectory(states, body=disc(), source={"title": "a tank", "doi": None})
    out = convert(recordings_of(original), tmp_path / "out.h5")
    check(out)
    (copy,) = Reader(out)
    torch.testing.assert_close(copy.read(), states.float(), rtol=0, atol=0)
    assert torch.equal(copy.known(), original.known())
    assert copy.valid is None
    assert copy.source == {"title": "a tank", "doi": None}
    assert copy.local["file"] == "flow.dat" and copy.local["kind"] == "table"
    assert "not_finite" not in copy.local
    assert copy.parameters == original.parameters and copy.length_unit == "m"
    assert os.listdir(tmp_path) == ["out.h5"]


@pytest.mark.parametrize("dtype", [torch.float16, torch.float64])
def test_other_precisions_become_single(tmp_path: Path, dtype: torch.dtype) -> None:
    states = random_states(3, 2, *SHAPE).to(dtype)
    (copy,) = Reader(convert(recordings_of(lazy_trajectory(states)), tmp_path / "out.h5"))
    torch.testing.assert_close(copy.read(), states.float(), rtol=0, atol=0)


def test_values_that_are_not_finite_become_missing_points_frame_by_frame(tmp_path: Path) -> None:
    states = random_states(4, 2, *SHAPE).double()
    states[1, 0, 2, 5] = math.nan
    states[2, 1, 4, 6] = math.inf
    states[3, 1, 0, 0] = 1e300  # finite, but not in single precision
    states[:, :, 1, 2] = math.nan  # inside the body, where values mean nothing
    valid = torch.ones(SHAPE, dtype=torch.bool)
    valid[3, 3] = False
    original = lazy_trajectory(states, body=disc(), valid=valid)
    out = convert(recordings_of(original), tmp_path / "out.h5")
    check(out)
    (copy,) = Reader(out)
    expected = valid.repeat(4, 1, 1)
    for frame, row, column in ((1, 2, 5), (2, 4, 6), (3, 0, 0)):
        expected[frame, row, column] = False
    assert copy.valid is not None
    assert torch.equal(read_mask(copy.valid, slice(None)), expected)
    assert copy.local["not_finite"] == 3


def test_a_resized_copy_is_made_of_finite_values_alone(tmp_path: Path) -> None:
    states = torch.ones(2, 2, 4, 6)
    states[0, 0, 0, 0] = math.nan
    out = convert(recordings_of(lazy_trajectory(states)), tmp_path / "out.h5", size=(2, 3))
    (copy,) = Reader(out)
    torch.testing.assert_close(copy.read(), torch.ones(2, 2, 2, 3))
    assert copy.spec.grid.dx == pytest.approx(0.2) and copy.spec.grid.dy == pytest.approx(0.6)
    assert bool(copy.known().all())


def test_frames_and_channels_are_chosen_and_recorded(tmp_path: Path) -> None:
    original = make_trajectory(frames=11, channels=("u", "v", "p"))
    other = make_trajectory("b", frames=11, channels=("u", "v", "p"), seed=1)
    out = convert(
        recordings_of(original, other),
        tmp_path / "out.h5",
        names=["b"],
        stride=3,
        max_frames=2,
        channels=["p", "u"],
    )
    (copy,) = Reader(out)
    torch.testing.assert_close(copy.read(), other.read(slice(0, 6, 3), [2, 0]))
    assert copy.spec.dt == pytest.approx(0.15)
    assert copy.local["stride"] == 3 and copy.local["channels"] == ["p", "u"]


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
        recordings_of(original),
        tmp_path / "out.h5",
        frames=slice(4, 9),
        stride=2,
        region=region,
    )
    check(out)
    (copy,) = Reader(out)
    rows, columns = SHAPE
    assert torch.equal(copy.read(), original.read()[4:9:2, :, 1:-1, 1:4])
    torch.testing.assert_close(copy.time, original.time[4:9:2])
    assert copy.spec.grid.origin == pytest.approx((0.012, 0.002))
    assert copy.local["crop"] == [1, rows - 2, 1, 3] and copy.local["frames"] == [4, 8]


def test_fields_are_read_block_by_block_with_progress(tmp_path: Path) -> None:
    source = Lazy(torch.zeros(1, 1, 1, 1).expand(40, 2, 300, 350))
    small = make_trajectory(frames=40)
    grid = replace(small.spec.grid, shape=(300, 350))
    large = replace(small, states=source, spec=replace(small.spec, grid=grid))
    seen: list[float] = []
    convert(
        recordings_of(large, replace(large, name="b")),
        tmp_path / "out.h5",
        on_progress=seen.append,
    )
    assert source.largest <= 20
    assert seen == sorted(seen) and seen[-1] == 1.0
    assert len([share for share in seen if share < 0.5]) > 1


def test_the_input_is_never_overwritten(tmp_path: Path) -> None:
    file = tmp_path / "a.h5"
    write(file, [make_trajectory()])
    before = file.read_bytes()
    link = tmp_path / "link.h5"
    link.symlink_to(file)
    for source, target in ((file, file), (file, link), (tmp_path, file), (tmp_path, link)):
        with pytest.raises(ValueError, match="is the input or a part of it"):
            convert(open_recordings(source), target)
    assert file.read_bytes() == before


def test_a_refusal_leaves_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="unknown channels"):
        convert(recordings_of(make_trajectory()), tmp_path / "out.h5", channels=["w"])
    with pytest.raises(FileNotFoundError, match="there is no folder"):
        convert(recordings_of(make_trajectory()), tmp_path / "no" / "out.h5")
    assert os.listdir(tmp_path) == []


def in_millimetres(name: str = "a") -> Trajectory:
    original = make_trajectory(name)
    spec = replace(original.spec, units=("mm/s", "mm/s"))
    return replace(original, spec=spec, length_unit="mm")


def test_units_are_brought_together_and_that_is_told_once(tmp_path: Path) -> None:
    original, said = in_millimetres(), list[str]()
    recordings = recordings_of(original, in_millimetres("b"))
    out = convert(recordings, tmp_path / "out.h5", on_remark=said.append)
    check(out)
    copy = Reader(out)["b"]
    torch.testing.assert_close(copy.read(), 1e-3 * original.read())
    assert copy.length_unit == "m" and copy.spec.units == ("m/s", "m/s")
    assert copy.spec.grid.dx == pytest.approx(1e-4) and copy.spec.dt == original.spec.dt
    changes = {"length": "mm -> m", "u": "mm/s -> m/s", "v": "mm/s -> m/s"}
    assert copy.local["units"] == changes
    assert said == [
        "units: length mm -> m, u mm/s -> m/s, v mm/s -> m/s; parameters keep their numbers"
    ]


def test_units_can_be_kept(tmp_path: Path) -> None:
    original, said = in_millimetres(), list[str]()
    recordings = recordings_of(original)
    out = convert(recordings, tmp_path / "out.h5", units="keep", on_remark=said.append)
    (copy,) = Reader(out)
    torch.testing.assert_close(copy.read(), original.read(), rtol=0, atol=0)
    assert copy.length_unit == "mm" and copy.spec.units == ("mm/s", "mm/s")
    assert said == [] and "units" not in copy.local


def test_a_file_of_a_pattern_is_never_overwritten(tmp_path: Path) -> None:
    file = tmp_path / "B01.txt"
    file.write_text("vectors")
    recordings = recordings_of(make_trajectory(), path=tmp_path / "B*.txt")
    with pytest.raises(ValueError, match="is the input or a part of it"):
        convert(recordings, file)
    assert file.read_text() == "vectors"
    other = tmp_path / "a.h5"
    other.write_text("older")
    check(convert(recordings, other))


def test_the_jet_comes_out_in_metres_once_its_velocity_has_a_unit(tmp_path: Path) -> None:
    path = SHARED / "jet_piv_train.npz"
    if not path.is_file():
        pytest.skip("no ../shared/data/jet_piv_train.npz in this checkout")
    told = open_recordings(path, hints=Hints(unit="m/s"))
    (copy,) = Reader(convert(told, tmp_path / "a.h5", max_frames=2))
    assert copy.length_unit == "m" and copy.spec.grid.dx == pytest.approx(1e-3 / 3, rel=1e-3)
    assert copy.spec.grid.origin == pytest.approx((-0.000992, 0.009792), abs=1e-6)
    torch.testing.assert_close(copy.read(), told[0].read(slice(0, 2)).float())
    (copy,) = Reader(convert(open_recordings(path), tmp_path / "b.h5", max_frames=2))
    assert copy.length_unit == "mm" and copy.spec.grid.dx == pytest.approx(1 / 3, rel=1e-3)


@pytest.mark.parametrize("name", FIELDS)
def test_the_shared_fields_convert(tmp_path: Path, name: str) -> None:
    if not (SHARED / name).is_file():
        pytest.skip(f"no ../shared/data/{name} in this checkout")
    recordings = open_recordings(SHARED / name)
    out = convert(recordings, tmp_path / "out.h5", max_frames=3)
    check(out)
    copies = list(Reader(out))
    assert len(copies) == len(recordings)
    first = recordings[0]
    known = copies[0].known().numpy()
    np.testing.assert_array_equal(
        copies[0].read().numpy().swapaxes(0, 1)[:, known],
        first.read(slice(0, copies[0].num_frames)).float().numpy().swapaxes(0, 1)[:, known],
    )


def test_a_field_without_a_finite_value_is_refused(tmp_path: Path) -> None:
    np.savez(tmp_path / "nan.npz", u=np.full((3, 5, 7), np.nan), v=np.full((3, 5, 7), np.nan))
    with pytest.raises(ValueError, match="holds no finite value"):
        convert(open_recordings(tmp_path / "nan.npz"), tmp_path / "out.h5")
    assert not (tmp_path / "out.h5").exists()


def test_values_that_are_not_finite_are_told(tmp_path: Path) -> None:
    states = random_states(3, 2, *SHAPE)
    states[1, 0, 2, 3] = torch.inf
    said: list[str] = []
    flow = Recordings(
        kind="arrays", path=tmp_path, names=("a",), load=lambda _: make_trajectory(states=states)
    )
    convert(flow, tmp_path / "out.h5", on_remark=said.append)
    assert said == ["a: not finite: 1 value; such points are not valid"]


def test_steps_that_are_not_positive_are_refused() -> None:
    for name in ("dt", "dx", "dy"):
        with pytest.raises(ValueError, match=f"{name} must be positive, found 0"):
            Hints(**{name: 0.0})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("hints", "told"), [({}, True), ({"unit": "m/s", "length_unit": "m"}, False)]
)
def test_a_velocity_without_units_is_reported_as_dimensionless(
    tmp_path: Path, hints: dict[str, Any], told: bool
) -> None:
    fields = np.random.default_rng(0).normal(size=(2, 3, 4, 6))
    axes: dict[str, Any] = {"x": 0.1 * np.arange(6), "y": 0.1 * np.arange(4), "t": np.arange(3.0)}
    np.savez(tmp_path / "a.npz", u=fields[0], v=fields[1], **axes)
    notes: list[str] = []
    recordings = open_recordings(tmp_path / "a.npz", hints=Hints(**hints))
    convert(recordings, tmp_path / "a.h5", on_remark=notes.append)
    assert any("taken as dimensionless" in note for note in notes) is told
    again: list[str] = []
    convert(open_recordings(tmp_path / "a.h5"), tmp_path / "b.h5", on_remark=again.append)
    assert not any("taken as dimensionless" in note for note in again)
