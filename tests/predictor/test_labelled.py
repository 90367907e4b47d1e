"""xarray in and out: the labels decide, and the numbers are those of plain arrays."""

import sys
import warnings
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from pibert.predictor import InputWarning
from tests.helpers import tiny_spec
from tests.predictor.small import SHAPE, frames, predictor

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


def test_blocks_go_on_in_time_where_the_last_one_ended() -> None:
    predict, x = PREDICTORS[2], frames(2, 2).numpy()
    fields = labelled(x)
    blocks = list(predict.iterate(fields, 5))
    assert [block.sizes["time"] for block in blocks] == [2, 2, 1]
    assert xr.concat(blocks, "time").equals(predict.rollout(fields, 5))
    assert predict.step(fields).equals(blocks[0])


@pytest.mark.parametrize("history", [1, 2])
def test_times_may_be_called_t(history: int) -> None:
    """PIVPy's datasets have the dimensions y, x and t."""
    predict, x = PREDICTORS[history], frames(1, history).numpy()
    fields = labelled(x).isel(sample=0)
    expected = predict.rollout(fields, 3).rename(time="t")
    named = fields.rename(time="t").transpose("y", "x", "t")
    assert predict.rollout(named, 3).transpose(*expected.u.dims).identical(expected)
    if history == 1:
        assert predict.rollout(named.isel(t=-1), 3).t.values.tolist() == expected.t.values.tolist()


def test_times_in_frames_are_numbered_on() -> None:
    fields = labelled(frames(1, 2).numpy(), time=[3.0, 4.0])
    fields.time.attrs["units"] = "frame"
    with pytest.warns(InputWarning, match="times count frames"):
        assert PREDICTORS[2].rollout(fields, 3).time.values.tolist() == [5.0, 6.0, 7.0]


def test_choice_codes_without_a_mask_are_told() -> None:
    fields = labelled(frames(1, 1).numpy())
    fields["chc"] = xr.ones_like(fields.u)
    with pytest.warns(InputWarning, match="mask=dataset.chc > 0"):
        PREDICTORS[1].step(fields)
    PREDICTORS[1].step(fields, mask=fields.chc > 0)


@pytest.mark.parametrize(
    ("units", "last", "expected"),
    [
        (None, 7.0, [7.1, 7.2]),
        ("s", 7.0, [7.1, 7.2]),
        ("ms", 7000.0, [7100.0, 7200.0]),
        ("convective times", 7.0, [7.1, 7.2]),
        (
            None,
            np.datetime64("2024-02-29T12:00:00"),
            np.datetime64("2024-02-29T12:00:00") + np.array([100, 200], "m8[ms]"),
        ),
    ],
)
def test_time_goes_on_in_its_own_unit(units: str | None, last: Any, expected: Any) -> None:
    fields = labelled(frames(1).numpy()).assign_coords(time=[last])
    if units is not None:
        fields["time"].attrs["units"] = units
    time = PREDICTORS[1].step(fields)["time"]
    if isinstance(last, float):
        assert np.allclose(time, expected)
    else:
        assert np.array_equal(time, expected)
    assert time.attrs == fields["time"].attrs


def test_times_that_are_not_known_are_not_invented() -> None:
    fields = labelled(frames(1).numpy())
    assert "time" not in PREDICTORS[1].step(fields.drop_vars("time")).coords
    stepless = predictor(spec=replace(SPEC, dt=None), history=2)
    assert np.allclose(stepless.step(labelled(frames(1, 2).numpy()))["time"], [7.2])
    alone = predictor(spec=replace(SPEC, dt=None))
    assert "time" not in alone.step(fields).coords


