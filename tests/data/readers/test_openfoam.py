"""OpenFOAM: sampled surfaces and sets, and cases with cell centres."""

import pickle
import re
from pathlib import Path

import numpy as np
import pytest
import torch

from pibert.data.readers import open_recordings, openfoam
from pibert.data.readers.recordings import Hints, SourceError
from tests.lookalikes.flow import T, X, Y, assert_flow, velocity
from tests.lookalikes.openfoam import (
    edges,
    write_case,
    write_field,
    write_mesh,
    write_raw,
    write_set,
)
from tests.lookalikes.vtk import points_of

AXES = X, Y, np.array([0.5])
TIMES = ["0", "0.05", "0.1", "0.15", "0.2", "0.25"]
POINTS = points_of(AXES)


def vectors(t: float, *, normal: int = 2) -> np.ndarray:
    """Velocities (n, 3) at the points; the component along the normal means nothing."""
    u, v = velocity(POINTS[:, 0], POINTS[:, 1], t)
    components = [u, v]
    components.insert(normal, np.full_like(u, 77.0))
    return np.stack(components, -1)


@pytest.fixture
def case(tmp_path: Path) -> Path:
    """With one time."""
    write_case(tmp_path / "a", X, Y, {"0": vectors(0.0)})
    return tmp_path / "a"


def test_raw_surfaces_are_read_with_the_times_of_their_folders(tmp_path: Path) -> None:
    case = tmp_path / "cavity"
    order = np.random.default_rng(0).permutation(35)  # OpenFOAM keeps no order
    for name, t in zip(TIMES, T, strict=True):
        folder = case / "postProcessing" / "cutPlane" / name
        write_raw(folder / "U_mid_z.raw", "U", POINTS[order], vectors(t)[order])
        write_raw(folder / "p_rgh_mid_z.raw", "p_rgh", POINTS[order], vectors(t)[order, 0])
    for path in (case, case / "postProcessing", case / "postProcessing" / "cutPlane"):
        assert openfoam.recognise(path)
        recordings = openfoam.open_recordings(path)
        assert recordings.names == ("mid_z",)
        assert_flow(recordings[0])
        assert any("p_rgh" in note for note in recordings.notes)
    np.testing.assert_allclose(recordings[0].time, T)
    assert_flow(pickle.loads(pickle.dumps(recordings[0])))


@pytest.mark.parametrize("binary", [False, True])
def test_equal_cells_are_read_at_their_centres(tmp_path: Path, binary: bool) -> None:
    case = tmp_path / "cavity"
    write_case(case, X, Y, dict(zip(TIMES, map(vectors, T), strict=True)), binary=binary)
    assert openfoam.recognise(case)
    recordings = openfoam.open_recordings(case)
    assert recordings.names == ("cavity",)
    (trajectory,) = recordings
    assert_flow(trajectory)
    assert trajectory.spec.channels == ("u", "v", "p")
    assert trajectory.spec.units == ("m/s", "m/s", "m2/s2")
    assert (trajectory.length_unit, trajectory.time_unit) == ("m", "s")
    assert trajectory.local["plane"] == {"normal": "z", "position": 0.5}
    states = trajectory.read()
    torch.testing.assert_close(states[:, 2], states[:, 0] ** 2)


def test_cells_are_read_rather_than_samples_unless_these_have_more_times(tmp_path: Path) -> None:
    case = tmp_path / "a"
    write_case(case, X, Y, {"0": vectors(0.0), "0.05": vectors(0.05)})
    samples = case / "postProcessing" / "cut"
    for name, t in zip(TIMES[:2], T, strict=False):
        write_raw(samples / name / "U_mid.raw", "U", POINTS, vectors(t) + 1)
    recordings = openfoam.open_recordings(case)
    assert recordings[0].num_frames == 2
    assert recordings[0].local["plane"]["position"] == 0.5
    assert any("give the folder postProcessing" in note for note in recordings.notes)
    write_raw(samples / "0.1" / "U_mid.raw", "U", POINTS, vectors(0.1) + 1)
    recordings = openfoam.open_recordings(case)
    assert recordings[0].num_frames == 3
    assert any(".foam" in n for n in recordings.notes)
    (case / "a.foam").touch()
    assert openfoam.recognise(case / "a.foam")
    assert open_recordings(case / "a.foam")[0].num_frames == 2
    # A line of samples is no flow, however many times it has.
    for name in TIMES:
        (samples / name / "U_mid.raw").unlink(missing_ok=True)
        write_set(samples / name / "line_U.xy", POINTS[:7], vectors(0.0)[:7])
    recordings = openfoam.open_recordings(case)
    assert recordings[0].num_frames == 2
    assert any("the samples were left out" in note for note in recordings.notes)


def test_times_before_zero_come_first(tmp_path: Path) -> None:
    # Crank angles, for instance.
    names = {"-0.05": -0.05, "0": 0.0, "0.05": 0.05}
    write_case(tmp_path, X, Y, {name: vectors(t) for name, t in names.items()})
    (flow,) = openfoam.open_recordings(tmp_path)
    assert flow.time.tolist() == [-0.05, 0.0, 0.05]
    x, y = np.meshgrid(X, Y)
    expected = velocity(x, y, -0.05)[0]
    np.testing.assert_allclose(flow.read()[0, 0].numpy(), expected, rtol=1e-5)


