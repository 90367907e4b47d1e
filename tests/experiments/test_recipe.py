"""What ``pibert train FLOWS`` chooses: it follows the data and the machine, and the user wins."""

from pathlib import Path

import pytest
import torch

from pibert.data.dataset import Window
from pibert.data.format import write
from pibert.data.splits import SPLITS
from pibert.experiments.flows import prepare
from pibert.experiments.recipe import NOISE, recipe_for
from pibert.inference import load
from tests.data.helpers import make_trajectory
from tests.helpers import refused


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


def recording(folder: Path, *, trajectories: int, frames: int) -> Path:
    path = folder / "flow.h5"
    write(path, [make_trajectory(name=f"t{i}", frames=frames) for i in range(trajectories)])
    return path


def test_the_recipe_is_the_one_that_won(tmp_path: Path) -> None:
    path = recording(tmp_path, trajectories=6, frames=20)
    experiment, notes = recipe_for(path, [])
    assert experiment.data.path == str(path) and experiment.data.split == "trajectory"
    assert (experiment.model.name, experiment.model.preset) == ("pibert-mr", "small")
    assert (experiment.training.optimizer, experiment.training.learning_rate) == ("muon", 4e-3)
    assert experiment.training.monitor == "reconstruction"
    assert len(notes) == 1 and "no GPU" in notes[0]


def test_every_model_sees_the_parameters_and_the_known_points(tmp_path: Path) -> None:
    path = recording(tmp_path, trajectories=6, frames=20)
    options = recipe_for(path, ["model.name=unet"])[0].model.options
    assert options == {"parameters": True, "coordinates": True, "mask": True}
    settings = ["model.name=fno2d", "model.options.mask=false"]
    assert recipe_for(path, settings)[0].model.options == {"parameters": True, "mask": False}
    assert recipe_for(path, ["model.name=dmd"])[0].model.options == {}


def test_the_recipe_ends_with_rollouts_unless_switched_off(tmp_path: Path) -> None:
    path = recording(tmp_path, trajectories=6, frames=20)
    stage = recipe_for(path, [])[0].rollout_training
    epochs = recipe_for(path, [])[0].training.epochs
    assert stage is not None and stage.learning_rate == 4e-3 / 8 and stage.rollout.recompute
    lengths = [stage.rollout.steps_at(epoch) for epoch in range(stage.epochs)]
    assert stage.epochs == round(3 * epochs / 20) and sorted(set(lengths)) == [2, 4, 8]
    assert 0.6 * epochs < stage.calls < 0.8 * epochs
    settings = ["rollout_training.rollout.steps=16", "rollout_training.epochs=4"]
    longer = recipe_for(path, settings)[0].rollout_training
    assert longer is not None and [longer.rollout.steps_at(n) for n in range(4)] == [2, 4, 8, 16]
    assert recipe_for(path, ["rollout_training=none"])[0].rollout_training is None
    assert recipe_for(path, ["rollout_training=none"])[0].rollout.noise == 0
    noisy = recipe_for(path, [])[0]
    assert noisy.rollout.noise == noisy.rollout_training.rollout.noise == NOISE  # type: ignore[union-attr]
    spread = recipe_for(path, ["rollout.noise_spread=10"])[0].rollout_training
    assert spread is not None and spread.rollout.noise_spread == 10
    for setting in ("rollout.noise=0", "model.options.dmd_modes=8"):
        quiet = recipe_for(path, [setting])[0]
        assert quiet.rollout.noise == quiet.rollout_training.rollout.noise == 0  # type: ignore[union-attr]
    flow, notes = recipe_for(path, ["model.name=fourierflow"])
    assert flow.rollout_training is None and "flow matching" in notes[-1]


def test_too_few_trajectories_are_split_in_time_and_that_is_reported(tmp_path: Path) -> None:
    experiment, notes = recipe_for(recording(tmp_path, trajectories=1, frames=150), [])
    assert (experiment.data.split, experiment.data.guard) == ("time", 3)
    assert "1 flow" in notes[0] and "data.split" in notes[0]


def test_settings_of_the_user_are_kept(tmp_path: Path) -> None:
    settings = ["data.guard=7", "training.epochs=3", "training.batch_size=5", "model.preset=base"]
    path = recording(tmp_path, trajectories=1, frames=150)
    experiment, notes = recipe_for(path, settings)
    assert (experiment.data.split, experiment.data.guard) == ("time", 7)
    assert (experiment.training.epochs, experiment.training.batch_size) == (3, 5)
    assert experiment.training.warmup_epochs == 3 / 20
    assert experiment.model.preset == "base" and len(notes) == 1
    unet, _ = recipe_for(path, ["model.name=unet"])
    assert (unet.model.name, unet.model.preset) == ("unet", None)
    small, notes = recipe_for(path, ["model.options={width=8}"])
    assert (small.model.preset, small.model.options) == ("small", {"width": 8})
    assert any("small model" in note for note in notes)


def test_a_gpu_trains_the_base_preset_in_half_precision(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    experiment, notes = recipe_for(recording(tmp_path, trajectories=6, frames=20), [])
    assert experiment.model.preset is None and experiment.hardware.precision == "bf16"
    assert not notes


@pytest.mark.parametrize(
    ("frames", "parts", "said"),
    [
        (100, {"train": 76, "valid": 9, "test": 11}, None),
        (20, {"train": 14, "valid": 2, "test": 2}, None),
        (12, {"train": 6, "valid": 2, "test": 2}, None),
        (11, {"train": 9, "test": 2}, "Not possible: choosing the best epoch"),
        (5, {"train": 3, "test": 2}, "the last 2 test the model"),
        (4, {"train": 2, "test": 2}, "the last 2 test the model"),
        (3, {"train": 3}, "too few to test"),
        (2, {"train": 2}, "too few to test"),
    ],
)
def test_a_short_recording_is_split_as_far_as_it_goes(
    tmp_path: Path, frames: int, parts: dict[str, int], said: str | None
) -> None:
    experiment, notes = recipe_for(recording(tmp_path, trajectories=1, frames=frames), [])
    flows = prepare(experiment.data)
    found = {name: sum(map(flows.length, getattr(flows.split, name))) for name in SPLITS}
    assert {name: count for name, count in found.items() if count} == parts
    for name in parts:
        assert len(flows.samples(name, Window())) >= 1
    assert (said is None) == (len(notes) == 2) and (said or "") in "".join(notes)
    assert experiment.training.epochs <= 313  # steps, where an epoch is one


def test_one_frame_cannot_be_learned_from(tmp_path: Path) -> None:
    path = recording(tmp_path, trajectories=1, frames=1)
    with refused("at least 2 frames", "found 1", "pibert predict"):
        recipe_for(path, [])
    with refused("at least 4 frames", "found 3"):
        recipe_for(path, ["model.options.history=3"], frames=[3])


def test_a_start_gives_its_model_unless_the_user_states_one(tmp_path: Path) -> None:
    path = recording(tmp_path, trajectories=6, frames=20)
    experiment, notes = recipe_for(path, ["start=cylinder-mr"])
    card = load("cylinder-mr").card["model"]
    assert experiment.model.name == "pibert-mr" == card["name"]
    assert experiment.model.options["cycles"] == card["config"]["cycles"] and not notes
    stated, _ = recipe_for(path, ["start=cylinder-mr", "model.preset=base"])
    assert stated.model.options == {} and stated.model.preset == "base"
