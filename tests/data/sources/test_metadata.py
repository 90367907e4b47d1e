"""Units, spacing and time step of the user beside those of the file."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pibert.data.format import write
from pibert.data.sources import open_recordings
from pibert.data.sources.metadata import state
from pibert.data.sources.recordings import Hints, Recordings, SourceError
from pibert.data.units import in_consistent_units
from pibert.fields import FieldSpec, Grid, Trajectory
from tests.lookalikes.piv import sample, write_tsi


def trajectory_of(
    *,
    channels: tuple[str, ...] = ("u", "v"),
    units: tuple[str, ...] = ("1", "1"),
    length_unit: str | None = None,
    time: list[float] | None = None,
    dt: float | None = None,
    time_unit: str | None = None,
    dx: float = 16.0,
    dy: float = 8.0,
) -> Trajectory:
    times = torch.tensor([0.0, 1.0, 2.0] if time is None else time)
    rng = np.random.default_rng(0)
    states = torch.from_numpy(rng.normal(size=(len(times), len(channels), 4, 5)))
    grid = Grid((4, 5), dx, dy, origin=(2 * dx, dy))
    return Trajectory(
        name="a",
        states=states.float(),
        time=times,
        spec=FieldSpec(channels=channels, units=units, dt=dt, grid=grid, family=None),
        length_unit=length_unit,
        time_unit=time_unit,
    )


def netcdf(path: Path, velocity: str = "m/s", length: str = "mm", clock: str = "s") -> Path:
    xarray = pytest.importorskip("xarray")
    values = np.random.default_rng(0).normal(size=(3, 4, 5))
    axes = {
        "x": ("x", 0.5 * np.arange(5), {"units": length}),
        "y": ("y", 0.25 * np.arange(4), {"units": length}),
        "time": ("time", (1 if clock == "frame" else 0.1) * np.arange(3), {"units": clock}),
    }
    fields = {name: (("time", "y", "x"), values, {"units": velocity}) for name in "uv"}
    xarray.Dataset(fields, axes).to_netcdf(path, engine="h5netcdf")
    return path


def hdf5(path: Path) -> Path:
    import h5py

    with h5py.File(path, "w") as file:
        for name in "uv":
            file[name] = np.ones((3, 4, 5))
            file[name].attrs["units"] = "m/s"
        for name, count in (("x", 5), ("y", 4), ("t", 3)):
            file[name] = 0.1 * np.arange(count)
            file[name].attrs["units"] = "s" if name == "t" else "mm"
    return path


def native(path: Path) -> Path:
    flow = trajectory_of(units=("m/s", "m/s"), length_unit="mm", time_unit="s", dt=1.0)
    write(path, [flow])
    return path


def tsi(path: Path) -> Path:
    write_tsi(path, sample(), np.ones((4, 6)))
    return path


def csv(path: Path) -> Path:
    rows = "".join(f"{x},{y},1,2\n" for y in range(4) for x in range(5))
    path.write_text("x [mm],y [mm],u [m/s],v [m/s]\n" + rows)
    return path


STATING = {"a.nc": netcdf, "a.hdf5": hdf5, "a.h5": native, "a.vec": tsi, "a.csv": csv}


def opened(path: Path, **hints: Any) -> Recordings:
    return open_recordings(path, hints=Hints(**hints))


@pytest.mark.parametrize("name", STATING)
def test_units_that_contradict_the_file_need_override_units(tmp_path: Path, name: str) -> None:
    path = STATING[name](tmp_path / name)
    plain = opened(path)[0]
    for option, given, stated in (
        ("unit", "mm/s", "u in m/s"),
        ("length_unit", "cm", "lengths in mm"),
    ):
        told = f"--{option.replace('_', '-')} {given} was given, but the data state {stated}; "
        with pytest.raises(SourceError, match=told + ".*--override-units"):
            opened(path, **{option: given})
    recordings = opened(path, unit="mm/s", length_unit="cm", override_units=True)
    flow = recordings[0]
    assert flow.spec.units[:2] == ("mm/s", "mm/s") and flow.length_unit == "cm"
    assert torch.equal(flow.read(), plain.read()) and flow.spec.grid == plain.spec.grid
    assert any(
        "--unit mm/s replaced what the data state: u in m/s" in r for r in recordings.remarks
    )
    assert flow.local["hints"]["override_units"] is True


@pytest.mark.parametrize("name", STATING)
def test_the_same_unit_in_another_spelling_is_no_contradiction(tmp_path: Path, name: str) -> None:
    path = STATING[name](tmp_path / name)
    flow = opened(path, unit="m s-1", length_unit="millimetres")[0]
    assert flow.spec.units[:2] == ("m/s", "m/s") and flow.length_unit == "mm"


def test_a_time_unit_that_contradicts_the_file_is_refused(tmp_path: Path) -> None:
    path = netcdf(tmp_path / "a.nc")
    with pytest.raises(SourceError, match="--time-unit ms was given, but .* times in s"):
        opened(path, time_unit="ms")
    assert opened(path, time_unit="ms", override_units=True)[0].time_unit == "ms"


def test_units_that_a_file_does_not_state_are_taken(tmp_path: Path) -> None:
    np.savez(tmp_path / "a.npz", u=np.ones((2, 4, 5)), v=np.ones((2, 4, 5)))
    flow = opened(tmp_path / "a.npz", unit="m/s", length_unit="mm", dx=0.5, dy=0.25, dt=0.1)[0]
    assert flow.spec.units == ("m/s", "m/s") and flow.length_unit == "mm"
    assert (flow.spec.grid.dx, flow.spec.grid.dy, flow.spec.dt) == (0.5, 0.25, 0.1)
    assert flow.time_unit == "s"  # as velocities are per second
    assert flow.local["hints"] == {
        "dt": 0.1,
        "dx": 0.5,
        "dy": 0.25,
        "length_unit": "mm",
        "unit": "m/s",
    }
    assert opened(tmp_path / "a.npz", unit="U", dt=0.1)[0].time_unit is None


def test_the_time_step_of_a_single_frame_is_checked() -> None:
    unknown, known = trajectory_of(time=[0.0]), trajectory_of(time=[0.0], dt=0.1, time_unit="s")
    assert state(unknown, Hints(dt=0.2))[0].spec.dt == 0.2
    assert state(known, Hints(dt=0.1))[0].spec.dt == 0.1
    with pytest.raises(SourceError, match="--dt 0.2 was given, but the data state steps of 0.1 s"):
        state(known, Hints(dt=0.2))
    replaced, notes = state(known, Hints(dt=0.2, override_units=True))
    assert replaced.spec.dt == 0.2
    assert any("--dt 0.2 s replaced steps of 0.1 s" in note for note in notes)


def test_a_time_step_of_one_without_a_unit_is_replaced_with_a_note() -> None:
    flow, notes = state(trajectory_of(dt=1.0), Hints(dt=0.5))
    assert flow.spec.dt == 0.5 and flow.time.tolist() == [0.0, 0.5, 1.0]
    assert any("1 apart, were taken as frame numbers" in note for note in notes)


def test_a_spacing_that_contradicts_coordinates_is_refused(tmp_path: Path) -> None:
    path = netcdf(tmp_path / "a.nc")
    told = "--dx 2 was given, but the data state a spacing of 0.5 mm along x"
    with pytest.raises(SourceError, match=told):
        opened(path, dx=2.0, dy=0.25)
    recordings = opened(path, dx=2.0, override_units=True)
    grid = recordings[0].spec.grid
    assert (grid.dx, grid.dy) == pytest.approx((2.0, 0.25))
    assert any("--dx 2 replaced a spacing of 0.5 mm" in remark for remark in recordings.remarks)
    assert opened(path, dx=0.5, dy=0.25)[0].spec.grid.dx == 0.5
    # Positions in pixels need a scale, not another spacing.
    with pytest.raises(SourceError, match=r"a spacing of 16 along x; .* \(--scale\)"):
        state(trajectory_of(), Hints(dx=0.8, dy=0.4))


def test_points_that_are_counted_take_a_spacing() -> None:
    counted = trajectory_of(dx=1.0, dy=1.0)
    grid = state(counted, Hints(dx=0.5, dy=0.25))[0].spec.grid
    assert (grid.dx, grid.dy) == (0.5, 0.25) and grid.origin == (1.0, 0.25)
    with pytest.raises(SourceError, match="along one axis only.* give --dy"):
        state(counted, Hints(dx=0.5))


def test_a_time_step_that_contradicts_the_times_is_refused(tmp_path: Path) -> None:
    path = netcdf(tmp_path / "a.nc")
    with pytest.raises(SourceError, match="--dt 0.2 was given, but the data state steps of 0.1 s"):
        opened(path, dt=0.2)
    recordings = opened(path, dt=0.2, override_units=True)
    assert recordings[0].time.tolist() == pytest.approx([0.0, 0.2, 0.4])
    assert any("--dt 0.2 s replaced steps of 0.1 s" in remark for remark in recordings.remarks)
    assert opened(path, dt=0.1)[0].spec.dt == pytest.approx(0.1)


def test_a_time_step_goes_with_numbers_of_frames() -> None:
    for unit in (None, "frame"):
        counted = trajectory_of(time=[5.0, 6.0, 7.0], dt=1.0, time_unit=unit)
        flow, _ = state(counted, Hints(dt=0.5))
        assert flow.time.tolist() == [0.0, 0.5, 1.0] and flow.spec.dt == 0.5
        assert flow.time_unit is None
    every_fifth = trajectory_of(time=[0.0, 5.0, 10.0], dt=5.0, time_unit="frame")
    flow, _ = state(every_fifth, Hints(dt=0.5))
    assert flow.time.tolist() == [0.0, 2.5, 5.0] and flow.spec.dt == 2.5
    with pytest.raises(SourceError, match="--dt 0.5 was given, but the data state steps of 2"):
        state(trajectory_of(time=[0.0, 2.0, 4.0], dt=2.0), Hints(dt=0.5))
    gaps, _ = state(trajectory_of(time=[0.0, 1.0, 4.0]), Hints(dt=0.5))
    assert gaps.time.tolist() == [0.0, 0.5, 2.0] and gaps.spec.dt is None
    with pytest.raises(SourceError, match="times in frame; give the time between frames"):
        state(trajectory_of(time_unit="frame", dt=1.0), Hints(time_unit="s"))


def test_times_in_frames_are_counts_where_velocities_are_per_second() -> None:
    counted = trajectory_of(
        units=("m/s", "m/s"), length_unit="mm", time=[0.0, 1.0, 2.0], dt=1.0, time_unit="frame"
    )
    flow, _ = state(counted, Hints())
    assert flow.spec.dt is None and flow.time_unit is None
    metres = in_consistent_units(flow)
    assert metres.length_unit == "m" and metres.spec.grid.dx == pytest.approx(0.016)
    pixels = replace(counted, spec=replace(counted.spec, units=("px", "px")), length_unit="px")
    assert state(pixels, Hints())[0].time_unit == "frame"


@pytest.mark.parametrize("clock", ["frame", "s"])
def test_frames_without_a_time_step_are_noted(tmp_path: Path, clock: str) -> None:
    path = netcdf(tmp_path / "a.nc", clock=clock)
    told = [note for note in opened(path).remarks if "no time between the frames" in note]
    assert len(told) == (clock == "frame")
    assert not any("no time between" in note for note in opened(path, dt=0.1).remarks)


def test_rounded_times_agree_with_a_time_step() -> None:
    rounded = trajectory_of(time=[0.0, 0.333, 0.667], time_unit="s", dx=0.1, dy=0.2)
    flow, notes = state(rounded, Hints(dt=1 / 3))
    assert flow.spec.dt == 1 / 3 and flow.time.tolist() == pytest.approx([0, 1 / 3, 2 / 3])
    assert not notes
    with pytest.raises(SourceError, match=r"--dt 1 was given, .* time steps from 0.333 to 0.334 s"):
        state(rounded, Hints(dt=1.0))


def test_what_is_not_stated_is_left_alone() -> None:
    flow = trajectory_of(units=("m/s", "m/s"), length_unit="m")
    assert state(flow, Hints())[0] is flow
