"""A description of a run before it starts, and a note on scores that rest on one flow."""

from collections.abc import Iterator, Mapping, Sequence

from pibert.data.splits import SPLITS, Segment, SplitRule
from pibert.data.wording import counted
from pibert.experiments.assembly import Part, Setup
from pibert.experiments.experiment import Experiment
from pibert.experiments.flows import Flows
from pibert.models.references.simple import Reference
from pibert.notes import Note

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
    return (
        f"{_STAGES[stage]}: {counted(plan.epochs, 'epoch')} of {samples}{rolled} in batches of "
        f"{plan.batch_size}; {_OPTIMIZERS[plan.optimizer]}, learning rate "
        f"{plan.learning_rate:g} falling to {plan.min_learning_rate:g}; on {device} in "
        f"{experiment.hardware.precision}"
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
        return f"{min(values):g} to {max(values):g}"

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
