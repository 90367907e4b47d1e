"""Model steps of several callers at once.

Each caller's fields are checked, brought to the model's grid and standardised by themselves. What
is joined are standardised windows, so callers may have different grids, masks and numbers of
steps, and an error of one does not reach another.
"""

import copy
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from pibert.predictor import Predictor
from pibert.predictor.divergence import Leash
from pibert.predictor.given import Given
from pibert.remarks import collecting_warnings
from pibert.serve.asked import Asked


class Block(NamedTuple):
    """The next frames of a rollout."""

    frames: Any
    """As the caller's kind of array."""
    remarks: list[str]
    """What to tell the caller of them."""


class Rolling:
    """A rollout under way; it keeps its window and not the caller's fields.

    Args:
        given: What the caller gave.
        steps: Frames to predict.
    """

    def __init__(self, given: Given, steps: int) -> None:
        self.given, self.steps, self.done = given, steps, 0
        self.window = given.standardised()
        self.leash = Leash(self.window)
        given.forget_input()


class JointPredictor(Predictor):
    """A predictor that can step several rollouts together."""

    def take(self, asked: Asked) -> Given:
        """What was asked, checked; it is the model's turn then."""
        return self._start(asked.fields, asked.steps, asked.parameters, asked.mask, asked.grid)

    def judge(self, given: Given) -> Any:
        """The probability that what was given obeys its equations, as the caller's kind."""
        return self._judge(given, given.standardised())

    def advance(self, rollouts: Sequence[Rolling]) -> list[Block | Exception]:
        """The next block of each rollout, or the error of that rollout alone.

        An error of the joint model step ends no rollout: its rollouts then step one by one.
        """
        try:
            parts = self._step_jointly(rollouts)
        except Exception as error:
            if len(rollouts) == 1:
                return [error]
            return [self.advance([rolling])[0] for rolling in rollouts]
        return [self._go_on(r, part) for r, part in zip(rollouts, parts, strict=True)]

    def _step_jointly(self, rollouts: Sequence[Rolling]) -> Sequence[Tensor]:
        joined = copy.copy(rollouts[0].given)
        joined.parameters = torch.cat([rolling.given.parameters for rolling in rollouts])
        joined.seen = torch.cat([rolling.given.seen for rolling in rollouts])
        window = torch.cat([rolling.window for rolling in rollouts])
        found = self._run(self.model, window, joined).unflatten(1, (self.horizon, -1))
        return found.split([len(rolling.window) for rolling in rollouts])

    def _go_on(self, rolling: Rolling, found: Tensor) -> Block | Exception:
        given, block = rolling.given, found[:, : rolling.steps - rolling.done]
        try:
            with collecting_warnings() as remarks:
                frames = given.kind.frames(self._physical(given, block, rolling.done), 0)
                rolling.leash.look(given.hidden(block))
        except Exception as error:
            return error
        window = torch.cat((rolling.window, block), dim=1)[:, -self.history :]
        rolling.window, rolling.done = given.hidden(window), rolling.done + block.shape[1]
        return Block(frames, remarks)
