"""Views of a trajectory: frames, channels, resolution, region."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch

from pibert.data.resample import Region, Resizer, crop, represent
from pibert.fields import Grid, Sides, read_mask
from tests.data.helpers import SHAPE, make_trajectory, random_states
from tests.helpers import refused

SIZES = [(4, 6), (3, 5), (8, 18), (1, 1), (12, 7), (5, 20), (13, 19)]


def grid_of(*, periodic: bool = False) -> Grid:
    if periodic:
        return Grid.periodic((8, 18), dx=0.5, dy=0.2)
    return Grid((8, 18), dx=0.5, dy=0.2, origin=(3.0, -1.0))


def affine(grid: Grid) -> torch.Tensor:
    x, y = grid.coordinates(torch.float64)
    return (2 + 3 * x - 5 * y)[None, None]


@pytest.mark.parametrize("size", SIZES)
def test_resizing_keeps_an_affine_field(size: tuple[int, int]) -> None:
    resizer = Resizer(grid_of(), size)
    found = resizer.resize(affine(grid_of()))
    torch.testing.assert_close(found, affine(resizer.new_grid), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("periodic", [False, True])
@pytest.mark.parametrize("size", [s for s in SIZES if s[0] <= 8 and s[1] <= 18])
def test_shrinking_conserves_the_mean(size: tuple[int, int], periodic: bool) -> None:
    field = random_states(3, 2, 8, 18).double()
    found = Resizer(grid_of(periodic=periodic), size).resize(field)
    torch.testing.assert_close(found.mean((-2, -1)), field.mean((-2, -1)), rtol=0, atol=1e-14)


def test_a_ratio_of_three_halves_by_hand() -> None:
    field = torch.tensor([[[[1.0, 2.0, 6.0]]]], dtype=torch.float64)
    found = Resizer(Grid((1, 3)), (1, 2)).resize(field)
    # Slopes 1, 2.5, 4. The left new cell: all of cell 0, the left half of cell 1, which averages
    # 2 - 2.5 / 4.
    expected = [(1 + 0.5 * (2 - 0.625)) / 1.5, (6 + 0.5 * (2 + 0.625)) / 1.5]
    torch.testing.assert_close(found.flatten(), torch.tensor(expected, dtype=torch.float64))


@pytest.mark.parametrize("size", [(5, 9), (8, 12), (16, 36), (11, 25)])
def test_the_seam_of_a_periodic_field_is_resized_like_its_inside(size: tuple[int, int]) -> None:
    """Two periods side by side, where the seam lies in the middle, give the same twice."""
    field = random_states(1, 1, 8, 18).double()
    doubled = field.repeat(1, 1, 1, 2)
    single = Resizer(grid_of(periodic=True), size).resize(field)
    wide = Resizer(Grid.periodic((8, 36)), (size[0], 2 * size[1])).resize(doubled)
    torch.testing.assert_close(wide, single.repeat(1, 1, 1, 2), rtol=0, atol=1e-13)


def test_a_size_that_is_no_pair_of_whole_numbers_is_refused(no_shape_checks: None) -> None:
    for wrong in ((64,), (4.5, 8), (1, 2, 3)):
        with refused("rows and columns", wrong):
            represent(make_trajectory(), size=wrong)  # type: ignore[arg-type]


def test_unknown_points_do_not_enter_an_average() -> None:
    states = torch.full((1, 1, 2, 4), 7.0)
    body = torch.tensor([[True, False, False, False]] * 2)
    states[0, 0][body] = math.nan
    valid = torch.tensor([[True, True, True, False], [True, True, False, False]])
    states[0, 0][~valid] = math.inf
    small = represent(
        make_trajectory(states=states, channels=("p",), body=body, valid=valid), size=(1, 2)
    )
    assert small.read().flatten().tolist() == [7.0, 7.0]
    assert small.body is not None and small.valid is not None
    assert small.body.tolist() == [[True, False]]  # type: ignore[union-attr]
    # Of the right cell one point in four is valid: missing. Of the left one all fluid is.
    assert small.valid.tolist() == [[True, False]]  # type: ignore[union-attr]


@pytest.mark.parametrize("periodic", [False, True])
@pytest.mark.parametrize("size", [(64, 128), (48, 64), (61, 60), (31, 178)])
def test_scattered_gaps_do_not_spread_and_constants_stay(
    size: tuple[int, int], periodic: bool
) -> None:
    shape = (61, 89)
    grid = Grid.periodic(shape) if periodic else Grid(shape)
    known = torch.rand(3, *shape, generator=torch.Generator().manual_seed(0)) > 0.011
    resizer = Resizer(grid, size)
    valid = resizer.resize_valid(known, None)
    assert float((~valid).double().mean()) < 1.1 * float((~known).double().mean())
    constant = torch.where(known[:, None], 3.25, math.nan)
    found = resizer.resize(constant, known)[:, 0]
    torch.testing.assert_close(found[valid], torch.full_like(found[valid], 3.25))


@pytest.mark.parametrize("size", [(12, 27), (16, 36), (4, 9), (6, 11)])
def test_affine_fields_are_kept_around_a_gap(size: tuple[int, int]) -> None:
    resizer = Resizer(grid_of(), size)
    known = torch.ones(1, 8, 18, dtype=torch.bool)
    known[0, 3, 5] = known[0, 0, 17] = known[0, 5, 9] = False
    field = torch.where(known[:, None], affine(grid_of()), math.nan)
    found, valid = resizer.resize(field, known), resizer.resize_valid(known, None)
    exact = affine(resizer.new_grid)
    torch.testing.assert_close(found[valid[:, None]], exact[valid[:, None]])
    within = resizer.average(field, known)[valid[:, None]]
    assert float(within.min()) >= float(field[known[:, None]].min())
    assert float(within.max()) <= float(field[known[:, None]].max())


def test_frames_and_channels_of_a_view() -> None:
    trajectory = make_trajectory(frames=11, channels=("u", "v", "p"))
    view = represent(trajectory, stride=3, max_frames=3, channels=("p", "u"))
    expected = trajectory.read()[[0, 3, 6]][:, [2, 0]]
    assert torch.equal(view.read(), expected)
    assert torch.equal(view.read(slice(1, 3), [1]), expected[1:3, [1]])
    assert torch.equal(view.time, trajectory.time[[0, 3, 6]])
    assert view.spec.channels == ("p", "u") and view.spec.dt == pytest.approx(0.15)
    assert view.local == {"stride": 3, "channels": ["p", "u"], "max_frames": 3}


def test_a_stride_across_gaps_in_time_is_refused() -> None:
    time = 0.05 * torch.tensor([0, 1, 10, 11, 20, 21], dtype=torch.float64)
    trajectory = make_trajectory(time=time)
    with refused("'a'", "stride of 2", "2 gaps"):
        represent(trajectory, stride=2)
    view = represent(trajectory, max_frames=4, size=(3, 4))
    assert torch.equal(view.time, time[:4]) and view.spec.dt == 0.05
    # Without a time step there is no telling what is a gap.
    unknown = replace(trajectory, spec=replace(trajectory.spec, dt=None))
    assert represent(unknown, stride=2).num_frames == 3


def test_a_moving_body_moves_in_the_view() -> None:
    body = torch.zeros(6, 4, 8, dtype=torch.bool)
    for frame in range(6):
        body[frame, :2, frame : frame + 2] = True
    trajectory = make_trajectory(states=random_states(6, 2, 4, 8), body=body)
    view = represent(trajectory, stride=2, size=(2, 4))
    assert view.spec.grid.body is None
    expected = torch.zeros(3, 2, 4, dtype=torch.bool)
    for frame in range(3):
        expected[frame, 0, frame] = True
    assert torch.equal(~view.known(), expected)
    assert torch.equal(~view.known(slice(1, 2)), expected[1:2])
    assert torch.equal(view.load().known(), view.known())


@pytest.mark.parametrize(
    ("choice", "found"),
    [
        ({"channels": ("u", "w")}, r"\['w'\]; choose from: u, v"),
        ({"size": (0, 3)}, "two positive numbers"),
        ({"frames": slice(20, None)}, "'a' has 6 frames: .*20:"),
    ],
)
def test_wrong_arguments_are_named(choice: dict[str, Any], found: str) -> None:
    with pytest.raises(ValueError, match=found):
        represent(make_trajectory(), **choice)


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


def test_a_cut_side_is_open_and_a_cut_periodic_axis_on_both_sides() -> None:
    whole = make_trajectory()
    sides = Sides("periodic", "periodic", "wall", "slip")  # type: ignore[arg-type]
    grid = Grid(SHAPE, 0.1, 0.2, sides)
    whole = replace(whole, spec=replace(whole.spec, grid=grid))
    part = crop(whole, Region(rows=slice(1, None), columns=slice(0, -1)))
    assert part.spec.grid.sides == ("open", "open", "open", "slip")
    assert crop(whole, Region()).spec.grid.sides == sides


def test_an_axis_stays_periodic_without_an_end_that_repeats_its_start() -> None:
    whole = make_trajectory(body=None, valid=None)
    states = whole.read().clone()
    states[..., -1] = states[..., 0]
    spec = replace(whole.spec, grid=Grid.periodic(SHAPE, 0.1, 0.2))
    whole = replace(whole, states=states, spec=spec)
    assert crop(whole, Region(columns=slice(0, -1))).spec.grid.sides == spec.grid.sides
    assert not crop(whole, Region(columns=slice(0, -2))).spec.grid.periodic_x
    both = crop(whole, Region(columns=slice(0, -1), rows=slice(0, -1))).spec.grid
    assert both.periodic_x and not both.periodic_y  # the last row repeats nothing


def test_a_region_includes_its_ends_and_is_refused_without_points_or_given_twice() -> None:
    whole = make_trajectory()
    grid = Grid(SHAPE, 0.1, 0.2, origin=(1.0, -0.2))
    whole = replace(whole, spec=replace(whole.spec, grid=grid))
    part = crop(whole, Region(x=(1.1, 1.3), y=(None, 0.2)))
    assert torch.equal(part.read(), whole.read()[..., :3, 1:4])
    with refused("0 of", COLUMNS, "along x"):
        crop(whole, Region(x=(100.0, None)))
    with pytest.raises(ValueError, match="by x or by columns"):
        Region(x=(0.0, 1.0), columns=slice(1))
    with pytest.raises(ValueError, match="found one of 2"):
        Region(rows=slice(0, 6, 2))
