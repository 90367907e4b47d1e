"""CFDBench's layout, read and written."""

import json
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pibert.data import readers
from pibert.data.readers.cfdbench import open_recordings, published_split, recognise
from pibert.data.readers.recordings import Hints, SourceError
from pibert.data.writers.cfdbench import write_cfdbench
from pibert.fields import Boundary, Sides, Trajectory
from pibert.notes import InputWarning
from tests.data.helpers import make_trajectory, random_states
from tests.helpers import refused
from tests.lookalikes.cfdbench import CASES, write_all, write_case


def open_one(tmp_path: Path, problem: str, **changes: Any) -> Trajectory:
    folder = tmp_path / problem / "prop" / "case0000"
    write_case(folder, CASES[problem] | changes)
    return open_recordings(folder)[0]


def test_a_case_is_opened_from_any_folder_above_it(tmp_path: Path) -> None:
    write_all(tmp_path)
    counts = {"": 24, "dam": 6, "dam/geo": 2, "dam/geo/case0001": 1}
    for folder, count in counts.items():
        assert recognise(tmp_path / folder)
        recordings = open_recordings(tmp_path / folder)
        assert len(recordings) == count
        assert "dam_geo_case0001" in recordings.names
    assert open_recordings(tmp_path)["dam_geo_case0001"].num_frames == 1
    (tmp_path / "dam").rename(tmp_path / "mine")  # found by its keys
    assert "dam_geo_case0001" in open_recordings(tmp_path / "mine").names


def test_fields_are_read_when_asked_for_and_in_float32(tmp_path: Path) -> None:
    folder = tmp_path / "tube" / "bc" / "case0000"
    fields = write_case(folder, CASES["tube"])
    trajectory = open_recordings(tmp_path)[0]
    expected = torch.from_numpy(fields.swapaxes(0, 1)).float()
    assert torch.equal(trajectory.read(), expected)
    assert torch.equal(trajectory.read(slice(1, 6, 2), [1]), expected[1:6:2, [1]])
    assert bool(trajectory.known().all())


def test_grids_have_points_at_cell_centres(tmp_path: Path) -> None:
    grid = open_one(tmp_path, "cavity").spec.grid
    assert (grid.dx, grid.dy) == (0.01 / 64, 0.02 / 64)
    assert grid.origin == (0.01 / 128, 0.02 / 128)
    assert grid.sides == Sides(*[Boundary.WALL] * 4) and grid.body is None
    grid = open_one(tmp_path, "cylinder").spec.grid  # which follows its box
    assert (grid.dx, grid.dy) == pytest.approx((0.22 / 64, 0.12 / 64))
    x, y = grid.coordinates(torch.float64)
    assert (x.mean().item(), y.mean().item()) == pytest.approx((0.05, 0.01))
    assert grid.sides == Sides(Boundary.INFLOW, Boundary.OUTFLOW, Boundary.WALL, Boundary.WALL)
    body = open_one(tmp_path, "dam").spec.grid.body
    # Centres (j + 0.5) * 1.5 / 64 in [0.5, 0.55]: j = 21, 22. (i + 0.5) / 160 <= 0.1: i <= 15.
    expected = torch.zeros(64, 64, dtype=torch.bool)
    expected[:16, 21:23] = True
    assert body is not None and torch.equal(body, expected)


def test_viscosity_is_dynamic_in_the_file_and_kinematic_here(tmp_path: Path) -> None:
    trajectory = open_one(tmp_path, "cavity")
    names = ("velocity", "density", "viscosity", "height", "width")
    assert trajectory.parameters == dict(zip(names, (10.0, 2.0, 0.005, 0.02, 0.01), strict=True))
    assert trajectory.source["case"]["viscosity"] == 0.01
    reynolds = {"cavity": 10 * 0.01 / 0.005, "tube": 50.0, "dam": 5.0, "cylinder": 200.0}
    for problem, value in reynolds.items():
        flow = open_one(tmp_path / problem, problem)
        assert flow.local["derived"]["Re"] == pytest.approx(value)


