"""Other frames, channels and resolutions of a trajectory."""

import math
from dataclasses import replace

import pytest
import torch

from pibert.data import resample
from pibert.data.resample import Resizer, represent
from pibert.fields import Grid, Trajectory
from tests.data.helpers import disc, make_trajectory, random_states

SIZES = [(4, 6), (5, 9), (3, 5), (8, 18), (1, 1), (12, 7), (5, 20), (16, 4), (13, 19)]


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


def test_a_whole_ratio_is_the_block_average() -> None:
    field = random_states(2, 1, 8, 18).double()
    found = Resizer(grid_of(), (4, 6)).resize(field)
    blocks = field.reshape(2, 1, 4, 2, 6, 3).mean((3, 5))
    torch.testing.assert_close(found, blocks, rtol=0, atol=1e-14)


def test_a_ratio_of_three_halves_by_hand() -> None:
    field = torch.tensor([[[[1.0, 2.0, 6.0]]]], dtype=torch.float64)
    found = Resizer(Grid((1, 3)), (1, 2)).resize(field)
    # Slopes 1, 2.5, 4. The left new cell: all of cell 0, the left half of cell 1, which averages
    # 2 - 2.5 / 4.
    expected = [(1 + 0.5 * (2 - 0.625)) / 1.5, (6 + 0.5 * (2 + 0.625)) / 1.5]
    torch.testing.assert_close(found.flatten(), torch.tensor(expected, dtype=torch.float64))


@pytest.mark.parametrize("size", [(5, 9), (8, 12), (16, 36), (11, 25)])
def test_the_seam_of_a_periodic_field_is_a_place_like_any_other(size: tuple[int, int]) -> None:
    """Two periods side by side, where the seam lies in the middle, give the same twice."""
    field = random_states(1, 1, 8, 18).double()
    doubled = field.repeat(1, 1, 1, 2)
    single = Resizer(grid_of(periodic=True), size).resize(field)
    wide = Resizer(Grid.periodic((8, 36)), (size[0], 2 * size[1])).resize(doubled)
    torch.testing.assert_close(wide, single.repeat(1, 1, 1, 2), rtol=0, atol=1e-13)


def test_growing_is_linear_between_the_points() -> None:
    field = torch.tensor([[[[0.0, 4.0]]]], dtype=torch.float64)
    found = Resizer(Grid((1, 2)), (1, 4)).resize(field)
    assert found.flatten().tolist() == [-1.0, 1.0, 3.0, 5.0]


def test_the_new_grid_covers_the_same_extent() -> None:
    old, new = grid_of(), Resizer(grid_of(), (3, 27)).new_grid
    for axis, n, m, d_old, d_new in ((0, 18, 27, old.dx, new.dx), (1, 8, 3, old.dy, new.dy)):
        assert math.isclose(n * d_old, m * d_new)
        assert math.isclose(old.origin[axis] - d_old / 2, new.origin[axis] - d_new / 2)
    assert new.sides == old.sides


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


def test_a_cell_without_a_known_point_becomes_nan_and_is_masked() -> None:
    body = torch.zeros(4, 6, dtype=torch.bool)
    body[:2, :3] = True
    trajectory = make_trajectory(states=random_states(2, 1, 4, 6), channels=("p",), body=body)
    small = represent(trajectory, size=(2, 2))
    assert bool(small.read()[:, 0, 0, 0].isnan().all())
    assert torch.equal(small.known(), small.read()[:, 0].isfinite())


def test_masked_resizing_keeps_a_constant_for_any_ratio() -> None:
    for size in SIZES:
        trajectory = make_trajectory(states=torch.full((2, 1, 8, 18), 3.0), channels=("p",))
        trajectory.states[:, :, 2:4, 5:9] = math.nan  # type: ignore[index]
        body = torch.zeros(8, 18, dtype=torch.bool)
        body[2:4, 5:9] = True
        view = represent(make_trajectory(states=trajectory.read(), channels=("p",), body=body))
        small = represent(view, size=size)
        values = small.read()[small.known()[:, None]]
        torch.testing.assert_close(values, torch.full_like(values, 3.0))


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


def test_the_error_around_gaps_falls_with_the_square_of_the_spacing() -> None:
    errors = []
    for factor in (1, 2):
        shape = (40 * factor, 60 * factor)
        grid = Grid(shape, dx=1 / factor, dy=1 / factor, origin=(0.5 / factor, 0.5 / factor))
        resizer = Resizer(grid, (52 * factor, 47 * factor))

        def wave(own: Grid) -> torch.Tensor:
            x, y = own.coordinates(torch.float64)
            return (torch.sin(0.3 * x) * torch.cos(0.2 * y))[None, None]

        known = torch.rand(1, *shape, generator=torch.Generator().manual_seed(1)) > 0.02
        found = resizer.resize(wave(grid), known)
        valid = resizer.resize_valid(known, None)
        exact, here = wave(resizer.new_grid), valid[:, None]
        away = [(own - exact)[here] for own in (found, resizer.resize(wave(grid)))]
        errors.append([float(own.square().mean().sqrt()) for own in away])
        assert errors[-1][0] < 2 * errors[-1][1]
    assert errors[1][0] < 0.3 * errors[0][0]


