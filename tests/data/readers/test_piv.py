"""Vector fields of PIV programs."""

import pickle
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import torch

from pibert.data.readers import open_recordings, piv
from pibert.data.readers.recordings import Hints, SourceError
from tests.helpers import refused
from tests.lookalikes.piv import (
    sample,
    write_davis,
    write_openpiv,
    write_pivlab,
    write_pivlab_mat,
    write_pivlab_session,
    write_tecplot,
    write_tsi,
)

MASK = np.zeros((4, 6))
MASK[3, 1] = 1
KINDS = np.ones((4, 6))
KINDS[0, 5], KINDS[2, 2], KINDS[1, 0] = 0, 2, 3


def only(path: Path, **hints: Any) -> tuple[Any, tuple[str, ...]]:
    assert piv.recognise(path)
    recordings = open_recordings(path, "piv", Hints(**hints))
    assert len(recordings) == 1
    return recordings[0], recordings.notes


def assert_is_sample(trajectory: Any, invalid: list[tuple[int, int]], frame: int = 0) -> None:
    """The frame has the vectors of ``sample``; all are valid but those named."""
    expected = sample()
    valid = torch.ones(4, 6, dtype=torch.bool)
    for point in invalid:
        valid[point] = False
    assert torch.equal(trajectory.known()[frame], valid)
    for channel, name in enumerate("uv"):
        found = trajectory.read()[frame, channel][valid]
        wanted = torch.from_numpy(expected[name])[valid].float()
        torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-4)


def filled_points(trajectory: Any) -> list[list[int]]:
    """Frame, row and column of the vectors that a program interpolated."""
    return (trajectory.known() & ~trajectory.measured()).nonzero().tolist()


def test_openpiv_flags_mark_valid_vectors(tmp_path: Path) -> None:
    flags = np.zeros((4, 6))
    flags[0, 5], flags[2, 2] = 1, 2
    write_openpiv(tmp_path / "exp1_001.txt", sample(), flags, MASK)
    trajectory, notes = only(tmp_path / "exp1_001.txt")
    assert_is_sample(trajectory, [(0, 5), (3, 1)])
    assert filled_points(trajectory) == [[0, 2, 2]]
    assert (trajectory.spec.grid.dx, trajectory.spec.grid.dy) == pytest.approx((16, 8))
    assert trajectory.source["program"] == "OpenPIV" and trajectory.length_unit is None
    assert "8.3 % of the vectors are invalid" in notes
    # The mask of files of older versions marks outliers.
    write_openpiv(tmp_path / "a.txt", sample(step=1.7), mask=MASK)
    trajectory, _ = only(tmp_path / "a.txt")
    assert trajectory.known()[0].logical_not().nonzero().tolist() == [[3, 1]]


@pytest.mark.parametrize("separator", [",", "\t", " "])
def test_pivlab_text(tmp_path: Path, separator: str) -> None:
    path = tmp_path / "PIVlab_0001.txt"
    write_pivlab(path, sample(), KINDS, separator=separator)
    trajectory, notes = only(path)
    assert_is_sample(trajectory, [(0, 5)])
    assert filled_points(trajectory) == np.argwhere(KINDS[None] == 2).tolist() != []
    assert trajectory.spec.units == ("px/frame", "px/frame") and trajectory.length_unit == "px"
    assert any("y runs down the image" in note for note in notes)
    write_pivlab(path, sample(), scale=(0.0005, 0.25), separator=separator)
    trajectory, _ = only(path)
    assert trajectory.length_unit == "m" and trajectory.spec.units == ("m/s", "m/s")
    assert trajectory.spec.grid.dx == pytest.approx(0.008)
    assert trajectory.source["metres_per_pixel"] == 0.0005
    assert trajectory.source["seconds_between_images"] == pytest.approx(0.002)
    assert trajectory.spec.dt is None  # the images of a pair, not the frames


def test_tsi_choice_codes_mark_valid_vectors(tmp_path: Path) -> None:
    chc = np.ones((4, 6), int)
    chc[0, 0], chc[1, 1], chc[3, 5], chc[2, 3] = 0, -1, -2, 2
    path = tmp_path / "Run000001.T000.D000.P000.H001.L.vec"
    write_tsi(path, sample(), chc)
    trajectory, _ = only(path)
    assert_is_sample(trajectory, [(0, 0), (1, 1), (3, 5)])
    assert filled_points(trajectory) == [[0, 2, 3]]
    assert trajectory.length_unit == "mm" and trajectory.spec.units == ("m/s", "m/s")
    assert trajectory.source["program"] == "TSI Insight"
    assert trajectory.source["seconds_between_images"] == pytest.approx(50e-6)
    write_tsi(path, sample(), np.ones((4, 6)), "pixel", "pixel", pixel=None)
    trajectory, notes = only(path)
    assert trajectory.length_unit == "px"
    assert trajectory.spec.units == ("px/frame", "px/frame")  # displacements of an image pair
    exchanged, _ = only(path, channels={"u": "V", "v": "U"})
    assert torch.equal(exchanged.read(), trajectory.read().flip(1))


