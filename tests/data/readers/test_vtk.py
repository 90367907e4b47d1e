"""VTK files of every kind and coding, planes in space, series, damaged files."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pibert.data.readers import vtk
from pibert.data.readers.recordings import Hints, SourceError
from pibert.fields import Trajectory
from tests.helpers import refused
from tests.lookalikes.flow import X, Y, assert_flow, velocity
from tests.lookalikes.openfoam import edges
from tests.lookalikes.vtk import write_collection, write_legacy, write_xml

Z = np.array([0.5])
LEGACY = (
    "STRUCTURED_POINTS",
    "RECTILINEAR_GRID",
    "STRUCTURED_GRID",
    "UNSTRUCTURED_GRID",
    "POLYDATA",
)
SUFFIXES = (".vti", ".vtr", ".vts", ".vtu", ".vtp")


def data(
    x: np.ndarray = X, y: np.ndarray = Y, t: float = 0.0, plane: str = "xy"
) -> dict[str, np.ndarray]:
    """Velocity and pressure on a plane as (z, y, x, 3) and (z, y, x)."""
    u, v = velocity(x[None, :], y[:, None], t)
    other = np.full_like(u, 77.0)
    vector = {"xy": (u, v, other), "xz": (u, other, v), "yz": (other, u, v)}[plane]
    shape = {"xy": (1, len(y), len(x)), "xz": (len(y), 1, len(x)), "yz": (len(y), len(x), 1)}[plane]
    stacked = np.stack(vector, -1).reshape(*shape, 3)
    return {"p": (u + v).reshape(shape).astype(np.float32), "U": stacked}


def opened(path: Path, hints: Hints = Hints()) -> Trajectory:
    assert vtk.recognise(path)
    (trajectory,) = vtk.open_recordings(path, hints)
    return trajectory


def assert_plane(trajectory: Trajectory) -> None:
    assert_flow(trajectory, frames=1, dt=None)
    u, v, p = trajectory.read()[0]
    assert trajectory.spec.channels == ("u", "v", "p")
    torch.testing.assert_close(p, u + v, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("binary", [False, True])
@pytest.mark.parametrize("field", [False, True])
@pytest.mark.parametrize("kind", LEGACY)
def test_legacy_files_of_every_kind(tmp_path: Path, kind: str, field: bool, binary: bool) -> None:
    path = tmp_path / "flow.vtk"
    write_legacy(path, kind, (X, Y, Z), data(), binary=binary, field=field)
    assert_plane(opened(path))
    if kind == "UNSTRUCTURED_GRID":
        # Values of cells lie at their centres: nodes half a step out give the points of the flow.
        nodes, cells = (edges(X), edges(Y), Z), {"on_cells": True, "modern_cells": field}
        write_legacy(path, kind, nodes, data(), binary=binary, **cells)
        assert_plane(opened(path))


@pytest.mark.parametrize("form", ["ascii", "binary", "raw", "base64"])
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_xml_files_of_every_kind(tmp_path: Path, suffix: str, form: str) -> None:
    path = tmp_path / f"flow{suffix}"
    write_xml(path, (X, Y, Z), data(), form=form)
    assert_plane(opened(path))


@pytest.mark.parametrize("form", ["binary", "raw", "base64"])
@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize(("header", "big_endian"), [("UInt32", True), ("UInt64", False)])
def test_xml_codings(
    tmp_path: Path, form: str, compressed: bool, header: str, big_endian: bool
) -> None:
    path = tmp_path / "flow.vts"
    coding: dict[str, Any] = {"header": header, "compressed": compressed, "big_endian": big_endian}
    write_xml(path, (X, Y, Z), data(), form=form, **coding)
    assert_plane(opened(path))


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_values_of_cells_lie_at_their_centres(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"flow{suffix}"
    write_xml(path, (edges(X), edges(Y), Z), data(), on_cells=True)
    assert_plane(opened(path))
    assert any("cells" in note for note in vtk.open_recordings(path).notes)
    if suffix == ".vtr":  # one layer of cells is a plane
        write_xml(path, (edges(X), edges(Y), np.array([0.0, 1.0])), data(), on_cells=True)
        assert_plane(opened(path))


@pytest.mark.parametrize("suffix", [".vti", ".vts", ".vtu"])
@pytest.mark.parametrize("plane", ["xz", "yz"])
def test_other_planes_become_x_and_y(tmp_path: Path, suffix: str, plane: str) -> None:
    path = tmp_path / f"flow{suffix}"
    write_xml(path, {"xz": (X, Z, Y), "yz": (Z, X, Y)}[plane], data(plane=plane))
    assert_plane(opened(path))
    assert any(f"the plane is {plane}" in note for note in vtk.open_recordings(path).notes)


def test_rotated_images_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "flow.vti"
    write_xml(path, (X, Y, Z), data())
    text = path.read_text()
    path.write_text(text.replace(" Origin", ' Direction="1 0 0 0 1 0 0 0 1" Origin'))
    assert_plane(opened(path))
    path.write_text(text.replace(" Origin", ' Direction="1 0 0 0 -1 0 0 0 -1" Origin'))
    with pytest.raises(SourceError, match="a rotated image"):
        vtk.open_recordings(path)


@pytest.mark.parametrize("suffix", [".vti", ".vtu"])
def test_points_that_vtk_hides_or_could_not_probe_are_not_valid(
    tmp_path: Path, suffix: str
) -> None:
    path = tmp_path / f"flow{suffix}"
    ghosts, probed = np.zeros((1, 5, 7), "u1"), np.ones((1, 5, 7), "i1")
    ghosts[0, 1, 2], ghosts[0, 3, 3], probed[0, 4, 6] = 2, 1, 0  # hidden; another piece's
    flags = {"vtkGhostType": ghosts, "vtkValidPointMask": probed}
    write_xml(path, (X, Y, Z), data() | flags)
    trajectory = opened(path)
    assert trajectory.spec.channels == ("u", "v", "p")
    assert (~trajectory.known()[0]).nonzero().tolist() == [[1, 2], [4, 6]]
    ghosts[0, 1, 2] = 32
    write_xml(path, (edges(X), edges(Y), Z), data() | {"vtkGhostType": ghosts}, on_cells=True)
    assert (~opened(path).known()[0]).nonzero().tolist() == [[1, 2]]


def test_a_collection_is_read_with_its_times(tmp_path: Path) -> None:
    (tmp_path / "frames").mkdir()
    for frame in range(6):
        write_xml(
            tmp_path / "frames" / f"a{frame}.vti", (X, Y, Z), data(t=0.05 * frame), form="raw"
        )
    entries = {round(0.05 * frame, 2): f"frames/a{frame}.vti" for frame in (3, 0, 1, 2, 5, 4)}
    write_collection(tmp_path / "flow.pvd", entries)
    recordings = vtk.open_recordings(tmp_path / "flow.pvd")
    assert recordings.names == ("flow",)
    trajectory = recordings[0]
    assert not isinstance(trajectory.states, torch.Tensor)
    assert_flow(trajectory)
    np.testing.assert_allclose(trajectory.time, 0.05 * np.arange(6))


def test_a_series_of_blocks_is_read(tmp_path: Path) -> None:
    entries = []
    for frame in range(6):
        write_xml(tmp_path / f"flow_{frame}.vtu", (X, Y, Z), data(t=0.05 * frame), form="raw")
        block = tmp_path / f"flow_{frame}.vtm"
        block.write_text(
            '<VTKFile type="vtkMultiBlockDataSet"><vtkMultiBlockDataSet>'
            f'<DataSet name="internal" file="flow_{frame}.vtu"/>'
            '<Block name="boundary"><DataSet name="inlet" file="nowhere.vtp"/></Block>'
            "</vtkMultiBlockDataSet></VTKFile>"
        )
        entries.append({"name": block.name, "time": round(0.05 * frame, 2)})
    series = tmp_path / "flow.vtm.series"
    series.write_text(json.dumps({"file-series-version": "1.0", "files": entries}))
    assert vtk.recognise(series) and vtk.recognise(tmp_path)
    assert vtk.open_recordings(series).names == ("flow",)
    for path in (series, tmp_path):
        assert_flow(opened(path))
    assert_plane(opened(tmp_path / "flow_0.vtm"))
    block.write_text(block.read_text().replace('"internal"', '"outlet"'))
    with pytest.raises(SourceError, match="2 data sets .outlet, inlet."):
        vtk.open_recordings(block)
    absent = series.read_text().replace("flow_5.vtm", "flow_6.vtm")
    for text in (absent, "{", '{"files": [{"name": "a.vtu"}]}', "[]", '{"files": []}'):
        series.write_text(text)
        with pytest.raises(SourceError, match=r"flow\.vtm\.series"):
            vtk.open_recordings(series)


@pytest.mark.parametrize("timed", [True, False])
def test_numbered_files_of_a_folder_are_frames_in_order(tmp_path: Path, timed: bool) -> None:
    for frame in range(6):
        path, t = tmp_path / f"run_{8 + frame}.vtk", 0.05 * frame
        write_legacy(path, LEGACY[0], (X, Y, Z), data(t=t), time=t if timed else None)
    assert_flow(opened(tmp_path), dt=0.05 if timed else None)
    write_xml(tmp_path / "other.vti", (X, Y, Z), data())
    with pytest.raises(SourceError, match="several series .*other.vti"):
        vtk.open_recordings(tmp_path)


def test_missing_files_of_a_folder_leave_gaps_in_time(tmp_path: Path) -> None:
    for number in (8, 9, 11):
        write_xml(tmp_path / f"run_{number}.vti", (X, Y, Z), data())
    recordings = vtk.open_recordings(tmp_path)
    assert recordings[0].time.tolist() == [0, 1, 3]
    assert recordings[0].spec.dt is None
    assert any("frames are missing" in note for note in recordings.notes)


def test_values_of_cells_beside_values_of_points_are_named(tmp_path: Path) -> None:
    path = tmp_path / "flow.vti"
    write_xml(path, (X, Y, Z), data())
    cells = " ".join(map(str, range(24)))
    text = path.read_bytes().replace(
        b"</PointData>",
        b'</PointData><CellData><DataArray type="Float32" Name="T" format="ascii">'
        + cells.encode()
        + b"</DataArray></CellData>",
    )
    path.write_bytes(text)
    assert_plane(opened(path))
    assert any("belong to cells: T" in note for note in vtk.open_recordings(path).notes)


def test_codes_of_missing_values_of_cells_do_not_reach_their_neighbours(tmp_path: Path) -> None:
    path, values = tmp_path / "flow.vtu", data()
    values["p"][0, 2, 3] = -9999
    uneven = np.append(edges(X)[:-1], edges(X)[-1] + 0.05)
    write_xml(path, (uneven, edges(Y), Z), values, on_cells=True)
    recordings = vtk.open_recordings(path)
    assert any("p -9999" in note for note in recordings.notes)
    known, p = recordings[0].known(), recordings[0].read()[:, 2]
    assert not known.all() and float(p[known].min()) >= float(data()["p"].min())


def test_a_frame_unlike_the_first_is_refused_when_it_is_read(tmp_path: Path) -> None:
    write_xml(tmp_path / "a0.vti", (X, Y, Z), data())
    write_xml(tmp_path / "a1.vti", (X + 1, Y, Z), data())
    trajectory = opened(tmp_path)
    trajectory.read(slice(0, 1))
    with refused("a1.vti", "points", "a0.vti", error=SourceError):
        trajectory.read()
    write_xml(tmp_path / "a1.vti", (X, Y, Z), {"U": data()["U"]})
    with refused("a1.vti", "'p'", "a0.vti", error=SourceError):
        opened(tmp_path).read()


def test_a_flow_in_space_or_without_a_clear_velocity_is_refused(tmp_path: Path) -> None:
    axes = X, Y, np.array([0.0, 1.0, 2.0])
    for suffix in (".vti", ".vtu"):
        path = tmp_path / f"flow{suffix}"
        write_xml(path, axes, {"U": np.zeros((3, 5, 7, 3))})
        with pytest.raises(SourceError, match="cut a plane"):
            vtk.open_recordings(path)
    write_xml(path, (X, Y, Z), {"speedy": data()["U"]})  # the only vector
    assert_flow(opened(path), frames=1, dt=None)
    write_xml(path, (X, Y, Z), {"first": data()["U"], "second": data()["U"]})
    with pytest.raises(SourceError, match="first_x"):
        vtk.open_recordings(path)
    hints = Hints(channels={"u": "second_x", "v": "second_y"})
    assert_flow(opened(path, hints), frames=1, dt=None)
