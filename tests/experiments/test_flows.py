"""The flows of an experiment: where they come from, how they are parted, what is left out."""

import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from pibert.data.dataset import Window
from pibert.data.format import write
from pibert.data.sources import open_recordings
from pibert.data.splits import Shares
from pibert.experiments import flows as flows_module
from pibert.experiments.calibration import in_units_of
from pibert.experiments.experiment import DataConfig
from pibert.experiments.flows import outline, prepare, prepare_test
from pibert.fields import Normalizer, Trajectory
from pibert.remarks import InputWarning
from tests.data.helpers import make_trajectory
from tests.data.test_generate import Noise
from tests.helpers import tiny_spec
from tests.lookalikes.piv import sample, write_openpiv

SHARES = Shares(train=0.6, valid=0.2)


def save(folder: Path, count: int = 10, **changes: Any) -> DataConfig:
    flows = [
        make_trajectory(f"t{i}", frames=8, seed=i, re=1000.0 + 100 * i, **changes)
        for i in range(count)
    ]
    write(folder / "flows.h5", flows)
    return DataConfig(path=str(folder / "flows.h5"), shares=SHARES)


def test_statistics_are_those_of_the_training_trajectories(tmp_path: Path) -> None:
    flows = prepare(save(tmp_path))
    homes = [segment.trajectory for segment in flows.split.train]
    assert len(homes) == 6
    values = torch.cat([flows.trajectories[home].read() for home in homes]).double()
    assert flows.normalizer.mean == pytest.approx(values.mean((0, 2, 3)).tolist(), abs=1e-6)
    logs = torch.tensor([flows.trajectories[home].parameters["Re"] for home in homes]).log10()
    assert flows.spec.parameters[0].mean == pytest.approx(logs.mean().item(), abs=1e-6)


def test_a_pattern_is_known_by_its_files(tmp_path: Path) -> None:
    for number in range(6):
        write(tmp_path / f"re{number}.h5", [make_trajectory(f"t{number}", frames=8, seed=number)])
    plan = DataConfig(path=str(tmp_path / "re*.h5"), shares=SHARES)
    found = prepare(plan).source["fingerprint"]
    assert found is not None and found == prepare(plan).source["fingerprint"]
    assert prepare(replace(plan, path=str(tmp_path / "re[0-4].h5"))).source["fingerprint"] != found


def test_units_that_are_assumed_take_lengths_and_times_along(tmp_path: Path) -> None:
    metres = replace(tiny_spec((6, 8), units=("m/s", "m/s")), dt=0.002)
    bare = replace(metres, units=("1", "1"), dt=2.0)
    flow = make_trajectory("a", frames=8, states=torch.randn(8, 2, 6, 8))
    times = 2.0 * torch.arange(8, dtype=torch.float64)
    facts: dict[str, Any] = {"spec": bare, "time": times, "parameters": {}}
    facts |= {"length_unit": "mm", "time_unit": "ms"}
    write(tmp_path / "bare.h5", [replace(flow, body=None, **facts)])
    given = prepare_test(DataConfig(path=str(tmp_path / "bare.h5")), metres, Normalizer.identity(2))
    with pytest.warns(InputWarning, match="no unit is stated"):
        found = in_units_of(given, metres)
    assert found.spec.units == ("m/s", "m/s")
    assert found.spec.dt == pytest.approx(0.002)
    assert found.spec.grid.dx == pytest.approx(1e-3 * bare.grid.dx)
    assert torch.equal(found.trajectories[0].read(), given.trajectories[0].read())


def test_notes_of_the_reader_are_told_of_other_programs_files(tmp_path: Path) -> None:
    """Units, calibration and time step that are assumed or missing, as convert tells them."""
    folder = tmp_path / "run"
    folder.mkdir()
    for number in range(10):
        write_openpiv(folder / f"f{number}.txt", sample(rows=8, columns=12))
    plan = DataConfig(path=str(folder), split="time", shares=SHARES)
    with pytest.warns(InputWarning) as told:
        prepare(plan)
    notes = [str(note.message) for note in told]
    assert any("no time between the frames" in note for note in notes)
    assert any("positions are whole numbers without a unit" in note for note in notes)
    scaled = replace(plan, hints={"scale": "0.05mm/px", "pulse_delay": "1ms", "dt": 0.01})
    with pytest.warns(InputWarning, match="calibrated with 50 um/px"):
        prepare_test(scaled, prepare(scaled).spec, Normalizer.identity(2))
    named = replace(plan, hints={"unit": "m/s", "length_unit": "mm", "dt": 0.01})
    with pytest.warns(InputWarning, match="units: length mm -> m"):
        prepare(named)


