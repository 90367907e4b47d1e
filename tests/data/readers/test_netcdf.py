"""NetCDF files of both kinds, with and without the attributes of the CF conventions."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pibert.data.readers import identify, netcdf, open_recordings
from pibert.data.readers.recordings import Hints, Recordings, SourceError
from pibert.fields import read_mask
from tests.helpers import refused
from tests.lookalikes.flow import T, X, Y, assert_flow, fields

xarray = pytest.importorskip("xarray")
FILES = Path(__file__).parent / "files"
ENGINES = ["h5netcdf", "scipy"]


def dataset(dims: str = "tyx", **time_attributes: Any) -> Any:
    names = {"t": "time", "y": "y", "x": "x"}
    flow = {
        name: values.transpose(["tyx".index(letter) for letter in dims])
        for name, values in fields().items()
    }
    order = [names[letter] for letter in dims]
    variables = {
        "U": (order, flow["u"], {"units": "m s-1", "standard_name": "eastward_wind"}),
        "V": (order, flow["v"], {"units": "m/s"}),
    }
    axes = {
        "x": ("x", X, {"units": "mm"}),
        "y": ("y", Y, {"units": "mm"}),
        "time": ("time", T, time_attributes or {"units": "s"}),
    }
    return xarray.Dataset(variables, axes, {"title": "a wake"})


def saved(folder: Path, data: Any, engine: str = "h5netcdf", **encoding: Any) -> Recordings:
    """What is read of a data set once it is a file."""
    path = folder / f"{len(list(folder.iterdir()))}.nc"  # an earlier one may be open
    data.to_netcdf(path, engine=engine, encoding=encoding)
    assert netcdf.recognise(path)
    return netcdf.open_recordings(path)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("dims", ["tyx", "yxt", "txy"])
def test_dimensions_give_the_order_of_axes(tmp_path: Path, engine: str, dims: str) -> None:
    (trajectory,) = saved(tmp_path, dataset(dims), engine)
    assert_flow(trajectory)
    assert trajectory.spec.units == ("m/s", "m/s")
    assert (trajectory.length_unit, trajectory.time_unit) == ("mm", "s")
    assert trajectory.source["title"] == "a wake"


@pytest.mark.parametrize("engine", ENGINES)
def test_dates_become_seconds_since_the_first_frame(tmp_path: Path, engine: str) -> None:
    data = dataset(units="hours since 2000-01-01 06:00")
    data["time"] = ("time", 7 + 3 * np.arange(6), data["time"].attrs)
    recordings = saved(tmp_path, data, engine)
    assert recordings[0].time.tolist() == [10800.0 * frame for frame in range(6)]
    assert (recordings[0].spec.dt, recordings[0].time_unit) == (10800.0, "s")
    assert any("dates" in note for note in recordings.notes)
    data["time"].attrs["units"] = "months since 2000-01-01"
    with pytest.raises(SourceError, match="'months'"):
        saved(tmp_path, data, engine)


@pytest.mark.parametrize("engine", ENGINES)
def test_fill_values_are_missing_and_packed_values_are_unpacked(
    tmp_path: Path, engine: str
) -> None:
    wanted = torch.from_numpy(fields()["v"])
    packing = {"dtype": "i2", "scale_factor": 0.01, "add_offset": 1.0, "_FillValue": -999}
    unwritten = 9.969209968386869e36  # what the library leaves where nobody wrote
    for value, encoding in ((np.nan, packing), (unwritten, {"_FillValue": None})):
        data = dataset()
        data["V"].values[2, 1, 3] = value
        (trajectory,) = saved(tmp_path, data, engine, V=encoding)
        known = trajectory.known()
        assert (~known).nonzero().tolist() == [[2, 1, 3]]
        torch.testing.assert_close(trajectory.read()[:, 1][known], wanted[known], atol=6e-3, rtol=0)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.filterwarnings("ignore:saving variable V")
@pytest.mark.parametrize(
    ("attributes", "encoding", "written"),
    [
        ({"valid_range": np.array([-90.0, 90.0])}, {}, -9999.0),
        ({"valid_min": -90.0}, {}, -9999.0),
        ({"valid_max": np.float32(90.0)}, {}, 1e20),
        # Limits of packed numbers are packed.
        (
            {"valid_range": np.array([-9000, 9000], "i2")},
            {"dtype": "i2", "scale_factor": 0.01, "add_offset": 1.0},
            -99.99,
        ),
        # What the library leaves where nobody wrote whole numbers.
        ({}, {"dtype": "i2", "scale_factor": 0.01, "_FillValue": None}, -327.67),
        ({}, {"dtype": "i4", "scale_factor": 0.01, "_FillValue": None}, -21474836.47),
    ],
)
def test_values_outside_the_valid_range_and_unwritten_ones_are_missing(
    tmp_path: Path,
    engine: str,
    attributes: dict[str, Any],
    encoding: dict[str, Any],
    written: float,
) -> None:
    data = dataset().astype("f8")
    data["V"].values[2, 1, 3] = written
    data["V"].attrs |= attributes
    (trajectory,) = saved(tmp_path, data, engine, V=encoding)
    assert (~trajectory.known()).nonzero().tolist() == [[2, 1, 3]]
    wanted, known = torch.from_numpy(fields()["v"]), trajectory.known()
    torch.testing.assert_close(trajectory.read()[:, 1][known], wanted[known], atol=6e-3, rtol=0)


def test_components_on_different_points_of_a_staggered_grid_are_refused(tmp_path: Path) -> None:
    axes = {"XC": X, "YC": Y, "XG": X - 0.05, "YG": Y - 0.15, "time": T}
    flow = fields()
    variables = {"U": (("time", "YC", "XG"), flow["u"]), "V": (("time", "YG", "XC"), flow["v"])}
    with pytest.raises(SourceError, match="different points of a staggered grid"):
        saved(tmp_path, xarray.Dataset(variables, axes))
    # Both at the corners: the coordinates of the centres are not theirs.
    variables = {name: (("time", "YG", "XG"), values) for name, (_, values) in variables.items()}
    assert saved(tmp_path, xarray.Dataset(variables, axes))[0].spec.grid.origin == (0, 0)
    variables = {name: (("time", "YC", "XC"), values) for name, (_, values) in variables.items()}
    assert_flow(saved(tmp_path, xarray.Dataset(variables, axes))[0])


def test_netcdf_files_are_recognised_by_their_content(tmp_path: Path) -> None:
    dataset().to_netcdf(tmp_path / "flow.h5", engine="h5netcdf")
    assert identify(tmp_path / "flow.h5") == "netcdf"


def test_coordinates_in_degrees_give_a_note(tmp_path: Path) -> None:
    data = dataset().rename(x="lon", y="lat")
    data["lon"].attrs = {"units": "degrees_east", "standard_name": "longitude"}
    data["lat"].attrs = {"units": "degrees_north", "standard_name": "latitude"}
    recordings = saved(tmp_path, data)
    assert_flow(recordings[0])
    assert any("degrees" in note for note in recordings.notes)


def test_pivpy_choice_codes_mark_invalid_vectors() -> None:
    recordings = open_recordings(FILES / "pivpy.nc")
    (trajectory,) = recordings
    text = open_recordings(FILES / "tsi_pixels.vec")[0]  # what PIVPy read
    assert torch.equal(trajectory.known(), text.known()) and not text.known().all()
    torch.testing.assert_close(trajectory.read(), text.read())
    assert trajectory.spec.units == ("px", "px") and trajectory.length_unit == "px"
    assert any("--pulse-delay 55000us" in note for note in recordings.notes)
    calibrated = Hints(scale="0.05mm/px", pulse_delay="55000us")
    torch.testing.assert_close(
        open_recordings(FILES / "pivpy.nc", hints=calibrated)[0].read(), text.read() * 5e-5 / 0.055
    )


def coded(path: Path, codes: np.ndarray, attributes: dict[str, str], **facts: str) -> Path:
    data = dataset()
    data["chc"] = (("time", "y", "x"), codes, attributes)
    data.assign_attrs(facts).to_netcdf(path, engine="h5netcdf")
    return path


@pytest.mark.parametrize("stated", ["validity_flag", "confidence_flag", None])
def test_choice_codes_above_zero_are_valid(tmp_path: Path, stated: str | None) -> None:
    codes = np.ones((6, 5, 7))
    codes[0, 1, 2], codes[0, 2, 3], codes[3, 4, 5], codes[4] = 0, -1, -2, 2
    attributes = {} if stated is None else {"standard_name": stated}
    facts = {"pivpy_schema_version": "1"} if stated is None else {}
    (trajectory,) = open_recordings(coded(tmp_path / "a.nc", codes, attributes, **facts))
    assert (~trajectory.known()).nonzero().tolist() == [[0, 1, 2], [0, 2, 3], [3, 4, 5]]
    assert torch.equal(trajectory.read()[:, 0], torch.from_numpy(fields()["u"]))
    assert trajectory.filled is not None  # code 2: interpolated
    filled = read_mask(trajectory.filled, slice(None))
    assert bool(filled[4].all()) and int(filled.sum()) == filled[4].numel()


def test_ambiguous_choice_codes_are_refused(tmp_path: Path) -> None:
    codes = np.ones((6, 5, 7))
    codes[0, 1, 2] = -1  # TSI's codes
    (trajectory,) = open_recordings(coded(tmp_path / "tsi.nc", codes, {}))
    assert (~trajectory.known()).nonzero().tolist() == [[0, 1, 2]]
    # Flags of OpenPIV, where 0 is valid, or of PIVPy, where it is not.
    path = coded(tmp_path / "flags.nc", np.maximum(codes, 0), {})
    with refused("'chc'", "--channels invalid=chc", error=SourceError):
        open_recordings(path)
    valid = open_recordings(path, hints=Hints(channels={"valid": "chc"}))[0]
    assert (~valid.known()).nonzero().tolist() == [[0, 1, 2]]
    invalid = open_recordings(path, hints=Hints(channels={"invalid": "chc"}))[0]
    assert invalid.known().nonzero().tolist() == [[0, 1, 2]]
    assert valid.spec.channels == invalid.spec.channels == ("u", "v")
