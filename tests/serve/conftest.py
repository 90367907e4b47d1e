"""Servers that the tests of serving share: starting one takes seconds."""

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from pibert.data.dataset import Window
from pibert.data.format import write
from pibert.fields import Trajectory
from pibert.trust import Settings, calibrate, save_calibration
from pibert.trust.artefact import SHEET, TENSORS
from tests.serve.server_process import ServerProcess, save_small
from tests.trust.flows import flows, samples_of, saved

TOKEN = "a token of tests"
MODEL_FILES = ("model.json", "model.safetensors")


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models ``wake`` and ``waves``, which has a sample and a calibration.

    ``bare`` is ``waves`` alone, its calibration lies in ``calibrated``. ``shifted.h5`` is a flow
    whose coordinates and times do not begin at zero.
    """
    folder = tmp_path_factory.mktemp("models")
    save_small(folder / "wake", consistency=False)
    predictor = saved(folder / "waves")
    found = calibrate(
        predictor,
        samples_of(flows(4, seed=1), Window(history=2)),
        samples_of(flows(32, seed=2), Window(history=2, horizon=3)),
        Settings(leads=3, starts=4),
    )
    save_calibration(folder / "waves", found, predictor.spec.channels)
    write(folder / "waves" / "sample.h5", flows(2))
    write(folder / "more.h5", flows(1, seed=3, frames=5))
    for name, files in (("bare", MODEL_FILES), ("calibrated", (SHEET, TENSORS))):
        (folder / name).mkdir()
        for file in files:
            shutil.copy(folder / "waves" / file, folder / name)
    write(folder / "shifted.h5", [shifted(flows(1, seed=5)[0])])
    return folder


def shifted(flow: Trajectory) -> Trajectory:
    """With the origin at (-1.5, 0.4), from time 5 on, in diameters."""
    grid = replace(flow.spec.grid, origin=(-1.5, 0.4))
    return replace(
        flow,
        name="shifted",
        spec=replace(flow.spec, grid=grid),
        time=5 + flow.time,
        length_unit="D",
        time_unit="D/U",
    )


@pytest.fixture(scope="session")
def server(models: Path) -> Iterator[ServerProcess]:
    """With both models; a request waits long for others, so that they are joined for certain."""
    sample = ("--sample", models / "more.h5")
    started = ServerProcess([models / "wake", models / "waves", *sample, "--wait", 100])
    yield started.wait_until_ready()
    assert started.stop() == 0


@pytest.fixture(scope="session")
def alone(models: Path) -> Iterator[ServerProcess]:
    """One model, whose calibration lies elsewhere, and a recording that is shifted."""
    options = ("--calibration", models / "calibrated", "--sample", models / "shifted.h5")
    started = ServerProcess([models / "bare", *options, "--wait", 0])
    yield started.wait_until_ready()
    assert started.stop() == 0


@pytest.fixture(scope="session")
def strict(models: Path) -> Iterator[ServerProcess]:
    """One model, a token and tight limits."""
    limits = {"body": 0.2, "steps": 20, "samples": 4, "queue": 2, "wait": 0}
    options = [text for name, value in limits.items() for text in (f"--{name}", value)]
    started = ServerProcess([models / "wake", *options], PIBERT_TOKEN=TOKEN)
    yield started.wait_until_ready()
    assert started.stop() == 0


@pytest.fixture
def alive(server: ServerProcess) -> Iterator[ServerProcess]:
    """The server, which must still live when the test is over."""
    yield server
    assert server.is_alive