@pytest.mark.parametrize("decimal_comma", [False, True])
def test_zero_vectors_of_davis_text_are_missing(tmp_path: Path, decimal_comma: bool) -> None:
    field, path = sample(), tmp_path / "B00002.txt"
    field["u"][1, 4] = np.nan
    field["u"][2, 2] = 0.0  # one component of zero is a vector
    write_davis(path, field, decimal_comma=decimal_comma)
    trajectory, notes = only(path)
    assert (~trajectory.known()).nonzero().tolist() == [[0, 1, 4]]
    assert trajectory.length_unit == "mm" and trajectory.spec.units == ("m/s", "m/s")
    assert any("exactly zero count as invalid" in note for note in notes)
    write_davis(path, sample(), decimal_comma=decimal_comma)
    assert_is_sample(only(path)[0], [])
    path.write_text(path.read_text().replace('"position" "mm"', '"position" "m"', 1))
    with refused("m and mm", error=SourceError):
        only(path)


def test_the_elements_of_a_tecplot_zone_are_not_read_as_points(tmp_path: Path) -> None:
    # Four columns of points, then four points of every quadrilateral.
    path = tmp_path / "fe.dat"
    path.write_text(
        'TITLE = "a"\nVARIABLES = "X", "Y", "U", "V"\n'
        "ZONE N=6, E=2, DATAPACKING=POINT, ZONETYPE=FEQUADRILATERAL\n"
        "0 0 1 2\n1 0 1 2\n2 0 1 2\n0 1 1 2\n1 1 1 2\n2 1 1 2\n"
        "1 2 5 4\n2 3 6 5\n"
    )
    with pytest.raises(SourceError, match="zone of finite elements"):
        open_recordings(path)


def test_tecplot_files_mark_missing_vectors_by_flag_or_zeros(tmp_path: Path) -> None:
    field = sample()
    write_tecplot(tmp_path / "flagged.dat", field, MASK == 0)
    trajectory, _ = only(tmp_path / "flagged.dat")
    assert_is_sample(trajectory, [(3, 1)])
    assert trajectory.source["program"] == "Tecplot" and trajectory.spec.units[0] == "m/s"
    field["u"][3, 1] = field["v"][3, 1] = np.nan
    write_tecplot(tmp_path / "plain.dat", field)
    assert_is_sample(only(tmp_path / "plain.dat")[0], [(3, 1)])
    # In flows of other programs a fluid at rest is a value.
    text = (tmp_path / "plain.dat").read_text().replace("B00001", "cavity")
    (tmp_path / "plain.dat").write_text(text)
    assert bool(only(tmp_path / "plain.dat")[0].known().all())


def with_quality(path: Path) -> None:
    """An OpenPIV text with a column that no version of OpenPIV has, as scripts add them."""
    write_openpiv(path, sample(), np.zeros((4, 6)), MASK)
    lines = path.read_text().splitlines()
    rows = [f"{line}\t{number / 10}" for number, line in enumerate(lines[1:])]
    path.write_text("\n".join([lines[0] + "\ts2n", *rows]))


def test_other_columns_are_named_and_can_be_kept(tmp_path: Path) -> None:
    with_quality(tmp_path / "a.txt")
    trajectory, notes = only(tmp_path / "a.txt")
    assert trajectory.spec.channels == ("u", "v")
    assert any(r.startswith("columns left out: s2n; ") and "'s2n=s2n'" in r for r in notes)
    kept, _ = only(tmp_path / "a.txt", channels={"snr": "s2n"})
    assert kept.spec.channels == ("u", "v", "snr")
    assert_is_sample(kept, [(3, 1)])
    numbers = torch.arange(24.0).reshape(4, 6).flip(0) / 10  # files start with the upper row
    torch.testing.assert_close(kept.read()[0, 2], numbers)
    # As a flag: the first value of the column is 0, that of the upper left vector.
    flagged, _ = only(tmp_path / "a.txt", channels={"valid": "s2n"})
    assert_is_sample(flagged, [(3, 0), (3, 1)])


