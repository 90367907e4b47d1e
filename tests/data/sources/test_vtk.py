"""VTK files of every kind and coding, planes in space, series, and what is refused."""

import base64
import json
import pickle
import struct
from pathlib import Path

import numpy as np
import pytest
import torch

from pibert.data.format import check, write
from pibert.data.sources import vtk
from pibert.data.sources.recordings import Hints, SourceError
from pibert.fields import Trajectory
from tests.lookalikes.flow import X, Y, assert_flow, velocity
from tests.lookalikes.vtk import points_of, quads, write_collection, write_legacy, write_xml

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


@pytest.mark.parametrize("binary", [False, True])
def test_cells_of_the_newer_legacy_layout(tmp_path: Path, binary: bool) -> None:
    path = tmp_path / "flow.vtk"
    # Values of cells lie at their centres: nodes half a step out give the points of the flow.
    nodes = edges(X), edges(Y), Z
    for modern in (False, True):
        write_legacy(
            path,
            "UNSTRUCTURED_GRID",
            nodes,
            data(),
            binary=binary,
            on_cells=True,
            modern_cells=modern,
        )
        assert_plane(opened(path))


@pytest.mark.parametrize("binary", [False, True])
def test_texts_among_the_data_of_a_legacy_file_are_passed_over(
    tmp_path: Path, binary: bool
) -> None:
    path = tmp_path / "flow.vtk"
    write_legacy(path, "STRUCTURED_GRID", (X, Y, Z), data(), binary=binary, time=0.0)
    # In binary a text follows its length: six bits of one byte, or fourteen of two.
    texts = b"\xcbhello world\x80\x46" + b"a" * 70 if binary else b"hello%20world\nshort"
    head = b"FIELD FieldData 1\n"
    stated = b"FIELD FieldData 2\nnote 1 2 string\n" + texts + b"\n"
    path.write_bytes(path.read_bytes().replace(head, stated, 1))
    assert_plane(opened(path))


def edges(axis: np.ndarray) -> np.ndarray:
    step = axis[1] - axis[0]
    return np.append(axis - step / 2, axis[-1] + step / 2)


@pytest.mark.parametrize("form", ["ascii", "binary", "raw", "base64"])
@pytest.mark.parametrize("suffix", SUFFIXES)
def test_xml_files_of_every_kind(tmp_path: Path, suffix: str, form: str) -> None:
    path = tmp_path / f"flow{suffix}"
    write_xml(path, (X, Y, Z), data(), form=form)
    assert_plane(opened(path))


@pytest.mark.parametrize("form", ["binary", "raw", "base64"])
@pytest.mark.parametrize("header", ["UInt32", "UInt64"])
@pytest.mark.parametrize("compressed", [False, True])
@pytest.mark.parametrize("big_endian", [False, True])
def test_xml_codings(
    tmp_path: Path, form: str, header: str, compressed: bool, big_endian: bool
) -> None:
    path = tmp_path / "flow.vts"
    write_xml(
        path,
        (X, Y, Z),
        data(),
        form=form,
        header=header,
        compressed=compressed,
        big_endian=big_endian,
    )
    assert_plane(opened(path))


