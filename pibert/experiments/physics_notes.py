"""Notes on the physics that a run leaves out: what, why, and how to switch it on."""

from collections.abc import Iterator

import torch

from pibert.data.sources.recordings import NO_FAMILY
from pibert.experiments.assembly import make_negatives, with_family_of_model
from pibert.experiments.experiment import Experiment, Weights
from pibert.experiments.flows import Flows
from pibert.experiments.record import Stage
from pibert.fields import PARAMETER_WIDTH, FieldSpec
from pibert.models import make_config
from pibert.models.stepper import StepperConfig
from pibert.physics import find_family, is_solenoidal
from pibert.physics.coefficients import known_coefficients

_UNSTATED = (
    "no PDE family is stated (state it with data.hints.family or pibert convert --family; "
    f"{NO_FAMILY}: no family fits)"
)
_OF_METADATA = ("adversarial", "omitted", "boundary")
"""Kinds of negatives that need what a data file may leave unknown."""


def physics_notes(experiment: Experiment, flows: Flows, stage: Stage) -> tuple[str, ...]:
    """What physics the model could use on these flows and does not, in words.

    Args:
        experiment: What is trained, and how.
        flows: What it learns from; as they are, or in the units of the model.
        stage: ``train`` counts the pretraining of the experiment in.
    """
    flows = with_family_of_model(experiment.model, flows)
    spec = flows.spec
    stages = [experiment.pretraining_weights] if experiment.pretraining or stage != "train" else []
    stages += [experiment.weights] if stage == "train" else []
    reasons: dict[str, list[str]] = {}
    for weights in stages:
        for feature, reason in _off(experiment, flows, weights):
            features = reasons.setdefault(reason, [])
            features += [feature] if feature not in features else []
    notes = [
        f"{', '.join(features)}: off, because {reason}" for reason, features in reasons.items()
    ]
    return (*notes, *_incomplete(experiment, spec, stages))


def _off(experiment: Experiment, flows: Flows, weights: Weights) -> Iterator[tuple[str, str]]:
    """Features that are off, each with the reason."""
    spec, name, config = flows.spec, experiment.model.name, _config(experiment)
    unstated = _UNSTATED if experiment.start is None else f"{experiment.start} has no PDE family"
    if getattr(config, "attention_bias", 0) and spec.family is None:
        yield "the attention bias", unstated
    if name == "pitt" and spec.family is None:
        yield "the equation that PITT reads", unstated
    losses = experiment.losses
    if weights.supervised and losses is not None and not losses.reg and (losses.div or losses.lap):
        yield (
            "the divergence and Laplacian regularisers (losses.div, losses.lap)",
            "losses.reg, the factor of both, is 0",
        )
    if weights.supervised and not is_solenoidal(spec):
        reason = f"family {spec.family!r} is not a flow without divergence"
        reason = unstated if spec.family is None else reason
        if name == "pibert" and experiment.losses is None:
            yield "the divergence and Laplacian regularisers", reason
        if getattr(config, "pde_weight", 0):
            yield "the PDE residual of the loss (the model is a pointwise MLP)", reason
    if weights.ecp and not experiment.negatives.kinds:
        unavailable = make_negatives(experiment, flows, config.history).unavailable
        for kind, reason in unavailable.items():
            if kind in _OF_METADATA:
                if kind == "boundary":
                    reason += " (state the sides with data.hints.sides)"
                elif spec.family is None:
                    reason = unstated
                yield f"negatives of kind {kind!r} in pretraining", reason


def _incomplete(experiment: Experiment, spec: FieldSpec, stages: list[Weights]) -> Iterator[str]:
    """What the residuals of the family lack."""
    config = _config(experiment)
    uses_residuals = getattr(config, "attention_bias", 0) or any(w.ecp for w in stages)
    if spec.family is None or not uses_residuals:
        return
    family = find_family(spec.family)
    if spec.dt is None and config.history > 1:
        yield (
            f"the residuals of {family.name!r} have no time derivative, because the time step of "
            "the data is not stated (--dt, hint dt)"
        )
    known = known_coefficients(family, spec, torch.zeros(1, PARAMETER_WIDTH))
    for name, value in family.coefficients.items():
        if name not in known:
            what = f"taken as {value:g}" if value else "left out with its term"
            yield (
                f"the residuals of {family.name!r}: {name} is not stated and is {what}; state it "
                f"with data.hints.parameters or pibert convert --parameter {name}=NUMBER"
            )


def _config(experiment: Experiment) -> StepperConfig:
    chosen = experiment.model
    return make_config(chosen.name, chosen.preset, **chosen.options)
