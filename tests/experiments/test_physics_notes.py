"""Losses follow the family of the flows, and what physics is off is said."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from pibert.data.dataset import Window
from pibert.data.format import write
from pibert.experiments import Experiment
from pibert.experiments.assembly import assemble
from pibert.experiments.experiment import DataConfig, ModelConfig, Pretraining, Weights
from pibert.experiments.flows import Flows, prepare
from pibert.experiments.summary import physics_notes
from pibert.fields import Grid
from tests.data.helpers import make_trajectory
from tests.helpers import TINY

SHAPE = (12, 16)


def flows_of(
    folder: Path, family: str | None, *channels: str, hints: dict[str, Any] | None = None
) -> Flows:
    trajectories = []
    for number in range(3):
        generator = torch.Generator().manual_seed(number)
        states = 1 + 0.1 * torch.randn(5, len(channels), *SHAPE, generator=generator)
        trajectory = make_trajectory(f"{number}", states=states, channels=channels)
        spec = replace(trajectory.spec, family=family, grid=Grid(SHAPE, 0.1, 0.2))
        trajectories.append(replace(trajectory, spec=spec))
    write(folder / "flows.h5", trajectories)
    config = DataConfig(path=str(folder / "flows.h5"), split="time", hints=hints or {})
    return prepare(replace(config, shares=replace(config.shares, train=0.6, valid=0.4)))


def experiment(name: str = "pibert", **changes: Any) -> Experiment:
    options = dict(TINY) if name == "pibert" else {}
    options |= changes.pop("options", {})
    model = ModelConfig(name=name, options=options)
    return Experiment(data=DataConfig(path="flows.h5"), model=model, **changes)


def logged(plan: Experiment, flows: Flows) -> set[str]:
    """What the loss of an experiment consists of."""
    parts = assemble(plan, flows, "train", None)
    batch = parts.flows.samples("train", Window(history=1)).batch(range(2))
    _, logs = parts.objectives(0)(parts.model, batch)
    return set(logs)


@pytest.mark.parametrize(
    ("family", "channels", "regularised"),
    [
        ("incompressible-momentum", ("u", "v", "p"), True),
        ("euler", ("rho", "u", "v", "p"), False),
        ("heat", ("u",), False),
        (None, ("u", "v"), False),
    ],
)
def test_regularisers_and_the_residual_of_pinn_follow_the_family(
    tmp_path: Path, family: str | None, channels: tuple[str, ...], regularised: bool
) -> None:
    flows = flows_of(tmp_path, family, *channels)
    terms = logged(experiment(), flows)
    assert {"loss", "reconstruction", "boundary"} <= terms
    assert ({"divergence", "laplacian"} <= terms) is regularised
    assert ("continuity" in logged(experiment("pinn"), flows)) is regularised
    for name, feature in (("pibert", "Laplacian regularisers"), ("pinn", "PDE residual")):
        notes = " ".join(physics_notes(experiment(name), flows, "train"))
        assert (feature in notes) is not regularised


def test_physics_that_is_off_without_a_family_is_named_with_the_remedy(tmp_path: Path) -> None:
    flows = flows_of(tmp_path, None, "u", "v")
    (note,) = physics_notes(experiment(), flows, "train")
    for own in ("attention bias", "divergence and Laplacian", "data.hints.family"):
        assert own in note
    first, second = physics_notes(experiment(pretraining=Pretraining()), flows, "train")
    assert "'omitted'" in first and "data.hints.sides" in second
    closed = flows_of(tmp_path, None, "u", "v", hints={"sides": "periodic"})
    assert len(physics_notes(experiment(pretraining=Pretraining()), closed, "train")) == 1
    no_bias = experiment(options={"attention_bias": 0.0}, weights=Weights(supervised=0.0, mpp=1.0))
    for silent in (experiment("unet"), no_bias):
        assert not physics_notes(silent, flows, "train")


def test_a_family_of_the_hints_or_of_the_model_switches_physics_on(tmp_path: Path) -> None:
    stated = flows_of(tmp_path, None, "u", "v", hints={"family": "incompressible"})
    assert stated.spec.family == "incompressible"
    assert not physics_notes(experiment(), stated, "train")
    unstated = flows_of(tmp_path, None, "u", "v")
    plan = experiment(options={"family": "incompressible"})
    assert not physics_notes(plan, unstated, "train")
    assert "divergence" in logged(plan, unstated)