def test_time_steps_are_those_of_the_publishers_loaders(tmp_path: Path) -> None:
    write_all(tmp_path)
    assert open_recordings(tmp_path / "dam")[0].time.tolist() == pytest.approx([0, 0.1, 0.2])
    recordings = open_recordings(tmp_path / "cylinder")
    assert recordings[0].spec.dt == 0.001
    assert any("0.1 s" in note for note in recordings.notes)
    stated = readers.open_recordings(tmp_path / "cylinder", "cfdbench", Hints(dt=0.1))[0]
    assert stated.spec.dt == 0.1 and stated.source["frame_interval"] == 0.001


def test_frames_after_convergence_are_dropped_on_request(tmp_path: Path) -> None:
    speeds = np.array([0.0, 1.0, 1.5, 1.501, 1.5015, 3.0])
    fields = np.stack([0.6 * speeds, -0.8 * speeds])[:, :, None, None] * np.ones((64, 64))
    write_case(tmp_path / "tube" / "bc" / "case0", CASES["tube"], fields=fields)
    assert open_recordings(tmp_path)[0].num_frames == 6
    # 1.5 to 1.501 is a change of 0.001, just not below; 1.501 to 1.5015 is: frame 3 is the last.
    fields[:, 3] *= 1.5011 / 1.501
    np.save(tmp_path / "tube" / "bc" / "case0" / "u.npy", fields[0])
    np.save(tmp_path / "tube" / "bc" / "case0" / "v.npy", fields[1])
    short = open_recordings(tmp_path, until_converged=True)[0]
    assert short.num_frames == 4 and len(short.read()) == 4 and len(short.known()) == 4
    assert short.local["until_converged"] == {"threshold": 1e-3, "frames": 4, "of": 6}


def test_the_published_split_is_pythons_shuffle(tmp_path: Path) -> None:
    counts = {"prop": 84, "bc": 50, "geo": 25}
    names = [f"cavity_{subset}_case{i}" for subset, n in counts.items() for i in range(n)]
    shuffled = list(names)
    random.seed(0)
    random.shuffle(shuffled)
    split = published_split(names)
    # The publishers' 159 cavities: round(127.2), round(15.9) and the rest.
    splits = split.train, split.valid, split.test
    assert [len(segments) for segments in splits] == [127, 16, 16]
    assert [names[s.trajectory] for segments in splits for s in segments] == shuffled
    tubes = [f"tube_{s}_case{i}" for s in counts for i in range(6)]  # 14.4, 1.8: rounded down
    with pytest.warns(InputWarning, match="have 175 cases of tube, found 18"):
        split = published_split(tubes)
    assert (len(split.train), len(split.valid), len(split.test)) == (14, 1, 3)
    with refused("cavity, tube", "folder of one"):
        published_split([*tubes, *names])
    with pytest.raises(SourceError, match="found none of geo"):
        published_split(names[:134])


def test_lengths_in_points_give_cases_of_different_size_one_grid(tmp_path: Path) -> None:
    for number, width in enumerate((0.01, 0.02)):
        case = CASES["cavity"] | {"width": width}
        write_case(tmp_path / "cavity" / "geo" / f"case{number:04d}", case)
    plain, counted = (open_recordings(tmp_path, in_points=own) for own in (False, True))
    assert plain[0].spec.grid.dx != plain[1].spec.grid.dx
    for trajectory in counted:
        assert (trajectory.spec.grid.dx, trajectory.spec.grid.dy) == (1.0, 1.0)
        assert (trajectory.length_unit, trajectory.spec.family) == ("px", None)
    assert counted[1].parameters["width"] == 0.02


# Writing


@pytest.mark.parametrize("problem", list(CASES))
def test_writing_and_reading_gives_the_same_case(tmp_path: Path, problem: Any) -> None:
    before = open_one(tmp_path / "a", problem)
    folders = write_cfdbench(tmp_path / "b", problem, "geo", [before, before])
    assert [f.relative_to(tmp_path / "b").as_posix() for f in folders] == [
        f"{problem}/geo/case0000",
        f"{problem}/geo/case0001",
    ]
    stated = json.loads((folders[0] / "case.json").read_text())
    expected = {k: v for k, v in CASES[problem].items() if k not in ("case_no", "rotated")}
    assert stated == pytest.approx(expected)
    after = open_recordings(tmp_path / "b")[1]
    body = before.spec.grid.body
    solid = torch.zeros(64, 64, dtype=torch.bool) if body is None else body
    assert torch.equal(after.read(), torch.where(solid, 0.0, before.read()))
    assert torch.equal(after.known(), before.known())
    assert after.parameters == pytest.approx(before.parameters)
    assert (after.spec.grid.dx, after.spec.dt) == (before.spec.grid.dx, before.spec.dt)
    with pytest.raises(FileExistsError, match="case0000 exists"):
        write_cfdbench(tmp_path / "b", problem, "geo", [before])


