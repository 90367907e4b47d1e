"""Plane meshes sampled on a grid: fluid points and their values."""

import numpy as np

from pibert.data.readers.shared.cells import Axes, CellMesh, CellSampler, choose_axes


def quads(x: np.ndarray, y: np.ndarray) -> CellMesh:
    """The rectangles between lines at x and y, row by row."""
    points = np.stack(np.meshgrid(x, y), -1).reshape(-1, 2)
    corner = np.arange(len(points)).reshape(len(y), len(x))
    sides = [corner[:-1, :-1], corner[:-1, 1:], corner[1:, 1:], corner[1:, :-1]]
    cells = np.stack(sides, -1).reshape(-1, 4)
    return CellMesh(points=points, corners=cells.ravel(), ends=4 * np.arange(1, len(cells) + 1))


X, Y = np.array([0.0, 0.5, 0.8, 2.0]), np.array([1.0, 1.2, 2.0])


def test_a_hole_is_a_body_and_the_outside_is_not() -> None:
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
    # Patches distinguish walls from open boundaries.
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


def test_the_grid_keeps_uniform_cells_and_covers_others() -> None:
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
