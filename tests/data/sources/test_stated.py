"""Family, sides and parameters: stated by the user, by the file, or inferred."""

import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pibert.data.convert import convert
from pibert.data.format import Reader, write
from pibert.data.sources import open_recordings
from pibert.data.sources.recordings import Hints, read_sides
from pibert.data.sources.stated import family_note
from pibert.fields import Sides, Trajectory
from pibert.remarks import InputWarning
from tests.data.helpers import make_trajectory


def arrays(path: Path, *names: str) -> Path:
    """An archive of random fields of these names, which states nothing else."""
    generator = np.random.default_rng(0)
    fields: dict[str, Any] = {name: generator.normal(size=(3, 4, 6)) for name in names}
    np.savez(path, **fields, x=np.arange(6.0), y=np.arange(4.0), t=np.arange(3.0))
    return path


def opened(path: Path, **hints: Any) -> Trajectory:
    return open_recordings(path, hints=Hints(**hints))[0]


def test_velocity_channels_are_taken_as_incompressible_flow_and_the_file_says_so(
    tmp_path: Path,
) -> None:
    path = arrays(tmp_path / "a.npz", "u", "v", "p")
    notes: list[str] = []
    convert(open_recordings(path), tmp_path / "a.h5", on_remark=notes.append)
    assert [note for note in notes if "family not stated; assuming incompressible" in note]
    stored = Reader(tmp_path / "a.h5")[0]
    assert stored.spec.family == "incompressible"
    assert stored.local["family"] == "inferred from the velocity channels u, v"


def test_an_inferred_family_goes_with_the_channels_that_it_was_inferred_from(
    tmp_path: Path,
) -> None:
    notes: list[str] = []
    path = arrays(tmp_path / "a.npz", "u", "v", "p")
    kept: dict[str, Any] = {"channels": ("v",), "on_remark": notes.append}
    convert(open_recordings(path), tmp_path / "v.h5", **kept)
    stored = Reader(tmp_path / "v.h5")[0]
    assert stored.spec.family is None and "family" not in stored.local
    assert any("no PDE family is stated" in note for note in notes)
    convert(open_recordings(path), tmp_path / "uv.h5", channels=("v", "u"))
    assert Reader(tmp_path / "uv.h5")[0].spec.family == "incompressible"


@pytest.mark.parametrize(
    "channels", [("T",), ("T", "p"), ("u", "v", "rho"), ("u", "v", "T"), ("u", "v", "rho", "p")]
)
def test_other_channels_have_no_inferred_family(tmp_path: Path, channels: tuple[str, ...]) -> None:
    found = opened(arrays(tmp_path / "a.npz", *channels))
    assert found.spec.family is None and "family" not in found.local
    assert "no PDE family is stated" in str(family_note(found))


