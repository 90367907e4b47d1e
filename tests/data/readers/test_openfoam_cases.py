"""Real OpenFOAM cases against what OpenFOAM's own ``cellPoint`` interpolation gives at a grid.

``tests/openfoam/generate.py`` ran the cases and OpenFOAM's sampling.
"""

import shutil
import tarfile
from pathlib import Path

import numpy as np
import pytest

from pibert.data.readers import open_recordings
from pibert.data.readers.recordings import Hints, Recordings, SourceError
from pibert.fields import Trajectory
from tests.openfoam.generate import CASES, DATA, generate, is_installed

FORMS = [
    (name, form)
    for name, forms in {
        "cavity": ("case", "binary", "gzip", "decomposed", "collated", "vtk"),
        "cylinder": ("case", "vtk"),
        "vibrating_cylinder": ("case", "vtk"),
    }.items()
    for form in forms
]


@pytest.fixture(scope="module")
def cases(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("openfoam")
    for name in CASES:
        with tarfile.open(DATA / f"{name}.tar.xz") as archive:
            archive.extractall(folder, filter="data")
    return folder


def opened(path: Path, name: str) -> Recordings:
    """A case on the grid of its reference."""
    return open_recordings(path, hints=Hints(shape=CASES[name].shape))


def assert_agrees(trajectory: Trajectory, name: str, data: Path = DATA) -> None:
    """All values are OpenFOAM's, at every time after the first, and the same points are fluid."""
    with np.load(data / f"{name}.npz") as reference:
        grid = trajectory.spec.grid
        x, y = (axis.numpy() for axis in grid.coordinates())
        np.testing.assert_allclose(x[0], reference["x"], atol=1e-5)
        np.testing.assert_allclose(y[:, 0], reference["y"], atol=1e-5)
        times = trajectory.time.tolist()
        for index, time in enumerate(reference["time"]):
            frame = int(np.argmin(np.abs(np.array(times) - time)))
            assert times[frame] == pytest.approx(time)
            known = trajectory.known(slice(frame, frame + 1))[0].numpy()
            states = trajectory.read(slice(frame, frame + 1))[0].numpy()
            # OpenFOAM drops some points that lie on the boundary up to rounding.
            border = np.ones_like(known)
            border[1:-1, 1:-1] = False
            fluid = np.isfinite(reference["p"][index]) | border
            np.testing.assert_array_equal(known, fluid)
            for channel, values in zip(trajectory.spec.channels, states, strict=True):
                truth = reference[channel][index]
                finite = np.isfinite(truth)
                near = 2e-5 * truth[finite].std()
                np.testing.assert_allclose(values[finite], truth[finite], rtol=1e-5, atol=near)


@pytest.mark.parametrize(("name", "form"), FORMS)
def test_every_form_of_a_case_agrees_with_openfoams_samples(
    cases: Path, name: str, form: str
) -> None:
    recordings = opened(cases / name / form, name)
    assert_agrees(recordings[0], name)
    assert len(recordings) == 1


@pytest.mark.parametrize("form", ["decomposed", "collated"])
def test_a_parallel_run_of_a_moving_mesh_agrees_with_reconstructpar(cases: Path, form: str) -> None:
    recordings = opened(cases / "vibrating_cylinder" / form, "vibrating_cylinder")
    (whole,) = opened(cases / "vibrating_cylinder" / "reconstructed", "vibrating_cylinder")
    assert recordings[0].time.tolist() == whole.time.tolist() == [0, 1, 2]
    np.testing.assert_allclose(recordings[0].read(), whole.read(), rtol=1e-5, atol=1e-6)
    assert any("decomposed" in note for note in recordings.notes)


def test_sides_viscosity_units_and_plane_come_from_the_case(cases: Path) -> None:
    (cylinder,) = opened(cases / "cylinder" / "case", "cylinder")
    assert [str(side) for side in cylinder.spec.grid.sides] == ["inflow", "outflow", "slip", "slip"]
    assert cylinder.spec.viscosity == cylinder.parameters["viscosity"] == 0.01
    assert cylinder.spec.units == ("m/s", "m/s", "m2/s2")
    (cavity,) = opened(cases / "cavity" / "case", "cavity")
    assert [str(side) for side in cavity.spec.grid.sides] == ["wall"] * 4
    assert cavity.spec.viscosity == 0.001
    assert cavity.local["plane"] == {"normal": "z", "position": pytest.approx(0.025)}
    (vtk,) = opened(cases / "cavity" / "vtk", "cavity")
    assert vtk.local["plane"] == {"normal": "z", "position": pytest.approx(0.025)}


@pytest.fixture
def cavity(cases: Path, tmp_path: Path) -> Path:
    """A copy to change."""
    return Path(shutil.copytree(cases / "cavity", tmp_path / "copy"))


def test_times_that_only_processors_have_are_read_from_them(cavity: Path) -> None:
    # The case itself has results of another time than the processors.
    shutil.copytree(cavity / "case" / "0.1", cavity / "decomposed" / "0.1")
    shutil.rmtree(cavity / "decomposed" / "processor0" / "0.1")
    recordings = opened(cavity / "decomposed", "cavity")
    assert_agrees(recordings[0], "cavity")


def test_processors_that_cannot_be_joined_are_refused(cavity: Path) -> None:
    processor = cavity / "decomposed" / "processor1"
    (processor / "constant" / "polyMesh" / "pointProcAddressing").unlink()
    with pytest.raises(SourceError, match="run reconstructPar"):
        opened(cavity / "decomposed", "cavity")
    shutil.rmtree(processor)
    with pytest.raises(SourceError, match="processor that is missing"):
        opened(cavity / "decomposed", "cavity")
    (cavity / "collated" / "processors2").rename(cavity / "collated" / "processors2_0-1")
    with pytest.raises(SourceError, match="run reconstructPar"):
        opened(cavity / "collated", "cavity")


def test_a_moving_mesh_without_its_points_is_refused(cases: Path, tmp_path: Path) -> None:
    case = Path(shutil.copytree(cases / "vibrating_cylinder" / "case", tmp_path / "case"))
    shutil.rmtree(case / "2" / "polyMesh")
    with pytest.raises(SourceError, match=r"the mesh moves \(meshPhi\), but polyMesh/points"):
        opened(case, "vibrating_cylinder")


def test_a_start_that_openfoam_would_compute_is_left_out(cavity: Path) -> None:
    start = cavity / "case" / "0" / "U"
    code = 'internalField #calc "$lidVelocity";\n    other { a #codeStream { code #{ 1; } #}; }; }'
    start.write_text(start.read_text().replace("internalField   uniform (0 0 0);", code))
    recordings = opened(cavity / "case", "cavity")
    np.testing.assert_allclose(recordings[0].time, [0.1, 0.2])
    assert any("the time 0 was left out" in note for note in recordings.notes)


def test_holes_of_an_overset_mesh_are_not_fluid(cavity: Path) -> None:
    case = cavity / "case"
    centres = np.zeros((9, 12))  # of the cavity's cells, row by row
    centres[3:6, 4:8] = 2
    for time in ("0.1", "0.2"):
        text = (case / time / "p").read_text()
        head, tail = text[: text.index("internalField")], text[text.index("boundaryField") :]
        values = "\n".join(f"{kind:g}" for kind in centres.ravel())
        field = f"internalField nonuniform List<scalar>\n108\n(\n{values}\n);\n"
        (case / time / "cellTypes").write_text(head.replace("[0 2 -2", "[0 0 0") + field + tail)
    recordings = opened(case, "cavity")
    (trajectory,) = recordings
    np.testing.assert_allclose(trajectory.time, [0.1, 0.2])
    assert any("cellTypes" in note for note in recordings.notes)
    hidden = ~trajectory.known()[0].numpy()
    rows, columns = np.nonzero(hidden)
    y = trajectory.spec.grid.coordinates()[1].numpy()
    assert hidden.any() and y[rows, columns].min() >= 0.08 * 3 / 9 - 1e-6
    assert y[rows, columns].max() <= 0.08 * 6 / 9 + 1e-6
    reference = np.load(DATA / "cavity.npz")["u"][0]
    known = trajectory.read()[0, 0].numpy()
    far = ~hidden & (np.abs(y - 0.04) > 0.03)
    np.testing.assert_allclose(known[far], reference[far], atol=1e-5)


@pytest.mark.parametrize("name", ["cavity", "cylinder"])
@pytest.mark.parametrize("form", ["vtk", "raw"])
def test_sampled_planes(cases: Path, name: str, form: str) -> None:
    hints = Hints(shape=CASES[name].shape)
    samples = cases / name / "samples"
    (smooth,) = open_recordings(samples / f"{form}_true", hints=hints)
    assert smooth.num_frames == 3
    reference = np.load(DATA / f"{name}.npz")
    if form == "vtk":  # with cells, so on the whole grid
        finite = np.isfinite(reference["u"][-1])
        error = smooth.read()[-1, 0].numpy()[finite] - reference["u"][-1][finite]
        # What a surface keeps of the flow: values at the corners of the cells.
        assert np.sqrt(np.mean(error**2)) < 0.1 * reference["u"][-1][finite].std()
        assert (smooth.known()[-1].numpy() | ~finite).all()
    coarse = open_recordings(samples / f"{form}_false", hints=hints)
    assert any("interpolate true" in note for note in coarse.notes)


def test_blocks_series_and_single_files_of_foamtovtk(cases: Path) -> None:
    folder = cases / "cylinder" / "vtk"
    for path in (folder, folder / "case.vtm.series"):
        recordings = opened(path, "cylinder")
        assert recordings.names == ("case",)
        np.testing.assert_allclose(recordings[0].time, [0, 6, 12])
        assert_agrees(recordings[0], "cylinder")
    for path in (folder / "case_600.vtm", folder / "case_600" / "internal.vtu"):
        (frame,) = opened(path, "cylinder")
        np.testing.assert_allclose(frame.time, [12])
        reference = np.load(DATA / "cylinder.npz")["u"][-1]
        finite = np.isfinite(reference)
        np.testing.assert_allclose(frame.read()[0, 0].numpy()[finite], reference[finite], atol=1e-5)


@pytest.mark.slow
@pytest.mark.skipif(not is_installed(), reason="OpenFOAM is not installed")
def test_openfoam_reproduces_the_stored_data(tmp_path: Path) -> None:
    generate(tmp_path / "runs", tmp_path / "data")
    for name in CASES:
        old, new = (np.load(folder / f"{name}.npz") for folder in (DATA, tmp_path / "data"))
        for key in old.files:
            np.testing.assert_allclose(new[key], old[key], rtol=1e-3, atol=1e-3)
        (trajectory,) = opened(tmp_path / "runs" / name / "case", name)
        assert_agrees(trajectory, name, tmp_path / "data")
