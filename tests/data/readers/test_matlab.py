"""MATLAB files of version 5 and 7.3."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch

from pibert.data.readers import matlab
from pibert.data.readers.recordings import Hints, SourceError
from tests.lookalikes.flow import T, X, Y, assert_flow, fields
from tests.lookalikes.matlab import write_matlab_73

io = pytest.importorskip("scipy.io")


def write_old(path: Path, named: Mapping[str, Any]) -> None:
    io.savemat(path, dict(named), do_compression=True)


Write = Callable[[Path, Mapping[str, Any]], None]
both = pytest.mark.parametrize("write", [write_old, write_matlab_73])


def flow(order: str = "yxt") -> dict[str, np.ndarray]:
    return {
        name: values.transpose(["tyx".index(letter) for letter in order])
        for name, values in fields().items()
    }


@both
def test_meshes_and_frames_in_matlab_order(tmp_path: Path, write: Write) -> None:
    path = tmp_path / "flow.mat"
    x, y = np.meshgrid(X, Y)
    body = np.zeros((5, 7), bool)
    body[1, 4] = True
    write(path, flow() | {"x": x, "y": y, "t": T[:, None], "info": {"a": 1.0}, "body": body})
    assert matlab.recognise(path) and not matlab.recognise(tmp_path / "absent.mat")
    recordings = matlab.open_recordings(path)
    assert_flow(recordings[0])
    assert recordings[0].spec.grid.body is not None
    assert torch.equal(recordings[0].spec.grid.body, torch.from_numpy(body))
    assert any("info" in note for note in recordings.notes)


def test_complex_fields_are_refused(tmp_path: Path) -> None:
    axes, complex_flow = {"x": X, "y": Y, "t": T}, {k: v + 1j for k, v in flow().items()}
    write_old(tmp_path / "old.mat", complex_flow | axes)
    with pytest.raises(SourceError, match="complex"):
        matlab.open_recordings(tmp_path / "old.mat")
    # MATLAB 7.3 writes records of two numbers.
    write_matlab_73(tmp_path / "new.mat", flow() | axes)
    parts = np.dtype([("real", "f4"), ("imag", "f4")])
    with h5py.File(tmp_path / "new.mat", "a") as file:
        for name, values in flow().items():
            del file[name]
            file[name] = np.stack([values.T, values.T], -1).view(parts)[..., 0]
            file[name].attrs["MATLAB_class"] = np.bytes_("single")
    with pytest.raises(SourceError, match="complex"):
        matlab.open_recordings(tmp_path / "new.mat")


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
def test_arrays_are_listed_if_no_flow_is_found(tmp_path: Path, write: Write) -> None:
    path = tmp_path / "flow.mat"
    write(path, {"alpha": flow()["u"], "beta": flow()["v"], "x": X, "y": Y, "t": T})
    with pytest.raises(SourceError, match=r"alpha \w+ \(5, 7, 6\)"):
        matlab.open_recordings(path)
    assert_flow(matlab.open_recordings(path, Hints(channels={"u": "alpha", "v": "beta"}))[0])
    write(path, {"data": {}, "Re": 100.0})
    with pytest.raises(SourceError, match="data; structs"):
        matlab.open_recordings(path)


@both
def test_damaged_and_foreign_files_are_refused(tmp_path: Path, write: Write) -> None:
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
