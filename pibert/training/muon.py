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

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

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
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(_STEPS):
        gram = x @ x.mT
        x = a * x + (b * gram + c * gram @ gram) @ x
    return (x.mT if tall else x).to(matrices.dtype)


def as_matrix(weight: Tensor) -> Tensor:
    """A weight (out, ...) as (out, rest)."""
    return weight.flatten(1)


def as_modes(weight: Tensor) -> Tensor:
    """Complex matrices, stored (..., in, out, 2), as real ones: [[Re, -Im], [Im, Re]]."""
    re, im = weight.unbind(-1)
    return torch.cat((torch.cat((re, -im), -1), torch.cat((im, re), -1)), -2).flatten(0, -3)


def _from_modes(matrices: Tensor, shape: torch.Size) -> Tensor:
    rows, columns = shape[-3], shape[-2]
    pairs = torch.stack((matrices[:, :rows, :columns], matrices[:, rows:, :columns]), dim=-1)
    return pairs.view(shape)


def matrices_of(model: nn.Module) -> tuple[list[Tensor], list[Tensor]]:
    """The weights that Muon takes: matrices and kernels, and weights of Fourier layers.

    A module names its complex weights, stored (..., in, out, 2), in ``spectral_weights``.
    """
    plain: dict[int, Tensor] = {}
    spectral: dict[int, Tensor] = {}
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Conv2d):
            weight = module.weight
            if weight.requires_grad and min(as_matrix(weight).shape) >= LEAST_SIDE:
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
            alike: dict[torch.Size, list[tuple[Tensor, Tensor]]] = {}
            for weight in group["params"]:
                if weight.grad is not None:
                    direction = self._direction(weight, group)
                    matrix = (as_modes if group["spectral"] else as_matrix)(direction)
                    alike.setdefault(matrix.shape[-2:], []).append((weight, matrix))
            for shape, members in alike.items():
                self._move(shape, members, group)
        return loss

    def _direction(self, weight: Tensor, group: dict[str, Any]) -> Tensor:
        """Nesterov momentum."""
        state = self.state[weight]
        if not state:
            state["momentum_buffer"] = torch.zeros_like(weight)
        momentum, buffer = group["momentum"], state["momentum_buffer"]
        buffer.lerp_(weight.grad, 1 - momentum)
        return weight.grad.lerp(buffer, momentum)  # type: ignore[union-attr]

    def _move(
        self, shape: torch.Size, members: list[tuple[Tensor, Tensor]], group: dict[str, Any]
    ) -> None:
        """Steps of all weights whose matrices have one shape."""
        rate, decay = group["lr"], group["weight_decay"]
        sizes = [matrix.numel() // shape.numel() for _, matrix in members]
        stacked = torch.cat([matrix.reshape(-1, *shape) for _, matrix in members])
        steps = orthogonalised(stacked) * (0.2 * max(shape) ** 0.5)
        for (weight, _), own in zip(members, steps.split(sizes), strict=True):
            change = _from_modes(own, weight.shape) if group["spectral"] else own.view_as(weight)
            weight.mul_(1 - rate * decay).add_(change, alpha=-rate)
