"""A description of a run before it starts and of its result, and notes on both.

Notes on physics that is off say what, why, and how to switch it on.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

import torch

from pibert.data.readers.recordings import NO_FAMILY
from pibert.data.readers.shared.metadata import family_note
from pibert.data.splits import SPLITS, Segment, SplitRule
from pibert.data.wording import counted
from pibert.experiments.assembly import Part, Setup, make_negatives, with_family_of_model
from pibert.experiments.experiment import Experiment, Weights
from pibert.experiments.flows import Flows
from pibert.experiments.run_folder import Stage
from pibert.fields import PARAMETER_WIDTH, FieldSpec, is_solenoidal, known_coefficients
from pibert.models import make_config
from pibert.models.references.simple import Reference
from pibert.models.stepper import StepperConfig
from pibert.notes import Note
from pibert.physics import find_family

if TYPE_CHECKING:
    from pibert.experiments.run import Finished

_LATE = 5
"""Epochs after the best one from which on a model may overfit."""
_PURPOSES = dict(zip(SPLITS, ("training", "validation", "calibration", "testing"), strict=True))
_STAGES: dict[Part, str] = {
    "pretrain": "Pretraining",
    "train": "Training",
    "rollouts": "Training on rollouts",
}
_OPTIMIZERS = {"muon": "Muon", "adamw": "AdamW"}


def summarise(experiment: Experiment, stages: Mapping[Part, Setup], device: str) -> Iterator[str]:
    """Describe model, flows and the schedule of each stage, a line each."""
    setup = next(iter(stages.values()))
    chosen = experiment.model
    preset = f", preset {chosen.preset}" if chosen.preset else ""
    weights = sum(parameter.numel() for parameter in setup.model.parameters())
    yield f"Model: {chosen.name}{preset}, {weights:,} parameters"
    yield f"Flows: {_flows(experiment, setup.flows)}"
    for stage, setup in stages.items():
        if not isinstance(setup.model, Reference):
            yield describe_stage(experiment, stage, setup, device)


def describe_stage(experiment: Experiment, stage: Part, setup: Setup, device: str) -> str:
    """Describe the schedule of a stage in a line."""
    plan = setup.schedule
    samples = counted(len(setup.train), "sample")
    steps = setup.rollout.steps
    rolled = f" of up to {steps} calls of the model" if steps > 1 else ""
    kept = ""
    if setup.validation is not None and setup.valid is not None:
        window = setup.valid.window
        kept = (
            f"; the weights with the least error over {counted(window.horizon, 'frame')} are kept, "
            f"from {counted(len(setup.valid), 'validation start')}"
        )
    return (
        f"{_STAGES[stage]}: {counted(plan.epochs, 'epoch')} of {samples}{rolled} in batches of "
        f"{plan.batch_size}; {_OPTIMIZERS[plan.optimizer]}, learning rate "
        f"{plan.learning_rate:g} falling to {plan.min_learning_rate:g}; on {device} in "
        f"{experiment.hardware.precision}{kept}"
    )


def shorter_rollouts_note(experiment: Experiment, setup: Setup) -> Note | None:
    """Return a note if the flows are too short for the rollouts that were asked for."""
    asked = experiment.rollout_training
    if asked is None or setup.rollout.steps == asked.rollout.steps:
        return None
    return Note(
        "shorter-rollouts",
        f"the flows are too short for rollouts of {asked.rollout.steps} calls of the model: "
        f"training stops at {setup.rollout.steps}",
        "use longer recordings, without gaps in time",
    )


def _flows(experiment: Experiment, flows: Flows) -> str:
    """Describe number, source and split of the flows."""
    data = experiment.data
    source = data.path or f"{data.case} ({data.preset})"
    how = {"trajectory": "split by flow", "time": "split in time", "stated": "split as stated"}
    how |= {"conditions": "split by condition"}
    rule = SplitRule.parse(data.split)
    subsets = {purpose: getattr(flows.split, name) for name, purpose in _PURPOSES.items()}
    in_frames = any(segment.stop is not None for subset in subsets.values() for segment in subset)
    counts = ", ".join(
        f"{purpose} {sum(map(flows.length, subset)) if in_frames else len(subset)}"
        for purpose, subset in subsets.items()
        if subset
    )
    unit = "frames: " if in_frames else ""
    gap = f"; {counted(data.guard, 'frame')} between them unused" if data.guard else ""
    count = counted(len(flows.trajectories), "flow")
    split = how.get(rule.kind) or f"split by {rule.names[0]}, {_test_range(rule, flows)}"
    return f"{source}, {count} {split} ({unit}{counts}{gap})"


def _test_range(rule: SplitRule, flows: Flows) -> str:
    """Describe the values of training and test flows in a split by a parameter."""

    def ends(subset: Sequence[Segment]) -> str:
        values = [flows.trajectories[s.trajectory].parameters[rule.names[0]] for s in subset]
        low, high = f"{min(values):g}", f"{max(values):g}"
        return low if low == high else f"{low} to {high}"

    return f"training {ends(flows.split.train)}, testing {ends(flows.split.test)}"


def one_flow_note(flows: Flows) -> Note | None:
    """Return a note if the scores rest on a single flow."""
    segments: tuple[Segment, ...] = flows.split.test or flows.split.valid
    indices = {segment.trajectory for segment in segments}
    if len(indices) != 1:
        return None
    (index,) = indices
    which = "test" if flows.split.test else "validation"
    text = f"the {which} scores rest on one flow only, {flows.trajectories[index].name!r}"
    if any(segment.trajectory == index for segment in flows.split.train):
        text += ", which also trains the model: they show little about other flows"
        return Note("one-flow", text, "add flows to learn how well it does on new ones")
    remedy = "add flows, or see how much the scores change with another split: --set "
    return Note("one-flow", text, f"{remedy}data.split_seed=1")


def headline(finished: "Finished") -> str:
    """Return the metrics of a finished run in a line."""
    best, epochs, numbers = finished.best_epoch, finished.fitted.epochs, _numbers(finished.metrics)
    if not epochs:
        return "Fitted in closed form: there are no epochs and no learning curves."
    before = finished.fitted.start_metrics
    if "first_step" in before:
        return _gain_of_rollouts(finished)
    if before:
        numbers += f"; before training {before['reconstruction']:.4g}"
    if finished.validated:
        return f"Best epoch {best} of {epochs}: {numbers}"
    return f"Last epoch {best}, without validation: {numbers}"


def _gain_of_rollouts(finished: "Finished") -> str:
    """Return what the stage on rollouts gained in rollouts and cost in the next frame."""
    fitted, single = finished.fitted, finished.folder / "training"
    before, after, best = fitted.start_metrics, fitted.metrics, fitted.best_epoch

    def change(name: str) -> str:
        return f"{before[name]:.4g} -> {after[name]:.4g}"

    if not best:
        return (
            "No epoch of training on rollouts lowers the error of validation rollouts, "
            f"{before['reconstruction']:.4g}: the model is that of training on single frames."
        )
    paid = after["first_step"] / before["first_step"] if before["first_step"] else math.nan
    return (
        f"Best epoch {best} of {fitted.epochs} by the error of validation rollouts: "
        f"{change('reconstruction')} (persistence {after['persistence']:.4g}). Next frame: "
        f"{change('first_step')} ({paid:.2f} times). The model trained on single frames, before "
        f"this stage: {single}"
    )


def _numbers(metrics: Mapping[str, float]) -> str:
    """Return the metrics of a run as text, each number once."""
    if "skill" in metrics:
        return (
            f"validation error {metrics['reconstruction']:.4g}, persistence "
            f"{metrics['persistence']:.4g}, skill {metrics['skill']:.3g}"
        )
    loss = metrics.get("loss")
    kept = {name: value for name, value in metrics.items() if name == "loss" or value != loss}
    return ", ".join(f"{name} {value:.4g}" for name, value in kept.items())


def notes_on(finished: "Finished") -> Iterator[Note]:
    """Notes on a model that learned little, and on one that overfits."""
    best, epochs = finished.best_epoch, finished.fitted.epochs
    if finished.metrics.get("skill", 1.0) <= 0:
        yield Note(
            "no-skill",
            "the model is no better than persistence, which predicts no change",
            "train longer, raise training.learning_rate, or take frames further apart "
            "(data.stride)",
        )
    elif "first_step" in finished.fitted.start_metrics:
        return  # the stage on rollouts follows a whole training
    elif finished.validated and 0 < best <= epochs / 2 and epochs - best >= _LATE:
        yield Note(
            "overfitting",
            f"the validation error is lowest in epoch {best} of {epochs}, whose weights are kept, "
            "and rises afterwards: the model overfits",
            f"add flows, or train for fewer epochs: --set training.epochs={best}",
        )


_UNSTATED = (
    "no PDE family is stated (state it with data.hints.family or pibert convert --family; "
    f"{NO_FAMILY}: no family fits)"
)
_OF_METADATA = ("adversarial", "omitted", "boundary")
"""Kinds of negatives that need what a data file may leave unknown."""


def physics_notes(experiment: Experiment, flows: Flows, stage: Stage) -> tuple[str, ...]:
    """Return notes on physics that the model could use on these flows and does not.

    The stage ``train`` includes the pretraining of the experiment.
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
