"""Fixtures of the tests of model files and predictions."""

from collections.abc import Iterator

import pytest
from jaxtyping import config


@pytest.fixture
def no_shape_checks() -> Iterator[None]:
    """Call the package as a user does: the checks of the test run would answer before our own."""
    config.update("jaxtyping_disable", True)
    yield
    config.update("jaxtyping_disable", False)
