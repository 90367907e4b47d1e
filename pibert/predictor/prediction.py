"""Predictions in physical units: a trained model that steps, rolls out, fills gaps and judges.

Fields are in the units of ``Predictor.spec``, the newest frame last, as NumPy arrays, tensors or
xarray, float32 or float64; answers are of the same kind, grid, type and device. The model itself
computes in float32, on its own grid. ``docs/predicting.md`` has the layouts that are taken.

Where a tensor that is given, of fields or of a parameter, requires a gradient, answers can be
differentiated by it. The gradient also reaches the weights: ``torch.autograd.grad`` of the input
alone leaves those as they are.

What is not known is False in a mask; values there may be NaN and are not looked at. Points of a
body that the grid states are never known. The mask holds for all steps of a rollout, as in
training: what is predicted at unknown points is handed out as the model makes it, but not fed back.
There, and so inside a body, it is a guess that means little.
"""

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self, cast

import torch
from torch import Tensor, nn

from pibert.fields import FieldSpec, Grid, Normalizer
from pibert.predictor.arrays import Fields, Mask
from pibert.predictor.card import Card, in_a_line
from pibert.predictor.divergence import Leash, check_finite, divergence_at
from pibert.predictor.explanation import Explanation, residual_maps, token_maps
from pibert.predictor.given import Given, Parameters
from pibert.predictor.heads import has, need
from pibert.predictor.model_file import read_model
from pibert.predictor.shipped import choose_device


def load(
    name_or_path: Path | str, device: torch.device | str = "cpu", *, chunk: int = 128
) -> "Predictor":
    """A trained model, ready to predict.

    Args:
        name_or_path: A run folder, a model folder, the .safetensors file of a model, or the name of
            a shipped model (``pibert.predictor.shipped_models``). A path that exists wins.
        device: Where to compute; ``auto``: CUDA, else Apple's MPS, else the CPU.
        chunk: Samples that the model sees at once; larger batches are parted.
    """
    saved = read_model(name_or_path, device)
    return Predictor(saved.model, saved.normalizer, card=saved.card, chunk=chunk)


