"""Muon: momentum whose matrices are orthogonalised before they become a step.

For a weight seen as a matrix with momentum M = U S V^T the step is U V^T, up to a few per cent:
five Newton-Schulz steps replace the decomposition. Every direction of the matrix then moves at the
same speed. The step is scaled by 0.2 sqrt(max(rows, columns)), which gives its entries the size of
those of AdamW, so that one learning rate serves both (Liu et al., arXiv 2502.16982).

Unlike ``torch.optim.Muon`` this takes the kernels of convolutions, as matrices (out, rest), and the
complex weights of Fourier layers, one matrix per mode. Matrices of one shape are orthogonalised
together.

Reference: K. Jordan et al., Muon: an optimizer for hidden layers in neural networks, 2024.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from pibert.models.fourier import as_real

_COEFFICIENTS = (3.4445, -4.7750, 2.0315)
_STEPS = 5
LEAST_SIDE = 8
"""Matrices with a shorter side are left to another optimiser."""


def orthogonalised(matrices: Tensor) -> Tensor:
    """Matrices (..., rows, columns) with their singular values moved close to 1."""
    a, b, c = _COEFFICIENTS
    # Half precision is enough, and fast where there are units for it.
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
        if isinstance(module, nn.Linear | nn.Conv2d):
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
        matrices: Weights (out, ...).
        spectral: Weights (..., in, out, 2).
        lr: The learning rate.
        weight_decay: Decoupled, as in AdamW.
        momentum: Share of the old momentum.
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
    def step(self, closure: Callable[[], float] | None = None) -> float | None:  # type: ignore[override]
        """Take one step; weights without a gradient stay."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            weights = [weight for weight in group["params"] if weight.grad is not None]
            if weights:
                self._move(weights, self._directions(weights, group["momentum"]), group)
        return loss

    def _directions(self, weights: list[Tensor], momentum: float) -> Sequence[Tensor]:
        """Nesterov momentum. All weights at once: on a GPU, launches take longer than the work."""
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
        alike: dict[torch.Size, list[int]] = {}
        for place, weight in enumerate(weights):
            alike.setdefault(weight.shape, []).append(place)
        changes: dict[int, Tensor] = {}
        for places in alike.values():
            stacked = torch.stack([directions[place] for place in places])
            matrices = as_real(stacked) if group["spectral"] else stacked.flatten(2)
            steps = orthogonalised(matrices) * (0.2 * max(matrices.shape[-2:]) ** 0.5)
            steps = _from_real(steps) if group["spectral"] else steps
            changes |= zip(places, steps.view(stacked.shape).unbind(), strict=True)
        torch._foreach_mul_(weights, 1 - group["lr"] * group["weight_decay"])
        own = [changes[place] for place in range(len(weights))]
        torch._foreach_add_(weights, own, alpha=-group["lr"])
