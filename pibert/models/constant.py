"""Tensors that depend on sizes alone: made once and kept."""

from collections.abc import Callable
from functools import lru_cache, wraps
from typing import ParamSpec

import torch
from torch import Tensor

Arguments = ParamSpec("Arguments")


def constant(function: Callable[Arguments, Tensor]) -> Callable[Arguments, Tensor]:
    """Keep the results of earlier calls; in a captured graph they are computed in place.

    Module buffers would not do: they follow the model's precision, and phases rounded to float32
    or bfloat16 cannot be made exact again.
    """
    cached = lru_cache(maxsize=64)(function)

    @wraps(function)
    def look_up(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Tensor:
        if torch.compiler.is_compiling():
            return function(*args, **kwargs)
        # Made outside any inference mode, so that later calls may differentiate through them.
        with torch.inference_mode(False):
            return cached(*args, **kwargs)  # type: ignore[arg-type]

    return look_up


def count(start: int, stop: int, step: int = 1, *, device: torch.device) -> Tensor:
    """Whole numbers in float64: exact, and no index arithmetic for a compiler to trip over."""
    return torch.arange(start, stop, step, dtype=torch.float64, device=device)
