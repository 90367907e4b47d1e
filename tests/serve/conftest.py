"""Servers that the tests share, as starting one takes seconds."""

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from pibert.data.dataset import Window
from pibert.data.format import write
from pibert.fields import Grid, Parameter, Trajectory
from pibert.inference import CalibrationSettings, Predictor, calibrate, save_calibration, save_model
from pibert.inference.calibration_file import SHEET, TENSORS
from tests.helpers import randomise, tiny_model
from tests.inference.flows import flows, samples_of, saved, spec_of, unit
from tests.inference.small import predictor
from tests.serve.server_process import ServerProcess, save_small

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
    waves = saved(folder / "waves")
    found = calibrate(
        waves,
        samples_of(flows(4, seed=1), Window(history=2)),
        samples_of(flows(32, seed=2), Window(history=2, horizon=3)),
        CalibrationSettings(leads=3, starts=4),
    )
    save_calibration(folder / "waves", found, waves.spec.channels)
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
    with ServerProcess([models / "wake", models / "waves", *sample, "--wait", 100]) as started:
        yield started


@pytest.fixture(scope="session")
def alone(models: Path) -> Iterator[ServerProcess]:
    """One model, whose calibration lies elsewhere, and a recording that is shifted."""
    options = ("--calibration", models / "calibrated", "--sample", models / "shifted.h5")
    with ServerProcess([models / "bare", *options, "--wait", 0]) as started:
        yield started


@pytest.fixture(scope="session")
def site(models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """For the page: the waves with prediction intervals, and models unlike them.

    ``calm`` has other weights; ``coarse`` another history, grid and one more parameter.
    """
    folder = tmp_path_factory.mktemp("site")
    spec, grid = spec_of(), Grid((6, 9), dx=0.4, dy=0.8 / 3)
    coarse = replace(spec, grid=grid, parameters=(*spec.parameters, Parameter(name="Ma")))
    torch.manual_seed(0)
    settings = {"width": 8, "heads": 2, "depth": 1, "modes": 2, "refine_width": 4}
    model = tiny_model("pibert", coarse, **settings, history=3)
    with torch.no_grad():
        for parameter in randomise(model, 0).parameters():
            parameter.mul_(0.3)
    save_model(folder / "coarse", model, unit(), trained={"forward": True})
    saved(folder / "calm", seed=1)
    write(folder / "case1.h5", flows(1, seed=1))
    served = [models / "waves", folder / "calm", folder / "coarse"]
    with ServerProcess([*served, "--sample", folder / "case1.h5", "--wait", 0]) as started:
        yield started


@pytest.fixture(scope="session")
def strict(models: Path) -> Iterator[ServerProcess]:
    """One model, a token and tight limits."""
    limits = {"body": 0.2, "steps": 20, "samples": 4, "queue": 2, "wait": 0}
    options = [text for name, value in limits.items() for text in (f"--{name}", value)]
    with ServerProcess([models / "wake", *options], PIBERT_TOKEN=TOKEN) as started:
        yield started


@pytest.fixture
def joint() -> Predictor:
    """A predictor without a server."""
    made = predictor()
    return Predictor(made.model, made.normalizer)


@pytest.fixture
def alive(server: ServerProcess) -> Iterator[ServerProcess]:
    """The server, which must still live when the test is over."""
    yield server
    assert server.is_alive
