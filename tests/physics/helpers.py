"""What the tests of the physics share."""

import math
from collections.abc import Iterator
from contextlib import contextmanager

import jaxtyping
import torch
from torch import Tensor


def measured_order(errors: list[float]) -> float:
    """Slope of the error over grids that each halve the spacing."""
    return math.log2(errors[0] / errors[-1]) / (len(errors) - 1)


def noise(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))


@contextmanager
def unchecked() -> Iterator[None]:
    """Switch the shape checks off, which refuse wrong types first and which do not compile."""
    before = jaxtyping.config.jaxtyping_disable
    jaxtyping.config.update("jaxtyping_disable", True)
    try:
        yield
    finally:
        jaxtyping.config.update("jaxtyping_disable", before)
