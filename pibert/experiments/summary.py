"""A description of a run before it starts and of its result, and notes on both."""

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING

from pibert.data.splits import SPLITS, Segment, SplitRule
from pibert.data.wording import counted
from pibert.experiments.assembly import Part, Setup
from pibert.experiments.experiment import Experiment
from pibert.experiments.flows import Flows
from pibert.models.references.simple import Reference
from pibert.notes import Note

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
    """Describe model, flows and the schedule of each stage, a line each.

    Args:
        experiment: What is run.
        stages: The setup of each stage.
        device: Where it is computed.
    """
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
    if finished.fitted.start_metrics:
        return _gain_of_rollouts(finished)
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
    elif finished.fitted.start_metrics:
        return  # the stage on rollouts follows a whole training
    elif finished.validated and 0 < best <= epochs / 2 and epochs - best >= _LATE:
        yield Note(
            "overfitting",
            f"the validation error is lowest in epoch {best} of {epochs}, whose weights are kept, "
            "and rises afterwards: the model overfits",
            f"add flows, or train for fewer epochs: --set training.epochs={best}",
        )
