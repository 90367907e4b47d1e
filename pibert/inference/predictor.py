"""Predictions in physical units: a trained model that steps, rolls out, fills gaps and explains.

Fields are in the units of ``Predictor.spec``, the newest frame last, as NumPy arrays, tensors or
xarray, float32 or float64; results have the same kind, grid, type and device. The model computes in
float32 on its own grid. ``docs/predicting.md`` lists the accepted layouts.

A mask is False where fields are unknown; values there may be NaN and are ignored. Points inside a
body of the grid are never known. The mask holds for all steps of a rollout, as in training:
predictions at unknown points are returned, but not fed back, and mean little.

If a tensor of the input requires a gradient, results can be differentiated with respect to it. The
gradient also reaches the weights: ``torch.autograd.grad`` of the input alone does not change those.
"""

import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Self, cast

import torch
from jaxtyping import Float
from torch import Tensor, nn

from pibert.fields import FieldSpec, Grid, Normalizer
from pibert.inference.explanation import Explanation, residual_maps, token_maps
from pibert.inference.model_file import HEADS, Card, check_channels, choose_device, read_model
from pibert.inference.model_input import Fields, Mask, ModelInput, Parameters
from pibert.inference.stream import (
    Block,
    Prediction,
    PredictionStream,
    RolloutDiverged,
    mean_of,
)
from pibert.notes import Note, Notes, warn

