"""CFDBench's layout, read and written."""

import json
import math
import os
import pickle
import random
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pibert.data import sources
from pibert.data.dataset import Samples, Window
from pibert.data.format import Reader, write
from pibert.data.sources.cfdbench.reader import (
    TITLE,
    open_recordings,
    published_split,
    recognise,
    write_cfdbench,
)
from pibert.data.sources.recordings import Hints, SourceError
from pibert.fields import Boundary, Normalizer, Sides, Trajectory
from pibert.remarks import InputWarning
from tests.data.helpers import make_trajectory, random_states
from tests.lookalikes.cfdbench import CASES, write_all, write_case

CHANNEL = Sides(Boundary.INFLOW, Boundary.OUTFLOW, Boundary.WALL, Boundary.WALL)


def open_one(tmp_path: Path, problem: str, **changes: Any) -> Trajectory:
    folder = tmp_path / problem / "prop" / "case0000"
    write_case(folder, CASES[problem] | changes)
    return open_recordings(folder)[0]


def test_a_case_is_opened_from_any_folder_above_it(tmp_path: Path) -> None:
    write_all(tmp_path)
    counts = {"": 24, "dam": 6, "dam/geo": 2, "dam/geo/case0001": 1}
    for place, count in counts.items():
        assert recognise(tmp_path / place)
        recordings = open_recordings(tmp_path / place)
        assert len(recordings) == count
        assert "dam_geo_case0001" in recordings.names
    assert "CFDBench" in TITLE
    assert open_recordings(tmp_path)["dam_geo_case0001"].num_frames == 1


def test_cases_are_ordered_by_subset_and_by_number(tmp_path: Path) -> None:
    for subset, number in (("geo", "3"), ("prop", "10"), ("prop", "9"), ("bc", "0002")):
        write_case(tmp_path / "tube" / subset / f"case{number}", CASES["tube"], 1)
    names = open_recordings(tmp_path).names
    assert names == (
        "tube_prop_case9",
        "tube_prop_case10",
        "tube_bc_case0002",
        "tube_geo_case3",
    )


def test_the_problem_of_a_renamed_folder_is_told_by_its_keys(tmp_path: Path) -> None:
    for problem, case in CASES.items():
        write_case(tmp_path / f"my_{problem}" / "case7", case, 1)
        assert open_recordings(tmp_path / f"my_{problem}").names == (f"{problem}_case7",)


def test_fields_are_read_when_asked_for_and_in_float32(tmp_path: Path) -> None:
    folder = tmp_path / "tube" / "bc" / "case0000"
    fields = write_case(folder, CASES["tube"])
    trajectory = open_recordings(tmp_path)[0]
    expected = torch.from_numpy(fields.swapaxes(0, 1)).float()
    assert torch.equal(trajectory.read(), expected)
    assert torch.equal(trajectory.read(slice(1, 6, 2), [1]), expected[1:6:2, [1]])
    assert torch.equal(pickle.loads(pickle.dumps(trajectory)).read(), expected)
    assert bool(trajectory.known().all())


def test_the_grid_of_a_cavity_has_points_at_cell_centres(tmp_path: Path) -> None:
    grid = open_one(tmp_path, "cavity").spec.grid
    assert (grid.dx, grid.dy) == (0.01 / 64, 0.02 / 64)
    assert grid.origin == (0.01 / 128, 0.02 / 128)
    assert grid.sides == Sides(*[Boundary.WALL] * 4) and grid.body is None


def test_the_grid_of_a_cylinder_follows_its_box(tmp_path: Path) -> None:
    grid = open_one(tmp_path, "cylinder").spec.grid
    assert math.isclose(grid.dx, 0.22 / 64) and math.isclose(grid.dy, 0.12 / 64)
    x, y = grid.coordinates(torch.float64)
    assert math.isclose(x.mean().item(), 0.05) and math.isclose(y.mean().item(), 0.01)
    assert grid.sides == CHANNEL


@pytest.mark.parametrize("centre", [{}, {"center_x": 0.05, "center_y": -0.02}])
def test_the_disc_is_made_from_the_geometry(tmp_path: Path, centre: dict[str, float]) -> None:
    grid = open_one(tmp_path, "cylinder", **centre).spec.grid
    assert grid.body is not None
    x, y = (c[grid.body] for c in grid.coordinates(torch.float64))
    assert math.isclose(x.mean().item(), centre.get("center_x", 0.0), abs_tol=grid.dx / 2)
    assert math.isclose(y.mean().item(), centre.get("center_y", 0.0), abs_tol=grid.dy / 2)
    area = grid.body.sum().item() * grid.dx * grid.dy
    assert math.isclose(area, math.pi * 0.01**2, rel_tol=0.1)


