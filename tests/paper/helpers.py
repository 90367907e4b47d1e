"""What the tests of the paper's statements share."""

from collections.abc import Callable

import torch
from torch import Tensor, nn


def noise(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, dtype=torch.float64, generator=generator).to(dtype)


def randomise(module: nn.Module, seed: int = 0, std: float = 1.0) -> None:
    """Give every parameter, biases and gates included, a random value."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(std * torch.randn(parameter.shape, generator=generator))


def train_a_little(module: nn.Module, x: Tensor, seed: int = 0) -> None:
    """A few optimiser steps toward a random target, large enough to move every weight."""
    optimiser = torch.optim.Adam(module.parameters(), lr=0.05)
    target = noise(*module(x).shape, seed=seed, dtype=x.dtype)
    for _ in range(3):
        optimiser.zero_grad()
        (module(x) - target).square().mean().backward()
        optimiser.step()


def linear_part(function: Callable[[Tensor], Tensor], shape: tuple[int, int, int]) -> Tensor:
    """The matrix of an affine map of fields (c, y, x), columns by input value."""
    size = shape[0] * shape[1] * shape[2]
    units = torch.eye(size, dtype=torch.float64).view(size, *shape)
    with torch.no_grad():
        zero = function(torch.zeros(1, *shape, dtype=torch.float64))
        return (function(units) - zero).flatten(1).mT


def relative_error(found: Tensor, expected: Tensor) -> float:
    """Largest difference in units of the largest expected value."""
    return ((found - expected).abs().max() / expected.abs().max()).item()
