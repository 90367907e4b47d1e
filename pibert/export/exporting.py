"""From a trained model to a file for other programs: traced, encoded, checked, then written.

The file is an ONNX model or the archive of ``torch.export``. Both have metadata, every value as
JSON: ``metadata_props`` of the ONNX model, the extra file ``pibert.json`` of the archive.
"""

import importlib.util
import io
import json
import logging
import re
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.export import ExportedProgram

from pibert import __version__
from pibert.data.partial import check_writable, make_folder, replace_file
from pibert.export import check
from pibert.export.check import Difference, draw_samples, read_samples
from pibert.export.graph import PhysicalStep, nodes_of, reason_of, trace
from pibert.inference import Predictor, SavedModel

TOLERANCE = 1e-4
"""Accepted difference to the source model, relative to a channel's fluctuations."""


OPSET = 20
"""Version of the ONNX operators."""
EXTRA_FILE = "pibert.json"
"""Metadata inside the archive of ``torch.export``."""
Metadata = dict[str, Any]


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


def _metadata(step: PhysicalStep, saved: SavedModel) -> Metadata:
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


def as_onnx(program: ExportedProgram, metadata: Metadata) -> bytes:
    """An ONNX model whose first axis is open and called ``batch``."""
    import onnx

    _refuse_complex(program)
    with _quiet():
        try:
            converted = torch.onnx.export(
                program, dynamo=True, opset_version=OPSET, output_names=["frames"], verbose=False
            )
        except Exception as error:
            raise ValueError(
                f"this model does not export to ONNX ({reason_of(error)}); use --to torch-export"
            ) from error
        assert converted is not None
        proto = converted.model_proto
    _clean(proto.graph)
    del proto.metadata_props[:]
    onnx.helper.set_model_props(proto, {key: json.dumps(v) for key, v in metadata.items()})
    onnx.checker.check_model(proto)
    return proto.SerializeToString()


def as_archive(program: ExportedProgram, metadata: Metadata) -> bytes:
    """What ``torch.export.load`` reads."""
    file = io.BytesIO()
    with _quiet():
        torch.export.save(program, file, extra_files={EXTRA_FILE: json.dumps(metadata)})
    return file.getvalue()


def require_onnx() -> None:
    """Raise if packages of the extra are missing."""
    names = ("onnx", "onnxscript", "onnxruntime")
    missing = [name for name in names if importlib.util.find_spec(name) is None]
    if missing:
        raise ImportError(
            f"export to ONNX needs {', '.join(names)}, found no {' and no '.join(missing)}; "
            "install them with pip install 'pibert-cfd[onnx]'"
        )


def _refuse_complex(program: ExportedProgram) -> None:
    """Raise for complex numbers: the exporter's own message is long and misleading."""
    for node in nodes_of(program):
        value = node.meta.get("val")
        if isinstance(value, Tensor) and value.is_complex():
            raise ValueError(
                f"this model does not export to ONNX: it computes with complex numbers "
                f"({node.target}), for which onnxruntime has no operators; use --to torch-export"
            )


def _clean(graph: Any) -> None:
    """Name the open axis, and remove paths of this machine."""
    for node in graph.node:
        node.ClearField("metadata_props")
        node.ClearField("doc_string")
    for value in (*graph.value_info, *graph.input, *graph.output):
        value.ClearField("metadata_props")
        for size in value.type.tensor_type.shape.dim:
            if size.dim_param:  # torch's symbol, perhaps in a product
                size.dim_param = re.sub(r"\bs\d+\b", "batch", size.dim_param)


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence the exporter's messages on optional packages, and its deprecations."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


class Target(NamedTuple):
    """How to write a kind of file, and to run it for the check."""

    encode: Callable[[ExportedProgram, Metadata], bytes]
    run: Callable[[bytes, list[check.Batch]], list[Tensor]]
    require: Callable[[], None]
    suffix: str


TARGETS: dict[str, Target] = {
    "onnx": Target(as_onnx, check.run_onnx, require_onnx, ".onnx"),
    "torch-export": Target(as_archive, check.run_archive, lambda: None, ".pt2"),
}
