"""Multiresolution PIBERT through every command, on flows and a model as small as they can be."""

import asyncio
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import torch
import uvicorn

import pibert
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


def test_it_predicts_with_intervals_is_scored_and_explains(
    trained: Path, flows: Path, tmp_path: Path
) -> None:
    well("calibrate", trained, "--leads", "2", "--starts", "4")
    well("evaluate", trained, "--rollout", "2")
    out = tmp_path / "next.h5"
    well("rollout", flows, "--model", trained, "--steps", "2", "--level", "0.5", "--out", out)
    with Reader(out) as reader:
        assert reader[0].read().isfinite().all()
    with Reader(flows) as reader:
        frame, known = reader[0].read(slice(0, 1)), reader[0].parameters
    found = pibert.load(trained).explain(frame, dict(known))
    assert found.attention.shape[-2:] == found.bias.shape[-2:] == (3, 4)
    assert found.notes == () and found.prediction.isfinite().all()


def test_it_is_served(trained: Path, flows: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with Reader(flows) as reader:
        frame, known = reader[0].read(slice(0, 1)), dict(reader[0].parameters)
    body = {"model": "run", "fields": frame.tolist(), "parameters": known}
    answers: list[httpx.Response] = []

    async def ask(gate: Any) -> None:
        transport = httpx.ASGITransport(gate)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
            answers.append(await client.post("/v1/step", json=body))

    # Without a socket: starting a server takes longer than all the rest.
    monkeypatch.setattr(
        uvicorn.Server, "run", lambda server, sockets: asyncio.run(ask(server.config.app))
    )
    well("serve", trained, "--port", 0)
    (answer,) = answers
    assert answer.status_code == 200, answer.text
    expected = pibert.load(trained).step(frame, known)
    np.testing.assert_allclose(answer.json()["prediction"], expected, rtol=1e-4, atol=1e-4)