def test_the_barrier_of_the_published_example_by_hand(tmp_path: Path) -> None:
    body = open_one(tmp_path, "dam").spec.grid.body
    # Centres (j + 0.5) * 1.5 / 64 in [0.5, 0.55]: j = 21, 22. (i + 0.5) / 160 <= 0.1: i <= 15.
    expected = torch.zeros(64, 64, dtype=torch.bool)
    expected[:16, 21:23] = True
    assert body is not None and torch.equal(body, expected)


def test_viscosity_is_dynamic_in_the_file_and_kinematic_here(tmp_path: Path) -> None:
    trajectory = open_one(tmp_path, "cavity")
    assert trajectory.parameters == {
        "velocity": 10.0,
        "density": 2.0,
        "viscosity": 0.005,
        "height": 0.02,
        "width": 0.01,
    }
    assert trajectory.spec.family == "incompressible"
    assert trajectory.source["case"]["viscosity"] == 0.01
    assert trajectory.local["derived"]["Re"] == pytest.approx(10 * 0.01 / 0.005)


@pytest.mark.parametrize(
    ("problem", "reynolds"),
    [("tube", 0.5 * 0.1 / 1e-3), ("dam", 0.05 * 0.1 / 1e-3), ("cylinder", 1 * 0.02 / 1e-4)],
)
def test_reynolds_numbers_by_hand(tmp_path: Path, problem: str, reynolds: float) -> None:
    assert open_one(tmp_path, problem).local["derived"]["Re"] == pytest.approx(reynolds)


def test_frames_are_as_far_apart_as_the_publishers_say(tmp_path: Path) -> None:
    write_all(tmp_path)
    assert open_recordings(tmp_path / "dam")[0].time.tolist() == pytest.approx([0, 0.1, 0.2])
    recordings = open_recordings(tmp_path / "cylinder")
    assert recordings[0].spec.dt == 0.001
    assert any("0.1 s" in remark for remark in recordings.remarks)
    assert "0.1 s" in recordings[0].source["remark"]
    told = sources.open_recordings(tmp_path / "cylinder", "cfdbench", Hints(dt=0.1))[0]
    assert told.spec.dt == 0.1 and told.local["hints"] == {"dt": 0.1}
    assert told.source["frame_interval"] == 0.001
    with pytest.raises(SourceError, match="no channel u=w; data of this kind have: u=u, v=v"):
        open_recordings(tmp_path / "cylinder", Hints(channels={"u": "w"}))


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


def test_a_flow_that_never_settles_keeps_its_frames(tmp_path: Path) -> None:
    write_case(tmp_path / "tube" / "bc" / "case0", CASES["tube"], 5)
    write_case(tmp_path / "tube" / "bc" / "case1", CASES["tube"], 1)
    lengths = [t.num_frames for t in open_recordings(tmp_path, until_converged=True)]
    assert lengths == [5, 1]


def test_values_that_are_not_finite_are_not_valid(tmp_path: Path) -> None:
    fields = np.ones((2, 3, 64, 64))
    fields[0, 1, 5, 7], fields[1, 2, 60, 3], fields[0, 2, 1, 1] = np.nan, np.inf, 1e300
    write_case(tmp_path / "case0", CASES["tube"], fields=fields)
    trajectory = open_recordings(tmp_path)[0]
    unknown = (~trajectory.known()).nonzero().tolist()
    assert unknown == [[1, 5, 7], [2, 1, 1], [2, 60, 3]]
    assert (~trajectory.known(slice(1, 2))).nonzero().tolist() == [[0, 5, 7]]


def test_the_published_split_is_pythons_shuffle(tmp_path: Path) -> None:
    names = [
        f"cavity_{subset}_case{i}"
        for subset, n in (("prop", 84), ("bc", 50), ("geo", 25))
        for i in range(n)
    ]
    shuffled = list(names)
    random.seed(0)
    random.shuffle(shuffled)
    split = published_split(["tube_bc_case0", *names], "cavity")
    # The publishers' 159 cavities: round(127.2), round(15.9) and the rest.
    parts = split.train, split.valid, split.test
    assert [len(part) for part in parts] == [127, 16, 16]
    found = [(["", *names])[segment.trajectory] for part in parts for segment in part]
    assert found == shuffled
    assert split.calibration == ()


def test_the_published_split_rounds_as_each_loader_does() -> None:
    names = [f"tube_bc_case{i}" for i in range(18)]  # 14.4 and 1.8
    counts = {}
    for task in ("next-frame", "whole-field"):
        split = published_split(names, "tube", task=task)
        counts[task] = len(split.train), len(split.valid), len(split.test)
    assert counts == {"next-frame": (14, 1, 3), "whole-field": (14, 2, 2)}
    with pytest.raises(ValueError, match="no case of 'dam' among 18 names"):
        published_split(names, "dam")


