"""From a trained model to a file for other programs: traced, encoded, checked, then written."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor
from torch.export import ExportedProgram

from pibert import __version__
from pibert.data.partial import check_writable, make_folder, replace_file
from pibert.export import check, formats
from pibert.export.check import Difference, draw_samples, read_samples
from pibert.export.graph import PhysicalStep, trace
from pibert.inference import Predictor, SavedModel

TOLERANCE = 1e-4
"""Accepted difference to the source model, relative to a channel's fluctuations."""


class Target(NamedTuple):
    """How to write a kind of file, and to run it for the check."""

    encode: Callable[[ExportedProgram, formats.Metadata], bytes]
    run: Callable[[bytes, list[check.Batch]], list[Tensor]]
    require: Callable[[], None]
    suffix: str


TARGETS: dict[str, Target] = {
    "onnx": Target(formats.as_onnx, check.run_onnx, formats.require_onnx, ".onnx"),
    "torch-export": Target(formats.as_archive, check.run_archive, lambda: None, ".pt2"),
}


@dataclass(frozen=True, kw_only=True)
class Exported:
    """A written file, and how well it agrees with its model."""

    path: Path
    size: int
    inputs: dict[str, tuple[str, tuple[int | str, ...]]]
    """Type and shape by name."""
    frames: tuple[int | str, ...]
    """Shape of the output."""
    samples: str
    """What it was checked on."""
    difference: Difference


def export_model(
    saved: SavedModel,
    out: Path | str,
    target: str,
    *,
    data: Path | str | None = None,
    tolerance: float = TOLERANCE,
    overwrite: bool = False,
) -> Exported:
    """Write a model that was trained to step as a file for other programs.

    Args:
        saved: From ``pibert.inference.read_model``.
        out: The file, written after the check.
        target: A key of ``TARGETS``.
        data: A file of flows to check it on; None: random fields with the model's statistics.
        tolerance: Accepted difference to the model, relative to a channel's fluctuations.
        overwrite: Replace an existing file.
    """
    if target not in TARGETS:
        raise ValueError(f"unknown target {target!r}; choose from: {', '.join(TARGETS)}")
    if not tolerance > 0:
        raise ValueError(f"expected a positive tolerance, found {tolerance}")
    out, kind = Path(out), TARGETS[target]
    if out.is_dir():
        raise IsADirectoryError(
            f"{out} is a folder; name a file in it, such as {out / ('model' + kind.suffix)}"
        )
    if out.suffix != kind.suffix:
        raise ValueError(f"expected a file name that ends in {kind.suffix}, found {out.name}")
    if out.exists() and not overwrite:
        raise FileExistsError(f"{out} exists; choose another name or --overwrite")
    check_writable(out)
    kind.require()
    predictor = Predictor(saved.model, saved.normalizer, card=saved.card)
    samples = draw_samples(predictor) if data is None else read_samples(Path(data), predictor)
    batches, expected = check.expect(predictor, samples)
    step = PhysicalStep(saved.model, saved.normalizer)
    content = kind.encode(trace(step), _metadata(step, saved))
    difference = check.measure(torch.cat(kind.run(content, batches)), expected, predictor)
    if not difference.excess <= tolerance:
        raise ValueError(
            f"expected the {target} file to agree with its model to {tolerance:g} of the "
            f"fluctuations, found {difference.excess:.3g} on {samples.origin}; nothing was written"
        )
    make_folder(out)
    replace_file(out, content)
    return Exported(
        path=out,
        size=len(content),
        inputs=step.inputs(),
        frames=("batch", step.horizon, len(step.spec.channels), *step.spec.grid.shape),
        samples=samples.origin,
        difference=difference,
    )


def _metadata(step: PhysicalStep, saved: SavedModel) -> formats.Metadata:
    spec = step.spec
    return {
        "channels": list(spec.channels),
        "units": list(spec.units),
        "parameters": list(spec.parameter_names),
        "history": step.history,
        "horizon": step.horizon,
        "dt": spec.dt,
        "grid": spec.grid.to_dict(),
        "card": saved.card,
        "weights_sha256": saved.card["weights"]["sha256"],
        "pibert_version": __version__,
    }
