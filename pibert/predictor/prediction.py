"""Predictions in physical units: a trained model that steps, rolls out, fills gaps and judges.

Fields are ``(batch, history, channel, y, x)`` in the units of ``Predictor.spec``, the newest frame
last, as NumPy arrays or tensors, float32 or float64; answers are of the same kind, type and device.
The model itself computes in float32.

What is not known is False in a mask; values there may be NaN and are not looked at. Points of a
body that the grid states are never known. The mask holds for all steps of a rollout, as in
training: what is predicted at unknown points is handed out as the model makes it, but not fed back.
There, and so inside a body, it is a guess that means little.
"""

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self, cast

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor, nn

from pibert.fields import FieldSpec, Normalizer
from pibert.predictor.card import HEADS, Card
from pibert.predictor.given import Fields, Given, Mask, Parameters
from pibert.predictor.model_file import read_model

_PURPOSES = {
    "forward": ("step", "fine-tune it: pibert train"),
    "reconstruct": ("fill gaps", "train it with masked physics prediction: pibert pretrain"),
    "consistency": (
        "judge consistency",
        "train it with equation consistency prediction: pibert pretrain",
    ),
}
"""What each head is for, and how to come by it."""


def load(path: Path | str, device: torch.device | str = "cpu", *, chunk: int = 128) -> "Predictor":
    """A trained model, ready to predict.

    Args:
        path: A run folder, a model folder, or the .safetensors file of a model.
        device: Where to compute.
        chunk: Samples that the model sees at once; larger batches are parted.
    """
    saved = read_model(path, device)
    return Predictor(saved.model, saved.normalizer, card=saved.card, chunk=chunk)


