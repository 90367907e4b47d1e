"""Objectives: what one step of training lessens, as functions of a model and a batch.

An objective gives a loss and a log. Both are means over the samples of numbers that depend on one
sample alone, so a batch may be parted over micro-batches and processes: the parts' gradients,
weighted by their number of samples, add up to that of the whole.

``supervised`` is the paper's supervised loss, over one call of the model or a rollout
(``training/rollout.py``). ``weighted`` adds objectives; Algorithm 1 of the paper trains with

    L = L_sup + lambda_mpp L_mpp + lambda_ecp L_ecp,  lambda_mpp = 1, lambda_ecp = 0.1
"""

import math
from collections.abc import Callable, Mapping
from typing import Any, cast

from torch import Tensor, nn

from pibert.fields import Batch
from pibert.training.losses import (
    PAPER_WEIGHTS,
    LossScales,
    LossWeights,
    persistence,
    total_loss,
)
from pibert.training.rollout import RolloutConfig, noisy, roll_out

Objective = Callable[[nn.Module, Batch], tuple[Tensor, dict[str, Tensor]]]
"""(model, batch) -> (loss, logs); logs are detached numbers by name, the loss under "loss"."""

ONE_STEP = RolloutConfig()

__all__ = ["ONE_STEP", "Objective", "RolloutConfig", "supervised", "weighted"]


def supervised(
    scales: LossScales,
    weights: LossWeights = PAPER_WEIGHTS["base"],
    rollout: RolloutConfig = ONE_STEP,
    *,
    steps: int | None = None,
) -> Objective:
    """The paper's loss of predicted frames, averaged over the frames.

    In training the input is made noisy and gradients flow as ``rollout`` says. In evaluation
    (``model.eval()``) the input is as it is, every frame of the rollout counts, and the log has the
    error of persistence on the same frames. Target frames beyond those of the rollout are not used.

    Args:
        scales: Of the channels to predict.
        weights: Of the terms; one of weight zero is neither computed nor logged.
        rollout: How the model is called.
        steps: Calls of the model, where a curriculum asks for fewer than ``rollout.steps``
            (``rollout.steps_at(epoch)``).
    """
    count = rollout.steps if steps is None else steps
    if not 1 <= count <= rollout.steps:
        raise ValueError(f"expected 1 to {rollout.steps} rollout steps, found {count}")

    def objective(model: nn.Module, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        if count > 1:
            _check_channels(model, scales)
        mode = rollout.mode if model.training else "full"
        if model.training and rollout.noise:
            batch = noisy(batch, rollout.noise)
        prediction, first = roll_out(model, batch, count, mode)
        frames = slice(first, first + prediction.shape[1])
        target, known = batch.y[:, frames], batch.target_mask[:, frames]
        loss, logs = total_loss(prediction, target, scales=scales, weights=weights, known=known)
        if not model.training and _takes_channels(model, scales):
            logs["persistence"] = persistence(batch.x, target, known, scales).detach()
        return loss, logs

    return objective


def weighted(parts: Mapping[str, tuple[float, Objective]]) -> Objective:
    """The weighted sum of objectives; one of weight zero is left out.

    The log has the loss of each part, without its weight, under the part's name, and what the parts
    log. Where two log the same name, the later gets its part's name in front.
    """
    for name, (weight, _) in parts.items():
        if not (math.isfinite(weight) and weight >= 0):
            raise ValueError(f"weight of objective {name!r} must be zero or positive: {weight}")
    used = {name: part for name, part in parts.items() if part[0]}
    if not used:
        raise ValueError(f"expected an objective with a weight above zero, found {list(parts)}")

    def objective(model: nn.Module, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        losses: list[Tensor] = []
        logs: dict[str, Tensor] = {}
        for name, (weight, part) in used.items():
            value, entries = part(model, batch)
            losses.append(weight * value)
            logs[name] = value.detach()
            for key, entry in entries.items():
                if key not in ("loss", name):
                    logs[f"{name} {key}" if key in logs else key] = entry
        loss = sum(losses[1:], start=losses[0])
        return loss, logs | {"loss": loss.detach()}

    return in_turns(objective, math.lcm(*(period_of(part) for _, part in used.values())))


def in_turns(objective: Objective, period: int) -> Objective:
    """Note that what an objective does to a sample goes by its place, modulo the period."""
    cast(Any, objective).period = period
    return objective


def period_of(objective: Objective) -> int:
    """1 where samples at all places are treated alike."""
    return getattr(objective, "period", 1)


def _check_channels(model: nn.Module, scales: LossScales) -> None:
    """Predictions that are fed back must be what the model takes."""
    if not _takes_channels(model, scales):
        taken = cast(Any, model).spec.channels
        raise ValueError(
            f"expected a rollout to predict the channels that the model takes, {taken}, found "
            f"{scales.spec.channels}; set the rollout to one step"
        )


def _takes_channels(model: nn.Module, scales: LossScales) -> bool:
    """Whether a model takes the channels that it predicts."""
    spec = getattr(model, "spec", None)
    return spec is None or spec.channels == scales.spec.channels
