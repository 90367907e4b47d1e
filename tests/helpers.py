"""Small specs and models that tests share, and how they compare and wait."""

import resource
import signal
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeVar

import pytest
import torch
from torch import nn

from pibert import FieldSpec, Grid, Parameter, build_model

Model = TypeVar("Model", bound=nn.Module)

PATIENCE = 120.0
"""Seconds after which a test gives up: many times what a loaded machine needs."""

TINY: dict[str, Any] = {
    "width": 32,
    "heads": 2,
    "depth": 2,
    "patch": 4,
    "fourier_modes": 4,
    "refine_width": 8,
    "dropout": 0.0,
}
"""Options of a small PIBERT."""
_PITT: dict[str, Any] = {
    "width": 16,
    "slot_width": 16,
    "updates": 2,
    "patch": 4,
    "base_width": 16,
    "base_modes": 4,
    "base_depth": 2,
}
_BRANCHES: dict[str, Any] = {"width": 32, "heads": 2, "depth": 2, "mixers": 1, "blocks": 2}

TINY_OPTIONS: Mapping[str, Mapping[str, Any]] = {
    "pibert": TINY,
    "pibert-mr": {
        "width": 16,
        "local_width": 24,
        "token_width": 32,
        "heads": 2,
        "cycles": 2,
        "levels": 1,
        "fourier_modes": 2,
    },
    "fno2d": {"width": 24, "modes": 6, "depth": 3, "head_width": 32},
    "deeponet2d": {"channels": (8, 16), "branch_width": 32},
    "pitt": _PITT,
    "pitt-constant": _PITT,
    "fourierflow": {
        **_BRANCHES,
        "align_at": 2,
        "sampler_steps": 2,
        "draws": 2,
        "encoder_depth": 1,
        "decoder_depth": 1,
    },
    "fourierflow-det": _BRANCHES,
    "pinn": {"width": 32, "depth": 3},
    "unet": {"width": 16, "stages": 2, "blocks": 1},
    "transolver": {"width": 64, "heads": 4, "depth": 2, "slices": 8},
    "mwt": {"width": 2, "blocks": 2, "kernel_width": 32, "head_width": 32},
    "mwt-published": {"width": 2, "blocks": 2, "modes": 3, "head_width": 32},
    "pde-transformer": {"patch": 4, "width": 32, "depths": (1, 1, 1), "window": 2},
    "flowers": {"width": 32, "heads": 4, "levels": 3},
    "neuraloperator": {"options": {"n_modes": [8, 8], "hidden_channels": 24, "n_layers": 3}},
    "persistence": {},
    "training-mean": {},
    "linear-extrapolation": {},
    "mean-advection": {},
    "dmd": {"rank": 8},
}
"""Options of a small model of every kind."""


def tiny_spec(shape: tuple[int, int] = (16, 16), **changes: Any) -> FieldSpec:
    """A velocity field with a Reynolds number, on non-square cells."""
    spec = FieldSpec(
        family="incompressible",
        grid=Grid(shape, dx=0.3, dy=0.2),  # not exact in binary
        parameters=(Parameter(name="Re", scaling="log", mean=3.0, std=0.5),),
        reference_velocity=1.0,
        reference_length=1.0,
        dt=0.1,
    )
    return replace(spec, **changes)


def tiny_model(name: str = "pibert", spec: FieldSpec | None = None, **overrides: Any) -> Any:
    """A small model of any kind, with fresh weights; a reference predictor is not fitted yet."""
    options = dict(TINY_OPTIONS[name]) | overrides
    return build_model(name, spec=spec or tiny_spec(), **options)


def randomise(model: Model, seed: int = 0) -> Model:
    """Weights drawn anew, none of them zero.

    At initialisation a model is persistence: comparing two of them would compare nothing.
    """
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator).to(parameter)
            if parameter.ndim == 1:
                parameter.copy_(0.5 + 0.3 * noise)
            else:
                parameter.copy_(noise * parameter[0].numel() ** -0.5)
    return model


def assert_close(
    actual: Any, expected: Any, *, rtol: float = 1e-5, equal_nan: bool = False
) -> None:
    """All differences are at most ``rtol`` of the largest value that is expected.

    Sums of large terms leave an error of their size where the result is small: there a tolerance
    relative to each value, or an absolute one, fails by chance.
    """
    actual, expected = torch.as_tensor(actual).detach(), torch.as_tensor(expected).detach()
    finite = expected[torch.isfinite(expected)]
    scale = float(finite.abs().max()) if finite.numel() else 0.0
    torch.testing.assert_close(actual, expected, rtol=0, atol=rtol * scale, equal_nan=equal_nan)


def wait_until(is_so: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE
    while not is_so():
        assert time.monotonic() < end, f"still not so after {PATIENCE:g} s"
        time.sleep(0.02)


@contextmanager
def refused(
    *named: object, error: type[Exception] | tuple[type[Exception], ...] = ValueError
) -> Iterator[None]:
    """What follows is refused, with a message that names all of this: what was found, a remedy."""
    with pytest.raises(error) as raised:
        yield
    missing = [str(own) for own in named if str(own) not in str(raised.value)]
    assert not missing, f"expected {missing} in: {raised.value}"


@contextmanager
def small_disk(size: int) -> Iterator[None]:
    """Files larger than this cannot be written, as on a full disk; the process survives it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    writes_bytecode = not sys.dont_write_bytecode
    sys.dont_write_bytecode = True  # a module that is imported now would be cached half
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        sys.dont_write_bytecode = not writes_bytecode
        signal.signal(signal.SIGXFSZ, handler)
