"""Optimisers: AdamW and Muon, the learning rate of a step, the running mean of the weights.

Learning rate of step n of N (n = 0 ... N - 1) with W steps of warm-up:

    n < W:   peak (n + 1) / W
    n >= W:  minimum + (peak - minimum) (1 + cos(pi (n - W) / (N - 1 - W))) / 2

Running mean (EMA) after step n = 1, 2 ...: m <- d m + (1 - d) w with d = min(decay, n / (n + 9)),
so that a short run is not a mean of its beginning.

Muon: for a weight seen as a matrix with momentum M = U S V^T the step is U V^T, up to a few per
cent: five Newton-Schulz steps replace the decomposition. Every direction of the matrix then moves
at the same speed. The step is scaled by 0.2 sqrt(max(rows, columns)), which gives its entries the
size of those of AdamW, so that one learning rate serves both (Liu et al., arXiv 2502.16982). Unlike
``torch.optim.Muon`` this takes the kernels of convolutions, as matrices (out, rest), those of
transposed convolutions, as matrices (in, rest), and the complex weights of Fourier layers, one
matrix per mode. A transposed convolution spreads each input point over a patch of the output by its
matrix. Step and scale are the same for a matrix and its transpose.

AdamW trains the rest: vectors, matrices with a side shorter than 8, embeddings of words and
positions, and weights that belong to no linear layer or convolution and are not declared as those
of a Fourier layer, such as the Fourier layers of neuraloperator.

Reference: K. Jordan et al., Muon: an optimizer for hidden layers in neural networks, 2024.
"""

