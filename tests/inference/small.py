"""A small predictor with random weights, and fields for it."""

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from pibert.fields import FieldSpec, Normalizer
from pibert.inference import Predictor
from tests.helpers import randomise, tiny_model, tiny_spec

SHAPE = (12, 20)
NORMALIZER = Normalizer((1.5, -0.25), (0.5, 2.0))


def predictor(
    *,
    body: Tensor | None = None,
    chunk: int = 128,
    spec: FieldSpec | None = None,
    **overrides: Any,
) -> Predictor:
    """Of a model with random weights that stays bounded when it is called on its own answers."""
    spec = spec or tiny_spec(SHAPE)
    spec = replace(spec, grid=replace(spec.grid, body=body))
    model = randomise(tiny_model(spec=spec, **overrides))
    model.calibrate(torch.zeros(1, model.in_channels, *SHAPE), NORMALIZER)
    with torch.no_grad():
        model.get_parameter("skip_scale").mul_(0.2)
        model.get_parameter("refinement.4.weight").mul_(0.1)
    return Predictor(model, NORMALIZER, chunk=chunk)


def frames(batch: int = 3, history: int = 1, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return NORMALIZER.invert(torch.randn(batch, history, 2, *SHAPE, generator=generator))


def make_runaway(model: nn.Module, factor: float = 1.5) -> None:
    """Have a small PIBERT multiply its newest frame by ``factor`` in every step."""
    with torch.no_grad():
        for parameter in model.get_submodule("refinement").parameters():
            parameter.zero_()
        model.get_parameter("skip_scale").fill_(factor)