class Predictor:
    """A model that takes and gives physical fields; see the module for the conventions.

    Args:
        model: One of ``pibert.models.MODELS``; it is put into evaluation mode.
        normalizer: Of the channels of its spec.
        card: What the model file says. None: a model at hand, whose heads all count as trained.
        chunk: Samples on the device at once; a larger batch stays where its fields are.
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

    def __repr__(self) -> str:
        what = in_a_line(self.card, self.spec, type(self.model).__name__)
        window = f"history {self.history}, horizon {self.horizon}"
        return f"Predictor({what}, {window}, on {self.device})"

    @property
    def device(self) -> torch.device:
        tensors = itertools.chain(self.model.parameters(), self.model.buffers())
        return next((tensor.device for tensor in tensors), torch.device("cpu"))

    def to(self, device: torch.device | str) -> Self:
        """Move the model; returns the predictor itself."""
        self.model.to(choose_device(device))
        return self

    def step(
        self,
        fields: Fields,
        parameters: Parameters | None = None,
        mask: Mask | None = None,
        *,
        grid: Grid | None = None,
    ) -> Fields:
        """The next ``horizon`` frames, (batch, horizon, channel, y, x).

        Args:
            fields: The last ``history`` frames, (batch, history, channel, y, x); less the batch, or
                as xarray, if the answer is to be so.
            parameters: By name; one that is not given, or NaN, is unknown.
            mask: True where the fields are known, (y, x) or (batch, y, x). None: everywhere.
            grid: Of the fields where it is not the model's: they are resampled, and the answer
                back. Coordinates of xarray say the same.
        """
        return self.rollout(fields, self.horizon, parameters, mask, grid=grid)

    def rollout(
        self,
        fields: Fields,
        steps: int,
        parameters: Parameters | None = None,
        mask: Mask | None = None,
        *,
        grid: Grid | None = None,
    ) -> Fields:
        """The next ``steps`` frames, (batch, steps, channel, y, x), each from those before it.

        Arguments as for ``step``. FloatingPointError if it diverges; ``iterate`` gives what came
        before.
        """
        given = self._start(fields, steps, parameters, mask, grid)
        b, _, c, ny, nx = given.fields.shape
        # Filled as frames come: a list of them would double it.
        whole = given.fields.new_empty(b, steps, c, ny, nx)
        start = 0
        for block in self._blocks(given, steps):
            whole[:, start : start + block.shape[1]] = block
            start += block.shape[1]
        return cast(Fields, given.kind.frames(whole, 0))

    def iterate(
        self,
        fields: Fields,
        steps: int | None = None,
        parameters: Parameters | None = None,
        mask: Mask | None = None,
        *,
        grid: Grid | None = None,
    ) -> Iterator[Fields]:
        """A rollout as blocks of ``horizon`` frames, each made when it is asked for.

        The memory it takes does not depend on ``steps``; without steps it does not end. The last
        block may be shorter. Arguments as for ``step``, checked at once.
        """
        given = self._start(fields, steps, parameters, mask, grid)
        blocks = enumerate(self._blocks(given, steps))
        return (given.kind.frames(block, self.horizon * count) for count, block in blocks)

    def _start(
        self,
        fields: Any,
        steps: int | None,
        parameters: Parameters | None,
        mask: Mask | None,
        grid: Grid | None,
    ) -> Given:
        if steps is not None and steps < 1:
            raise ValueError(f"expected at least 1 step, found {steps}")
        need(self.model, self.card, "forward")
        return self._take(fields, mask, parameters, grid)

    def _blocks(self, given: Given, steps: int | None) -> Iterator[Tensor]:
        # Between steps frames stay standardised: physical ones would lose digits to a large mean.
        window, done = given.standardised(), 0
        leash = Leash(window) if given.doubted else None
        while steps is None or done < steps:
            block = self._run(self.model, window, given).unflatten(1, (self.horizon, -1))
            if steps is not None:
                block = block[:, : steps - done]
            frames = self._physical(given, block, done)
            if leash is not None:
                leash.look(given.hidden(block))
            yield frames
            done += block.shape[1]
            window = given.hidden(torch.cat((window, block), dim=1)[:, -self.history :])

    @staticmethod
    def _physical(given: Given, block: Tensor, done: int) -> Tensor:
        """A standardised block in physical units; FloatingPointError where it is not finite.

        Args:
            given: The input of the rollout.
            block: The next frames of it.
            done: Number of frames before the block.
        """
        frames = given.physical(block)
        for values in (block, frames):  # a large standard deviation can overflow the second alone
            if not bool(values.isfinite().all()):
                raise divergence_at(values, done)
        return frames

    def fill(
        self,
        fields: Fields,
        known: Mask,
        parameters: Parameters | None = None,
        *,
        grid: Grid | None = None,
    ) -> Fields:
        """The fields with what is not known put in by the reconstruction head.

        Known values come back bit for bit. The head takes one mask for all frames of the window: a
        point that is unknown in one frame is hidden in all of them, but replaced only where it is
        unknown. Points of the grid's body are no gaps: they stay as they are.

        Args:
            fields: ``history`` frames; what is not known may be NaN.
            known: True where they are known, (y, x), (batch, y, x) or (batch, history, y, x).
            parameters: As for ``step``.
            grid: As for ``step``.
        """
        need(self.model, self.card, "reconstruct")
        given = self._take(fields, known, parameters, grid)
        window = given.standardised()
        found = self._run(cast(Any, self.model).reconstruct, window, given)
        check_finite(found)
        guess = given.physical(found.unflatten(1, window.shape[1:3]))
        gaps = (~given.known & ~given.body)[:, :, None]
        return cast(Fields, given.kind.window(torch.where(gaps, guess, given.fields)))

    def consistency(
        self,
        fields: Any,
        parameters: Parameters | None = None,
        mask: Mask | None = None,
        *,
        grid: Grid | None = None,
    ) -> Any:
        """The probability that each window obeys its equations, (batch,).

        Arguments as for ``step``; of the kind of the fields, without the batch if they have none.
        """
        need(self.model, self.card, "consistency")
        given = self._take(fields, mask, parameters, grid)
        return self._judge(given, given.standardised())

    def explain(
        self,
        fields: Any,
        parameters: Parameters | None = None,
        mask: Mask | None = None,
        *,
        grid: Grid | None = None,
    ) -> Explanation:
        """What the model looks at to make the next step; arguments as for ``step``."""
        given = self._start(fields, self.horizon, parameters, mask, grid)
        window = given.standardised()
        block = self._run(self.model, window, given).unflatten(1, (self.horizon, -1))
        check_finite(block)
        first = torch.cat((window, given.hidden(block[:, :1])), dim=1)
        spec, normalizer = self.spec, self.normalizer
        judges = has(self.model, self.card, "consistency")
        return Explanation(
            prediction=given.kind.frames(given.physical(block), 0),
            input_residuals=residual_maps(spec, normalizer, window, given),
            prediction_residuals=residual_maps(spec, normalizer, first, given),
            consistency=self._judge(given, window) if judges else None,
            **token_maps(self.model, window, given, self.device),
        )

    def _judge(self, given: Given, window: Tensor) -> Any:
        logits = self._run(cast(Any, self.model).consistency, window, given)
        check_finite(logits)
        return given.map(torch.sigmoid(logits))

    def _take(
        self, fields: Any, mask: Mask | None, parameters: Parameters | None, grid: Grid | None
    ) -> Given:
        return Given(
            fields,
            mask,
            parameters,
            grid=grid,
            spec=self.spec,
            normalizer=self.normalizer,
            history=self.history,
            device=self.device,
            chunk=self.chunk,
        )

    def _run(self, function: Callable[..., Tensor], window: Tensor, given: Given) -> Tensor:
        """A function of the model over the batch, some samples at a time, in full precision.

        Gradients are kept where what was given has them.
        """
        x, device, parts = window.flatten(1, 2), self.device, []
        full = torch.backends.cudnn.flags(enabled=True, allow_tf32=False)
        wanted = x.requires_grad or given.parameters.requires_grad
        with (
            torch.set_grad_enabled(torch.is_grad_enabled() and wanted),
            torch.autocast(device.type, enabled=False),
            full,
        ):
            for start in range(0, len(x), self.chunk):
                part = slice(start, start + self.chunk)
                inputs = (v[part].to(device) for v in (x, given.parameters, given.seen))
                parts.append(function(*inputs).to(x.device))
        return torch.cat(parts)
