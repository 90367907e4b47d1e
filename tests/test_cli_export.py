"""``pibert export``: from a model folder to a file, or one line that says why not."""

import json
import os
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from pibert.cli import app
from pibert.fields import Normalizer
from pibert.predictor import save_model
from tests.helpers import randomise, tiny_model

NORMALIZER = Normalizer((0.5, 0.0), (1.0, 0.5))


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, ["export", *(str(argument) for argument in arguments)])


def refusal(*arguments: str | Path) -> str:
    result = run(*arguments)
    assert result.exit_code == 2, result.output
    assert result.stderr.startswith("error: ") and len(result.stderr.splitlines()) == 1
    return result.stderr


@pytest.fixture
def model(tmp_path: Path) -> Path:
    net = randomise(tiny_model("pinn"))
    return save_model(tmp_path / "run", net, NORMALIZER, trained={"forward": True})


def test_a_model_is_exported_and_the_difference_told(tmp_path: Path, model: Path) -> None:
    out = tmp_path / "wake.pt2"
    result = run(model, "--to", "torch-export", "--out", out)
    assert result.exit_code == 0, result.output
    said = " ".join(result.output.split())
    assert "in fields (batch, 1, 2, 16, 16) float32" in said
    assert "in parameters (batch, 1) float32" in said and "in mask (batch, 16, 16) bool" in said
    assert "out frames (batch, 1, 2, 16, 16) float32" in said
    assert "drawn fields, batches of 1 and 3: u " in said and "relative " in said
    assert f"Wrote {out}" in said and out.stat().st_size > 1000
    before = out.read_bytes()
    assert "--overwrite" in refusal(model, "--to", "torch-export", "--out", out)
    assert out.read_bytes() == before
    again = run(model, "--to", "torch-export", "--out", out, "--overwrite", "--json")
    assert again.exit_code == 0, again.output
    found = json.loads(again.stdout)
    assert found["inputs"]["mask"] == {"dtype": "bool", "shape": ["batch", 16, 16]}
    assert found["written"] == [str(out)] and found["bytes"] == out.stat().st_size
    assert set(found["difference"]) == {"u", "v"} and found["relative_difference"] < 1e-4


def test_what_cannot_be_exported_is_refused_in_one_line(tmp_path: Path, model: Path) -> None:
    out = tmp_path / "wake.onnx"
    assert "choose from: onnx, torch-export" in refusal(model, "--to", "tflite", "--out", out)
    assert "ends in .onnx" in refusal(model, "--to", "onnx", "--out", tmp_path / "wake.pt2")
    assert "is a folder" in refusal(model, "--to", "onnx", "--out", tmp_path)
    missing = tmp_path / "none" / "wake.onnx"
    assert "expected a folder, found none" in refusal(model, "--to", "onnx", "--out", missing)
    assert "found nothing" in refusal(tmp_path / "no", "--to", "onnx", "--out", out)
    nothing = tmp_path / "none.h5"
    assert "found nothing" in refusal(
        model, "--to", "torch-export", "--out", tmp_path / "w.pt2", "--data", nothing
    )
    assert "positive tolerance" in refusal(model, "--to", "onnx", "--out", out, "--tolerance", "0")
    assert sorted(tmp_path.iterdir()) == [model]


def test_a_folder_that_cannot_be_written_to_is_named(
    tmp_path: Path, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Root may write anywhere.
    monkeypatch.setattr("os.access", lambda path, mode, **_: mode != os.W_OK)
    said = refusal(model, "--to", "torch-export", "--out", tmp_path / "wake.pt2")
    assert "found it protected" in said
