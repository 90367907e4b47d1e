"""From an experiment to the model, samples, objectives and schedule of a run.

Wrong settings are found here, before anything is written. A model that is trained further keeps
its channels, family and, by default, scaling.
"""

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Any, Literal

import torch
from torch import nn

from pibert import config
from pibert.data.dataset import BatchOrder, Samples, Window, make_loader
from pibert.data.splits import Segment
from pibert.data.wording import counted
from pibert.experiments.experiment import (
    Experiment,
    ModelConfig,
    Pretraining,
    RolloutTraining,
    Scaling,
    Weights,
)
from pibert.experiments.flows import Flows
from pibert.fields import Batch, FieldSpec, with_uniform_state
from pibert.inference import Predictor, load
from pibert.models import build_model
from pibert.models.motion import EquationOfMotion
from pibert.notes import Note, warn
from pibert.pretraining.negatives import Negatives
from pibert.training.augmentation import augmented
from pibert.training.engine import FitConfig
from pibert.training.flow_matching import flow_matching
from pibert.training.loggers import check_installed
from pibert.training.losses import PAPER_WEIGHTS, LossScales, LossWeights
from pibert.training.objectives import (
    ONE_STEP,
    Objective,
    RolloutConfig,
    equation_consistency,
    free_rollout,
    masked_physics,
    supervised,
    weighted,
)
from pibert.training.pde_residual import pde_residual

Part = Literal["pretrain", "train", "rollouts"]
"""A stage of a run: pretraining, training on single steps, or on rollouts."""
_CALIBRATION = 512
"""Samples that the scales of the physics bias are measured on."""
_WRONG_MOTION = 0.1
"""Largest error of Newton's law for recorded forces, over that of repeating the displacement."""
_ALIKE = 1.5
"""Scalings are alike up to this factor between standard deviations, and this number of them between
means."""
_MARGIN = 0.1
"""Share of a parameter's range by which values may lie beyond it."""
_SAME_STEP = 0.01
"""Relative: grid spacings and time steps that differ by less are the same."""
_REMEDIES = {
    "channels": "choose the same with data.channels",
    "units": "convert the data",
    "parameter_names": "state the same parameters of every flow",
}


@dataclass(frozen=True, eq=False)
class Setup:
    """All that a stage of a run needs."""

    flows: Flows
    model: nn.Module
    objectives: Callable[[int], Objective]
    train: Samples
    valid: Samples | None
    schedule: FitConfig
    rollout: RolloutConfig
    validation: Objective | None
    """That of the rollouts which decide on the weights; None: the objective of the last epoch."""
    keeps_start: bool
    """Whether the weights it starts from are kept unless an epoch is better."""
    trained: dict[str, bool]
    """Heads that are trained afterwards."""
    start: str | None
    """Fingerprint of the weights that it started from."""

    @property
    def facts(self) -> dict[str, Any]:
        """Return facts that must not change when the run is resumed."""
        return {
            "data": self.flows.source,
            "start": self.start,
            "schedule": config.as_plain(self.schedule),
        }


def assemble(experiment: Experiment, flows: Flows, stage: Part, start: str | None) -> Setup:
    """Return the setup of a stage; ``start`` is a run or model whose weights to start from."""
    weights, schedule, rollout = experiment.weights, experiment.training, experiment.rollout
    segments = flows.labelled(experiment.data.labelled)
    if stage == "pretrain":
        weights, segments = experiment.pretraining_weights, flows.split.train
        schedule = experiment.pretraining or Pretraining()
    elif stage == "rollouts":
        assert experiment.rollout_training is not None
        schedule = experiment.rollout_training
        rollout = schedule.rollout
    if not weights.supervised and schedule.monitor == "reconstruction":
        schedule = replace(schedule, monitor="loss")  # nothing is predicted
    if schedule.logger == "auto":
        schedule = replace(schedule, logger=experiment.training.logger)
    check_installed(schedule.logger)
    flows, model = _make_model(experiment, flows, start)
    model.prepare_for("pretrain" if stage == "pretrain" else "train")
    card = None if start is None else load(start).card
    if experiment.heads_only:
        _freeze_all_but_heads(model, stage)
    if rollout.steps > 1 and (why := experiment.model.why_no_rollouts):
        raise ValueError(
            f"{experiment.model.name} cannot be trained on rollouts, found {rollout.steps} steps: "
            f"{why}; leave them out: --set rollout.steps=1 --set rollout_training=none"
        )
    symmetries = experiment.augmentation.chosen(flows.spec)
    if symmetries and _corrects_dmd(model):
        raise ValueError(
            f"expected no augmentation of a model with dmd_modes, found {', '.join(symmetries)}: "
            "the modes are those of the flows as they are; leave it out: "
            + " ".join(f"--set augmentation.{name}=false" for name in symmetries)
        )
    validation, checked = None, 0
    if isinstance(schedule, RolloutTraining):
        rollout, checked = _that_fit(schedule, flows, segments, model.config)
        scales = _loss_scales(experiment, flows)
        validation = weighted({"supervised": (1.0, free_rollout(scales, checked))})
    steps = rollout.steps if weights.supervised else 1

    def window(steps: int) -> Window:
        return Window(history=model.config.history, horizon=model.config.horizon * steps)

    try:
        train = flows.samples(segments, window(steps))
        valid = flows.samples("valid", window(checked or steps)) if flows.split.valid else None
    except ValueError as error:
        if steps == 1:
            raise
        raise ValueError(f"{error}; rollout.steps is {steps}: try fewer") from None
    return Setup(
        flows=flows,
        model=model,
        objectives=make_objectives(experiment, flows, model, weights, rollout),
        train=train,
        valid=valid,
        schedule=schedule,
        rollout=rollout if weights.supervised else ONE_STEP,
        validation=validation,
        keeps_start=validation is not None
        or (
            card is not None and card["trained"]["forward"] and schedule.monitor == "reconstruction"
        ),
        # Heads trained before stay trained only if nothing else changes.
        trained=_trained(weights, card["trained"] if card and experiment.heads_only else {}),
        start=None if card is None else card["weights"]["sha256"],
    )


