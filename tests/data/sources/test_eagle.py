"""EAGLE's meshes, as meshes and on grids."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pibert.data import sources
from pibert.data.dataset import Samples, Window
from pibert.data.format import check, write
from pibert.data.sources.eagle.reader import (
    TITLE,
    MeshTrajectory,
    open_recordings,
    published_split,
    rasterise,
    read_mesh,
    recognise,
)
from pibert.data.sources.recordings import Hints, SourceError
from pibert.data.splits import Segment
from pibert.fields import Normalizer
from tests.lookalikes.eagle import make_mesh, write_all, write_simulation


def square(
    values: Any = (0.0, 1.0, 3.0, 2.0),
    types: Any = (0, 0, 0, 0),
    triangles: Any = ((0, 1, 2), (0, 2, 3)),
    frames: int = 1,
) -> MeshTrajectory:
    """The rectangle [0, 4] x [0, 2]; the values 0, 1, 3, 2 are x / 4 + y."""
    corners = torch.tensor([[0.0, 0.0], [4.0, 0.0], [4.0, 2.0], [0.0, 2.0]])
    return MeshTrajectory(
        name="square",
        channels=("p",),
        positions=corners.repeat(frames, 1, 1),
        triangles=torch.tensor(triangles).repeat(frames, 1, 1),
        fields=torch.tensor(values).repeat(frames, 1, 1),
        node_types=torch.tensor(types).repeat(frames, 1),
    )


def test_simulations_are_opened_from_any_folder_above_them(tmp_path: Path) -> None:
    write_all(tmp_path)
    names = ("Cre_7_1", "Spl_3_1", "Spl_3_2", "Spl_20_2")
    expected = {"": names, "Spl": names[1:], "Spl/3": names[1:3], "Spl/3/2": names[2:3]}
    for place, found in expected.items():
        assert recognise(tmp_path / place)
        assert open_recordings(tmp_path / place).names == found
    assert "EAGLE" in TITLE
    assert not recognise(tmp_path / "splits") and not recognise(tmp_path / "nowhere")
    assert not recognise(tmp_path / "Spl" / "3" / "2" / "sim.npz")


@pytest.mark.parametrize("mask_axes", [2, 3])
def test_a_mesh_stays_a_mesh(tmp_path: Path, mask_axes: int) -> None:
    arrays = make_mesh()
    arrays["mask"] = arrays["mask"].reshape(8, 144, 1)[(...,) if mask_axes == 3 else (..., 0)]
    write_simulation(tmp_path / "Spl" / "20" / "1", arrays)
    mesh = read_mesh(tmp_path / "Spl" / "20" / "1")
    assert mesh.name == "Spl_20_1" and mesh.num_frames == 8
    assert mesh.channels == ("u", "v", "ps", "pg")
    assert tuple(mesh.triangles.shape) == (8, 242, 3)
    np.testing.assert_array_equal(mesh.positions.numpy(), arrays["pointcloud"].astype("f4"))
    np.testing.assert_array_equal(mesh.fields[:, 2].numpy(), arrays["PS"].astype("f4"))
    np.testing.assert_array_equal(mesh.node_types.numpy(), arrays["mask"].reshape(8, 144))
    assert mesh.source["frame_interval"] is None


def test_an_affine_field_comes_through_exactly(tmp_path: Path) -> None:
    write_simulation(tmp_path / "Spl" / "20" / "1")
    trajectory = open_recordings(tmp_path, Hints(shape=(20, 30)))[0]
    x, y = trajectory.spec.grid.coordinates(torch.float64)
    known = trajectory.known()
    assert known.float().mean() > 0.7
    for t in range(8):
        u, v, _, pg = trajectory.read()[t].double()
        for found, expected in ((u, 1 + 2 * x - 3 * y + t), (v, x - t), (pg, 7 + 0 * x)):
            torch.testing.assert_close(found[known[t]], expected[known[t]], rtol=0, atol=2e-6 * 20)


def test_a_value_by_hand() -> None:
    """Two triangles whose common edge is a crease, seen at the centres of 2 x 4 cells."""
    trajectory = rasterise(square(values=(0.0, 0.0, 4.0, 0.0)), (2, 4))
    # Below the diagonal y = x / 2 the field is 2 y, above it is x.
    expected = [[0.5, 1.0, 1.0, 1.0], [0.5, 1.5, 2.5, 3.0]]
    torch.testing.assert_close(trajectory.read()[0, 0], torch.tensor(expected))
    assert (trajectory.spec.grid.dx, trajectory.spec.grid.dy) == (1.0, 1.0)
    assert trajectory.spec.grid.origin == (0.5, 0.5)
    assert bool(trajectory.known().all())


def test_every_frame_uses_its_own_triangles() -> None:
    mesh = square(values=(0.0, 0.0, 4.0, 0.0), frames=2)
    mesh.triangles[1] = torch.tensor([[0, 1, 3], [1, 2, 3]])  # the other diagonal
    fields = rasterise(mesh, (2, 4)).read()[:, 0]
    # Below y = 2 - x / 2 all is zero then, above it is x + 2 y - 4.
    assert fields[1, 0].tolist() == pytest.approx([0.0, 0.0, 0.0, 0.5])
    assert fields[0, 0].tolist() == pytest.approx([0.5, 1.0, 1.0, 1.0])


def test_the_winding_of_a_triangle_does_not_matter() -> None:
    turned = square(triangles=((2, 1, 0), (3, 2, 0)))
    assert torch.equal(rasterise(turned, (6, 10)).read(), rasterise(square(), (6, 10)).read())


def test_no_point_falls_between_triangles() -> None:
    """Points on edges and corners belong to some triangle, whatever the rounding."""
    mesh = make_mesh(frames=1, columns=9, rows=7)
    tensors = {key: torch.from_numpy(value) for key, value in mesh.items()}
    flow = MeshTrajectory(
        name="fine",
        channels=("u",),
        positions=tensors["pointcloud"].float(),
        triangles=tensors["triangles"],
        fields=tensors["VX"][:, None].float(),
        node_types=torch.zeros(1, 63, dtype=torch.int64),
    )
    assert bool(rasterise(flow, (101, 203)).known().all())


def test_points_outside_the_mesh_are_body_and_beyond_its_bounds_unknown() -> None:
    lower = square(triangles=((0, 1, 2),))
    trajectory = rasterise(lower, (4, 6), box=(-2.0, 4.0, 0.0, 4.0))
    known = trajectory.known()[0]
    x, y = trajectory.spec.grid.coordinates(torch.float64)
    assert torch.equal(known, (x > 0) & (y <= x / 2))
    body = trajectory.body
    assert isinstance(body, torch.Tensor)
    assert torch.equal(body[0], (x > 0) & (y < 2) & (y > x / 2))
    assert bool(trajectory.read()[0, 0][~known].isnan().all())


def test_the_body_moves_with_the_mesh(tmp_path: Path) -> None:
    write_simulation(tmp_path / "Tri" / "1" / "1", frames=3)
    known = open_recordings(tmp_path, Hints(shape=(24, 40)))[0].known()
    # The mesh drifts to the right and down, in a box that holds all frames.
    assert not torch.equal(known[0], known[2])
    rows, columns = torch.meshgrid(torch.arange(24.0), torch.arange(40.0), indexing="ij")
    centre = [(rows[k].mean().item(), columns[k].mean().item()) for k in known]
    assert centre[0][0] > centre[1][0] > centre[2][0]
    assert centre[0][1] < centre[1][1] < centre[2][1]


@pytest.mark.parametrize(
    ("types", "share"),
    [((6, 6, 6, 6), 0.0), ((6, 6, 6, 0), 0.5), ((0, 2, 0, 0), 0.5), ((6, 0, 6, 4), 1.0)],
)
def test_walls_alone_and_disabled_nodes_make_no_fluid(types: Any, share: float) -> None:
    known = rasterise(square(types=types), (40, 80)).known()
    assert known.float().mean().item() == pytest.approx(share, abs=0.02)


def test_a_node_that_is_not_finite_spoils_only_what_it_touches() -> None:
    trajectory = rasterise(square(values=(0.0, float("nan"), 1.0, 1.0)), (2, 4))
    # Node 1 belongs to the triangle below the diagonal y = x / 2 alone.
    assert trajectory.known()[0].tolist() == [
        [True, False, False, False],
        [True, True, True, False],
    ]
    assert torch.equal(trajectory.known()[0], trajectory.read()[0, 0].isfinite())


def test_the_interpolation_error_is_reported_and_falls_with_the_spacing(tmp_path: Path) -> None:
    write_simulation(tmp_path / "Spl" / "20" / "1", frames=2)
    errors = []
    for n in (16, 64):
        report = open_recordings(tmp_path, Hints(shape=(n, 2 * n)))[0].local["rasterised"]
        assert report["nodes_tested"] > 0.5
        assert report["error"]["u"]["relative"] < 1e-5  # affine: nothing is lost
        assert report["error"]["pg"] == {"rms": pytest.approx(0, abs=1e-5), "relative": None}
        errors.append(report["error"]["ps"]["relative"])
    assert 0.1 > errors[0] > 2 * errors[1] > 0


def test_the_interpolation_error_by_hand() -> None:
    """A peak of 1 at a node in the middle of four grid points, which lie half way down."""
    corners = torch.tensor([[0.0, 0.0], [2.0, 0.0], [2.0, 2.0], [0.0, 2.0], [1.0, 1.0]])
    mesh = MeshTrajectory(
        name="peak",
        channels=("p",),
        positions=corners[None],
        triangles=torch.tensor([[[0, 1, 4], [1, 2, 4], [2, 3, 4], [3, 0, 4]]]),
        fields=torch.tensor([[[0.0, 0.0, 0.0, 0.0, 1.0]]]),
        node_types=torch.zeros(1, 5, dtype=torch.int32),
    )
    report = rasterise(mesh, (2, 2)).local["rasterised"]
    assert report["error"]["p"]["rms"] == pytest.approx(0.5)
    assert report["nodes_tested"] == pytest.approx(0.2)  # the corners are not among four points


def test_hints_tell_what_the_files_do_not(tmp_path: Path) -> None:
    write_all(tmp_path)
    plain = open_recordings(tmp_path)[0]
    assert plain.spec.dt is None and plain.spec.family is None and plain.length_unit is None
    assert plain.time.tolist() == [0.0, 1.0] and plain.spec.grid.shape == (64, 64)
    assert set(plain.spec.units) == {"unknown"}
    hints = Hints(dt=0.5, unit="m/s", length_unit="m", time_unit="s")
    told = sources.open_recordings(tmp_path, "eagle", hints)[0]
    assert told.time.tolist() == [0.0, 0.5] and told.spec.dt == 0.5
    assert told.spec.units == ("m/s", "m/s", "unknown", "unknown")
    assert told.local["hints"]["dt"] == 0.5
    with pytest.raises(SourceError, match="no channel u=VZ; data of this kind have: u=VX, v=VY"):
        open_recordings(tmp_path, Hints(channels={"u": "VZ"}))
    inferred = sources.open_recordings(tmp_path)[0]
    assert inferred.spec.family == "incompressible" and "inferred" in inferred.local["family"]


def test_rasterised_flows_become_learning_samples_and_native_files(tmp_path: Path) -> None:
    write_all(tmp_path)
    box = (-0.5, 4.5, 0.5, 3.5)
    flows = list(open_recordings(tmp_path, Hints(shape=(8, 16)), box=box))
    # Pressure from velocity at the same time, and velocity from velocity one frame later.
    same = Window(horizon=0, inputs=("u", "v"), targets=("ps",))
    for window, shape in ((same, (1, 1, 1, 8, 16)), (Window(), (1, 1, 4, 8, 16))):
        samples = Samples(flows, window=window, normalizer=Normalizer.identity(4))
        assert tuple(samples[0].y.shape) == shape
        assert bool(samples[0].y.isfinite().all())
    write(tmp_path / "native.h5", flows)
    check(tmp_path / "native.h5")
    assert torch.equal(pickle.loads(pickle.dumps(flows[0])).known(), flows[0].known())


def test_the_published_lists_split_the_recordings(tmp_path: Path) -> None:
    write_all(tmp_path)
    recordings = open_recordings(tmp_path)
    split = published_split(recordings, tmp_path / "splits")
    assert split.train == (Segment(2), Segment(3))
    assert split.valid == (Segment(1),) and split.test == (Segment(0),)
    (tmp_path / "splits" / "test.txt").write_text("Stp/7/1\n")
    assert published_split(recordings, tmp_path / "splits").test == (Segment(0),)


def test_a_list_that_points_nowhere_is_named(tmp_path: Path) -> None:
    write_all(tmp_path)
    recordings = open_recordings(tmp_path)
    (tmp_path / "splits" / "valid.txt").write_text("Spl/3/1\nSpl/99/1\n")
    with pytest.raises(SourceError, match=r"valid.txt: 1 of 2 entries .* 'Spl/99/1'"):
        published_split(recordings, tmp_path / "splits")
    with pytest.raises(SourceError, match=r"train.txt: expected a list of simulations"):
        published_split(recordings, tmp_path)


@pytest.mark.parametrize("box", [(1.0, 1.0, 0.0, 1.0), (0.0, 1.0, 2.0, 1.0)])
def test_a_box_without_an_area_is_refused(box: Any) -> None:
    with pytest.raises(ValueError, match="expected a box"):
        rasterise(square(), (4, 4), box)


def drop(arrays: dict[str, np.ndarray], key: str) -> None:
    del arrays[key]


def put(arrays: dict[str, np.ndarray], key: str, value: np.ndarray) -> None:
    arrays[key] = value


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda a: drop(a, "PG"), "missing PG; it holds: PS, VX, VY, mask, pointcloud"),
        (lambda a: put(a, "VX", a["VX"][:, :-1]), r"numbers of shape \(8, 144\) as 'VX'"),
        (lambda a: put(a, "mask", a["mask"][:-1]), "as 'mask'"),
        (lambda a: put(a, "VY", a["VY"].astype(str)), "as 'VY', .* found <U"),
        (lambda a: put(a, "VY", a["VY"].astype(object)), "Python objects are never read"),
        (lambda a: put(a, "pointcloud", a["pointcloud"][..., 0]), r"of shape \(t, n, 2\), fou"),
        (lambda a: put(a, "pointcloud", a["pointcloud"].astype(str)), "as numbers .* found <U"),
        (lambda a: put(a, "mask", a["mask"] * np.nan), "types of nodes that are not finite"),
        (lambda a: put(a, "pointcloud", a["pointcloud"] * np.nan), "positions that are not finite"),
        (lambda a: put(a, "mask", np.full((8, 144), 2)), "all nodes are disabled"),
        (lambda a: put(a, "triangles", a["triangles"] + 1), "frame 0 names node 144"),
        (lambda a: put(a, "triangles", a["triangles"][:-1]), r"whole numbers of shape \(8, f, 3\)"),
        (lambda a: put(a, "triangles", a["triangles"] / 1.0), "found float64"),
    ],
)
def test_a_wrong_array_is_named(tmp_path: Path, spoil: Any, message: str) -> None:
    arrays = make_mesh()
    spoil(arrays)
    folder = tmp_path / "Spl" / "20" / "1"
    write_simulation(folder, arrays)
    with pytest.raises(SourceError, match=message) as caught:
        open_recordings(tmp_path)[0]
    assert str(folder) in str(caught.value)


@pytest.mark.parametrize("name", ["sim.npz", "triangles.npy"])
@pytest.mark.parametrize("size", [0, 50, -500])
def test_a_truncated_file_is_named(tmp_path: Path, name: str, size: int) -> None:
    folder = tmp_path / "Spl" / "20" / "1"
    write_simulation(folder)
    content = (folder / name).read_bytes()
    (folder / name).write_bytes(content[:size])
    recordings = open_recordings(tmp_path)
    with pytest.raises(SourceError, match=name):
        recordings[0]


def test_a_folder_of_something_else_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="expected an EAGLE folder"):
        open_recordings(tmp_path)
