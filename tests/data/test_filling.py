"""Recordings with gaps into files without: what is filled, what stays, and what is told."""

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from pibert.data.filling import FillReport, fill_recordings
from pibert.data.format import Reader, check
from pibert.data.gaps import FillSettings
from pibert.data.sources.recordings import Recordings
from pibert.fields import Trajectory
from tests.data.helpers import disc, make_trajectory

SHAPE = (12, 18)


def smooth(frames: int = 5) -> Tensor:
    """Velocities without an outlier."""
    rows, columns = torch.meshgrid(*(torch.arange(n).float() for n in SHAPE), indexing="ij")
    times = torch.arange(frames).float()[:, None, None]
    u = torch.sin(0.3 * columns + times) + 0.1 * rows
    return torch.stack((u, torch.cos(0.2 * rows - times) + 0 * columns), dim=1)


def recorded(*trajectories: Trajectory, path: Path = Path("piv.h5")) -> Recordings:
    by_name = {trajectory.name: trajectory for trajectory in trajectories}
    return Recordings(
        kind="native", path=path, names=tuple(by_name), load=lambda name: by_name[name]
    )


class Sevens:
    """Puts 7 wherever nothing is known, and keeps what it was given."""

    def __init__(self) -> None:
        self.calls: list[tuple[Tensor, Tensor, Mapping[str, float]]] = []

    def __call__(self, fields: Tensor, known: Tensor, parameters: Mapping[str, float]) -> Tensor:
        self.calls.append((fields, known, parameters))
        return torch.where(known[:, :, None], fields, 7.0)


def settings(trajectory: Trajectory, **changes: Any) -> FillSettings:
    given: dict[str, Any] = {"repair": Sevens(), "spec": trajectory.spec} | changes
    return FillSettings(**given)


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
    assert written.local["filling"] == {"missing": 11, "flagged": 0, "filled": 11, "noise": None}
    assert written.local["stride"] == 1 and written.local["file"] == "piv.h5"
    assert (report.example.frame, int(report.example.missing.sum())) == (1, 10)
    assert torch.equal(report.example.after, expected[1])


def test_spurious_vectors_are_replaced_and_the_change_is_told(tmp_path: Path) -> None:
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
    # The repair was told not to trust the vector.
    assert isinstance(how.repair, Sevens)
    assert not bool(how.repair.calls[0][1][0, 0, 6, 9])


def test_bodies_stay_as_they_are(tmp_path: Path) -> None:
    states, body = smooth(), disc(SHAPE)
    states[:, :, body] = math.nan
    states[0, 0, 9, 9] = math.nan
    own = make_trajectory(states=states, body=body)
    report, written = fill(own, tmp_path / "own.h5")
    assert (report.missing, report.filled) == (1, 1)
    assert bool(written.read()[:, :, body].isnan().all())
    assert not bool(report.example.missing[body].any()) and torch.equal(report.example.body, body)
    # A body that only the model knows is not filled either: those points stay missing.
    alien = make_trajectory(states=states)
    spec = replace(alien.spec, grid=replace(alien.spec.grid, body=body))
    report, written = fill(alien, tmp_path / "alien.h5", settings(alien, spec=spec))
    assert report.filled == 1
    assert torch.equal(written.known(), ~body.expand(5, *SHAPE))


def test_a_frame_without_a_sound_vector_stays_missing(tmp_path: Path) -> None:
    valid = torch.ones(5, *SHAPE, dtype=torch.bool)
    valid[2] = False
    valid[4, 0, 0] = False
    trajectory = make_trajectory(states=smooth(), valid=valid)
    report, written = fill(trajectory, tmp_path / "out.h5")
    assert (report.missing, report.filled) == (217, 1)
    assert written.known().flatten(1).sum(1).tolist() == [216, 216, 0, 216, 216]


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


def test_several_recordings_are_filled_and_the_worst_frame_is_shown(tmp_path: Path) -> None:
    masks = torch.ones(2, 5, *SHAPE, dtype=torch.bool)
    masks[0, 1, 2, 2] = False
    masks[1, 4, 2:5, 2] = False
    parts = [make_trajectory(n, states=smooth(), valid=m) for n, m in zip("ab", masks, strict=True)]
    shares: list[float] = []
    report = fill_recordings(
        recorded(*parts), tmp_path / "out.h5", settings(parts[0]), on_progress=shares.append
    )
    assert Reader(tmp_path / "out.h5").names == ("a", "b")
    assert (report.filled, report.example.name, report.example.frame) == (4, "b", 4)
    assert shares == sorted(shares) and shares[-1] == 1.0


