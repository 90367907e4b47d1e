"""The comparison with OpenFOAM: case files, series, transfer scores; a short run of the solver."""

import re
from math import pi
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pibert.fields import FieldSpec, Grid, Trajectory
from studies.openfoam import __main__ as command
from studies.openfoam import page
from studies.openfoam.case import Cylinder, Spring, is_installed, read_series, run, write
from studies.openfoam.frames import read_frames
from studies.openfoam.transfer import strouhal

needs_openfoam = pytest.mark.skipif(
    not is_installed(), reason="OpenFOAM (blockMesh, pimpleFoam) is not on the path"
)


def test_the_spring_of_a_case_has_the_natural_frequency_of_its_reduced_velocity(
    tmp_path: Path,
) -> None:
    spring = Spring(mass=2.0, reduced_velocity=5.0, damping_ratio=0.1)
    write(Cylinder(reynolds=150.0, spring=spring), tmp_path)
    text = (tmp_path / "constant" / "dynamicMeshDict").read_text()
    found = {
        name: float(re.search(rf"\b{name} (\S+);", text)[1])  # type: ignore[index]
        for name in ("mass", "stiffness", "damping")
    }
    frequency = (found["stiffness"] / found["mass"]) ** 0.5 / (2 * pi)
    assert frequency == pytest.approx(1 / 5.0)
    critical = 2 * (found["stiffness"] * found["mass"]) ** 0.5
    assert found["damping"] == pytest.approx(0.1 * critical)


def test_forces_and_the_last_position_of_each_step_are_read(tmp_path: Path) -> None:
    forces = tmp_path / "postProcessing" / "forces" / "0"
    forces.mkdir(parents=True)
    (forces / "coefficient.dat").write_text("# Time Cd Cs Cl\n0.5 1.1 0 0.2\n1.0 1.2 0 0.3\n")
    step = "Time = {t}\n\nCentre of rotation: (0 9 0)\n"
    move = "    Centre of mass: (0 {y} 0.5)\n    Linear velocity: (0 {v} 0)\n"
    log = step.format(t=0.5) + move.format(y=0.3, v=9) + move.format(y=0.25, v=1.5)
    log += step.format(t=1.0) + move.format(y=0.7, v=9) + move.format(y=-0.125, v=0.5)
    (tmp_path / "log.pimpleFoam").write_text(log)
    series = read_series(tmp_path)
    assert series.drag.tolist() == [1.1, 1.2]
    assert series.lift.tolist() == [0.2, 0.3]
    assert series.displacement is not None
    assert series.displacement.tolist() == [0.25, -0.125]
    between = series.at(np.array([0.75]))
    assert between.velocity is not None
    assert between.velocity.tolist() == pytest.approx([1.0])
    assert between.lift.tolist() == pytest.approx([0.25])


def test_the_strouhal_number_is_that_of_v_behind_the_body() -> None:
    spec = FieldSpec(
        channels=("u", "v", "p"),
        dt=0.4,
        grid=Grid((40, 80), dx=0.1, dy=0.1, origin=(-1.95, -1.95)),
        family="incompressible",
    )
    time = 0.4 * torch.arange(120)
    states = torch.zeros(120, 3, 40, 80)
    states[:, 1] = 0.3 * torch.sin(2 * pi * 0.17 * time)[:, None, None]
    flow = Trajectory(name="wake", states=states, time=time, spec=spec)
    assert strouhal(states, flow) == pytest.approx(0.17, rel=0.005)
    assert strouhal(0.01 * states, flow) is None


def test_the_study_says_how_to_install_openfoam_where_it_is_absent(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("sys.argv", ["openfoam", "--out", str(tmp_path / "docs")])
    command.main()
    assert "apt-get install openfoam" in capsys.readouterr().out
    assert not (tmp_path / "docs").exists()
    with pytest.raises(RuntimeError, match="apt-get install openfoam"):
        run(Cylinder(reynolds=100.0), tmp_path / "case")


@pytest.mark.slow
@needs_openfoam
def test_openfoam_moves_the_body_and_its_frames_are_read_on_our_grid(tmp_path: Path) -> None:
    flow = Cylinder(
        reynolds=150.0,
        spring=Spring(mass=2.0, reduced_velocity=5.0),
        step=0.05,
        warm_up=1.0,
        frames=3,
        interval=0.5,
        refinement=0.4,
        initial_v=0.5,
    )
    run(flow, tmp_path / "case")
    frames = read_frames(tmp_path / "case", flow)
    assert frames.states.shape == (3, 3, 40, 80)
    assert isinstance(frames.body, torch.Tensor)
    # The body's points have the area of the disc, and they follow its displacement.
    x, y = frames.spec.grid.coordinates(torch.float64)
    for body, displacement in zip(frames.body, frames.series["displacement"], strict=True):
        assert int(body.sum()) * 0.01 == pytest.approx(pi / 4, rel=0.1)
        centre = float(y.expand_as(body)[body].mean())
        assert centre == pytest.approx(float(displacement), abs=0.06)
    assert float(frames.series["drag"].min()) > 0.5
    upstream = frames.read(slice(None))[:, 0, :, 0]
    assert np.allclose(upstream.mean(1).numpy(), 1.0, atol=0.15)


def test_the_page_states_how_many_test_flows_openfoam_simulated(tmp_path: Path) -> None:
    (tmp_path / "solver").mkdir()
    found = {"amplitude": 0.5, "frequency": 0.18, "regime": "lock-in"}
    row: dict[str, Any] = {"parameters": {"reduced_velocity": 5.0, "mass_ratio": 2.5}}
    row |= {"true": found, "predicted": found, "errors": {"phase": 0.01}}
    part: dict[str, Any] = {"model": "pibert-mr", "test_flows": 2, "cpu_seconds": [100.0]}
    part |= {"openfoam": [row], "lattice": [row]}
    part["measured"] = {"command": "c", "commit": "0" * 40, "hardware": "h"}
    part["measured"] |= {"openfoam": "v1912", "torch": "2"}
    for count, words in ((2, "1 of the 2 test flows"), (1, "Every test flow")):
        page.write({"response": part | {"test_flows": count}}, tmp_path)
        assert words in (tmp_path / "openfoam.md").read_text()
