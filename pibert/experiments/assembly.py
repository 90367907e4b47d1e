"""The parts of a run: flows in a model's units, the model, samples, objectives, schedule.

All that an experiment says is put together here, and what is wrong with it is found here, before
anything is written.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

import torch
from torch import nn

from pibert import config
from pibert.data.dataset import Samples, Window
from pibert.experiments.experiment import Experiment, ModelConfig, Pretraining, Weights
from pibert.experiments.flows import Flows
from pibert.experiments.record import Stage
from pibert.experiments.starting import in_units_of
from pibert.models import build_model
from pibert.predictor import load
from pibert.pretraining.negatives import Negatives
from pibert.training.augmentation import augmented
from pibert.training.consistency import equation_consistency
from pibert.training.engine import FitConfig
from pibert.training.flow_matching import flow_matching
from pibert.training.losses import PAPER_WEIGHTS, LossScales, LossWeights
from pibert.training.masked import masked_physics
from pibert.training.objectives import Objective, supervised, weighted
from pibert.training.pde_residual import pde_residual

_CALIBRATION = 512
"""Samples that the scales of the physics bias are measured on."""


@dataclass(frozen=True, eq=False)
class Parts:
    """All that a stage of a run is made of."""

    flows: Flows
    model: nn.Module
    objectives: Callable[[int], Objective]
    train: Samples
    valid: Samples | None
    schedule: FitConfig
    trained: dict[str, bool]
    """Heads that are trained when it is done."""
    start: str | None
    """Fingerprint of the weights that it began with."""

    @property
    def facts(self) -> dict[str, Any]:
        """What a run that goes on must find again."""
        return {
            "data": self.flows.source,
            "start": self.start,
            "schedule": config.as_plain(self.schedule),
        }


def assemble(experiment: Experiment, flows: Flows, stage: Stage, start: str | None) -> Parts:
    """Make all parts of a stage; what is wrong with the settings is found here.

    Args:
        experiment: What to do.
        flows: Those of the experiment.
        stage: Whether to pretrain or to train.
        start: A run or model whose weights to begin with.
    """
    weights, schedule = experiment.weights, experiment.training
    segments = flows.labelled(experiment.data.labelled)
    if stage == "pretrain":
        weights, segments = experiment.pretraining_weights, flows.split.train
        schedule = experiment.pretraining or Pretraining()
    if not weights.supervised and schedule.monitor == "reconstruction":
        schedule = replace(schedule, monitor="loss")  # the default, where nothing is predicted
    flows, model = _make_model(experiment, flows, start)
    model.prepare_for(stage)
    begun = None if start is None else load(start).card
    if experiment.heads_only:
        _freeze_all_but_heads(model, stage)
    window = _window(experiment, model, weights)
    return Parts(
        flows=flows,
        model=model,
        objectives=make_objectives(experiment, flows, model, weights),
        train=flows.samples(segments, window),
        valid=flows.samples("valid", window) if flows.split.valid else None,
        schedule=schedule,
        trained=_trained(weights, begun if experiment.heads_only else None),
        start=None if begun is None else begun["weights"]["sha256"],
    )


def _trained(weights: Weights, kept: dict[str, Any] | None) -> dict[str, bool]:
    """The heads that are trained afterwards: now, or before and unchanged since.

    Heads that pretraining trained are still there after training alone, but have drifted.
    """
    now = {
        "forward": weights.supervised > 0,
        "reconstruct": weights.mpp > 0,
        "consistency": weights.ecp > 0,
    }
    before = {} if kept is None else kept["trained"]
    return {head: own or before.get(head, False) for head, own in now.items()}


def _freeze_all_but_heads(model: Any, stage: Stage) -> None:
    heads = [getattr(model, name) for name in getattr(model, "PRETRAINED_HEADS", ())]
    if stage != "pretrain" or not heads:
        raise ValueError(
            "heads_only: expected the pretraining of a model with heads for it, such as pibert, "
            f"found the stage {stage!r} of {type(model).__name__}; use pibert pretrain"
        )
    model.requires_grad_(False)
    for head in heads:
        head.requires_grad_(True)


def _make_model(experiment: Experiment, flows: Flows, start: str | None) -> tuple[Flows, Any]:
    """The model before training, and the flows in its units."""
    options, chosen = experiment.model.options, experiment.model
    torch.manual_seed(experiment.seed)
    flows = with_family_of_model(chosen, flows)
    begun = None if start is None else load(start)
    if begun is not None and start is not None:
        flows = in_units_of(begun, flows, start, experiment.start_scaling)
    try:
        model = build_model(chosen.name, preset=chosen.preset, spec=flows.spec, **options)
    except ValueError as error:
        raise ValueError(f"[model] and its options: {error}") from None
    if begun is None:
        _calibrate(model, flows)
        return flows, model
    try:
        model.load_state_dict(begun.model.state_dict())
    except RuntimeError as error:
        first = str(error).splitlines()[1:2]
        raise ValueError(
            f"the weights of {start} do not fit this experiment's model: "
            f"{' '.join(first).strip()}; give both the same [model]"
        ) from None
    if experiment.start_scaling == "data":
        _calibrate(model, flows)
    return flows, model


def with_family_of_model(model: ModelConfig, flows: Flows) -> Flows:
    """Flows of no stated family have the one that is an option of the model."""
    family = model.options.get("family")
    if family is None or flows.spec.family is not None:
        return flows
    return replace(flows, spec=replace(flows.spec, family=family))


def _calibrate(model: Any, flows: Flows) -> None:
    """Give a model the units and scales that it asks for, from samples of the training part."""
    if not (hasattr(model, "calibrate") or hasattr(model, "set_increment_scale")):
        return
    samples = flows.samples("train", Window(history=model.config.history))
    step = max(1, len(samples) // _CALIBRATION)
    some = samples.batch(range(0, len(samples), step))
    if hasattr(model, "calibrate"):
        model.calibrate(some.x, flows.normalizer, some.parameters, some.mask)
    if hasattr(model, "set_increment_scale"):
        change = some.y[:, 0]
        if model.config.residual:
            change = change - some.x[:, -change.shape[1] :]
        here = (some.mask & some.target_mask[:, 0])[:, None]
        mean_square = (change.square() * here).sum((0, 2, 3)) / here.sum()
        model.set_increment_scale(mean_square.sqrt().clamp(min=1e-6))


def _window(experiment: Experiment, model: Any, weights: Weights) -> Window:
    steps = experiment.rollout.steps if weights.supervised else 1
    return Window(history=model.config.history, horizon=model.config.horizon * steps)


def make_objectives(
    experiment: Experiment, flows: Flows, model: Any, weights: Weights
) -> Callable[[int], Objective]:
    """The objective of every epoch."""
    spec, normalizer = flows.spec, flows.normalizer
    scales = LossScales.from_training(spec, normalizer)
    parts: dict[str, tuple[float, Objective]] = {}
    if weights.mpp:
        _need(model, "reconstruct", "mpp")
        masked = masked_physics(experiment.masking, spec, normalizer, scales)
        parts["mpp"] = (weights.mpp, masked)
    if weights.ecp:
        _need(model, "consistency", "ecp")
        negatives = make_negatives(experiment, flows, model.config.history)
        parts["ecp"] = (weights.ecp, equation_consistency(negatives))

    @cache  # the same object for the same work: the engine records it once
    def of_steps(steps: int) -> Objective:
        own = dict(parts)
        if weights.supervised:
            learn = _learning(experiment, model, scales, steps)
            own = {"supervised": (weights.supervised, learn), **own}
        return augmented(weighted(own), experiment.augmentation, spec, normalizer)

    return lambda epoch: of_steps(experiment.rollout.steps_at(epoch))


def _learning(experiment: Experiment, model: Any, scales: LossScales, steps: int) -> Objective:
    """How the model learns to step."""
    losses = experiment.losses or _published_losses(experiment, scales)
    rollout = experiment.rollout
    if model.objective == "flow_matching":
        return flow_matching(model.config.align)
    if model.objective == "pde_residual":
        config = model.config
        return pde_residual(
            scales,
            losses,
            rollout,
            weight=config.pde_weight if scales.is_solenoidal else 0.0,
            transport=config.transport,
            steps=steps,
        )
    return supervised(scales, losses, rollout, steps=steps)


def _published_losses(experiment: Experiment, scales: LossScales) -> LossWeights:
    """The weights of PIBERT's preset; the regularisers are those of incompressible flow alone.

    All other models learn from the squared error alone, as they were published.
    """
    if experiment.model.name != "pibert":
        return LossWeights(reg=0.0, bnd=0.0)
    published = PAPER_WEIGHTS.get(experiment.model.preset or "base", PAPER_WEIGHTS["base"])
    return published if scales.is_solenoidal else replace(published, reg=0.0)


def _need(model: nn.Module, method: str, weight: str) -> None:
    if not hasattr(model, method):
        raise ValueError(
            f"{type(model).__name__} has no head for this: expected a method {method!r}; "
            f"set the weight {weight} to 0"
        )


def make_negatives(experiment: Experiment, flows: Flows, history: int) -> Negatives:
    """What makes invalid windows of the experiment's flows."""
    homes = sorted({segment.trajectory for segment in flows.split.train})
    table = [flows.spec.encode_parameters(flows.trajectories[home].parameters) for home in homes]
    try:
        return Negatives(
            experiment.negatives,
            flows.spec,
            flows.normalizer,
            history,
            torch.cat(table),
            # Bodies that differ between trajectories show as unknown points.
            solid_unknown=flows.spec.grid.body is None and _have_bodies(flows),
            unknown_parameters=_lack_parameters(flows),
        )
    except ValueError as error:
        raise ValueError(
            f"equation consistency (model.options.history, [negatives]): {error}"
        ) from None


def _have_bodies(flows: Flows) -> bool:
    return any(trajectory.body is not None for trajectory in flows.trajectories)


def _lack_parameters(flows: Flows) -> bool:
    names = set(flows.spec.parameter_names)
    return any(names - set(trajectory.parameters) for trajectory in flows.trajectories)
