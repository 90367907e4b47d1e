"""Filling of recordings: filled and unchanged values, notes and refusals."""

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import scipy.ndimage
import torch
from torch import Tensor

from pibert.data.filling import FillReport, FillSettings, fill_recordings, thin_plate
from pibert.data.format import Reader, check
from pibert.fields import Grid, Trajectory
from pibert.inference.filling import fit_to
from tests.data.helpers import disc, make_trajectory, recorded
from tests.helpers import assert_close, refused

SHAPE = (12, 18)


def smooth(frames: int = 5) -> Tensor:
    """Velocities without an outlier."""
    rows, columns = torch.meshgrid(*(torch.arange(n).float() for n in SHAPE), indexing="ij")
    times = torch.arange(frames).float()[:, None, None]
    u = torch.sin(0.3 * columns + times) + 0.1 * rows
    return torch.stack((u, torch.cos(0.2 * rows - times) + 0 * columns), dim=1)


class Sevens:
    """Returns 7 at unknown points and the input elsewhere."""

    def __init__(self) -> None:
        self.calls: list[tuple[Tensor, Tensor, Mapping[str, float]]] = []

    def __call__(self, fields: Tensor, known: Tensor, parameters: Mapping[str, float]) -> Tensor:
        self.calls.append((fields, known, parameters))
        return torch.where(known[:, :, None], fields, 7.0)


def settings(trajectory: Trajectory, **changes: Any) -> FillSettings:
    given: dict[str, Any] = {
        "repair": Sevens(),
        "spec": trajectory.spec,
        "fill_masked": True,
    } | changes
    return FillSettings(fit=fit_to(given["spec"], given.get("history", 1)), **given)


def fill(
    trajectory: Trajectory, out: Path, how: FillSettings | None = None
) -> tuple[FillReport, Trajectory]:
    report = fill_recordings(recorded(trajectory), out, how or settings(trajectory))
    check(out)
    return report, Reader(out)[trajectory.name].load()


def test_missing_vectors_are_filled_and_all_others_keep_their_bits(tmp_path: Path) -> None:
    states, valid = smooth(), torch.ones(5, *SHAPE, dtype=torch.bool)
    valid[1, 3:5, 4:9] = False
    states[2, 1, 7, 7] = math.nan  # a value that is missing without being marked
    trajectory = make_trajectory(states=states, valid=valid)
    report, written = fill(trajectory, tmp_path / "out.h5")
    gaps = ~valid
    gaps[2, 7, 7] = True
    expected = torch.where(gaps[:, None], 7.0, states)
    assert torch.equal(written.read(), expected)
    assert written.valid is None
    assert torch.equal(written.measured(), ~gaps)
    assert (report.vectors, report.missing, report.flagged, report.filled) == (5 * 216, 11, 0, 11)
    counts = {"masked": 0, "missing": 11, "flagged": 0, "filled": 11}
    assert written.local["filling"] == {**counts, "noise": None}
    assert written.local["stride"] == 1 and written.local["file"] == "flow.h5"
    assert (report.example.frame, int(report.example.missing.sum())) == (1, 10)
    assert torch.equal(report.example.after, expected[1])


def test_points_that_no_frame_knows_stay_empty_unless_they_are_wanted(tmp_path: Path) -> None:
    states, valid = smooth(), torch.ones(5, *SHAPE, dtype=torch.bool)
    masked = torch.zeros(SHAPE, dtype=torch.bool)
    masked[2:5, 6:10] = True  # a mask of the PIV program
    valid[:, masked] = False
    valid[3, 8, 2] = False
    trajectory = make_trajectory(states=states, valid=valid)
    report, written = fill(trajectory, tmp_path / "out.h5", settings(trajectory, fill_masked=False))
    assert (report.masked, report.missing, report.filled) == (5 * 12, 1, 1)
    assert torch.equal(written.known(), ~masked.expand(5, *SHAPE))
    assert torch.equal(report.example.body, masked)
    report, written = fill(trajectory, tmp_path / "all.h5")
    assert report.filled == 5 * 12 + 1 and bool(written.known().all())


