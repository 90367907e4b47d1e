"""Optimisers: which weights decay, the learning rate of a step, the running mean of the weights.

Learning rate of step n of N (n = 0 ... N - 1) with W steps of warm-up:

    n < W:   peak (n + 1) / W
    n >= W:  minimum + (peak - minimum) (1 + cos(pi (n - W) / (N - 1 - W))) / 2

The last step has the minimum itself. It is a function of the step alone: nothing to store.

Running mean (EMA) after step n = 1, 2 ...: m <- d m + (1 - d) w with d = min(decay, n / (n + 9)),
so that a short run is not a mean of its beginning.

Moments of an optimiser are kept by the name of the parameter (``moments``, ``set_moments``).
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from pibert.training.muon import Muon, matrices_of

OptimizerName = Literal["adamw", "muon"]


def learning_rate(
    step: int, *, total: int, warmup: int, peak: float, minimum: float = 0.0
) -> float:
    """The learning rate of a step: linear warm-up, then a cosine down to the minimum."""
    if step < warmup:
        return peak * (step + 1) / warmup
    progress = min(1.0, (step - warmup) / max(1, total - 1 - warmup))
    return minimum + (peak - minimum) * 0.5 * (1.0 + math.cos(math.pi * progress))


def trained_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    """The parameters to train, by name."""
    return {name: p for name, p in model.named_parameters() if p.requires_grad}


def build_optimizers(
    model: nn.Module,
    name: OptimizerName,
    *,
    rate: float,
    weight_decay: float,
    betas: tuple[float, float],
) -> list[Optimizer]:
    """AdamW of all parameters, or Muon of matrices and kernels and AdamW of the rest.

    Biases, gains and other vectors do not decay.
    """
    named = trained_parameters(model)
    if not named:
        raise ValueError("expected a model with parameters to train, found none")
    matrices, spectral = matrices_of(model) if name == "muon" else ([], [])
    taken = {id(p) for p in (*matrices, *spectral)}
    others = [p for p in named.values() if id(p) not in taken]
    groups = [
        {"params": [p for p in others if p.ndim >= 2], "weight_decay": weight_decay},
        {"params": [p for p in others if p.ndim < 2], "weight_decay": 0.0},
    ]
    first = next(iter(named.values()))
    optimizers: list[Optimizer] = []
    if others:
        fused = first.device.type == "cuda" and not any(p.is_complex() for p in others)
        # Fused: one kernel over all tensors instead of a dozen. None leaves the choice to torch.
        optimizers.append(
            torch.optim.AdamW(
                [group for group in groups if group["params"]],
                lr=rate,
                betas=betas,
                fused=fused or None,
            )
        )
    if taken:
        optimizers.append(Muon(matrices, spectral, lr=rate, weight_decay=weight_decay))
    return optimizers


def set_rate(optimizers: Sequence[Optimizer], rate: float) -> None:
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            group["lr"] = rate


def moments(optimizers: Sequence[Optimizer], model: nn.Module) -> dict[str, Tensor]:
    """What the optimisers remember, as ``<parameter>/<moment>``."""
    names = {id(p): name for name, p in model.named_parameters()}
    return {
        f"{names[id(parameter)]}/{key}": value
        for optimizer in optimizers
        for parameter, entries in optimizer.state.items()
        for key, value in entries.items()
    }


def set_moments(
    optimizers: Sequence[Optimizer], model: nn.Module, stored: Mapping[str, Tensor]
) -> None:
    """Give the optimisers back what ``moments`` found; each value goes where torch wants it."""
    names = {id(p): name for name, p in model.named_parameters()}
    entries: dict[str, dict[str, Tensor]] = {}
    for place, value in stored.items():
        name, _, key = place.rpartition("/")
        entries.setdefault(name, {})[key] = value
    unknown = sorted(set(entries) - set(names.values()))
    if unknown:
        raise ValueError(f"the stored optimiser knows {unknown[0]!r}, which this model has not")
    for optimizer in optimizers:
        members = [p for group in optimizer.param_groups for p in group["params"]]
        known = {
            number: entries[names[id(p)]]
            for number, p in enumerate(members)
            if names[id(p)] in entries
        }
        # load_state_dict puts step counts and moments on the devices that the optimiser needs.
        groups = optimizer.state_dict()["param_groups"]
        optimizer.load_state_dict({"state": known, "param_groups": groups})


class RunningMean:
    """An exponential mean of the trained parameters."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self._weights: list[Tensor] = list(trained_parameters(model).values())
        self._names = list(trained_parameters(model))
        self._means = [weight.detach().clone() for weight in self._weights]

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Take the weights in after step 1, 2, ..."""
        decay = min(self.decay, step / (step + 9))
        torch._foreach_lerp_(self._means, self._weights, 1.0 - decay)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """The model has the mean weights meanwhile, and its own again afterwards, to the bit."""
        with torch.no_grad():
            own = [weight.detach().clone() for weight in self._weights]
            torch._foreach_copy_(self._weights, self._means)
        try:
            yield
        finally:
            with torch.no_grad():
                torch._foreach_copy_(self._weights, own)

    def named(self) -> dict[str, Tensor]:
        return dict(zip(self._names, self._means, strict=True))

    @torch.no_grad()
    def load(self, stored: Mapping[str, Tensor]) -> None:
        if sorted(stored) != sorted(self._names):
            raise ValueError("the stored mean weights are those of another model")
        for name, mean in self.named().items():
            mean.copy_(stored[name])
