"""The autoregressive loop of training, prediction and serving; differentiable.

    while not rollout.is_done:
        frames = rollout.advance(model(rollout.x, parameters, rollout.known))

A model takes ``history`` frames folded into channels and returns ``horizon`` frames. The newest
``history`` of all frames are the next input. Points that are unknown in the first input are zero in
every later one and stay unknown to the model. For a moving body this is an approximation: its
future position is not an input.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor


class Rollout:
    """The state of one rollout; frames are standardised.

    Args:
        x: The first input, history times channels in one axis.
        known: Points that the model sees.
        channels: Channels of one predicted frame.
        steps: Frames to predict; None: unlimited.
    """

    def __init__(
        self,
        x: Float[Tensor, "b hc y x"],
        known: Bool[Tensor, "b y x"],
        channels: int,
        steps: int | None = None,
    ) -> None:
        self.known, self.channels, self.steps, self.done = known, channels, steps, 0
        self._x, self._output = x, x[:, :0]

    @property
    def is_done(self) -> bool:
        return self.steps is not None and self.done >= self.steps

    @property
    def x(self) -> Float[Tensor, "b hc y x"]:
        """The next input of the model."""
        if self._output.shape[1]:
            newest = torch.cat((self._x, self._output.to(self._x.dtype)), 1)
            newest = newest[:, -self._x.shape[1] :]
            self._x = torch.where(self.known[:, None], newest, 0.0)
            self._output = newest[:, :0]
        return self._x

    def advance(self, output: Float[Tensor, "b sc y x"]) -> Float[Tensor, "b s c y x"]:
        """Take the model's output for ``x``; return its frames up to ``steps``."""
        if output.shape[1] % self.channels:
            raise ValueError(
                f"expected a prediction whose channels are a multiple of {self.channels}, found "
                f"{output.shape[1]}; the model predicts other channels"
            )
        frames = output.unflatten(1, (-1, self.channels))
        if self.steps is not None:
            frames = frames[:, : self.steps - self.done]
        self._output, self.done = output, self.done + frames.shape[1]
        return frames
