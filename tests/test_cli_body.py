"""``--body`` and ``--mask``: bodies that a recording does not mark, in commands and plans."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from pibert.data.format import Reader, check
from pibert.data.splits import Shares
from pibert.experiments.experiment import DataConfig
from pibert.experiments.flows import prepare
from tests.command import run

SHAPE = (24, 32)


def cylinder() -> np.ndarray:
    x, y = np.meshgrid(0.1 * np.arange(SHAPE[1]), 0.1 * np.arange(SHAPE[0]))
    return np.hypot(x - 1, y - 1.2) <= 0.45


@pytest.fixture
def wake(tmp_path: Path) -> Path:
    """A flow around a cylinder whose inside is stored as zeros."""
    x, y = np.meshgrid(0.1 * np.arange(SHAPE[1]), 0.1 * np.arange(SHAPE[0]))
    t = 0.2 * np.arange(6)[:, None, None]
    u = np.where(cylinder(), 0, 1 + 0.3 * np.sin(2 * x - t) * np.cos(2 * y))
    v = np.where(cylinder(), 0, -0.3 * np.cos(2 * x - t) * np.sin(2 * y))
    path = tmp_path / "wake.npz"
    axes = {"x": x[0], "y": y[:, 0], "t": t[:, 0, 0]}
    np.savez(path, u=u.astype("f4"), v=v.astype("f4"), **axes)
    return path


def test_inspect_advises_how_to_mark_a_body(wake: Path, tmp_path: Path) -> None:
    count = int(cylinder().sum())
    found = json.loads(run("inspect", wake, "--json").stdout)
    assert found["zeros_static"] == count and found["body_share"] == 0
    (finding,) = [item for item in found["problems"] if item["topic"] == "zero vectors"]
    assert f"pibert convert {wake} OUT.h5 --body zeros" in finding["advice"]
    result = run("convert", wake, tmp_path / "out.h5", "--body", "zeros")
    assert result.exit_code == 0, result.output
    assert f"{count} of 768 points" in " ".join(result.output.split())
    check(tmp_path / "out.h5")
    (written,) = Reader(tmp_path / "out.h5")
    assert written.spec.grid.body is not None
    assert torch.equal(written.spec.grid.body, torch.from_numpy(cylinder()))
    after = json.loads(run("inspect", tmp_path / "out.h5", "--json").stdout)
    assert after["zeros_static"] == 0 and after["body_share"] == pytest.approx(count / 768)
    same = json.loads(run("inspect", wake, "--json", "--body", "zeros").stdout)
    assert "zero vectors" not in [item["topic"] for item in same["problems"]]


@pytest.mark.parametrize("body", ["zeros", ["zeros"], ["circle:1,1.2,0.45"]])
def test_a_plan_states_a_body_among_its_hints(wake: Path, body: str | list[str]) -> None:
    shares = Shares(train=0.5, valid=0.25)
    flows = prepare(DataConfig(path=str(wake), hints={"body": body}, split="time", shares=shares))
    assert flows.spec.grid.body is not None
    assert torch.equal(flows.spec.grid.body, torch.from_numpy(cylinder()))
