"""Small models with random weights or fitted ones, saved as trained to step."""

from pathlib import Path
from typing import Any

import torch

from pibert.fields import FieldSpec, Normalizer
from pibert.inference import SavedModel, read_model, save_model
from pibert.models.references.simple import Reference
from tests.helpers import randomise, tiny_model
from tests.models.recordings import batches_of

NORMALIZER = Normalizer((0.3, -0.1), (0.8, 0.5))


def save_tiny(folder: Path, name: str, spec: FieldSpec, **overrides: Any) -> SavedModel:
    model = tiny_model(name, spec, **overrides)
    if isinstance(model, Reference):
        states = torch.randn(30, 2, *spec.grid.shape, generator=torch.Generator().manual_seed(1))
        frames = {"history": model.config.history, "horizon": model.config.horizon}
        model.fit(batches_of(states, spec, NORMALIZER, **frames), NORMALIZER)
    save_model(folder, randomise(model), NORMALIZER, trained={"forward": True})
    return read_model(folder)
