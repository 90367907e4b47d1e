"""Answers of a model that are not finite: said in one line, with the step where it began."""

from jaxtyping import Float
from torch import Tensor


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
