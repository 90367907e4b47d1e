"""Paired tests: Holm's correction by hand, known differences, and chance level without one."""

import pytest
import torch

from pibert.comparison.paired import BATCHES, holm, p_value, paired_tests
from pibert.comparison.plan import Job
from pibert.comparison.rows import RESAMPLES, measures_of
from pibert.evaluation.scores import Scores, read_scores
from tests.comparison.conftest import Carried
from tests.comparison.setups import comparison_of
from tests.comparison.test_plan import DATA
from tests.helpers import refused

TERMS = "terms/physical/pointwise"


def test_holm_multiplies_by_the_tests_left_and_never_decreases() -> None:
    # Worked example: 4 x 0.005, 3 x 0.01, 2 x 0.03, then 1 x 0.04 raised to its predecessor.
    found = holm([0.01, 0.04, 0.03, 0.005])
    assert found == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.6, None, 0.5]) == pytest.approx([1.0, None, 1.0])
    assert holm([0.02]) == [0.02] and holm([]) == []


def test_p_values_count_the_smaller_tail_twice() -> None:
    ratios = torch.cat((torch.full((30,), 0.5), torch.full((969,), 2.0))).double()
    assert p_value(ratios) == pytest.approx(2 * 31 / 1000)
    assert p_value(1 / ratios) == p_value(ratios)
    assert p_value(torch.ones(99)) == 1.0
    assert p_value(torch.tensor([2.0] * 8 + [torch.nan] * 2)) is None
    assert p_value(torch.full((99,), torch.inf)) == pytest.approx(2 / 100)


def with_error(scores: Scores, *, errors: torch.Tensor) -> Scores:
    """The same frames with the squared errors of each test flow multiplied by a factor."""
    flows = scores.arrays["rows/trajectory"].unique(return_inverse=True)[1]
    terms = scores.arrays[TERMS].clone()

    measure = measures_of(scores)["physical/pointwise"]
    before = measure.squared_error(terms.sum(0))  # type: ignore[attr-defined]
    for column in range(terms.shape[1]):
        probe = terms.sum(0).clone()
        probe[column] = probe[column] * 2
        if measure.squared_error(probe) != before:  # type: ignore[attr-defined]
            terms[:, column] *= errors[flows]
    return Scores(scores.card, {**scores.arrays, TERMS: terms})


def test_a_uniform_difference_is_found_and_the_ratio_is_that_of_the_errors(
    carried: Carried,
) -> None:
    mine = read_scores(Job("waves", "fno2d", 3).folder(carried.out))
    flows = len(mine.arrays["rows/trajectory"].unique())
    noise = torch.rand(flows, generator=torch.Generator().manual_seed(1)).double()
    scores = {
        Job("waves", "pibert-mr", 0): mine,
        Job("waves", "double", 0): with_error(mine, errors=torch.full((flows,), 2.0).double()),
        Job("waves", "same", 0): mine,
        Job("waves", "mixed", 0): with_error(mine, errors=0.4 + 1.2 * noise),
    }
    tests = {test["against"]: test for test in paired_tests(scores, "pibert-mr")}
    assert list(tests) == ["double", "same", "mixed"]
    least = 2 / (1 + BATCHES * RESAMPLES)
    double = tests["double"]
    assert double["ratio"] == pytest.approx(2.0)
    assert double["low"] == pytest.approx(2.0) and double["high"] == pytest.approx(2.0)
    assert double["p"] == pytest.approx(least) and double["p_holm"] == pytest.approx(3 * least)
    assert tests["same"]["ratio"] == 1.0 and tests["same"]["p_holm"] == 1.0
    mixed = tests["mixed"]
    assert mixed["low"] < 1 < mixed["high"] and mixed["p"] > 0.05


def test_seeds_that_disagree_widen_the_interval(carried: Carried) -> None:
    mine = read_scores(Job("waves", "fno2d", 3).folder(carried.out))
    flows = len(mine.arrays["rows/trajectory"].unique())

    def scaled(factor: float) -> Scores:
        return with_error(mine, errors=torch.full((flows,), factor).double())

    own = {Job("waves", "pibert-mr", seed): mine for seed in range(3)}
    rival = {Job("waves", "rival", n): scaled(f) for n, f in enumerate((1.1, 1.2, 1.3))}
    (test,) = paired_tests(own | rival, "pibert-mr")
    assert test["ratio"] == pytest.approx(1.2)
    assert test["low"] == pytest.approx(1.1) and test["high"] == pytest.approx(1.3)
    assert paired_tests(own, "pibert-mr") == [] and paired_tests(own | rival, None) == []


def test_results_state_the_tests_of_the_chosen_model(carried: Carried) -> None:
    tests = carried.results["data"]["waves"]["paired_tests"]
    assert [test["against"] for test in tests] == ["fno2d", "persistence", "linear-extrapolation"]
    assert {test["model"] for test in tests} == {"pibert"}
    for test in tests:
        assert test["low"] <= test["ratio"] <= test["high"]
        assert test["p"] <= test["p_holm"] <= 1
    assert comparison_of(DATA, tested="fno2d").tested_model == "fno2d"
    with refused("'unet'", "among the candidates", "set tested"):
        comparison_of(DATA, tested="unet")