EMPTY = np.empty((0, 0))
ROWS = [*(sample()[name] for name in "xyuv"), KINDS, *[EMPTY] * 7]
"""A frame of a session of PIVlab, without filtered vectors."""


def numbered(folder: Path, numbers: list[int], name: str = "B{}.txt") -> None:
    folder.mkdir(exist_ok=True)
    for number in numbers:
        field = sample()
        field["u"] = field["u"] + number
        if number == 2:
            field["v"][1, 1] = np.nan
        write_davis(folder / name.format(number), field, decimal_comma=False)


def test_numbered_files_are_frames_in_numeric_order(tmp_path: Path) -> None:
    numbered(tmp_path / "run", list(range(1, 13)))
    (tmp_path / "run" / "readme.txt").write_text("seen on a Monday\n")
    trajectory, _ = only(tmp_path / "run", dt=0.5)
    assert trajectory.name == "run" and trajectory.num_frames == 12
    assert trajectory.spec.dt == 0.5
    first = trajectory.read()[:, 0, 0, 0]
    torch.testing.assert_close(first - first[0], torch.arange(12.0), rtol=0, atol=1e-4)
    assert trajectory.known()[:, 1, 1].tolist() == [True, False] + [True] * 10
    assert trajectory.read(slice(3, 9, 2), [1]).shape == (3, 1, 4, 6)
    other = pickle.loads(pickle.dumps(trajectory))
    assert torch.equal(other.known(), trajectory.known())
    for number in (3, 4, 6):  # missing frames show in the time
        (tmp_path / "run" / f"B{number}.txt").unlink()
    gaps, notes = only(tmp_path / "run", dt=0.5)
    assert gaps.time.tolist()[:4] == [0.0, 0.5, 2.0, 3.0] and gaps.spec.dt == 0.5
    assert any("frames are missing" in note for note in notes)


def test_similar_file_names_are_separate_trajectories(tmp_path: Path) -> None:
    numbered(tmp_path / "run", [1, 2])
    numbered(tmp_path / "run", [1, 2, 3], "B_{}.txt")
    recordings = piv.open_recordings(tmp_path / "run")
    assert recordings.names == ("B", "B B_#.txt")
    assert [trajectory.num_frames for trajectory in recordings] == [2, 3]
    numbered(tmp_path / "run", [1], "B0{}.txt")
    with pytest.raises(SourceError, match="B1.txt: B01.txt has the same number"):
        piv.open_recordings(tmp_path / "run")


def test_frames_and_columns_may_have_any_order(tmp_path: Path) -> None:
    field = sample()
    flags = np.zeros((4, 6))
    flags[0, 5] = 1
    for number in (1, 2):
        write_openpiv(tmp_path / f"B{number}.txt", field, flags)
    table = np.loadtxt(tmp_path / "B2.txt")
    table = np.random.default_rng(0).permutation(table)
    np.savetxt(tmp_path / "B2.txt", table, "%.4e", "\t", header="x\ty\tu\tv\tflags")
    # u and v first in a file of its own.
    np.savetxt(tmp_path / "c.txt", table[:, [3, 2, 0, 1, 4]], header="v u x y flags")
    trajectory, _ = only(tmp_path / "B*.txt")
    for frame in (0, 1):
        assert_is_sample(trajectory, [(0, 5)], frame)
    trajectory, _ = only(tmp_path / "c.txt")
    assert trajectory.source["program"] == "OpenPIV"
    assert_is_sample(trajectory, [(0, 5)])


def test_a_damaged_or_different_frame_is_refused_when_it_is_read(tmp_path: Path) -> None:
    numbered(tmp_path / "run", [1, 2, 3])
    trajectory, _ = only(tmp_path / "run")
    write_davis(tmp_path / "run" / "B3.txt", sample(step=15.0), decimal_comma=False)
    assert trajectory.read(slice(0, 2)).shape == (2, 2, 4, 6)
    with pytest.raises(SourceError, match="B3.txt: its 24 points"):
        trajectory.read(slice(2, 3))
    (tmp_path / "run" / "B3.txt").write_text("broken")
    with pytest.raises(SourceError, match="B3.txt: expected columns of numbers"):
        trajectory.read(slice(2, 3))


