"""Names and units in foreign files."""

import pytest

from pibert.data.sources.assembly.naming import split_unit, standard_name, standard_unit


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
