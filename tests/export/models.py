"""Small models with random weights or fitted ones, saved as trained to step."""

from pathlib import Path
from typing import Any

import torch

from pibert.fields import Batch, FieldSpec, Normalizer
from pibert.inference import SavedModel, read_model, save_model
from pibert.models.references.simple import Reference
from tests.helpers import randomise, tiny_model

NORMALIZER = Normalizer((0.3, -0.1), (0.8, 0.5))


def save_tiny(folder: Path, name: str, spec: FieldSpec, **overrides: Any) -> SavedModel:
    model = tiny_model(name, spec, **overrides)
    if isinstance(model, Reference):
        model.fit([_batch(spec, model.config.history, model.config.horizon)], NORMALIZER)
    save_model(folder, randomise(model), NORMALIZER, trained={"forward": True})
    return read_model(folder)


def _batch(spec: FieldSpec, history: int, horizon: int, samples: int = 12) -> Batch:
    generator = torch.Generator().manual_seed(1)
    size = (samples, history + horizon, len(spec.channels), *spec.grid.shape)
    frames = torch.randn(size, generator=generator)
    known = torch.ones(samples, *spec.grid.shape, dtype=torch.bool)
    return Batch(
        x=frames[:, :history].flatten(1, 2),
        y=frames[:, history:],
        parameters=torch.zeros(samples, 16),
        mask=known,
        target_mask=known[:, None].expand(-1, horizon, -1, -1),
        sample=torch.arange(samples),
        seeds=torch.arange(samples),
    )