def test_frames_and_channels_of_a_view() -> None:
    trajectory = make_trajectory(frames=11, channels=("u", "v", "p"))
    view = represent(trajectory, stride=3, max_frames=3, channels=("p", "u"))
    expected = trajectory.read()[[0, 3, 6]][:, [2, 0]]
    assert torch.equal(view.read(), expected)
    assert torch.equal(view.read(slice(1, 3), [1]), expected[1:3, [1]])
    assert torch.equal(view.time, trajectory.time[[0, 3, 6]])
    assert view.spec.channels == ("p", "u") and view.spec.dt == pytest.approx(0.15)
    assert view.local == {"stride": 3, "channels": ["p", "u"], "max_frames": 3}


def test_views_of_views_compose() -> None:
    trajectory = make_trajectory(frames=30, channels=("u", "v", "p"))
    once = represent(trajectory, stride=6, channels=("p", "v"))
    twice = represent(represent(trajectory, stride=2, channels=("v", "p")), stride=3)
    twice = represent(twice, channels=("p", "v"), size=(3, 4))
    assert torch.equal(twice.read(), represent(once, size=(3, 4)).read())
    assert twice.local["stride"] == 6
    assert twice.local["resize"] == {"from": [5, 7], "to": [3, 4]}


def test_stretches_of_frames_compose_and_are_counted_in_the_source() -> None:
    trajectory = make_trajectory(frames=20)
    once = represent(trajectory, frames=slice(4, None), stride=2)
    twice = represent(once, frames=slice(1, -1))
    assert torch.equal(twice.read(), trajectory.read()[[6, 8, 10, 12, 14, 16]])
    assert once.local["frames"] == [4, 19] and twice.local["frames"] == [6, 16]
    with pytest.raises(ValueError, match="'a' has 20 frames: none of them is among 20:"):
        represent(trajectory, frames=slice(20, None))
    with pytest.raises(ValueError, match="frames without a step, found one of 2; use stride"):
        represent(trajectory, frames=slice(2, 8, 2))


def test_a_stride_is_taken_within_a_stretch_that_has_no_gap() -> None:
    time = 0.05 * torch.tensor([0, 1, 10, 11, 12, 13], dtype=torch.float64)
    view = represent(make_trajectory(time=time), frames=slice(2, None), stride=2)
    assert torch.equal(view.time, time[[2, 4]])


def test_a_stride_across_gaps_in_time_is_refused() -> None:
    time = 0.05 * torch.tensor([0, 1, 10, 11, 20, 21], dtype=torch.float64)
    trajectory = make_trajectory(time=time)
    with pytest.raises(ValueError, match="'a': a stride of 2 would lead across 2 gaps"):
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


def test_missing_points_are_judged_by_the_fluid_around_a_moving_body() -> None:
    body = torch.zeros(2, 2, 4, dtype=torch.bool)
    body[0, :, 0] = body[1, :, 1] = True
    valid = torch.ones(2, 4, dtype=torch.bool)
    valid[:, 1] = False
    trajectory = make_trajectory(states=random_states(2, 1, 2, 4), channels=("p",), body=body)
    view = represent(replace(trajectory, valid=valid), size=(1, 2))
    assert view.valid is not None and tuple(view.valid.shape) == (2, 1, 2)
    # First the body leaves only missing points of the left cell, then only valid ones.
    assert view.load().valid.tolist() == [[[False, True]], [[True, True]]]  # type: ignore


def test_a_static_body_is_the_body_of_the_resized_grid() -> None:
    view: Trajectory = represent(make_trajectory(body=disc()), size=(10, 14))
    assert view.spec.grid.body is not None
    assert torch.equal(view.spec.grid.body, disc().repeat_interleave(2, 0).repeat_interleave(2, 1))


def test_a_wrong_choice_is_named() -> None:
    with pytest.raises(ValueError, match=r"unknown channels \['w'\]; choose from: u, v"):
        represent(make_trajectory(), channels=("u", "w"))
    with pytest.raises(ValueError, match="stride and max_frames must be 1 or more, found 0"):
        represent(make_trajectory(), stride=0)
    with pytest.raises(ValueError, match="size must be two positive numbers"):
        represent(make_trajectory(), size=(0, 3))


@pytest.mark.parametrize("size", [(4, 6), (5, 7), (12, 20)])
def test_many_frames_are_resized_as_each_by_itself(
    size: tuple[int, int], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(resample, "_TOGETHER", 3 * 2 * 8 * 18)
    fields, known = random_states(10, 2, 8, 18), random_states(10, 1, 8, 18)[:, 0] > -1
    resizer = Resizer(grid_of(), size)
    together = resizer.resize(fields, known)
    for frame in range(10):
        alone = resizer.resize(fields[frame : frame + 1], known[frame : frame + 1])
        torch.testing.assert_close(together[frame : frame + 1], alone, equal_nan=True)
