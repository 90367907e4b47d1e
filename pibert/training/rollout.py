"""Rollouts of the supervised loss: how often a model is called, and which calls give a gradient.

mode "full"         every predicted frame counts; gradients flow through all calls
mode "pushforward"  the frames of the last call count; the calls before it give no gradient
(Brandstetter, Worrall, Welling, "Message passing neural PDE solvers", 2022)
"""

import math
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from pibert import sample_rng
from pibert.config import Count, NonNegative, NonNegativeInt, check
from pibert.fields import Batch
from pibert.rollout import Rollout

Mode = Literal["full", "pushforward"]


@dataclass(frozen=True, kw_only=True)
class RolloutConfig:
    """How a model is called for the supervised loss."""

    steps: Count = 1
    """Calls of the model, each on the predictions of those before."""
    mode: Mode = "full"
    """Whether gradients flow through all calls or through the last alone."""
    noise: NonNegative = 0.0
    """Standard deviation of the noise on known input points, in standardised units."""
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


def noisy(batch: Batch, std: float) -> Batch:
    """The batch with noise on the known points of its input, from the seeds of the samples."""
    noise = sample_rng.normal(batch.seeds, "input noise", *batch.x.shape[1:]).to(batch.x.dtype)
    return replace(batch, x=torch.where(batch.mask[:, None], batch.x + std * noise, batch.x))


def roll_out(
    model: nn.Module, batch: Batch, steps: int, mode: Mode = "full", *, recompute: bool = False
) -> tuple[Float[Tensor, "b s c y x"], int]:
    """The predicted frames that count, and the index of the first among the target frames."""
    call = partial(_recomputed, model) if recompute and steps > 1 else model
    rollout = Rollout(batch.x, batch.mask, channels=batch.y.shape[2])
    predictions: list[Tensor] = []
    for step in range(steps):
        counts = mode == "full" or step == steps - 1
        with torch.set_grad_enabled(counts and torch.is_grad_enabled()):
            predictions.append(rollout.advance(call(rollout.x, batch.parameters, batch.mask)))
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
