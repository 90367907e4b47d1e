"""Plane meshes sampled on a grid: which points are fluid, and their values."""

import numpy as np
import pytest

from pibert.data.sources.gridding.cell_sampling import CellSampler
from pibert.data.sources.gridding.cells import Axes, CellMesh, choose_axes


def quads(x: np.ndarray, y: np.ndarray) -> CellMesh:
    """The rectangles between lines at x and y, row by row."""
    points = np.stack(np.meshgrid(x, y), -1).reshape(-1, 2)
    corner = np.arange(len(points)).reshape(len(y), len(x))
    sides = [corner[:-1, :-1], corner[:-1, 1:], corner[1:, 1:], corner[1:, :-1]]
    cells = np.stack(sides, -1).reshape(-1, 4)
    return CellMesh(points=points, corners=cells.ravel(), ends=4 * np.arange(1, len(cells) + 1))


def triangles(x: np.ndarray, y: np.ndarray) -> CellMesh:
    """Two triangles for every rectangle."""
    cells = quads(x, y).corners.reshape(-1, 4)
    both = np.concatenate([cells[:, [0, 1, 2]], cells[:, [0, 2, 3]]])
    ends = 3 * np.arange(1, len(both) + 1)
    return CellMesh(points=quads(x, y).points, corners=both.ravel(), ends=ends)


X, Y = np.array([0.0, 0.5, 0.8, 2.0]), np.array([1.0, 1.2, 2.0])
GRID = Axes(np.linspace(0, 2, 9), np.linspace(1, 2, 6))


def linear(points: np.ndarray) -> np.ndarray:
    return 3 + 2 * points[..., 0] - 5 * points[..., 1]


def on_grid(axes: Axes) -> np.ndarray:
    return np.stack(np.meshgrid(axes.x, axes.y), -1)


def test_centres_and_areas_of_polygons() -> None:
    points = np.array([[0, 0], [2, 0], [2, 1], [1, 1], [1, 3], [0, 3], [0, 5.0]])
    mesh = CellMesh(
        points=points,
        # An L, clockwise, and a polygon without area.
        corners=np.array([5, 4, 3, 2, 1, 0, 0, 5, 6]),
        ends=np.array([6, 9]),
    )
    np.testing.assert_allclose(mesh.areas(), [4, 0], atol=1e-12)
    np.testing.assert_allclose(mesh.centres[0], [(2 * 1 + 2 * 0.5) / 4, (2 * 0.5 + 2 * 2) / 4])
    np.testing.assert_allclose(mesh.centres[1], [0, 8 / 3])


@pytest.mark.parametrize("mesh", [quads(X, Y), triangles(X, Y)], ids=["quads", "triangles"])
def test_border_points_are_fluid_and_linear_fields_exact(mesh: CellMesh) -> None:
    # Coordinates as a text file with six digits would have them.
    rounded = CellMesh(points=np.round(mesh.points, 6), corners=mesh.corners, ends=mesh.ends)
    sampler = CellSampler(rounded, GRID)
    assert sampler.fluid.all() and not sampler.body.any()
    values = sampler.sample(linear(mesh.centres), linear(mesh.points))
    np.testing.assert_allclose(values, linear(on_grid(GRID)), atol=1e-5)
    np.testing.assert_allclose(sampler.sample(None, linear(mesh.points)), values, atol=1e-5)


def test_boundary_values_count_at_boundary_points() -> None:
    mesh = quads(X, Y)
    bottom = np.array([[0, 1], [1, 2], [2, 3]])
    mesh = CellMesh(points=mesh.points, corners=mesh.corners, ends=mesh.ends, edges=bottom)
    sampler = CellSampler(mesh, GRID)
    cells = np.full(6, 7.0)
    np.testing.assert_allclose(sampler.sample(cells), 7)
    with_wall = sampler.sample(cells, edges=np.zeros(3))
    np.testing.assert_allclose(with_wall[0], 0, atol=1e-12)
    # Along a line from the wall to a cell's centre the value is linear.
    half = CellSampler(mesh, Axes(np.array([0.25, 1.0]), np.array([1.0, 1.05, 1.1])))
    np.testing.assert_allclose(half.sample(cells, edges=np.zeros(3))[:, 0], [0, 3.5, 7])
    zeros = sampler.sample(cells, edges=np.ones(3), zeros=np.array([0, 1]))
    assert zeros[0, 0] == 0 and zeros[0, -1] == pytest.approx(1)


