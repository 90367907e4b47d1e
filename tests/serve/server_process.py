"""A real server process on a real socket, with small models."""

import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self

import httpx

from pibert.inference import save_model
from tests.helpers import PATIENCE, wait_until
from tests.inference.small import predictor

ROOT = Path(__file__).parents[2]


def save_small(folder: Path, *, consistency: bool = True, **overrides: Any) -> Path:
    made = predictor(**overrides)
    trained = {"forward": True, "reconstruct": True, "consistency": consistency}
    return save_model(folder, made.model, made.normalizer, trained=trained, metrics={"error": 0.25})


class ServerProcess:
    """``pibert serve``, from its first line to its end."""

    def __init__(self, arguments: Sequence[Any], **environment: str) -> None:
        command = [sys.executable, "-m", "pibert", "serve", *map(str, arguments)]
        # A pipe that nobody reads would fill up, and the server would wait for ever.
        self.errors = tempfile.TemporaryFile("w+")
        self.process = subprocess.Popen(
            [*command, "--port", "0"],
            stdout=subprocess.PIPE,
            stderr=self.errors,
            text=True,
            cwd=ROOT,
            env=os.environ | {"OMP_NUM_THREADS": "1", "NO_COLOR": "1"} | environment,
        )
        assert self.process.stdout is not None
        first = self.process.stdout.readline()
        found = re.search(r"http://127\.0\.0\.1:(\d+)/", first)
        if found is None:
            self.errors.seek(0)
            raise AssertionError(f"no address: {first!r} {self.errors.read()}")
        self.port = int(found[1])
        self.client = httpx.Client(base_url=f"http://127.0.0.1:{self.port}", timeout=PATIENCE)

    def wait_until_ready(self) -> Self:
        wait_until(lambda: self.client.get("/ready").status_code == 200)
        return self

    def __enter__(self) -> Self:
        return self.wait_until_ready()

    def __exit__(self, *_: object) -> None:
        assert self.stop() == 0

    @property
    def is_alive(self) -> bool:
        return self.client.get("/health").json() == {"status": "alive"}

    def stop(self) -> int:
        self.client.close()
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        code = self.process.wait(PATIENCE)
        assert self.process.stdout is not None
        self.process.stdout.close()
        self.errors.close()
        return code
