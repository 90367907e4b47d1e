"""MATLAB files of version 5 and 7.3."""

import pickle
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch

from pibert.data.sources import matlab
from pibert.data.sources.recordings import Hints, SourceError
from tests.lookalikes.flow import T, X, Y, assert_flow, fields

io = pytest.importorskip("scipy.io")


def write_old(path: Path, named: Mapping[str, Any]) -> None:
    io.savemat(path, dict(named), do_compression=True)


def write_new(path: Path, named: Mapping[str, Any]) -> None:
    """Version 7.3: HDF5 after 512 bytes of text, every array with its axes in reverse."""
    with h5py.File(path, "w", userblock_size=512) as file:
        for name, values in named.items():
            if isinstance(values, dict):
                file.create_group(name).attrs["MATLAB_class"] = np.bytes_("struct")
                continue
            array = np.atleast_2d(values)
            file[name] = array.T
            kind = (
                "logical" if array.dtype == bool else "single" if array.itemsize == 4 else "double"
            )
            file[name].attrs["MATLAB_class"] = np.bytes_(kind)
        file.create_group("#refs#")
    head = b"MATLAB 7.3 MAT-file, Platform: GLNXA64, Created on: Mon Jan  1 00:00:00 2024"
    with path.open("r+b") as stream:
        stream.write(head.ljust(124) + b"\x00\x02IM")


Write = Callable[[Path, Mapping[str, Any]], None]
both = pytest.mark.parametrize("write", [write_old, write_new])


def flow(order: str = "yxt") -> dict[str, np.ndarray]:
    return {
        name: values.transpose(["tyx".index(letter) for letter in order])
        for name, values in fields().items()
    }


@both
def test_meshes_and_frames_in_the_order_of_matlab(tmp_path: Path, write: Write) -> None:
    path = tmp_path / "flow.mat"
    x, y = np.meshgrid(X, Y)
    write(path, flow() | {"x": x, "y": y, "t": T[:, None], "info": {"a": 1.0}})
    assert matlab.recognise(path)
    recordings = matlab.open_recordings(path)
    assert_flow(recordings[0])
    assert any("info" in remark for remark in recordings.remarks)
    assert_flow(pickle.loads(pickle.dumps(recordings))[0])


@both
@pytest.mark.parametrize("order", ["yxt", "tyx", "xyt"])
def test_vectors_tell_the_order_of_the_axes(tmp_path: Path, write: Write, order: str) -> None:
    path = tmp_path / "flow.mat"
    write(path, flow(order) | {"x": X, "y": Y[:, None], "t": T})
    assert_flow(matlab.open_recordings(path)[0])


@both
def test_without_coordinates_frames_come_last(tmp_path: Path, write: Write) -> None:
    path = tmp_path / "flow.mat"
    write(path, flow() | {"dt": 0.05, "dx": 0.1, "dy": 0.3})
    (trajectory,) = matlab.open_recordings(path)
    assert trajectory.states.shape == (6, 2, 5, 7)
    assert torch.equal(trajectory.read()[:, 0], torch.from_numpy(fields()["u"]))
    grid = trajectory.spec.grid
    assert (trajectory.spec.dt, grid.dx, grid.dy) == pytest.approx((0.05, 0.1, 0.3))


@both
def test_points_and_a_single_field(tmp_path: Path, write: Write) -> None:
    path = tmp_path / "flow.mat"
    x, y = np.meshgrid(X, Y)
    first = {name: values[0].reshape(-1, 1) for name, values in fields().items()}
    write(path, first | {"x": x.reshape(-1, 1), "y": y.reshape(-1, 1)})
    assert_flow(matlab.open_recordings(path)[0], frames=1, dt=None)


@both
def test_a_body_may_be_a_logical_array(tmp_path: Path, write: Write) -> None:
    path = tmp_path / "flow.mat"
    body = np.zeros((5, 7), bool)
    body[1, 4] = True
    write(path, flow() | {"x": X, "y": Y, "t": T, "body": body})
    (trajectory,) = matlab.open_recordings(path)
    assert isinstance(trajectory.body, torch.Tensor)
    assert torch.equal(trajectory.body, torch.from_numpy(body))


@both
def test_sessions_of_pivlab_are_left_to_its_reader(tmp_path: Path, write: Write) -> None:
    path = tmp_path / "session.mat"
    write(path, {"u_original": np.zeros((5, 7)), "x": np.zeros((5, 7))})
    assert not matlab.recognise(path)
    assert not matlab.recognise(tmp_path / "absent.mat")
    assert not matlab.recognise(tmp_path)


@both
def test_what_is_there_is_listed_where_nothing_is_found(tmp_path: Path, write: Write) -> None:
    path = tmp_path / "flow.mat"
    write(path, {"alpha": flow()["u"], "beta": flow()["v"], "x": X, "y": Y, "t": T})
    with pytest.raises(SourceError, match=r"alpha \w+ \(5, 7, 6\)"):
        matlab.open_recordings(path)
    assert_flow(matlab.open_recordings(path, Hints(channels={"u": "alpha", "v": "beta"}))[0])
    write(path, {"u": flow()["u"], "x": X, "y": Y})
    with pytest.raises(SourceError, match="'u' but no 'v'"):
        matlab.open_recordings(path)


@both
def test_a_file_of_structs_is_refused_with_advice(tmp_path: Path, write: Write) -> None:
    path = tmp_path / "flow.mat"
    write(path, {"data": {"u": 1.0}, "Re": 100.0})
    with pytest.raises(SourceError, match=r"data; structs and cells are not read.*'-struct'"):
        matlab.open_recordings(path)


@both
def test_damaged_and_foreign_files_are_refused_in_words(tmp_path: Path, write: Write) -> None:
    path = tmp_path / "flow.mat"
    write(path, flow() | {"x": X, "y": Y, "t": T})
    whole = path.read_bytes()
    for length in (3, 100, 130, 600, len(whole) // 2, len(whole) - 40):
        path.write_bytes(whole[:length])
        matlab.recognise(path)
        with pytest.raises(SourceError, match=r"flow\.mat"):
            matlab.open_recordings(path)[0].read()
    path.write_text("not MATLAB's, but a text that is long enough to look at" * 9)
    with pytest.raises(SourceError, match=r"flow\.mat"):
        matlab.open_recordings(path)