@pytest.mark.parametrize(
    ("kind", "condition", "side"),
    [
        ("wall", "type fixedValue; value uniform (0 9 0);", "wall"),  # a moving lid
        ("wall", "type slip;", "slip"),
        ("patch", "type fixedValue; value uniform (3 0 0);", "inflow"),
        ("patch", "type fixedValue; value uniform (-3 0 0);", "outflow"),
        ("patch", "type fixedValue; value uniform (0 0 0);", "wall"),
        ("patch", "type zeroGradient;", "outflow"),
        ("patch", "type somethingElse;", "open"),
    ],
)
def test_sides_follow_patches_and_conditions(
    case: Path, kind: str, condition: str, side: str
) -> None:
    write_mesh(case / "constant" / "polyMesh", edges(X), edges(Y), kinds={"left": kind})
    write_field(case / "0" / "U", vectors(0.0), conditions={"left": condition})
    recordings = openfoam.open_recordings(case)
    assert [str(found) for found in recordings[0].spec.grid.sides] == [side, "open", "open", "open"]
    assert any(f"left {side} (left)" in note for note in recordings.notes)


def test_periodic_sides_leave_out_the_last_column(case: Path) -> None:
    write_mesh(
        case / "constant" / "polyMesh",
        edges(X),
        edges(Y),
        kinds={"left": "cyclic; neighbourPatch right", "right": "cyclic; neighbourPatch left"},
    )
    (exact,) = openfoam.open_recordings(case)
    assert exact.spec.grid.periodic_x and not exact.spec.grid.periodic_y
    assert_flow(exact, frames=1, dt=None)
    (sampled,) = openfoam.open_recordings(case, Hints(shape=(5, 14)))
    grid = sampled.spec.grid
    assert grid.dx == pytest.approx(0.05) and grid.origin[0] == pytest.approx(-1.05)
    # Where the flow wraps, a point is between the last and the first column of cells.
    y = grid.coordinates()[1][:, 0].numpy()
    u, _ = velocity((X[[0]] + X[[-1]]) / 2, y)
    np.testing.assert_allclose(sampled.read()[0, 0, 1:-1, 0], u[1:-1], rtol=1e-4)


def test_a_case_in_the_plane_of_x_and_z(tmp_path: Path) -> None:
    case = tmp_path / "a"
    write_case(case, X, Y, {"0": vectors(0.0, normal=1)})
    path = case / "constant" / "polyMesh" / "points"
    swapped = re.sub(r"^\((\S+) (\S+) (\S+)\)$", r"(\1 \3 \2)", path.read_text(), flags=re.M)
    path.write_text(swapped)
    recordings = openfoam.open_recordings(case)
    assert_flow(recordings[0], frames=1, dt=None)
    assert recordings[0].local["plane"] == {"normal": "y", "position": pytest.approx(0.5)}
    (note,) = (note for note in recordings.notes if "the plane is xz" in note)
    assert "vorticity dv/dx - du/dy is minus its y component" in note


def test_a_flow_in_space_is_refused_with_advice(case: Path) -> None:
    path = case / "constant" / "polyMesh" / "boundary"
    path.write_text(path.read_text().replace("empty", "wall"))
    points = path.with_name("points")
    # Walls before and behind are one layer still; bent, they are not.
    assert_flow(openfoam.open_recordings(case)[0], frames=1, dt=None)
    points.write_text(points.read_text().replace("0.45)", "0.4)", 9))
    with pytest.raises(SourceError, match="a 3-D mesh.*Sample a plane"):
        openfoam.open_recordings(case)


@pytest.mark.parametrize(
    ("transport", "turbulence", "viscosity"),
    [
        ("nu 0.02;", None, 0.02),
        ("transportModel Newtonian; nu nu [0 2 -1 0 0 0 0] 3e-5;", "laminar", 3e-5),
        ("transportModel CrossPowerLaw; nu 0.02;", None, None),
        ("nu 0.02;", "RAS", None),
        ("rho 1;", None, None),
    ],
)
def test_the_viscosity_of_a_laminar_newtonian_fluid(
    case: Path, transport: str, turbulence: str | None, viscosity: float | None
) -> None:
    (case / "constant" / "transportProperties").write_text(transport)
    if turbulence is not None:
        (case / "constant" / "turbulenceProperties").write_text(f"simulationType {turbulence};")
    (trajectory,) = openfoam.open_recordings(case)
    assert trajectory.spec.viscosity == viscosity
    assert trajectory.parameters.get("viscosity") == viscosity
    samples = case / "postProcessing" / "cut"
    for name in TIMES:
        write_raw(samples / name / "U_mid.raw", "U", POINTS, vectors(0.0))
    for path in (case, case / "postProcessing", samples):
        assert openfoam.open_recordings(path)[0].spec.viscosity == viscosity
