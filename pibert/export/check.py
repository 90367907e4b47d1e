"""Checks an exported file against its model on the same samples, single and in a batch.

Samples are windows of a file, or random smooth fields. The difference is relative to the
fluctuations of each channel, as a large mean would hide it. Rounding errors of single precision at
that mean do not count.
"""

import io
import itertools
import math
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from pibert.data.format import Reader
from pibert.export.graph import needed_parameters
from pibert.inference import Predictor
from pibert.inference.recording import fit_recording

COUNT = 4
"""Number of samples: one alone and a batch of three."""
_WAVES = 4
"""Most waves along a side of a random field."""
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
    """Where they come from, as text."""


@dataclass(frozen=True, kw_only=True)
class Difference:
    """How far the output of a file is from that of its model."""

    absolute: dict[str, float]
    """Largest difference of every channel, in its unit."""
    relative: float
    """Largest difference over the fluctuations of its channel."""
    excess: float
    """The same without the rounding error of the values."""


def expect(predictor: Predictor, samples: Samples) -> tuple[list[Batch], Tensor]:
    """The samples as inputs of a graph, and the frames that ``Predictor.step`` predicts."""
    names, expected, batches = predictor.spec.parameter_names, [], []
    for rows in BATCHES:
        fields, mask, values = samples.fields[rows], samples.mask[rows], samples.parameters[rows]
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
    deviation = expected.double() - mean[:, None, None]
    size = torch.maximum(deviation.abs().amax((0, 1, 3, 4)), std)
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
        model, inputs, outputs = (
            Path(folder, name) for name in ("model.onnx", "in.npz", "out.npz")
        )
        model.write_bytes(content)
        np.savez(inputs, **arrays)  # type: ignore[arg-type]
        # -P: the folder of the program is not searched for modules.
        command = [sys.executable, "-P", str(_RUNNER), str(model), str(inputs), str(outputs)]
        done = subprocess.run(command, capture_output=True, text=True)
        if done.returncode:
            reason = (done.stderr.strip() or f"exit code {done.returncode}").splitlines()[-1]
            raise ValueError(
                f"onnxruntime does not run this model ({reason}); use --to torch-export"
            )
        with np.load(outputs, allow_pickle=False) as frames:
            return [torch.from_numpy(frames[f"{n}/frames"]) for n in range(len(batches))]


def run_archive(content: bytes, batches: list[Batch]) -> list[Tensor]:
    """Frames of every batch, by the program that ``torch.export.load`` returns."""
    step = torch.export.load(io.BytesIO(content)).module()
    with torch.no_grad():
        return [step(**batch) for batch in batches]


def draw_samples(predictor: Predictor, seed: int = 0) -> Samples:
    """Moving waves with the mean and deviation of every channel, some of them with a gap."""
    spec, normalizer = predictor.spec, predictor.normalizer
    generator = torch.Generator().manual_seed(seed)
    (rows, columns), channels = spec.grid.shape, len(spec.channels)
    y = torch.arange(rows)[:, None] / rows
    x = torch.arange(columns) / columns
    fields = torch.zeros(COUNT, predictor.history, channels, rows, columns)
    shape = (COUNT, 1, channels, 1, 1)
    age = torch.arange(predictor.history)[:, None, None, None]
    for ky, kx in itertools.product(range(-_WAVES, _WAVES + 1), range(1, _WAVES + 1)):
        size = torch.randn(shape, generator=generator) / (1 + ky**2 + kx**2)
        phase = 2 * math.pi * torch.rand(shape, generator=generator)
        fields += size * torch.sin(2 * math.pi * (kx * x + ky * y) + phase - 0.2 * kx * age)
    fields = normalizer.invert(fields / fields.std((-2, -1), keepdim=True))
    mask = torch.ones(COUNT, rows, columns, dtype=torch.bool)
    mask[1::2, rows // 3 : rows // 2, columns // 4 : columns // 2] = False
    parameters = torch.full((COUNT, len(spec.parameters)), math.nan)
    needed = needed_parameters(predictor.model)
    for index, parameter in enumerate(spec.parameters):
        known = COUNT if parameter.name in needed else COUNT - 1  # unknown in the last
        parameters[:known, index] = parameter.restore(torch.linspace(-1, 1, COUNT))[:known]
    return Samples(fields=fields, mask=mask, parameters=parameters, origin="random fields")


def read_samples(path: Path, predictor: Predictor) -> Samples:
    """Evenly spread windows of a file of flows (``pibert generate`` or ``pibert convert``)."""
    if not path.exists():
        raise FileNotFoundError(f"{path}: expected a file of flows (.h5), found nothing")
    spec, history = predictor.spec, predictor.history
    with Reader(path) as reader:
        recordings = []
        for flow in reader:
            if flow.spec.grid.shape != spec.grid.shape:
                raise ValueError(
                    f"{path}: expected a grid of {spec.grid.shape} as the model has, found "
                    f"{flow.spec.grid.shape} in {flow.name!r}"
                )
            if flow.num_frames >= history:
                recordings.append(fit_recording(flow, spec, history))
        starts = [
            (recording, frame) for recording in recordings for frame in recording.newest_frames()
        ]
        if not starts:
            raise ValueError(
                f"{path}: expected a flow of at least {history} frames, found none; take another "
                "file"
            )
        fields, mask, parameters = [], [], []
        for number in range(COUNT):
            recording, frame = starts[number * (len(starts) - 1) // (COUNT - 1)]
            window, known = recording.windows([frame])
            values = [recording.parameters.get(name, math.nan) for name in spec.parameter_names]
            fields.append(window)
            mask.append(known)
            parameters.append(torch.tensor([values]))
    return Samples(
        fields=torch.cat(fields),
        mask=torch.cat(mask),
        parameters=torch.cat(parameters),
        origin=str(path),
    )
