"""Settings for every test process, and the type checker that the shape hook uses.

Nothing of pibert is imported here: it would be loaded before the checker is in place.
"""

import importlib
import os
import random
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jaxtyping
import numpy as np
import pytest
import torch

try:
    from tests import checking
except ImportError:
    # A machine that was not set up by the Makefile: pytest -o addopts= runs without the hook.
    pass
else:
    checking.install()

# The tests start many processes: without compiled files each of them compiles the package anew.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
# As in the Makefile: spinning threads of several processes make each other many times slower.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("pibert")
    group.addoption(
        "--seed", type=int, default=0, help="Draw other random numbers in the tests (default: 0)"
    )
    group.addoption(
        "--threads",
        type=int,
        help="Set the threads of torch, also in the processes that tests start "
        "(default: 1 with pytest-xdist, else torch's own choice)",
    )


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    threads = config.getoption("threads")
    if threads is None and "PYTEST_XDIST_WORKER" in os.environ:
        # Worker processes share the cores; threads on top of them only fight.
        threads = 1
    if threads is not None:
        torch.set_num_threads(threads)
        os.environ["OMP_NUM_THREADS"] = str(threads)
    # The shape checker and patches of tests reach readers only in the process of the test.
    os.environ.setdefault("PIBERT_READ_IN_PROCESS", "1")
    if getattr(config.option, "hypothesis_seed", "") is None:
        config.option.hypothesis_seed = str(config.getoption("seed"))


def seed_all(config: pytest.Config, name: str) -> None:
    """Seed torch, NumPy and random by a name and ``--seed``: the order of tests has no effect."""
    seed = zlib.crc32(f"{config.getoption('seed')} {name}".encode())
    torch.manual_seed(seed)
    np.random.seed(seed)
    random.seed(seed)


@pytest.fixture(autouse=True)
def seeded(request: pytest.FixtureRequest) -> None:
    seed_all(request.config, request.node.nodeid)


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(
    fixturedef: pytest.FixtureDef[Any], request: pytest.FixtureRequest
) -> Iterator[None]:
    """Seed what several tests share by its own name, and not by the first test that needs it."""
    if fixturedef.scope == "function":
        return (yield)
    states = torch.get_rng_state(), np.random.get_state(), random.getstate()
    number = getattr(request, "param_index", 0)
    seed_all(request.config, f"{fixturedef.baseid}::{fixturedef.argname} {number}")
    try:
        return (yield)
    finally:
        torch.set_rng_state(states[0])
        np.random.set_state(states[1])
        random.setstate(states[2])


@pytest.fixture(scope="session", autouse=True)
def undrawn_curves() -> Iterator[None]:
    """Runs write a placeholder for their curves: drawing takes longer than a small training.

    ``tests/report/test_curves.py`` draws curves; ``drawn_curves`` lets a run draw them.
    """
    # The package has a function of the module's name.
    module = importlib.import_module("pibert.experiments.run")
    curves = importlib.import_module("pibert.report.curves")

    def mark(log: Path, picture: Path) -> None:
        if not curves.read_epochs(log):
            raise ValueError(f"{log}: expected a record of an epoch, found none")
        picture.write_bytes(b"a placeholder")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(module, "draw_curves", mark)
        yield


@pytest.fixture
def drawn_curves(monkeypatch: pytest.MonkeyPatch) -> None:
    draw = importlib.import_module("pibert.report.curves").draw_curves
    monkeypatch.setattr(importlib.import_module("pibert.experiments.run"), "draw_curves", draw)


@pytest.fixture
def no_shape_checks() -> Iterator[None]:
    """Call the package as a user does: checks would raise first, and Dynamo cannot trace them."""
    jaxtyping.config.update("jaxtyping_disable", True)
    yield
    jaxtyping.config.update("jaxtyping_disable", False)
