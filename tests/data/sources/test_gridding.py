"""Foreign fields on a uniform grid."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from pibert.data.format import check, write
from pibert.data.sources.gridding.lattice import find_uniform
from pibert.data.sources.gridding.layout import find_layout
from pibert.data.sources.gridding.uniform import on_uniform_grid
from pibert.data.sources.recordings import Hints, SourceError

X, Y = 2.0 + 0.5 * np.arange(7), -1.0 + 0.2 * np.arange(5)


def affine(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Values that tell every point from every other."""
    return 1 + 3 * x - 10 * y


def frames(x: np.ndarray, y: np.ndarray, count: int = 2) -> dict[str, np.ndarray]:
    field = affine(x, y)
    scale = np.arange(1, count + 1).reshape(-1, *[1] * field.ndim)
    return {"u": scale * field, "v": -scale * field}


def on_grid(x: np.ndarray, y: np.ndarray) -> dict[str, np.ndarray]:
    return frames(*np.meshgrid(x, y))


def assert_affine(trajectory: Any, atol: float = 1e-5) -> None:
    """Every known point of the first frame has the value that belongs to its coordinates."""
    x, y = trajectory.spec.grid.coordinates(torch.float64)
    known = trajectory.known()[0]
    found = trajectory.read()[0, 0].double()
    assert bool(known.any())
    torch.testing.assert_close(found[known], (1 + 3 * x - 10 * y)[known], rtol=1e-5, atol=atol)


def test_a_uniform_grid_is_kept_as_it_is() -> None:
    trajectory, remarks = on_uniform_grid("a", on_grid(X, Y), X, Y)
    grid = trajectory.spec.grid
    assert grid.shape == (5, 7) and remarks == ()
    assert (grid.dx, grid.dy) == pytest.approx((0.5, 0.2))
    assert grid.origin == pytest.approx((2.0, -1.0))
    expected = torch.from_numpy(np.stack(list(on_grid(X, Y).values()), 1)).float()
    assert torch.equal(trajectory.read(), expected)
    assert trajectory.valid is None and trajectory.body is None
    assert trajectory.spec.dt is None and trajectory.time.tolist() == [0.0, 1.0]
    assert trajectory.local == {"gridding": {"method": "none"}}


def test_axes_that_fall_are_flipped_and_it_is_said() -> None:
    trajectory, remarks = on_uniform_grid("a", on_grid(X[::-1], Y[::-1]), X[::-1], Y[::-1])
    assert_affine(trajectory)
    assert trajectory.spec.grid.dy == pytest.approx(0.2)
    assert trajectory.local["gridding"]["flipped"] == ["x", "y"]
    assert remarks == ("x ran leftward; columns were flipped", "y ran downward; rows were flipped")


def test_a_mesh_stored_x_first_is_transposed() -> None:
    x, y = np.meshgrid(X, Y[::-1], indexing="ij")
    trajectory, remarks = on_uniform_grid("a", frames(x, y), x, y)
    assert trajectory.spec.grid.shape == (5, 7)
    assert_affine(trajectory)
    assert trajectory.local["gridding"] == {
        "method": "none",
        "transposed": True,
        "flipped": ["y"],
    }
    assert "transposed" in remarks[0] and "rows were flipped" in remarks[1]


def test_fields_stored_x_first_are_transposed_by_the_lengths_of_their_axes() -> None:
    x, y = np.meshgrid(X, Y, indexing="ij")
    trajectory, remarks = on_uniform_grid("a", frames(x, y), X, Y)
    assert_affine(trajectory)
    assert len(remarks) == 1 and "transposed" in remarks[0]