def test_cases_become_learning_samples_and_native_files(tmp_path: Path) -> None:
    write_all(tmp_path)
    trajectories = list(open_recordings(tmp_path / "cylinder"))
    samples = Samples(trajectories, window=Window(), normalizer=Normalizer.identity(2))
    assert len(samples) == 6  # three cases of three frames
    assert not bool(samples[0].mask[0][samples.spec.grid.body].any())
    write(tmp_path / "native.h5", trajectories)
    assert torch.equal(Reader(tmp_path / "native.h5")[0].read(), trajectories[0].read())


# Writing


@pytest.mark.parametrize("problem", list(CASES))
def test_what_was_read_can_be_written_again(tmp_path: Path, problem: Any) -> None:
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


def test_a_dam_without_units_is_scaled_to_where_the_barrier_stands(tmp_path: Path) -> None:
    trajectory = flow(body=barrier(slice(0, 4), slice(50, 60)), length_unit="D", time_unit="D/U")
    (folder,) = write_cfdbench(tmp_path, "dam", "prop", [trajectory])
    case = json.loads((folder / "case.json").read_text())
    # The barrier is 0.4 high and 0.5 wide and begins 2.5 behind the inflow: a factor of 0.2.
    expected = {
        "velocity": 2.0,
        "density": 1.0,
        "viscosity": 0.2 * 2.0 * 1.0 / 200,
        "height": 0.2 * 3.2,
        "width": 0.2 * 6.4,
        "barrier_height": 0.2 * 0.4,
        "barrier_width": 0.2 * 0.5,
        "dx": 0.2 * 6.4 / 64,
        "dy": 0.2 * 3.2 / 64,
        "dt": 0.2 * 0.05,
    }
    assert case == pytest.approx(expected)
    again = open_recordings(folder)[0].spec.grid.body
    assert again is not None and again.sum() == 8 * 5  # 4 rows doubled, 10 columns halved


@pytest.mark.parametrize(
    ("body", "unit"),
    [
        (barrier(slice(0, 4), slice(50, 60)), "m"),
        (barrier(slice(1, 4), slice(50, 60)), "D"),
        (barrier(slice(0, 4), slice(0, 60)), "D"),
    ],
)
def test_a_barrier_elsewhere_is_refused(tmp_path: Path, body: torch.Tensor, unit: str) -> None:
    with pytest.raises(ValueError, match="CFDBench's barrier stands on the bottom, 0.5 m behind"):
        write_cfdbench(tmp_path, "dam", "prop", [flow(body=body, length_unit=unit)])
    assert list(tmp_path.iterdir()) == []


