"""The Well's HDF5 layout: x-first arrays, fields that vary along few axes, damaged files."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch

from pibert.data import readers
from pibert.data.readers.recordings import Hints, SourceError
from pibert.data.readers.well import open_recordings, recognise
from pibert.fields import Boundary, Sides
from tests.helpers import refused
from tests.lookalikes.well import values, write_well

CHANNELS = (
    *("tracer", "p", "depth", "stripe"),
    *("u", "v"),
    *("stress_xx", "stress_xy", "stress_yx", "stress_yy"),
)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return write_well(tmp_path / "shear.hdf5")


def stored(components: int = 1) -> torch.Tensor:
    """(trajectory, frame, component, y, x)."""
    return torch.from_numpy(values(components)).permute(0, 1, 4, 3, 2)


def test_every_field_is_transposed_to_rows_of_y(path: Path) -> None:
    assert recognise(path) and recognise(path.parent)
    recordings = open_recordings(path)
    assert recordings.names == ("shear-0", "shear-1")
    trajectory = recordings[1]
    assert trajectory.spec.channels == CHANNELS
    assert trajectory.states.shape == (6, 10, 4, 7)
    fields = dict(zip(CHANNELS, trajectory.read().unbind(1), strict=True))
    assert torch.equal(fields["tracer"], stored()[1, :, 0])
    assert torch.equal(fields["p"], stored()[1, :, 0] + 1e4)
    assert torch.equal(fields["u"], stored(2)[1, :, 0])
    assert torch.equal(fields["v"], stored(2)[1, :, 1])
    assert torch.equal(fields["stress_yx"], stored(4)[1, :, 2])
    assert torch.equal(fields["depth"], stored()[0, :1, 0].expand(6, 4, 7))
    assert torch.equal(fields["stripe"], stored()[1, :, 0, :1].expand(6, 4, 7))
    some = trajectory.read(slice(1, 6, 2), [5, 2])
    assert torch.equal(some, torch.stack([fields["v"][1:6:2], fields["depth"][1:6:2]], 1))


def test_grid_time_parameters_and_sides(path: Path) -> None:
    trajectory = open_recordings(path)[1]
    grid = trajectory.spec.grid
    assert grid.shape == (4, 7) and (grid.dx, grid.dy) == (0.5, 0.25) and grid.origin == (0.0, 2.0)
    periodic, wall = Boundary.PERIODIC, Boundary.WALL
    assert grid.sides == Sides(left=periodic, right=periodic, top=wall)
    assert trajectory.spec.dt == pytest.approx(0.1)
    assert trajectory.parameters == {"Reynolds": 1e4, "Schmidt": 0.5, "forcing": 0.5}
    scalings = {p.name: p.scaling for p in trajectory.spec.parameters}
    assert scalings == {"Reynolds": "log", "Schmidt": "log", "forcing": "linear"}
    assert trajectory.series["energy"].tolist() == [6, 7, 8, 9, 10, 11]
    assert trajectory.source["title"] == "The Well: shear_flow"


def test_hints_rename_channels_and_state_units(path: Path) -> None:
    hints = Hints(channels={"s": "tracer"}, unit="m/s", family="incompressible")
    trajectory = readers.open_recordings(path, "well", hints)[0]
    assert trajectory.spec.channels[0] == "s"
    assert trajectory.spec.units[4] == "m/s" and trajectory.spec.family == "incompressible"
    with pytest.raises(SourceError, match="'u'; there are"):
        open_recordings(path, Hints(channels={"u": "tracer"}))


Change = Callable[[h5py.File], None]


def _set(key: str, value: Any) -> Change:
    return lambda h5: h5.attrs.__setitem__(key, value)


def _replace(key: str, data: np.ndarray) -> Change:
    def change(h5: h5py.File) -> None:
        attributes = dict(h5[key].attrs)
        del h5[key]
        h5[key] = data
        h5[key].attrs.update(attributes)

    return change


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (_set("n_spatial_dims", 3), "only plane Cartesian sets"),
        (_set("grid_type", "spherical"), "found a spherical one"),
        (_replace("dimensions/x", np.arange(7.0) ** 2), "points of x and y are not uniform"),
        (_replace("dimensions/y", -np.arange(4.0)), "not uniform and growing"),
        (_replace("t1_fields/velocity", np.zeros((2, 6, 7, 5, 2))), "t1_fields/velocity: expected"),
        (_replace("t0_fields/tracer", np.zeros((2, 5, 7, 4))), "t0_fields/tracer: expected"),
        (lambda h5: h5.__delitem__("dimensions"), "the group dimensions"),
    ],
)
def test_unsupported_and_damaged_sets_are_refused(
    path: Path, change: Callable[[h5py.File], None], words: str
) -> None:
    with h5py.File(path, "a") as h5:
        change(h5)
    with refused(words, "shear.hdf5", error=SourceError):
        open_recordings(path)


def test_an_unknown_boundary_is_left_open_and_noted(path: Path) -> None:
    with h5py.File(path, "a") as h5:
        h5["boundary_conditions/y_wall"].attrs["bc_type"] = "SPONGE"
    recordings = open_recordings(path)
    assert recordings[0].spec.grid.sides.top is Boundary.OPEN
    assert any("SPONGE" in note for note in recordings.notes)
