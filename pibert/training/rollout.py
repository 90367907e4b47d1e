"""Rollouts for training: a model called on its own predictions.

Each call takes ``history`` frames folded into channels and gives ``horizon`` frames. These are
appended to the frames that went in, and the newest ``history`` of all are the next input.

    mode "full"         every predicted frame counts; gradients flow through all calls
    mode "pushforward"  the frames of the last call count; the calls before it give no gradient
                        (Brandstetter, Worrall, Welling, "Message passing neural PDE solvers", 2022)

What is known of a fed-back frame is taken to be what is known of the first input: its unknown
points are set to zero again and stay unknown to the model. For a body that moves this is an
approximation, since where it will be is not an input.
"""

import math
from dataclasses import dataclass, replace
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from pibert import draws
from pibert.fields import Batch

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
    curriculum_epochs: int = 0
    """Epochs over which the steps grow from 1 to ``steps``; 0: all from the start."""

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise ValueError(f"rollout steps must be 1 or more, found {self.steps}")
        if self.mode not in ("full", "pushforward"):
            raise ValueError(f"rollout mode must be 'full' or 'pushforward', found {self.mode!r}")
        if not (math.isfinite(self.noise) and self.noise >= 0):
            raise ValueError(f"input noise must be zero or positive, found {self.noise}")
        if self.curriculum_epochs < 0:
            raise ValueError(
                f"curriculum epochs must be zero or more, found {self.curriculum_epochs}"
            )

    def steps_at(self, epoch: int) -> int:
        """Steps of an epoch, the first of which is 0."""
        if epoch >= self.curriculum_epochs:
            return self.steps
        return 1 + (self.steps - 1) * epoch // self.curriculum_epochs


def noisy(batch: Batch, std: float) -> Batch:
    """The batch with noise on the known points of its input, drawn per sample."""
    noise = draws.normal(batch.seeds, "input noise", *batch.x.shape[1:]).to(batch.x.dtype)
    return replace(batch, x=torch.where(batch.mask[:, None], batch.x + std * noise, batch.x))


def roll_out(
    model: nn.Module, batch: Batch, steps: int, mode: Mode = "full"
) -> tuple[Float[Tensor, "b s c y x"], int]:
    """Predicted frames that count, and the place of the first of them among the target frames."""
    x, known = batch.x, batch.mask[:, None]
    predictions: list[Tensor] = []
    for step in range(steps):
        counts = mode == "full" or step == steps - 1
        with torch.set_grad_enabled(counts and torch.is_grad_enabled()):
            folded = model(x, batch.parameters, batch.mask)
            predictions.append(_frames(folded, batch))
            if step + 1 < steps:
                newest = torch.cat((x, folded.to(x.dtype)), 1)[:, -x.shape[1] :]
                x = torch.where(known, newest, 0.0)
    horizon = predictions[0].shape[1]
    if horizon * steps > batch.y.shape[1]:
        raise ValueError(
            f"expected at least {horizon * steps} target frames for {steps} steps of {horizon} "
            f"frames, found {batch.y.shape[1]}; give the window that horizon"
        )
    if mode == "full":
        return torch.cat(predictions, 1), 0
    return predictions[-1], horizon * (steps - 1)


def _frames(folded: Tensor, batch: Batch) -> Tensor:
    """(b, horizon * c, y, x) to (b, horizon, c, y, x), with the channels of the targets."""
    channels = batch.y.shape[2]
    if folded.shape[1] % channels:
        raise ValueError(
            f"expected a prediction whose channels are a multiple of the {channels} of the "
            f"targets, found {folded.shape[1]}"
        )
    return folded.unflatten(1, (-1, channels))