def test_flows_that_diverged_in_the_simulation_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIBERT_CACHE", str(tmp_path))
    monkeypatch.setattr(flows_module, "find_preset", lambda case, preset: Noise(diverging=(1, 3)))
    config = DataConfig(case="noise", preset="any", shares=Shares(train=0.34, valid=0.34))
    for _ in range(2):  # simulated, and found in the cache
        with pytest.warns(InputWarning, match=r"2 of 5 flows diverged .* noise-1 \(too loud\);"):
            flows = outline(config)
        assert flows.source["diverged"] == ["noise-1", "noise-3"]
        assert [trajectory.name for trajectory in flows.trajectories] == [
            "noise-0",
            "noise-2",
            "noise-4",
        ]


@pytest.mark.parametrize(
    ("steps", "message"),
    [
        ((0.05, 0.05), None),
        ((0.05, 0.1), r"differs between trajectories \(0.05 in 't0', 0.1 in 't1'\)"),
        ((0.05, None), r"differs between trajectories \(0.05 in 't0', not stated in 't1'\)"),
    ],
)
def test_time_steps_that_differ_are_reported(
    tmp_path: Path, steps: tuple[float | None, float | None], message: str | None
) -> None:
    flows = [
        make_trajectory(f"t{i}", frames=9, seed=i, dt=dt)
        for i, dt in enumerate([*steps, steps[0], steps[0]])
    ]
    write(tmp_path / "flows.h5", flows)
    config = DataConfig(path=str(tmp_path / "flows.h5"), shares=SHARES)
    if message is None:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            assert prepare(config).spec.dt == 0.05
    else:
        with pytest.warns(InputWarning, match=message):
            assert prepare(config).spec.dt is None


def test_frames_that_are_not_evenly_spaced_are_reported(tmp_path: Path) -> None:
    time = torch.tensor([0, 1, 2.5, 3.5, 4.5, 5.5, 6.5, 7.5], dtype=torch.float64)
    config = save(tmp_path, dt=None, time=time)
    with pytest.warns(InputWarning, match="'t0': its frames are not evenly .* 1 to 1.5 apart"):
        prepare(config)


def test_repetitions_of_a_condition_stay_together(tmp_path: Path) -> None:
    made = [make_trajectory(f"t{i}", frames=8, seed=i, re=1000.0 + i % 5) for i in range(15)]
    write(tmp_path / "flows.h5", made)
    config = DataConfig(path=str(tmp_path / "flows.h5"), shares=SHARES, group_by=("Re",))
    flows = outline(config)
    parts = [
        {flows.trajectories[segment.trajectory].parameters["Re"] for segment in part}
        for part in (flows.split.train, flows.split.valid, flows.split.test)
    ]
    assert [len(part) for part in parts] == [3, 1, 1] and len(set.union(*parts)) == 5
    with pytest.raises(ValueError, match="found no mass in 't0', which has Re"):
        outline(replace(config, group_by=("Re", "mass")))
    with pytest.raises(ValueError, match="goes with split = 'trajectory'"):
        replace(config, split="time")


def test_pixels_are_calibrated_by_the_hints_of_a_configuration() -> None:
    path = Path(__file__).parents[1] / "data" / "sources" / "files" / "openpiv.txt"
    hints = {"scale": "20px/mm", "pulse_delay": "500us", "dt": 0.1}
    config = DataConfig(path=str(path), hints=hints)
    flow = prepare_test(config, tiny_spec((7, 7)), Normalizer.identity(2)).trajectories[0]
    assert flow.spec.units == ("m/s", "m/s") and flow.spec.grid.dx == pytest.approx(8e-4)
    assert flow.read()[0, 0].median().item() == pytest.approx(0.3, rel=0.05)
    with pytest.raises(ValueError, match="--scale takes the size of a pixel"):
        prepare_test(
            replace(config, hints={"scale": "20"}), tiny_spec((7, 7)), Normalizer.identity(2)
        )


