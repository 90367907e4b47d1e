"""Notes on physics that is off in a run: what, why, and how to switch it on."""

from collections.abc import Iterator

import torch

from pibert.data.readers.recordings import NO_FAMILY
from pibert.data.readers.shared.metadata import family_note
from pibert.experiments.assembly import make_negatives, with_family_of_model
from pibert.experiments.experiment import Experiment, Weights
from pibert.experiments.flows import Flows
from pibert.experiments.run_folder import Stage
from pibert.fields import PARAMETER_WIDTH, FieldSpec, is_solenoidal, known_coefficients
from pibert.models import make_config
from pibert.models.stepper import StepperConfig
from pibert.physics import find_family

_UNSTATED = (
    "no PDE family is stated (state it with data.hints.family or pibert convert --family; "
    f"{NO_FAMILY}: no family fits)"
)
_OF_METADATA = ("adversarial", "omitted", "boundary")
"""Kinds of negatives that need what a data file may leave unknown."""


def physics_notes(experiment: Experiment, flows: Flows, stage: Stage) -> tuple[str, ...]:
    """Return notes on physics that the model could use on these flows and does not.

    Args:
        experiment: What is trained, and how.
        flows: The data, in their own units or in those of the model.
        stage: ``train`` includes the pretraining of the experiment.
    """
    flows = with_family_of_model(experiment.model, flows)
    stages = [experiment.pretraining_weights] if experiment.pretraining or stage != "train" else []
    stages += [experiment.weights] if stage == "train" else []
    reasons: dict[str, list[str]] = {}
    for weights in stages:
        for feature, reason in _off(experiment, flows, weights):
            features = reasons.setdefault(reason, [])
            features += [feature] if feature not in features else []
    notes = [f"{', '.join(names)}: off, because {reason}" for reason, names in reasons.items()]
    if _uses_equations(experiment, stages):
        # A family that was inferred, or lacks channels; _off covers flows without one.
        stated = (t for t in flows.trajectories if t.spec.family is not None)
        notes += sorted({note for trajectory in stated if (note := family_note(trajectory))})
    return (*notes, *_incomplete(experiment, flows.spec, stages))


def _uses_equations(experiment: Experiment, stages: list[Weights]) -> bool:
    """Return whether the model, its losses or its pretraining use the family of the flows."""
    config, losses = _config(experiment), experiment.losses
    published = experiment.model.name == "pibert" and losses is None
    chosen = losses is not None and bool(losses.reg and (losses.div or losses.lap))
    learns = any(weights.supervised for weights in stages)
    return (
        experiment.model.name == "pitt"
        or any(getattr(config, name, 0) for name in ("attention_bias", "pde_weight"))
        or (learns and (published or chosen))
        or any(weights.ecp for weights in stages)
    )


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
    """Notes on what the residuals of the family lack."""
    config = _config(experiment)
    uses_residuals = getattr(config, "attention_bias", 0) or any(w.ecp for w in stages)
    if spec.family is None or not uses_residuals:
        return
    family = find_family(spec.family)
    if spec.dt is None and config.history > 1:
        yield (
            f"the residuals of {family.name!r} have no time derivative, because the time step is "
            "not stated; state it with --set data.hints.dt=NUMBER or pibert convert --dt NUMBER"
        )
    known = known_coefficients(family, spec, torch.zeros(1, PARAMETER_WIDTH))
    for name, value in family.coefficients.items():
        if name not in known:
            what = f"take {value:g} for it" if value else "leave its term out"
            yield (
                f"{name} is not stated: the residuals of {family.name!r} {what}; state it with "
                f"--set data.hints.parameters.{name}=NUMBER or pibert convert --parameter "
                f"{name}=NUMBER"
            )


def _config(experiment: Experiment) -> StepperConfig:
    chosen = experiment.model
    return make_config(chosen.name, chosen.preset, **chosen.options)
