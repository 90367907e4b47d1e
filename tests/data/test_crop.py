"""Parts of a grid: points, coordinates, masks and sides belong together."""

from dataclasses import replace

import pytest
import torch

from pibert.data.crop import Region, crop
from pibert.data.resample import represent
from pibert.fields import Grid, Sides, read_mask
from tests.data.helpers import SHAPE, make_trajectory

ROWS, COLUMNS = SHAPE


def test_values_masks_and_coordinates_are_those_of_the_points_kept() -> None:
    moving = torch.rand(4, *SHAPE, generator=torch.Generator().manual_seed(0)) < 0.3
    whole = make_trajectory(frames=4)
    body = torch.zeros(SHAPE, dtype=torch.bool)
    body[2, 3] = True
    whole = replace(whole, body=body, valid=~moving)
    part = crop(whole, Region(rows=slice(1, None), columns=slice(2, -1)))
    assert torch.equal(part.read(), whole.read()[..., 1:, 2:-1])
    assert torch.equal(part.read(slice(1, 3), [1]), whole.read()[1:3, [1], 1:, 2:-1])
    assert part.body is not None and part.valid is not None
    assert torch.equal(read_mask(part.body, slice(None)), body[1:, 2:-1])
    assert torch.equal(read_mask(part.valid, slice(0, 2)), ~moving[:2, 1:, 2:-1])
    mine, theirs = part.spec.grid.coordinates(), whole.spec.grid.coordinates()
    for kept, all_points in zip(mine, theirs, strict=True):
        torch.testing.assert_close(kept, all_points[1:, 2:-1])
    assert part.local["crop"] == [1, ROWS - 1, 2, COLUMNS - 2]


def test_a_range_of_coordinates_includes_its_ends() -> None:
    whole = make_trajectory()
    grid = Grid(SHAPE, 0.1, 0.2, origin=(1.0, -0.2))
    whole = replace(whole, spec=replace(whole.spec, grid=grid))
    part = crop(whole, Region(x=(1.1, 1.3), y=(None, 0.2)))
    assert torch.equal(part.read(), whole.read()[..., :3, 1:4])


def test_a_cut_side_is_open_and_a_cut_periodic_axis_on_both_sides() -> None:
    whole = make_trajectory()
    sides = Sides("periodic", "periodic", "wall", "slip")  # type: ignore[arg-type]
    grid = Grid(SHAPE, 0.1, 0.2, sides)
    whole = replace(whole, spec=replace(whole.spec, grid=grid))
    part = crop(whole, Region(rows=slice(1, None), columns=slice(0, -1)))
    assert part.spec.grid.sides == ("open", "open", "open", "slip")
    assert crop(whole, Region()).spec.grid.sides == sides


def test_a_crop_of_a_crop_is_counted_in_the_source() -> None:
    whole = make_trajectory()
    once = crop(whole, Region(rows=slice(1, None), columns=slice(1, None)))
    twice = crop(once, Region(rows=slice(1, None), columns=slice(2, None)))
    assert torch.equal(twice.read(), whole.read()[..., 2:, 3:])
    assert twice.local["crop"] == [2, ROWS - 1, 3, COLUMNS - 1]
    with pytest.raises(ValueError, match="cropped and resized before; crop the original"):
        crop(represent(once, size=(2, 2)), Region(rows=slice(1, None)))


def test_a_region_without_points_or_given_twice_is_refused() -> None:
    whole = make_trajectory()
    with pytest.raises(ValueError, match=f"keeps 0 of {COLUMNS} points along x, which has them"):
        crop(whole, Region(x=(100.0, None)))
    with pytest.raises(ValueError, match="crop by x or by columns, not by both"):
        Region(x=(0.0, 1.0), columns=slice(1))
    with pytest.raises(ValueError, match="expected rows without a step, found one of 2"):
        Region(rows=slice(0, 6, 2))
