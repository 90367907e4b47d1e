"""NumPy files: which array is what, in which order, and what is refused."""

import pickle
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pibert.data.format import Reader, check, write
from pibert.data.sources import arrays, open_recordings
from pibert.data.sources.recordings import Hints, Recordings, SourceError
from tests.lookalikes.flow import T, X, Y, assert_flow, fields

SHARED = Path(__file__).parents[3] / ".." / "shared" / "data"
needs_shared = pytest.mark.skipif(
    not SHARED.is_dir(), reason="the shared sample data are not next to this checkout"
)
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
def test_a_lone_array_is_read_in_the_order_that_the_user_states(tmp_path: Path, axes: str) -> None:
    stacked = np.stack(list(fields().values()), 1)
    array = stacked.transpose(["tcyx".index(letter) for letter in axes])
    hints = Hints(axes=axes, dx=0.1, dy=0.3, dt=0.05)
    (trajectory,) = lone(tmp_path, array, hints)
    assert trajectory.spec.channels == ("u", "v")
    assert torch.equal(trajectory.read(), torch.from_numpy(stacked))
    assert (trajectory.spec.grid.dx, trajectory.spec.grid.dy, trajectory.spec.dt) == (
        0.1,
        0.3,
        0.05,
    )


@pytest.mark.parametrize("axes", ["tcyx", "tyxc"])
def test_the_usual_orders_of_a_lone_array_need_no_words(tmp_path: Path, axes: str) -> None:
    stacked = np.stack(list(fields().values()), 1)
    recordings = lone(tmp_path, stacked.transpose(["tcyx".index(letter) for letter in axes]))
    assert torch.equal(recordings[0].read(), torch.from_numpy(stacked))
    assert any("taken for u, v" in remark for remark in recordings.remarks)
    assert any("has no x" in remark for remark in recordings.remarks)


def test_a_lone_scalar_keeps_the_name_of_its_file(tmp_path: Path) -> None:
    (movie,) = lone(tmp_path, fields()["u"])
    assert movie.spec.channels == ("flow",) and movie.states.shape == (6, 1, 5, 7)
    (picture,) = lone(tmp_path, fields()["u"][2])
    assert picture.states.shape == (1, 1, 5, 7)
    assert torch.equal(picture.read()[0, 0], torch.from_numpy(fields()["u"][2]))


def test_a_set_of_flows_in_one_array_gives_one_trajectory_each(tmp_path: Path) -> None:
    stacked = np.stack(list(fields().values()), 1)
    array = np.stack([stacked, 2 * stacked, 3 * stacked])
    recordings = lone(tmp_path, array)
    assert recordings.names == ("flow-0", "flow-1", "flow-2")
    assert torch.equal(recordings["flow-2"].read(), torch.from_numpy(3 * stacked))


def test_a_lone_array_is_mapped_and_not_loaded(tmp_path: Path) -> None:
    path = tmp_path / "long.npy"
    np.lib.format.open_memmap(path, "w+", np.float32, (2000, 2, 40, 50)).flush()  # 32 MB
    tracemalloc.start()
    window = arrays.open_recordings(path)[0].read(slice(1000, 1010))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert window.shape == (10, 2, 40, 50)
    assert peak < 4e6


@pytest.mark.parametrize("order", ["tyx", "yxt", "txy", "xyt"])
def test_the_lengths_of_the_coordinates_tell_the_order_of_the_axes(
    tmp_path: Path, order: str
) -> None:
    named = {
        name: values.transpose(["tyx".index(letter) for letter in order])
        for name, values in fields().items()
    }
    assert_flow(saved(tmp_path, **named, **AXES)[0])


def test_axes_that_fall_are_flipped_when_they_are_read(tmp_path: Path) -> None:
    flow = fields(X[::-1], Y[::-1])
    outlier = np.zeros((6, 5, 7), bool)
    outlier[3, 0, 0] = True  # the top right corner: rows run downward, columns leftward
    body = np.zeros((5, 7), bool)
    body[4, 1] = True
    named = {"x": X[::-1], "y": Y[::-1], "t": T, "outlier": outlier, "body": body}
    recordings = saved(tmp_path, **flow, **named)
    assert_flow(recordings[0])
    assert recordings[0].known(slice(3, 4))[0].logical_not().nonzero().tolist() == [[0, 5], [4, 6]]
    assert sum("flipped" in remark for remark in recordings.remarks) == 2


