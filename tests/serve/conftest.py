"""Servers that the tests of serving share: starting one takes seconds."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from pibert.data.dataset import Window
from pibert.data.format import write
from pibert.trust import Settings, calibrate, save_calibration
from tests.serve.server_process import ServerProcess, save_small
from tests.trust.flows import flows, samples_of, saved

TOKEN = "a token of tests"


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the models ``wake`` and ``waves``, which has a sample and a calibration."""
    folder = tmp_path_factory.mktemp("models")
    save_small(folder / "wake", consistency=False)
    predictor = saved(folder / "waves")
    found = calibrate(
        predictor,
        samples_of(flows(4, seed=1), Window(history=2)),
        samples_of(flows(24, seed=2), Window(history=2, horizon=3)),
        Settings(leads=3, starts=4),
    )
    save_calibration(folder / "waves", found, predictor.spec.channels)
    write(folder / "waves" / "sample.h5", flows(2))
    write(folder / "more.h5", flows(1, seed=3, frames=5))
    return folder


@pytest.fixture(scope="session")
def server(models: Path) -> Iterator[ServerProcess]:
    """With both models; a request waits long for others, so that they are joined for certain."""
    sample = ("--sample", models / "more.h5")
    started = ServerProcess([models / "wake", models / "waves", *sample, "--wait", 100])
    yield started.wait_until_ready()
    assert started.stop() == 0


@pytest.fixture(scope="session")
def strict(models: Path) -> Iterator[ServerProcess]:
    """One model, a token and tight limits."""
    limits = {"body": 0.2, "steps": 20, "samples": 4, "queue": 2, "timeout": 3, "wait": 0}
    options = [text for name, value in limits.items() for text in (f"--{name}", value)]
    started = ServerProcess([models / "wake", *options], PIBERT_TOKEN=TOKEN)
    yield started.wait_until_ready()
    assert started.stop() == 0


@pytest.fixture
def alive(server: ServerProcess) -> Iterator[ServerProcess]:
    """The server, which must still live when the test is over."""
    yield server
    assert server.is_alive