def test_options_go_to_the_reader_of_the_data(tmp_path: Path) -> None:
    config = replace(save(tmp_path), options={"scenario": "fsi"})
    with pytest.raises(ValueError, match="'native' has no option scenario"):
        prepare(config)
    seen: dict[str, Any] = {}

    def opened(path: Path, kind: str | None, hints: Any, options: dict[str, Any]) -> Any:
        seen.update(options)
        return open_recordings(path, kind, hints)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(flows_module, "open_recordings", opened)
        outline(replace(config, options={"kind": "real", "keys": ["a", "b"]}))
    assert seen == {"kind": "real", "keys": ("a", "b")}


def test_a_smaller_share_of_labels_is_a_part_of_a_larger_one(tmp_path: Path) -> None:
    flows = prepare(save(tmp_path))
    few, half, all_ = (set(flows.labelled(share)) for share in (0.2, 0.5, 1.0))
    assert (len(few), len(half)) == (1, 3) and few < half < all_ == set(flows.split.train)


def test_labels_of_a_single_recording_are_its_beginning(tmp_path: Path) -> None:
    config = replace(save(tmp_path, 1), split="time", guard=0)
    flows = prepare(config)
    ((_, start, stop),) = flows.split.train
    assert stop is not None
    assert flows.labelled(0.5) == ((0, start, start + round((stop - start) / 2)),)


def test_the_split_of_the_data_is_taken_where_they_state_one(tmp_path: Path) -> None:
    parts = ["test", "train", "valid", "train"]
    flows = [make_trajectory(f"t{i}", local={"split": p}) for i, p in enumerate(parts)]
    write(tmp_path / "flows.h5", flows)
    split = prepare(DataConfig(path=str(tmp_path / "flows.h5"), split="stated")).split
    homes = [[s.trajectory for s in part] for part in (split.train, split.valid, split.test)]
    assert homes == [[1, 3], [2], [0]]
    with pytest.raises(ValueError, match="state the parts \\['None'\\]"):
        prepare(replace(save(tmp_path), split="stated"))


def test_vectors_that_do_not_fit_their_neighbours_are_left_out(tmp_path: Path) -> None:
    def smooth(name: str) -> Trajectory:
        y, x = torch.meshgrid(torch.arange(9.0), torch.arange(11.0), indexing="ij")
        states = torch.stack((0.1 * x, 0.05 * y)).expand(6, 2, 9, 11).clone()
        states[2, :, 4, 5] = 7.0
        return make_trajectory(name, states=states)

    write(tmp_path / "flows.h5", [smooth(f"t{i}") for i in range(5)])
    config = DataConfig(path=str(tmp_path / "flows.h5"), shares=SHARES)
    plain, cleaned = prepare(config), prepare(replace(config, outlier_noise=0.2))
    assert plain.normalizer.std[0] > cleaned.normalizer.std[0]
    batch = cleaned.samples("test", Window()).batch([2])
    assert (~batch.mask).nonzero().tolist() == [[0, 4, 5]]
    assert bool(plain.samples("test", Window()).batch([2]).mask.all())


def test_a_simulated_case_is_kept_in_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIBERT_CACHE", str(tmp_path / "cache"))
    recipe = {"samples": 5, "frames": 3, "shape": [8, 12]}
    config = DataConfig(case="heat", recipe=recipe, shares=SHARES)
    told: list[float] = []
    first = prepare(config, on_progress=told.append)
    (file,) = (tmp_path / "cache").glob("heat-*.h5")
    before = file.stat().st_mtime_ns
    again = prepare(config)
    assert told and file.stat().st_mtime_ns == before
    assert again.source == first.source and again.source["recipe_hash"] in file.name
    with pytest.raises(ValueError, match="data: there is no setting 'sample'"):
        prepare(replace(config, recipe={"sample": 5}))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({}, "either a path or a case"),
        ({"path": "a", "case": "heat"}, "either a path or a case"),
        ({"path": "a", "labelled": 0.0}, "labelled must be above 0"),
        ({"path": "a", "outlier_noise": 0.0}, "outlier_noise must be positive"),
    ],
)
def test_wrong_settings_are_told(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        DataConfig(**changes)


def test_an_outline_parts_the_flows_without_reading_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = replace(save(tmp_path), size=(4, 6), outlier_noise=0.1)
    flows = prepare(config)

    def refuse(*_: Any) -> None:
        raise AssertionError("a field was read")

    monkeypatch.setattr(Trajectory, "read", refuse)
    found = outline(config)
    assert found.split == flows.split and found.source == flows.source
    assert found.spec.channels == flows.spec.channels
    windows = Window(history=3)
    assert len(found.samples("test", windows)) == len(flows.samples("test", windows))
