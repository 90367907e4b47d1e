"""Names of columns, numbered files and text."""

from pathlib import Path

import pytest

from pibert.data.readers import open_recordings
from pibert.data.readers.recordings import SourceError
from pibert.data.readers.shared.files import expand_pattern, group_by_number
from pibert.data.readers.shared.naming import name_columns, standard_name, standard_unit
from tests.lookalikes.piv import sample, write_davis


@pytest.mark.parametrize(
    ("text", "name", "unit"),
    [
        ("U [m/s]", "u", "m/s"),
        ("Y pixel", "y", "px"),
        ("U pix/dt", "u", "px/frame"),
        ("x [µm]", "x", "um"),
        ("velocity_y", "v", None),
        ("Velocity:2", "w", None),
        ("CoordinateX", "x", None),
        ('"p (Pa)"', "p", "Pa"),
        ("vorticity [1/s]", "omega", "1/s"),
        ("Time [s]", "t", "s"),
        ("v (m/s) @ t=0.1", "v", "m/s"),
        ("Velocity[j] (m/s)", "v", "m/s"),
        ("Velocity[k]", "w", None),
    ],
)
def test_names_of_columns(text: str, name: str, unit: str | None) -> None:
    assert standard_name(text) == (name, unit)
    for other in "CHC|flags|U0|u2|mm||Cd|xu|u'v'|vu|u_1|v_0|velocity_2".split("|"):
        assert standard_name(other)[0] is None


def test_numbered_columns_are_components_of_one_vector_or_frames_of_two() -> None:
    path = Path("a.csv")
    paraview = ["U_0", "U_1", "U_2", "Points_0", "Points_1", "Points_2"]
    assert name_columns(path, paraview, {}) == ["u", "v", "w", "x", "y", "z"]
    frames = ["x", "y", "u_0", "u_1", "u_2", "v_0", "v_1", "v_2"]
    assert name_columns(path, frames, {}) == ["x", "y", *[None] * 6]
    assert name_columns(path, ["x", "y", "u_1", "u_2"], {}) == ["x", "y", None, None]


def test_units_have_one_spelling() -> None:
    spellings = {
        **{"pixels": "px", "px / frames": "px/frame", "-": "1", "μm": "um", "mm/sec": "mm/s"},
        **{"Millimetre": "mm", "microseconds": "us", "minutes": "min", "metre/second": "m/s"},
        **{"m s^-1": "m/s", "m s**-1": "m/s", "m s^{-1}": "m/s", "m sec-1": "m/s"},
        **{"[mm/s]": "mm/s", "( m s-1 )": "m/s", "(m/s)^2": "(m/s)^2", "[-]": "1"},
        **{"days": "day", "hr": "h", "meters per second": "m/s"},
    }
    assert {text: standard_unit(text) for text in spellings} == spellings


def write_at(*paths: Path) -> None:
    for path in paths:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_davis(path, sample(), decimal_comma=False)


def test_a_pattern_matches_files_in_folders(tmp_path: Path) -> None:
    write_at(*(tmp_path / f"run{run}" / f"B{frame}.txt" for run in (1, 2) for frame in (1, 2, 3)))
    recordings = open_recordings(tmp_path / "run*" / "B*.txt")
    assert recordings.names == ("run1-B", "run2-B")
    assert [flow.num_frames for flow in recordings] == [3, 3]
    recordings = open_recordings(tmp_path / "*" / "B1.txt")
    assert recordings.names == ("run1-B1", "run2-B1")
    assert len(open_recordings(tmp_path / "run?" / "B[12].txt")[0].time) == 2
    write_at(tmp_path / "run[1]" / "B1.txt")  # an existing folder is not a pattern
    assert open_recordings(tmp_path / "run[1]" / "B*.txt")[0].num_frames == 1
    with pytest.raises(FileNotFoundError, match="no file matches this pattern"):
        open_recordings(tmp_path / "nothing*" / "B1.txt")


def test_numbered_folders_are_frames(tmp_path: Path) -> None:
    for folder in ("9", "10", "11"):
        write_at(tmp_path / "piv" / folder / "field.txt")
    (flow,) = open_recordings(tmp_path / "piv" / "*" / "field.txt")
    assert flow.name == "field" and flow.num_frames == 3
    files = expand_pattern(tmp_path / "piv" / "*" / "field.txt")
    assert list(group_by_number(files)["field"]) == [9, 10, 11]
    write_at(tmp_path / "other" / "a" / "field.txt", tmp_path / "other" / "b" / "field.txt")
    names = open_recordings(tmp_path / "other" / "*" / "field.txt").names
    assert names == ("a-field", "b-field")
    write_at(*(tmp_path / "times" / time / "U.txt" for time in ("0.1", "0.15", "0.2")))
    with pytest.raises(SourceError, match="decimal number"):
        open_recordings(tmp_path / "times" / "*" / "U.txt")


@pytest.mark.parametrize(
    "names",
    [
        ("U_0.5", "U_0.55", "U_0.6"),
        ("U_0.9", "U_1.0", "U_1.1"),
        ("U_1e-05", "U_2e-05", "U_1e-04"),
        ("t0.5_U", "t0.45_U"),
    ],
)
def test_decimal_numbers_that_do_not_order_the_files_are_refused(
    tmp_path: Path, names: tuple[str, ...]
) -> None:
    with pytest.raises(SourceError, match=r"decimal numbers \(.*number the files"):
        group_by_number([tmp_path / f"{name}.csv" for name in names])


@pytest.mark.parametrize(
    ("names", "groups"),
    [
        (("slice2.9", "slice2.10"), 1),
        (("U_0.5", "U_0.6", "U_0.9"), 1),
        (("run1.0005", "run1.0010", "run2.0005", "run2.0010"), 2),
    ],
)
def test_digits_after_a_point_may_count_frames(
    tmp_path: Path, names: tuple[str, ...], groups: int
) -> None:
    files = [tmp_path / f"{name}.csv" for name in names]
    found = group_by_number(files)
    assert len(found) == groups
    assert [file for members in found.values() for file in members.values()] == files
