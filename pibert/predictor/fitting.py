"""A model for weights that are there: built only if its sizes agree with theirs.

A card may ask for a model of any size. So the model is first built on PyTorch's meta device, where
tensors have shapes and no memory, and given up as soon as it has more numbers than the file. What
the shapes of the weights do not limit, the size of a model's input and output, has a limit of its
own.
"""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_parameter_registration_hook

from pibert.config import as_plain
from pibert.fields import FieldSpec

MOST_VALUES = 1 << 25
"""Numbers in one input or output of a model: 4096 x 4096 points with two channels."""
MOST_COUNT = 1 << 16
"""The largest whole number among the options of a model."""


def build_for(
    kind: Callable[[Any, FieldSpec], nn.Module],
    config: Any,
    spec: FieldSpec,
    tensors: Mapping[str, Tensor],
) -> nn.Module:
    """A model with fresh weights whose state has the names, shapes and types of some tensors.

    The random numbers of the process stay as they are.

    Raises:
        ValueError: The model is another one, or works on fields that are too large.
    """
    _check_fields(config, spec)
    try:
        with torch.device("meta"), _no_larger_than(tensors):
            skeleton = kind(config, spec)
    except (NotImplementedError, RuntimeError):
        skeleton = None  # a model of the user that computes while it is built
    if skeleton is not None:
        _check_fit(tensors, skeleton.state_dict())
    with torch.random.fork_rng(devices=[]), _no_larger_than(tensors):
        model = kind(config, spec)
    _check_fit(tensors, model.state_dict())
    return model


def _check_fields(config: Any, spec: FieldSpec) -> None:
    for name, value in as_plain(config).items():
        if isinstance(value, int) and abs(value) > MOST_COUNT:
            raise ValueError(
                f"model.config.{name}: expected at most {MOST_COUNT:,}, found {str(value)[:20]}; "
                "the card is damaged"
            )
    rows, columns = spec.grid.shape
    for what in ("history", "horizon"):
        frames = getattr(config, what)
        if frames * len(spec.channels) * rows * columns > MOST_VALUES:
            raise ValueError(
                f"expected a model of fields with at most {MOST_VALUES:,} values, found {what} "
                f"{frames} of {len(spec.channels)} channels on {rows} x {columns} points; the card "
                "is damaged, or the model is too large for this program"
            )


@contextmanager
def _no_larger_than(tensors: Mapping[str, Tensor]) -> Iterator[None]:
    """Stop building a model that has more numbers than there are weights."""
    most = sum(tensor.numel() for tensor in tensors.values())
    total = 0

    def count(module: nn.Module, name: str, parameter: Tensor | None) -> None:
        nonlocal total
        total += 0 if parameter is None else parameter.numel()
        # A parameter may be shared by two layers, or replaced while they are built.
        if total > 2 * most:
            raise ValueError(
                f"expected a model of {most:,} numbers, as there are weights, found a config that "
                "asks for a larger one; weights and card are not of one model"
            )

    hook = register_module_parameter_registration_hook(count)
    try:
        yield
    finally:
        hook.remove()


def _check_fit(found: Mapping[str, Tensor], expected: Mapping[str, Tensor]) -> None:
    problems = [f"no {name}" for name in expected if name not in found]
    problems += [f"{name}, which the model has not" for name in found if name not in expected]
    for name in sorted(expected.keys() & found.keys()):
        ours, theirs = expected[name], found[name]
        if ours.shape != theirs.shape or ours.dtype != theirs.dtype:
            problems.append(
                f"{name} {theirs.dtype} {list(theirs.shape)} for {ours.dtype} {list(ours.shape)}"
            )
    if problems:
        raise ValueError(
            f"expected the {len(expected)} tensors that the config asks for, found {few(problems)}"
            "; weights and card are not of one model, or this pibert builds it otherwise"
        )


def few(names: list[str], most: int = 3) -> str:
    """The first of some names, and how many there are more."""
    more = f" and {len(names) - most} more" if len(names) > most else ""
    return "; ".join(names[:most]) + more