@pytest.mark.parametrize("suffix", SUFFIXES)
def test_values_of_cells_lie_at_their_centres(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"flow{suffix}"
    write_xml(path, (edges(X), edges(Y), Z), data(), on_cells=True)
    assert_plane(opened(path))
    assert any("cells" in remark for remark in vtk.open_recordings(path).remarks)


def test_one_layer_of_cells_is_a_plane(tmp_path: Path) -> None:
    path = tmp_path / "flow.vtr"
    write_xml(path, (edges(X), edges(Y), np.array([0.0, 1.0])), data(), on_cells=True)
    assert_plane(opened(path))


@pytest.mark.parametrize("suffix", [".vti", ".vts", ".vtu"])
@pytest.mark.parametrize("plane", ["xz", "yz"])
def test_other_planes_are_turned_into_x_and_y_in_words(
    tmp_path: Path, suffix: str, plane: str
) -> None:
    path = tmp_path / f"flow{suffix}"
    write_xml(path, {"xz": (X, Z, Y), "yz": (Z, X, Y)}[plane], data(plane=plane))
    assert_plane(opened(path))
    assert any(f"the plane is {plane}" in remark for remark in vtk.open_recordings(path).remarks)


@pytest.mark.parametrize("plane", ["xy", "xz", "yz"])
def test_components_stored_as_scalars_go_with_the_plane(tmp_path: Path, plane: str) -> None:
    path = tmp_path / "flow.vtr"
    scalars = {name: data(plane=plane)["U"][..., axis] for axis, name in enumerate("uvw")}
    write_xml(path, {"xy": (X, Y, Z), "xz": (X, Z, Y), "yz": (Z, X, Y)}[plane], scalars)
    trajectory = opened(path)
    assert_flow(trajectory, frames=1, dt=None)
    assert trajectory.spec.channels == ("u", "v", "w")
    assert (trajectory.read()[0, 2] == 77).all()


def test_images_may_be_turned_in_space(tmp_path: Path) -> None:
    path = tmp_path / "flow.vti"
    down = {name: np.ascontiguousarray(values[:, ::-1]) for name, values in data().items()}
    write_xml(path, (X, Y[-1] + 0.3 * np.arange(5), Z), down)
    text = path.read_text()
    path.write_text(text.replace(" Origin", ' Direction="1 0 0 0 -1 0 0 0 -1" Origin'))
    assert_plane(opened(path))
    # Counted along x and y, lying along x and z.
    upright = {name: v.reshape(1, 5, 7, *v.shape[3:]) for name, v in data(plane="xz").items()}
    write_xml(path, (X, Y, Z), upright)
    text = path.read_text().replace(f"{X[0]:.17g} {Y[0]:.17g} 0.5", f"{X[0]:.17g} 0.5 {Y[0]:.17g}")
    path.write_text(text.replace(" Origin", ' Direction="1 0 0 0 0 -1 0 1 0" Origin'))
    assert_plane(opened(path))
    assert any("the plane is xz" in remark for remark in vtk.open_recordings(path).remarks)


def test_structured_points_may_be_counted_along_other_axes_than_they_lie_along(
    tmp_path: Path,
) -> None:
    path = tmp_path / "flow.vts"
    upright = {name: v.reshape(1, 5, 7, *v.shape[3:]) for name, v in data(plane="xz").items()}
    write_xml(path, (X, Y, Z), upright)
    text, points = path.read_text(), points_of((X, Y, Z))

    def lie(places: np.ndarray) -> None:
        old, new = (" ".join(repr(n.item()) for n in p.reshape(-1)) for p in (points, places))
        assert old in text
        path.write_text(text.replace(old, new))

    lie(points[:, [0, 2, 1]])
    assert_plane(opened(path))
    lie(points + points[:, :1] * [0, 0, 1])
    with pytest.raises(SourceError, match="cut a plane normal to x, y or z"):
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


def test_the_first_of_two_layers_of_points_is_taken_in_words(tmp_path: Path) -> None:
    lower, upper = data(), {name: values + 1 for name, values in data().items()}
    both = {name: np.concatenate([lower[name], upper[name]]) for name in lower}
    for suffix in (".vti", ".vts"):
        path = tmp_path / f"flow{suffix}"
        write_xml(path, (X, Y, np.array([0.0, 1.0])), both)
        assert_plane(opened(path))
        assert any("two layers along z" in remark for remark in vtk.open_recordings(path).remarks)


def test_an_uneven_rectilinear_grid_is_resampled(tmp_path: Path) -> None:
    uneven = np.array([-1.0, -0.95, -0.8, -0.7, -0.6, -0.5, -0.4])
    write_xml(tmp_path / "flow.vtr", (uneven, Y, Z), data(uneven))
    recordings = vtk.open_recordings(tmp_path / "flow.vtr")
    assert any("not uniform" in remark for remark in recordings.remarks)
    assert_plane(recordings[0])  # bilinear: exact for these fields


def test_a_collection_is_a_flow_with_its_times(tmp_path: Path) -> None:
    (tmp_path / "frames").mkdir()
    for frame in range(6):
        write_xml(
            tmp_path / "frames" / f"a{frame}.vti", (X, Y, Z), data(t=0.05 * frame), form="raw"
        )
    entries = {round(0.05 * frame, 2): f"frames/a{frame}.vti" for frame in (3, 0, 1, 2, 5, 4)}
    write_collection(tmp_path / "flow.pvd", entries)
    recordings = vtk.open_recordings(tmp_path / "flow.pvd")
    assert recordings.names == ("flow",)
    trajectory = pickle.loads(pickle.dumps(recordings))[0]
    assert not isinstance(trajectory.states, torch.Tensor)
    assert_flow(trajectory)
    np.testing.assert_allclose(trajectory.time, 0.05 * np.arange(6))
    write(tmp_path / "flow.h5", [trajectory])
    check(tmp_path / "flow.h5")


def test_a_series_names_blocks_and_these_the_flow(tmp_path: Path) -> None:
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
    with pytest.raises(SourceError, match="names 2 data sets .outlet, inlet."):
        vtk.open_recordings(block)
    series.write_text(series.read_text().replace("flow_5.vtm", "flow_6.vtm"))
    with pytest.raises(SourceError, match=r"flow_6\.vtm', which is not there"):
        vtk.open_recordings(series)
    for text in ("{", '{"files": [{"name": "a.vtu"}]}', "[]", '{"files": []}'):
        series.write_text(text)
        with pytest.raises(SourceError, match=r"flow\.vtm\.series"):
            vtk.open_recordings(series)


def test_a_hole_in_a_mesh_is_a_body_and_cells_around_it_keep_their_values(tmp_path: Path) -> None:
    path = tmp_path / "flow.vtu"
    write_xml(path, (X, Y, Z), data())
    text = path.read_text()
    cells = quads(7, 5)
    around = ((X[cells % 7].mean(1) + 0.75) ** 2 + (Y[cells // 7].mean(1) - 2.45) ** 2) > 0.01
    kept = cells[around]
    for name, old, new in (
        ("connectivity", cells, kept),
        ("offsets", 4 * np.arange(1, 25), 4 * np.arange(1, len(kept) + 1)),
        ("types", np.full(24, 9), np.full(len(kept), 9)),
    ):
        before, after = (" ".join(str(n) for n in values.reshape(-1)) for values in (old, new))
        assert before in text, name
        text = text.replace(before, after)
    path.write_text(text)
    assert len(kept) < len(cells)
    (trajectory,) = vtk.open_recordings(path, Hints(shape=(9, 13)))
    x, y = (axis.numpy() for axis in trajectory.spec.grid.coordinates())
    body = trajectory.spec.grid.body
    assert body is not None
    np.testing.assert_array_equal(body.numpy(), ~trajectory.known()[0].numpy())
    assert 0 < body.sum() < 6
    u, _ = velocity(x, y)
    states = trajectory.read()[0, 0].numpy()
    np.testing.assert_allclose(states[~body.numpy()], u[~body.numpy()], rtol=1e-5)


def test_frames_of_a_mesh_that_moves_are_sampled_from_their_own_mesh(tmp_path: Path) -> None:
    for frame, shift in enumerate((0.0, 0.0, 0.2)):
        moved = X + shift
        write_xml(tmp_path / f"a{frame}.vtu", (moved, Y, Z), data(moved))
    recordings = vtk.open_recordings(tmp_path)
    assert "the mesh moves: each frame is sampled from its own mesh" in recordings.remarks
    (trajectory,) = recordings
    x, y = (axis.numpy() for axis in trajectory.spec.grid.coordinates())
    u, known = velocity(x, y)[0], trajectory.known().numpy()
    assert known[:2].all() and not known[2][x < X[0] + 0.19].any()
    assert known[2][x > X[0] + 0.21].all()
    for states, there in zip(trajectory.read()[:, 0].numpy(), known, strict=True):
        np.testing.assert_allclose(states[there], u[there], rtol=1e-4)


def test_sizes_that_openfoam_overstates_are_put_right(tmp_path: Path) -> None:
    path = tmp_path / "flow.vtp"
    write_xml(path, (X, Y, Z), data(), form="binary", header="UInt64")
    text = path.read_text()
    connectivity = quads(7, 5)
    stated = base64.b64encode(struct.pack("<Q", connectivity.nbytes) + connectivity.tobytes())
    over = base64.b64encode(struct.pack("<Q", 8 * connectivity.nbytes) + connectivity.tobytes())
    assert stated.decode() in text
    path.write_text(text.replace(stated.decode(), over.decode()))
    assert_plane(opened(path))


def test_a_folder_of_numbered_files_is_a_flow_in_the_order_of_the_numbers(tmp_path: Path) -> None:
    for frame in range(6):
        path = tmp_path / f"run_{8 + frame}.vtk"
        write_legacy(path, "STRUCTURED_POINTS", (X, Y, Z), data(t=0.05 * frame), time=0.05 * frame)
    assert_flow(opened(tmp_path))
    for frame in range(6):
        path = tmp_path / f"run_{8 + frame}.vtk"
        write_legacy(path, "STRUCTURED_POINTS", (X, Y, Z), data(t=0.05 * frame))
    assert_flow(opened(tmp_path), dt=None)
    write_xml(tmp_path / "other.vti", (X, Y, Z), data())
    with pytest.raises(SourceError, match="several series, other"):
        vtk.open_recordings(tmp_path)


def test_a_frame_unlike_the_first_is_refused_when_it_is_read(tmp_path: Path) -> None:
    write_xml(tmp_path / "a0.vti", (X, Y, Z), data())
    write_xml(tmp_path / "a1.vti", (X + 1, Y, Z), data())
    trajectory = opened(tmp_path)
    trajectory.read(slice(0, 1))
    with pytest.raises(SourceError, match=r"a1\.vti: its points differ from those of a0\.vti"):
        trajectory.read()
    write_xml(tmp_path / "a1.vti", (X, Y, Z), {"U": data()["U"]})
    with pytest.raises(SourceError, match=r"a1\.vti: the field 'p' of a0\.vti is missing"):
        opened(tmp_path).read()


def test_the_only_vector_is_the_velocity_and_others_are_named_by_the_user(tmp_path: Path) -> None:
    path = tmp_path / "flow.vti"
    write_xml(path, (X, Y, Z), {"speedy": data()["U"]})
    assert_flow(opened(path), frames=1, dt=None)
    write_xml(path, (X, Y, Z), {"first": data()["U"], "second": data()["U"]})
    with pytest.raises(SourceError, match="first_x float64"):
        vtk.open_recordings(path)
    hints = Hints(channels={"u": "second_x", "v": "second_y"})
    assert_flow(opened(path, hints), frames=1, dt=None)


def test_a_flow_in_space_is_refused(tmp_path: Path) -> None:
    axes = X, Y, np.array([0.0, 1.0, 2.0])
    values = {"U": np.zeros((3, 5, 7, 3))}
    for suffix in (".vti", ".vtu"):
        write_xml(tmp_path / f"flow{suffix}", axes, values)
        with pytest.raises(SourceError, match="cut a plane"):
            vtk.open_recordings(tmp_path / f"flow{suffix}")


def test_a_mesh_without_data_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "flow.vtk"
    write_legacy(path, "STRUCTURED_GRID", (X, Y, Z), data())
    path.write_bytes(path.read_bytes().split(b"POINT_DATA")[0])
    with pytest.raises(SourceError, match="a mesh without data"):
        vtk.open_recordings(path)


@pytest.mark.parametrize("binary", [False, True])
def test_legacy_files_cut_anywhere_are_refused_in_words(tmp_path: Path, binary: bool) -> None:
    path = tmp_path / "flow.vtk"
    write_legacy(path, "UNSTRUCTURED_GRID", (X, Y, Z), data(), binary=binary)
    whole = path.read_bytes()
    last = whole.index(b"VECTORS")
    # A cut between two arrays, or in the last digits before one, leaves a file whole in itself.
    for length in (*range(0, last - 60, 37), *range(last + 1, len(whole) - 20, 37)):
        path.write_bytes(whole[:length])
        with pytest.raises(SourceError, match=r"flow\.vtk"):
            vtk.open_recordings(path)


@pytest.mark.parametrize("form", ["ascii", "binary", "raw", "base64"])
@pytest.mark.parametrize("compressed", [False, True])
def test_xml_files_cut_anywhere_are_refused_in_words(
    tmp_path: Path, form: str, compressed: bool
) -> None:
    path = tmp_path / "flow.vtu"
    write_xml(path, (X, Y, Z), data(), form=form, compressed=compressed)
    whole = path.read_bytes()
    for length in range(0, len(whole) - 12, 199):
        path.write_bytes(whole[:length])
        with pytest.raises(SourceError, match="flow.vtu"):
            vtk.open_recordings(path)


def test_damaged_and_foreign_files_are_refused_in_words(tmp_path: Path) -> None:
    path = tmp_path / "flow.vti"
    write_xml(path, (X, Y, Z), data(), form="binary", compressed=True)
    whole = path.read_bytes()
    changes = {
        b"</PointData>": b"</CellData>",
        b'type="ImageData"': b'type="Tables"',
        b"vtkZLibDataCompressor": b"vtkLZ4DataCompressor",
        b'Extent="0 6': b'Extent="0 9',
        b'header_type="UInt32"': b'header_type="Float99"',
        b'Name="U" NumberOfComponents="3"': b'Name="U" NumberOfComponents="4"',
        b"eJ": b"eK",
    }
    for old, new in changes.items():
        assert old in whole
        path.write_bytes(whole.replace(old, new))
        with pytest.raises(SourceError, match="flow.vti"):
            vtk.open_recordings(path)
    path.write_text("<html></html>")
    with pytest.raises(SourceError, match="not VTKFile"):
        vtk.open_recordings(path)
    (tmp_path / "flow.vtk").write_text("x y u v\n")
    with pytest.raises(SourceError, match="first line"):
        vtk.open_recordings(tmp_path / "flow.vtk")
    write_collection(tmp_path / "flow.pvd", {0.0: "nowhere.vti"})
    with pytest.raises(SourceError, match="nowhere"):
        vtk.open_recordings(tmp_path / "flow.pvd")
    write_collection(tmp_path / "flow.pvd", {})
    with pytest.raises(SourceError, match="names no data sets"):
        vtk.open_recordings(tmp_path / "flow.pvd")