def test_points_of_a_grid_are_found_in_any_order_with_nodes_missing() -> None:
    x, y = (mesh.ravel() for mesh in np.meshgrid(X, Y))
    order = np.random.default_rng(1).permutation(35)[:-4]
    missing = np.setdiff1d(np.arange(35), order)
    x, y = x[order], y[order]
    trajectory, remarks = on_uniform_grid("a", frames(x, y), x, y)
    assert trajectory.spec.grid.shape == (5, 7)
    assert_affine(trajectory)
    valid = torch.ones(35, dtype=torch.bool)
    valid[missing] = False
    assert torch.equal(trajectory.valid, valid.reshape(5, 7))  # type: ignore[arg-type]
    assert remarks == ("11 % of the grid's points are not there: marked invalid",)


def test_whole_lines_may_be_missing_from_a_uniform_grid() -> None:
    x = np.delete(X, [2, 3])
    trajectory, _ = on_uniform_grid("a", on_grid(x, Y), x, Y)
    assert trajectory.spec.grid.shape == (5, 7)
    assert_affine(trajectory)
    assert trajectory.known()[0].all(0).tolist() == [True, True, False, False, True, True, True]


def test_an_axis_printed_with_few_digits_is_uniform() -> None:
    printed = np.round(np.arange(1, 61) / 3, 2)
    first, step, positions = find_uniform(printed)  # type: ignore[misc]
    assert step == pytest.approx(1 / 3, rel=1e-4) and first == pytest.approx(1 / 3, abs=5e-3)
    assert positions.tolist() == list(range(60))
    trajectory, remarks = on_uniform_grid("a", on_grid(printed, Y), printed, Y)
    assert remarks == () and trajectory.spec.grid.dx == pytest.approx(1 / 3, rel=1e-4)


def test_an_axis_printed_with_few_significant_digits_is_uniform() -> None:
    printed = np.array([float(f"{17.357 * n:.4e}") for n in range(1, 100)])
    assert np.abs(printed - 17.357 * np.arange(1, 100)).max() > 2e-3 * 17.357
    first, step, _ = find_uniform(printed)  # type: ignore[misc]
    assert (first, step) == pytest.approx((17.357, 17.357), rel=1e-3)


@pytest.mark.parametrize(
    "axis",
    [
        np.array([0.0, 0.33, 0.70, 1.0]),  # off by more than its last digit
        np.cumsum(1.02 ** np.arange(12)),
        np.array([0.0, 1.0, 4.0, 9.0, 16.0]),
        np.arange(8) + np.array([0, 0, 0, 0.0021234567, 0, 0, 0, 0]),
    ],
)
def test_an_axis_that_is_not_uniform_is_told_from_rounding(axis: np.ndarray) -> None:
    assert find_uniform(axis) is None


def test_an_axis_of_single_precision_far_from_the_origin_is_uniform() -> None:
    x = (1000 + 0.1 * np.arange(40)).astype(np.float32)
    mesh_x, mesh_y = np.meshgrid(x, Y.astype(np.float32))
    trajectory, remarks = on_uniform_grid("a", frames(mesh_x, mesh_y), mesh_x, mesh_y)
    assert trajectory.spec.grid.shape == (5, 40) and remarks == ()


def test_uneven_axes_are_resampled_bilinearly_and_exactly_for_affine_fields() -> None:
    x = np.array([0.0, 0.1, 0.4, 1.0, 2.0, 3.0])
    trajectory, remarks = on_uniform_grid("a", on_grid(x, Y), x, Y)
    grid = trajectory.spec.grid
    assert grid.shape == (5, 6) and grid.dx == pytest.approx(0.6)
    assert_affine(trajectory)
    assert trajectory.local["gridding"]["method"] == "bilinear"
    assert trajectory.local["gridding"]["error"]["u"] < 1e-12
    assert remarks[0].startswith("the spacing of x is not uniform; resampled bilinearly")
    sized, _ = on_uniform_grid("a", on_grid(x, Y), x, Y, hints=Hints(shape=(9, 31)))
    assert sized.spec.grid.shape == (5, 31)  # y is uniform and stays
    assert_affine(sized)


