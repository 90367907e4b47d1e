"""Recorded frames as the training batches that a reference predictor is fitted on."""

import torch
from torch import Tensor

from pibert.data.dataset import Samples, Window
from pibert.fields import Batch, FieldSpec, Normalizer, Trajectory


def batches_of(
    states: Tensor,
    spec: FieldSpec,
    normalizer: Normalizer,
    *,
    history: int = 1,
    horizon: int = 1,
    valid: Tensor | None = None,
    size: int = 5,
) -> list[Batch]:
    """All windows of one recording (t, c, y, x) in physical units, in batches of unequal length."""
    trajectory = Trajectory(
        name="recording",
        states=states,
        time=torch.arange(len(states), dtype=torch.float64) * (spec.dt or 1.0),
        spec=spec,
        valid=valid,
    )
    samples = Samples(
        [trajectory], window=Window(history=history, horizon=horizon), normalizer=normalizer
    )
    numbers = list(range(len(samples)))
    return [samples.batch(numbers[i : i + size]) for i in range(0, len(numbers), size)]
