"""Answers of a model that are of no use: said in one line, with the step where it began."""

from jaxtyping import Float
from torch import Tensor

from pibert.remarks import warn

RUNAWAY = 20.0
"""Standard deviations from the training mean beyond which a rollout is no flow any more."""


def check_finite(answer: Tensor) -> None:
    if not bool(answer.isfinite().all()):
        raise FloatingPointError(
            "expected finite answers of the model, found NaN or infinity; check units and "
            "parameters of the input"
        )


def divergence_at(block: Float[Tensor, "b t c y x"], done: int) -> FloatingPointError:
    """Which frame is not finite first; frames count from 1, and ``done`` were before the block."""
    bad = ~block.isfinite().flatten(2).all(2)
    frame = int(bad.any(0).nonzero()[0])
    sample = int(bad[:, frame].nonzero()[0])
    fewer = f"take at most {done + frame} steps, or " if done + frame else ""
    return FloatingPointError(
        f"expected finite predictions, found NaN or infinity in step {done + frame + 1} (sample "
        f"{sample}): the rollout diverged; {fewer}check units and parameters of the input"
    )


class Leash:
    """Tells once when a rollout leaves all that the model has seen.

    Args:
        window: What it began with, standardised, zero where nothing is known. What was given is
            warned of elsewhere, so samples that began far away have a longer leash.
    """

    def __init__(self, window: Float[Tensor, "b h c y x"]) -> None:
        self._length = (2 * window.abs().flatten(1).amax(1)).clamp(min=RUNAWAY)
        self._done, self._told = 0, False

    def look(self, block: Float[Tensor, "b t c y x"]) -> None:
        """Check the next frames, standardised, zero where nothing is known; warn at most once."""
        first, self._done = self._done + 1, self._done + block.shape[1]
        if self._told:
            return
        far = block.abs().flatten(2).amax(2) > self._length.to(block)[:, None]
        if not bool(far.any()):
            return
        self._told = True
        step = first + int(far.any(0).nonzero()[0])
        remedy = (
            f"take at most {step - 1} steps, or train on rollouts"
            if step > 1
            else "check units and parameters of the input"
        )
        warn(
            f"from step {step} on values are more than {RUNAWAY:g} standard deviations from the "
            f"training mean: the rollout runs away; {remedy}"
        )
