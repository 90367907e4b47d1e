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
    return FloatingPointError(
        f"expected finite predictions, found NaN or infinity in step {done + frame + 1} (sample "
        f"{sample}): the rollout diverged; take at most {done + frame} steps, or check units and "
        "parameters of the input"
    )


def runs_away(block: Float[Tensor, "b t c y x"], start: float, done: int) -> bool:
    """Whether standardised frames leave all that the model has seen; if so, says it.

    Args:
        block: Of a rollout, zero where nothing is known.
        start: The largest value that the rollout began with: what was given is warned of elsewhere.
        done: Frames before the block.
    """
    largest = block.abs().flatten(2).amax(2).amax(0)
    beyond = (largest > max(RUNAWAY, 2 * start)).nonzero().flatten()
    if not len(beyond):
        return False
    step = done + int(beyond[0]) + 1
    warn(
        f"from step {step} on values are more than {RUNAWAY:g} standard deviations from the "
        f"training mean: the rollout runs away; take at most {step - 1} steps, or train on rollouts"
    )
    return True
