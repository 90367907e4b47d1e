"""CUDA graphs: the forward and backward pass of a piece, captured once and replayed.

A small model keeps a GPU waiting: the host takes longer to launch some thousand kernels than the
GPU to run them. A captured piece is launched as a whole. The values that change between pieces
(fields, seeds, weight) are copied into the tensors that the graph reads; weights and gradients stay
in the same memory, so gradients are set to zero and not freed.

The second piece of a kind is captured: the first runs as usual and creates one-time objects (plans
of Fourier transforms, constants on the device). A kind is the size of a piece, whether the model
trains, and its position modulo the period of the objective (``objectives.in_turns``). Work that
waits for the device cannot be captured; it runs as usual, and the reporter receives the reason.
"""

import gc
import math
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, fields
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from pibert.fields import Batch
from pibert.training.objectives import Objective, period_of

Clock: TypeAlias = Callable[[str], AbstractContextManager[None]]
Outcome = tuple[Tensor, dict[str, Tensor]]


@dataclass
class _CapturedPiece:
    """The tensors that a captured piece reads and writes, and its graphs."""

    batch: Batch
    weight: Tensor
    loss: Tensor
    logs: dict[str, Tensor]
    forward: Any
    backward: Any

    def replay(self, batch: Batch, weight: float, clock: Clock) -> Outcome:
        with clock("forward"):
            torch._foreach_copy_(_tensors(self.batch), _tensors(batch))
            self.forward.replay()
        if self.backward is not None:
            with clock("backward"):
                self.weight.fill_(weight)
                self.backward.replay()
        return self.loss, self.logs


class GraphRunner:
    """Runs an objective on a piece; from the second piece of a kind on as a CUDA graph.

    Args:
        model: The model that the objective evaluates.
        autocast: The precision of the forward pass; without a cache of weights, whose entries
            would be those of the captured pass.
        clock: Measures forward and backward passes.
        enabled: Whether to capture; only on a CUDA device.
        say: Receives the reason if the work cannot be captured.
    """

    def __init__(
        self,
        model: nn.Module,
        autocast: Callable[[], AbstractContextManager[Any]],
        clock: Clock,
        *,
        enabled: bool,
        say: Callable[[str], None],
    ) -> None:
        self._model, self._autocast, self._clock, self._say = model, autocast, clock, say
        self._enabled = enabled
        self._objective: Objective | None = None
        self._captured: dict[tuple[Any, ...], _CapturedPiece | None] = {}
        self._pool: Any = None

    @property
    def keeps_gradients(self) -> bool:
        """Whether graphs write into the gradients, which then must not be freed."""
        return any(r is not None and r.backward is not None for r in self._captured.values())

    def train(self, objective: Objective, batch: Batch, weight: float) -> Outcome:
        """Add the gradient of the weighted loss; returns the loss and the logs."""
        return self._run(objective, batch, weight)

    @torch.no_grad()
    def evaluate(self, objective: Objective, batch: Batch) -> Outcome:
        """The loss and the logs, without gradients."""
        return self._run(objective, batch, None)

    def _run(self, objective: Objective, batch: Batch, weight: float | None) -> Outcome:
        if not self._enabled:
            return self._launch(objective, batch, weight)
        trains = weight is not None
        if trains and objective is not self._objective:
            self._captured = {k: r for k, r in self._captured.items() if k[0] is not trains}
            self._objective = objective
        key = (trains, objective, len(batch), batch.position % period_of(objective))
        if key not in self._captured:
            self._captured[key] = None
            return self._launch(objective, batch, weight)
        captured = self._captured[key]
        if captured is None:
            outcome = self._launch(objective, batch, weight)
            self._captured[key] = self._capture(objective, batch, trains)
            return outcome
        return captured.replay(batch, math.nan if weight is None else weight, self._clock)

    def _launch(self, objective: Objective, batch: Batch, weight: float | None) -> Outcome:
        with self._clock("forward"), self._autocast():
            loss, logs = objective(self._model, batch)
        if weight is not None:
            with self._clock("backward"):
                (loss * weight).backward()
        return loss.detach(), logs

    def _capture(self, objective: Objective, batch: Batch, trains: bool) -> _CapturedPiece | None:
        """Capture the work of a piece without doing it; the gradients exist already."""
        self._pool = self._pool or torch.cuda.graph_pool_handle()
        held = batch.map(torch.clone)
        weight = torch.ones((), device=batch.x.device)
        forward, backward = torch.cuda.CUDAGraph(), torch.cuda.CUDAGraph() if trains else None
        try:
            torch.cuda.synchronize()
            with _without_collector():
                with torch.cuda.graph(forward, pool=self._pool), self._autocast():
                    loss, logs = objective(self._model, held)
                    scaled = loss * weight
                if backward is not None:
                    with torch.cuda.graph(backward, pool=self._pool):
                        scaled.backward()
        except RuntimeError as error:
            self._enabled = False
            self._captured.clear()
            self._say(
                f"CUDA graphs are off, because the work of a piece cannot be captured: {error}"
            )
            return None
        return _CapturedPiece(held, weight, loss.detach(), logs, forward, backward)


@contextmanager
def _without_collector() -> Iterator[None]:
    """Collect garbage now and not meanwhile: an older graph must not be freed during a capture."""
    was_enabled = gc.isenabled()
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def autocast(device: torch.device, precision: str) -> AbstractContextManager[Any]:
    """The precision of a forward pass."""
    if precision == "float32":
        return nullcontext()
    return torch.autocast(device.type, torch.bfloat16, cache_enabled=device.type != "cuda")


def _tensors(batch: Batch) -> list[Tensor]:
    values = (getattr(batch, field.name) for field in fields(batch))
    return [value for value in values if isinstance(value, Tensor)]
