"""xarray input: any arrangement of labels gives the numbers of plain arrays."""

import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from pibert.inference import InputWarning
from tests.helpers import refused, tiny_spec
from tests.inference.small import SHAPE, frames, predictor

xr = pytest.importorskip("xarray")

SPEC = replace(tiny_spec(SHAPE), units=("m/s", "m/s"))
COORDS = {"y": 0.2 * np.arange(12) - 1.0, "x": 0.3 * np.arange(20) + 5.0}
PREDICTORS = {
    history: predictor(spec=SPEC, history=history, horizon=2, fill_modes=0) for history in (1, 2)
}


def labelled(x: np.ndarray, *, units: str = "m/s", **coords: Any) -> Any:
    """(sample, time, channel, y, x) as a Dataset."""
    dims = ("sample", "time", "y", "x")
    attrs = {"units": units, "long_name": "velocity"}
    data = {name: (dims, x[:, :, place], attrs) for place, name in enumerate("uv")}
    time = {"time": 7.0 + 0.1 * np.arange(x.shape[1])}
    return xr.Dataset(data, coords=COORDS | time | coords, attrs={"title": "a wake"})


@pytest.fixture(autouse=True)
def no_warnings() -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("error", InputWarning)
        warnings.filterwarnings("ignore", "no value of Re", InputWarning)
        yield


@settings(max_examples=15, deadline=None, phases=(Phase.explicit, Phase.generate))
@given(data=st.data())
def test_labelled_fields_in_any_arrangement_are_the_plain_arrays(data: st.DataObject) -> None:
    history = data.draw(st.sampled_from([1, 2]))
    predict, x = PREDICTORS[history], frames(2, history).numpy()
    fields = labelled(x, sample=[3, 4])
    expected = predict.rollout(x, 3, {"Re": 500.0})
    single = data.draw(st.booleans())
    if single:
        fields, expected = fields.isel(sample=1), expected[1]
    if history == 1 and data.draw(st.booleans()):
        fields = fields.isel(time=-1)
    if data.draw(st.booleans()):
        fields = fields[["v", "u"]]
    is_array = data.draw(st.booleans())
    if is_array:
        fields = fields.to_array(data.draw(st.sampled_from(["channel", "variable"])))
    for axis in ("y", "x"):
        if data.draw(st.booleans()):
            fields = fields.isel({axis: slice(None, None, -1)})
    order = data.draw(st.permutations([str(dim) for dim in fields.dims]))
    fields = fields.transpose(*order)
    before = fields.copy(deep=True)

    found = predict.rollout(fields, 3, {"Re": 500.0})
    assert fields.identical(before)
    assert type(found) is type(fields)
    one, other = (found, fields) if is_array else (found["u"], fields["u"])
    assert [d for d in one.dims if d != "time"] == [d for d in other.dims if d != "time"]
    assert np.allclose(found["time"], 7.0 + 0.1 * (history - 1 + np.arange(1, 4)))
    for name in set(fields.coords) - {"time"}:
        assert found.coords[name].identical(fields.coords[name].drop_vars("time", errors="ignore"))
    assert found.attrs == fields.attrs
    if is_array:
        axis = "channel" if "channel" in found.dims else "variable"
        assert list(found[axis].values) == list(fields[axis].values)
        found = found.to_dataset(axis)
    else:
        assert list(found) == list(fields) and found["u"].attrs == fields["u"].attrs
    dims = (() if single else ("sample",)) + ("time", "y", "x")
    plain = [found[name].sortby(["y", "x"]).transpose(*dims).values for name in "uv"]
    assert np.allclose(np.stack(plain, axis=-3), expected, atol=1e-4)


NOON = np.datetime64("2024-02-29T12:00:00")


@pytest.mark.parametrize(
    ("units", "last", "expected"),
    [
        (None, 7.0, [7.1, 7.2]),
        ("ms", 7000.0, [7100.0, 7200.0]),
        ("convective times", 7.0, [7.1, 7.2]),
        (None, NOON, NOON + np.array([100, 200], "m8[ms]")),
    ],
)
def test_time_continues_in_its_own_unit(units: str | None, last: Any, expected: Any) -> None:
    fields = labelled(frames(1).numpy()).assign_coords(time=[last])
    if units is not None:
        fields["time"].attrs["units"] = units
    time = PREDICTORS[1].step(fields)["time"]
    same = np.allclose if isinstance(last, float) else np.array_equal
    assert same(time, expected) and time.attrs == fields["time"].attrs
    # PIVPy's datasets call it t.
    named = PREDICTORS[1].step(fields.rename(time="t").isel(sample=0).transpose("y", "x", "t"))
    assert same(named["t"], expected)


def test_frames_without_a_time_get_that_after_the_last_given_one() -> None:
    fields = labelled(frames(1, 2).numpy()).drop_vars("time")
    found = PREDICTORS[2].rollout(fields, 3)["time"]
    assert np.allclose(found, [0.1, 0.2, 0.3]) and found.attrs["units"] == "s"
    assert "after the last" in found.attrs["long_name"]
    blocks = PREDICTORS[2].iterate(fields.isel(sample=0), 3)
    assert np.allclose(np.concatenate([block["time"] for block in blocks]), found)
    unknown = predictor(spec=replace(SPEC, dt=None), horizon=2, fill_modes=0)
    assert "time" not in unknown.step(fields.isel(time=[1])).coords


