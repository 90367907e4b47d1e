"""EAGLE's meshes, as meshes and on grids."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pibert.data import readers
from pibert.data.readers.eagle import (
    MeshTrajectory,
    open_recordings,
    published_split,
    rasterise,
    recognise,
)
from pibert.data.readers.recordings import Hints, SourceError
from pibert.data.splits import Segment
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
    for folder, found in expected.items():
        assert recognise(tmp_path / folder)
        assert open_recordings(tmp_path / folder).names == found
    assert not recognise(tmp_path / "splits") and not recognise(tmp_path / "nowhere")
    assert not recognise(tmp_path / "Spl" / "3" / "2" / "sim.npz")


def test_an_affine_field_is_interpolated_exactly(tmp_path: Path) -> None:
    write_simulation(tmp_path / "Spl" / "20" / "1")
    trajectory = open_recordings(tmp_path, Hints(shape=(20, 30)))[0]
    x, y = trajectory.spec.grid.coordinates(torch.float64)
    known = trajectory.known()
    assert known.float().mean() > 0.7
    for t in range(8):
        u, v, _, pg = trajectory.read()[t].double()
        for found, expected in ((u, 1 + 2 * x - 3 * y + t), (v, x - t), (pg, 7 + 0 * x)):
            torch.testing.assert_close(found[known[t]], expected[known[t]], rtol=0, atol=2e-6 * 20)


def test_interpolated_values_agree_with_hand_calculation_in_every_frame() -> None:
    """Two triangles whose common edge is a crease, seen at the centres of 2 x 4 cells."""
    mesh = square(values=(0.0, 0.0, 4.0, 0.0), frames=2)
    mesh.triangles[1] = torch.tensor([[0, 1, 3], [1, 2, 3]])  # the other diagonal
    trajectory = rasterise(mesh, (2, 4))
    fields, grid = trajectory.read()[:, 0], trajectory.spec.grid
    assert (grid.dx, grid.dy, grid.origin) == (1.0, 1.0, (0.5, 0.5))
    # Below the diagonal y = x / 2 the field is 2 y, above it is x.
    expected = [[0.5, 1.0, 1.0, 1.0], [0.5, 1.5, 2.5, 3.0]]
    torch.testing.assert_close(fields[0], torch.tensor(expected))
    # Below y = 2 - x / 2 all is zero then, above it is x + 2 y - 4.
    assert fields[1, 0].tolist() == pytest.approx([0.0, 0.0, 0.0, 0.5])


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


@pytest.mark.parametrize(
    ("types", "share"),
    [((6, 6, 6, 6), 0.0), ((6, 6, 6, 0), 0.5), ((0, 2, 0, 0), 0.5), ((6, 0, 6, 4), 1.0)],
)
def test_triangles_of_walls_or_disabled_nodes_are_not_fluid(types: Any, share: float) -> None:
    known = rasterise(square(types=types), (40, 80)).known()
    assert known.float().mean().item() == pytest.approx(share, abs=0.02)


def test_hints_state_what_the_files_do_not(tmp_path: Path) -> None:
    write_all(tmp_path)
    plain = open_recordings(tmp_path)[0]
    assert plain.spec.dt is None and plain.spec.family is None and plain.length_unit is None
    assert plain.time.tolist() == [0.0, 1.0] and plain.spec.grid.shape == (64, 64)
    hints = Hints(dt=0.5, unit="m/s", length_unit="m", time_unit="s")
    stated = readers.open_recordings(tmp_path, "eagle", hints)[0]
    assert stated.time.tolist() == [0.0, 0.5] and stated.spec.dt == 0.5
    assert stated.spec.units == ("m/s", "m/s", "unknown", "unknown")
    assert stated.spec.family == "incompressible" and "inferred" in stated.local["family"]


def test_published_lists_split_the_recordings(tmp_path: Path) -> None:
    write_all(tmp_path)
    lists = str(tmp_path / "splits")
    recordings = open_recordings(tmp_path, splits=lists)
    assert recordings.published_split is not None
    split = recordings.published_split()
    assert split.train == (Segment(2), Segment(3))
    assert split.valid == (Segment(1),) and split.test == (Segment(0),)
    (tmp_path / "splits" / "test.txt").write_text("Stp/7/1\n")
    assert recordings.published_split().test == (Segment(0),)
    one_kind = open_recordings(tmp_path / "Spl", splits=lists)
    assert one_kind.published_split is not None
    split = one_kind.published_split()
    assert split.train == (Segment(1), Segment(2)) and split.valid == (Segment(0),)
    assert split.test == ()


def test_incomplete_lists_empty_boxes_and_folders_are_refused(tmp_path: Path) -> None:
    write_all(tmp_path)
    recordings = open_recordings(tmp_path)
    (tmp_path / "splits" / "valid.txt").write_text("Spl/3/1\nSpl/99/1\n")
    with pytest.raises(SourceError, match="valid.txt: 1 of 2 .*'Spl_99_1'"):
        published_split(tmp_path, recordings.names, str(tmp_path / "splits"))
    with pytest.raises(SourceError, match="train.txt"):
        published_split(tmp_path, recordings.names)
    with pytest.raises(ValueError, match="expected a box"):
        rasterise(square(), (4, 4), (1.0, 1.0, 0.0, 1.0))
    with pytest.raises(SourceError, match="give an EAGLE folder"):
        open_recordings(tmp_path / "splits")


@pytest.mark.parametrize(
    ("key", "spoil", "message"),
    [
        ("PG", None, "PG; it holds: PS, VX, VY, mask, pointcloud"),
        ("VX", lambda a: a[:, :-1], r"\(8, 144\) as 'VX'"),
        ("VY", lambda a: a.astype(object), "Python objects are never read"),
        ("mask", lambda a: a * np.nan, "mask has values that are not finite"),
        ("mask", lambda a: np.full((8, 144), 2), "all nodes are disabled"),
        ("triangles", lambda a: a + 1, "nodes 1 to 144, but there are 144"),
    ],
)
def test_wrong_arrays_are_refused(tmp_path: Path, key: str, spoil: Any, message: str) -> None:
    arrays, folder = make_mesh(), tmp_path / "Spl" / "20" / "1"
    array = arrays.pop(key)
    write_simulation(folder, arrays if spoil is None else arrays | {key: spoil(array)})
    with pytest.raises(SourceError, match=message) as caught:
        open_recordings(tmp_path)[0]
    assert str(folder) in str(caught.value)
