"""The two kinds of file, as bytes: ONNX, and the archive of ``torch.export``.

Both have metadata, every value as JSON: ``metadata_props`` of the ONNX model, the extra file
``pibert.json`` of the archive.
"""

import importlib.util
import io
import json
import logging
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.export import ExportedProgram

from pibert.export.graph import nodes_of, reason_of

OPSET = 20
"""Version of the ONNX operators."""
EXTRA_FILE = "pibert.json"
"""Metadata inside the archive of ``torch.export``."""

Metadata = dict[str, Any]


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
