"""What the dictionaries of an OpenFOAM case state about its physics, and which fields are read."""

import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from pibert.data.convert import convert
from pibert.data.format import Reader
from pibert.data.sources import open_recordings
from pibert.data.sources.recordings import Hints, SourceError
from pibert.data.sources.stated import family_note
from tests.lookalikes.flow import X, Y, velocity
from tests.lookalikes.openfoam import write_case, write_field, write_raw
from tests.lookalikes.vtk import points_of

POINTS = points_of((X, Y, np.array([0.5])))
VECTORS = np.stack([*velocity(POINTS[:, 0], POINTS[:, 1], 0.0), np.zeros(len(POINTS))], -1)
TIMES = ("1", "2", "3")


@pytest.fixture
def case(tmp_path: Path) -> Path:
    write_case(tmp_path / "case", X, Y, dict.fromkeys(TIMES, VECTORS))
    return tmp_path / "case"


def state(case: Path, name: str, text: str) -> None:
    (case / name).write_text(f"FoamFile {{ version 2.0; format ascii; class dictionary; }}\n{text}")


def test_a_case_without_forces_is_taken_as_incompressible(case: Path) -> None:
    state(case, "system/fvSchemes", "ddtSchemes { default backward; }")
    state(case, "constant/g", "value (0 0 0);")
    state(case, "constant/fvOptions", "drag { type meanVelocityForce; active no; }")
    state(
        case, "constant/turbulenceProperties", "simulationType laminar; laminar { model Stokes; }"
    )
    (trajectory,) = open_recordings(case)
    assert trajectory.spec.family == "incompressible"
    assert trajectory.time_unit == "s"


@pytest.mark.parametrize(
    ("name", "text", "reason"),
    [
        ("system/fvSchemes", "ddtSchemes { default steadyState; }", "not physical .steadyState"),
        ("constant/g", "value (0 -9.81 0);", "gravity"),
        ("constant/transportProperties", "phases (water air);", "several phases"),
        ("constant/fvOptions", "drive { type meanVelocityForce; }", "fvOptions: drive"),
        ("system/fvModels", "drive { type meanVelocityForce; }", "fvModels: drive"),
        ("constant/MRFProperties", "rotor { cellZone rotor; }", "rotating zones .rotor"),
        ("constant/thermophysicalProperties", "mixture air;", "thermophysical"),
        ("constant/transportProperties", "transportModel Casson; nu 1;", "Newtonian .Casson"),
        (
            "constant/turbulenceProperties",
            "simulationType laminar; laminar { laminarModel Maxwell; }",
            "Newtonian .Maxwell",
        ),
    ],
)
def test_no_family_is_assumed_for_a_case_with_other_physics(
    case: Path, name: str, text: str, reason: str, tmp_path: Path
) -> None:
    state(case, name, text)
    (trajectory,) = open_recordings(case)
    assert trajectory.spec.family is None
    notes: list[str] = []
    convert(open_recordings(case), tmp_path / "flow.h5", on_remark=notes.append)
    (stored,) = Reader(tmp_path / "flow.h5")
    assert stored.spec.family is None
    assert notes == [family_note(stored)]
    assert re.search(f"no PDE family is assumed, because .*{reason}", notes[0])
    (stated,) = open_recordings(case, hints=Hints(family="incompressible"))
    assert stated.spec.family == "incompressible" and family_note(stated) is None


def test_a_wedge_is_not_plane_flow(case: Path) -> None:
    boundary = case / "constant" / "polyMesh" / "boundary"
    boundary.write_text(boundary.read_text().replace("empty", "wedge"))
    (trajectory,) = open_recordings(case)
    assert trajectory.spec.family is None and "axisymmetric" in trajectory.local["family"]


@pytest.mark.parametrize("scheme", ["steadyState", "bounded localEuler"])
def test_iterations_of_a_steady_solver_are_not_seconds(case: Path, scheme: str) -> None:
    state(case, "system/fvSchemes", f"ddtSchemes {{ default {scheme}; }}")
    recordings = open_recordings(case)
    assert recordings[0].time_unit is None and recordings[0].length_unit == "m"
    assert any("times count iterations" in remark for remark in recordings.remarks)


@pytest.mark.parametrize(
    ("transport", "turbulence", "note"),
    [
        ("nu 0.02;", "simulationType laminar; laminar { model Maxwell; }", "Newtonian .Maxwell"),
        ("transportModel CrossPowerLaw; nu 0.02;", "", "Newtonian .CrossPowerLaw"),
        ("nu $missing;", "", "nu is not given as a positive number"),
    ],
)
def test_a_viscosity_that_does_not_hold_is_not_set_and_a_note_says_why(
    case: Path, transport: str, turbulence: str, note: str
) -> None:
    state(case, "constant/transportProperties", transport)
    state(case, "constant/turbulenceProperties", turbulence)
    recordings = open_recordings(case)
    assert recordings[0].spec.viscosity is None and "viscosity" not in recordings[0].parameters
    assert any(re.search(f"viscosity is not set.*{note}", r) for r in recordings.remarks)


def test_turbulence_quantities_and_components_are_not_taken_for_flow_channels(case: Path) -> None:
    for time in TIMES:
        for name in ("omega", "k", "Ux", "Uz"):
            write_field(case / time / name, VECTORS[:, 0], "0 0 -1 0 0 0 0")
    recordings = open_recordings(case)
    assert recordings[0].spec.channels == ("u", "v", "p")
    assert any("not read: Ux, Uz, k, omega;" in remark for remark in recordings.remarks)
    named = Hints(channels={"u": "U_x", "v": "U_y", "omega": "omega"})
    (kept,) = open_recordings(case, hints=named)
    assert kept.spec.channels == ("u", "v", "omega")


def test_samples_of_a_turbulence_model_have_no_vorticity(tmp_path: Path) -> None:
    for name in ("U", "omega", "k"):
        values = VECTORS if name == "U" else VECTORS[:, 0]
        write_raw(tmp_path / "postProcessing/cut/1" / f"{name}_mid.raw", name, POINTS, values)
    recordings = open_recordings(tmp_path)
    assert recordings[0].spec.channels == ("u", "v")
    assert any("'omega' was not taken for the vorticity" in r for r in recordings.remarks)
    (tmp_path / "postProcessing/cut/1/k_mid.raw").unlink()
    assert open_recordings(tmp_path)[0].spec.channels == ("u", "v", "omega")


def test_a_case_of_several_regions_is_refused_by_their_names(case: Path) -> None:
    (case / "constant" / "polyMesh").rename(case / "mesh")
    for region in ("fluid", "solid"):
        shutil.copytree(case / "mesh", case / "constant" / region / "polyMesh")
    for time in TIMES:
        (case / time / "U").unlink()
    with pytest.raises(SourceError, match=r"several regions \(fluid, solid\)"):
        open_recordings(case)
