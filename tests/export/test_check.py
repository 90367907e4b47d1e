"""How far an exported model is from its source."""

import math

import pytest
import torch

from pibert.export.check import measure
from pibert.fields import Normalizer
from pibert.inference import Predictor
from tests.helpers import tiny_model


@pytest.fixture
def predictor() -> Predictor:
    return Predictor(tiny_model("persistence"), Normalizer((1e5, 0.0), (2.0, 0.5)))


def frames(predictor: Predictor) -> torch.Tensor:
    z = torch.randn(3, 1, 2, 16, 16, generator=torch.Generator().manual_seed(0)).clamp(-3, 3)
    return predictor.normalizer.invert(z)


def test_a_difference_counts_against_the_fluctuations(predictor: Predictor) -> None:
    expected = frames(predictor)
    expected[0, 0, 1, 0, 0] = 2.0  # the largest of v
    found = expected.clone()
    found[2, 0, 1, 3, 4] -= 0.01
    difference = measure(found, expected, predictor)
    assert difference.absolute["u"] == 0 and math.isclose(
        difference.absolute["v"], 0.01, rel_tol=1e-4
    )
    assert math.isclose(difference.relative, 0.005, rel_tol=1e-4)
    assert math.isclose(difference.excess, difference.relative, rel_tol=1e-3)