class Predictor:
    """A model that takes and gives physical fields; see the module for the conventions.

    Args:
        model: One of ``pibert.models.MODELS``; it is put into evaluation mode.
        normalizer: Of the channels of its spec.
        card: What the model file says. None: a model at hand, whose heads all count as trained.
        chunk: Samples that the model sees at once; larger batches are parted.
    """

    def __init__(
        self,
        model: nn.Module,
        normalizer: Normalizer,
        *,
        card: Card | None = None,
        chunk: int = 128,
    ) -> None:
        config = cast(Any, model.config)
        self.model, self.normalizer, self.chunk = model.eval(), normalizer, chunk
        self.spec = cast(FieldSpec, model.spec)
        self.history, self.horizon = int(config.history), int(config.horizon)
        self.card: Card = card or {}
        if chunk < 1:
            raise ValueError(f"expected a chunk of at least 1 sample, found {chunk}")
        names = self.spec.channels
        outputs = getattr(config, "out_channels", None) or self.horizon * len(names)
        if outputs != self.horizon * len(names) or len(normalizer.mean) != len(names):
            raise ValueError(
                f"expected a model and a normalizer for the channels {list(names)} in and out, "
                f"found {outputs} outputs for {self.horizon} frames and {len(normalizer.mean)} "
                "means; a model that maps to other channels cannot step"
            )

    @property
    def device(self) -> torch.device:
        tensors = itertools.chain(self.model.parameters(), self.model.buffers())
        return next((tensor.device for tensor in tensors), torch.device("cpu"))

    def to(self, device: torch.device | str) -> Self:
        """Move the model; returns the predictor itself."""
        self.model.to(device)
        return self

    def step(
        self, fields: Fields, parameters: Parameters | None = None, mask: Mask | None = None
    ) -> Fields:
        """The next ``horizon`` frames, (batch, horizon, channel, y, x).

        Args:
            fields: The last ``history`` frames.
            parameters: By name; one that is not given, or NaN, is unknown.
            mask: True where the fields are known, (y, x) or (batch, y, x). None: everywhere.
        """
        return next(self.iterate(fields, self.horizon, parameters, mask))

    def rollout(
        self,
        fields: Fields,
        steps: int,
        parameters: Parameters | None = None,
        mask: Mask | None = None,
    ) -> Fields:
        """The next ``steps`` frames, (batch, steps, channel, y, x), each from those before it.

        Arguments as for ``step``. FloatingPointError if it diverges; ``iterate`` gives what came
        before.
        """
        return _joined(self.iterate(fields, steps, parameters, mask), steps)

    def iterate(
        self,
        fields: Fields,
        steps: int | None = None,
        parameters: Parameters | None = None,
        mask: Mask | None = None,
    ) -> Iterator[Fields]:
        """A rollout as blocks of ``horizon`` frames, each made when it is asked for.

        The memory it takes does not depend on ``steps``; without steps it does not end. The last
        block may be shorter. Arguments as for ``step``, checked at once.
        """
        if steps is not None and steps < 1:
            raise ValueError(f"expected at least 1 step, found {steps}")
        self._need("forward")
        return self._blocks(self._take(fields, mask, parameters), steps)

    def _blocks(self, given: Given, steps: int | None) -> Iterator[Any]:
        # Between steps frames stay standardised: physical ones would lose digits to a large mean.
        window, done = given.standardised(), 0
        while steps is None or done < steps:
            block = self._run(self.model, window, given).unflatten(1, (self.horizon, -1))
            if steps is not None:
                block = block[:, : steps - done]
            if not bool(block.isfinite().all()):
                raise _diverged(block, done)
            yield given.answer(given.physical(block))
            done += block.shape[1]
            window = given.hidden(torch.cat((window, block), dim=1)[:, -self.history :])

    def fill(self, fields: Fields, known: Mask, parameters: Parameters | None = None) -> Fields:
        """The fields with what is not known put in by the reconstruction head.

        Known values come back bit for bit. The head takes one mask for all frames of the window: a
        point that is unknown in one frame is hidden in all of them, but replaced only where it is
        unknown. Points of the grid's body are no gaps: they stay as they are.

        Args:
            fields: ``history`` frames; what is not known may be NaN.
            known: True where they are known, (y, x), (batch, y, x) or (batch, history, y, x).
            parameters: As for ``step``.
        """
        self._need("reconstruct")
        given = self._take(fields, known, parameters)
        window = given.standardised()
        found = self._run(cast(Any, self.model).reconstruct, window, given)
        _check_finite(found)
        guess = given.physical(found.unflatten(1, window.shape[1:3]))
        gaps = (~given.known & ~given.body)[:, :, None]
        return given.answer(torch.where(gaps, guess, given.fields))

    def consistency(
        self, fields: Fields, parameters: Parameters | None = None, mask: Mask | None = None
    ) -> Any:
        """The probability that each window obeys its equations, (batch,).

        Arguments as for ``step``; an array or a tensor, as the fields are.
        """
        self._need("consistency")
        given = self._take(fields, mask, parameters)
        logits = self._run(cast(Any, self.model).consistency, given.standardised(), given)
        _check_finite(logits)
        return given.answer(torch.sigmoid(logits))

    def _take(self, fields: Any, mask: Mask | None, parameters: Parameters | None) -> Given:
        return Given(
            fields,
            mask,
            parameters,
            spec=self.spec,
            normalizer=self.normalizer,
            history=self.history,
            device=self.device,
        )

    @torch.no_grad()
    def _run(self, function: Callable[..., Tensor], window: Tensor, given: Given) -> Tensor:
        """A function of the model over the batch, some samples at a time, in full precision."""
        x, parts = window.flatten(1, 2), []
        full = torch.backends.cudnn.flags(enabled=True, allow_tf32=False)
        with torch.autocast(x.device.type, enabled=False), full:
            for start in range(0, len(x), self.chunk):
                part = slice(start, start + self.chunk)
                parts.append(function(x[part], given.parameters[part], given.seen[part]))
        return torch.cat(parts)

    def _need(self, head: str) -> None:
        """Refuse what the model has no head for, or one that has learned nothing."""
        purpose, remedy = _PURPOSES[head]
        if not callable(getattr(self.model, head, None)):
            raise ValueError(
                f"expected a model that can {purpose}, found {type(self.model).__name__}, which "
                f"has no {head} head; take another model, such as pibert"
            )
        trained = self.card.get("trained", dict.fromkeys(HEADS, True))
        if not trained.get(head, False):
            able = [name for name in HEADS if trained.get(name, False)]
            raise ValueError(
                f"expected a model trained to {purpose}, found one whose trained heads are {able}; "
                f"{remedy}"
            )


def _joined(blocks: Iterator[Any], steps: int) -> Any:
    """All frames in one array that is filled as they come: a list of them would double it."""
    first = next(blocks)
    shape = (first.shape[0], steps, *first.shape[2:])
    is_array = isinstance(first, np.ndarray)
    whole = np.empty(shape, first.dtype) if is_array else first.new_empty(shape)
    start = 0
    for block in itertools.chain((first,), blocks):
        whole[:, start : start + block.shape[1]] = block
        start += block.shape[1]
    return whole


def _check_finite(answer: Tensor) -> None:
    if not bool(answer.isfinite().all()):
        raise FloatingPointError(
            "expected finite answers of the model, found NaN or infinity; check units and "
            "parameters of the input"
        )


def _diverged(block: Float[Tensor, "b t c y x"], done: int) -> FloatingPointError:
    """Which frame is not finite first; frames count from 1, and ``done`` were before the block."""
    bad = ~block.isfinite().flatten(2).all(2)
    frame = int(bad.any(0).nonzero()[0])
    sample = int(bad[:, frame].nonzero()[0])
    return FloatingPointError(
        f"expected finite predictions, found NaN or infinity in step {done + frame + 1} (sample "
        f"{sample}): the rollout diverged; take at most {done + frame} steps, or check units and "
        "parameters of the input"
    )
