"""Predictions in physical units: a trained model that steps, rolls out, fills gaps and explains.

Fields are in the units of ``Predictor.spec``, the newest frame last, as NumPy arrays, tensors or
xarray, float32 or float64; results have the same kind, grid, type and device. The model itself
computes in float32, on its own grid. ``docs/predicting.md`` lists the accepted layouts.

If a given tensor (fields or a parameter) requires a gradient, results can be differentiated with
respect to it. The gradient also reaches the weights: ``torch.autograd.grad`` of the input alone
leaves those unchanged.

A mask is False where fields are unknown; values there may be NaN and are ignored. Points inside a
body of the grid are never known. The mask holds for all steps of a rollout, as in training: what is
predicted at unknown points is returned as the model computes it, but not fed back. There, and so
inside a body, it means little.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from pibert.fields import FieldSpec, Grid, Normalizer
from pibert.inference.arrays import Fields, Mask
from pibert.inference.explanation import Explanation, residual_maps, token_maps
from pibert.inference.model_card import Card, has_head, in_a_line, require_head
from pibert.inference.model_file import choose_device, read_model
from pibert.inference.model_input import ModelInput, Parameters
from pibert.notes import Note, warn
from pibert.rollout import Rollout

RUNAWAY = 20.0
"""Standard deviations from the training mean beyond which a rollout is no longer a flow."""
PRECISION = "float32 without TF32"
"""Precision of every prediction, and of the scores of predictions."""


@contextmanager
def full_precision(device: torch.device) -> Iterator[None]:
    """Run a model as ``PRECISION`` states: no autocast, and no TF32 on a GPU."""
    matmul = torch.get_float32_matmul_precision() if device.type == "cuda" else "highest"
    with ExitStack() as stack:
        stack.enter_context(torch.autocast(device.type, enabled=False))
        stack.enter_context(torch.backends.cudnn.flags(enabled=True, allow_tf32=False))
        if matmul != "highest":
            torch.set_float32_matmul_precision("highest")
            stack.callback(torch.set_float32_matmul_precision, matmul)
        yield


@dataclass(frozen=True, eq=False, kw_only=True)
class PredictionIntervals:
    """Ends of the prediction intervals of some frames, in the frames' kind and shape."""

    low: Any
    high: Any
    level: float
    """Probability that the true value at a point lies between ``low`` and ``high``;
    ``Calibration.assumption`` states what it rests on."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Prediction:
    """Predicted frames and what goes with them."""

    fields: Any
    """(batch, time, channel, y, x), or of the kind of the input."""
    intervals: Any = None
    """``PredictionIntervals``, of a calibrated model."""
    ood: Any = None
    """``OODResult`` of the input, of a calibrated model: intervals mean nothing where it is
    flagged."""
    consistency: Any = None
    """Probability that each input window obeys its equations; None without a head for it."""
    notes: tuple[Note, ...] = ()


class DivergenceMonitor:
    """Notes once when a rollout leaves the range of the training data.

    Args:
        window: The first input, standardised, zero where unknown. Samples that begin far from the
            training data, which has a note of its own, may go further.
    """

    def __init__(self, window: Float[Tensor, "b h c y x"]) -> None:
        self._limit = (2 * window.abs().flatten(1).amax(1)).clamp(min=RUNAWAY)
        self._done, self._noted = 0, False

    def check(self, block: Float[Tensor, "b t c y x"]) -> tuple[Note, ...]:
        """Notes on the next frames, standardised, zero where unknown; at most one in all."""
        first, self._done = self._done + 1, self._done + block.shape[1]
        if self._noted:
            return ()
        far = block.abs().flatten(2).amax(2) > self._limit.to(block)[:, None]
        if not bool(far.any()):
            return ()
        self._noted = True
        step = first + int(far.any(0).nonzero()[0])
        remedy = (
            f"take at most {step - 1} steps, or train on rollouts"
            if step > 1
            else "check units and parameters of the input"
        )
        text = (
            f"from step {step} on values are more than {RUNAWAY:g} standard deviations from the "
            "training mean: the rollout diverges"
        )
        return (Note("divergence", text, remedy),)


class PredictionStream:
    """A rollout in progress, which ``Predictor.advance`` continues.

    Args:
        model_input: Where it begins.
        steps: Frames to predict. None: without an end.
    """

    def __init__(self, model_input: ModelInput, steps: int | None) -> None:
        window = model_input.standardised()
        self.input = model_input
        self.rollout = Rollout(window.flatten(1, 2), model_input.seen, window.shape[2], steps)
        self._monitor = DivergenceMonitor(window)

    @property
    def is_done(self) -> bool:
        return self.rollout.is_done

    def take(self, output: Tensor) -> tuple[Tensor, tuple[Note, ...]]:
        """Frames of a model output on the caller's grid, and notes on them.

        FloatingPointError where they are not finite.
        """
        done = self.rollout.done
        block = self.rollout.advance(output)
        frames = self.input.physical(block)
        for values in (block, frames):  # a large standard deviation can overflow the second alone
            if not bool(values.isfinite().all()):
                raise _divergence_at(values, done)
        return frames, self._monitor.check(self.input.hidden(block))


def _divergence_at(block: Float[Tensor, "b t c y x"], done: int) -> FloatingPointError:
    """Names the first frame that is not finite, counted from 1; ``done`` came before the block."""
    bad = ~block.isfinite().flatten(2).all(2)
    frame = int(bad.any(0).nonzero()[0])
    sample = int(bad[:, frame].nonzero()[0])
    fewer = f"take at most {done + frame} steps, or " if done + frame else ""
    return FloatingPointError(
        f"expected finite predictions, found NaN or infinity in step {done + frame + 1} (sample "
        f"{sample}): the rollout diverged; {fewer}check units and parameters of the input"
    )


def _check_finite(output: Tensor) -> None:
    if not bool(output.isfinite().all()):
        raise FloatingPointError(
            "expected finite output of the model, found NaN or infinity; check units and "
            "parameters of the input"
        )


def load(
    name_or_path: Path | str, device: torch.device | str = "cpu", *, chunk: int = 128
) -> "Predictor":
    """A trained model, ready to predict.

    Args:
        name_or_path: A run folder, a model folder, the .safetensors file of a model, or the name of
            a shipped model (``pibert.inference.shipped_models``). A path that exists wins.
        device: Where to compute; ``auto``: CUDA, else Apple's MPS, else the CPU.
        chunk: Samples that the model sees at once; larger batches are split.
    """
    saved = read_model(name_or_path, device)
    return Predictor(saved.model, saved.normalizer, card=saved.card, chunk=chunk)


class Predictor:
    """A model that takes and returns physical fields; the module states the conventions.

    Args:
        model: One of ``pibert.models.MODELS``; it is put into evaluation mode.
        normalizer: Of the channels of its spec.
        card: Of the model file. None: a model in memory, whose heads all count as trained.
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
        if len(normalizer.mean) != len(names):
            raise ValueError(
                f"expected a normalizer for the channels {list(names)}, found "
                f"{len(normalizer.mean)} means"
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
            fields: The last ``history`` frames, (batch, history, channel, y, x); without the
                batch for one sample, or as xarray; the result is of the same kind.
            parameters: By name; one that is not given, or NaN, is unknown.
            mask: True where the fields are known, (y, x) or (batch, y, x). None: everywhere.
            grid: Of the fields where it is not the model's: they are resampled, and the result
                back. Coordinates of xarray state the same.
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
        stream = self.stream(fields, steps, parameters, mask, grid=grid)
        _warn(stream.input.notes)
        return cast(Fields, stream.input.kind.frames(self._collect(stream, warn), 0))

    def predict(
        self,
        fields: Any,
        steps: int | None = None,
        parameters: Parameters | None = None,
        mask: Mask | None = None,
        *,
        grid: Grid | None = None,
    ) -> Prediction:
        """As ``rollout``, with the notes on the result in place of Python warnings.

        Without ``steps``, the next ``horizon`` frames.
        """
        steps = self.horizon if steps is None else steps
        stream = self.stream(fields, steps, parameters, mask, grid=grid)
        notes = list(stream.input.notes)
        frames = stream.input.kind.frames(self._collect(stream, notes.append), 0)
        return Prediction(fields=frames, notes=tuple(notes))

    def iterate(
        self,
        fields: Fields,
        steps: int | None = None,
        parameters: Parameters | None = None,
        mask: Mask | None = None,
        *,
        grid: Grid | None = None,
    ) -> Iterator[Fields]:
        """A rollout as blocks of ``horizon`` frames, each computed when it is asked for.

        The memory it takes does not depend on ``steps``; without steps it does not end. The last
        block may be shorter. Arguments as for ``step``, checked at once.
        """
        stream = self.stream(fields, steps, parameters, mask, grid=grid)
        _warn(stream.input.notes)
        blocks = enumerate(self.blocks(stream, warn))
        return (stream.input.kind.frames(block, self.horizon * count) for count, block in blocks)

    def stream(
        self,
        fields: Any,
        steps: int | None,
        parameters: Parameters | None = None,
        mask: Mask | None = None,
        *,
        grid: Grid | None = None,
    ) -> PredictionStream:
        """A rollout ready to begin; ``stream.input.notes`` are the notes on its input."""
        if steps is not None and steps < 1:
            raise ValueError(f"expected at least 1 step, found {steps}")
        require_head(self.model, self.card, "forward")
        return PredictionStream(self.prepare(fields, parameters, mask, grid=grid), steps)

    def advance(self, streams: Sequence[PredictionStream]) -> list[Prediction | Exception]:
        """The next block of each rollout, in one call of the model, or the error of that rollout.

        If the joint call fails, the rollouts step one by one.
        """
        rollouts = [stream.rollout for stream in streams]
        try:
            output = self.run(
                self.model,
                torch.cat([rollout.x for rollout in rollouts]),
                torch.cat([stream.input.parameters for stream in streams]),
                torch.cat([rollout.known for rollout in rollouts]),
            )
        except Exception as error:
            if len(streams) == 1:
                return [error]
            return [self.advance([stream])[0] for stream in streams]
        outputs = output.split([len(rollout.known) for rollout in rollouts])
        return [_next(stream, own) for stream, own in zip(streams, outputs, strict=True)]

    def blocks(
        self, stream: PredictionStream, on_note: Callable[[Note], None] = lambda note: None
    ) -> Iterator[Tensor]:
        """Frames of a rollout on the caller's grid, (b, t, c, y, x), block by block."""
        # Between steps frames stay standardised: physical ones would lose digits to a large mean.
        rollout, parameters = stream.rollout, stream.input.parameters
        while not rollout.is_done:
            frames, notes = stream.take(self.run(self.model, rollout.x, parameters, rollout.known))
            for note in notes:
                on_note(note)
            yield frames

    def _collect(self, stream: PredictionStream, on_note: Callable[[Note], None]) -> Tensor:
        """All frames of a rollout."""
        b, _, c, ny, nx = stream.input.fields.shape
        # Filled block by block: a list of blocks would take twice the memory.
        whole = stream.input.fields.new_empty(b, stream.rollout.steps or 0, c, ny, nx)
        start = 0
        for block in self.blocks(stream, on_note):
            whole[:, start : start + block.shape[1]] = block
            start += block.shape[1]
        return whole

    def fill(
        self,
        fields: Fields,
        known: Mask,
        parameters: Parameters | None = None,
        *,
        grid: Grid | None = None,
    ) -> Fields:
        """The fields with unknown values filled by the reconstruction head.

        Known values are returned bit for bit. The head takes one mask for all frames of the window:
        a point that is unknown in one frame is hidden in all of them, but replaced only where it is
        unknown. Points of the grid's body are not filled.

        Args:
            fields: ``history`` frames; unknown values may be NaN.
            known: True where they are known, (y, x), (batch, y, x) or (batch, history, y, x).
            parameters: As for ``step``.
            grid: As for ``step``.
        """
        require_head(self.model, self.card, "reconstruct")
        given = self.prepare(fields, parameters, known, grid=grid)
        _warn(given.notes)
        window = given.standardised()
        found = self._run(cast(Any, self.model).reconstruct, window, given)
        _check_finite(found)
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

        Arguments as for ``step``; the result is of the kind of the fields.
        """
        given = self.prepare(fields, parameters, mask, grid=grid)
        _warn(given.notes)
        return self.consistency_of(given)

    def consistency_of(self, given: ModelInput) -> Any:
        """``consistency`` of an input that is prepared, without its notes."""
        require_head(self.model, self.card, "consistency")
        logits = self._run(cast(Any, self.model).consistency, given.standardised(), given)
        _check_finite(logits)
        return given.map(torch.sigmoid(logits))

    def explain(
        self,
        fields: Any,
        parameters: Parameters | None = None,
        mask: Mask | None = None,
        *,
        grid: Grid | None = None,
    ) -> Explanation:
        """What the model looks at for the next step; arguments as for ``step``."""
        require_head(self.model, self.card, "forward")
        given = self.prepare(fields, parameters, mask, grid=grid)
        window = given.standardised()
        block = self._run(self.model, window, given).unflatten(1, (self.horizon, -1))
        _check_finite(block)
        first = torch.cat((window, given.hidden(block[:, :1])), dim=1)
        spec, normalizer = self.spec, self.normalizer
        has_consistency = has_head(self.model, self.card, "consistency")
        return Explanation(
            prediction=given.kind.frames(given.physical(block), 0),
            input_residuals=residual_maps(spec, normalizer, window, given),
            prediction_residuals=residual_maps(spec, normalizer, first, given),
            consistency=self.consistency_of(given) if has_consistency else None,
            notes=tuple(given.notes),
            **token_maps(self.model, window, given, self.device),
        )

    def prepare(
        self,
        fields: Any,
        parameters: Parameters | None = None,
        mask: Mask | None = None,
        *,
        grid: Grid | None = None,
    ) -> ModelInput:
        """Fields, parameters and mask checked, on the model's grid and standardised."""
        return ModelInput(
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

    def run(
        self, function: Callable[..., Tensor], x: Tensor, parameters: Tensor, seen: Tensor
    ) -> Tensor:
        """A function of the model on standardised input, ``chunk`` samples at a time.

        Every prediction and every score comes from here, so that all have the same ``PRECISION``.
        Gradients are kept if the input has them.
        """
        device, parts = self.device, []
        wanted = x.requires_grad or parameters.requires_grad
        enabled = torch.is_grad_enabled() and wanted
        with torch.set_grad_enabled(enabled), full_precision(device):
            for start in range(0, len(x), self.chunk):
                part = slice(start, start + self.chunk)
                inputs = (v[part].to(device) for v in (x, parameters, seen))
                parts.append(function(*inputs).to(x.device))
        return torch.cat(parts)

    def _run(self, function: Callable[..., Tensor], window: Tensor, given: ModelInput) -> Tensor:
        return self.run(function, window.flatten(1, 2), given.parameters, given.seen)


def _next(stream: PredictionStream, output: Tensor) -> Prediction | Exception:
    start = stream.rollout.done
    try:
        frames, notes = stream.take(output)
        return Prediction(fields=stream.input.kind.frames(frames, start), notes=notes)
    except Exception as error:
        return error


def _warn(notes: Sequence[Note]) -> None:
    for note in notes:
        warn(note)