def test_a_short_recording_has_no_masked_points(tmp_path: Path) -> None:
    states, valid = smooth(frames=2), torch.ones(2, *SHAPE, dtype=torch.bool)
    valid[:, 3, 3] = False  # by chance
    trajectory = make_trajectory(states=states, valid=valid)
    report, _ = fill(trajectory, tmp_path / "out.h5", settings(trajectory, fill_masked=False))
    assert (report.masked, report.filled) == (0, 2)


def test_spurious_vectors_are_replaced_and_the_change_is_reported(tmp_path: Path) -> None:
    states = smooth()
    states[3, :, 6, 9] = torch.tensor([5.0, -4.0])
    trajectory = make_trajectory(states=states)
    how = settings(trajectory, noise=0.1, provenance={"model": "wakes"})
    report, written = fill(trajectory, tmp_path / "out.h5", how)
    changed = (written.read() != states).any(1)
    assert changed.nonzero().tolist() == [[3, 6, 9]]
    assert written.read()[3, :, 6, 9].tolist() == [7.0, 7.0]
    assert (report.missing, report.flagged, report.filled) == (0, 1, 1)
    assert report.change == pytest.approx({"u": 2.0, "v": 11.0})
    assert report.largest == pytest.approx({"u": 2.0, "v": 11.0})
    assert written.local["filling"]["model"] == "wakes"
    # The flagged vector is unknown to the repair.
    assert isinstance(how.repair, Sevens)
    assert not bool(how.repair.calls[0][1][0, 0, 6, 9])


def test_points_inside_bodies_are_not_filled(tmp_path: Path) -> None:
    states, body = smooth(), disc(SHAPE)
    states[:, :, body] = math.nan
    states[0, 0, 9, 9] = math.nan
    recording = make_trajectory(states=states, body=body)
    report, written = fill(recording, tmp_path / "a.h5")
    assert (report.missing, report.filled) == (1, 1)
    assert bool(written.read()[:, :, body].isnan().all())
    assert not bool(report.example.missing[body].any()) and torch.equal(report.example.body, body)
    # A body that only the model knows is not filled either: those points stay missing.
    alien = make_trajectory(states=states)
    spec = replace(alien.spec, grid=replace(alien.spec.grid, body=body))
    report, written = fill(alien, tmp_path / "alien.h5", settings(alien, spec=spec))
    assert report.filled == 1
    assert torch.equal(written.known(), ~body.expand(5, *SHAPE))


@pytest.mark.parametrize("history", [1, 2, 3])
def test_a_window_ends_at_the_frame_that_is_filled(tmp_path: Path, history: int) -> None:
    states, valid = smooth(), torch.ones(5, *SHAPE, dtype=torch.bool)
    valid[0, 1, 1] = valid[3, 2, 2] = False

    class Newest(Sevens):
        def __call__(self, fields: Tensor, known: Tensor, given: Mapping[str, float]) -> Tensor:
            filled = super().__call__(fields, known, given)
            marks = torch.arange(fields.shape[1]).float()[:, None, None, None] + 100
            return torch.where(known[:, :, None], filled, marks)

    repair = Newest()
    trajectory = make_trajectory(states=states, valid=valid)
    how = settings(trajectory, repair=repair, history=history)
    _, written = fill(trajectory, tmp_path / "out.h5", how)
    filled = written.read()
    assert torch.equal(
        filled[valid[:, None].expand_as(filled)], states[valid[:, None].expand_as(filled)]
    )
    assert filled[0, :, 1, 1].tolist() == [100.0, 100.0]  # the first frame begins its window
    assert filled[3, :, 2, 2].tolist() == [99.0 + history] * 2
    fields, _, parameters = repair.calls[0]
    assert torch.equal(fields[1], states[4 - history : 4])
    assert parameters == {"Re": 1800.0}


