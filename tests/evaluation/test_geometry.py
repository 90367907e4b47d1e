"""Bodies, boundaries and distances against loops over points."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from pibert.evaluation.geometry import boundary_points, distance, locate
from pibert.fields import Boundary, Grid, Sides
from tests.evaluation.masked_frames import SHAPE, SPEC, make_body

GRID = SPEC.grid
CHANNEL = replace(GRID, sides=Sides(Boundary.PERIODIC, Boundary.PERIODIC))
BOX = Grid.periodic(SHAPE, dx=0.3, dy=0.2)


def test_a_moving_body_is_located_in_every_frame() -> None:
    body = make_body(moving=True)
    body[3] = False
    place = locate(body, GRID)
    assert place.present.tolist() == [True, True, True, False, True]
    here = place.present
    assert place.centre_y[here].tolist() == [5.0, 6.0, 7.0, 9.0]
    assert place.centre_x[here].tolist() == [6.5, 6.5, 5.5, 4.5]
    assert place.last_column[here].tolist() == [8, 8, 7, 6]
    assert place.diameter.tolist() == pytest.approx([0.6, 0.6, 0.6, 0.0, 0.6])


@pytest.mark.parametrize("grid", [GRID, CHANNEL, BOX], ids=["open", "channel", "box"])
def test_distances_are_the_least_over_all_points_of_the_body(grid: Grid) -> None:
    body = torch.zeros(3, *SHAPE, dtype=torch.bool)
    body[0, 2:5, 1:4] = True
    body[1, 0, 20] = body[1, 12, 3] = True
    found = distance(body, grid)
    ny, nx = SHAPE
    for t, y, x in np.ndindex(3, ny, nx):
        nearest = np.inf
        for j, i in body[t].nonzero().tolist():
            gap_y, gap_x = abs(y - j), abs(x - i)
            gap_y = min(gap_y, ny - gap_y) if grid.periodic_y else gap_y
            gap_x = min(gap_x, nx - gap_x) if grid.periodic_x else gap_x
            nearest = min(nearest, np.hypot(gap_y * grid.dy, gap_x * grid.dx))
        assert float(found[t, y, x]) == pytest.approx(nearest)


@pytest.mark.parametrize("grid", [GRID, CHANNEL, BOX], ids=["open", "channel", "box"])
def test_boundary_points_are_the_border_and_the_neighbours_of_the_body(grid: Grid) -> None:
    body = make_body(moving=True)
    body[0, 6, -1] = True  # has a neighbour in column 0 where x is periodic
    found = boundary_points(body, grid)
    ny, nx = SHAPE
    for t, y, x in np.ndindex(5, ny, nx):
        expected = not grid.periodic_x and x in (0, nx - 1)
        expected |= not grid.periodic_y and y in (0, ny - 1)
        for j, i in ((y - 1, x), (y + 1, x), (y, x - 1), (y, x + 1)):
            inside = (0 <= j < ny or grid.periodic_y) and (0 <= i < nx or grid.periodic_x)
            expected |= inside and bool(body[t, j % ny, i % nx])
        assert bool(found[t, y, x]) == (expected and not bool(body[t, y, x]))


def test_of_bodies_one_behind_the_other_the_last_one_counts() -> None:
    body = torch.zeros(3, *SHAPE, dtype=torch.bool)
    body[0, 1:8, 2:5] = body[0, 6:9, 9:12] = True  # a gap of columns 5 to 8 between them
    body[1, 1:8, 2:5] = body[1, 7:10, 6] = True  # the second is a single column
    body[2, 1:8, 2:5] = body[2, 9:11, 4:9] = True  # in columns of the first: both are one
    place = locate(body, GRID)
    assert place.centre_x.tolist() == [10.0, 6.0, 5.0]
    assert place.centre_y.tolist() == [7.0, 8.0, 5.5]
    assert place.last_column.tolist() == [11, 6, 8]
    assert place.diameter.tolist() == pytest.approx([0.6, 0.6, 2.0])
