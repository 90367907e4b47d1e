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


@pytest.fixture
def own() -> list[float]:
    return draw()


@pytest.mark.parametrize("number", [1, 2])
def test_a_test_draws_by_its_name_and_the_seed(
    request: pytest.FixtureRequest, own: list[float], number: int
) -> None:
    found = own + draw()
    seed_all(request.config, request.node.nodeid)
    assert draw() + draw() == found
    seed_all(request.config, "another")
    assert not set(draw()) & set(found)


def test_a_shared_fixture_draws_by_its_own_name(
    request: pytest.FixtureRequest, own: list[float]
) -> None:
    found: list[float] = request.getfixturevalue("shared")
    seed_all(request.config, request.node.nodeid)
    assert draw() == own
    assert not set(own) & set(found)
    seed_all(request.config, "tests/test_seeding.py::shared 0")
    assert draw() == found


def test_a_fixture_that_is_made_in_a_test_leaves_its_generators_alone(
    request: pytest.FixtureRequest,
) -> None:
    first = draw()
    request.getfixturevalue("fresh")
    second = draw()
    seed_all(request.config, request.node.nodeid)
    assert draw() + draw() == first + second


@pytest.fixture(scope="module")
def fresh() -> list[float]:
    return draw()
