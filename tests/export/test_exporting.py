"""Exported files run without torch or without pibert, and are written only after a check."""

import importlib.util
import io
import json
import math
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.export import ExportedProgram

import pibert
from pibert.export import check, export_model, exporting
from pibert.export.check import Samples, read_samples
from pibert.export.graph import PhysicalStep, trace
from pibert.fields import Boundary, FieldSpec, Grid, Parameter, Sides
from pibert.inference import Predictor, SavedModel, read_model, save_model
from pibert.models import MODELS, build_model
from pibert.models.baselines.unet import UNet
from tests.export.models import NORMALIZER, save_tiny
from tests.helpers import assert_close, randomise, refused, tiny_model

needs_onnx = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("onnx", "onnxscript", "onnxruntime")),
    reason="needs the extra onnx",
)

PAGE = Path(__file__).parents[2] / "docs" / "export.md"
WITHOUT_TORCH = """
import sys
assert "torch" not in sys.modules and "pibert" not in sys.modules
"""

LOAD = """
import sys
sys.modules["pibert"] = None  # importing it fails
import numpy, torch

step = torch.export.load("model.pt2").module()
with numpy.load("given.npz") as given:
    inputs = {name: torch.from_numpy(given[name]) for name in given}
numpy.save("made.npy", step(**inputs).numpy())
assert not [name for name in sys.modules if name.startswith("pibert.")]
"""


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory, spec: FieldSpec) -> SavedModel:
    return save_tiny(tmp_path_factory.mktemp("model"), "deeponet2d", spec)


@pytest.fixture(scope="module")
def predictor(saved: SavedModel) -> Predictor:
    return Predictor(saved.model, saved.normalizer)


@pytest.fixture(scope="module")
def samples(predictor: Predictor, flows: Path) -> Samples:
    return read_samples(flows, predictor)