def test_unknown_values_reach_no_point_that_does_not_need_them() -> None:
    mesh = quads(X, Y)
    cells = np.arange(6.0)
    cells[1] = np.nan
    centres = Axes(np.array([0.25, 0.65]), np.array([1.1, 1.6]))
    values = CellSampler(mesh, centres).sample(cells, np.zeros(12))
    np.testing.assert_array_equal(values, [[0, np.nan], [3, 4]])


def test_a_hole_is_a_body_and_what_lies_outside_is_not() -> None:
    lines = np.arange(6.0)
    mesh = quads(lines, lines)
    cells = mesh.corners.reshape(-1, 4)
    keep = np.ones((5, 5), bool)
    keep[2, 2] = keep[4, 4] = False  # a hole, and a corner cut off
    kept = cells[keep.ravel()]
    axes = Axes(np.arange(0.5, 5), np.arange(0.5, 5))
    holed = CellMesh(points=mesh.points, corners=kept.ravel(), ends=4 * np.arange(1, 24))
    sampler = CellSampler(holed, axes)
    np.testing.assert_array_equal(sampler.fluid, keep)
    assert np.argwhere(sampler.body).tolist() == [[2, 2]]
    # Patches tell a wall from an open boundary, wherever it is.
    around = np.array([[14, 15], [15, 21], [20, 21], [14, 20], [28, 34], [28, 29]])
    for walls, body in (([1, 1, 1, 1, 0, 0], [[2, 2]]), ([0, 0, 0, 0, 1, 1], [[4, 4]])):
        with_patches = CellMesh(
            points=mesh.points,
            corners=kept.ravel(),
            ends=4 * np.arange(1, 24),
            edges=around,
            walls=np.array(walls, bool),
        )
        assert np.argwhere(CellSampler(with_patches, axes).body).tolist() == body


def test_of_overlapping_cells_the_higher_rank_counts_and_holes_do_not() -> None:
    wide, small = (
        quads(np.array([0.0, 3, 6]), np.array([0.0, 3])),
        quads(np.array([2.0, 4]), np.array([1.0, 2])),
    )
    mesh = CellMesh(
        points=np.concatenate([wide.points, small.points]),
        corners=np.concatenate([wide.corners, len(wide.points) + small.corners]),
        ends=np.array([4, 8, 12]),
        rank=np.array([-1, 0, 1]),
    )
    axes = Axes(np.array([1.0, 2.5, 3.5, 5.0]), np.array([1.5, 2.5]))
    values = CellSampler(mesh, axes).sample(np.array([10.0, 20.0, 30.0]))
    np.testing.assert_allclose(values, [[np.nan, 30, 30, 20], [np.nan, np.nan, 20, 20]])


def test_points_of_periodic_boundaries_see_the_cells_of_both() -> None:
    mesh = quads(np.array([0.0, 1, 2, 3]), np.array([0.0, 1]))
    twin = np.full(8, -1)
    twin[[0, 4, 3, 7]] = [3, 7, 0, 4]
    wrapped = CellMesh(points=mesh.points, corners=mesh.corners, ends=mesh.ends, twins=(twin,))
    axes = Axes(np.array([0.0, 1.0, 2.0]), np.array([0.0, 1.0]))
    cells = np.array([1.0, 2.0, 9.0])
    np.testing.assert_allclose(CellSampler(mesh, axes).sample(cells)[0], [1, 1.5, 5.5])
    np.testing.assert_allclose(CellSampler(wrapped, axes).sample(cells)[0], [5, 1.5, 5.5])


def test_the_grid_keeps_equal_cells_and_covers_others() -> None:
    even = quads(np.linspace(0, 3, 7), np.linspace(0, 1, 6))
    axes, exact = choose_axes("a", even, None, on_cells=True)
    assert exact and axes.x.shape == (6,) and axes.y.shape == (5,)
    np.testing.assert_allclose(
        (axes.x[0], axes.x[-1], axes.y[0], axes.y[-1]), (0.25, 2.75, 0.1, 0.9)
    )
    axes, exact = choose_axes("a", even, None, on_cells=False)
    assert exact and (len(axes.x), len(axes.y)) == (7, 6)
    axes, exact = choose_axes("a", even, (4, 5), on_cells=True)
    assert not exact
    np.testing.assert_allclose(axes.x, np.linspace(0, 3, 5))
    axes, _ = choose_axes("a", even, (4, 5), on_cells=True, periodic=(True, False))
    np.testing.assert_allclose(axes.x, 0.6 * np.arange(5))
    np.testing.assert_allclose(axes.y, np.linspace(0, 1, 4))
    axes, exact = choose_axes("a", quads(X, Y), None, on_cells=True)
    assert not exact
    np.testing.assert_allclose((axes.x[0], axes.x[-1], axes.y[0], axes.y[-1]), (0, 2, 1, 2))
