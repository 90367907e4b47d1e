"""Objectives: what a step of training minimises, as functions of a model and a batch.

An objective returns a loss and a log. Both are means over the samples of numbers that depend on one
sample alone, so a batch may be divided into micro-batches and over processes: the gradients of the
pieces, weighted by their number of samples, add up to that of the whole.

``weighted`` adds objectives; Algorithm 1 of the paper trains with

    L = L_sup + lambda_mpp L_mpp + lambda_ecp L_ecp,  lambda_mpp = 1, lambda_ecp = 0.1

L_sup is the loss of one call of the model or of a rollout. In a "full" rollout every predicted
frame counts and gradients flow through all calls; with "pushforward" the frames of the last call
count, and the calls before it give no gradient (Brandstetter, Worrall, Welling, "Message passing
neural PDE solvers", 2022). A rollout that runs away keeps a finite loss: frames are fed back within
100 standard deviations. Masked physics prediction hides points of a field, and the model
reconstructs them:

    L_mpp = mean over hidden points and channels of (g - x)^2 + lambda mean over points of (D g)^2

with the reconstruction g of what ``pretraining.corruption`` leaves of x, in standardised units, and
the divergence D g of the whole reconstruction in the units of ``training.losses``. Equation
consistency prediction separates windows that obey their equation from windows that do not. With the
logits l of a valid window and l' of a negative made from it, a sample's loss is

    L_ecp = (softplus(-l) + softplus(l')) / 2,  log 2 for an uninformed model.
"""

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Annotated, Any, Literal, cast

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from pibert import sample_rng
from pibert.config import ADDED, Bounds, Count, NonNegative, NonNegativeInt, check
from pibert.fields import Batch, FieldSpec, Normalizer
from pibert.pretraining.corruption import corrupt
from pibert.pretraining.masks import Masking, choose
from pibert.pretraining.negatives import Negatives
from pibert.rollout import MovingBodies, Rollout
from pibert.training.losses import (
    PAPER_WEIGHTS,
    LossScales,
    LossWeights,
    divergence,
    frame_errors,
    persistence,
    reconstruction,
    total_loss,
)

Objective = Callable[[nn.Module, Batch], tuple[Tensor, dict[str, Tensor]]]
"""(model, batch) -> (loss, logs); logs are detached numbers by name, the loss under "loss"."""

Mode = Literal["full", "pushforward"]
FED_BACK = 100.0
"""Standard deviations within which predictions are fed back in training."""
LARGEST_ERROR = 10.0
"""Of a frame in a validation rollout; that of a flow without any relation to the truth is about 2.
So a few rollouts that run away do not hide what happens to the others."""


