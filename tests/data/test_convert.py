"""Conversion to all formats: values, masks and provenance arrive; the input stays."""

import json
import math
import os
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import xarray
from torch import Tensor
from typer.testing import CliRunner

from pibert.cli import app
from pibert.data.convert import convert
from pibert.data.format import Reader, check, write
from pibert.data.readers import open_recordings
from pibert.data.readers.recordings import Hints
from pibert.data.resample import Region
from pibert.fields import Trajectory, read_mask
from tests.data.helpers import SHAPE, Lazy, disc, make_trajectory, random_states, recorded
from tests.helpers import refused


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
        with refused("the input"):
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


@pytest.mark.parametrize(
    ("hints", "expected"), [({}, True), ({"unit": "m/s", "length_unit": "m"}, False)]
)
def test_a_velocity_without_units_is_noted_as_dimensionless(
    tmp_path: Path, hints: dict[str, Any], expected: bool
) -> None:
    axes: dict[str, Any] = {"x": 0.1 * np.arange(7), "y": 0.1 * np.arange(5), "t": np.arange(3.0)}
    u, v = random_states(3, 2, *SHAPE).unbind(1)
    np.savez(tmp_path / "a.npz", u=u, v=v, **axes)
    notes: list[str] = []
    recordings = open_recordings(tmp_path / "a.npz", hints=Hints(**hints))
    convert(recordings, tmp_path / "a.h5", on_note=notes.append)
    assert any("treated as dimensionless" in note for note in notes) is expected


def stereo(*, moving: bool = False) -> Trajectory:
    """A stereo PIV recording with gaps, filled vectors, an uncertainty and a body."""
    generator = torch.Generator().manual_seed(3)
    valid, filled, solid = (torch.rand(3, 6, *SHAPE, generator=generator) > 0.3).unbind()
    body = ~solid if moving else disc()
    channels = ("u", "v", "w", "uncertainty_u")
    return make_trajectory(channels=channels, body=body, valid=valid, filled=filled)


@pytest.mark.parametrize("moving", [False, True])
@pytest.mark.parametrize("suffix", [".nc", ".pvd", ".h5"])
def test_a_file_of_another_format_reads_back_bit_for_bit(
    tmp_path: Path, suffix: str, moving: bool
) -> None:
    original = stereo(moving=moving)
    out = convert(recorded(original), tmp_path / f"piv{suffix}")
    (copy,) = open_recordings(out)
    known = original.known()
    assert torch.equal(copy.known(), known) and torch.equal(copy.measured(), original.measured())
    assert torch.equal(copy.read().movedim(1, 0)[:, known], original.read().movedim(1, 0)[:, known])
    bodies = [
        read_mask(t.body, slice(None)).expand_as(known)
        for t in (copy, original)
        if t.body is not None
    ]
    assert len(bodies) == 2 and torch.equal(*bodies)
    assert torch.equal(copy.time, original.time) and copy.parameters == original.parameters
    assert (copy.length_unit, copy.time_unit) == ("m", "s")
    grids = [replace(t.spec.grid, body=None) for t in (copy, original)]
    assert replace(copy.spec, grid=grids[0]) == replace(original.spec, grid=grids[1])
    assert copy.source["title"] == "a wake in a tank"


@pytest.mark.parametrize("suffix", [".nc", ".pvd", ".csv"])
@pytest.mark.parametrize("gap", [3.0, 2.4])
def test_the_time_step_of_a_recording_with_a_gap_is_read_back(
    tmp_path: Path, suffix: str, gap: float
) -> None:
    time = 0.05 * torch.tensor([0, 1, 2, 2 + gap, 3 + gap, 4 + gap], dtype=torch.float64)
    convert(recorded(make_trajectory(time=time)), tmp_path / f"a{suffix}")
    flow = open_recordings(tmp_path / f"a{suffix}")[0]
    # Tables do not state the step of bursts, whose distance is no whole number of steps.
    expected = None if suffix == ".csv" and gap == 2.4 else pytest.approx(0.05)
    assert flow.spec.dt == expected and flow.time.tolist() == pytest.approx(time.tolist())


@pytest.mark.parametrize("suffix", [".nc", ".pvd"])
def test_frame_numbers_are_read_back_without_a_time_step(tmp_path: Path, suffix: str) -> None:
    time = torch.tensor([0, 1, 2, 4, 5, 6], dtype=torch.float64)
    convert(recorded(make_trajectory(time=time, dt=None, time_unit=None)), tmp_path / f"a{suffix}")
    flow = open_recordings(tmp_path / f"a{suffix}")[0]
    assert flow.spec.dt is None and torch.equal(flow.time, time)
    assert flow.parameters == {"Re": 1800.0}