def test_truncated_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.txt"
    write_davis(path, sample(), decimal_comma=False)
    lines = path.read_text().splitlines(keepends=True)
    cut = {"24 vectors, found 21": lines[:-3], "line 25": [*lines[:-1], lines[-1][:8]]}
    for found, left in cut.items():
        path.write_text("".join(left))
        with pytest.raises(SourceError, match=f"a.txt: .*{found}"):
            piv.open_recordings(path)
    path.write_text("x y u v\nare the columns\n")
    with pytest.raises(SourceError, match="no files of vectors"):
        piv.open_recordings(tmp_path)
    path.write_text('TITLE="a"\nVARIABLES="x" "y" "p"\nZONE I=1 J=2\n0 0 1\n1 0 2\n')
    with refused("u, v", "x, y, p", error=SourceError):
        piv.open_recordings(path)


@pytest.mark.parametrize("v73", [False, True])
@pytest.mark.parametrize("filtered", [False, True])
def test_pivlab_mat_files(tmp_path: Path, v73: bool, filtered: bool) -> None:
    path = tmp_path / "PIVlab.mat"
    frames = [sample(), sample()]
    frames[1]["u"] = frames[1]["u"] * 2
    kinds = [KINDS, np.ones((4, 6))]
    write_pivlab_mat(path, frames, kinds, filtered=filtered, v73=v73)
    assert piv.recognise(path)
    recordings = piv.open_recordings(path, Hints(dt=0.01))
    trajectory = recordings[0]
    assert_is_sample(trajectory, [(0, 5)])
    assert filled_points(trajectory) == np.argwhere(KINDS[None] == 2).tolist()  # of frame 0 alone
    torch.testing.assert_close(trajectory.read()[1, 0], 2 * trajectory.read()[0, 0])
    assert bool(trajectory.known()[1].all())
    assert trajectory.length_unit == "px" and trajectory.spec.units == ("px/frame", "px/frame")
    assert trajectory.local["gridding"] == {"method": "none"}  # neither turned nor resampled
    assert trajectory.source["vectors"] == ("filtered" if filtered else "original")
    assert "2.1 % of the vectors were interpolated by PIVlab" in recordings.notes


def test_units_and_variables_of_pivlab_mat_files(tmp_path: Path) -> None:
    path = tmp_path / "a.mat"
    for units, length, speed in (
        ("[m] respectively [m/s]", "m", "m/s"),
        ("[mm] respectively [mm/s]", "mm", "mm/s"),
        ("furlongs", None, "1"),
    ):
        write_pivlab_mat(path, [sample()], [KINDS], filtered=True, units=units)
        trajectory = piv.open_recordings(path)[0]
        assert (trajectory.length_unit, trajectory.spec.units[0]) == (length, speed)
    assert any("'furlongs'" in note for note in piv.open_recordings(path).notes)
    raw = open_recordings(path, hints=Hints(channels={"u": "u_original"}))[0]
    filtered = open_recordings(path)[0]
    torch.testing.assert_close(raw.read()[0, 0], filtered.read()[0, 0] + 100)
    assert torch.equal(raw.read()[0, 1], filtered.read()[0, 1])
    inverted = piv.open_recordings(path, Hints(channels={"invalid": "typevector_original"}))[0]
    assert not bool(inverted.known().any())  # no type is 0 and valid for PIVlab too