PRECISION = "float32 without TF32"
"""Precision of every prediction, and of the scores of predictions."""
_PURPOSES = {
    "forward": ("step", "fine-tune it: pibert train"),
    "reconstruct": ("fill gaps", "train it with masked physics prediction: pibert pretrain"),
    "consistency": (
        "score consistency",
        "train it with equation consistency prediction: pibert pretrain",
    ),
}
"""What each head is for, and how to train it."""


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
        self.models: tuple[nn.Module, ...] = (model,)
        """Several in an ``Ensemble``."""
        self.spec = cast(FieldSpec, model.spec)
        self.history, self.horizon = int(config.history), int(config.horizon)
        self.card: Card = card or {}
        if chunk < 1:
            raise ValueError(f"expected a chunk of at least 1 sample, found {chunk}")
        check_channels(normalizer, self.spec)

    def __repr__(self) -> str:
        spec, grid = self.spec, self.spec.grid
        name = self.card.get("model", {}).get("name", type(self.model).__name__)
        weights = self.card.get("weights", {}).get("sha256", "")[:12]
        units = zip(spec.channels, spec.units, strict=True)
        channels = " ".join(n if unit == "1" else f"{n} [{unit}]" for n, unit in units)
        dt = "unknown" if spec.dt is None else f"{spec.dt:.4g}"
        return (
            f"{type(self).__name__}({f'{name} {weights}'.strip()}, channels {channels}, "
            f"{grid.shape[0]} x {grid.shape[1]} points (rows x columns), dx {grid.dx:.4g}, "
            f"dy {grid.dy:.4g}, dt {dt}, history {self.history}, horizon {self.horizon}, on "
            f"{self.device})"
        )

    @property
    def device(self) -> torch.device:
        tensors = itertools.chain(self.model.parameters(), self.model.buffers())
        return next((tensor.device for tensor in tensors), torch.device("cpu"))

    @property
    def weights_sha256(self) -> str:
        """Fingerprint of the weights."""
        stated = self.card.get("weights", {}).get("sha256")
        if not isinstance(stated, str):
            raise ValueError(
                "expected a model that was saved, found one in memory; save it with "
                "pibert.inference.save_model and load it again"
            )
        return stated

    def has_head(self, head: str) -> bool:
        """Whether the model has a trained head; without a card all heads count as trained."""
        trained = self.card.get("trained", dict.fromkeys(HEADS, True))
        return callable(getattr(self.model, head, None)) and bool(trained.get(head, False))

    def require_head(self, head: str) -> None:
        """Raise unless the model has this head and it was trained."""
        purpose, remedy = _PURPOSES[head]
        if not callable(getattr(self.model, head, None)):
            raise ValueError(
                f"expected a model that can {purpose}, found {type(self.model).__name__}, which "
                f"has no {head} head; take another model, such as pibert"
            )
        if not self.has_head(head):
            able = [name for name in HEADS if self.has_head(name)]
            raise ValueError(
                f"expected a model trained to {purpose}, found one whose trained heads are {able}; "
                f"{remedy}"
            )

    def to(self, device: torch.device | str) -> Self:
        """Move the model; returns the predictor itself."""
        for model in self.models:
            model.to(choose_device(device))
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
            parameters: By name; one that is missing or NaN is unknown.
            mask: True where the fields are known, (y, x) or (batch, y, x). None: everywhere.
            grid: Of the fields if it is not the model's: they are resampled, and the result back.
                Coordinates of xarray state the same.
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

        Arguments as for ``step``. If it diverges, ``RolloutDiverged``, a FloatingPointError whose
        ``prediction`` has the frames before that; ``iterate`` gives them one by one.
        """
        given = self.prepare(fields, parameters, mask, grid=grid)
        return cast(Fields, self.collect(self.stream(given, steps), warn).fields)

    def predict(
        self,
        fields: Any,
        steps: int | None = None,
        parameters: Parameters | None = None,
        mask: Mask | None = None,
        *,
        grid: Grid | None = None,
    ) -> Prediction:
        """As ``rollout``, with notes in the result in place of Python warnings.

        Without ``steps``, the next ``horizon`` frames.
        """
        given = self.prepare(fields, parameters, mask, grid=grid)
        return self.collect(self.stream(given, self.horizon if steps is None else steps))

    def iterate(
        self,
        fields: Fields,
        steps: int | None = None,
        parameters: Parameters | None = None,
        mask: Mask | None = None,
        *,
        grid: Grid | None = None,
    ) -> Iterator[Fields]:
        """A rollout as blocks of ``horizon`` frames, each computed on request.

        Its memory does not depend on ``steps``; without steps it does not end. The last block may
        be shorter. Arguments as for ``step``, checked at once.
        """
        stream = self.stream(self.prepare(fields, parameters, mask, grid=grid), steps)

        def blocks() -> Iterator[Fields]:
            for prediction in self.predictions(stream):
                _warn(prediction.notes)
                yield cast(Fields, prediction.fields)

        return blocks()

    def stream(
        self, given: ModelInput, steps: int | None, intervals: Any = None
    ) -> PredictionStream:
        """A rollout ready to begin. ``steps`` None: no limit."""
        self.require_head("forward")
        return PredictionStream(given, steps, len(self.models), intervals)

    def prepare(
        self,
        fields: Any,
        parameters: Parameters | None = None,
        mask: Mask | None = None,
        *,
        grid: Grid | None = None,
    ) -> ModelInput:
        """Fields, parameters and mask checked, on the model's grid and standardised."""
        return ModelInput(self, fields, mask, parameters, grid)

    def blocks(self, stream: PredictionStream) -> Iterator[Block]:
        """The frames of a rollout, ``horizon`` at a time."""
        while not stream.is_done:
            yield stream.take(self._outputs([stream])[0])

    def predictions(self, stream: PredictionStream) -> Iterator[Prediction]:
        """The same as predictions; the first carries the notes on the input."""
        notes = list(stream.input.notes)
        start = stream.done
        for block in self.blocks(stream):
            yield stream.prediction(block, start, [*notes, *block.notes])
            notes, start = [], stream.done

    def collect(
        self, stream: PredictionStream, on_note: Callable[[Note], None] | None = None
    ) -> Prediction:
        """All frames of a rollout; notes are also reported as they arise."""
        notes = Notes(on_note)
        notes.extend(stream.input.notes)
        # Filled block by block: a list of blocks would take twice the memory.
        whole: dict[str, Tensor] = {}
        start = 0

        def finished() -> Prediction:
            made = {name: part[:, :start] for name, part in whole.items()}
            frames, half, known = made["frames"], made.get("half"), made.get("known")
            block = Block(frames=frames, on_model=frames, half=half, known=known)
            return stream.prediction(block, 0, notes)

        try:
            for block in self.blocks(stream):
                notes.extend(block.notes)
                for name in ("frames", "half", "known"):
                    part: Tensor | None = getattr(block, name)
                    if part is not None:
                        if name not in whole:
                            shape = (len(part), stream.steps or 0, *part.shape[2:])
                            whole[name] = part.new_empty(shape)
                        whole[name][:, start : stream.done] = part
                start = stream.done
        except RolloutDiverged as error:
            error.prediction = finished() if start else None
            raise
        return finished()

    def advance(self, streams: Sequence[PredictionStream]) -> list[Prediction | Exception]:
        """The next block of each rollout, in one call of the model, or the error of that rollout.

        If the joint call fails, the rollouts step one by one. Notes on the input are left out.
        """
        try:
            outputs = self._outputs(streams)
        except Exception as error:
            if len(streams) == 1:
                return [error]
            return [self.advance([stream])[0] for stream in streams]
        return [_next(stream, output) for stream, output in zip(streams, outputs, strict=True)]

    def _outputs(self, streams: Sequence[PredictionStream]) -> list[tuple[Tensor, ...]]:
        """The output of every model for each rollout."""
        parameters = torch.cat([stream.input.parameters for stream in streams])
        sizes = [len(stream.input.seen) for stream in streams]
        outputs = []
        for index, model in enumerate(self.models):
            # The input first: with it the bodies move.
            x = torch.cat([stream.rollouts[index].x for stream in streams])
            seen = torch.cat([stream.rollouts[index].known for stream in streams])
            outputs.append(self.run(model, x, parameters, seen).split(sizes))
        return list(zip(*outputs, strict=True))

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
        self.require_head("reconstruct")
        given = self.prepare(fields, parameters, known, grid=grid)
        _warn(given.notes)
        output = mean_of(self._run_heads("reconstruct", given))
        frames = given.to_caller(given.physical(output.unflatten(1, (self.history, -1))))
        gaps = (~given.known & ~given.body)[:, :, None]
        return cast(Fields, given.kind.window(torch.where(gaps, frames, given.fields)))

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
        return given.map(self.consistency_of(given))

    def consistency_of(self, given: ModelInput) -> Float[Tensor, " b"]:
        """``consistency`` of an input that is prepared."""
        self.require_head("consistency")
        return mean_of([torch.sigmoid(logits) for logits in self._run_heads("consistency", given)])

    def explain(
        self,
        fields: Any,
        parameters: Parameters | None = None,
        mask: Mask | None = None,
        *,
        grid: Grid | None = None,
    ) -> Explanation:
        """What the model attends to for the next step; arguments as for ``step``."""
        self.require_head("forward")
        given = self.prepare(fields, parameters, mask, grid=grid)
        window = given.standardised()
        block = mean_of(self._run_heads("forward", given)).unflatten(1, (self.horizon, -1))
        first = torch.cat((window, given.hidden(block[:, :1])), dim=1)
        spec, normalizer = self.spec, self.normalizer
        consistency = None
        if self.has_head("consistency"):
            consistency = given.map(self.consistency_of(given))
        return Explanation(
            prediction=given.kind.frames(given.to_caller(given.physical(block)), 0),
            input_residuals=residual_maps(spec, normalizer, window, given),
            prediction_residuals=residual_maps(spec, normalizer, first, given),
            consistency=consistency,
            notes=tuple(given.notes),
            **token_maps(self.model, window, given, self.device),
        )

    def run(
        self, function: Callable[..., Tensor], x: Tensor, parameters: Tensor, seen: Tensor
    ) -> Tensor:
        """A function of the model on standardised input, ``chunk`` samples at a time.

        Every prediction and every score comes from here, so that all have the same ``PRECISION``.
        Gradients are kept if the input has them.
        """
        device, outputs = self.device, []
        enabled = torch.is_grad_enabled() and (x.requires_grad or parameters.requires_grad)
        with torch.set_grad_enabled(enabled), full_precision(device):
            for start in range(0, len(x), self.chunk):
                rows = slice(start, start + self.chunk)
                inputs = (v[rows].to(device) for v in (x, parameters, seen))
                outputs.append(function(*inputs).to(x.device))
        return torch.cat(outputs)

    def _run_heads(self, head: str, given: ModelInput) -> list[Tensor]:
        """The output of a head of every model."""
        x, outputs = given.standardised().flatten(1, 2), []
        for model in self.models:
            function = model if head == "forward" else getattr(model, head)
            output = self.run(function, x, given.parameters, given.seen)
            if not bool(output.isfinite().all()):
                raise FloatingPointError(
                    "expected finite output of the model, found NaN or infinity; check units and "
                    "parameters of the input"
                )
            outputs.append(output)
        return outputs


def _next(stream: PredictionStream, outputs: Sequence[Tensor]) -> Prediction | Exception:
    start = stream.done
    try:
        block = stream.take(outputs)
        return stream.prediction(block, start, block.notes)
    except Exception as error:
        return error


def _warn(notes: Sequence[Note]) -> None:
    for note in notes:
        warn(note)
