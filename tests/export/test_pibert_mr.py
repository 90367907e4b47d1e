"""Multiresolution PIBERT in exported graphs: any batch size, masks, history and parameters."""

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.export import ExportedProgram

from pibert.export import export_model, exporting
from pibert.export.graph import PhysicalStep, trace
from pibert.fields import Boundary, FieldSpec, Grid, Parameter, Sides
from pibert.inference import Predictor, SavedModel, read_model, save_model
from pibert.models import build_model
from tests.export.models import NORMALIZER, save_tiny
from tests.export.test_exporting import needs_onnx
from tests.helpers import assert_close, randomise

BATCHES = (1, 2, 3, 5)
PARAMETERS = (
    Parameter(name="Re", scaling="log", mean=3.0, std=0.5),
    Parameter(name="angle", mean=100.0, std=30.0),
)


def on_odd_grid(spec: FieldSpec) -> FieldSpec:
    """Two parameters and a periodic direction on a grid that halves nowhere."""
    grid = Grid((13, 21), dx=0.3, dy=0.2, sides=Sides(Boundary.PERIODIC, Boundary.PERIODIC))
    return replace(spec, parameters=PARAMETERS, grid=grid)


def inputs_of(step: PhysicalStep, batch: int) -> dict[str, Tensor]:
    """Random fields with a gap, and parameters of which one is unknown."""
    generator = torch.Generator().manual_seed(batch)
    shapes = {name: tuple(map(int, shape[1:])) for name, (_, shape) in step.inputs().items()}
    mask = torch.ones(batch, *shapes["mask"], dtype=torch.bool)
    mask[0, 3:6, 4:9] = False
    fields = torch.randn(batch, *shapes["fields"], generator=generator)
    fields = torch.where(mask[:, None, None], fields, math.nan)
    parameters = 50 + 100 * torch.rand(batch, *shapes["parameters"], generator=generator)
    parameters[-1, 0] = math.nan
    return {"fields": fields, "mask": mask, "parameters": parameters}


def assert_exports(saved: SavedModel, program: ExportedProgram, target: str) -> None:
    """The file gives the frames of ``Predictor.step`` in batches of several sizes."""
    step, kind = PhysicalStep(saved.model, saved.normalizer), exporting.TARGETS[target]
    predictor = Predictor(saved.model, saved.normalizer)
    batches = [inputs_of(step, batch) for batch in BATCHES]
    found = kind.run(kind.encode(program, {}), batches)
    for given, frames in zip(batches, found, strict=True):
        columns = given["parameters"].unbind(1)
        known = dict(zip(step.spec.parameter_names, columns, strict=True))
        assert_close(frames, predictor.step(given["fields"], known, given["mask"]), rtol=2e-5)


@pytest.fixture(scope="module")
def traced(
    tmp_path_factory: pytest.TempPathFactory, spec: FieldSpec
) -> tuple[SavedModel, ExportedProgram]:
    folder, spec = tmp_path_factory.mktemp("model"), on_odd_grid(spec)
    saved = save_tiny(folder, "pibert-mr", spec, history=2, horizon=2, cycles=1)
    return saved, trace(PhysicalStep(saved.model, saved.normalizer))


@pytest.mark.parametrize("target", ["torch-export", pytest.param("onnx", marks=needs_onnx)])
def test_masks_history_parameters_and_periodic_sides_on_an_odd_grid(
    target: str, traced: tuple[SavedModel, ExportedProgram]
) -> None:
    assert_exports(*traced, target)


@needs_onnx
@pytest.mark.slow
@pytest.mark.parametrize("target", list(exporting.TARGETS))
@pytest.mark.parametrize("name", ["cylinder-mr", "cylinder-base", "small"])
def test_shipped_models_and_a_preset(
    name: str, target: str, tmp_path: Path, spec: FieldSpec
) -> None:
    if name == "small":
        model = randomise(build_model("pibert-mr", preset="small", spec=on_odd_grid(spec)))
        save_model(tmp_path, model, NORMALIZER, trained={"forward": True})
    saved = read_model(tmp_path if name == "small" else name)
    assert_exports(saved, trace(PhysicalStep(saved.model, saved.normalizer)), target)


class FixedBatch(nn.Module):
    """Asks for the length of a tensor, which makes the batch size a constant of the graph."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.config, self.spec = model.config, model.spec

    def forward(self, x: Tensor, parameters: Tensor, mask: Tensor) -> Tensor:
        return x + x.new_zeros(len(x), 1, 1, 1)


def test_a_model_that_torch_cannot_trace_is_named_in_one_line(
    tmp_path: Path, spec: FieldSpec
) -> None:
    saved = save_tiny(tmp_path, "persistence", spec)
    fixed = replace(saved, model=FixedBatch(saved.model))
    wanted = r"FixedBatch .*Constraints violated.*pibert serve"
    with pytest.raises(ValueError, match=wanted) as error:
        export_model(fixed, tmp_path / "m.pt2", "torch-export")
    assert "\n" not in str(error.value) and not (tmp_path / "m.pt2").exists()
