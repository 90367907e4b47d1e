"""Names and units in foreign files."""

from pathlib import Path

import pytest

from pibert.data.sources.assembly.naming import (
    name_columns,
    split_unit,
    standard_name,
    standard_unit,
)
from pibert.data.sources.recordings import SourceError


@pytest.mark.parametrize(
    ("text", "name", "unit"),
    [
        ("U [m/s]", "u", "m/s"),
        ("v (m/s)", "v", "m/s"),
        ("X mm", "x", "mm"),
        ("Y pixel", "y", "px"),
        ("u [px/frame]", "u", "px/frame"),
        ("U pix/dt", "u", "px/frame"),
        ("x_mm", "x", "mm"),
        ("x [µm]", "x", "um"),
        ("Vx[m/s]", "u", "m/s"),
        ("Vy", "v", None),
        ("Ux", "u", None),
        ("x-velocity", "u", None),
        ("velocity_y", "v", None),
        ("U:0", "u", None),
        ("Velocity:2", "w", None),
        ("Points_2", "z", None),
        ("Points:1", "y", None),
        ("CoordinateX", "x", None),
        ('"p (Pa)"', "p", "Pa"),
        ("Pressure", "p", None),
        ("vorticity [1/s]", "omega", "1/s"),
        ("density", "rho", None),
        ("T", "T", None),
        ("t", "t", None),
        ("Time [s]", "t", "s"),
        ("u @ Re=100", "u", None),
        ("v (m/s) @ t=0.1", "v", "m/s"),
    ],
)
def test_names_that_mean_something(text: str, name: str, unit: str | None) -> None:
    assert standard_name(text) == (name, unit)


@pytest.mark.parametrize(
    "text",
    ["CHC", "flags", "U0", "u2", "mm", "", "Cd", "xu", "u'v'", "vu", "u_1", "v_0", "velocity_2"],
)
def test_names_that_do_not(text: str) -> None:
    assert standard_name(text)[0] is None


def test_numbered_columns_are_components_of_one_vector_or_frames_of_two() -> None:
    path = Path("a.csv")
    paraview = ["U_0", "U_1", "U_2", "Points_0", "Points_1", "Points_2"]
    assert name_columns(path, paraview, {}) == ["u", "v", "w", "x", "y", "z"]
    frames = ["x", "y", "u_0", "u_1", "u_2", "v_0", "v_1", "v_2"]
    assert name_columns(path, frames, {}) == ["x", "y", *[None] * 6]
    assert name_columns(path, ["x", "y", "u_1", "u_2"], {}) == ["x", "y", None, None]


def test_a_column_makes_way_for_the_one_that_the_user_names() -> None:
    names = name_columns(Path("a.csv"), ["x", "y", "u [m/s]", "v [m/s]", "mean"], {"u": "mean"})
    assert names == ["x", "y", None, "v", "u"]
    with pytest.raises(SourceError, match="no column 'w'; there are: x, y"):
        name_columns(Path("a.csv"), ["x", "y"], {"u": "w"})


def test_units_have_one_spelling() -> None:
    assert [standard_unit(u) for u in ("pixels", "m s^-1", "-", "μm", "px / frames", "mm/sec")] == [
        "px",
        "m/s",
        "1",
        "um",
        "px/frame",
        "mm/s",
    ]


def test_units_in_words_become_symbols() -> None:
    words = ("meters", "Millimetre", "seconds", "microseconds", "hours", "minutes", "metre/second")
    assert [standard_unit(u) for u in words] == ["m", "mm", "s", "us", "h", "min", "m/s"]
    assert standard_unit("m s**-1") == "m/s"


def test_a_name_keeps_its_words_without_the_unit() -> None:
    assert split_unit("Vector type [-]") == ("Vector type", "1")
    assert split_unit("CHC") == ("CHC", None)
