"""Checks an exported file against its model on the same samples, alone and in a batch.

Samples are windows of a file, or random smooth fields. The difference counts against the size of
the fluctuations, channel by channel: a large mean would hide it. Rounding errors of single
precision at that mean do not count.
"""

import io
import math
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from pibert.data.format import Reader
from pibert.fields import FieldSpec, Trajectory
from pibert.inference import Predictor

COUNT = 4
"""How many: one alone and a batch of three."""
_WAVES = 4
"""Most waves along a side of a drawn field."""
Batch = dict[str, Tensor]
"""The inputs of a graph by name."""
BATCHES = (slice(0, 1), slice(1, COUNT))
_RUNNER = Path(__file__).with_name("run_onnx.py")
_ROUNDING = 4 * torch.finfo(torch.float32).eps


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


@dataclass(frozen=True, kw_only=True)
class Difference:
    """How far two answers are apart."""

    absolute: dict[str, float]
    """Largest difference of every channel, in its unit."""
    relative: float
    """Largest of all against the fluctuations of its channel."""
    excess: float
    """As ``relative``, less what is rounding at the size of the values themselves."""


def expect(predictor: Predictor, samples: Samples) -> tuple[list[Batch], Tensor]:
    """The samples as inputs of a graph, and the frames that ``Predictor.step`` makes of them."""
    names, expected, batches = predictor.spec.parameter_names, [], []
    for part in BATCHES:
        fields, mask, values = samples.fields[part], samples.mask[part], samples.parameters[part]
        known = {name: values[:, index] for index, name in enumerate(names)}
        expected.append(predictor.step(fields, known, mask))
        batches.append({"fields": fields, "mask": mask} | ({"parameters": values} if names else {}))
    return batches, torch.cat(expected)


def measure(found: Tensor, expected: Tensor, predictor: Predictor) -> Difference:
    """The difference of frames (n, horizon, channel, y, x); infinite where one is not finite."""
    normalizer = predictor.normalizer
    # nan_to_num: a NaN would compare as no difference.
    gap = (found.double() - expected.double()).abs().nan_to_num(nan=torch.inf)
    most = gap.amax((0, 1, 3, 4))
    mean, std = torch.tensor((normalizer.mean, normalizer.std), dtype=torch.float64)
    away = expected.double() - mean[:, None, None]
    size = torch.maximum(away.abs().amax((0, 1, 3, 4)), std)
    rounding = _ROUNDING * expected.double().abs().amax((0, 1, 3, 4))
    return Difference(
        absolute=dict(zip(predictor.spec.channels, most.tolist(), strict=True)),
        relative=float((most / size).max()),
        excess=float(((most - rounding).clamp(min=0) / size).max()),
    )


def run_onnx(content: bytes, batches: list[Batch]) -> list[Tensor]:
    """Frames of every batch, by onnxruntime in a process without torch."""
    arrays = {f"{n}/{k}": v.numpy() for n, batch in enumerate(batches) for k, v in batch.items()}
    with tempfile.TemporaryDirectory() as folder:
        model, given, made = (Path(folder, name) for name in ("model.onnx", "in.npz", "out.npz"))
        model.write_bytes(content)
        np.savez(given, **arrays)  # type: ignore[arg-type]
        # -P: the folder of the program is not searched for modules.
        command = [sys.executable, "-P", str(_RUNNER), str(model), str(given), str(made)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            said = (done.stderr.strip() or f"exit code {done.returncode}").splitlines()[-1]
            raise ValueError(
                f"onnxruntime does not run this model ({said}); take --to torch-export"
            )
        with np.load(made, allow_pickle=False) as frames:
            return [torch.from_numpy(frames[f"{n}/frames"]) for n in range(len(batches))]


def run_archive(content: bytes, batches: list[Batch]) -> list[Tensor]:
    """Frames of every batch, by the program that ``torch.export.load`` gives."""
    step = torch.export.load(io.BytesIO(content)).module()
    with torch.no_grad():
        return [step(**batch) for batch in batches]


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
    return Samples(fields=fields, mask=mask, parameters=parameters, origin="random fields")


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
