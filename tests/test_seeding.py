"""Every test and every shared fixture draws the same numbers, whatever ran before."""

import random

import numpy as np
import pytest
import torch

from tests.conftest import seed_all


def draw() -> list[float]:
    return [torch.rand(()).item(), np.random.rand(), random.random()]


@pytest.fixture(scope="module")
def shared() -> list[float]:
    return draw()


@pytest.mark.parametrize("number", [1, 2])
def test_a_test_and_a_shared_fixture_draw_by_their_own_names(
    request: pytest.FixtureRequest, number: int
) -> None:
    first = draw()
    of_fixture: list[float] = request.getfixturevalue("shared")  # made here, the first time
    second = draw()
    seed_all(request.config, request.node.nodeid)
    assert draw() + draw() == first + second
    seed_all(request.config, "tests/test_seeding.py::shared 0")
    assert draw() == of_fixture
    assert len({*first, *second, *of_fixture}) == 9
