"""The flows of an experiment: where they come from, how they are split, what is left out."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from pibert import config
from pibert.config import identity
from pibert.data.dataset import Window
from pibert.data.format import write
from pibert.data.splits import SPLITS, Segment, Shares, Split
from pibert.experiments import flows as flows_module
from pibert.experiments.evaluation import RolloutPlan, refuse_short_flows
from pibert.experiments.experiment import DataConfig, OtherFlows
from pibert.experiments.flows import Flows, outline, prepare, prepare_test
from pibert.experiments.summary import one_flow_note
from pibert.fields import Normalizer, Trajectory
from pibert.notes import InputWarning
from tests.data.helpers import make_trajectory
from tests.data.test_generate import Noise
from tests.helpers import refused

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


def test_flows_that_diverged_in_the_simulation_are_reported(
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


@pytest.mark.parametrize("other", [0.1, None])
def test_time_steps_that_differ_are_reported(tmp_path: Path, other: float | None) -> None:
    steps = (0.05, other, 0.05, 0.05)
    flows = [make_trajectory(f"t{i}", frames=9, seed=i, dt=dt) for i, dt in enumerate(steps)]
    write(tmp_path / "flows.h5", flows)
    config = DataConfig(path=str(tmp_path / "flows.h5"), shares=SHARES)
    found = f"{other} in 't1'" if other else "not stated in 't1'"
    with pytest.warns(InputWarning, match=f"differs .*0.05 in 't0', {found}"):
        assert prepare(config).spec.dt is None


def test_a_smaller_share_of_labels_is_a_subset_of_a_larger_one(tmp_path: Path) -> None:
    flows = prepare(save(tmp_path))
    few, half, all_ = (set(flows.labelled(share)) for share in (0.2, 0.5, 1.0))
    assert (len(few), len(half)) == (1, 3) and few < half < all_ == set(flows.split.train)


def test_a_stated_split_is_used(tmp_path: Path) -> None:
    parts = ["test", "train", "valid", "train"]
    flows = [make_trajectory(f"t{i}", local={"split": p}) for i, p in enumerate(parts)]
    write(tmp_path / "flows.h5", flows)
    split = prepare(DataConfig(path=str(tmp_path / "flows.h5"), split="stated")).split
    homes = [[s.trajectory for s in part] for part in (split.train, split.valid, split.test)]
    assert homes == [[1, 3], [2], [0]]
    with refused("such as 't0'", "choose"):
        prepare(replace(save(tmp_path), split="stated"))


def test_a_simulated_case_is_kept_in_the_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIBERT_CACHE", str(tmp_path / "cache"))
    recipe = {"samples": 5, "frames": 3, "shape": [8, 12]}
    config = DataConfig(case="heat", recipe=recipe, shares=SHARES)
    progress: list[float] = []
    first = prepare(config, on_progress=progress.append)
    (file,) = (tmp_path / "cache").glob("heat-*.h5")
    before = file.stat().st_mtime_ns
    again = prepare(config)
    assert progress and file.stat().st_mtime_ns == before
    assert again.source == first.source and again.source["recipe_hash"] in file.name
    with refused("data", "'sample'"):
        prepare(replace(config, recipe={"sample": 5}))


def test_other_flows_replace_the_test_split(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIBERT_CACHE", str(tmp_path / "cache"))
    recipe = {"samples": 5, "frames": 3, "shape": [8, 12]}
    plain = DataConfig(case="heat", recipe=recipe, shares=SHARES)
    config = replace(plain, test=OtherFlows(recipe={"seed": 7, "samples": 2, "frames": 6}))
    flows, before = prepare(config), prepare(plain)
    assert flows.split == replace(before.split, test=(Segment(5), Segment(6)))
    assert [flows.trajectories[segment.trajectory].num_frames for segment in flows.split.test] == [
        6,
        6,
    ]
    assert torch.equal(flows.trajectories[0].read(), before.trajectories[0].read())
    assert not torch.equal(flows.trajectories[5].read()[:3], before.trajectories[0].read())
    assert flows.normalizer == before.normalizer  # the new flows have no part in the statistics
    assert flows.source["test"]["recipe_hash"] != flows.source["recipe_hash"]
    assert outline(config).split == flows.split
    assert identity(replace(config, test=None)) == identity(plain) != identity(config)
    with refused("data.test.recipe", "seed"):  # the flows of training again
        prepare(replace(config, test=OtherFlows(recipe={"samples": 2, "frames": 6})))


def test_other_flows_replace_the_calibration_split(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PIBERT_CACHE", str(tmp_path / "cache"))
    recipe = {"samples": 5, "frames": 3, "shape": [8, 12]}
    plain = DataConfig(case="heat", recipe=recipe, shares=SHARES)
    own = OtherFlows(recipe={"seed": 8, "samples": 3, "frames": 4})
    flows, before = prepare(replace(plain, calibration=own)), prepare(plain)
    assert flows.split == replace(before.split, calibration=(Segment(5), Segment(6), Segment(7)))
    assert flows.longest("calibration") == 4
    assert flows.normalizer == before.normalizer
    # Test flows of their own come last; neither repeats the other.
    tested = replace(plain, calibration=own, test=OtherFlows(recipe={"seed": 9, "samples": 1}))
    both = prepare(tested)
    assert both.split == replace(flows.split, test=(Segment(8),))
    assert identity(replace(tested, calibration=None)) != identity(tested)
    with refused("data.test.recipe", "data.calibration.recipe", "seed"):
        prepare(replace(tested, test=OtherFlows(recipe={"seed": 8, "samples": 1})))
    with refused("data.calibration.recipe", "seed"):
        prepare(replace(plain, calibration=OtherFlows(recipe={"samples": 2})))


def test_files_of_other_flows_replace_the_test_split(tmp_path: Path) -> None:
    config = save(tmp_path)
    write(tmp_path / "new.h5", [make_trajectory("new", frames=20, seed=99, re=1500.0)])
    flows = prepare(replace(config, test=OtherFlows(path=str(tmp_path / "new.h5"))))
    assert [flows.trajectories[segment.trajectory].name for segment in flows.split.test] == ["new"]
    assert flows.split.train == prepare(config).split.train
    with refused("data.test.path", "the same files"):
        prepare(replace(config, test=OtherFlows(path=config.path)))
    new = OtherFlows(path=str(tmp_path / "new.h5"))
    with refused("data.test.path", "data.calibration.path", "new.h5"):
        prepare(replace(config, test=new, calibration=new))
    with refused("data.test.path", "new.h5"):  # one of those of the training data
        every = replace(config, path=str(tmp_path / "*.h5"))
        prepare(replace(every, test=OtherFlows(path=str(tmp_path / "new.h5"))))


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: OtherFlows(), ("data.test", "path")),
        (lambda: OtherFlows(path="a.h5", recipe={"seed": 1}), ("data.test", "path")),
        (
            lambda: DataConfig(path="flows.h5", test=OtherFlows(recipe={"seed": 1})),
            ("data.test.recipe", "data.test.path"),
        ),
        (
            lambda: DataConfig(path="flows.h5", calibration=OtherFlows(recipe={"seed": 1})),
            ("data.calibration.recipe", "data.calibration.path"),
        ),
    ],
)
def test_other_flows_have_one_source_that_fits_the_data(make: Any, named: tuple[str, ...]) -> None:
    with refused(*named):
        make()


def test_an_outline_splits_the_flows_without_reading_them(
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


def test_a_test_split_without_enough_frames_is_refused(tmp_path: Path) -> None:
    flows = prepare(save(tmp_path))
    refuse_short_flows("wake", flows, 1, RolloutPlan(steps=7))
    for history, steps in ((1, 8), (8, 0)):
        with refused("test split", "'wake'", "too short"):
            refuse_short_flows("wake", flows, history, RolloutPlan(steps=steps))


def parameters_of(flows: Flows, subset: str) -> list[dict[str, float]]:
    segments = getattr(flows.split, subset)
    return [dict(flows.trajectories[segment.trajectory].parameters) for segment in segments]


def test_repeated_values_of_a_range_split_are_one_condition(tmp_path: Path) -> None:
    flows = [
        replace(
            make_trajectory(f"t{i}", seed=i),
            parameters={"Re": 100.0 + i // 3, "damping": float(i % 3)},
        )
        for i in range(24)
    ]
    write(tmp_path / "flows.h5", flows)
    config = DataConfig(path=str(tmp_path / "flows.h5"), shares=SHARES, split="interpolation:Re")
    assert prepare(config).source["group_by"] == ["Re"]
    write(tmp_path / "flows.h5", flows[::3])
    assert "group_by" not in prepare(config).source


def test_conditions_are_held_out_whole(tmp_path: Path) -> None:
    flows = [
        replace(
            make_trajectory(f"t{i}", seed=i),
            parameters={"Re": 100.0 * (1 + i % 3), "damping": float(i // 6)},
        )
        for i in range(24)
    ]
    write(tmp_path / "flows.h5", flows)
    config = DataConfig(path=str(tmp_path / "flows.h5"), shares=SHARES, split="conditions")
    found = prepare(config)
    assert found.source["group_by"] == ["Re", "damping"]
    homes = [{tuple(p.values()) for p in parameters_of(found, name)} for name in SPLITS]
    assert sum(map(len, homes)) == len(set.union(*homes)) == 12
    assert all(homes[n] for n in (0, 1, 3))
    alone = prepare(replace(config, split="conditions:damping"))
    gaps = [{p["damping"] for p in parameters_of(alone, name)} for name in SPLITS]
    assert sum(map(len, gaps)) == len(set.union(*gaps)) == 4


@pytest.mark.parametrize(
    ("split", "message"),
    [
        ("higher:Ma", r"data.split: expected the parameters Ma.*found no Ma in 't0'.*has Re"),
        ("lower:Re:500", "no flow is in the test range; the data have 10 values of 'Re', 1000"),
        ("sideways", "data.*expected trajectory, time, stated.*found 'sideways'"),
    ],
)
def test_a_split_that_does_not_match_the_data_is_refused(
    tmp_path: Path, split: str, message: str
) -> None:
    plain = {**config.as_plain(save(tmp_path)), "split": split}
    with pytest.raises(ValueError, match=message):
        prepare(config.parse(DataConfig, plain, "data"))


def test_conditions_without_parameters_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "flows.h5", [make_trajectory(f"t{i}", seed=i) for i in range(4)])
    with refused("vary", "found none in 4"):
        prepare(DataConfig(path=str(tmp_path / "flows.h5"), split="conditions"))


# Notes before the start


def flows_split(split: Split) -> Flows:
    """Three flows of eight frames; the third has a gap in time after five."""
    found = [make_trajectory(name, frames=8, dt=0.5) for name in ("a", "b", "c")]
    times = 0.5 * torch.tensor([0, 1, 2, 3, 4, 9, 10, 11], dtype=torch.float64)
    found[2] = replace(found[2], time=times)
    return Flows(tuple(found), split, Normalizer.identity(2), found[0].spec, {})


def test_the_longest_stretch_of_a_split_ends_at_gaps_in_time() -> None:
    flows = flows_split(Split((Segment(0, 0, 3),), (), (Segment(0, 4, 7),), (Segment(2),)))
    found = [flows.longest(name) for name in ("train", "valid", "calibration", "test")]
    assert found == [3, 0, 3, 5]


def test_uneven_times_are_noted_in_training_and_in_tests(tmp_path: Path) -> None:
    time = torch.tensor([0, 1, 2, 3, 4.4, 5, 6, 7], dtype=torch.float64)
    config = save(tmp_path, dt=None, time=time)
    with pytest.warns(InputWarning, match=r"'t0'.* 0.6 to 1.4 apart.*takes them as one step"):
        flows = prepare(config)
    with pytest.warns(InputWarning, match=r"'t0'.* 0.6 to 1.4 apart.*takes them as one step"):
        prepare_test(config, flows.spec, flows.normalizer)


def test_scores_that_rest_on_one_flow_are_noted() -> None:
    by_flow = one_flow_note(flows_split(Split((Segment(0),), (Segment(1),), (), (Segment(2),))))
    assert by_flow is not None and "'c'" in by_flow.text and "split_seed" in by_flow.remedy
    in_time = Split((Segment(0, 0, 5),), (Segment(0, 5, 6),), (), (Segment(0, 6),))
    same = one_flow_note(flows_split(in_time))
    assert same is not None and "also trains the model" in same.text
    assert (
        one_flow_note(flows_split(Split((Segment(0),), (), (), (Segment(1), Segment(2))))) is None
    )