class TooShort(ValueError):
    """The recordings are too short to train on rollouts."""


def _that_fit(
    stage: RolloutTraining, flows: Flows, segments: Sequence[Segment], model: Any
) -> tuple[RolloutConfig, int]:
    """Return the rollouts of training, and the length of those of validation, cut to the data.

    Validation rollouts take at most half of the longest recording, so that they have many starts.
    """
    longest = {"training": flows.longest(segments)}
    if flows.split.valid:
        longest["validation"] = flows.longest("valid")
    calls = {name: (n - model.history) // model.horizon for name, n in longest.items()}
    if min(calls.values()) < 2:
        name = min(calls, key=calls.__getitem__)
        kind = TooShort if stage.shorten else ValueError
        raise kind(
            f"the {name} recordings have at most {counted(longest[name], 'frame')} without a gap, "
            f"but two calls of the model need {model.history + 2 * model.horizon}"
        )
    steps = min(stage.rollout.steps, calls["training"])
    if steps < stage.rollout.steps and not stage.shorten:
        raise ValueError(
            f"rollout_training.rollout.steps is {stage.rollout.steps}, which needs "
            f"{model.history + model.horizon * stage.rollout.steps} frames, but the training "
            f"recordings have at most {longest['training']} without a gap; take at most {steps}"
        )
    rollout = replace(stage.rollout, steps=steps, first=min(stage.rollout.first, steps))
    possible = calls.get("validation", steps)
    return rollout, min(stage.validation_steps, max(2, possible // 2))


def _trained(weights: Weights, before: Mapping[str, bool]) -> dict[str, bool]:
    now = {"forward": weights.supervised, "reconstruct": weights.mpp, "consistency": weights.ecp}
    return {head: weight > 0 or before.get(head, False) for head, weight in now.items()}


def _freeze_all_but_heads(model: Any, stage: Part) -> None:
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
    """Return the model before training, and the flows in its units."""
    chosen = experiment.model
    torch.manual_seed(experiment.seed)
    flows = with_family_of_model(chosen, flows)
    trained = None if start is None else load(start)
    if trained is not None and start is not None:
        flows = in_units_of(trained, flows, start, experiment.start_scaling)
    try:
        model = build_model(chosen.name, preset=chosen.preset, spec=flows.spec, **chosen.options)
    except ValueError as error:
        raise ValueError(f"[model] and its options: {error}") from None
    if trained is not None:
        try:
            model.load_state_dict(trained.model.state_dict())
        except RuntimeError as error:
            first = " ".join(str(error).splitlines()[1:2]).strip()
            raise ValueError(
                f"the weights of {start} do not fit this experiment's model: {first}; give both "
                "the same [model], and with dmd_modes or fill_modes the same grid"
            ) from None
    if trained is None or experiment.start_scaling == "data":
        _calibrate(model, flows)
        if _corrects_dmd(model):
            train = flows.labelled(experiment.data.labelled)
            subsets = (train, flows.split.valid) if flows.split.valid else (train,)
            window = Window(history=model.config.history, horizon=model.config.horizon)
            batches = (in_order(flows.samples(segments, window)) for segments in subsets)
            model.dmd_skip.fit(next(batches), flows.normalizer, *batches)
    return flows, model


def _corrects_dmd(model: Any) -> bool:
    return getattr(model, "dmd_skip", None) is not None


def with_family_of_model(model: ModelConfig, flows: Flows) -> Flows:
    """Return the flows; without a stated family they get the one in the model's options."""
    family = model.options.get("family")
    if family is None or flows.spec.family is not None:
        return flows
    return replace(flows, spec=replace(flows.spec, family=family))


def in_order(samples: Samples) -> Any:
    """Return a loader of all samples in their order, for models that are fitted in closed form."""
    return make_loader(samples, BatchOrder(len(samples), 256, seed=0, shuffle=False))


def _calibrate(model: Any, flows: Flows) -> None:
    """Set the units and scales that a model needs, from samples of the training split."""
    if not (hasattr(model, "calibrate") or hasattr(model, "set_increment_scale")):
        return
    samples = flows.samples("train", Window(history=model.config.history))
    step = max(1, len(samples) // _CALIBRATION)
    batch = samples.batch(range(0, len(samples), step))
    if hasattr(model, "calibrate"):
        model.calibrate(batch.x, flows.normalizer, batch.parameters, batch.mask)
        if getattr(model, "motion", None) is not None:
            _check_motion(model.motion, batch)
    if hasattr(model, "set_increment_scale"):
        change = batch.y[:, 0]
        if model.config.residual:
            change = change - batch.x[:, -change.shape[1] :]
        known = (batch.mask & batch.target_mask[:, 0])[:, None]
        mean_square = (change.square() * known).sum((0, 2, 3)) / known.sum()
        model.set_increment_scale(mean_square.sqrt().clamp(min=1e-6))


def _check_motion(motion: EquationOfMotion, batch: Batch) -> None:
    """Note that recorded displacements do not follow from recorded forces."""
    following, states = batch.y[:, 0], len(motion.spec.state)
    last = batch.x[:, -following.shape[1] :]
    last, following = (
        with_uniform_state(frame, states, known)
        for frame, known in ((last, batch.mask), (following, batch.target_mask[:, 0]))
    )
    misfit = motion.misfit(last, following, batch.parameters)
    if misfit > _WRONG_MOTION:
        text = (
            "bodies on springs do not move as Newton's law says for the recorded force: its error "
            f"is {misfit:.0%} of that of repeating the displacement"
        )
        remedy = (
            "check that displacement, velocity and force are in units of D, U and rho U^2 D / 2, "
            "and the mass ratio and reduced velocity; or leave the spring out, to learn the motion"
        )
        warn(Note("wrong-motion", text, remedy))


def make_objectives(
    experiment: Experiment, flows: Flows, model: Any, weights: Weights, rollout: RolloutConfig
) -> Callable[[int], Objective]:
    """Return the objective of every epoch."""
    spec, normalizer = flows.spec, flows.normalizer
    scales = _loss_scales(experiment, flows)
    for head, weight in (("reconstruct", "mpp"), ("consistency", "ecp")):
        if getattr(weights, weight) and not hasattr(model, head):
            raise ValueError(
                f"{type(model).__name__} has no head for this: expected a method {head!r}; set "
                f"the weight {weight} to 0"
            )
    pretraining: dict[str, tuple[float, Objective]] = {}
    if weights.mpp:
        masked = masked_physics(experiment.masking, spec, normalizer, scales)
        pretraining["mpp"] = (weights.mpp, masked)
    if weights.ecp:
        negatives = make_negatives(experiment, flows, model.config.history)
        pretraining["ecp"] = (weights.ecp, equation_consistency(negatives))

    @cache  # the same object for the same work: the engine captures it once
    def of_steps(steps: int) -> Objective:
        terms = dict(pretraining)
        if weights.supervised:
            objective = _step_objective(experiment, model, scales, rollout, steps)
            terms = {"supervised": (weights.supervised, objective), **terms}
        return augmented(weighted(terms), experiment.augmentation, spec, normalizer)

    return lambda epoch: of_steps(rollout.steps_at(epoch))


def _loss_scales(experiment: Experiment, flows: Flows) -> LossScales:
    weight = (experiment.losses or LossWeights()).state
    return LossScales.from_training(flows.spec, flows.normalizer, weight)


def _step_objective(
    experiment: Experiment, model: Any, scales: LossScales, rollout: RolloutConfig, steps: int
) -> Objective:
    """Return the objective of learning to step."""
    losses = experiment.losses or _published_losses(experiment, scales)
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
    """The weights of PIBERT's preset; its regularisers are for incompressible flow alone.

    All other models learn from the squared error alone, as published.
    """
    if experiment.model.name != "pibert":
        return LossWeights()
    published = PAPER_WEIGHTS.get(experiment.model.preset or "base", PAPER_WEIGHTS["base"])
    return published if scales.is_solenoidal else replace(published, reg=0.0)


def make_negatives(experiment: Experiment, flows: Flows, history: int) -> Negatives:
    """Return the source of invalid windows for the experiment's flows."""
    indices = sorted({segment.trajectory for segment in flows.split.train})
    table = [flows.spec.encode_parameters(flows.trajectories[i].parameters) for i in indices]
    try:
        return Negatives(
            experiment.negatives,
            flows.spec,
            flows.normalizer,
            history,
            torch.cat(table),
            # Bodies that differ between trajectories show as unknown points.
            solid_unknown=flows.spec.grid.body is None
            and any(trajectory.body is not None for trajectory in flows.trajectories),
        )
    except ValueError as error:
        raise ValueError(
            f"equation consistency (model.options.history, [negatives]): {error}"
        ) from None


def in_units_of(trained: Predictor, flows: Flows, start: str, scaling: Scaling) -> Flows:
    """Return the flows in the units of a model that is trained further.

    Args:
        trained: The model to start from.
        flows: In units of their own.
        start: Where the model comes from, for messages.
        scaling: Which mean and deviation of fields and parameters to use. A warning states where
            that of the model does not fit the data.
    """
    mine, theirs = flows.spec, trained.spec
    for what, remedy in _REMEDIES.items():
        if getattr(mine, what) != getattr(theirs, what):
            raise ValueError(
                f"{start} was trained on {what.replace('_', ' ')} {getattr(theirs, what)}, but "
                f"these data have {getattr(mine, what)}; {remedy}, or choose another start"
            )
    family = theirs.family or getattr(trained.model.config, "family", None)
    if family is not None and mine.family not in (None, family):
        raise ValueError(
            f"{start} was trained for the family {family!r}, but these data are of "
            f"{mine.family!r}; choose another start, or state data.hints.family"
        )
    if family is not None and mine.family is None:
        warn(
            f"these data state no PDE family; that of {start} is kept, {family!r}, with its "
            "physics terms"
        )
    if changes := list(_other_steps(mine, theirs)):
        warn(f"{start} was trained on another grid spacing or time step: {'; '.join(changes)}")
    # The attention bias belongs to the model: one without a family stays without.
    flows = replace(flows, spec=replace(mine, family=family))
    if scaling == "data":
        return flows
    if differences := list(_other_scaling(trained, flows)):
        warn(
            f"the scaling of {start} is kept and does not fit these data: "
            f"{'; '.join(differences)}; set start_scaling = 'data' to scale by these data"
        )
    spec = replace(flows.spec, parameters=theirs.parameters)
    return replace(flows, normalizer=trained.normalizer, spec=spec)


def _other_steps(mine: FieldSpec, theirs: FieldSpec) -> Iterator[str]:
    """Steps in space and time that differ from those of the earlier training."""
    steps = {
        "dx": (mine.grid.dx, theirs.grid.dx),
        "dy": (mine.grid.dy, theirs.grid.dy),
        "dt": (mine.dt, theirs.dt),
    }
    for name, (now, before) in steps.items():
        if not math.isclose(now or 0.0, before or 0.0, rel_tol=_SAME_STEP):
            texts = ["not stated" if step is None else f"{step:g}" for step in (now, before)]
            yield f"{name} is {texts[0]}, and was {texts[1]}"


def _other_scaling(trained: Predictor, flows: Flows) -> Iterator[str]:
    """Channels and parameters whose range differs from that of the earlier training."""
    mine, theirs = flows.normalizer, trained.normalizer
    numbers = zip(mine.mean, mine.std, theirs.mean, theirs.std, strict=True)
    channels = zip(flows.spec.channels, flows.spec.units, numbers, strict=True)
    for name, unit, (mean, std, mean0, std0) in channels:
        if max(std / std0, std0 / std) > _ALIKE or abs(mean - mean0) > _ALIKE * std0:
            in_unit = "" if unit == "1" else f" {unit}"
            yield (
                f"{name} has mean {mean:.3g} and standard deviation {std:.3g}{in_unit}, scaled by "
                f"{mean0:.3g} and {std0:.3g}"
            )
    for now, before in zip(flows.spec.parameters, trained.spec.parameters, strict=True):
        low, high, lowest, highest = now.lowest, now.highest, before.lowest, before.highest
        if low is None or high is None or lowest is None or highest is None:
            continue
        slack = _MARGIN * ((highest - lowest) or abs(highest))
        if low < lowest - slack or high > highest + slack:
            training_range = f"{lowest:g} to {highest:g}"
            yield f"{now.name} is {low:g} to {high:g}, and was {training_range} in training"