import math
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from pibert.models.fourier import as_real

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
    """The state of the optimisers, as ``<parameter>/<moment>``."""
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
    """Restore the result of ``moments``.

    Raises:
        ValueError: Another optimiser than now has trained a parameter.
    """
    names = {id(p): name for name, p in model.named_parameters()}
    entries: dict[str, dict[str, Tensor]] = {}
    for path, value in stored.items():
        name, _, key = path.rpartition("/")
        entries.setdefault(name, {})[key] = value
    for optimizer in optimizers:
        members = [p for group in optimizer.param_groups for p in group["params"]]
        expected = _MUON_MOMENTS if isinstance(optimizer, Muon) else _ADAMW_MOMENTS
        for name in (names[id(p)] for p in members):
            if set(entries.get(name, expected)) != expected:
                raise ValueError(
                    f"expected the moments {', '.join(sorted(expected))} of {name}, found "
                    f"{', '.join(sorted(entries[name]))}: another version of pibert trained it "
                    "with another optimiser"
                )
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
        """Add the weights after step 1, 2 ..."""
        decay = min(self.decay, step / (step + 9))
        torch._foreach_lerp_(self._means, self._weights, 1.0 - decay)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Give the model the mean weights in this context, then restore its weights exactly."""
        with torch.no_grad():
            former = [weight.detach().clone() for weight in self._weights]
            torch._foreach_copy_(self._weights, self._means)
        try:
            yield
        finally:
            with torch.no_grad():
                torch._foreach_copy_(self._weights, former)

    def named(self) -> dict[str, Tensor]:
        return dict(zip(self._names, self._means, strict=True))

    @torch.no_grad()
    def load(self, stored: Mapping[str, Tensor]) -> None:
        for name, mean in self.named().items():
            mean.copy_(stored[name])


_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
_STEPS = 5
LEAST_SIDE = 8
"""AdamW trains matrices with a shorter side."""
MATRIX_LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.ConvTranspose2d)
"""Layers whose weights, flattened from the second axis on, are the matrices of Muon."""
_MUON_MOMENTS = frozenset(("momentum_buffer",))
_ADAMW_MOMENTS = frozenset(("step", "exp_avg", "exp_avg_sq"))


def orthogonalised(matrices: Tensor) -> Tensor:
    """Matrices (..., rows, columns) with their singular values moved close to 1."""
    a, b, c = _COEFFICIENTS
    # Half precision is accurate enough, and fast on a GPU.
    x = matrices.to(torch.bfloat16 if matrices.is_cuda else torch.float32)
    tall = x.shape[-2] > x.shape[-1]
    x = x.mT if tall else x
    x = (x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)).reshape(-1, *x.shape[-2:])
    for _ in range(_STEPS):  # x <- a x + (b G + c G G) x with G = x x^T
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return (x.mT if tall else x).to(matrices.dtype).reshape(matrices.shape)


def _from_real(matrices: Tensor) -> Tensor:
    """The inverse of ``as_real``."""
    rows, columns = matrices.shape[-2] // 2, matrices.shape[-1] // 2
    re, im = matrices[..., :columns].split(rows, dim=-2)
    return torch.stack((re, im), dim=-1)


def matrices_of(model: nn.Module) -> tuple[list[Tensor], list[Tensor]]:
    """The weights that Muon takes: matrices and kernels, and weights of Fourier layers.

    A module names its complex weights, stored (..., in, out, 2), in ``spectral_weights``.
    """
    plain: dict[int, Tensor] = {}
    spectral: dict[int, Tensor] = {}
    for module in model.modules():
        if isinstance(module, MATRIX_LAYERS):
            weight = module.weight
            if weight.requires_grad and min(weight.flatten(1).shape) >= LEAST_SIDE:
                plain[id(weight)] = weight
        for name in getattr(module, "spectral_weights", ()):
            weight = getattr(module, name)
            if weight.requires_grad and 2 * min(weight.shape[-3:-1]) >= LEAST_SIDE:
                spectral[id(weight)] = weight
    return list(plain.values()), list(spectral.values())


class Muon(Optimizer):
    """Muon of matrices and of the complex weights of Fourier layers.

    Args:
        matrices: Weights (out, ...), or (in, ...) of transposed convolutions.
        spectral: Complex weights (..., in, out, 2).
        lr: The learning rate.
        weight_decay: Decoupled, as in AdamW.
        momentum: Decay of the momentum.
    """

    def __init__(
        self,
        matrices: Iterable[Tensor],
        spectral: Iterable[Tensor] = (),
        *,
        lr: float,
        weight_decay: float = 0.0,
        momentum: float = 0.95,
    ) -> None:
        groups = [
            {"params": list(weights), "spectral": kind}
            for kind, weights in ((False, matrices), (True, spectral))
        ]
        groups = [group for group in groups if group["params"]]
        super().__init__(groups, {"lr": lr, "weight_decay": weight_decay, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure: None = None) -> None:  # type: ignore[override]
        """Take one step; weights without a gradient stay."""
        for group in self.param_groups:
            weights = [weight for weight in group["params"] if weight.grad is not None]
            if weights:
                self._move(weights, self._directions(weights, group["momentum"]), group)

    def _directions(self, weights: list[Tensor], momentum: float) -> Sequence[Tensor]:
        """Nesterov momentum, for all weights at once: on a GPU, launches dominate the time."""
        for weight in weights:
            if not self.state[weight]:
                self.state[weight]["momentum_buffer"] = torch.zeros_like(weight)
        buffers = [self.state[weight]["momentum_buffer"] for weight in weights]
        gradients = [weight.grad for weight in weights if weight.grad is not None]
        torch._foreach_lerp_(buffers, gradients, 1 - momentum)
        return torch._foreach_lerp(gradients, buffers, momentum)

    def _move(
        self, weights: list[Tensor], directions: Sequence[Tensor], group: dict[str, Any]
    ) -> None:
        """Step; matrices of one shape are orthogonalised together."""
        of_shape: dict[torch.Size, list[int]] = defaultdict(list)
        for index, weight in enumerate(weights):
            of_shape[weight.shape].append(index)
        changes: dict[int, Tensor] = {}
        for indices in of_shape.values():
            stacked = torch.stack([directions[index] for index in indices])
            matrices = as_real(stacked) if group["spectral"] else stacked.flatten(2)
            steps = orthogonalised(matrices) * (0.2 * max(matrices.shape[-2:]) ** 0.5)
            steps = _from_real(steps) if group["spectral"] else steps
            changes |= zip(indices, steps.view(stacked.shape).unbind(), strict=True)
        torch._foreach_mul_(weights, 1 - group["lr"] * group["weight_decay"])
        ordered = [changes[index] for index in range(len(weights))]
        torch._foreach_add_(weights, ordered, alpha=-group["lr"])