def test_frames_in_another_rhythm_or_order_are_noticed() -> None:
    fields = labelled(frames(1, 2).numpy())
    with pytest.warns(InputWarning, match=r"0\.5 apart in time, .* time step is 0\.1"):
        PREDICTORS[2].step(fields.assign_coords(time=[0.0, 0.5]))
    counted = fields.assign_coords(time=[3.0, 4.0])
    counted.time.attrs["units"] = "frame"
    with pytest.warns(InputWarning, match="times count frames"):
        assert PREDICTORS[2].rollout(counted, 3).time.values.tolist() == [5.0, 6.0, 7.0]
    coded = fields.assign(chc=xr.ones_like(fields.u))
    with pytest.warns(InputWarning, match="mask=dataset.chc > 0"):
        PREDICTORS[2].step(coded)
    with refused("the newest last", "times that fall"):
        PREDICTORS[2].step(fields.isel(time=[1, 0]))
    with refused("numbers or datetime64"):
        PREDICTORS[2].step(fields.assign_coords(time=["a", "b"]))


def test_convertible_units_are_converted_there_and_back() -> None:
    predict, x = PREDICTORS[1], frames(2).double().numpy()
    fields = labelled(1000 * x, units="mm s-1")
    found = predict.step(fields)
    assert found["u"].attrs["units"] == "mm s-1"
    assert np.allclose(found["v"], 1000 * predict.step(x)[:, :, 1], atol=1e-3)
    filled = predict.fill(fields, np.ones(SHAPE, bool))
    assert np.allclose(filled["u"], fields["u"], rtol=1e-12)
    for other in ("m", "K", "m^2/s", "1"):
        with refused("'u'", "'m/s'", f"'{other}'"):
            predict.step(labelled(x, units=other))
    dimensionless = predictor()
    for said in ("1", "", "-", "dimensionless"):
        plain = dimensionless.step(x)[:, :, 0]
        assert np.array_equal(dimensionless.step(labelled(x, units=said))["u"], plain)


def test_coordinates_in_millimetres_are_the_same_grid() -> None:
    fields = labelled(frames().numpy())
    thousands = fields.assign_coords({axis: 1000 * fields[axis] for axis in "yx"})
    with pytest.warns(InputWarning, match="lengths divided by 1000 in x and 1000 in y"):
        PREDICTORS[1].step(thousands)
    for axis in "yx":
        thousands[axis].attrs["units"] = "mm"
    found = PREDICTORS[1].step(thousands)
    assert np.array_equal(found["u"], PREDICTORS[1].step(fields)["u"])
    assert found["x"].identical(thousands["x"])


def test_masks_by_label() -> None:
    predict, x = PREDICTORS[2], frames(3, 2).numpy()
    known = np.ones((3, 2, *SHAPE), bool)
    known[1, 0, 3:5, 6:9] = False
    known[2, :, 9, 1] = False
    holed = np.where(known[:, :, None], x, np.nan)
    expected = predict.step(holed, mask=known)
    fields = labelled(holed)
    falling = fields.isel(y=slice(None, None, -1))
    for mine, mask in [
        (fields, fields.notnull()),
        (fields, fields["u"].notnull().transpose("x", "time", "y", "sample")),
        (fields, fields.to_array("channel").notnull()),
        (falling, falling.notnull()),
        (falling, known[:, :, ::-1]),
    ]:
        found = predict.step(mine, mask=mask).sortby("y")
        assert np.array_equal(found["v"], expected[:, :, 1])
    static = xr.DataArray(known.all((0, 1)), dims=("y", "x"))
    assert np.array_equal(
        predict.step(fields, mask=static)["u"], predict.step(holed, mask=static.values)[:, :, 0]
    )
    for given_, wrong, named in [
        (fields, None, "pass a mask that is False"),
        (falling, fields.notnull(), "dimensions and coordinates of the fields"),
        (fields, fields[["u"]].notnull(), "['v'] missing"),
        (fields, fields["u"], "float32"),
    ]:
        with refused(named):
            predict.step(given_, mask=wrong)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        (lambda d: d.drop_vars("v"), ("['u', 'v']", "['u']")),
        (lambda d: d["u"], ("dimension 'channel'",)),
        (lambda d: d.expand_dims(member=[0]), ("at most one more",)),
        (lambda d: d.astype(int), ("'u'", "int64")),
        (lambda d: d.assign_coords(x=np.geomspace(1.0, 2.0, 20)), ("'x'", "fields.interp(x=")),
    ],
)
def test_ambiguous_labels_are_refused(change: Any, named: tuple[object, ...]) -> None:
    with refused(*named):
        PREDICTORS[1].step(change(labelled(frames().numpy())))