def test_units_are_brought_to_those_of_the_model(tmp_path: Path) -> None:
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
    remarks: list[str] = []
    how = settings(trajectory)
    fill_recordings(recorded(millimetres), tmp_path / "a.h5", how, on_remark=remarks.append)
    written = Reader(tmp_path / "a.h5")["a"]
    assert written.spec.grid.dx == pytest.approx(0.1) and written.length_unit == "m"
    assert torch.equal(written.read()[..., valid], states[..., valid])
    assert remarks == ["a: in metres and seconds, as the model"]
    other = replace(
        trajectory, spec=replace(trajectory.spec, grid=replace(trajectory.spec.grid, dx=0.2))
    )
    remarks.clear()
    fill_recordings(recorded(other), tmp_path / "b.h5", how, on_remark=remarks.append)
    assert remarks == ["a: points are (0.2, 0.3) apart, those of the model (0.1, 0.3)"]


def test_units_that_are_not_stated_are_noted_and_pixels_refused(tmp_path: Path) -> None:
    valid = torch.ones(SHAPE, dtype=torch.bool)
    valid[2, 2] = False
    known = make_trajectory(states=smooth(), valid=valid)
    spec, remarks = replace(known.spec, units=("1", "1")), list[str]()
    bare = replace(known, spec=spec, length_unit=None)
    how = settings(known)
    fill_recordings(recorded(bare), tmp_path / "a.h5", how, on_remark=remarks.append)
    (note,) = remarks
    assert "no unit is stated: it is assumed that the model's fit, u in m/s" in note
    assert Reader(tmp_path / "a.h5")["a"].spec.units == ("1", "1")
    grid = replace(spec.grid, dx=16.0, dy=16.0, origin=(8.0, 8.0))
    pixels = replace(bare, spec=replace(spec, grid=grid))
    with pytest.raises(ValueError, match="look like pixels; give --scale and --pulse-delay"):
        fill_recordings(recorded(pixels), tmp_path / "b.h5", how)
    assert not (tmp_path / "b.h5").exists()


def test_what_does_not_fit_the_model_is_refused_and_nothing_is_written(tmp_path: Path) -> None:
    valid = torch.ones(SHAPE, dtype=torch.bool)
    valid[2, 2] = False
    trajectory = make_trajectory(states=smooth(), valid=valid)
    spec, out = trajectory.spec, tmp_path / "out.h5"
    wrong = {
        "--keep": replace(spec, channels=("v", "u")),
        "--size 6x18": replace(spec, grid=replace(spec.grid, shape=(6, 18))),
        "'u' in cm/s": replace(spec, units=("cm/s", "cm/s")),
    }
    for words, other in wrong.items():
        with pytest.raises(ValueError, match=words):
            fill(trajectory, out, settings(trajectory, spec=other))
    with pytest.raises(ValueError, match="at least 6 frames"):
        fill(trajectory, out, settings(trajectory, history=6))
    with pytest.raises(ValueError, match="nothing to fill.*outliers were not looked for"):
        fill(make_trajectory(states=smooth()), out)
    nothing = make_trajectory(states=smooth(), valid=torch.zeros(SHAPE, dtype=torch.bool))
    with pytest.raises(ValueError, match="nothing to fill from"):
        fill(nothing, out)
    assert not out.exists()
    fill(trajectory, out)
    with pytest.raises(ValueError, match="is the input"):
        fill_recordings(recorded(trajectory, path=out), out, settings(trajectory))


def test_noise_that_makes_no_sense_is_refused() -> None:
    trajectory = make_trajectory(states=smooth())
    with pytest.raises(ValueError, match="positive noise"):
        settings(trajectory, noise=0.0)
    scalar = replace(trajectory.spec, channels=("p", "T"), family=None)
    with pytest.raises(ValueError, match="among the vectors"):
        settings(trajectory, noise=0.1, spec=scalar)


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


def test_only_the_recordings_with_gaps_are_marked(tmp_path: Path) -> None:
    valid = torch.ones(5, *SHAPE, dtype=torch.bool)
    valid[2, 5, 5] = False
    whole, gappy = (
        make_trajectory("whole", states=smooth()),
        make_trajectory("b", states=smooth(), valid=valid),
    )
    out = tmp_path / "out.h5"
    fill_recordings(recorded(whole, gappy), out, settings(whole))
    assert Reader(out)["whole"].filled is None
    assert torch.equal(Reader(out)["b"].measured(), valid)
