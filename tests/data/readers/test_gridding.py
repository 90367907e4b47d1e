"""Fields on any points, placed on a uniform grid."""

from typing import Any

import numpy as np
import pytest
import torch

from pibert.data.readers.recordings import SourceError
from pibert.data.readers.shared.grids import on_uniform_grid
from pibert.data.readers.shared.interpolation import find_even_times, find_uniform

X, Y = 2.0 + 0.5 * np.arange(7), -1.0 + 0.2 * np.arange(5)


def affine(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Return values that differ at every point."""
    return 1 + 3 * x - 10 * y


def frames(x: np.ndarray, y: np.ndarray, count: int = 2) -> dict[str, np.ndarray]:
    field = affine(x, y)
    scale = np.arange(1, count + 1).reshape(-1, *[1] * field.ndim)
    return {"u": scale * field, "v": -scale * field}


def on_grid(x: np.ndarray, y: np.ndarray) -> dict[str, np.ndarray]:
    return frames(*np.meshgrid(x, y))


FLOW = on_grid(X, Y)


def assert_affine(trajectory: Any, atol: float = 1e-5) -> None:
    """Every known point of the first frame has the value that belongs to its coordinates."""
    x, y = trajectory.spec.grid.coordinates(torch.float64)
    known = trajectory.known()[0]
    found = trajectory.read()[0, 0].double()
    assert bool(known.any())
    torch.testing.assert_close(found[known], (1 + 3 * x - 10 * y)[known], rtol=1e-5, atol=atol)


def test_of_points_that_coincide_the_first_counts_with_a_note() -> None:
    x, y = (np.append(mesh.ravel(), mesh[1, 2:4]) for mesh in np.meshgrid(X, Y))
    fields = frames(x, y)
    fields["u"][:, -2:] += 1
    trajectory, notes = on_uniform_grid("a", fields, x, y)
    assert_affine(trajectory)
    assert notes == ("2 of 37 points repeat another: the first one counts",)


def test_points_of_a_grid_are_found_in_any_order_with_nodes_missing() -> None:
    x, y = (mesh.ravel() for mesh in np.meshgrid(X, Y))
    order = np.random.default_rng(1).permutation(35)[:-4]
    missing = np.setdiff1d(np.arange(35), order)
    x, y = x[order], y[order]
    trajectory, notes = on_uniform_grid("a", frames(x, y), x, y)
    assert trajectory.spec.grid.shape == (5, 7)
    assert_affine(trajectory)
    valid = torch.ones(35, dtype=torch.bool)
    valid[missing] = False
    assert torch.equal(trajectory.valid, valid.reshape(5, 7))  # type: ignore[arg-type]
    assert len(notes) == 1 and "11 %" in notes[0]


def test_an_axis_printed_with_few_digits_is_uniform() -> None:
    printed = np.round(np.arange(1, 61) / 3, 2)
    first, step, positions = find_uniform(printed)  # type: ignore[misc]
    assert step == pytest.approx(1 / 3, rel=1e-4) and first == pytest.approx(1 / 3, abs=5e-3)
    assert positions.tolist() == list(range(60))
    trajectory, notes = on_uniform_grid("a", on_grid(printed, Y), printed, Y)
    assert notes == () and trajectory.spec.grid.dx == pytest.approx(1 / 3, rel=1e-4)


@pytest.mark.parametrize(
    "axis",
    [
        np.array([0.0, 0.33, 0.70, 1.0]),  # off by more than its last digit
        np.cumsum(1.02 ** np.arange(12)),
        np.array([0.0, 1.0, 4.0, 9.0, 16.0]),
        np.arange(8) + np.array([0, 0, 0, 0.0021234567, 0, 0, 0, 0]),
    ],
)
def test_an_axis_that_is_not_uniform_is_distinguished_from_rounding(axis: np.ndarray) -> None:
    assert find_uniform(axis) is None


@pytest.mark.parametrize(
    ("time", "step", "positions"),
    [
        (0.1 + 0.002 * np.array([0, 1, 2, 5, 6, 7]), 0.002, [0, 1, 2, 5, 6, 7]),
        (5.0 * np.array([20, 21, 22, 24]), 5.0, [0, 1, 2, 4]),
        (np.array([0.0, 0.1, 0.2, 99.7, 99.8]), 0.1, [0, 1, 2, 997, 998]),
        (np.round(np.delete(np.arange(1, 61), [20, 21, 40]) / 3, 2), 1 / 3, None),
    ],
)
def test_times_keep_their_step_across_gaps(
    time: np.ndarray, step: float, positions: list[int] | None
) -> None:
    _, found, places = find_even_times(time)  # type: ignore[misc]
    assert found == pytest.approx(step, rel=1e-4)
    assert positions is None or places.tolist() == positions
    x, y = np.meshgrid(X, Y)
    flow, _ = on_uniform_grid("a", frames(x, y, len(time)), X, Y, time=time)
    assert flow.spec.dt == found and flow.time.tolist() == pytest.approx(time.tolist(), abs=6e-3)


@pytest.mark.parametrize(
    "time",
    [
        np.array([0.0, 1.0, 2.0, 3.4, 4.4]),  # no whole number of steps
        np.array([0.0, 1.0, 4.0, 9.0, 16.0]),  # few steps are the smallest
        np.array([0.0, 2.0, 5.0]),
        np.cumsum(1.02 ** np.arange(12)),
        np.array([0.0, 1e-300, 1.0]),
    ],
)
def test_uneven_times_have_no_step(time: np.ndarray) -> None:
    x, y = np.meshgrid(X, Y)
    flow, _ = on_uniform_grid("a", frames(x, y, len(time)), X, Y, time=time)
    assert flow.spec.dt is None and flow.time.tolist() == time.tolist()


def test_resampling_of_uneven_axes_is_exact_for_affine_fields() -> None:
    x = np.array([0.0, 0.1, 0.4, 1.0, 2.0, 3.0])
    trajectory, notes = on_uniform_grid("a", on_grid(x, Y), x, Y)
    grid = trajectory.spec.grid
    assert grid.shape == (5, 6) and grid.dx == pytest.approx(0.6)
    assert_affine(trajectory)
    assert trajectory.local["gridding"]["method"] == "bilinear"
    assert trajectory.local["gridding"]["error"]["u"] < 1e-6
    assert "bilinearly" in notes[0]
    sized, _ = on_uniform_grid("a", on_grid(x, Y), x, Y, shape=(9, 31))
    assert sized.spec.grid.shape == (5, 31)  # y is uniform and stays
    assert_affine(sized)


def scattered(count: int = 1500, seed: int = 3) -> tuple[np.ndarray, np.ndarray]:
    """Random points of a rectangle 3 x 1, its corners among them."""
    generator = np.random.default_rng(seed)
    corners = np.array([[0, 0], [3, 0], [0, 1], [3, 1]])
    points = np.concatenate([generator.random((count, 2)) * [3, 1], corners])
    return points[:, 0], points[:, 1]


def test_scattered_points_are_interpolated_at_their_density() -> None:
    x, y = scattered()
    trajectory, notes = on_uniform_grid("a", frames(x, y), x, y)
    rows, columns = trajectory.spec.grid.shape
    assert rows * columns == pytest.approx(len(x), rel=0.15)
    assert columns / rows == pytest.approx(3, rel=0.1)
    assert trajectory.spec.grid.dx == pytest.approx(3 / (columns - 1))
    assert_affine(trajectory)
    # The outermost lines pass outside the random points.
    assert bool(trajectory.known()[:, 3:-3, 3:-3].all())
    assert trajectory.local["gridding"]["from"] == len(x)
    assert notes[0].startswith(f"{len(x)} scattered points; resampled linearly in Delaunay")
    sized, _ = on_uniform_grid("a", frames(x, y), x, y, shape=(8, 20))
    assert sized.spec.grid.shape == (8, 20)


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
    trajectory, notes = on_uniform_grid("a", frames(x, y), x, y)
    assert_affine(trajectory)
    gx, gy = (c.numpy() for c in trajectory.spec.grid.coordinates(torch.float64))
    known = trajectory.known()[0].numpy()
    assert not known[~outside(gx, gy, 0.1)].any()
    inner = outside(gx, gy, -0.1) & (gx > 0.1) & (gx < 2.9) & (gy > 0.1) & (gy < 0.9)
    assert known[inner].all()
    assert any("in holes: marked invalid" in note for note in notes)


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
    trajectory, _ = on_uniform_grid("a", fields, x, np.array([0.0, 1.0]), valid=valid, shape=(2, 7))
    # Columns at 0, 0.5, ... 3; beyond x = 2 the invalid one has more than half of the weight.
    known = trajectory.known()[0]
    assert known.tolist() == [[True] * 5 + [False] * 2, [True] * 7]
    torch.testing.assert_close(trajectory.read()[0, 0][known], torch.full((12,), 7.0))


@pytest.mark.parametrize(
    ("fields", "x", "y", "arguments", "problem"),
    [
        ({}, X, Y, {}, "found none"),
        ({"u": np.ones((1, 4, 7))}, X, Y, {}, r"x \(7,\) and y \(5,\)"),
        (FLOW, np.append(X[:-1], np.nan), Y, {}, "finite coordinates"),
        (FLOW, X, Y, {"time": np.array([1.0, 1.0])}, "2 increasing times"),
        (FLOW, X, Y, {"valid": np.ones((7, 5), bool)}, "mask 'valid' of shape"),
        (FLOW, X, Y, {"shape": (1, 5)}, "two rows and two columns"),
        ({"u": np.ones((1, 40))}, np.arange(40.0), 2 * np.arange(40.0), {}, "this is a curve"),
        ({"u": np.ones((1, 70))}, np.tile(X, 10), np.tile(np.repeat(Y, 7), 2), {}, "35 of 70"),
    ],
)
def test_points_without_a_field_are_refused(
    fields: dict[str, np.ndarray], x: np.ndarray, y: np.ndarray, arguments: Any, problem: str
) -> None:
    with pytest.raises(SourceError, match=f"^wake: .*{problem}"):
        on_uniform_grid("wake", fields, x, y, **arguments)