def test_units_are_converted_to_those_of_the_model(tmp_path: Path) -> None:
    states, valid = smooth(), torch.ones(SHAPE, dtype=torch.bool)
    valid[2, 2] = False
    trajectory = make_trajectory(states=states, valid=valid)
    millimetres = replace(
        trajectory,
        spec=replace(
            trajectory.spec,
            grid=replace(trajectory.spec.grid, dx=100.0, dy=300.0, origin=(0.0, 0.0)),
        ),
        length_unit="mm",
    )
    notes: list[str] = []
    how = settings(trajectory)
    fill_recordings(recorded(millimetres), tmp_path / "a.h5", how, on_note=notes.append)
    written = Reader(tmp_path / "a.h5")["a"]
    assert written.spec.grid.dx == pytest.approx(0.1) and written.length_unit == "m"
    assert torch.equal(written.read()[..., valid], states[..., valid])
    assert len(notes) == 1 and "length mm -> m" in notes[0]
    other = replace(
        trajectory, spec=replace(trajectory.spec, grid=replace(trajectory.spec.grid, dx=0.2))
    )
    notes.clear()
    fill_recordings(recorded(other), tmp_path / "b.h5", how, on_note=notes.append)
    assert notes == ["a: points are (0.2, 0.3) apart, those of the model (0.1, 0.3)"]


def test_recordings_that_do_not_fit_the_model_are_refused(tmp_path: Path) -> None:
    valid, out = torch.ones(SHAPE, dtype=torch.bool), tmp_path / "out.h5"
    valid[2, 2] = False
    trajectory = make_trajectory(states=smooth(), valid=valid)
    spec, empty = trajectory.spec, torch.zeros(SHAPE, dtype=torch.bool)
    scalar = replace(spec, channels=("p", "T"), family=None)
    small = replace(spec.grid, shape=(6, 18))
    wrong: dict[str, tuple[Trajectory, dict[str, Any]]] = {
        "--keep": (trajectory, {"spec": replace(spec, channels=("v", "u"))}),
        "--size 6x18": (trajectory, {"spec": replace(spec, grid=small)}),
        "'u' in cm/s": (trajectory, {"spec": replace(spec, units=("cm/s", "cm/s"))}),
        "at least 6 frames": (trajectory, {"history": 6}),
        "positive noise": (trajectory, {"noise": 0.0}),
        "needs a velocity": (trajectory, {"noise": 0.1, "spec": scalar}),
        "nothing to fill.*outliers were not tested": (make_trajectory(states=smooth()), {}),
        "nothing to fill from": (make_trajectory(states=smooth(), valid=empty), {}),
    }
    for words, (given, changes) in wrong.items():
        with pytest.raises(ValueError, match=words):
            fill(given, out, settings(given, **changes))
    assert not out.exists()
    fill(trajectory, out)
    with pytest.raises(ValueError, match="is the input"):
        fill_recordings(recorded(trajectory, path=out), out, settings(trajectory))


def test_a_filled_file_that_is_filled_again_keeps_its_marks(tmp_path: Path) -> None:
    valid = torch.ones(5, *SHAPE, dtype=torch.bool)
    valid[1, 3:5, 4:9] = False
    fill(make_trajectory(states=smooth(), valid=valid), tmp_path / "once.h5")
    with Reader(tmp_path / "once.h5") as reader:
        once = reader["a"].load()
    later = torch.ones_like(valid)
    later[3, 8, 8] = False
    _, twice = fill(replace(once, valid=later), tmp_path / "twice.h5")
    assert torch.equal(twice.measured(), valid & later)
    later[2] = False  # a frame without a vector stays missing
    report, part = fill(replace(once, valid=later), tmp_path / "part.h5")
    assert report.filled == 1 and part.known().flatten(1).sum(1).tolist() == [216, 216, 0, 216, 216]


def damaged_vortices() -> tuple[Trajectory, Tensor, Tensor, Tensor]:
    """Decaying vortices with known gaps and outliers: flow, truth, gaps, outliers."""
    grid = Grid((40, 56), dx=0.1, dy=0.15)
    x, y = grid.coordinates(torch.float64)
    decay = torch.exp(-0.2 * torch.arange(3.0, dtype=torch.float64))[:, None, None]
    truth = torch.stack((torch.sin(x) * torch.cos(y), -torch.cos(x) * torch.sin(y)))
    truth = 5e-3 * decay[:, None] * truth
    generator = torch.Generator().manual_seed(4)
    chance = torch.rand(3, *grid.shape, generator=generator)
    gaps, outliers = chance < 0.05, chance > 0.99
    gaps[1, 10:16, 20:26] = True  # a shadow
    outliers &= ~gaps
    outliers[:, [0, -1]] = outliers[:, :, [0, -1]] = False  # too few neighbours to be sure
    wrong = 0.02 * torch.randn(3, 2, *grid.shape, generator=generator).double()
    wrong = wrong + 0.03 * wrong.sign()
    states = torch.where(outliers[:, None], wrong, truth).float()
    states[gaps[:, None].expand_as(states)] = math.nan
    base = make_trajectory(states=states, valid=~gaps)
    return replace(base, spec=replace(base.spec, grid=grid)), truth, gaps, outliers


