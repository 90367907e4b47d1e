"""MATLAB files of version 5 and 7.3."""

import pickle
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pibert.data.readers import matlab
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
    assert_flow(pickle.loads(pickle.dumps(recordings))[0])


@both
def test_without_coordinates_frames_come_last(tmp_path: Path, write: Write) -> None:
    path = tmp_path / "flow.mat"
    write(path, flow() | {"dt": 0.05, "dx": 0.1, "dy": 0.3})
    (trajectory,) = matlab.open_recordings(path)
    assert trajectory.states.shape == (6, 2, 5, 7)
    assert torch.equal(trajectory.read()[:, 0], torch.from_numpy(fields()["u"]))
    grid = trajectory.spec.grid
    assert (trajectory.spec.dt, grid.dx, grid.dy) == pytest.approx((0.05, 0.1, 0.3))