def test_frames_in_another_rhythm_or_order_are_noticed() -> None:
    fields = labelled(frames(1, 2).numpy())
    with pytest.warns(InputWarning, match=r"are 0\.5 apart in time where the model steps by 0\.1"):
        PREDICTORS[2].step(fields.assign_coords(time=[0.0, 0.5]))
    with pytest.raises(ValueError, match="the newest last, found times that fall"):
        PREDICTORS[2].step(fields.isel(time=[1, 0]))
    with pytest.raises(ValueError, match="numbers or datetime64, found"):
        PREDICTORS[2].step(fields.assign_coords(time=["a", "b"]))


def test_units_that_can_be_converted_are_and_come_back_as_they_were() -> None:
    predict, x = PREDICTORS[1], frames(2).double().numpy()
    expected = predict.step(x)
    fields = labelled(1000 * x, units="mm s-1")
    found = predict.step(fields)
    assert found["u"].attrs["units"] == "mm s-1"
    assert np.allclose(found["v"], 1000 * expected[:, :, 1], atol=1e-3)
    filled = predict.fill(fields, np.ones(SHAPE, bool))
    assert np.allclose(filled["u"], fields["u"], rtol=1e-12)
    for other in ("m", "K", "m^2/s", "1"):
        with pytest.raises(
            ValueError, match=rf"'u' in 'm/s', .* found '{other.replace('^', '.')}'"
        ):
            predict.step(labelled(x, units=other))


def test_a_model_without_units_takes_the_ways_to_say_so() -> None:
    predict, x = predictor(), frames().numpy()
    for said in ("1", "", "-", "dimensionless"):
        assert np.array_equal(predict.step(labelled(x, units=said))["u"], predict.step(x)[:, :, 0])
    with pytest.raises(ValueError, match="'u' in '1', the unit of the model, found 'm/s'"):
        predict.step(labelled(x))


def test_coordinates_in_millimetres_are_the_same_grid() -> None:
    fields = labelled(frames().numpy())
    small = fields.assign_coords({axis: 1000 * fields[axis] for axis in "yx"})
    for axis in "yx":
        small[axis].attrs["units"] = "mm"
    found = PREDICTORS[1].step(small)
    assert np.array_equal(found["u"], PREDICTORS[1].step(fields)["u"])
    assert found["x"].identical(small["x"])
    with pytest.warns(InputWarning, match="lengths divided by 1000 in x and 1000 in y"):
        PREDICTORS[1].step(fields.assign_coords({axis: 1000 * fields[axis] for axis in "yx"}))
    small["x"].attrs["units"] = "degrees_east"
    with pytest.raises(ValueError, match="'x' in a unit of length.*'degrees_east'"):
        PREDICTORS[1].step(small)


def test_another_grid_is_told_by_coordinates() -> None:
    rows, columns = 18, 40
    fields = labelled(frames().numpy()).interp(
        y=np.linspace(-1.0, 1.2, rows), x=np.linspace(5.0, 10.7, columns)
    )
    with pytest.warns(InputWarning, match=r"18 x 40 points .* model's 12 x 20") as caught:
        found = PREDICTORS[1].step(fields)
    assert "not given" not in str(caught[0].message) and "another scale" in str(caught[0].message)
    assert found.sizes == {"sample": 3, "time": 2, "y": rows, "x": columns}
    assert found["y"].identical(fields["y"])


def test_uneven_coordinates_are_refused() -> None:
    fields = labelled(frames().numpy())
    with pytest.raises(ValueError, match=r"evenly spaced coordinate 'x'.*fields.interp\(x="):
        PREDICTORS[1].step(fields.assign_coords(x=np.geomspace(1.0, 2.0, 20)))


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
        (fields, known),
        (falling, falling.notnull()),
        (falling, known[:, :, ::-1]),
    ]:
        found = predict.step(mine, mask=mask).sortby("y")
        assert np.array_equal(found["v"], expected[:, :, 1])
    static = xr.DataArray(known.all((0, 1)), dims=("y", "x"))
    assert np.array_equal(
        predict.step(fields, mask=static)["u"], predict.step(holed, mask=static.values)[:, :, 0]
    )
    with pytest.raises(ValueError, match=r"pass a mask that is False"):
        predict.step(fields)
    with pytest.raises(ValueError, match="a mask over dimensions and coordinates of the fields"):
        predict.step(falling, mask=fields.notnull())
    with pytest.raises(ValueError, match=r"\['v'\] missing"):
        predict.step(fields, mask=fields[["u"]].notnull())
    with pytest.raises(ValueError, match="the mask in bool, found float32"):
        predict.step(fields, mask=fields["u"])