@dataclass(frozen=True, kw_only=True)
class RolloutConfig:
    """How a model is called for the supervised loss."""

    steps: Count = 1
    """Calls of the model, each on the predictions of those before."""
    mode: Mode = "full"
    """Whether gradients flow through all calls or only through the last."""
    noise: NonNegative = 0.0
    """Standard deviation of the noise on known input points, in standardised units."""
    noise_spread: Annotated[float, Bounds(least=1)] = field(default=1.0, metadata=ADDED)
    """Every sample has noise of its own strength, log-uniform from noise / spread to noise times
    spread; 1: all have the same."""
    first: Count = 1
    """Steps at the start of the curriculum."""
    curriculum_epochs: NonNegativeInt = 0
    """Epochs in which the steps double from ``first`` to ``steps``; 0: all from the start."""
    recompute: bool = False
    """Keep only the inputs of each call for the gradient and compute the rest again: the memory of
    one call instead of all, for a third more time."""

    def __post_init__(self) -> None:
        check(self)
        if self.first > self.steps:
            raise ValueError(
                f"first: expected 1 to {self.steps} (rollout steps) at the start of the "
                f"curriculum, found {self.first}"
            )

    def steps_at(self, epoch: int) -> int:
        """Steps of an epoch, the first of which is 0."""
        doublings = math.ceil(math.log2(self.steps / self.first))
        if epoch >= self.curriculum_epochs or not doublings:
            return self.steps
        return self.first * 2 ** (doublings * epoch // self.curriculum_epochs)


ONE_STEP = RolloutConfig()


def supervised(
    scales: LossScales,
    weights: LossWeights = PAPER_WEIGHTS["base"],
    rollout: RolloutConfig = ONE_STEP,
    *,
    steps: int | None = None,
) -> Objective:
    """The paper's loss of predicted frames, averaged over the frames.

    In training, noise on the input and the flow of gradients follow ``rollout``. In evaluation
    (``model.eval()``) there is no noise, every frame of the rollout counts, and the log has the
    error of persistence on the same frames and, of a rollout, ``first_step``: the error of the
    first call. Target frames beyond the rollout are not used.

    Args:
        scales: Scales of the channels.
        weights: Weights of the terms; one of weight zero is neither computed nor logged.
        rollout: How the model is called.
        steps: Calls of the model, if a curriculum uses fewer than ``rollout.steps``.
    """
    count = rollout.steps if steps is None else steps
    if not 1 <= count <= rollout.steps:
        raise ValueError(f"expected 1 to {rollout.steps} rollout steps, found {count}")

    def objective(model: nn.Module, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        mode = rollout.mode if model.training else "full"
        if model.training and rollout.noise:
            batch = noisy(batch, rollout.noise, scales.spec, spread=rollout.noise_spread)
        prediction, first = roll_out(
            model, batch, count, mode, recompute=rollout.recompute, scales=scales
        )
        frames = slice(first, first + prediction.shape[1])
        target, known = batch.y[:, frames], batch.target_mask[:, frames]
        loss, logs = total_loss(prediction, target, scales=scales, weights=weights, known=known)
        if not model.training:
            logs["persistence"] = persistence(batch.x, target, known, scales).detach()
        if not model.training and count > 1:
            one = slice(0, prediction.shape[1] // count)
            logs["first_step"], _ = total_loss(
                prediction[:, one],
                target[:, one],
                scales=scales,
                weights=LossWeights(),
                known=known[:, one],
            )
        return loss, logs

    return objective


def free_rollout(scales: LossScales, steps: int) -> Objective:
    """The error of rollouts in validation: the mean over all frames of ``steps`` calls.

    A frame counts with at most ``LARGEST_ERROR``, also if it is not finite. The log has the error
    as ``reconstruction``, that of the first call as ``first_step``, and that of persistence.
    """

    def objective(model: nn.Module, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        prediction, _ = roll_out(model, batch, steps, scales=scales)
        count = prediction.shape[1]
        target, known = batch.y[:, :count], batch.target_mask[:, :count]
        errors = frame_errors(prediction, target, known, scales)
        errors = errors.nan_to_num(nan=LARGEST_ERROR).clamp(max=LARGEST_ERROR)
        loss = errors.mean()
        return loss, {
            "loss": loss.detach(),
            "reconstruction": loss.detach(),
            "persistence": persistence(batch.x, target, known, scales).detach(),
            "first_step": errors[:, : count // steps].mean().detach(),
        }

    return objective


def noisy(batch: Batch, std: float, spec: FieldSpec, *, spread: float = 1.0) -> Batch:
    """The batch with noise on the known points of its input, from the seeds of the samples.

    Its standard deviation is log-uniform from std / spread to std * spread, one for each sample.
    The noise of a structural state is the same at all points. Displacements and velocities that
    follow from Newton's law have none: it would only be carried to the prediction.
    """
    noise = sample_rng.normal(batch.seeds, "input noise", *batch.x.shape[1:]).to(batch.x.dtype)
    if spread > 1:
        power = 2 * sample_rng.uniform(batch.seeds, "noise level") - 1
        noise = noise * (spread**power)[:, None, None, None].to(noise.dtype)
    if spec.state:
        moved = {b.displacement for b in spec.on_springs}
        moved |= {b.spring.velocity for b in spec.on_springs if b.spring is not None}
        frames = noise.unflatten(1, (-1, len(spec.channels)))
        columns = list(frames.split(1, 2))
        for index in range(-len(spec.state), 0):
            uniform = columns[index][..., :1, :1].expand_as(columns[index])
            columns[index] = 0 * uniform if spec.channels[index] in moved else uniform
        noise = torch.cat(columns, 2).flatten(1, 2)
    return replace(batch, x=torch.where(batch.mask[:, None], batch.x + std * noise, batch.x))


def roll_out(
    model: nn.Module,
    batch: Batch,
    steps: int,
    mode: Mode = "full",
    *,
    recompute: bool = False,
    scales: LossScales | None = None,
) -> tuple[Float[Tensor, "b s c y x"], int]:
    """The predicted frames that count, and the index of the first among the target frames.

    Bodies of the spec of ``scales`` move with the predicted state.
    """
    call = partial(_recomputed, model) if recompute and steps > 1 else model
    moving = None if scales is None else MovingBodies.of(scales.spec, scales.normalizer)
    rollout = Rollout(batch.x, batch.mask, channels=batch.y.shape[2], moving=moving)
    predictions: list[Tensor] = []
    for step in range(steps):
        counts = mode == "full" or step == steps - 1
        with torch.set_grad_enabled(counts and torch.is_grad_enabled()):
            x = rollout.x.nan_to_num().clamp(-FED_BACK, FED_BACK) if step else rollout.x
            predictions.append(rollout.advance(call(x, batch.parameters, rollout.known)))
    horizon = predictions[0].shape[1]
    if horizon * steps > batch.y.shape[1]:
        raise ValueError(
            f"expected at least {horizon * steps} target frames for {steps} steps of {horizon} "
            f"frames, found {batch.y.shape[1]}; give the window that horizon"
        )
    if mode == "full":
        return torch.cat(predictions, 1), 0
    return predictions[-1], horizon * (steps - 1)


def _recomputed(model: nn.Module, *inputs: Tensor) -> Tensor:
    """Call the model; its activations are computed again for the gradient."""
    if not torch.is_grad_enabled():
        return cast(Tensor, model(*inputs))
    # Reading the random generators, which dropout needs, cannot be captured in a CUDA graph.
    has_dropout = any(isinstance(module, nn.Dropout) and module.p for module in model.modules())
    result = checkpoint(model, *inputs, use_reentrant=False, preserve_rng_state=has_dropout)
    return cast(Tensor, result)


def weighted(objectives: Mapping[str, tuple[float, Objective]]) -> Objective:
    """The weighted sum of objectives; one of weight zero is left out.

    The log has the loss of each objective, without its weight, under its name, and its own logs. If
    two objectives log the same name, the later one is prefixed by its objective.
    """
    used = {name: entry for name, entry in objectives.items() if entry[0]}
    if not used:
        raise ValueError(
            f"expected an objective with a weight above zero, found {list(objectives)}"
        )

    def objective(model: nn.Module, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        losses: list[Tensor] = []
        logs: dict[str, Tensor] = {}
        for name, (weight, term) in used.items():
            value, entries = term(model, batch)
            losses.append(weight * value)
            logs[name] = value.detach()
            for key, entry in entries.items():
                if key not in ("loss", name):
                    logs[f"{name} {key}" if key in logs else key] = entry
        loss = sum(losses[1:], start=losses[0])
        return loss, logs | {"loss": loss.detach()}

    return in_turns(objective, math.lcm(*(period_of(term) for _, term in used.values())))


def in_turns(objective: Objective, period: int) -> Objective:
    """Declare that an objective treats a sample by its position in the epoch, modulo a period."""
    cast(Any, objective).period = period
    return objective


def period_of(objective: Objective) -> int:
    """The period of ``in_turns``; 1 if all samples are treated alike."""
    return getattr(objective, "period", 1)


def masked_physics(
    masking: Masking, spec: FieldSpec, normalizer: Normalizer, scales: LossScales
) -> Objective:
    """The objective of masked physics prediction; logs ``mpp`` and ``mpp_divergence``.

    The scales are used for the divergence alone.
    """
    if masking.divergence:
        scales.refuse_divergence("the divergence of the reconstruction")
    count = len(spec.channels)

    def objective(model: nn.Module, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        hidden = choose(batch, masking, spec, normalizer)
        seen = corrupt(batch, hidden, masking, spec, normalizer)
        restored = cast(Any, model).reconstruct(seen.x, batch.parameters, seen.mask)
        loss = reconstruction(restored, batch.x, seen.hidden)
        logs = {"mpp": loss.detach()}
        if masking.divergence:
            frames = restored.unflatten(1, (-1, count))
            penalty = divergence(frames, scales, batch.mask[:, None])
            loss = loss + masking.divergence * penalty
            logs["mpp_divergence"] = penalty.detach()
        return loss, logs | {"loss": loss.detach()}

    return objective


def equation_consistency(negatives: Negatives) -> Objective:
    """The objective; its log has the loss as ``ecp``, and ``ecp_accuracy`` at logit zero.

    The model is called once, through ``consistency``, with valid and invalid windows together.
    """

    def objective(model: nn.Module, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        x, parameters = negatives.draw(batch, model)
        logits = (
            cast(Any, model)
            .consistency(
                torch.cat((batch.x, x)),
                torch.cat((batch.parameters, parameters)),
                torch.cat((batch.mask, batch.mask)),
            )
            .float()
        )
        valid, invalid = logits.chunk(2)
        loss = (F.softplus(-valid) + F.softplus(invalid)).mean() / 2
        with torch.no_grad():
            accuracy = ((valid > 0).float() + (invalid <= 0).float()).mean() / 2
        return loss, {"ecp": loss.detach(), "ecp_accuracy": accuracy, "loss": loss.detach()}

    return in_turns(objective, negatives.period)
