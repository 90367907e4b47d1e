"""What the README shows works."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pibert.data.format import write
from pibert.fields import Normalizer
from pibert.predictor import save_model
from tests.data.helpers import make_trajectory
from tests.helpers import tiny_model

ROOT = Path(__file__).parents[1]


def test_the_python_example_runs() -> None:
    code = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)[0]
    names: dict[str, object] = {}
    exec(compile(code, "README.md", "exec"), names)
    assert names["y"].shape == (4, 2, 64, 64)  # type: ignore[attr-defined]


def test_the_example_of_a_trained_model_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)[1]
    monkeypatch.chdir(tmp_path)
    trained = {"forward": True, "reconstruct": True}
    save_model("runs/wake", tiny_model(), Normalizer.identity(2), trained=trained)
    fields = np.random.default_rng(0).normal(size=(3, 1, 2, 16, 16))
    fields[1, 0, :, 5:8, 2] = np.nan
    np.save("fields.npy", fields)
    names: dict[str, Any] = {}
    exec(compile(code, "README.md", "exec"), names)
    assert names["frames"].shape == (3, 50, 2, 16, 16)
    assert np.array_equal(names["block"], names["frames"][:, -1:])
    assert np.isfinite(names["whole"]).all()


def test_every_path_of_the_map_exists() -> None:
    paths = re.findall(r"^\| `([^`]+)` \|", (ROOT / "README.md").read_text(), re.MULTILINE)
    assert len(paths) > 5
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_every_make_target_of_the_docs_exists() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for page in ("README.md", "CONTRIBUTING.md"):
        for target in re.findall(r"make ([a-z]+)\b(?=`|\s+#)", (ROOT / page).read_text()):
            assert re.search(rf"^{target}:", makefile, re.MULTILINE), target


def test_the_example_of_the_data_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (code,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs/data.md").read_text(), re.DOTALL)
    monkeypatch.chdir(tmp_path)
    wakes = [make_trajectory(f"{i}", channels=("u", "v", "p"), re=100.0 + i) for i in range(10)]
    write("wake.h5", wakes)
    names: dict[str, Any] = {}
    exec(compile(code, "docs/data.md", "exec"), names)
    assert names["batch"].x.shape == (16, 2, 5, 7)
    assert len(names["split"].train) == 7
