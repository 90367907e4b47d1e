"""A model with standardisation and masking as one graph: physical fields in, physical frames out.

    fields      (batch, history, channel, y, x) float32, the newest frame last
    parameters  (batch, parameter) float32, in physical units and the order of the spec; NaN is
                unknown. Omitted if the spec has none.
    mask        (batch, y, x) bool, True where the fields are known; elsewhere they may be NaN
    frames      (batch, horizon, channel, y, x) float32

The numbers are those of ``Predictor.step``. A graph cannot raise errors: where the predictor
refuses a sample (a known value that is not finite, a parameter that is infinite or has no
logarithm, an unknown one that the motion of bodies needs) its frames are NaN.
"""

import copy
import math
from collections.abc import Iterator
from typing import Any, cast

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.export import Dim, ExportedProgram
from torch.fx import GraphModule, Node

from pibert.fields import PARAMETER_WIDTH, FieldSpec, Normalizer
from pibert.models.baselines.fourierflow import FourierFlow


class PhysicalStep(nn.Module):
    """One call of a model, with standardisation, masking and the encoding of parameters.

    Args:
        model: One of ``pibert.models.MODELS``; a copy of it is kept.
        normalizer: Of the channels of its spec.
    """

    body: Tensor
    is_log: Tensor
    scales: Tensor
    needed: Tensor

    def __init__(self, model: nn.Module, normalizer: Normalizer) -> None:
        super().__init__()
        self.model, self.normalizer = _exportable(model), normalizer
        self.spec, config = cast(FieldSpec, model.spec), cast(Any, model.config)
        self.history, self.horizon = int(config.history), int(config.horizon)
        body, parameters = self.spec.grid.body, self.spec.parameters
        outside = torch.zeros(self.spec.grid.shape, dtype=torch.bool)
        self.register_buffer("body", outside if body is None else body)
        self.register_buffer("is_log", torch.tensor([p.scaling == "log" for p in parameters]))
        needed = needed_parameters(model)
        self.register_buffer("needed", torch.tensor([p.name in needed for p in parameters]))
        scales = [[p.mean for p in parameters], [p.std for p in parameters]]
        self.register_buffer("scales", torch.tensor(scales))

    def forward(self, fields: Tensor, mask: Tensor, parameters: Tensor | None = None) -> Tensor:
        seen = mask & ~self.body
        shown, finite = seen[:, None, None], fields.isfinite()
        refused = (shown & ~finite).flatten(1).any(1)
        z = torch.where(shown & finite, self.normalizer.apply(fields), 0.0)
        if parameters is None:
            vector = fields.new_zeros(fields.shape[0], PARAMETER_WIDTH)
        else:
            bad = parameters.isinf() | (self.is_log & (parameters <= 0))
            refused = refused | (bad | (self.needed & parameters.isnan())).any(1)
            vector = self._encoded(torch.where(bad, math.nan, parameters))
        frames = self.model(z.flatten(1, 2), vector, seen).unflatten(1, (self.horizon, -1))
        frames = self.normalizer.invert(frames)
        return torch.where(refused[:, None, None, None, None], math.nan, frames)

    def _encoded(self, parameters: Tensor) -> Tensor:
        """As ``FieldSpec.encode_parameters``."""
        mean, std = self.scales
        # The logarithm of 1 for the others: that of a negative number would be NaN.
        logarithms = torch.log10(torch.where(self.is_log, parameters, 1.0))
        scaled = (torch.where(self.is_log, logarithms, parameters) - mean) / std
        return F.pad(scaled, (0, PARAMETER_WIDTH - scaled.shape[1]))

    def inputs(self) -> dict[str, tuple[str, tuple[int | str, ...]]]:
        """Type and shape of every input by its name; a word stands for an open size."""
        rows, columns = self.spec.grid.shape
        fields = (self.history, len(self.spec.channels), rows, columns)
        named: dict[str, tuple[str, tuple[int | str, ...]]] = {
            "fields": ("float32", ("batch", *fields)),
            "mask": ("bool", ("batch", rows, columns)),
        }
        if self.spec.parameters:
            named["parameters"] = ("float32", ("batch", len(self.spec.parameters)))
        return named


def needed_parameters(model: Any) -> tuple[str, ...]:
    """Return the parameters without which a model refuses a sample."""
    motion = getattr(model, "motion", None)
    return () if motion is None else motion.parameter_names


def trace(step: PhysicalStep) -> ExportedProgram:
    """The graph of a step, for batches of any size."""
    batch = Dim("batch", min=1)
    examples, shapes = {}, {}
    for name, (dtype, shape) in step.inputs().items():
        # Two samples: torch assumes that an axis of length one is fixed.
        examples[name] = torch.ones((2, *shape[1:]), dtype=getattr(torch, dtype))  # type: ignore[arg-type]
        shapes[name] = {0: batch}
    try:
        with torch.no_grad():
            # Not strict: Python runs as it is, and only operations on tensors are recorded.
            program = torch.export.export(step, (), examples, dynamic_shapes=shapes, strict=False)
    except Exception as error:
        raise ValueError(
            f"expected a model that torch.export can trace for any batch size, found that "
            f"{type(step.model).__name__} is not one with torch {torch.__version__} "
            f"({reason_of(error)}); use it in Python, or with pibert predict and pibert serve"
        ) from error
    for node in nodes_of(program):
        node.meta.pop("stack_trace", None)  # paths of this machine
    return program


def reason_of(error: Exception) -> str:
    """The first line of an exporter's message, which may have a hundred."""
    return (str(error.__cause__ or error).strip() or type(error).__name__).splitlines()[0]


def nodes_of(program: ExportedProgram) -> Iterator[Node]:
    """All nodes, also those of inner graphs, such as a block without autocast."""
    for module in program.graph_module.modules():
        if isinstance(module, GraphModule):
            yield from module.graph.nodes


def _exportable(model: nn.Module) -> nn.Module:
    """A copy on the CPU in which all modules export."""
    model = copy.deepcopy(model).cpu().eval().requires_grad_(False)
    for module in model.modules():
        if isinstance(module, FourierFlow):
            module.hold_noise()
    return model