@pytest.mark.parametrize("falling", ["x", "y"])
def test_one_axis_may_fall(tmp_path: Path, falling: str) -> None:
    axes = AXES | {falling: AXES[falling][::-1]}
    recordings = saved(tmp_path, **fields(axes["x"], axes["y"]), **axes)
    assert_flow(recordings[0])
    assert sum("flipped" in remark for remark in recordings.remarks) == 1


def test_meshes_tell_the_order_of_the_axes(tmp_path: Path) -> None:
    x, y = np.meshgrid(X, Y)
    last = {name: values.transpose(1, 2, 0) for name, values in fields().items()}
    assert_flow(saved(tmp_path, **last, x=x, y=y, dt=0.05)[0])


def test_meshes_in_either_order_are_the_axes_that_they_are_made_of(tmp_path: Path) -> None:
    x, y = np.meshgrid(X, Y)
    assert_flow(saved(tmp_path, **fields(), x=x, y=y, t=T)[0])
    turned = {name: values.transpose(0, 2, 1) for name, values in fields().items()}
    recordings = saved(tmp_path, **turned, x=x.T, y=y.T, t=T)
    assert_flow(recordings[0])
    assert any("x first" in remark for remark in recordings.remarks)
    assert not isinstance(recordings[0].states, torch.Tensor)


def test_points_and_uneven_axes_come_onto_a_uniform_grid(tmp_path: Path) -> None:
    x, y = np.meshgrid(X, Y)
    listed = {name: values.reshape(6, -1) for name, values in fields().items()}
    order = np.random.default_rng(0).permutation(35)
    shuffled = {name: values[:, order] for name, values in listed.items()}
    points = {"x": x.reshape(-1)[order], "y": y.reshape(-1)[order], "t": T}
    assert_flow(saved(tmp_path, **shuffled, **points)[0])
    uneven = np.array([-1.0, -0.95, -0.8, -0.7, -0.6, -0.5, -0.4])
    recordings = saved(tmp_path, **fields(uneven), x=uneven, y=Y, t=T)
    assert_flow(recordings[0])  # affine in x: the interpolation is exact
    assert any("not uniform" in remark for remark in recordings.remarks)


def test_units_steps_and_parameters_are_found_by_name(tmp_path: Path) -> None:
    packed = np.stack(list(fields().values()), 1).astype(np.float16)
    named = {"uv": packed, "x_mm": X, "y_mm": Y, "dt_s": 0.05, "Re": 150.0}
    (trajectory,) = saved(tmp_path, **named)
    assert (trajectory.length_unit, trajectory.time_unit) == ("mm", "s")
    assert trajectory.parameters == {"Re": 150.0}
    assert trajectory.spec.dt == 0.05
    assert torch.equal(trajectory.read(), torch.from_numpy(packed.astype(np.float32)))


@pytest.mark.parametrize("missing", ["x", "y"])
def test_coordinates_of_one_axis_alone_need_the_spacing_of_the_other(
    tmp_path: Path, missing: str
) -> None:
    named = {"x_mm": X, "y_mm": Y}
    del named[f"{missing}_mm"]
    with pytest.raises(SourceError, match=rf"not along {missing}; .*\(--d{missing}\)"):
        saved(tmp_path, **fields(), **named)
    hints = Hints(dx=0.25) if missing == "x" else Hints(dy=0.25)
    grid = saved(tmp_path, hints, **fields(), **named)[0].spec.grid
    assert (grid.dx if missing == "x" else grid.dy) == 0.25


@pytest.mark.parametrize("missing", ["x", "y"])
def test_a_stated_spacing_of_one_axis_alone_is_refused(tmp_path: Path, missing: str) -> None:
    hints = Hints(dy=0.5) if missing == "x" else Hints(dx=0.5)
    with pytest.raises(SourceError, match=rf"not along {missing}; .*\(--d{missing}\)"):
        saved(tmp_path, hints, **fields())


