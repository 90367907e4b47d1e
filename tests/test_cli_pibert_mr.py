"""Multiresolution PIBERT from pretraining to filled gaps, on flows as small as they can be."""

from pathlib import Path

import pytest
import torch

from pibert.data.format import Reader, write
from pibert.fields import Trajectory
from pibert.solver.turbulence import Turbulence
from tests.command import well

PLAN = """
[data]
path = "{flows}"
shares = {{ train = 0.4, valid = 0.2, calibration = 0.2 }}

[model]
name = "pibert-mr"
options = {{ width = 8, local_width = 8, token_width = 8, heads = 2, cycles = 1, modes = 2 }}

[pretraining]
epochs = 1
batch_size = 8
micro_batch = "none"

[training]
epochs = 1
batch_size = 8
"""


@pytest.fixture(scope="module")
def flows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    recipe = Turbulence(samples=5, shape=(12, 16), frames=6, interval=0.2, viscosity=(8e-3, 3e-2))
    path = tmp_path_factory.mktemp("flows") / "flows.h5"
    write(path, recipe.simulate(list(range(5))))  # type: ignore[arg-type]
    return path


@pytest.fixture(scope="module")
def trained(flows: Path) -> Path:
    """Pretrained, then trained."""
    plan, out = flows.parent / "plan.toml", flows.parent / "run"
    plan.write_text(PLAN.format(flows=flows))
    well("train", "--config", plan, "--out", out)
    return out


def test_it_fills_what_it_was_pretrained_for(trained: Path, flows: Path, tmp_path: Path) -> None:
    with Reader(flows) as reader:
        whole = reader[0]
        valid = torch.ones(whole.num_frames, 12, 16, dtype=torch.bool)
        valid[1:, 3:5, 6:9] = False  # missing, not masked: the first frame knows them
        gaps = Trajectory(
            name="a", states=whole.read(), time=whole.time, spec=whole.spec, valid=valid
        )
        write(tmp_path / "gaps.h5", [gaps])
    model, out = trained / "pretraining", tmp_path / "f.h5"
    well("fill", tmp_path / "gaps.h5", "--model", model, "--no-flag-outliers", "--out", out)
    with Reader(out) as reader:
        found = reader[0].read()
    there = valid[:, None].expand_as(found)
    assert found.isfinite().all() and torch.equal(found[there], gaps.read()[there])
