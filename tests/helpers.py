"""Small specs and models that tests share."""

from dataclasses import replace
from typing import Any

import torch

from pibert import FieldSpec, Grid, Parameter, build_model
from pibert.models.pibert import PIBERT

TINY: dict[str, Any] = {
    "width": 32,
    "heads": 2,
    "depth": 2,
    "patch": 4,
    "modes": 4,
    "refine_width": 8,
    "dropout": 0.0,
}


def tiny_spec(shape: tuple[int, int] = (16, 16), **changes: Any) -> FieldSpec:
    """A velocity field with a Reynolds number, on non-square cells."""
    spec = FieldSpec(
        grid=Grid(shape, dx=0.3, dy=0.2),  # not exact in binary
        parameters=(Parameter(name="Re", scaling="log", mean=3.0, std=0.5),),
        reference_velocity=1.0,
        reference_length=1.0,
        dt=0.1,
    )
    return replace(spec, **changes)


def tiny_model(name: str = "pibert", spec: FieldSpec | None = None, **overrides: Any) -> PIBERT:
    return build_model(name, spec=spec or tiny_spec(), **(TINY | overrides))


def randomise(model: PIBERT, seed: int = 0) -> PIBERT:
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