@pytest.mark.parametrize("suffix", [".nc", ".pvd", ".h5"])
def test_a_flow_without_a_family_reads_back_without_one(tmp_path: Path, suffix: str) -> None:
    plain = make_trajectory()
    plain = replace(plain, spec=replace(plain.spec, family=None))
    (copy,) = open_recordings(convert(recorded(plain), tmp_path / f"piv{suffix}"))
    assert plain.spec.channels == ("u", "v") and copy.spec.family is None
    stated = Hints(family="incompressible")
    (changed,) = open_recordings(tmp_path / f"piv{suffix}", hints=stated)
    assert changed.spec.family == "incompressible" and "family" not in changed.local


def test_pivpy_finds_its_layout_and_flags(tmp_path: Path) -> None:
    original = stereo()
    out = convert(recorded(original), tmp_path / "piv.nc")
    with xarray.open_dataset(out) as found:
        assert found.attrs["pivpy_schema_version"] == "1" and set("xyt") <= set(found.coords)
        codes = found.chc.transpose("t", "y", "x").values
    known, measured = original.known().numpy(), original.measured().numpy()
    np.testing.assert_array_equal(codes, np.where(known, np.where(measured, 1, 2), 0))


def test_pivpy_itself_reads_vectors_and_flags(tmp_path: Path) -> None:
    io = pytest.importorskip("pivpy.io")
    original = stereo()
    found = io.read_piv(convert(recorded(original), tmp_path / "piv.nc")).transpose("t", "y", "x")
    known = original.known().numpy()
    np.testing.assert_array_equal(found.chc.values > 0, known)
    np.testing.assert_array_equal(found.u.values[known], original.read().numpy()[:, 0][known])
    np.testing.assert_array_equal(found.t.values, original.time.numpy())


def test_the_record_of_a_file_that_another_program_changed_is_ignored(tmp_path: Path) -> None:
    original = make_trajectory()
    out = convert(recorded(original), tmp_path / "piv.nc")
    with xarray.open_dataset(out) as found:
        found.isel(x=slice(2, None)).to_netcdf(tmp_path / "cropped.nc", engine="h5netcdf")
        faster = found.assign(u=1000 * found.u, v=1000 * found.v)
        for name in "uv":
            faster[name].attrs["units"] = "mm/s"
        faster.to_netcdf(tmp_path / "scaled.nc", engine="h5netcdf")
    (cropped,), (scaled,) = (
        open_recordings(tmp_path / f"{name}.nc") for name in ("cropped", "scaled")
    )
    assert cropped.spec.grid.origin == pytest.approx((-0.8, 2.0))
    assert cropped.spec.grid.sides.left == "open"  # the inflow was cut off
    assert scaled.spec.units == ("mm/s", "mm/s") and not scaled.parameters


def test_formats_of_one_recording_refuse_several_and_leave_nothing(tmp_path: Path) -> None:
    both = recorded(make_trajectory("a"), make_trajectory("b"))
    for name, words in (("out.nc", "found 2"), ("out.txt", "ends in")):
        with pytest.raises(ValueError, match=words):
            convert(both, tmp_path / name)
    assert os.listdir(tmp_path) == []


def test_values_per_frame_that_a_format_cannot_hold_are_named(tmp_path: Path) -> None:
    notes: list[str] = []
    flow = make_trajectory(series={"lift": torch.arange(6.0)})
    convert(recorded(flow), tmp_path / "a.nc", on_note=notes.append)
    assert any("lift" in note for note in notes)


def test_the_command_refuses_frames_of_an_older_file_and_counts_all_bytes(tmp_path: Path) -> None:
    write(tmp_path / "flow.h5", [make_trajectory()])
    words = ["convert", str(tmp_path / "flow.h5"), str(tmp_path / "out.pvd"), "--json"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    files = [file for file in tmp_path.rglob("*") if file.is_file() and file.name != "flow.h5"]
    assert found["bytes"] == sum(file.stat().st_size for file in files)
    assert found["written"] == [str(tmp_path / "out.pvd"), str(tmp_path / "out_frames")]
    (tmp_path / "out.pvd").unlink()
    again = CliRunner().invoke(app, words)
    assert again.exit_code == 2 and "out_frames exists" in again.output
