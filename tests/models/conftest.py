"""Fixtures of the model tests."""

from collections.abc import Iterator

import pytest
from jaxtyping import config


@pytest.fixture
def no_shape_checks() -> Iterator[None]:
    """Call the package as a user does, without the run-time checks of the test run.

    Dynamo cannot trace them, and they would raise before the package does.
    """
    config.update("jaxtyping_disable", True)
    yield
    config.update("jaxtyping_disable", False)