def test_a_velocity_follows_from_re_and_viscosity(tmp_path: Path) -> None:
    trajectory = flow()
    spec = replace(trajectory.spec, reference_velocity=None, viscosity=0.25)
    (folder,) = write_cfdbench(tmp_path, "tube", "prop", [replace(trajectory, spec=spec)])
    case = json.loads((folder / "case.json").read_text())
    assert (case["vel_in"], case["viscosity"]) == pytest.approx((200.0 * 0.25 / 1.0, 0.25))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"parameters": {}}, "CFDBench states velocity and viscosity"),
        ({"valid": torch.arange(32 * 128).reshape(32, 128) > 9}, "values are missing"),
    ],
)
def test_a_flow_that_the_layout_cannot_hold_is_refused(
    tmp_path: Path, change: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        write_cfdbench(tmp_path, "tube", "prop", [flow(**change)])
    with pytest.raises(ValueError, match="expected a body that does not move, found none"):
        write_cfdbench(tmp_path, "cylinder", "prop", [flow()])
    assert not list(tmp_path.rglob("*.npy"))


def test_a_case_that_exists_is_not_overwritten(tmp_path: Path) -> None:
    write_cfdbench(tmp_path, "tube", "prop", [flow()])
    with pytest.raises(FileExistsError, match="case0000 exists; remove it"):
        write_cfdbench(tmp_path, "tube", "prop", [flow()])


def test_a_write_that_fails_leaves_no_half_case(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved = np.save

    def fail_at_v(file: Any, *args: Any, **kwargs: Any) -> None:
        if file.name.endswith("v.npy"):
            raise OSError(28, "no space")
        saved(file, *args, **kwargs)

    monkeypatch.setattr(np, "save", fail_at_v)
    with pytest.raises(OSError, match="case0000: cannot write: No space left"):
        write_cfdbench(tmp_path, "tube", "prop", [flow()])
    assert list((tmp_path / "tube" / "prop").iterdir()) == []


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_read_only_folder_is_named(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(OSError, match="cannot write: Permission denied"):
        write_cfdbench(tmp_path, "tube", "prop", [flow()])


# Bad input


def test_what_is_no_cfdbench_folder_is_not_recognised(tmp_path: Path) -> None:
    (tmp_path / "case0000").mkdir()
    (tmp_path / "file.npy").write_bytes(b"")
    for path in (tmp_path, tmp_path / "file.npy", tmp_path / "nowhere"):
        assert not recognise(path)
    (tmp_path / "case0000" / "case.json").write_text("{")
    assert not recognise(tmp_path)
    with pytest.raises(SourceError, match=r"expected a CFDBench folder .* found none"):
        open_recordings(tmp_path / "nowhere")


def save_object(path: Path) -> None:
    np.save(path, np.array([{}, 1], dtype=object), allow_pickle=True)


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (truncate, "expected an array of numbers in NumPy's format"),
        (lambda path: path.write_bytes(b""), "expected an array of numbers"),
        (lambda path: path.write_bytes(b"hello" * 99), "expected an array of numbers"),
        (save_object, "Python objects"),
        (lambda path: path.unlink(), "there is no such file"),
        (lambda path: np.save(path, np.ones((64, 64))), r"found float64 of shape \(64, 64\)"),
        (lambda path: np.save(path, np.ones((6, 64, 64), int)), "found int64"),
        (lambda path: np.save(path, np.ones((5, 64, 64))), "must have one shape"),
        (lambda path: np.savez(path.open("wb"), a=np.ones(3)), "found an archive"),
    ],
)
def test_a_spoilt_array_is_named(tmp_path: Path, spoil: Any, message: str) -> None:
    folder = tmp_path / "tube" / "prop" / "case0000"
    write_case(folder, CASES["tube"])
    spoil(folder / "v.npy")
    recordings = open_recordings(tmp_path)
    with pytest.raises(SourceError, match=message) as caught:
        recordings[0]
    assert str(folder) in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            '{"vel_in": 1.0, "width": 2}',
            "missing density, viscosity, height; it holds: vel_in, wid",
        ),
        ("[1, 2]", "expected a JSON object of numbers, found list"),
        ('{"vel_in": 1', "cannot be read"),
    ],
)
def test_a_wrong_case_is_named(tmp_path: Path, text: str, message: str) -> None:
    folder = tmp_path / "tube" / "prop" / "case0000"
    write_case(folder, CASES["tube"], 1)
    (folder / "case.json").write_text(text)
    with pytest.raises(SourceError, match=message) as caught:
        open_recordings(tmp_path)[0]
    assert str(folder / "case.json") in str(caught.value)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("density", "thin"),
        ("density", True),
        ("density", None),
        ("density", [1.0]),
        ("density", 1e300),  # by which the viscosity is divided: zero
        ("viscosity", 0),
        ("viscosity", 1e-320),
        ("vel_in", math.inf),
        ("radius", -1.0),
        ("radius", 1e200),  # whose square is no float
        ("x_max", math.nan),
        ("x_max", 10**400),
        ("y_min", -1e308),
        ("center_x", "middle"),
        ("dt", 0),
    ],
)
def test_a_number_that_a_case_cannot_have_is_named(tmp_path: Path, key: str, value: Any) -> None:
    folder = tmp_path / "cylinder" / "prop" / "case0000"
    write_case(folder, CASES["cylinder"], 1)
    (folder / "case.json").write_text(json.dumps(CASES["cylinder"] | {key: value}))
    with pytest.raises(SourceError, match=rf"expected a number from \S+ to 1e\+18 as '{key}'") as e:
        open_recordings(tmp_path)[0]
    assert str(folder / "case.json") in str(e.value) and "leave the case out" in str(e.value)


def test_numbers_of_a_case_that_nothing_needs_may_be_anything(tmp_path: Path) -> None:
    folder = tmp_path / "tube" / "prop" / "case0000"
    write_case(folder, CASES["tube"] | {"note": 10**400, "flag": True, "center_x": "?"}, 1)
    assert open_recordings(tmp_path)[0].source["case"] == CASES["tube"]


def test_a_box_turned_inside_out_is_named(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="x_min and y_min must lie below"):
        open_one(tmp_path, "cylinder", x_max=-1.0)


def test_a_case_that_vanishes_is_named_when_it_is_read(tmp_path: Path) -> None:
    trajectory = open_one(tmp_path, "tube")
    shutil.rmtree(tmp_path / "tube")
    with pytest.raises(SourceError, match="u.npy: there is no such file"):
        trajectory.read()


def test_filled_points_are_told_because_the_layout_cannot_mark_them(tmp_path: Path) -> None:
    whole = flow()
    filled = torch.zeros(whole.spec.grid.shape, dtype=torch.bool)
    filled[: filled.shape[0] // 2] = True
    with pytest.warns(InputWarning, match="were filled, not measured"):
        write_cfdbench(tmp_path, "tube", "prop", [replace(whole, filled=filled)])
