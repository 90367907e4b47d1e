"""A rollout in progress: the frames of each step, their intervals, and where it diverges."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from numbers import Integral
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from pibert.inference.model_input import ModelInput
from pibert.notes import Note
from pibert.rollout import Rollout

RUNAWAY = 20.0
"""Standard deviations from the training mean beyond which a rollout is no longer a flow."""


@dataclass(frozen=True, eq=False, kw_only=True)
class PredictionIntervals:
    """Bounds of the prediction intervals, of the kind and shape of the predicted frames."""

    low: Any
    high: Any
    level: float
    """Probability that the true value at a point lies between ``low`` and ``high``;
    ``Calibration.assumption`` states what it rests on."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Prediction:
    """Predicted frames; ``intervals`` and ``ood`` are those of a calibrated model."""

    fields: Any
    """(batch, time, channel, y, x), or of the kind of the input."""
    intervals: Any = None
    """``PredictionIntervals``."""
    ood: Any = None
    """``OODResult`` of the input: intervals do not hold where it is flagged."""
    consistency: Any = None
    """Probability that each input window obeys its equations; None without a head for it."""
    known: Tensor | None = None
    """Points of the frames outside bodies that moved, (batch, time, y, x); None: those of the
    input."""
    notes: tuple[Note, ...] = ()


@dataclass(frozen=True, eq=False, kw_only=True)
class Block:
    """Consecutive frames of a rollout as tensors, (b, t, c, y, x)."""

    frames: Tensor
    """On the caller's grid."""
    on_model: Tensor
    """On the model's grid, in physical units."""
    spread: Tensor | None = None
    """Standard deviation over the members of an ensemble, on the model's grid."""
    half: Tensor | None = None
    """Half-widths of the prediction intervals, on the caller's grid."""
    known: Tensor | None = None
    """Where the frames are known after bodies have moved, (b, t, y, x); None: as in the input."""
    notes: tuple[Note, ...] = ()


class RolloutDiverged(FloatingPointError):
    """A rollout that is not finite any more, or whose body has left the domain."""

    prediction: Prediction | None = None
    """The frames before, of ``rollout`` and ``predict``; None if there are none."""


def check_steps(steps: Any) -> None:
    """Refuse what is no number of steps."""
    if not isinstance(steps, Integral) or int(steps) < 1:
        raise ValueError(f"expected at least 1 step, a whole number, found {steps}")


class PredictionStream:
    """A rollout in progress, which ``Predictor.advance`` continues.

    Args:
        model_input: The first window.
        steps: Frames to predict. None: no limit.
        num_models: Members of an ensemble, each of which rolls out by itself.
        intervals: ``calibrated.RolloutIntervals`` of a calibrated model.
    """

    def __init__(
        self,
        model_input: ModelInput,
        steps: int | None,
        num_models: int = 1,
        intervals: Any = None,
    ) -> None:
        if steps is not None:
            check_steps(steps)
        window = model_input.standardised()
        x, channels = window.flatten(1, 2), window.shape[2]
        self.input, self.steps, self._intervals = model_input, steps, intervals
        self._moving = model_input.moving_bodies()
        self.rollouts = [
            Rollout(x, model_input.seen, channels, steps, self._moving) for _ in range(num_models)
        ]
        # Samples that begin far from the training data, which has its own note, may go further.
        self._limit = (2 * window.abs().flatten(1).amax(1)).clamp(min=RUNAWAY)
        self._is_runaway = False

    @property
    def done(self) -> int:
        return self.rollouts[0].done

    @property
    def is_done(self) -> bool:
        return self.rollouts[0].is_done

    def take(self, outputs: Sequence[Tensor]) -> Block:
        """The frames of each model's output; FloatingPointError if they are not finite."""
        start = self.done
        # Between steps frames stay standardised: physical ones would lose digits to a large mean.
        blocks = [
            member.advance(output) for member, output in zip(self.rollouts, outputs, strict=True)
        ]
        members = [self.input.physical(block) for block in blocks]
        on_model, z = mean_of(members), mean_of(blocks)
        frames = self.input.to_caller(on_model)
        for values in (z, frames):  # a large standard deviation can overflow the second alone
            if not bool(values.isfinite().all()):
                raise _divergence_error(values, start)
        if self._moving is not None and (found := self._moving.find_outside(z)) is not None:
            sample, frame, text = found
            raise RolloutDiverged(
                f"expected bodies inside the domain, found step {start + frame + 1} (sample "
                f"{sample}): {text}; take fewer steps, or train the model on rollouts"
            )
        known = None if self._moving is None else self.rollouts[0].known_in(z)
        block = Block(
            frames=frames,
            on_model=on_model,
            spread=torch.stack(members).std(0) if len(members) > 1 else None,
            known=None if known is None else known.to(frames.device),
            notes=self._divergence_note(self.input.hidden(z), start),
        )
        if self._intervals is None:
            return block
        return replace(block, half=self._intervals.half_widths(block, start))

    def prediction(self, block: Block, start: int, notes: Iterable[Note]) -> Prediction:
        """A block of which ``start`` frames came before, in the caller's kind."""
        as_frames, half, made = self.input.kind.frames, block.half, self._intervals
        fields = as_frames(block.frames, start)
        if made is None or half is None:
            return Prediction(fields=fields, known=block.known, notes=tuple(notes))
        low, high = (
            as_frames(bound, start) for bound in (block.frames - half, block.frames + half)
        )
        return Prediction(
            fields=fields,
            intervals=PredictionIntervals(low=low, high=high, level=made.level),
            ood=made.ood,
            consistency=made.consistency,
            known=block.known,
            notes=tuple(notes),
        )

    def _divergence_note(self, z: Float[Tensor, "b t c y x"], start: int) -> tuple[Note, ...]:
        """A note when standardised frames leave the range of the training data, at most once."""
        far = z.abs().flatten(2).amax(2) > self._limit.to(z)[:, None]
        if self._is_runaway or not bool(far.any()):
            return ()
        self._is_runaway = True
        step = start + 1 + int(far.any(0).nonzero()[0])
        remedy = "check units and parameters of the input"
        if step > 1:
            remedy = f"take at most {step - 1} steps, or train on rollouts"
        text = (
            f"from step {step} on values are more than {RUNAWAY:g} standard deviations from the "
            "training mean: the rollout diverges"
        )
        return (Note("divergence", text, remedy),)


def _divergence_error(frames: Float[Tensor, "b t c y x"], start: int) -> RolloutDiverged:
    bad = ~frames.isfinite().flatten(2).all(2)
    frame = int(bad.any(0).nonzero()[0])
    sample, done = int(bad[:, frame].nonzero()[0]), start + frame
    fewer = f"take at most {done} steps, or " if done else ""
    return RolloutDiverged(
        f"expected finite predictions, found NaN or infinity in step {done + 1} (sample {sample}): "
        f"the rollout diverged; {fewer}check units and parameters of the input"
    )


def mean_of(members: Sequence[Tensor]) -> Tensor:
    return members[0] if len(members) == 1 else torch.stack(list(members)).mean(0)
