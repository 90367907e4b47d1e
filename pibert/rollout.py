"""The autoregressive loop of training, prediction and serving; differentiable.

    while not rollout.is_done:
        frames = rollout.advance(model(rollout.x, parameters, rollout.known))

A model takes ``history`` frames folded into channels and returns ``horizon`` frames. The newest
``history`` of all frames are the next input. Points that are unknown in the first input are zero in
every later one and stay unknown to the model.

Bodies whose displacement is part of the predicted state (``FieldSpec.moving``) move: points that
they cover become unknown, and points that they uncover become known, with the model's prediction
there. Without that state a moving body keeps its place, which is an approximation.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from pibert.fields import FieldSpec, Normalizer, with_uniform_state


class MovingBodies:
    """Where the bodies of a spec are in standardised frames."""

    def __init__(self, spec: FieldSpec, normalizer: Normalizer) -> None:
        self.grid, self.num_state = spec.grid, len(spec.state)
        places = [spec.channels.index(body.displacement) for body in spec.moving]
        self._bodies = [
            (body, place, normalizer.mean[place], normalizer.std[place])
            for body, place in zip(spec.moving, places, strict=True)
        ]

    @classmethod
    def of(cls, spec: FieldSpec, normalizer: Normalizer) -> "MovingBodies | None":
        """Return the moving bodies; None if no body moves with the state."""
        return cls(spec, normalizer) if spec.moving else None

    def inside(self, frames: Float[Tensor, "*batch c y x"]) -> Bool[Tensor, "*batch y x"]:
        """Return the points inside a moving body of frames whose state is uniform."""
        found = frames.new_zeros(*frames.shape[:-3], *frames.shape[-2:], dtype=torch.bool)
        for body, place, mean, std in self._bodies:
            found = found | body.inside(self.grid, frames[..., place, 0, 0] * std + mean)
        return found

    def find_outside(self, frames: Float[Tensor, "b t c y x"]) -> tuple[int, int, str] | None:
        """Return sample, frame and a description of the first body that leaves the domain."""
        for body, place, mean, std in self._bodies:
            moved = frames[..., place, 0, 0] * std + mean
            outside = body.is_outside(self.grid, moved)
            if bool(outside.any()):
                frame = int(outside.any(0).nonzero()[0])
                sample = int(outside[:, frame].nonzero()[0])
                text = f"{body.displacement} = {float(moved[sample, frame]):.4g}"
                return sample, frame, f"the body leaves the domain ({text})"
        return None


class Rollout:
    """The state of one rollout; frames are standardised.

    Args:
        x: The first input, history times channels in one axis.
        known: Points that the model sees.
        channels: Channels of one predicted frame.
        steps: Frames to predict; None: unlimited.
        moving: Bodies that move with the predicted state.
    """

    def __init__(
        self,
        x: Float[Tensor, "b hc y x"],
        known: Bool[Tensor, "b y x"],
        channels: int,
        steps: int | None = None,
        moving: MovingBodies | None = None,
    ) -> None:
        self.known, self.channels, self.steps, self.done = known, channels, steps, 0
        self._moving = moving
        if moving is not None:
            frames = with_uniform_state(self._frames(x), moving.num_state, known[:, None])
            # What would be known without the bodies.
            self._elsewhere = known | moving.inside(frames).any(1)
            x = frames.flatten(1, 2)
        self._x, self._output = x, x[:, :0]

    @property
    def is_done(self) -> bool:
        return self.steps is not None and self.done >= self.steps

    @property
    def x(self) -> Float[Tensor, "b hc y x"]:
        """The next input of the model; ``known`` belongs to it."""
        if self._output.shape[1]:
            newest = torch.cat((self._x, self._output.to(self._x.dtype)), 1)
            newest = newest[:, -self._x.shape[1] :]
            self._output = newest[:, :0]
            self._x = self._hidden(newest)
        return self._x

    def _frames(self, x: Float[Tensor, "b hc y x"]) -> Float[Tensor, "b h c y x"]:
        return x.unflatten(1, (-1, self.channels))

    def _hidden(self, x: Float[Tensor, "b hc y x"]) -> Float[Tensor, "b hc y x"]:
        """Set unknown points to zero, after the bodies have moved; the state stays."""
        if self._moving is None:
            return torch.where(self.known[:, None], x, 0.0)
        frames, count = self._frames(x), self._moving.num_state
        self.known = self._elsewhere & ~self._moving.inside(frames).any(1)
        fields = torch.where(self.known[:, None, None], frames[:, :, :-count], 0.0)
        return torch.cat((fields, frames[:, :, -count:]), 2).flatten(1, 2)

    def known_in(self, frames: Float[Tensor, "b s c y x"]) -> Bool[Tensor, "b s y x"]:
        """Return the points of predicted frames that are known to mean something."""
        if self._moving is None:
            return self.known[:, None].expand(-1, frames.shape[1], -1, -1)
        return self._elsewhere[:, None] & ~self._moving.inside(frames)

    def advance(self, output: Float[Tensor, "b sc y x"]) -> Float[Tensor, "b s c y x"]:
        """Take the model's output for ``x``; return its frames up to ``steps``."""
        if output.shape[1] % self.channels:
            raise ValueError(
                f"expected a prediction whose channels are a multiple of {self.channels}, found "
                f"{output.shape[1]}; the model predicts other channels"
            )
        frames = self._frames(output)
        if self.steps is not None:
            frames = frames[:, : self.steps - self.done]
        self._output, self.done = output, self.done + frames.shape[1]
        return frames
