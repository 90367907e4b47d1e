"""Small flows and a small comparison that the comparison tests share."""

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from pibert.comparison.plan import Candidate, Comparison, Job, RolloutPlan
from pibert.comparison.trials import Trial
from pibert.data.format import write
from pibert.data.splits import Shares
from pibert.evaluation import insight
from pibert.evaluation.cost import Cost, measure_cost
from pibert.evaluation.scores import Scores
from pibert.experiments import evaluation
from pibert.experiments.experiment import DataConfig, ModelConfig, Weights
from pibert.fields import FieldSpec, Trajectory
from pibert.training.engine import FitConfig, Hardware
from tests.data.helpers import make_trajectory

SHAPE = (8, 12)
FRAMES = 20


def wave(number: int, frames: int = FRAMES, **changes: Any) -> Trajectory:
    """Waves that run along x, a little noise; one point was never measured."""
    generator = torch.Generator().manual_seed(number)
    phase, speed, height = torch.rand(3, generator=generator).tolist()
    time = torch.arange(float(frames))[:, None, None]
    y, x = (torch.arange(float(n)) for n in SHAPE)
    angle = 2 * math.pi * (x / SHAPE[1] + phase - (0.05 + 0.05 * speed) * time)
    u = 1 + (0.5 + height) * torch.sin(angle) * (1 + 0.05 * y[:, None])
    v = 0.3 * torch.cos(2 * angle) * torch.sin(math.pi * (y[:, None] + 0.5) / SHAPE[0])
    states = torch.stack((u, v), dim=1)
    states = states + 0.02 * torch.randn(states.shape, generator=generator)
    valid = torch.ones(SHAPE, dtype=torch.bool)
    valid[2, 5] = False
    given: dict[str, Any] = {"states": states, "re": 1000.0 + 50 * number, "valid": valid}
    return make_trajectory(f"w{number}", **(given | changes))


def write_waves(path: Path, count: int = 25, **changes: Any) -> DataConfig:
    """So many waves in a file; 10 of 25 are test flows."""
    write(path, [wave(number, **changes) for number in range(count)])
    return DataConfig(path=str(path), shares=Shares(train=0.4, valid=0.2))


def candidate(name: str, **options: Any) -> Candidate:
    return Candidate(model=ModelConfig(name=name, options=options))


def candidates() -> dict[str, Candidate]:
    small = ModelConfig(
        name="pibert",
        options={
            "width": 16,
            "heads": 2,
            "depth": 1,
            "modes": 3,
            "refine_width": 4,
            "dropout": 0.0,
        },
    )
    weights = Weights(supervised=0.0, mpp=1.0, ecp=0.0)
    return {
        "pibert": Candidate(model=small, pretraining=0.4, pretraining_weights=weights),
        "fno2d": candidate("fno2d", width=8, modes=3, depth=2, head_width=8),
        "persistence": candidate("persistence"),
        "linear-extrapolation": candidate("linear-extrapolation"),
    }


def comparison_of(data: DataConfig, **changes: Any) -> Comparison:
    """Two models with two seeds each, two references, a few steps of training."""
    given: dict[str, Any] = {
        "data": {"waves": data},
        "candidates": candidates(),
        "seeds": (3, 1),
        "samples": 900,
        "training": FitConfig(
            batch_size=64,
            optimizer="adamw",
            learning_rate=1e-3,
            min_learning_rate=1e-4,
            patience=None,
            monitor="reconstruction",
        ),
        "rollout": RolloutPlan(steps=4, starts=3),
        "hardware": Hardware(accelerator="cpu"),
    }
    return Comparison(**(given | changes))


def quickly(patch: pytest.MonkeyPatch) -> None:
    """Leave out what takes long and is tested elsewhere: timing, what tokens know."""

    def brief(model: nn.Module, spec: FieldSpec, device: str, **_: Any) -> Cost:
        return measure_cost(model, spec, device, (1,), seconds=0.0)

    patch.setattr(evaluation, "measure_cost", brief)
    patch.setattr(insight, "alignment", lambda *_, **__: {1: 0.5})


class MemoryWatcher:
    """A watcher that remembers."""

    def __init__(self) -> None:
        self.states: dict[Job, list[str]] = {}
        self.errors: dict[Job, float | None] = {}
        self.trials: dict[Trial, list[str]] = {}

    def simulated(self, done: int | float, total: int | None = None) -> None: ...

    def update(self, item: Job | Trial, state: str, error: float | None = None) -> None:
        if isinstance(item, Trial):
            self.trials.setdefault(item, []).append(state)
            return
        self.states.setdefault(item, []).append(state)
        if error is not None:
            self.errors[item] = error


def changed(scores: Scores, **facts: Any) -> Scores:
    """Scores whose card says other things of the data."""
    return Scores({**scores.card, "data": {**scores.card["data"], **facts}}, scores.arrays)


def value_of(records: list[Mapping[str, Any]], **where: Any) -> Mapping[str, Any]:
    """The one record with these entries."""
    (found,) = [r for r in records if all(r[key] == wanted for key, wanted in where.items())]
    return found