def test_the_error_estimate_is_the_error_with_every_second_line_left_out() -> None:
    x = np.array([0.0, 1.0, 3.0])
    u = np.broadcast_to(np.array([0.0, 5.0, 3.0]), (1, 3, 3))
    trajectory, remarks = on_uniform_grid("a", {"u": u}, x, np.arange(3.0))
    # The middle column alone is left out: constant, so there is no fluctuation to compare with.
    assert trajectory.local["gridding"]["error"] == {}
    assert "could not be estimated" in remarks[-1]
    u = u + np.array([0.0, 3.0, -3.0])[:, None]
    trajectory, remarks = on_uniform_grid("a", {"u": u}, x, np.arange(3.0))
    # Linear from 0 to 3 gives 1 at x = 1, where the file has 5: off by 4; the values left out are
    # 5, 8 and 2.
    error = trajectory.local["gridding"]["error"]["u"]
    assert error == pytest.approx(4 / np.std([5, 8, 2]))
    assert f"{100 * error:.0f} % of the fluctuation of u" in remarks[-1]


def scattered(count: int = 1500, seed: int = 3) -> tuple[np.ndarray, np.ndarray]:
    """Random points of a rectangle 3 x 1, its corners among them."""
    generator = np.random.default_rng(seed)
    corners = np.array([[0, 0], [3, 0], [0, 1], [3, 1]])
    points = np.concatenate([generator.random((count, 2)) * [3, 1], corners])
    return points[:, 0], points[:, 1]


def test_scattered_points_are_interpolated_linearly_at_their_own_density() -> None:
    x, y = scattered()
    trajectory, remarks = on_uniform_grid("a", frames(x, y), x, y)
    rows, columns = trajectory.spec.grid.shape
    assert rows * columns == pytest.approx(len(x), rel=0.15)
    assert columns / rows == pytest.approx(3, rel=0.1)
    assert trajectory.spec.grid.dx == pytest.approx(3 / (columns - 1))
    assert_affine(trajectory)
    # The outermost lines pass outside the random points.
    assert bool(trajectory.known()[:, 3:-3, 3:-3].all())
    assert trajectory.local["gridding"]["from"] == len(x)
    assert remarks[0].startswith(f"{len(x)} scattered points; resampled linearly in Delaunay")
    sized, _ = on_uniform_grid("a", frames(x, y), x, y, hints=Hints(shape=(8, 20)))
    assert sized.spec.grid.shape == (8, 20)


def test_the_error_estimate_of_scattered_points_bounds_the_true_error() -> None:
    x, y = scattered(4000)

    def wave(x: np.ndarray, y: np.ndarray) -> np.ndarray:
        return np.sin(6 * x) * np.cos(9 * y)

    trajectory, _ = on_uniform_grid("a", {"u": wave(x, y)[None]}, x, y)
    gx, gy = (c.numpy() for c in trajectory.spec.grid.coordinates(torch.float64))
    known = trajectory.known()[0].numpy()
    wrong = trajectory.read()[0, 0].numpy()[known] - wave(gx, gy)[known]
    true = math.sqrt((wrong**2).mean()) / 0.5  # the rms of the wave
    estimate = trajectory.local["gridding"]["error"]["u"]
    assert true < estimate < 5 * true


def test_a_body_and_a_concave_corner_in_scattered_points_become_holes() -> None:
    x, y = scattered(6000)
    angle = np.linspace(0, 2 * np.pi, 80, endpoint=False)
    x, y = np.append(x, 1 + 0.2 * np.cos(angle)), np.append(y, 0.5 + 0.2 * np.sin(angle))

    def outside(x: np.ndarray, y: np.ndarray, margin: float = 0.0) -> np.ndarray:
        disc = np.hypot(x - 1, y - 0.5) >= 0.2 - margin - 1e-9
        corner = (x <= 2 + margin) | (y >= 0.5 - margin)
        return disc & corner

    keep = outside(x, y)
    x, y = x[keep], y[keep]
    trajectory, remarks = on_uniform_grid("a", frames(x, y), x, y)
    assert_affine(trajectory)
    gx, gy = (c.numpy() for c in trajectory.spec.grid.coordinates(torch.float64))
    known = trajectory.known()[0].numpy()
    assert not known[~outside(gx, gy, 0.1)].any()
    inner = outside(gx, gy, -0.1) & (gx > 0.1) & (gx < 2.9) & (gy > 0.1) & (gy < 0.9)
    assert known[inner].all()
    assert any("in holes: marked invalid" in remark for remark in remarks)