def test_coordinates_in_two_units_are_refused(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="different units, x_mm in mm, y_cm in cm"):
        saved(tmp_path, **fields(), x_mm=X, y_cm=Y)


def test_values_that_are_not_finite_are_not_valid(tmp_path: Path) -> None:
    flow = fields()
    flow["v"][2, 1, 3] = np.nan
    (trajectory,) = saved(tmp_path, **flow, **AXES)
    assert (~trajectory.known()).nonzero().tolist() == [[2, 1, 3]]
    write(tmp_path / "flow.h5", [trajectory])
    check(tmp_path / "flow.h5")
    assert torch.equal(Reader(tmp_path / "flow.h5")[0].known(), trajectory.known())


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


def test_a_mask_that_may_mark_either_side_is_left_alone_in_words(tmp_path: Path) -> None:
    recordings = saved(tmp_path, **fields(), **AXES, mask=np.eye(5, 7, dtype=bool))
    assert recordings[0].body is None
    assert any("'mask' was not used" in remark for remark in recordings.remarks)


def test_channels_that_the_user_names_are_taken(tmp_path: Path) -> None:
    flow = fields()
    named = {"a": flow["u"], "b": flow["v"], "c": flow["u"]}
    recordings = saved(tmp_path, Hints(channels={"u": "a", "v": "b"}), **named, **AXES)
    assert_flow(recordings[0])
    assert any("not read: c" in remark for remark in recordings.remarks)
    packed = {"uv": np.stack([flow["v"], flow["u"]], 1)}
    swapped = Hints(channels={"u": "uv:1", "v": "uv:0"})
    assert_flow(saved(tmp_path, swapped, **packed, **AXES)[0])
    numbered = Hints(channels={"u": "1", "v": "0"})
    assert_flow(saved(tmp_path, numbered, data=packed["uv"], **AXES)[0])


