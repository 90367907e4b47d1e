"""The dictionaries and the physics of OpenFOAM cases."""

import re
import shutil
from pathlib import Path

import numpy as np
import pytest

from pibert.data.convert import convert
from pibert.data.format import Reader
from pibert.data.readers import open_recordings
from pibert.data.readers.openfoam.dictionary import UNKNOWN, Dictionary, Parser
from pibert.data.readers.recordings import Hints, SourceError
from pibert.data.readers.shared.metadata import family_note
from tests.lookalikes.flow import X, Y, velocity
from tests.lookalikes.openfoam import write_case, write_field, write_raw
from tests.lookalikes.vtk import points_of


def parsed(text: str, path: Path = Path("0/U")) -> Dictionary:
    return Parser(text.encode(), path).entries()


def test_macros_find_entries_of_enclosing_dictionaries() -> None:
    found = parsed(
        """
        FoamFile { format ascii; class volVectorField; }
        speed 3;  /* not ( this ; */ inner { speed 4; deep { a 5; } }
        field uniform ($speed 0 0);   // nor this {
        patches
        {
            inlet { type fixedValue; value $field; own $:inner.deep.a; also ${speed}; }
            outlet { $inlet; type zeroGradient; missing $nothing; }
        }
        """
    )
    inlet, outlet = found["patches"]["inlet"], found["patches"]["outlet"]
    assert inlet["value"] == ["uniform", ["3", "0", "0"]]
    assert (inlet["own"], inlet["also"]) == (["5"], ["3"])
    assert outlet["type"] == ["zeroGradient"] and outlet["value"] == inlet["value"]
    assert outlet["missing"] == [UNKNOWN]


def test_code_is_not_run_and_its_value_unknown() -> None:
    found = parsed(
        """
        a #calc "1 + $b"; code #{ if (x) { y; } #}; c 1;
        d #codeStream { codeInclude #{ #include "x.H" #}; code #{ os << 1; #}; };
        #includeEtc "caseDicts/setConstraintTypes"
        e 2;
        """
    )
    assert found["a"] == found["d"] == found["code"] == [UNKNOWN]
    assert (found["c"], found["e"]) == (["1"], ["2"])


def test_included_files_of_the_case(tmp_path: Path) -> None:
    (tmp_path / "constant").mkdir()
    (tmp_path / "0").mkdir()
    (tmp_path / "constant" / "speeds").write_text("fast 9;")
    for name in ("<constant>/speeds", "$FOAM_CASE/constant/speeds", "../constant/speeds"):
        found = parsed(f'#include "{name}"\na $fast;', tmp_path / "0" / "U")
        assert found["a"] == ["9"]
    assert parsed('#includeIfPresent "nowhere"\na 1;', tmp_path / "0" / "U")["a"] == ["1"]
    (tmp_path / "loop").write_text('#include "loop"\n')
    with pytest.raises(ValueError, match="includes .* again"):
        parsed('#include "loop"\n', tmp_path / "U")


@pytest.mark.parametrize(("arch", "kind"), [("", "<f8"), ("label=64;scalar=32", "<f4")])
def test_binary_lists_in_both_precisions(arch: str, kind: str) -> None:
    values = np.arange(6.0).reshape(2, 3)
    data = f'FoamFile {{ format binary; arch "LSB;{arch}"; }} a List<vector> 2('.encode()
    parser = Parser(data + values.astype(kind).tobytes() + b"); b 1;", Path("U"))
    assert parser.label == ("<i8" if arch else "<i4")
    found = parser.entries()
    np.testing.assert_allclose(found["a"][0], values)
    assert found["b"] == ["1"]


POINTS = points_of((X, Y, np.array([0.5])))
VECTORS = np.stack([*velocity(POINTS[:, 0], POINTS[:, 1], 0.0), np.zeros(len(POINTS))], -1)
TIMES = ("1", "2", "3")


@pytest.fixture
def case(tmp_path: Path) -> Path:
    write_case(tmp_path / "case", X, Y, dict.fromkeys(TIMES, VECTORS))
    return tmp_path / "case"


def state(case: Path, name: str, text: str) -> None:
    (case / name).write_text(f"FoamFile {{ version 2.0; format ascii; class dictionary; }}\n{text}")


def test_a_case_without_forces_is_incompressible(case: Path) -> None:
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
        ("system/fvSchemes", "ddtSchemes { default steadyState; }", "steadyState"),
        ("constant/g", "value (0 -9.81 0);", "gravity"),
        ("constant/transportProperties", "phases (water air);", "several phases"),
        ("system/fvModels", "drive { type meanVelocityForce; }", "fvModels: drive"),
        ("constant/turbulenceProperties", "laminar { laminarModel Maxwell; }", "Newtonian .Maxw"),
    ],
)
def test_no_family_is_assumed_for_a_case_with_other_physics(
    case: Path, name: str, text: str, reason: str, tmp_path: Path
) -> None:
    state(case, name, text)
    (trajectory,) = open_recordings(case)
    assert trajectory.spec.family is None
    notes: list[str] = []
    convert(open_recordings(case), tmp_path / "flow.h5", on_note=notes.append)
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
    assert any("times count iterations" in note for note in recordings.notes)


def test_turbulence_quantities_and_components_are_not_flow_channels(case: Path) -> None:
    for time in TIMES:
        for name in ("omega", "k", "Ux", "Uz"):
            write_field(case / time / name, VECTORS[:, 0], "0 0 -1 0 0 0 0")
    recordings = open_recordings(case)
    assert recordings[0].spec.channels == ("u", "v", "p")
    assert any("not read: Ux, Uz, k, omega;" in note for note in recordings.notes)
    named = Hints(channels={"u": "U_x", "v": "U_y", "omega": "omega"})
    (kept,) = open_recordings(case, hints=named)
    assert kept.spec.channels == ("u", "v", "omega")


def test_samples_of_a_turbulence_model_have_no_vorticity(tmp_path: Path) -> None:
    for name in ("U", "omega", "k"):
        values = VECTORS if name == "U" else VECTORS[:, 0]
        write_raw(tmp_path / "postProcessing/cut/1" / f"{name}_mid.raw", name, POINTS, values)
    recordings = open_recordings(tmp_path)
    assert recordings[0].spec.channels == ("u", "v")
    assert any("'omega' beside k" in r for r in recordings.notes)
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