def test_a_stretched_curved_mesh_has_no_holes() -> None:
    s, n = np.meshgrid(np.linspace(0, 3, 40), (np.linspace(0, 1, 30) ** 3))
    x, y = s, n + 0.05 * np.sin(2 * s)
    trajectory, _ = on_uniform_grid("a", frames(x, y), x, y)
    gx, gy = (c.numpy() for c in trajectory.spec.grid.coordinates(torch.float64))
    height = gy - 0.05 * np.sin(2 * gx)
    assert trajectory.known()[0].numpy()[(height > 0.01) & (height < 0.95)].all()
    assert_affine(trajectory)


def test_values_that_are_not_finite_become_invalid() -> None:
    fields = on_grid(X, Y)
    fields["u"][1, 2, 3], fields["v"][1, 4, 6] = np.nan, np.inf
    trajectory, remarks = on_uniform_grid("a", fields, X, Y)
    expected = torch.ones(2, 5, 7, dtype=torch.bool)
    expected[1, 2, 3] = expected[1, 4, 6] = False
    assert torch.equal(trajectory.known(), expected)
    assert remarks == ("2.9 % of the values are missing or marked invalid",)


def test_masks_follow_the_fields_through_flips() -> None:
    valid, body = np.ones((5, 7), bool), np.zeros((5, 7), bool)
    valid[0, 1], body[4, 6] = False, True
    fields = on_grid(X, Y[::-1])
    fields["u"][:, 4, 6] = np.nan
    trajectory, _ = on_uniform_grid("a", fields, X, Y[::-1], valid=valid, body=body)
    assert torch.equal(trajectory.valid, torch.from_numpy(valid[::-1].copy()))  # type: ignore
    assert torch.equal(trajectory.body, torch.from_numpy(body[::-1].copy()))  # type: ignore
    assert trajectory.spec.grid.body is not None


def test_unknown_values_do_not_enter_an_interpolation() -> None:
    x = np.array([0.0, 1.0, 3.0])
    fields = {"u": np.full((1, 2, 3), 7.0)}
    fields["u"][0, 0, 2] = 1e30
    valid = np.array([[True, True, False], [True, True, True]])
    trajectory, _ = on_uniform_grid(
        "a", fields, x, np.array([0.0, 1.0]), valid=valid, hints=Hints(shape=(2, 7))
    )
    # Columns at 0, 0.5, ... 3; beyond x = 2 the invalid one has more than half of the weight.
    known = trajectory.known()[0]
    assert known.tolist() == [[True] * 5 + [False] * 2, [True] * 7]
    torch.testing.assert_close(trajectory.read()[0, 0][known], torch.full((12,), 7.0))


def test_time_units_and_parameters_are_those_of_the_file() -> None:
    trajectory, _ = on_uniform_grid(
        "a",
        on_grid(X, Y),
        X,
        Y,
        time=np.array([3.0, 3.25]),
        units={"u": "m/s"},
        length_unit="mm",
        time_unit="s",
        parameters={"Re": 100.0},
        source={"title": "t"},
        local={"stride": 2},
    )
    assert trajectory.spec.dt == 0.25 and trajectory.time.tolist() == [3.0, 3.25]
    assert trajectory.spec.units == ("m/s", "1")
    assert (trajectory.length_unit, trajectory.time_unit) == ("mm", "s")
    assert trajectory.spec.parameters[0].scaling == "log"
    assert trajectory.parameters == {"Re": 100.0} and trajectory.spec.family is None
    assert trajectory.source == {"title": "t"} and trajectory.local["stride"] == 2


