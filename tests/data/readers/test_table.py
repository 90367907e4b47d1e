"""Text in columns, and the fields in it."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pibert.data.readers import identify, open_recordings, table
from pibert.data.readers.recordings import Hints, Recordings, SourceError
from pibert.data.readers.shared.files import read_columns
from tests.data.helpers import SHARED, needs_shared
from tests.helpers import refused

X, Y = (mesh.ravel() for mesh in np.meshgrid([0.0, 0.5, 1.0], [2.0, 3.0]))


def text_of(columns: list[np.ndarray], separator: str = ",") -> str:
    return "".join(separator.join(f"{v:g}" for v in row) + "\n" for row in np.stack(columns, -1))


def opened(
    folder: Path, head: str, columns: list[np.ndarray], separator: str = ",", **hints: Any
) -> Recordings:
    path = folder / "flow.csv"
    path.write_text(f"{head}\n" + text_of(columns, separator))
    assert table.recognise(path)
    return table.open_recordings(path, Hints(**hints))


@pytest.mark.parametrize(
    ("text", "names", "values"),
    [
        ("x,y\n1,2\n3,4\n", ("x", "y"), [[1, 2], [3, 4]]),
        ("x;y\n1,5;2\n3;4,25\n", ("x", "y"), [[1.5, 2], [3, 4.25]]),
        ("x y\n1 2\n3,5 -4\n", ("x", "y"), [[1, 2], [3.5, -4]]),
        ("# x\ty\n1,5\t-2e-3\n", ("x", "y"), [[1.5, -0.002]]),
        ("1.5 2\n\n# a comment\n3 nan\n", ("column 1", "column 2"), [[1.5, 2], [3, np.nan]]),
        ("t (s)  Cd \n1,2,\n3,4,\n", ("t (s)", "Cd"), [[1, 2], [3, 4]]),
        ('"u, mean","v"\n1,2\n', ("u, mean", "v"), [[1, 2]]),
        ("% Model:   m\n% x     u (m/s) @ t=1\n0  1\n", ("x", "u (m/s) @ t=1"), [[0, 1]]),
        (",x,y\n0,1,2\n1,3,4\n", ("column 1", "x", "y"), [[0, 1, 2], [1, 3, 4]]),
        ("\ufeffx,y\r\n1,2\r\n", ("x", "y"), [[1, 2]]),
        ("x,y\n1.0D-03,.5d+2\n-2.D1,7\n", ("x", "y"), [[0.001, 50], [-20, 7]]),
        ("x;y\n1,0D-03;2\n", ("x", "y"), [[0.001, 2]]),
        ("# x y\n1D2 3\n4 5\n", ("x", "y"), [[100, 3], [4, 5]]),
        ("x,y,u\n1,2,NA\n3,4,5\n", ("x", "y", "u"), [[1, 2, np.nan], [3, 4, 5]]),
        ("x [m];y;\n1;2;\n3;4;\n", ("x [m]", "y"), [[1, 2], [3, 4]]),
        ("x,y,\n1,2\n", ("x", "y"), [[1, 2]]),
        ("x;y;-\n1;2;3\n", ("x", "y", "-"), [[1, 2, 3]]),
        ("x,u\n[mm],[m/s]\n1,2\n", ("x [mm]", "u [m/s]"), [[1, 2]]),
        ("x;u;k;\nmm;m/s;-;\n1,5;2;3;\n", ("x [mm]", "u [m/s]", "k [-]"), [[1.5, 2, 3]]),
        ("# x u\n# (px) (px/frame)\n1 2\n", ("x [px]", "u [px/frame]"), [[1, 2]]),
        ("two words\nx px,u pixel\n1,2\n", ("x px", "u pixel"), [[1, 2]]),
        ("of one flow\nm s\n1 2\n", ("m", "s"), [[1, 2]]),
        ("2 - 3\nx y\n1 2\n", ("x", "y"), [[1, 2]]),
        ("u,x,y\n1,2,3\n#N/A,4,5\n", ("u", "x", "y"), [[1, 2, 3], [np.nan, 4, 5]]),
    ],
)
def test_columns_are_found(
    tmp_path: Path, text: str, names: tuple[str, ...], values: list[list[float]]
) -> None:
    path = tmp_path / "a.txt"
    path.write_text(text, encoding="utf-8")
    found = read_columns(path)
    assert found.names == names
    np.testing.assert_array_equal(found.values, values)
    assert found.named is not names[-1].startswith("column")


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"x,y\n1,2\n3\n", "line 3 has 1 values, not 2"),
        (b"x,y\n1,2\nZONE 2\n3,4\n", "line 3 is no row of numbers"),
        (b"x y\n1 2\n3 four\n", "line 3, column 2: expected a number, found 'four'"),
        (b"\x00\x01 1 2\n", "found no row of numbers"),
    ],
)
def test_broken_tables_are_refused(tmp_path: Path, content: bytes, problem: str) -> None:
    (tmp_path / "a.csv").write_bytes(content)
    with pytest.raises(SourceError, match=f"a.csv: .*{problem}"):
        read_columns(tmp_path / "a.csv")
    with refused("absent.csv", error=SourceError):
        read_columns(tmp_path / "absent.csv")


@pytest.mark.parametrize(
    "word", ["NA", "n/a", "null", "-", "---", "#N/A", "1.#QNAN", "-1.#IND00", "-nan(ind)", "NaN"]
)
def test_words_for_a_missing_value_are_read_as_one(tmp_path: Path, word: str) -> None:
    u = np.arange(6.0)
    lines = [
        f"{x:g};{y:g};{value:g};{word if n == 1 else 7}"
        for n, (x, y, value) in enumerate(zip(X, Y, u, strict=True))
    ]
    (tmp_path / "flow.csv").write_text("x;y;u;v\n" + "\n".join(lines) + "\n")
    flow = open_recordings(tmp_path / "flow.csv")[0]
    assert flow.valid is not None and int((~flow.known()).sum()) == 1
    assert torch.equal(flow.read()[0, 0, :, :].flatten()[[0, 2, 3]], torch.tensor([0.0, 2, 3]))
    tabs = "\n".join(lines).replace(";", "\t")
    (tmp_path / "flow.txt").write_text("x\ty\tu\tv\n" + tabs + "\n")
    assert torch.equal(open_recordings(tmp_path / "flow.txt")[0].known(), flow.known())


@pytest.mark.parametrize("word", ["bad", "1_000", "0x1A", "1.0D", "1.#INF", "n. def.", "1 2"])
def test_a_cell_without_a_number_is_named(tmp_path: Path, word: str) -> None:
    path = tmp_path / "flow.csv"
    path.write_text(f"x,y,u,v\n0,0,1,2\n1,0,NA,{word}\n")
    with refused(path, "line 3, column 4", repr(word), "nan"):
        read_columns(path)
    path.write_text("x,y,u\n0,0,1 2\n1,0,3 4\n")
    with refused(path):
        read_columns(path)


def test_a_csv_with_names_is_a_field(tmp_path: Path) -> None:
    given = tmp_path, "velocity_x [m/s],Y [mm],X [mm],p,quality", [X + Y, Y, X, Y, X]
    recordings = opened(*given)
    trajectory = recordings[0]
    assert recordings.names == ("flow",) and trajectory.spec.channels == ("u", "p")
    assert trajectory.spec.units == ("m/s", "1") and trajectory.length_unit == "mm"
    expected = torch.tensor([[2.0, 2.5, 3.0], [3.0, 3.5, 4.0]])
    assert torch.equal(trajectory.read()[0, 0], expected)
    (note,) = recordings.notes
    assert note.startswith("columns left out: quality; ")
    kept = opened(*given, channels={"quality": "quality"})[0]
    assert kept.spec.channels == ("u", "p", "quality")
    with pytest.raises(SourceError, match="'p' is"):
        opened(*given, channels={"u": "p", "s": "p"})
    with pytest.raises(SourceError, match="m and mm"):
        opened(tmp_path, "x [mm],y [m],u,v", [X, Y, X, Y])


@pytest.mark.parametrize("axis", ["x", "y", "t"])
def test_a_row_without_a_position_or_time_is_named(tmp_path: Path, axis: str) -> None:
    rows = text_of([X, Y, 0 * X, X, Y]).splitlines()
    cells = rows[4].split(",")
    cells["xyt".index(axis)] = "NA"
    rows[4] = ",".join(cells)
    (tmp_path / "flow.csv").write_text("x,y,t,u,v\n" + "\n".join(rows))
    with refused("flow.csv", f"{axis} has no number in row 5", error=SourceError):
        open_recordings(tmp_path / "flow.csv")


def test_units_in_a_line_below_the_names_are_those_of_the_columns(tmp_path: Path) -> None:
    for name, units in (("a", "[mm];[mm];[cm/s];[cm/s]"), ("b", "mm;mm;cm/s;cm/s")):
        rows = text_of([X, Y, X + Y, X * Y], ";").replace(".", ",")
        (tmp_path / f"{name}.csv").write_text(f"x;y;u;v\n{units}\n{rows}".replace("\n", ";\n"))
        flow = open_recordings(tmp_path / f"{name}.csv")[0]
        assert flow.spec.units == ("cm/s", "cm/s") and flow.length_unit == "mm"
        np.testing.assert_allclose(flow.read()[0, 0].flatten(), X + Y, rtol=1e-6)


def test_a_column_of_marks_is_a_channel_where_it_is_named_as_one(tmp_path: Path) -> None:
    given = tmp_path, "x,y,u,filled", [X, Y, X, X > 0]
    found = opened(*given)[0]
    assert found.spec.channels == ("u",) and found.filled is not None
    named = opened(*given, channels={"u": "u", "phi": "filled"})[0]
    assert named.spec.channels == ("u", "phi") and named.filled is None


def test_numbered_files_are_frames_of_a_flow(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    for number in (9, 10, 11, 13):
        text = "x [m],y [m],u [m/s],v [m/s]\n" + text_of([X, Y, X + number, Y * number])
        (folder / f"B{number}.csv").write_text(text)
    for path, name in ((folder, "run"), (folder / "B*.csv", "B")):
        assert identify(path) == "table"
        (flow,) = open_recordings(path, hints=Hints(dt=0.1))
        assert flow.name == name and flow.num_frames == 4
        torch.testing.assert_close(flow.read()[:, 0, 0, 0], torch.tensor([9.0, 10.0, 11.0, 13.0]))
        assert flow.time.tolist() == pytest.approx([0.0, 0.1, 0.2, 0.4])
    (flow,) = table.open_recordings(folder)
    assert flow.time.tolist() == [0.0, 1.0, 2.0, 4.0]
    (odd,) = open_recordings(folder / "B*[13].csv", hints=Hints(dt=0.1))
    assert odd.time.tolist() == pytest.approx([0.0, 0.1])
    for head, x, found in (
        ("x [m],y [m],u [m/s],v [m/s]", X + 1, "points of frame 3"),
        ("x [mm],y [mm],u [m/s],v [m/s]", X, "B12.csv: expected the columns x .m"),
    ):
        (folder / "B12.csv").write_text(f"{head}\n" + text_of([x, Y, X, Y]))
        with pytest.raises(SourceError, match=found):
            table.open_recordings(folder)


def test_units_of_texts_in_latin_1_are_read(tmp_path: Path) -> None:
    path = tmp_path / "flow.csv"
    rows = text_of([X, Y, 2 * X, 3 * Y])
    path.write_bytes("x [µm],y [µm],u [mm/s],v [mm/s]\n".encode("latin-1") + rows.encode())
    assert table.open_recordings(path)[0].length_unit == "um"


def test_codes_of_missing_values_do_not_reach_their_neighbours(tmp_path: Path) -> None:
    # Points of no grid are interpolated.
    generator = np.random.default_rng(0)
    x, y = generator.random((2, 400))
    u = np.where(np.arange(400) % 50 == 0, -9999, 1 + x)
    recordings = opened(tmp_path, "x,y,u,v", [x, y, u, 2 + y])
    assert any("u -9999" in note for note in recordings.notes)
    flow = recordings[0]
    values = flow.read()[:, 0][flow.known()]
    assert len(values) > 200 and float(values.min()) > 0.9


def test_the_first_of_two_columns_with_one_meaning_is_read(tmp_path: Path) -> None:
    recordings = opened(tmp_path, "x,y,u,v,U,Vy", [X, Y, 2 * X, 3 * Y, 0 * X - 1, 0 * X - 2])
    expected = np.stack([2 * X, 3 * Y]).reshape(1, 2, 2, 3)
    np.testing.assert_array_equal(recordings[0].read().numpy(), expected)
    assert any("left out: U, Vy" in note for note in recordings.notes)


def test_files_with_different_points_are_not_frames_of_a_flow(tmp_path: Path) -> None:
    for number, points in ((1, 6), (2, 5)):
        text = "x,y,u,v\n" + text_of([values[:points] for values in (X, Y, X, Y)])
        (tmp_path / f"case{number}.csv").write_text(text)
    with refused("case1.csv has 6", "case2.csv 5", "on its own", error=SourceError):
        table.open_recordings(tmp_path)
    assert table.open_recordings(tmp_path / "case1.csv")[0].num_frames == 1


def test_numbered_files_state_no_time_step(tmp_path: Path) -> None:
    for number in (1, 2, 3):
        (tmp_path / f"f_{number}.csv").write_text("x,y,u [m/s]\n" + text_of([X, Y, X + number]))
    recordings = open_recordings(tmp_path)
    assert recordings[0].spec.dt is None and recordings[0].time.tolist() == [0.0, 1.0, 2.0]
    assert any("no time between the frames" in note for note in recordings.notes)
    (tmp_path / "f_2.csv").rename(tmp_path / "f_6.csv")
    recordings = open_recordings(tmp_path)
    assert recordings[0].spec.dt is None and recordings[0].time.tolist() == [0.0, 2.0, 5.0]
    assert any("frames are missing" in note for note in recordings.notes)
    (tmp_path / "f_6.csv").rename(tmp_path / "f_5.csv")
    for number in (1, 3, 5, 9):  # every second is written, and one of these is missing
        (tmp_path / f"f_{number}.csv").write_text("x,y,u [m/s]\n" + text_of([X, Y, X]))
    flow = open_recordings(tmp_path, hints=Hints(dt=2.0, time_unit="ms"))[0]
    assert flow.time.tolist() == [0.0, 2.0, 4.0, 8.0]
    assert flow.spec.dt == 2.0 and flow.time_unit == "ms"
    for number in (5, 9):
        (tmp_path / f"f_{number}.csv").unlink()
    for number in (1, 3, 6):
        text = "x,y,u [m/s],t [ms]\n" + text_of([X, Y, X, 0 * X + number])
        (tmp_path / f"f_{number}.csv").write_text(text)
    timed = open_recordings(tmp_path)[0]
    assert timed.time.tolist() == [1.0, 3.0, 6.0] and timed.time_unit == "ms"


def test_a_time_counted_in_frames_is_not_read_as_seconds(tmp_path: Path) -> None:
    x, y, t = np.tile(X, 3), np.tile(Y, 3), np.repeat([0.0, 10.0, 20.0], 6)
    path = tmp_path / "a.csv"
    path.write_text("x [m],y [m],u [m/s],v [m/s],t (frame)\n" + text_of([x, y, x + t, y, t]))
    recordings = open_recordings(path)
    assert recordings[0].spec.dt is None
    assert any("no time between the frames" in note for note in recordings.notes)
    assert open_recordings(path, hints=Hints(dt=0.1))[0].time.tolist() == [0.0, 1.0, 2.0]


def test_a_column_of_time_makes_frames(tmp_path: Path) -> None:
    x, y, t = np.tile(X, 3), np.tile(Y, 3), np.repeat([0.0, 0.1, 0.2], 6)
    order = np.random.default_rng(0).permutation(18)
    columns = [c[order] for c in (t, x, y, 100 * t + x)]
    trajectory = opened(tmp_path, "t [s],x,y,u", columns)[0]
    assert trajectory.spec.dt == pytest.approx(0.1) and trajectory.time_unit == "s"
    expected = torch.tensor([[0.0, 0.5, 1.0], [10.0, 10.5, 11.0], [20.0, 20.5, 21.0]])
    torch.testing.assert_close(trajectory.read()[:, 0, 1], expected)
    with refused("flow.csv", "6 at time 0", "5 at time 0.2", error=SourceError):
        opened(tmp_path, "t,x,y,u", [c[:-1] for c in (t, x, y, x)])


def test_comsol_columns_carry_times_and_parameters(tmp_path: Path) -> None:
    names = [f"{c} (m/s) @ t={t}, Re={re}" for re in (10, 20) for t in (0, 0.5) for c in "uv"]
    columns = [X, Y, *(number + X for number in range(8))]
    header = "% Model:              m.mph\n% Length unit:        m\n% "
    recordings = opened(tmp_path, header + "   ".join(["x", "y", *names]), columns, "   ")
    assert recordings.names == ("flow Re=10", "flow Re=20")
    second = recordings["flow Re=20"]
    assert second.parameters == {"Re": 20.0} and second.time.tolist() == [0.0, 0.5]
    assert second.read()[:, :, 0, 0].tolist() == [[4.0, 5.0], [6.0, 7.0]]
    assert recordings[0].read()[:, :, 0, 0].tolist() == [[0.0, 1.0], [2.0, 3.0]]
    assert second.length_unit == "m" and second.spec.units == ("m/s", "m/s")
    assert second.source == {"file": "flow.csv", "model": "m.mph"}


@pytest.mark.parametrize("unit", ["", " s", " ms"])
@pytest.mark.parametrize("number", ["", "2: "])
def test_long_comsol_names_are_separated_by_one_blank(
    tmp_path: Path, unit: str, number: str
) -> None:
    times = ("0", "0.1", "0.30000000000000004")
    names = [f"{c} (m/s) @ {number}t={t}{unit}" for t in times for c in "uv"]
    header = "% " + "".join(f"{name:24} " for name in ("x", "y", *names))
    columns = [X + 0.01 * Y**2, Y, *(column + X for column in range(6))]  # scattered
    (trajectory,) = opened(tmp_path, header, columns, "   ")
    assert trajectory.time.tolist() == pytest.approx([0.0, 0.1, 0.3])
    assert trajectory.time_unit == (unit.strip() or None)
    assert trajectory.spec.channels == ("u", "v") and trajectory.spec.units == ("m/s", "m/s")
    later, first = trajectory.read()[1, 1], trajectory.read()[0, 0]
    assert set((later - first)[first.isfinite()].round(decimals=4).tolist()) == {3.0}
    with refused("8 columns", "in m/s", error=SourceError):
        opened(tmp_path, header.replace("(m/s)", "in m/s"), [X, Y, *columns[2:]], " ")


@pytest.mark.parametrize("section", ["Grid", "Coordinates"])
def test_comsol_sections_are_refused_with_what_to_export(tmp_path: Path, section: str) -> None:
    path = tmp_path / "flow.txt"
    path.write_text(f"% Version:    COMSOL 6.0\n% {section}\n0 1 2\n0 1\n% Data (u @ t=0)\n1\n2\n")
    assert table.recognise(path)
    with pytest.raises(SourceError, match="Spreadsheet"):
        table.open_recordings(path)


def test_curves_are_refused(tmp_path: Path) -> None:
    t = np.linspace(0, 1, 30)
    for head, columns, found in (
        ("# t  Cd  Cl  Cm", [t, t**2, t, t], "no field: columns t, Cd, Cl, Cm; 30"),
        ("", [t, t**2, np.sin(9 * t), t], "no field: columns 4 without names"),
        ("x y u", [0 * t, t, t], "flow.csv: .*this is a curve"),
        ("x y z u", [t, t**2, t**3, t], "flow.csv: points in three dimensions"),
    ):
        with pytest.raises(SourceError, match=found):
            opened(tmp_path, head, columns, " ")


@needs_shared
@pytest.mark.parametrize(
    ("name", "shape", "parameters"),
    [
        ("lid_driven_a4", (101, 101), {"Re": 100.0}),
        ("ns_0_obstacle", (94, 187), {}),
        ("ns_4_obstacle", (130, 258), {}),
    ],
)
def test_the_finite_element_flows_open(
    name: str, shape: tuple[int, int], parameters: dict[str, float]
) -> None:
    path = SHARED / "channel_comsol" / f"{name}.dat"
    assert table.recognise(path)
    trajectory = table.open_recordings(path)[0]
    assert trajectory.spec.channels == ("u", "v", "p") and trajectory.spec.grid.shape == shape
    assert trajectory.parameters == parameters
    error = trajectory.local["gridding"]["error"]
    assert error["u"] < 0.03 and error["v"] < 0.07
