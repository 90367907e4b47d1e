"""NumPy files: roles of arrays, orders of axes, damaged files."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pibert.data.readers import arrays, open_recordings
from pibert.data.readers.recordings import Hints, Recordings, SourceError
from tests.data.helpers import SHARED, needs_shared
from tests.helpers import refused
from tests.lookalikes.flow import T, X, Y, assert_flow, fields

AXES: dict[str, Any] = {"x": X, "y": Y, "t": T}


def saved(tmp_path: Path, hints: Hints = Hints(), /, **named: Any) -> Recordings:
    path = tmp_path / "flow.npz"
    np.savez(path, **named)
    assert arrays.recognise(path)
    return open_recordings(path, "arrays", hints)


def lone(tmp_path: Path, array: np.ndarray, hints: Hints = Hints()) -> Recordings:
    path = tmp_path / "flow.npy"
    np.save(path, array)
    assert arrays.recognise(path)
    return open_recordings(path, "arrays", hints)


@pytest.mark.parametrize("axes", ["tcyx", "tyxc", "ctyx", "yxtc", "txyc", "xyct"])
def test_a_single_array_is_read_in_the_usual_or_the_stated_order(tmp_path: Path, axes: str) -> None:
    stacked = np.stack(list(fields().values()), 1)
    array = stacked.transpose(["tcyx".index(letter) for letter in axes])
    (trajectory,) = lone(tmp_path, array, Hints(axes=axes, dx=0.1, dy=0.3, dt=0.05))
    assert trajectory.spec.channels == ("u", "v")
    assert torch.equal(trajectory.read(), torch.from_numpy(stacked))
    grid = trajectory.spec.grid
    assert (grid.dx, grid.dy, trajectory.spec.dt) == (0.1, 0.3, 0.05)
    if axes in ("tcyx", "tyxc"):
        assert torch.equal(lone(tmp_path, array)[0].read(), torch.from_numpy(stacked))


def test_flows_in_one_array_become_trajectories(tmp_path: Path) -> None:
    stacked = np.stack(list(fields().values()), 1)
    recordings = lone(tmp_path, np.stack([stacked, 2 * stacked, 3 * stacked]))
    assert recordings.names == ("flow-0", "flow-1", "flow-2")
    assert torch.equal(recordings["flow-2"].read(), torch.from_numpy(3 * stacked))
    (picture,) = lone(tmp_path, fields()["u"][2])  # a scalar keeps the name of its file
    assert picture.spec.channels == ("flow",) and picture.states.shape == (1, 1, 5, 7)


@pytest.mark.parametrize("order", ["tyx", "yxt", "txy", "xyt"])
def test_lengths_of_coordinates_determine_the_order_of_axes(tmp_path: Path, order: str) -> None:
    named = {
        name: values.transpose(["tyx".index(letter) for letter in order])
        for name, values in fields().items()
    }
    assert_flow(saved(tmp_path, **named, **AXES)[0])


def test_descending_axes_are_flipped(tmp_path: Path) -> None:
    flow = fields(X[::-1], Y[::-1])
    outlier = np.zeros((6, 5, 7), bool)
    outlier[3, 0, 0] = True  # the top right corner: rows run downward, columns leftward
    body = np.zeros((5, 7), bool)
    body[4, 1] = True
    named = {"x": X[::-1], "y": Y[::-1], "t": T, "outlier": outlier, "body": body}
    recordings = saved(tmp_path, **flow, **named)
    assert_flow(recordings[0])
    assert recordings[0].known(slice(3, 4))[0].logical_not().nonzero().tolist() == [[0, 5], [4, 6]]
    assert sum("flipped" in note for note in recordings.notes) == 2


def test_axes_out_of_order_are_sorted(tmp_path: Path) -> None:
    rows, columns = np.array([2, 0, 4, 1, 3]), np.array([5, 1, 6, 0, 2, 4, 3])
    flow = fields(X[columns], Y[rows])
    outlier = np.zeros((6, 5, 7), bool)
    outlier[3, 2, 0] = True  # row 4, column 5
    recordings = saved(tmp_path, **flow, x=X[columns], y=Y[rows], t=T, outlier=outlier)
    assert_flow(recordings[0])
    assert recordings[0].known(slice(3, 4))[0].logical_not().nonzero().tolist() == [[4, 5]]
    assert sum("sorted" in note for note in recordings.notes) == 2


def test_coordinates_may_be_rows_or_columns(tmp_path: Path) -> None:
    placed = {"x": X[None], "y": Y[:, None], "t": T[:, None]}
    assert_flow(saved(tmp_path, **fields(), **placed)[0])


def test_meshes_in_either_order_are_separated_into_axes(tmp_path: Path) -> None:
    x, y = np.meshgrid(X, Y)
    assert_flow(saved(tmp_path, **fields(), x=x, y=y, t=T)[0])
    turned = {name: values.transpose(0, 2, 1) for name, values in fields().items()}
    recordings = saved(tmp_path, **turned, x=x.T, y=y.T, t=T)
    assert_flow(recordings[0])
    assert not isinstance(recordings[0].states, torch.Tensor)


def test_units_steps_and_parameters_are_found_by_name(tmp_path: Path) -> None:
    packed = np.stack(list(fields().values()), 1).astype(np.float16)
    named = {"uv": packed, "x_mm": X, "y_mm": Y, "dt_s": 0.05, "Re": 150.0}
    (trajectory,) = saved(tmp_path, **named)
    assert (trajectory.length_unit, trajectory.time_unit) == ("mm", "s")
    assert trajectory.parameters == {"Re": 150.0}
    assert trajectory.spec.dt == 0.05
    assert torch.equal(trajectory.read(), torch.from_numpy(packed.astype(np.float32)))


@pytest.mark.parametrize("missing", ["x", "y"])
def test_coordinates_along_one_axis_need_the_spacing_of_the_other(
    tmp_path: Path, missing: str
) -> None:
    named = {"x_mm": X, "y_mm": Y}
    del named[f"{missing}_mm"]
    with pytest.raises(SourceError, match=rf"not along {missing}; .*\(--d{missing}\)"):
        saved(tmp_path, **fields(), **named)
    with pytest.raises(SourceError, match=rf"not along {missing}"):
        saved(tmp_path, Hints(dy=0.5) if missing == "x" else Hints(dx=0.5), **fields())
    hints = Hints(dx=0.25) if missing == "x" else Hints(dy=0.25)
    grid = saved(tmp_path, hints, **fields(), **named)[0].spec.grid
    assert (grid.dx if missing == "x" else grid.dy) == 0.25


@pytest.mark.parametrize(
    ("name", "inverted"), [("fluid_mask", True), ("body", False), ("mask", False), ("mask", True)]
)
def test_a_body_is_found_whichever_side_its_mask_marks(
    tmp_path: Path, name: str, inverted: bool
) -> None:
    body = np.zeros((5, 7), bool)
    body[1:3, 2] = True
    flow = {key: np.where(body, 0, values) for key, values in fields().items()}
    (trajectory,) = saved(tmp_path, **flow, **AXES, **{name: body != inverted})
    assert isinstance(trajectory.body, torch.Tensor)
    assert torch.equal(trajectory.body, torch.from_numpy(body))


def test_an_ambiguous_mask_is_not_used(tmp_path: Path) -> None:
    recordings = saved(tmp_path, **fields(), **AXES, mask=np.eye(5, 7, dtype=bool))
    assert recordings[0].body is None
    assert any("'mask' was not used" in note for note in recordings.notes)


def test_a_mask_of_the_wrong_shape_is_refused_unless_the_user_names_the_arrays(
    tmp_path: Path,
) -> None:
    flow = fields()
    wrong = {**flow, **AXES, "valid": np.ones((len(T), 4, 7), bool)}
    with refused("valid", "4, 7)", "5, 7)", "--channels", error=SourceError):
        saved(tmp_path, **wrong)
    with pytest.raises(SourceError, match="valid"):
        saved(tmp_path, Hints(channels={"u": "u", "v": "v", "valid": "valid"}), **wrong)
    recordings = saved(tmp_path, Hints(channels={"u": "u", "v": "v"}), **wrong)
    assert any("valid" in note for note in recordings.notes)


def test_the_user_selects_channels(tmp_path: Path) -> None:
    flow = fields()
    named = {"a": flow["u"], "b": flow["v"], "c": flow["u"]}
    recordings = saved(tmp_path, Hints(channels={"u": "a", "v": "b"}), **named, **AXES)
    assert_flow(recordings[0])
    assert any("not read: c" in note for note in recordings.notes)
    packed = {"uv": np.stack([flow["v"], flow["u"]], 1)}
    swapped = Hints(channels={"u": "uv:1", "v": "uv:0"})
    assert_flow(saved(tmp_path, swapped, **packed, **AXES)[0])
    numbered = Hints(channels={"u": "1", "v": "0"})
    assert_flow(saved(tmp_path, numbered, data=packed["uv"], **AXES)[0])


def test_modes_times_coefficients_are_summed(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    modes, coef = rng.normal(size=(3, 2, 5, 7)), rng.normal(size=(6, 3))
    snapshot = rng.normal(size=(3, 5, 7))
    recordings = saved(tmp_path, modes=modes, coef=coef, snapshot_uvp=snapshot, **AXES)
    (trajectory,) = recordings
    whole = np.einsum("tr,rcyx->tcyx", coef, modes)
    np.testing.assert_allclose(trajectory.read().numpy(), whole, rtol=1e-5, atol=1e-6)
    some = trajectory.read(slice(1, 6, 2), [1]).numpy()
    np.testing.assert_allclose(some, whole[1::2, 1:], rtol=1e-5, atol=1e-6)
    assert any("snapshot_uvp" in note for note in recordings.notes)


U, V = fields().values()


@pytest.mark.parametrize(
    ("named", "hints", "problem"),
    [
        ({"first": U, "second": V}, {}, r"first float32 \(6, 5, 7\); second"),
        ({"u": U} | AXES, {}, "'u' but no 'v'"),
        ({"u": U, "v": V} | AXES | {"x": X[1:]}, {}, "'u': the order of the axes"),
        ({"uv": np.zeros((6, 2, 5, 7))}, {"channels": {"u": "uv:2"}}, "no channel 2"),
        ({"u": U, "v": V} | AXES | {"t": T[::-1]}, {}, "6 increasing times"),
        ({"u": U, "v": V, "x_mm": X, "y_cm": Y}, {}, "x and y are in cm and mm"),
        ({"u": np.array([{}, {}], dtype=object)}, {}, "'u' holds Python objects"),
    ],
)
def test_arrays_without_a_flow_are_refused(
    tmp_path: Path, named: dict[str, Any], hints: dict[str, Any], problem: str
) -> None:
    with pytest.raises(SourceError, match=problem):
        saved(tmp_path, Hints(**hints), **named)


def test_objects_and_damaged_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="never read"):
        lone(tmp_path, np.array([{}, {}], dtype=object))
    saved(tmp_path, **fields(), **AXES)
    whole = (tmp_path / "flow.npz").read_bytes()
    (tmp_path / "cut.npz").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "text.npz").write_text("x y u v\n")
    (tmp_path / "text.npy").write_text("x y u v\n")
    for name in ("cut.npz", "text.npz", "text.npy", "absent.npy"):
        with pytest.raises(SourceError, match=name):
            arrays.open_recordings(tmp_path / name)
    damaged = bytearray(whole)
    start = whole.index(fields()["u"].tobytes()[:64])
    damaged[start : start + 8] = bytes(8)
    (tmp_path / "flow.npz").write_bytes(damaged)
    with pytest.raises(SourceError, match="flow.npz"):
        arrays.open_recordings(tmp_path / "flow.npz")[0].read()


@needs_shared
def test_the_measured_jet_opens_with_its_units_and_outliers() -> None:
    path = SHARED / "jet_piv_train.npz"
    (trajectory,) = arrays.open_recordings(path)
    assert trajectory.states.shape == (1400, 2, 60, 114)
    assert (trajectory.length_unit, trajectory.time_unit) == ("mm", "s")
    assert trajectory.spec.dt == pytest.approx(5e-4)
    assert trajectory.spec.grid.dx == pytest.approx(1 / 3, rel=1e-4)
    with np.load(path, allow_pickle=False) as archive:
        outlier, uv = archive["outlier"][120:340], archive["uv"][:2]
    assert outlier.any()
    assert np.array_equal(trajectory.known(slice(120, 340)).numpy(), ~outlier)
    assert np.array_equal(trajectory.read(slice(0, 2)).numpy(), uv.astype(np.float32))


def test_frames_in_separate_arrays_are_not_components(tmp_path: Path) -> None:
    flow = fields()
    numbered = {f"{name}_{i}": flow[name][i] for name in "uv" for i in (0, 1, 2)}
    with refused("u_0 float32 (5, 7)", "stack", error=SourceError):
        saved(tmp_path, **numbered, x=X, y=Y)
    (first,) = saved(tmp_path, Hints(channels={"u": "u_1", "v": "v_1"}), **numbered, x=X, y=Y)
    wanted = torch.from_numpy(np.stack([flow["u"][1], flow["v"][1]]))
    assert torch.equal(first.read()[0], wanted)


def test_the_user_names_coordinates_and_flags(tmp_path: Path) -> None:
    good = np.ones((6, 5, 7), bool)
    good[2, 3, 4] = False
    hints = Hints(channels={"x": "east", "y": "north", "valid": "good"})
    (trajectory,) = saved(tmp_path, hints, **fields(), east=X, north=Y, t=T, good=good)
    assert (~trajectory.known()).nonzero().tolist() == [[2, 3, 4]]
    grid = trajectory.spec.grid
    assert (grid.dx, grid.dy) == pytest.approx((X[1] - X[0], Y[1] - Y[0]))
    assert trajectory.spec.channels == ("u", "v")


def test_a_folder_or_pattern_of_archives_is_a_set_of_flows(tmp_path: Path) -> None:
    runs = [tmp_path / "runs" / name for name in ("a", "b")]
    for number, run in enumerate(runs):
        run.mkdir(parents=True)
        named: dict[str, Any] = {name: field + number for name, field in fields().items()}
        np.savez(run / "flow.npz", **AXES, **named)
    joined = open_recordings(tmp_path / "runs" / "*" / "flow.npz")
    assert joined.kind == "arrays" and joined.names == ("a-flow", "b-flow")
    assert_flow(joined["a-flow"])
    assert torch.allclose(joined[1].read(), joined[0].read() + 1)
    assert open_recordings(runs[0]).names == ("flow",)
    shutil.copy(runs[0] / "flow.npz", runs[0] / "flow.NPZ")
    with pytest.raises(SourceError, match="two flows are called 'flow'; rename"):
        open_recordings(runs[0])
    (runs[0] / "notes.txt").write_text("about")
    with pytest.raises(SourceError, match=r"a/\*\.npz"):
        open_recordings(runs[0])


def test_an_order_of_axes_that_nothing_decides_is_noted(tmp_path: Path) -> None:
    def noted(**named: Any) -> bool:
        return any("were read as tyx" in note for note in saved(tmp_path, **named).notes)

    square = {name: values[:, :, :5] for name, values in fields().items()}
    assert not noted(**fields(), **AXES)
    assert noted(**square, x=X[:5], y=Y, t=T)
    assert noted(**fields(), dx=0.1, dy=0.3, dt=0.05)
    x, y = np.meshgrid(X[:5], Y)
    assert not noted(**square, x=x, y=y, t=T)
    assert not saved(tmp_path, Hints(axes="txy"), **square, x=X[:5], y=Y, t=T).notes[1:]


@pytest.mark.parametrize("code", [-9999.0, -99999.0, 1e20, np.float32(1e30)])
@pytest.mark.parametrize("scattered", [False, True])
def test_codes_of_missing_values_are_missing_and_noted(
    tmp_path: Path, code: float, scattered: bool
) -> None:
    flow, (x, y) = fields(), np.meshgrid(X, Y)
    flow["u"][[0, 5], 2, 3] = code
    flow["u"][4] = code  # a whole frame
    named = {**flow, **AXES}
    if scattered:
        named = {name: values.reshape(6, -1) for name, values in flow.items()}
        named |= {"x": x.ravel(), "y": y.ravel(), "t": T}
    recordings = saved(tmp_path, **named)
    (trajectory,) = recordings
    known = trajectory.known()
    assert not known[4].any()
    assert (~known[[0, 1, 2, 3, 5]]).nonzero().tolist() == [[0, 2, 3], [4, 2, 3]]
    assert any(f"u {code:g}" in note for note in recordings.notes)
    torch.testing.assert_close(trajectory.read()[1:4, 0], torch.from_numpy(flow["u"][1:4]))


def test_values_that_look_like_codes_are_kept_among_values_of_their_size(tmp_path: Path) -> None:
    p = np.linspace(-12000, 4000, fields()["u"].size).astype("f4").reshape(fields()["u"].shape)
    p[:, 2, 3], p[:, 0, 0] = -9999, -999
    recordings = saved(tmp_path, p=p, **fields(), **AXES)
    assert torch.equal(recordings[0].read()[:, 2], torch.from_numpy(p))
    assert not recordings.notes


def test_steps_fitted_to_rounded_numbers_are_noted(tmp_path: Path) -> None:
    rounded = np.round(np.arange(6) / 15, 2)
    recordings = saved(tmp_path, **fields(), x=X, y=Y, t=rounded)
    assert recordings[0].spec.dt == pytest.approx(1 / 15, rel=0.01)
    assert any("the times look rounded" in note for note in recordings.notes)
    recordings = saved(tmp_path, **fields(), x=np.round(np.arange(7) / 15, 2), y=Y, t=T)
    assert recordings[0].spec.grid.dx == pytest.approx(1 / 15, rel=0.01)
    assert any("the positions of columns look rounded" in note for note in recordings.notes)
