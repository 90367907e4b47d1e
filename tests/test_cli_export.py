"""``pibert export``: from a model folder to a file, or an error in one line."""

import json
import os
from pathlib import Path

import pytest

from pibert.fields import Normalizer
from pibert.inference import save_model
from tests.command import refusal, well
from tests.helpers import randomise, tiny_model

NORMALIZER = Normalizer((0.5, 0.0), (1.0, 0.5))


def test_a_model_is_exported_and_the_difference_reported(tmp_path: Path, model: Path) -> None:
    out = tmp_path / "wake.pt2"
    given = ("export", model, "--to", "torch-export", "--out", out)
    said = " ".join(well(*given).output.split())
    assert "in fields (batch, 1, 2, 16, 16) float32" in said and "in mask (batch, 16, 16)" in said
    assert "out frames (batch, 1, 2, 16, 16) float32" in said
    assert "batches of 1 and 3: u " in said and f"Wrote {out}" in said
    before = out.read_bytes()
    assert "--overwrite" in refusal(*given) and out.read_bytes() == before
    found = json.loads(well(*given, "--overwrite", "--json").stdout)
    assert found["inputs"]["mask"] == {"dtype": "bool", "shape": ["batch", 16, 16]}
    assert found["written"] == [str(out)] and found["bytes"] == out.stat().st_size
    assert set(found["difference"]) == {"u", "v"} and found["relative_difference"] < 1e-4


def test_export_errors_are_one_line(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "wake.onnx"
    to_torch = (model, "--to", "torch-export", "--out", tmp_path / "w.pt2")
    for words, named in {
        (model, "--to", "tflite", "--out", out): "onnx, torch-export",
        (model, "--to", "onnx", "--out", tmp_path / "wake.pt2"): "ends in .onnx",
        (model, "--to", "onnx", "--out", tmp_path): "is a folder",
        (tmp_path / "no", "--to", "onnx", "--out", out): "found nothing",
        (model, "--to", "onnx", "--out", out, "--tolerance", "0"): "positive tolerance",
    }.items():
        assert named in refusal("export", *words)
    # Root may write anywhere.
    monkeypatch.setattr("os.access", lambda path, mode, **_: mode != os.W_OK)
    assert "not writable" in refusal("export", *to_torch)
    assert sorted(tmp_path.iterdir()) == [model]


@pytest.fixture
def model(tmp_path: Path) -> Path:
    net = randomise(tiny_model("pinn"))
    return save_model(tmp_path / "run", net, NORMALIZER, trained={"forward": True})