@pytest.fixture(scope="module")
def onnx_file(saved: SavedModel, flows: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("onnx") / "model.onnx"
    made = export_model(saved, path, "onnx", data=flows)
    assert made.difference.relative < 1e-5 and made.size == path.stat().st_size
    return path


def run_alone(code: str, folder: Path) -> None:
    """Run a script in a process and a folder of its own."""
    command = [sys.executable, "-I", "-c", code]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@needs_onnx
@pytest.mark.parametrize("batch", [1, 3])
def test_the_rollout_of_the_docs_runs_without_torch(
    batch: int, onnx_file: Path, predictor: Predictor, samples: Samples, tmp_path: Path
) -> None:
    fields = samples.fields[:batch].numpy()
    np.save(tmp_path / "fields.npy", fields)
    shutil.copy(onnx_file, tmp_path / "wake.onnx")
    (example,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    run_alone(example + WITHOUT_TORCH, tmp_path)
    found = np.load(tmp_path / "frames.npy")
    expected = predictor.rollout(fields, 5, {"viscosity": 0.01})
    assert found.shape == expected.shape and found.dtype == np.float32
    assert np.abs(found - expected).max() < 1e-4 * np.abs(expected).max()


@needs_onnx
def test_an_onnx_file_states_the_model_its_fields_and_free_batch_size(
    onnx_file: Path, saved: SavedModel, spec: FieldSpec
) -> None:
    import onnx

    model = onnx.load(onnx_file)
    facts = {entry.key: json.loads(entry.value) for entry in model.metadata_props}
    assert facts["channels"] == ["u", "v"] and facts["units"] == list(spec.units)
    assert facts["parameters"] == ["viscosity"] and facts["dt"] == spec.dt
    assert facts["grid"] == spec.grid.to_dict() and facts["card"] == saved.card
    fields = next(value for value in model.graph.input if value.name == "fields")
    shape = [size.dim_param or size.dim_value for size in fields.type.tensor_type.shape.dim]
    assert shape == ["batch", 1, 2, 16, 24]
    assert str(Path(pibert.__file__).parent).encode() not in onnx_file.read_bytes()


def test_a_torch_program_runs_without_pibert(
    saved: SavedModel, predictor: Predictor, samples: Samples, flows: Path, tmp_path: Path
) -> None:
    path = tmp_path / "model.pt2"
    made = export_model(saved, path, "torch-export", data=flows)
    assert made.difference.relative < 1e-5 and made.samples == str(flows)
    fields, mask, values = samples.fields[:3], samples.mask[:3], samples.parameters[:3]
    np.savez(
        tmp_path / "given.npz",
        fields=fields.numpy(),
        mask=mask.numpy(),
        parameters=values.numpy(),
    )
    run_alone(LOAD, tmp_path)
    expected = predictor.step(fields, {"viscosity": values[:, 0]}, mask)
    assert torch.allclose(torch.from_numpy(np.load(tmp_path / "made.npy")), expected, atol=1e-5)
    extra: dict[str, Any] = {exporting.EXTRA_FILE: ""}
    torch.export.load(io.BytesIO(path.read_bytes()), extra_files=extra)
    facts = json.loads(extra[exporting.EXTRA_FILE])
    assert facts["card"] == saved.card and facts["channels"] == ["u", "v"]
    assert str(Path(pibert.__file__).parent).encode() not in path.read_bytes()


def test_a_file_that_does_not_agree_is_not_written(
    spec: FieldSpec, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved, folder = save_tiny(tmp_path / "model", "persistence", spec), tmp_path / "out"
    folder.mkdir()
    kind = exporting.TARGETS["torch-export"]

    def off_by_little(content: bytes, batches: list[check.Batch]) -> list[torch.Tensor]:
        return [frames + 0.01 for frames in kind.run(content, batches)]

    monkeypatch.setitem(exporting.TARGETS, "torch-export", kind._replace(run=off_by_little))
    out = folder / "model.pt2"
    with pytest.raises(ValueError, match="nothing was written"):
        export_model(saved, out, "torch-export")
    assert list(folder.iterdir()) == []
    export_model(saved, out, "torch-export", tolerance=0.1)
    before = out.read_bytes()
    with pytest.raises(ValueError, match="nothing was written"):
        export_model(saved, out, "torch-export", overwrite=True)
    assert out.read_bytes() == before and list(folder.iterdir()) == [out]


@needs_onnx
def test_complex_numbers_are_refused_with_the_reason(
    tmp_path: Path, spec: FieldSpec, monkeypatch: pytest.MonkeyPatch
) -> None:
    def change(self: UNet, x: Tensor, parameters: Tensor) -> Tensor:
        return torch.fft.irfft2(torch.fft.rfft2(x), s=x.shape[-2:])

    monkeypatch.setattr(UNet, "change", change)
    saved = save_tiny(tmp_path, "unet", spec)
    with pytest.raises(ValueError, match=r"complex numbers \(aten\..*fft.*torch-export"):
        export_model(saved, tmp_path / "model.onnx", "onnx")
    assert not (tmp_path / "model.onnx").exists()


def test_a_missing_package_is_named_with_the_extra(
    saved: SavedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "onnxruntime" else find(name)
    )
    with pytest.raises(ImportError, match=r"found no onnxruntime; .*'pibert-cfd\[onnx\]'"):
        export_model(saved, tmp_path / "model.onnx", "onnx")


def test_a_model_that_was_not_trained_to_step_is_refused(tmp_path: Path, spec: FieldSpec) -> None:
    model = tiny_model("pibert", spec)
    save_model(tmp_path, model, NORMALIZER, trained={"reconstruct": True})
    saved = pibert.inference.read_model(tmp_path)
    with pytest.raises(ValueError, match="trained to step"):
        export_model(saved, tmp_path / "model.pt2", "torch-export")


@needs_onnx
@pytest.mark.slow
@pytest.mark.parametrize("target", list(exporting.TARGETS))
@pytest.mark.parametrize("name", [name for name in MODELS if name != "neuraloperator"])
def test_every_model_exports(
    name: str, target: str, tmp_path: Path, spec: FieldSpec, flows: Path
) -> None:
    saved = save_tiny(tmp_path, name, spec)
    out = tmp_path / f"model{exporting.TARGETS[target].suffix}"
    made = export_model(saved, out, target, data=flows)
    assert out.stat().st_size == made.size and made.difference.relative < 2e-5


# The check


def predictor_of(spec: FieldSpec, history: int = 2) -> Predictor:
    return Predictor(tiny_model("persistence", spec, history=history), NORMALIZER)


def test_a_file_that_does_not_fit_is_refused(flows: Path, spec: FieldSpec, tmp_path: Path) -> None:
    with refused("(8, 24)"):
        read_samples(flows, predictor_of(replace(spec, grid=Grid((8, 24)))))
    with pytest.raises(ValueError, match="at least 9 frames"):
        read_samples(flows, predictor_of(spec, history=9))
    with pytest.raises(FileNotFoundError, match="found nothing"):
        read_samples(tmp_path / "none.h5", predictor_of(spec))


# Multiresolution PIBERT


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
