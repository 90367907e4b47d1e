"""Samples to check an exported model on: windows of a file, or smooth fields drawn for it."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from pibert.data.format import Reader
from pibert.fields import FieldSpec, Trajectory
from pibert.predictor import Predictor

COUNT = 4
"""How many: one alone and a batch of three."""
_WAVES = 4
"""Most waves along a side of a drawn field."""


@dataclass(frozen=True, kw_only=True)
class Samples:
    """Inputs of an exported model, in physical units."""

    fields: Tensor
    """(n, history, channel, y, x)"""
    mask: Tensor
    """(n, y, x), True where known."""
    parameters: Tensor
    """(n, parameter) in the order of the spec, NaN where unknown."""
    origin: str
    """Where they come from, in words."""


def draw_samples(predictor: Predictor, seed: int = 0) -> Samples:
    """Drifting waves with the mean and deviation of every channel, some of them with a gap."""
    spec, normalizer = predictor.spec, predictor.normalizer
    chance = torch.Generator().manual_seed(seed)
    (rows, columns), channels = spec.grid.shape, len(spec.channels)
    y = torch.arange(rows)[:, None] / rows
    x = torch.arange(columns) / columns
    fields = torch.zeros(COUNT, predictor.history, channels, rows, columns)
    shape = (COUNT, 1, channels, 1, 1)
    age = torch.arange(predictor.history)[:, None, None, None]
    for ky in range(-_WAVES, _WAVES + 1):
        for kx in range(1, _WAVES + 1):
            size = torch.randn(shape, generator=chance) / (1 + ky**2 + kx**2)
            phase = 2 * math.pi * torch.rand(shape, generator=chance)
            fields += size * torch.sin(2 * math.pi * (kx * x + ky * y) + phase - 0.2 * kx * age)
    fields = normalizer.invert(fields / fields.std((-2, -1), keepdim=True))
    mask = torch.ones(COUNT, rows, columns, dtype=torch.bool)
    mask[1::2, rows // 3 : rows // 2, columns // 4 : columns // 2] = False
    parameters = torch.full((COUNT, len(spec.parameters)), math.nan)
    for index, parameter in enumerate(spec.parameters):
        value = parameter.restore(torch.linspace(-1, 1, COUNT))
        parameters[: COUNT - 1, index] = value[: COUNT - 1]  # unknown in the last
    return Samples(fields=fields, mask=mask, parameters=parameters, origin="drawn fields")


def read_samples(path: Path, predictor: Predictor) -> Samples:
    """Windows from a file of flows (``pibert generate`` or ``pibert convert``), spread over it."""
    if not path.exists():
        raise FileNotFoundError(f"{path}: expected a file of flows (.h5), found nothing")
    with Reader(path) as reader:
        flows = [_fitted(flow, predictor, path) for flow in reader]
        windows = list(_windows(flows, predictor.history))
    if not windows:
        raise ValueError(
            f"{path}: expected a flow of at least {predictor.history} frames, found none; take "
            "another file"
        )
    fields, mask, parameters = zip(*windows, strict=True)
    return Samples(
        fields=torch.stack(fields),
        mask=torch.stack(mask),
        parameters=torch.stack(parameters),
        origin=str(path),
    )


def _fitted(flow: Trajectory, predictor: Predictor, path: Path) -> "_Flow":
    spec, own = predictor.spec, flow.spec
    if own.grid.shape != spec.grid.shape or not set(spec.channels) <= set(own.channels):
        raise ValueError(
            f"{path}: expected channels {list(spec.channels)} on a grid of {spec.grid.shape} as "
            f"the model has, found {list(own.channels)} on {own.grid.shape} in {flow.name!r}"
        )
    return _Flow(flow, [own.channels.index(name) for name in spec.channels], spec)


@dataclass(frozen=True)
class _Flow:
    trajectory: Trajectory
    channels: list[int]
    spec: FieldSpec

    def window(self, start: int, history: int) -> tuple[Tensor, Tensor, Tensor]:
        frames = slice(start, start + history)
        known = self.trajectory.known(frames).all(0)
        values = self.trajectory.parameters
        row = torch.tensor([values.get(name, math.nan) for name in self.spec.parameter_names])
        return self.trajectory.read(frames, self.channels).float(), known, row


def _windows(flows: list[_Flow], history: int) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """As many as are wanted, at even distances in the row of all that there are."""
    places = [
        (flow, start) for flow in flows for start in range(flow.trajectory.num_frames - history + 1)
    ]
    for number in range(COUNT if places else 0):
        flow, start = places[number * (len(places) - 1) // (COUNT - 1)]
        yield flow.window(start, history)