def flow(**changes: Any) -> Trajectory:
    """A simulated flow: dimensionless, with a Reynolds number, on another grid."""
    trajectory = make_trajectory(states=random_states(3, 2, 32, 128), re=200.0)
    grid = replace(trajectory.spec.grid, dx=0.05, dy=0.1, origin=(-1.475, -1.35))
    spec = replace(trajectory.spec, grid=grid, reference_velocity=2.0, reference_length=1.0)
    return replace(trajectory, spec=spec, **changes)


def test_a_simulated_cylinder_is_moved_to_the_origin(tmp_path: Path) -> None:
    trajectory = flow()
    x, y = trajectory.spec.grid.coordinates()
    trajectory = replace(trajectory, body=(x - 0.5) ** 2 + (y - 0.2) ** 2 <= 0.25)
    (folder,) = write_cfdbench(tmp_path, "cylinder", "prop", [trajectory])
    case = json.loads((folder / "case.json").read_text())
    assert case["viscosity"] == pytest.approx(2.0 * 1.0 / 200) and case["density"] == 1.0
    assert case["vel_in"] == 2.0 and case["radius"] == 0.5 and case["dt"] == 0.05
    # The grid begins half a cell before (-1.475, -1.35), that is at (-1.5, -1.4).
    assert case["x_min"] == pytest.approx(-2.0, abs=0.02)
    assert case["y_min"] == pytest.approx(-1.6, abs=0.02)
    assert case["x_max"] - case["x_min"] == pytest.approx(128 * 0.05)
    assert case["y_max"] - case["y_min"] == pytest.approx(32 * 0.1)
    again = open_recordings(folder)[0]
    assert again.spec.dt == 0.05 and tuple(again.states.shape) == (3, 2, 64, 64)
    assert again.local["derived"]["Re"] == pytest.approx(200.0)


def barrier(rows: slice, columns: slice) -> torch.Tensor:
    body = torch.zeros(32, 128, dtype=torch.bool)
    body[rows, columns] = True
    return body


@pytest.mark.parametrize(
    ("problem", "change", "message"),
    [
        ("tube", {"parameters": {}}, "velocity and viscosity"),
        ("tube", {"valid": torch.arange(32 * 128).reshape(32, 128) > 9}, "values are missing"),
        ("cylinder", {}, "found none"),
        ("dam", {"body": barrier(slice(0, 4), slice(50, 60))}, "barrier.*0.5 m"),
        ("dam", {"body": barrier(slice(0, 4), slice(0, 60)), "length_unit": "D"}, "barrier.*0.5 m"),
    ],
)
def test_a_flow_that_the_layout_cannot_hold_is_refused(
    tmp_path: Path, problem: Any, change: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        write_cfdbench(tmp_path, problem, "prop", [flow(**change)])
    assert not list(tmp_path.rglob("*.npy"))


# Bad input


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (lambda path: path.write_bytes(path.read_bytes()[:-100]), "the array of numbers"),
        (lambda path: np.save(path, np.array([{}, 1], dtype=object)), "Python objects"),
        (lambda path: np.save(path, np.ones((5, 64, 64))), "one shape"),
        (lambda path: path.unlink(), "found no v.npy; unpack"),
        (lambda path: path.with_name("case.json").write_text('{"vel_in": 1.0}'), "missing density"),
    ],
)
def test_damaged_files_are_refused(tmp_path: Path, spoil: Any, message: str) -> None:
    folder = tmp_path / "tube" / "prop" / "case0000"
    write_case(folder, CASES["tube"])
    spoil(folder / "v.npy")
    with pytest.raises(SourceError, match=message) as caught:
        open_recordings(tmp_path)[0]
    assert str(folder) in str(caught.value)