def test_filled_fields_are_those_that_were_given() -> None:
    predict, x = PREDICTORS[2], frames(3, 2).numpy()
    known = np.ones((3, *SHAPE), bool)
    known[1, 3:5, 6:9] = False
    fields = labelled(np.where(known[:, None, None], x, np.nan), run=("time", ["a", "b"]))
    found = predict.fill(fields, fields.notnull())
    kept = fields.notnull()
    assert found.where(kept).identical(fields)
    assert bool(found.notnull().to_array().all())
    frame = labelled(frames(1).numpy()).isel(time=0, sample=0)
    assert PREDICTORS[1].fill(frame, frame.notnull()).identical(frame)


def test_consistency_is_labelled_by_sample() -> None:
    x = frames(3, 2).numpy()
    fields = labelled(x, sample=["a", "b", "c"])
    found = PREDICTORS[2].consistency(fields)
    assert found.dims == ("sample",) and list(found["sample"].values) == ["a", "b", "c"]
    assert np.array_equal(found, PREDICTORS[2].consistency(x))
    assert PREDICTORS[2].consistency(fields.isel(sample=0)).shape == ()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda d: d.drop_vars("v"), r"channels \['u', 'v'\], found \['u'\]: \['v'\] missing"),
        (lambda d: d["u"], "a DataArray with a dimension 'channel', found"),
        (lambda d: d.to_array("channel").sel(channel=["u"]), r"\['v'\] missing"),
        (
            lambda d: d.to_array("channel").drop_vars("channel")[[0, 1, 1]],
            r"2 channels \['u', 'v'\] along 'channel', found 3",
        ),
        (lambda d: d.rename(y="z"), "dimensions y, x, time .* and at most one more"),
        (lambda d: d.expand_dims(member=[0]), "at most one more for samples"),
        (lambda d: d.assign(v=d["v"].isel(sample=0)), "the same for all, found {'u'"),
        (lambda d: d.astype(int), "channel 'u' in float32 or float64, found int64"),
        (lambda d: d.isel(sample=slice(0, 0)), r"found \(0, 1, 2, 12, 20\)"),
        (lambda d: d.isel(time=[0, 0]).drop_vars("time"), r"found \(3, 2, 2, 12, 20\)"),
    ],
)
def test_what_labels_cannot_tell_is_refused(change: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        PREDICTORS[1].step(change(labelled(frames().numpy())))


def test_channels_without_labels_are_in_the_order_of_the_spec() -> None:
    x = frames().numpy()
    fields = labelled(x).to_array("channel").drop_vars("channel")
    found = PREDICTORS[1].step(fields)
    assert found.dims == fields.dims
    assert np.array_equal(found.isel(channel=1), PREDICTORS[1].step(x)[:, :, 1])


def test_channels_of_two_precisions_take_the_higher() -> None:
    fields = labelled(frames().numpy())
    found = PREDICTORS[1].step(fields.assign(v=fields["v"].astype(np.float64)))
    assert found["u"].dtype == found["v"].dtype == np.float64


def test_plain_arrays_do_not_need_xarray(monkeypatch: pytest.MonkeyPatch) -> None:
    x = frames()
    expected = PREDICTORS[1].step(x)
    monkeypatch.setitem(sys.modules, "xarray", None)  # an import of it would fail
    assert torch.equal(PREDICTORS[1].step(x), expected)
