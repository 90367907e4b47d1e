"""Rollouts of the supervised loss: how often a model is called, and what gives a gradient.

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
from pibert.fields import Batch
from pibert.rollout import Rollout

Mode = Literal["full", "pushforward"]


@dataclass(frozen=True, kw_only=True)
class RolloutConfig:
    """How a model is called for the supervised loss."""

    steps: int = 1
    """Calls of the model, each on the predictions of those before."""
    mode: Mode = "full"
    """Whether gradients flow through all calls or through the last alone."""
    noise: float = 0.0
    """Standard deviation of the noise on known input points, in standardised units."""
    first: int = 1
    """Steps at the start of the curriculum."""
    curriculum_epochs: int = 0
    """Epochs in which the steps double from ``first`` to ``steps``; 0: all from the start."""
    recompute: bool = False
    """Keep only the inputs of each call for the gradient and compute the rest again: the memory of
    one call in place of that of all, for a third more time."""

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise ValueError(f"rollout steps must be 1 or more, found {self.steps}")
        if self.mode not in ("full", "pushforward"):
            raise ValueError(f"rollout mode must be 'full' or 'pushforward', found {self.mode!r}")
        if not (math.isfinite(self.noise) and self.noise >= 0):
            raise ValueError(f"input noise must be zero or positive, found {self.noise}")
        if not 1 <= self.first <= self.steps:
            raise ValueError(
                f"the first steps of a curriculum must be 1 to {self.steps} (rollout steps), found "
                f"{self.first}"
            )
        if self.curriculum_epochs < 0:
            raise ValueError(
                f"curriculum epochs must be zero or more, found {self.curriculum_epochs}"
            )

    def steps_at(self, epoch: int) -> int:
        """Steps of an epoch, the first of which is 0."""
        doublings = math.ceil(math.log2(self.steps / self.first))
        if epoch >= self.curriculum_epochs or not doublings:
            return self.steps
        return self.first * 2 ** (doublings * epoch // self.curriculum_epochs)


def noisy(batch: Batch, std: float) -> Batch:
    """The batch with noise on the known points of its input, drawn per sample."""
    noise = sample_rng.normal(batch.seeds, "input noise", *batch.x.shape[1:]).to(batch.x.dtype)
    return replace(batch, x=torch.where(batch.mask[:, None], batch.x + std * noise, batch.x))


def roll_out(
    model: nn.Module, batch: Batch, steps: int, mode: Mode = "full", *, recompute: bool = False
) -> tuple[Float[Tensor, "b s c y x"], int]:
    """Predicted frames that count, and the place of the first of them among the target frames."""
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
    """A call of the model whose activations are computed again for the gradient."""
    if not torch.is_grad_enabled():
        return cast(Tensor, model(*inputs))
    # Reading the random generators, which dropout needs, cannot be captured in a CUDA graph.
    draws = any(isinstance(part, nn.Dropout) and part.p for part in model.modules())
    result = checkpoint(model, *inputs, use_reentrant=False, preserve_rng_state=draws)
    return cast(Tensor, result)