@pytest.mark.parametrize("v73", [False, True])
def test_damaged_mat_files_are_refused(tmp_path: Path, v73: bool) -> None:
    path = tmp_path / "a.mat"
    write_pivlab_mat(path, [sample()], [KINDS], filtered=True, v73=v73)
    data = path.read_bytes()
    path.write_bytes(data[: len(data) // 2])
    with pytest.raises(SourceError, match="a.mat: .*get a new copy"):
        piv.open_recordings(path)
    other = sample(step=3.0)
    write_pivlab_mat(path, [sample(), other], [KINDS, KINDS], filtered=True, v73=v73)
    with pytest.raises(SourceError, match="do not share their points"):
        piv.open_recordings(path)


@pytest.mark.parametrize("structs", [False, True])
@pytest.mark.parametrize("v73", [False, True])
@pytest.mark.parametrize("upward", [False, True])
def test_pivlab_sessions_are_calibrated_as_pivlab_exports_them(
    tmp_path: Path, v73: bool, upward: bool, structs: bool
) -> None:
    field = sample()
    field = {**field, "y": np.flipud(field["y"]) if upward else field["y"]}
    kinds = KINDS.copy()
    vectors = [field["x"], field["y"], field["u"] + 100, field["v"], np.ones((4, 6)), EMPTY]
    rows = [*vectors, field["u"], field["v"], kinds, EMPTY, EMPTY, np.full((4, 6), 0.7)]
    settings: dict[str, Any] = {"calxy": 1e-4, "calu": 0.02, "calv": -0.02 if upward else 0.02}
    settings |= {"x_axis_direction": 1.0, "y_axis_direction": 2.0 if upward else 1.0}
    settings |= {"offset_x_true": 1e-3, "offset_y_true": 0.0, "size_of_the_image": [40.0, 112.0]}
    path = tmp_path / "session.mat"
    # The frame in the middle was not analysed.
    write_pivlab_session(path, [rows, [EMPTY] * 12, rows], settings, v73=v73, structs=structs)
    (flow,) = recordings = open_recordings(path)
    assert upward != any("--flip y,v" in note for note in recordings.notes)
    assert flow.num_frames == 2 and flow.spec.units == ("m/s", "m/s") and flow.length_unit == "m"
    assert flow.time.tolist() == [0.0, 2.0] and flow.spec.dt is None
    assert flow.source["vectors"] == "filtered"
    grid = flow.spec.grid
    assert grid.origin[0] == pytest.approx(16e-4 - 1e-3) and grid.dx == pytest.approx(16e-4)
    down = np.sort(field["y"][:, 0])
    assert grid.origin[1] == pytest.approx(1e-4 * (40 - down[-1] if upward else down[0]))
    # In the flow's coordinates the first row has the smallest y.
    order = np.argsort(-field["y"][:, 0] if upward else field["y"][:, 0])
    np.testing.assert_allclose(flow.read()[1, 0], 0.02 * field["u"][order], rtol=1e-6)
    sign = -1 if upward else 1
    np.testing.assert_allclose(flow.read()[1, 1], sign * 0.02 * field["v"][order], rtol=1e-6)
    np.testing.assert_array_equal(flow.known()[0], kinds[order] != 0)
    np.testing.assert_array_equal(flow.measured()[0], ~np.isin(kinds[order], (0, 2)))


def test_pivlab_sessions_without_calibration_or_results(tmp_path: Path) -> None:
    write_pivlab_session(tmp_path / "a.mat", [ROWS], {"calxy": 1.0, "caluv": 1.0}, v73=True)
    recordings = open_recordings(tmp_path / "a.mat")
    assert recordings[0].length_unit == "px" and recordings[0].source["vectors"] == "original"
    assert any("--scale" in note for note in recordings.notes)
    for number, structs in enumerate([False, True]):
        path = tmp_path / f"b{number}.mat"
        write_pivlab_session(path, [[EMPTY] * 12], {"calxy": 1.0}, v73=False, structs=structs)
        with pytest.raises(SourceError, match=r"b\d\.mat: .*analyse"):
            open_recordings(path)


@pytest.mark.parametrize("v73", [False, True])
def test_pivlab_sessions_of_displacements_are_not_velocities(tmp_path: Path, v73: bool) -> None:
    settings = {"calxy": 1e-4, "calu": 1e-4, "calv": 1e-4, "displacement_only": 1.0}
    settings["y_axis_direction"] = 1.0
    write_pivlab_session(tmp_path / "a.mat", [ROWS], settings, v73=v73, structs=True)
    (flow,) = open_recordings(tmp_path / "a.mat")
    assert flow.spec.units == ("m/frame", "m/frame") and flow.length_unit == "m"


def test_pivlab_sessions_may_have_lost_the_attributes_of_matlab(tmp_path: Path) -> None:
    write_pivlab_session(tmp_path / "a.mat", [ROWS], {"calxy": 1.0}, v73=True)
    with h5py.File(tmp_path / "a.mat") as old, h5py.File(tmp_path / "b.mat", "w") as new:
        cells = np.empty(old["resultslist"].shape, h5py.ref_dtype)
        for index, reference in np.ndenumerate(old["resultslist"][()]):
            name = f"cell{index}"
            new[name] = old[reference][()]
            cells[index] = new[name].ref
        new.create_dataset("resultslist", data=cells, dtype=h5py.ref_dtype)
        new["calxy"] = old["calxy"][()]
    (one,), (other,) = open_recordings(tmp_path / "a.mat"), open_recordings(tmp_path / "b.mat")
    np.testing.assert_array_equal(one.read(), other.read())
    np.testing.assert_array_equal(one.known(), other.known())


def test_a_vector_with_a_missing_flag_is_not_valid(tmp_path: Path) -> None:
    rows = [f"{x}\t{y}\t1\t2\t{'NA' if x == y == 1 else 0}" for y in range(3) for x in range(4)]
    (tmp_path / "B1.txt").write_text("# x\ty\tu\tv\tflags\n" + "\n".join(rows) + "\n")
    known = open_recordings(tmp_path / "B1.txt")[0].known()[0]
    assert not bool(known[1, 1]) and int(known.sum()) == 11
