"""Fixtures of the export tests: simulated flows and models that are not persistence."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from jaxtyping import config

from pibert.data.format import Reader, write
from pibert.fields import FieldSpec
from pibert.solver.turbulence import Turbulence

SHAPE = (16, 24)


@pytest.fixture(scope="module", autouse=True)
def no_shape_checks() -> Iterator[None]:
    """Call the package as a user does: the checks of the test run cannot be traced."""
    config.update("jaxtyping_disable", True)
    yield
    config.update("jaxtyping_disable", False)


@pytest.fixture(scope="package")
def flows(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Decaying turbulence on a non-square grid."""
    recipe = Turbulence(samples=2, shape=SHAPE, frames=5, interval=0.2, viscosity=(8e-3, 3e-2))
    path = tmp_path_factory.mktemp("flows") / "flows.h5"
    write(path, recipe.simulate([0, 1]))  # type: ignore[arg-type]
    return path


@pytest.fixture(scope="package")
def spec(flows: Path) -> FieldSpec:
    with Reader(flows) as reader:
        return reader[0].spec
