"""Every model through a whole experiment: trained or fitted, saved, loaded, and stepped."""

import importlib
import importlib.util
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import pibert
from pibert.data.format import write
from pibert.data.splits import Shares
from pibert.experiments import Experiment, run
from pibert.experiments.experiment import (
    DataConfig,
    ModelConfig,
    Pretraining,
    RolloutTraining,
    Weights,
)
from pibert.experiments.flows import Flows, prepare
from pibert.fields import Trajectory
from pibert.models import MODELS
from pibert.models.references.simple import Reference
from pibert.training.engine import FitConfig, Hardware
from pibert.training.journal import read_log
from pibert.training.objectives import RolloutConfig
from tests.data.helpers import make_trajectory
from tests.helpers import TINY_OPTIONS

SHAPE = (12, 16)
PHYSICS = {"divergence", "laplacian", "boundary"}
REFERENCES = [n for n, k in MODELS.items() if isinstance(k, type) and issubclass(k, Reference)]
LEARNERS = [n for n in MODELS if n not in (*REFERENCES, "neuraloperator")]


def flow(number: int) -> Trajectory:
    """A wave that runs along x and a shear."""
    generator = torch.Generator().manual_seed(number)
    phase = float(torch.rand(1, generator=generator))
    time = torch.arange(7.0)[:, None, None]
    y, x = torch.meshgrid(*(torch.arange(float(n)) for n in SHAPE), indexing="ij")
    angle = 2 * math.pi * (x / 8 + phase - 0.1 * time)
    states = torch.stack((1 + 0.1 * y + 0.4 * torch.sin(angle), 0.3 * torch.cos(angle)), dim=1)
    return make_trajectory(f"f{number}", states=states, re=1000.0 + 100 * number)


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> tuple[DataConfig, Flows]:
    path = tmp_path_factory.mktemp("flows") / "flows.h5"
    write(path, [flow(number) for number in range(6)])
    config = DataConfig(path=str(path), shares=Shares(train=0.5, valid=0.2))
    return config, prepare(config)


def experiment_of(data: tuple[DataConfig, Flows], name: str, **changes: Any) -> Experiment:
    options = {key: value for key, value in TINY_OPTIONS[name].items()}
    fit = FitConfig(
        epochs=1,
        batch_size=6,
        micro_batch=None,
        learning_rate=1e-3,
        warmup_epochs=0.0,
        monitor="reconstruction",
    )
    given: dict[str, Any] = {
        "data": data[0],
        "model": ModelConfig(name=name, options=options),
        "training": fit,
        "hardware": Hardware(accelerator="cpu"),
    }
    return Experiment(**(given | changes))


def check_it_steps(folder: Path, flows: Flows) -> None:
    predictor = pibert.load(folder)
    (segment, *_) = flows.split.test
    trajectory = flows.trajectories[segment.trajectory]
    states = trajectory.read()
    windows = torch.stack([states[i : i + predictor.history] for i in range(3)])
    answer = predictor.step(windows, dict(trajectory.parameters))
    assert answer.shape == (3, 1, 2, *SHAPE) and bool(answer.isfinite().all())
    # Physical units: about as large as the flow, not as its standardised form.
    assert (answer - states[None, 2:3]).abs().max() < 2


@pytest.mark.parametrize("name", LEARNERS)
def test_a_model_is_trained_and_steps(
    name: str, data: tuple[DataConfig, Flows], tmp_path: Path
) -> None:
    """On single steps, then on rollouts of three calls; flow matching has no such stage."""
    experiment, folder = experiment_of(data, name), tmp_path / "run"
    if name != "fourierflow":
        like = experiment.training
        stage = RolloutTraining.after(like, steps=3, epochs=1)
        stage = replace(stage, rollout=RolloutConfig(steps=3, recompute=True, noise=0.01))
        experiment = replace(experiment, rollout_training=stage)
    finished = run(experiment, folder, flows=data[1])
    check_it_steps(folder, data[1])
    if name != "fourierflow":
        *_, last = read_log(folder / "log.jsonl")
        assert (last["calls"], last["step"]) == (3, 2)  # 3 trajectories of 4 windows
        assert 0 < last["valid"]["first_step"] < last["valid"]["reconstruction"]
        assert finished.fitted.start_metrics["reconstruction"] < 10
        folder = folder / "training"
    (line,) = [own for own in read_log(folder / "log.jsonl") if own["kind"] == "epoch"]
    assert line["step"] == 3  # 3 trajectories of 6 windows, in batches of 6
    logged = set(line["train"]) | set(line["valid"])
    assert math.isfinite(line["valid"]["reconstruction"])
    assert bool(PHYSICS & logged) is (name == "pibert")
    assert ("continuity" in logged) is (name == "pinn")
    assert ("flow" in logged) is (name == "fourierflow")
    if name not in ("pibert", "pinn", "fourierflow"):  # the plain squared error, no more
        assert line["train"]["loss"] == pytest.approx(line["train"]["reconstruction"], rel=1e-6)


