"""Predictions on a GPU agree with the CPU, and results are on the device of the input."""

from pathlib import Path

import numpy as np
import pytest
import torch

import pibert
from pibert.fields import Normalizer
from pibert.inference import InputWarning, save_model
from tests.helpers import randomise, tiny_model, tiny_spec

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def test_a_prediction_on_the_gpu_is_that_of_the_cpu(tmp_path: Path) -> None:
    torch.manual_seed(0)
    normalizer = Normalizer((1.5, -0.25), (0.5, 2.0))
    model = randomise(tiny_model(spec=tiny_spec((12, 20)), history=2))
    trained = {"forward": True, "reconstruct": True, "consistency": True}
    save_model(tmp_path, model.cuda(), normalizer, trained=trained)
    near, far = pibert.load(tmp_path), pibert.load(tmp_path, "cuda", chunk=2)
    assert far.device.type == "cuda"
    x = normalizer.invert(torch.randn(5, 2, 2, 12, 20, dtype=torch.float64))
    known = torch.rand(5, 2, 12, 20) > 0.1
    for fields, mask in ((x, known), (x.cuda(), known), (x.cuda().float(), known.cuda())):
        found = far.fill(fields, mask, {"Re": 700.0})
        assert (found.device, found.dtype) == (fields.device, fields.dtype)
        expected = near.fill(x, known, {"Re": 700.0})
        assert torch.allclose(found.cpu().double(), expected, rtol=1e-3, atol=1e-3)
        step = far.step(fields, {"Re": torch.full((5,), 700.0, device="cuda")}, mask.all(1))
        assert step.device == fields.device
        reference = near.step(x, {"Re": 700.0}, known.all(1))
        assert torch.allclose(step.cpu().double(), reference, rtol=1e-3, atol=1e-3)
        assert far.consistency(fields).device == fields.device
    array = far.rollout(x.numpy(), 3)
    assert isinstance(array, np.ndarray) and array.dtype == np.float64
    assert far.to("cpu").device.type == "cpu"


def test_another_grid_and_explanations_do_not_need_the_cpu() -> None:
    model = randomise(tiny_model(spec=tiny_spec((12, 20)), gate="spatial"))
    normalizer = Normalizer((1.5, -0.25), (0.5, 2.0))
    x = normalizer.invert(torch.randn(5, 1, 2, 24, 40, generator=torch.Generator().manual_seed(0)))
    grid = pibert.Grid((24, 40), dx=0.15, dy=0.1)
    mask = torch.ones(24, 40, dtype=torch.bool)
    mask[3:6, 8:12] = False
    with pytest.warns(InputWarning, match="resampled"):
        near = pibert.Predictor(model, normalizer).explain(x, mask=mask, grid=grid)
        far = pibert.Predictor(model.cuda(), normalizer, chunk=2)
        found = far.explain(x.cuda(), mask=mask.cuda(), grid=grid)
    for name in ("prediction", "bias_map", "attention", "gate_map", "consistency"):
        ours, theirs = getattr(found, name), getattr(near, name)
        assert ours.device.type == "cuda"
        assert torch.allclose(ours.cpu(), theirs, rtol=1e-3, atol=1e-3)