def test_displacements_in_metres_are_no_velocity(tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", InputWarning)  # the unit itself is doubted too
        assert opened(arrays(tmp_path / "a.npz", "u", "v"), unit="m").spec.family is None
    assert opened(tmp_path / "a.npz", unit="mm/s").spec.family == "incompressible"
    assert opened(tmp_path / "a.npz", unit="px").spec.family == "incompressible"


def test_a_stated_family_is_taken_and_none_stands_for_unknown(tmp_path: Path) -> None:
    path = arrays(tmp_path / "a.npz", "u", "v")
    heat = opened(path, family="heat")
    assert heat.spec.family == "heat" and "family" not in heat.local
    assert heat.local["hints"]["family"] == "heat"
    unknown = opened(path, family="none")
    assert unknown.spec.family is None and family_note(unknown) is None
    with pytest.raises(ValueError, match="unknown PDE family 'stokes'; choose from: incompress"):
        open_recordings(path, hints=Hints(family="stokes"))
    assert "need the channels p, rho" in str(family_note(opened(path, family="euler")))


def test_an_inferred_family_may_be_replaced_and_a_native_file_infers_none(tmp_path: Path) -> None:
    convert(open_recordings(arrays(tmp_path / "a.npz", "u", "v")), tmp_path / "a.h5")
    assert opened(tmp_path / "a.h5", family="heat").spec.family == "heat"
    plain = make_trajectory()
    write(tmp_path / "b.h5", [replace(plain, spec=replace(plain.spec, family=None))])
    assert opened(tmp_path / "b.h5").spec.family is None


def test_a_native_file_gains_family_sides_and_parameters(tmp_path: Path) -> None:
    plain = make_trajectory(re=None)
    grid = replace(plain.spec.grid, sides=Sides())
    write(tmp_path / "a.h5", [replace(plain, spec=replace(plain.spec, grid=grid, family=None))])
    hints = Hints(parameters={"Re": 3000.0, "gap": 2.0}, sides="periodic", family="incompressible")
    convert(open_recordings(tmp_path / "a.h5", hints=hints), tmp_path / "b.h5")
    stored = Reader(tmp_path / "b.h5")[0]
    assert stored.parameters == {"Re": 3000.0, "gap": 2.0}
    assert stored.spec.parameter_names == ("Re", "damping", "gap")
    assert stored.spec.parameters[0].scaling == "log"
    assert stored.spec.grid.periodic_x and stored.spec.grid.periodic_y
    assert stored.spec.family == "incompressible"
    assert stored.read().equal(plain.read())


@pytest.mark.parametrize(
    ("hints", "message"),
    [
        ({"parameters": {"Re": 100.0}}, "Re is 1800 in the file, but you state 100"),
        ({"sides": "x=periodic"}, "side left is inflow in the file, but you state periodic"),
        ({"family": "heat"}, "family is incompressible in the file, but you state heat"),
        ({"family": "none"}, "family is incompressible in the file, but you state none"),
    ],
)
def test_what_contradicts_a_file_is_refused_unless_it_is_to_be_replaced(
    tmp_path: Path, hints: dict[str, Any], message: str
) -> None:
    write(tmp_path / "a.h5", [make_trajectory()])
    with pytest.raises(ValueError, match=f"{message}.*--override-metadata"):
        opened(tmp_path / "a.h5", **hints)
    with pytest.warns(InputWarning, match="metadata of the file replaced"):
        found = opened(tmp_path / "a.h5", override_metadata=True, **hints)
    if "parameters" in hints:
        assert found.parameters == {"Re": 100.0}
    if "sides" in hints:
        assert found.spec.grid.periodic_x
    if "family" in hints:
        assert found.spec.family == (None if hints["family"] == "none" else "heat")


def test_a_viscosity_that_the_file_states_for_all_is_replaced_too(tmp_path: Path) -> None:
    plain = make_trajectory()
    write(tmp_path / "a.h5", [replace(plain, spec=replace(plain.spec, viscosity=1e-6))])
    with pytest.raises(ValueError, match="viscosity is 1e-06 in the file, but you state 2e-06"):
        opened(tmp_path / "a.h5", parameters={"viscosity": 2e-6})
    with pytest.warns(InputWarning, match="viscosity 1e-06 -> 2e-06"):
        found = opened(tmp_path / "a.h5", parameters={"viscosity": 2e-6}, override_metadata=True)
    assert found.spec.viscosity == found.parameters["viscosity"] == 2e-6


def test_what_agrees_with_a_file_is_no_contradiction(tmp_path: Path) -> None:
    write(tmp_path / "a.h5", [make_trajectory()])
    stated = {"parameters": {"Re": 1800.0}, "sides": "left=inflow", "family": "incompressible"}
    assert opened(tmp_path / "a.h5", **stated).spec == make_trajectory().spec


@pytest.mark.parametrize(
    ("stated", "expected"),
    [
        ("periodic", ["periodic"] * 4),
        ("x=periodic", ["periodic", "periodic", "open", "open"]),
        ("left=inflow, right=outflow,bottom=wall,top=slip", ["inflow", "outflow", "wall", "slip"]),
        ({"y": "wall"}, ["open", "open", "wall", "wall"]),
        ("", ["open"] * 4),
    ],
)
def test_sides_are_read(stated: str | dict[str, str], expected: list[str]) -> None:
    open_sides = {name: "open" for name in Sides._fields}
    assert list((open_sides | read_sides(stated)).values()) == expected


@pytest.mark.parametrize(
    ("stated", "message"),
    [
        ("perodic", "expected one of periodic, wall.*found x=perodic"),
        ("north=wall", "names among x, y, left, right, bottom, top; found north=wall"),
        ("left=periodic", "left and right must both be periodic or neither"),
        ("left=", "found left="),
    ],
)
def test_wrong_sides_are_named(stated: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Hints(sides=stated)


def test_a_parameter_that_is_not_finite_is_refused() -> None:
    with pytest.raises(ValueError, match="parameter 'Re' must be a finite number, found nan"):
        Hints(parameters={"Re": float("nan")})


@pytest.mark.parametrize(("unit", "refused"), [("Pa", True), ("kPa", True), ("m2/s2", False)])
def test_the_momentum_equations_take_kinematic_pressure_only(
    tmp_path: Path, unit: str, refused: bool
) -> None:
    flow = make_trajectory(channels=("u", "v", "p"))
    spec = replace(flow.spec, family=None, units=("m/s", "m/s", unit))
    write(tmp_path / "a.h5", [replace(flow, spec=spec)])
    assert opened(tmp_path / "a.h5", family="incompressible").spec.family == "incompressible"
    if refused:
        with pytest.raises(ValueError, match=f"p is in {unit}, .*--parameter density=NUMBER"):
            opened(tmp_path / "a.h5", family="incompressible-momentum")
        density = {"density": 1000.0}
        stated = opened(tmp_path / "a.h5", family="incompressible-momentum", parameters=density)
        assert stated.parameters["density"] == 1000
    else:
        assert opened(tmp_path / "a.h5", family="incompressible-momentum").spec.family is not None
