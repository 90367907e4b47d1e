"""HDF5 files with named datasets."""

from pathlib import Path

import h5py
import numpy as np
import pytest
import torch

from pibert.data.format import write
from pibert.data.readers import hdf5
from pibert.data.readers.recordings import Hints, SourceError
from tests.data.helpers import make_trajectory
from tests.lookalikes.flow import T, X, Y, assert_flow, fields


def write_flow(path: Path, **more: object) -> None:
    """Velocities in m/s under other names, coordinates in mm, time in s."""
    flow = fields()
    named = {"Vx": flow["u"], "Vy": flow["v"], "x": X, "y": Y, "time": T}
    units = {"Vx": "m/s", "Vy": "m/s", "x": "mm", "y": "mm", "time": "s"}
    with h5py.File(path, "w") as file:
        for name, values in (named | more).items():
            file[name] = values
            if name in units:
                file[name].attrs["units"] = units[name]


def test_fields_and_units_are_found_by_name(tmp_path: Path) -> None:
    path = tmp_path / "flow.h5"
    write_flow(path, p=fields()["u"].astype(np.float64))
    assert hdf5.recognise(path)
    (trajectory,) = hdf5.open_recordings(path)
    assert_flow(trajectory)
    assert trajectory.spec.channels == ("u", "v", "p")
    assert trajectory.spec.units == ("m/s", "m/s", "1")
    assert (trajectory.length_unit, trajectory.time_unit) == ("mm", "s")


def test_attributes_of_the_file_may_hold_the_steps(tmp_path: Path) -> None:
    path = tmp_path / "flow.h5"
    with h5py.File(path, "w") as file:
        for name, values in fields().items():
            file[name] = values
        file.attrs.update({"dt": 0.05, "dx": 0.1, "dy": 0.3, "Re": 100, "title": "a wake"})
    (trajectory,) = hdf5.open_recordings(path)
    grid = trajectory.spec.grid
    assert (trajectory.spec.dt, grid.dx, grid.dy) == pytest.approx((0.05, 0.1, 0.3))
    assert trajectory.parameters == {"Re": 100.0}
    assert trajectory.source == {"file": "flow.h5", "title": "a wake"}


def test_groups_with_the_same_datasets_are_separate_flows(tmp_path: Path) -> None:
    path = tmp_path / "runs.h5"
    with h5py.File(path, "w") as file:
        file["grid/x"], file["x"], file["y"], file["t"] = X, X, Y, T
        for index, group in enumerate(("runs/first", "runs/second")):
            for name, values in fields().items():
                file[f"{group}/{name}"] = values + index
    recordings = hdf5.open_recordings(path)
    assert recordings.names == ("runs-first", "runs-second")
    assert_flow(recordings[0])
    torch.testing.assert_close(recordings["runs-second"].read(), recordings[0].read() + 1)


def test_formats_with_another_reader_are_not_recognised(tmp_path: Path) -> None:
    path = tmp_path / "native.h5"
    write(path, [make_trajectory()])
    assert not hdf5.recognise(path)
    for group in ("measured_data", "t0_fields"):
        with h5py.File(path, "w") as file:
            file[f"{group}/u"] = np.zeros((3, 4, 5))
        assert not hdf5.recognise(path)
    assert not hdf5.recognise(tmp_path / "absent.h5")
    assert not hdf5.recognise(tmp_path)


def test_datasets_are_listed_if_no_flow_is_found(tmp_path: Path) -> None:
    path = tmp_path / "flow.h5"
    with h5py.File(path, "w") as file:
        file["deep/alpha"] = fields()["u"]
        file["deep/beta"] = fields()["v"]
        file["note"] = "a text"
    with pytest.raises(SourceError, match=r"deep/alpha float32 \(6, 5, 7\); deep/beta"):
        hdf5.open_recordings(path)
    hints = Hints(channels={"u": "alpha", "v": "deep/beta"}, dx=0.1, dy=0.3, dt=0.05)
    (trajectory,) = hdf5.open_recordings(path, hints)
    assert torch.equal(trajectory.read()[:, 0], torch.from_numpy(fields()["u"]))
    path = tmp_path / "other.h5"
    write_flow(path, p=np.zeros((6, 5, 6)))
    recordings = hdf5.open_recordings(path)
    assert_flow(recordings[0])
    assert any("p float64 (6, 5, 6)" in note for note in recordings.notes)
    with pytest.raises(SourceError, match="'p'"):
        hdf5.open_recordings(path, Hints(channels={"u": "Vx", "v": "Vy", "p": "p"}))
    path = tmp_path / "empty.h5"
    h5py.File(path, "w").close()
    with pytest.raises(SourceError, match="without datasets"):
        hdf5.open_recordings(path)
    with h5py.File(tmp_path / "frame.h5", "w") as file:
        file["df/block0_values"] = np.zeros((35, 4))
        file["df"].attrs["pandas_type"] = np.bytes_("frame")
    with pytest.raises(SourceError, match=r"pandas.*to_csv"):
        hdf5.open_recordings(tmp_path / "frame.h5")


def test_packed_values_and_fill_values_follow_their_attributes(tmp_path: Path) -> None:
    path = tmp_path / "flow.h5"
    write_flow(path)
    with h5py.File(path, "a") as file:
        wanted = file["Vx"][...]
        packed = np.rint(100 * (wanted - 1)).astype("i2")
        packed[1, 2, 3] = -32767
        del file["Vx"]
        file["Vx"] = packed
        attributes = {"scale_factor": 0.01, "add_offset": 1.0, "_FillValue": np.int16(-32767)}
        file["Vx"].attrs.update(attributes)
        v = file["Vy"][...]
        v[0, 0, 0] = -9999.0
        del file["Vy"]
        file.create_dataset("Vy", data=v, fillvalue=-9999.0)
    flow = hdf5.open_recordings(path)[0]
    known = flow.known()
    assert (~known).nonzero().tolist() == [[0, 0, 0], [1, 2, 3]]
    values = flow.read()[:, 0].numpy()[known]
    np.testing.assert_allclose(values, wanted[known], atol=6e-3)


def test_dimension_scales_give_the_order_of_axes_of_equal_length(tmp_path: Path) -> None:
    u = np.arange(18.0).reshape(2, 3, 3)  # (t, x, y)
    with h5py.File(tmp_path / "flow.h5", "w") as file:
        for name, values in {"time": [0.0, 1.0], "x": [0.0, 1.0, 2.0], "y": [5.0, 6, 7]}.items():
            file[name] = np.array(values)
            file[name].make_scale(name)
        for name, field in {"u": u, "v": u + 100}.items():
            file[name] = field
            for axis, scale in enumerate(("time", "x", "y")):
                file[name].dims[axis].attach_scale(file[scale])
    flow = hdf5.open_recordings(tmp_path / "flow.h5")[0]
    np.testing.assert_array_equal(flow.read()[:, 0].numpy(), u.swapaxes(1, 2))
