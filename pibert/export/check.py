"""An exported file against the model it came from, on the same samples, alone and in a batch.

The difference counts against the size of the fluctuations, channel by channel: a large mean would
hide it. What single precision cannot tell apart at that mean is no difference.
"""

import io
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from pibert.export.samples import COUNT, Samples
from pibert.predictor import Predictor

Batch = dict[str, Tensor]
"""The inputs of a graph by name."""
BATCHES = (slice(0, 1), slice(1, COUNT))
_RUNNER = Path(__file__).with_name("run_onnx.py")
_ROUNDING = 4 * torch.finfo(torch.float32).eps


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