def test_channels_of_the_hints_win_over_the_file() -> None:
    hints = Hints(channels={"u": "v", "v": "u"})
    trajectory, _ = on_uniform_grid(
        "a",
        on_grid(X, Y),
        X,
        Y,
        hints=hints,
    )
    assert trajectory.spec.channels == ("v", "u")


def test_a_field_whose_name_the_user_gives_to_another_makes_way() -> None:
    fields = on_grid(X, Y) | {"Vx": np.full((2, 5, 7), 9.0)}
    trajectory, _ = on_uniform_grid("a", fields, X, Y, hints=Hints(channels={"u": "Vx"}))
    assert trajectory.spec.channels == ("v", "u")
    assert trajectory.read()[0, 1].unique().tolist() == [9.0]


def test_uneven_times_leave_the_time_step_unknown() -> None:
    fields = {"u": np.ones((4, 5, 7))}
    trajectory, _ = on_uniform_grid("a", fields, X, Y, time=np.array([0.0, 1.0, 2.0, 4.0]))
    assert trajectory.spec.dt is None and trajectory.time.tolist() == [0.0, 1.0, 2.0, 4.0]


def test_what_it_makes_can_be_written(tmp_path: Path) -> None:
    x, y = scattered(300)
    trajectory, _ = on_uniform_grid(
        "a", frames(x, y), x, y, parameters={"Re": 3.0}, hints=Hints(shape=(7, 9))
    )
    write(tmp_path / "a.h5", [trajectory])
    check(tmp_path / "a.h5")


@pytest.mark.parametrize(
    ("fields", "x", "y", "arguments", "problem"),
    [
        ({}, X, Y, {}, "expected fields of one shape .* found none"),
        ({"u": np.ones((2, 5))}, X, Y, {}, r"do not fit fields of shape \(5,\)"),
        ({"u": np.ones((1, 4, 7))}, X, Y, {}, r"found x \(7,\) and y \(5,\)"),
        (on_grid(X, Y), np.append(X[:-1], np.nan), Y, {}, "finite coordinates"),
        (on_grid(X, Y), X, Y, {"time": np.array([1.0, 1.0])}, "2 times that grow"),
        (on_grid(X, Y), X, Y, {"valid": np.ones((7, 5), bool)}, "mask 'valid' of shape"),
        (
            on_grid(X, Y),
            X,
            Y,
            {"hints": Hints(channels={"u": "Vx"})},
            "no field 'Vx'; there are: u, v",
        ),
        (on_grid(X, Y), X, Y, {"hints": Hints(shape=(1, 5))}, "two rows and two columns"),
        ({"u": np.ones((1, 9))}, np.arange(9.0), np.zeros(9), {}, "this is a curve"),
        ({"u": np.ones((1, 40))}, np.arange(40.0), 2 * np.arange(40.0), {}, "this is a curve"),
        (
            {"u": np.ones((1, 70))},
            np.tile(X, 10),
            np.tile(np.repeat(Y, 7), 2),
            {},
            "35 of 70 points",
        ),
    ],
)
def test_what_makes_no_field_is_refused_in_words(
    fields: dict[str, np.ndarray], x: np.ndarray, y: np.ndarray, arguments: Any, problem: str
) -> None:
    with pytest.raises(ValueError, match=problem):
        on_uniform_grid("wake", fields, x, y, **arguments)


def test_a_layout_serves_many_frames() -> None:
    layout = find_layout("a", X, Y, (5, 7))
    fields = on_grid(X, Y)
    states, valid = layout.place(fields, np.ones((2, 35), bool))
    assert states.shape == (2, 2, 5, 7) and valid.all()
    np.testing.assert_allclose(states[:, 0], fields["u"], rtol=1e-6)


def test_refusals_are_source_errors() -> None:
    with pytest.raises(SourceError, match="^wake: "):
        on_uniform_grid("wake", {"u": np.ones((1, 9))}, np.arange(9.0), np.zeros(9))
