"""Small flows and saved models that the tests of calibration share."""

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from pibert import FieldSpec, Grid, Normalizer, Parameter, Trajectory
from pibert.data.dataset import Samples, Window
from pibert.data.splits import Segment
from pibert.inference import Predictor, load, save_model
from tests.helpers import randomise, tiny_model

SHAPE = (8, 12)
BODY = torch.zeros(SHAPE, dtype=torch.bool)
BODY[3:5, 2:4] = True


def spec_of(scale: float = 1.0) -> FieldSpec:
    """A velocity on unequal spacing with a body; ``scale`` is the size of the unit."""
    return FieldSpec(
        grid=Grid(SHAPE, dx=0.3, dy=0.2, body=BODY),
        parameters=(Parameter(name="Re", scaling="log", mean=2.0, std=0.2),),
        dt=0.1 / scale,  # velocities in another unit of time
        family="incompressible",
        reference_velocity=scale,
        reference_length=1.0,
    )


def flows(count: int, *, frames: int = 12, seed: int = 0, scale: float = 1.0) -> list[Trajectory]:
    """Travelling shear waves of random phase, divergence-free, that differ in strength."""
    generator = torch.Generator().manual_seed(seed)
    spec = spec_of(scale)
    x, y = (c.double() for c in spec.grid.coordinates(torch.float64))
    made = []
    for number in range(count):
        phase, strength = torch.rand(2, generator=generator, dtype=torch.float64)
        t = torch.arange(frames, dtype=torch.float64)[:, None, None] * 0.1
        angle = 2 * x + 3 * y - 4 * t + 6.28 * phase
        stream = (0.5 + strength) * torch.stack((3 * angle.cos(), -2 * angle.cos()), dim=1)
        noise = 0.05 * torch.randn(stream.shape, generator=generator, dtype=torch.float64)
        made.append(
            Trajectory(
                name=f"wave-{number}",
                states=(scale * (stream + noise)).float(),
                time=0.1 / scale * torch.arange(frames),
                spec=spec,
                parameters={"Re": 80.0 + 40.0 * float(strength)},
            )
        )
    return made


def samples_of(trajectories: list[Trajectory], window: Window, scale: float = 1.0) -> Samples:
    segments = [Segment(index) for index in range(len(trajectories))]
    return Samples(
        trajectories, segments, window=window, normalizer=unit(scale), spec=spec_of(scale)
    )


def unit(scale: float = 1.0) -> Normalizer:
    return Normalizer((0.0, 0.0), (2.0 * scale, 1.5 * scale))


def saved(folder: Path, *, seed: int = 0, scale: float = 1.0, **options: Any) -> Predictor:
    """A small model that predicts something other than the last frame, saved and loaded."""
    torch.manual_seed(seed)
    settings = {"width": 8, "heads": 2, "depth": 1, "modes": 2, "refine_width": 4, "history": 2}
    model = tiny_model("pibert", spec_of(scale), **settings, **options)
    with torch.no_grad():
        for parameter in randomise(model, seed).parameters():
            parameter.mul_(0.5)
    trained = {"forward": True, "consistency": True}
    save_model(folder, model, unit(scale), trained=trained)
    return load(folder)


class Damping(nn.Module):
    """The last frame times a factor, in physical units."""

    def __init__(self, spec: FieldSpec, factor: float) -> None:
        super().__init__()
        self.spec, self.factor = spec, factor
        self.config = SimpleNamespace(history=2, horizon=1)

    def forward(self, x: Tensor, parameters: Tensor, mask: Tensor) -> Tensor:
        return x[:, -len(self.spec.channels) :] * self.factor  # the training mean is zero


def damping(family: str | None = "incompressible", stated: str | None = None) -> Predictor:
    """A predictor with a card like a saved one's.

    Args:
        family: Of the data.
        stated: Family in the options of the model.
    """
    card = {"weights": {"sha256": "a" * 64}, "trained": {"forward": True}}
    card["model"] = {"config": {"family": stated}}
    return Predictor(Damping(replace(spec_of(), family=family), 0.97), unit(), card=card)


def in_other_units(trajectory: Trajectory, factor: float) -> Trajectory:
    states = trajectory.read() * factor
    time = trajectory.time / factor
    return replace(trajectory, states=states, time=time, spec=spec_of(factor))
