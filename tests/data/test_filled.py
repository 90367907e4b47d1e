"""Filled points: kept by every view and file, seen by models as input, never used as truth."""

from dataclasses import replace
from pathlib import Path

import h5py
import pytest
import torch
from torch import Tensor

from pibert.data.dataset import BatchOrder, Samples, Window, make_loader
from pibert.data.format import FormatError, Reader, check, write
from pibert.data.inspection import inspect
from pibert.data.measurement import Measurement, measure
from pibert.data.normalize import fit_normalizer
from pibert.data.readers import open_recordings
from pibert.data.readers.shared.regions import flip_trajectory
from pibert.data.resample import Region, crop, represent
from pibert.data.resident import ResidentLoader
from pibert.data.units import in_consistent_units
from pibert.fields import Normalizer, Trajectory, read_mask
from tests.data.helpers import disc, make_trajectory, random_states
from tests.helpers import refused

SHAPE = (5, 7)
FRAMES = 6
IDENTITY = Normalizer.identity(2)


def marked() -> Tensor:
    """A few points of every frame."""
    return torch.rand(FRAMES, *SHAPE, generator=torch.Generator().manual_seed(1)) < 0.2


def filled_points(trajectory: Trajectory) -> Tensor:
    assert trajectory.filled is not None
    return read_mask(trajectory.filled, slice(None))


def test_measured_points_are_known_and_not_filled() -> None:
    filled, valid = marked(), torch.ones(SHAPE, dtype=torch.bool)
    valid[0, 0] = False
    trajectory = make_trajectory(body=disc(), valid=valid, filled=filled)
    some = slice(1, 5, 2)
    assert torch.equal(trajectory.known(some), (valid & ~disc()).expand(2, *SHAPE))
    assert torch.equal(trajectory.measured(some), trajectory.known(some) & ~filled[some])

    still = make_trajectory(filled=disc())
    assert torch.equal(still.measured(some), (~disc()).expand(2, *SHAPE))


@pytest.mark.parametrize("moves", [False, True])
def test_views_keep_filled_points(moves: bool) -> None:
    filled = marked() if moves else disc()
    every = filled.expand(FRAMES, *SHAPE)
    trajectory = make_trajectory(filled=filled)

    def found(view: Trajectory) -> Tensor:
        return filled_points(view).expand(view.num_frames, *view.spec.grid.shape)

    part = crop(trajectory, Region(rows=slice(1, 4), columns=slice(2, 6)))
    assert torch.equal(found(part), every[:, 1:4, 2:6])
    view = represent(trajectory, frames=slice(1, 6), stride=2, channels=("v",))
    assert torch.equal(found(view), every[1:6:2])
    assert torch.equal(found(represent(view, max_frames=2)), every[1:5:2])
    assert torch.equal(found(flip_trajectory(trajectory, ("x", "v"))), every.flip(-1))
    assert torch.equal(found(measure(trajectory, Measurement(velocity=1.0))), every)
    in_mm = replace(trajectory, length_unit="mm")
    assert torch.equal(found(in_consistent_units(in_mm)), every)
    loaded = view.load()
    assert isinstance(loaded.filled, Tensor) and torch.equal(found(loaded), every[1:6:2])


def test_a_resized_point_is_filled_if_half_of_its_known_points_are() -> None:
    filled, valid = torch.zeros(2, 4, 4, dtype=torch.bool), torch.ones(4, 4, dtype=torch.bool)
    filled[0, :2, 0] = True  # two of four
    filled[0, 0, 2] = True  # one of four
    filled[0, 2, 0] = True  # one of two that are known
    valid[2:, 1] = False
    filled[1, 2:, 2:] = True
    trajectory = make_trajectory(states=random_states(2, 2, 4, 4), filled=filled, valid=valid)
    view = represent(trajectory, size=(2, 2))
    assert filled_points(view).tolist() == [
        [[True, False], [True, False]],
        [[False, False], [False, True]],
    ]
    static = represent(replace(trajectory, filled=filled[0]), size=(2, 2))
    assert isinstance(static.filled, Tensor) and static.filled.ndim == 2
    assert static.filled.tolist() == [[True, False], [True, False]]


def test_filled_points_are_written_read_and_checked(tmp_path: Path) -> None:
    path, moving = tmp_path / "a.h5", marked()
    write(path, [make_trajectory("a", filled=moving), make_trajectory("b", filled=disc())])
    check(path)
    with Reader(path) as reader:
        a, b = reader
        assert torch.equal(filled_points(a), moving) and torch.equal(filled_points(b), disc())
        assert torch.equal(a.measured(slice(2, 4)), ~moving[2:4])
    with h5py.File(path, "r+") as file:
        file["trajectories/a/filled"][3, 0, 0] = 2
    with refused("'filled'", "0 and 1", "found 2", error=FormatError):
        check(path)


def test_filled_points_are_input_but_never_targets() -> None:
    window = Window(history=2, horizon=2)
    filled, states = marked(), random_states(FRAMES, 2, *SHAPE)
    trajectory = make_trajectory(states=states, filled=filled)
    samples = Samples([trajectory, make_trajectory("b")], window=window, normalizer=IDENTITY)
    batch = samples.batch([1])
    past, future = slice(1, 3), slice(3, 5)
    assert bool(batch.mask.all())
    assert torch.equal(batch.x[0], states[past].flatten(0, 1))
    assert torch.equal(batch.target_mask[0], ~filled[future])
    expected = torch.where(filled[future, None], 0.0, states[future])
    assert torch.equal(batch.y[0], expected)
    assert batch.filled is not None and torch.equal(batch.filled[0], filled[past].any(0))
    order = BatchOrder(len(samples), 3, seed=1)
    for held, read in zip(ResidentLoader(samples, order), make_loader(samples, order), strict=True):
        for name in ("x", "y", "mask", "target_mask", "filled"):
            assert torch.equal(getattr(held, name), getattr(read, name)), name


def test_statistics_exclude_filled_points() -> None:
    states, filled = random_states(FRAMES, 2, *SHAPE), marked()
    wild = torch.where(filled[:, None], 1e6, states)
    found = fit_normalizer([make_trajectory(states=wild, filled=filled)])
    values = states.movedim(1, 0)[:, ~filled].double()
    assert found.mean == pytest.approx(values.mean(1).tolist())
    assert found.std == pytest.approx(values.std(1, correction=0).tolist())


def test_inspection_reports_the_share_of_filled_points(tmp_path: Path) -> None:
    filled = torch.zeros(FRAMES, *SHAPE, dtype=torch.bool)
    filled[:, 0, 0], filled[:, 1, 2] = True, True  # the second lies in the body
    write(tmp_path / "a.h5", [make_trajectory(filled=filled, body=disc())])
    found = inspect(open_recordings(tmp_path / "a.h5"))
    assert found.facts.filled_share == pytest.approx(1 / (35 - 4))
    (finding,) = [problem for problem in found.problems if problem.topic == "filled vectors"]
    assert "3.23%" in finding.seen and not finding.serious
