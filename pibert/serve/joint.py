"""Model steps of several callers at once.

Each caller's fields are checked, brought to the model's grid and standardised by themselves. What
is joined are standardised windows, so callers may have different grids, masks and numbers of
steps, and an error of one is not told to another.
"""

import copy
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from pibert.predictor import Predictor
from pibert.predictor.given import Given
from pibert.serve.asked import Asked


class Rolling:
    """A rollout under way.

    Args:
        given: What the caller gave.
        steps: Frames to predict.
    """

    def __init__(self, given: Given, steps: int) -> None:
        self.given, self.steps, self.done = given, steps, 0
        self.window = given.standardised()


class JointPredictor(Predictor):
    """A predictor that can step several rollouts together."""

    def take(self, asked: Asked) -> Given:
        """What was asked, checked; it is the model's turn then."""
        return self._start(asked.fields, asked.steps, asked.parameters, asked.mask, asked.grid)

    def judge(self, given: Given) -> Any:
        """The probability that what was given obeys its equations, as the caller's kind."""
        return self._judge(given, given.standardised())

    def advance(self, rollouts: Sequence[Rolling]) -> list[Any | FloatingPointError]:
        """The next block of each rollout in the caller's kind, or why there is none."""
        joined = copy.copy(rollouts[0].given)
        joined.parameters = torch.cat([rolling.given.parameters for rolling in rollouts])
        joined.seen = torch.cat([rolling.given.seen for rolling in rollouts])
        window = torch.cat([rolling.window for rolling in rollouts])
        found = self._run(self.model, window, joined).unflatten(1, (self.horizon, -1))
        parts = found.split([len(rolling.window) for rolling in rollouts])
        return [self._go_on(r, part) for r, part in zip(rollouts, parts, strict=True)]

    def _go_on(self, rolling: Rolling, found: Tensor) -> Any | FloatingPointError:
        block = found[:, : rolling.steps - rolling.done]
        finite = block.isfinite().flatten(2).all(2).all(0)
        if not bool(finite.all()):
            step = rolling.done + int((~finite).nonzero()[0]) + 1
            return FloatingPointError(
                f"expected finite predictions, found NaN or infinity in step {step}: the rollout "
                f"diverged; take at most {step - 1} steps, or check units and parameters"
            )
        given = rolling.given
        window = torch.cat((rolling.window, block), dim=1)[:, -self.history :]
        rolling.window, rolling.done = given.hidden(window), rolling.done + block.shape[1]
        return given.kind.frames(given.physical(block), 0)