@pytest.mark.skipif(
    importlib.util.find_spec("neuralop") is None, reason="neuraloperator is not installed"
)
def test_a_model_of_neuraloperator_is_trained_and_steps(
    data: tuple[DataConfig, Flows], tmp_path: Path
) -> None:
    run(experiment_of(data, "neuraloperator"), tmp_path / "run", flows=data[1])
    check_it_steps(tmp_path / "run", data[1])


@pytest.mark.parametrize("name", REFERENCES)
def test_a_reference_is_fitted_and_steps(
    name: str, data: tuple[DataConfig, Flows], tmp_path: Path
) -> None:
    folder = tmp_path / "run"
    finished = run(experiment_of(data, name), folder, flows=data[1])
    assert (finished.fitted.steps, finished.best_epoch) == (0, 0)
    assert not (folder / "log.jsonl").exists()
    check_it_steps(folder, data[1])
    before = (folder / "model.safetensors").stat().st_mtime_ns
    run(experiment_of(data, name), folder, flows=data[1])  # found, not fitted again
    assert (folder / "model.safetensors").stat().st_mtime_ns == before


def test_a_pretrained_auto_encoder_is_kept_to_the_bit(
    data: tuple[DataConfig, Flows], tmp_path: Path
) -> None:
    fit = experiment_of(data, "fourierflow").training
    plain = {name: getattr(fit, name) for name in fit.__dataclass_fields__}
    experiment = experiment_of(
        data,
        "fourierflow",
        pretraining=Pretraining(**{**plain, "monitor": "loss"}),
        pretraining_weights=Weights(supervised=0.0, mpp=1.0, ecp=0.0),
    )
    run(experiment, tmp_path / "run", flows=data[1])
    before, after = (
        pibert.load(folder).model.state_dict()
        for folder in (tmp_path / "run" / "pretraining", tmp_path / "run")
    )
    run(experiment_of(data, "fourierflow"), tmp_path / "scratch", flows=data[1])
    scratch = pibert.load(tmp_path / "scratch").model.state_dict()
    own = {name for name in before if name.startswith("autoencoder.")}
    assert own and own < set(before)
    assert all(torch.equal(before[name], after[name]) for name in own)
    # Pretraining did change it, and training did change the rest.
    assert not all(torch.equal(after[name], scratch[name]) for name in own)
    assert not all(torch.equal(before[name], after[name]) for name in set(before) - own)
    check_it_steps(tmp_path / "run", data[1])


def test_heads_can_be_trained_without_a_change_of_the_stepping(
    data: tuple[DataConfig, Flows], tmp_path: Path
) -> None:
    first = experiment_of(data, "pibert")
    run(first, tmp_path / "run", flows=data[1])
    plain = {name: getattr(first.training, name) for name in first.training.__dataclass_fields__}
    heads = {
        "start": str(tmp_path / "run"),
        "heads_only": True,
        "pretraining": Pretraining(**{**plain, "monitor": "loss"}),
        "pretraining_weights": Weights(supervised=0.0, mpp=1.0, ecp=0.0),
    }
    run(experiment_of(data, "pibert", **heads), tmp_path / "heads", stage="pretrain", flows=data[1])
    before, after = (pibert.load(tmp_path / name) for name in ("run", "heads"))
    mine, theirs = before.model.state_dict(), after.model.state_dict()
    changed = {name for name in mine if not torch.equal(mine[name], theirs[name])}
    assert changed and all(name.startswith("mpp_head.") for name in changed)
    assert before.card["trained"] == {"forward": True, "reconstruct": False, "consistency": False}
    assert after.card["trained"] == {"forward": True, "reconstruct": True, "consistency": False}
    with pytest.raises(ValueError, match="heads_only: expected the pretraining"):
        run(experiment_of(data, "pibert", **heads), tmp_path / "c", flows=data[1])
    with pytest.raises(ValueError, match="a model to start from"):
        experiment_of(data, "pibert", heads_only=True)