def test_thin_plates_restore_a_smooth_field_far_better_than_nearest_neighbours(
    tmp_path: Path,
) -> None:
    flow, truth, gaps, outliers = damaged_vortices()
    report, filled = fill(flow, tmp_path / "out.h5", thin_plate(recorded(flow)))
    assert report.noise == pytest.approx(
        0.1 * float(truth.std((0, 2, 3)).square().mean().sqrt()), rel=0.05
    )
    assert report.missing == int(gaps.sum())
    marked, inner = filled.known() & ~filled.measured(), (slice(None), slice(1, -1), slice(1, -1))
    assert torch.equal(marked[inner], (gaps | outliers)[inner])
    kept = ~(gaps | outliers | marked)
    values, exact = filled.read().double().movedim(1, 0), truth.movedim(1, 0)
    assert torch.equal(values[:, kept].float(), flow.read().movedim(1, 0)[:, kept])

    def error(values: Tensor) -> float:
        wrong = (values - exact)[:, gaps | outliers]
        return float(wrong.square().mean().sqrt() / exact.square().mean().sqrt())

    nearest = exact.clone()
    for frame, known in enumerate(kept):
        where = scipy.ndimage.distance_transform_edt(
            ~known, sampling=(0.15, 0.1), return_distances=False, return_indices=True
        )
        nearest[:, frame] = exact[:, frame][
            :, torch.from_numpy(where[0]), torch.from_numpy(where[1])
        ]
    assert error(values) < 0.003
    assert error(values) < error(nearest) / 50


def test_filled_uncertainties_stay_in_the_range_of_their_frame(tmp_path: Path) -> None:
    velocity, valid = smooth(), torch.ones(5, *SHAPE, dtype=torch.bool)
    uncertainty = 0.01 + (torch.arange(18) - 9.0).abs().expand(5, 1, *SHAPE).clone()
    valid[:, 4:8, 6:12] = False  # the minimum is in the gap, and a smooth surface overshoots
    uncertainty[:, :, :, 5], uncertainty[:, :, :, 12] = 0.02, 0.01
    flow = make_trajectory(
        states=torch.cat((velocity, uncertainty), 1),
        channels=("u", "v", "uncertainty_u"),
        valid=valid,
    )
    _, filled = fill(flow, tmp_path / "a.h5", thin_plate(recorded(flow), fill_masked=True))
    found = filled.read()[:, 2]
    assert found.min() >= 0.01 and found.max() <= uncertainty.max()


def test_thin_plates_are_independent_of_units_and_exact_for_planes(tmp_path: Path) -> None:
    x, y = Grid(SHAPE, dx=0.1, dy=0.3).coordinates(torch.float64)
    plane = torch.stack((1e-12 * (x + 2 * y), 1e-12 * (3 - y)))[None]
    valid = torch.ones(SHAPE, dtype=torch.bool)
    valid[4:7, 5:9] = valid[0, 0] = valid[-1, 3] = False
    flow = make_trajectory(states=plane.float(), valid=valid)
    _, filled = fill(flow, tmp_path / "a.h5", thin_plate(recorded(flow), flag_outliers=False))
    assert_close(filled.read()[0], plane[0].float(), rtol=1e-5)


def test_recordings_with_other_grids_are_refused(tmp_path: Path) -> None:
    other = make_trajectory("b", states=smooth(), channels=("v", "u"))
    both = recorded(make_trajectory(states=smooth()), other)
    with refused("'b'", "one by one"):
        fill_recordings(both, tmp_path / "a.h5", thin_plate(both))