def test_modes_and_coefficients_are_added_up_frame_by_frame(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    modes, coef = rng.normal(size=(3, 2, 5, 7)), rng.normal(size=(6, 3))
    snapshot = rng.normal(size=(3, 5, 7))
    recordings = saved(tmp_path, modes=modes, coef=coef, snapshot_uvp=snapshot, **AXES)
    (trajectory,) = recordings
    whole = np.einsum("tr,rcyx->tcyx", coef, modes)
    np.testing.assert_allclose(trajectory.read().numpy(), whole, rtol=1e-5, atol=1e-6)
    part = trajectory.read(slice(1, 6, 2), [1]).numpy()
    np.testing.assert_allclose(part, whole[1::2, 1:], rtol=1e-5, atol=1e-6)
    assert any("snapshot_uvp" in remark for remark in recordings.remarks)


def test_recordings_can_go_to_worker_processes(tmp_path: Path) -> None:
    recordings = saved(tmp_path, **fields(), **AXES)
    before = len(pickle.dumps(recordings))
    recordings[0].read()
    text = pickle.dumps(recordings)
    assert len(text) < before + 200  # the arrays that were read stay behind
    assert_flow(pickle.loads(text)[0])


def test_what_is_there_is_listed_where_nothing_is_found(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"first float32 \(6, 5, 7\); second"):
        saved(tmp_path, first=fields()["u"], second=fields()["v"])
    with pytest.raises(SourceError, match="there is 'u' but no 'v'"):
        saved(tmp_path, u=fields()["u"], **AXES)
    with pytest.raises(SourceError, match=r"differ in shape, \(6, 5, 7\) and \(5, 5, 7\)"):
        saved(tmp_path, u=fields()["u"], v=fields()["v"][1:])
    with pytest.raises(SourceError, match="'u': the order of the axes is not clear"):
        saved(tmp_path, **fields(), x=X[1:], y=Y, t=T)
    with pytest.raises(SourceError, match="should be 'w'"):
        saved(tmp_path, Hints(channels={"u": "w"}), **fields())
    with pytest.raises(SourceError, match="the axes 'tcyx' do not fit"):
        saved(tmp_path, Hints(axes="tcyx"), **fields(), x=X[1:], y=Y, t=T)
    with pytest.raises(SourceError, match="has no channel 2"):
        saved(tmp_path, Hints(channels={"u": "uv:2"}), uv=np.zeros((6, 2, 5, 7)))
    with pytest.raises(SourceError, match="axes must be a word"):
        saved(tmp_path, Hints(axes="tzz"), **fields())
    with pytest.raises(SourceError, match="is empty"):
        saved(tmp_path, u=np.zeros((0, 5, 7)), v=np.zeros((0, 5, 7)))
    with pytest.raises(SourceError, match="times that grow"):
        saved(tmp_path, **fields(), x=X, y=Y, t=T[::-1])


def test_objects_and_damaged_files_are_refused_in_words(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="'u' holds Python objects"):
        saved(tmp_path, u=np.array([{}, {}], dtype=object))
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
    place = whole.index(fields()["u"].tobytes()[:64])
    damaged[place : place + 8] = bytes(8)
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


@needs_shared
def test_the_simulated_wake_opens_from_its_modes() -> None:
    path = SHARED / "cylinder_re100_pod.npz"
    (trajectory,) = arrays.open_recordings(path)
    assert trajectory.states.shape == (3000, 2, 160, 320)
    assert trajectory.spec.dt == pytest.approx(0.1)
    assert trajectory.spec.grid.origin == pytest.approx((-4.96875, -4.96875))
    with np.load(path, allow_pickle=False) as archive:
        wanted = np.tensordot(archive["coef"][2990], archive["modes"], 1)
        fluid = archive["fluid_mask"]
    np.testing.assert_allclose(trajectory.read(slice(2990, 2991))[0].numpy(), wanted, atol=1e-5)
    assert np.array_equal(trajectory.known(slice(0, 1))[0].numpy(), fluid)


def test_frames_in_arrays_of_their_own_are_not_taken_for_components(tmp_path: Path) -> None:
    flow = fields()
    numbered = {f"{name}_{i}": flow[name][i] for name in "uv" for i in (0, 1, 2)}
    with pytest.raises(SourceError, match=r"u_0, u_1, u_2, v_0 look like frames.*f'u_\{i\}'"):
        saved(tmp_path, **numbered, x=X, y=Y)
    with pytest.raises(SourceError, match="u_1, u_2 look like frames"):
        saved(tmp_path, u_1=flow["u"][0], u_2=flow["u"][1], x=X, y=Y)
    with pytest.raises(SourceError, match="there is 'u' but no 'v'"):
        saved(tmp_path, u=flow["u"], u_1=flow["u"], x=X, y=Y, t=T)
    (first,) = saved(tmp_path, Hints(channels={"u": "u_1", "v": "v_1"}), **numbered, x=X, y=Y)
    wanted = torch.from_numpy(np.stack([flow["u"][1], flow["v"][1]]))
    assert torch.equal(first.read()[0], wanted)


def test_the_user_names_coordinates_and_flags_of_arrays(tmp_path: Path) -> None:
    good = np.ones((6, 5, 7), bool)
    good[2, 3, 4] = False
    hints = Hints(channels={"x": "east", "y": "north", "valid": "good"})
    (trajectory,) = saved(tmp_path, hints, **fields(), east=X, north=Y, t=T, good=good)
    assert (~trajectory.known()).nonzero().tolist() == [[2, 3, 4]]
    grid = trajectory.spec.grid
    assert (grid.dx, grid.dy) == pytest.approx((X[1] - X[0], Y[1] - Y[0]))
    assert trajectory.spec.channels == ("u", "v")
    with pytest.raises(SourceError, match="'valid' should be 'bad', which is not there"):
        saved(tmp_path, Hints(channels={"valid": "bad"}), **fields())


def test_arrays_that_are_not_read_come_with_the_way_to_keep_them(tmp_path: Path) -> None:
    named = {**fields(), "snr": np.ones((6, 5, 7))}
    recordings = saved(tmp_path, **named)
    (note,) = (remark for remark in recordings.remarks if remark.startswith("not read: snr"))
    assert "--channels u=u,v=v,NAME=..." in note
    kept = saved(tmp_path, Hints(channels={"u": "u", "v": "v", "q": "snr"}), **named)
    assert kept[0].spec.channels == ("u", "v", "q")
