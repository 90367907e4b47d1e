"""The beginning and the end of a server process."""

import json
import signal
from pathlib import Path

import httpx
import pytest
from typer.testing import CliRunner

from pibert.cli import app
from tests.helpers import PATIENCE
from tests.predictor.small import frames
from tests.serve.server_process import ServerProcess


def test_a_rollout_under_way_is_finished_after_sigterm(models: Path):
    server = ServerProcess([models / "wake", "--wait", 0]).wait_until_ready()
    body = {"fields": frames(1).tolist(), "steps": 60}
    with server.client.stream("POST", "/v1/rollout", json=body) as answer:
        lines = answer.iter_lines()
        first = json.loads(next(lines))
        server.process.send_signal(signal.SIGTERM)
        rest = [json.loads(line) for line in lines]
    assert first["start"] == 0 and len(rest) == 60
    assert rest[-1] == {"end": True, "frames": 60}
    assert server.process.wait(PATIENCE) == 0
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"http://127.0.0.1:{server.port}/health")
    server.stop()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nowhere"], "nowhere"),
        (["wake", "--queue", "0"], "--queue: expected at least 1"),
        (["wake", "--body", "10", "--memory", "100"], "--memory: expected at least 32 times"),
        (["wake", "--token-file", "short"], "at least 8"),
        (["wake", "--sample", "short"], "not an HDF5 file"),
    ],
)
def test_a_wrong_start_is_told_in_one_line(
    models: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], words: str
):
    monkeypatch.chdir(models)
    (models / "short").write_text("abc\n")
    done = CliRunner().invoke(app, ["serve", *arguments])
    assert done.exit_code == 2 and words in " ".join(done.stderr.split())
