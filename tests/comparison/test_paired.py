"""Paired tests: corrections and p-values by hand, known differences, and what units are."""

from dataclasses import replace
from functools import partial

import pytest
import torch

from pibert.comparison.paired import FLIPS, holm, p_value, paired_tests, student
from pibert.comparison.plan import Job
from pibert.comparison.rows import independent_units, measures_of
from pibert.evaluation.scores import Scores, read_scores
from tests.comparison.conftest import Carried
from tests.comparison.setups import comparison_of
from tests.comparison.test_plan import DATA
from tests.comparison.test_results import one_recording, repeated
from tests.helpers import refused

TERMS = "terms/physical/pointwise"


def test_holm_multiplies_by_the_tests_left_and_never_decreases() -> None:
    # Worked example: 4 x 0.005, 3 x 0.01, 2 x 0.03, then 1 x 0.04 raised to its predecessor.
    found = holm([0.01, 0.04, 0.03, 0.005])
    assert found == pytest.approx([0.03, 0.06, 0.06, 0.02])
    assert holm([0.6, None, 0.5]) == pytest.approx([1.0, None, 1.0])
    assert holm([0.02]) == [0.02] and holm([]) == []


def row(*errors: float) -> torch.Tensor:
    """The squared errors of one seed."""
    return torch.tensor([errors], dtype=torch.float64)


def test_p_values_are_the_share_of_signs_with_a_sum_as_large() -> None:
    # Differences 3, 2, -1: sums of all signs are +-6, +-4, +-2 and 0 twice; that of these is 4.
    mine, theirs = row(1, 1, 2), row(4, 3, 1)
    assert p_value(mine, theirs) == p_value(theirs, mine) == 4 / 8
    assert p_value(7 * mine, 7 * theirs) == 4 / 8
    assert p_value(mine, mine) == 1.0
    ones = torch.ones(1, 10).double()
    assert p_value(ones, 1.1 * ones) == 2 / 2**10
    assert p_value(row(1, 1), row(1, torch.inf)) is None
    assert p_value(row(1, 1), row(1, torch.nan)) is None


def test_p_values_of_many_units_are_near_the_exact_ones() -> None:
    generator = torch.Generator().manual_seed(4)
    mine = torch.rand(1, 16, generator=generator).double()
    theirs = mine + 0.3 * torch.randn(1, 16, generator=generator) + 0.1
    exact = p_value(mine, theirs)
    # A further flow without a difference changes no sum, but the signs are now drawn.
    drawn = p_value(torch.cat((mine, row(1)), 1), torch.cat((theirs, row(1)), 1))
    assert exact is not None and 0.02 < exact < 0.8
    assert drawn == pytest.approx(exact, abs=0.015) and drawn != exact
    ones = torch.ones(1, 40).double()
    assert p_value(ones, 2 * ones) == pytest.approx(1 / (1 + FLIPS), rel=3)


@pytest.mark.parametrize(
    ("t", "freedom", "p"),
    [(12.706, 1, 0.05), (4.303, 2, 0.05), (3.182, 3, 0.05), (2.776, 4, 0.05), (2.262, 9, 0.05),
     (9.925, 2, 0.01), (3.250, 9, 0.01), (0.0, 3, 1.0), (torch.inf, 2, 0.0)],
)  # fmt: skip
def test_students_t_has_the_tabulated_tails(t: float, freedom: int, p: float) -> None:
    assert student(t, freedom) == pytest.approx(p, rel=2e-3, abs=1e-12)


def test_seeds_that_all_flows_share_are_no_evidence() -> None:
    flows = torch.rand(1, 12, generator=torch.Generator().manual_seed(2)).double()
    mine, theirs = torch.tensor([[1.0], [1.2], [1.1]]), torch.tensor([[1.3], [1.1], [1.2]])
    p = p_value(flows * mine, flows * theirs)
    # All flows agree: the difference 0.1 of means over seeds, each with variance 0.01 / 3.
    assert p is not None and p == pytest.approx(student(0.1 / (0.02 / 3) ** 0.5, 2)) and p > 0.3
    assert p_value(flows * mine[:1], flows * theirs[:1]) == 2 / 2**12
    # One run, as of a predictor without training, counts as it is.
    p = p_value(flows * mine, 2 * flows)
    assert p == pytest.approx(student(0.9 / (0.01 / 3) ** 0.5, 2))


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
    least = 2 / 2**10
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
    assert test["p"] == pytest.approx(student(0.2 / (0.01 / 3) ** 0.5, 2))
    assert paired_tests(own, "pibert-mr") == [] and paired_tests(own | rival, None) == []


def test_a_seed_that_diverged_or_is_missing_gives_no_test(carried: Carried) -> None:
    mine = read_scores(Job("waves", "fno2d", 3).folder(carried.out))
    ones = torch.ones(len(mine.arrays["rows/trajectory"].unique())).double()
    names = ("pibert-mr", "rival", "lost")
    scores = {Job("waves", name, seed): mine for name in names for seed in (0, 1)}
    scores[Job("waves", "rival", 1)] = with_error(mine, errors=torch.inf * ones)
    planned = {"pibert-mr": 2, "rival": 2, "lost": 3}
    assert [test["p"] for test in paired_tests(scores, "pibert-mr", planned)] == [None, None]
    assert paired_tests(scores, "rival", planned) == paired_tests(scores, "lost", planned) == []
    assert [test["p"] for test in paired_tests(scores, "pibert-mr")] == [None, 1.0]


def test_units_are_flows_conditions_or_blocks_of_one_recording(carried: Carried) -> None:
    scores = read_scores(Job("waves", "fno2d", 3).folder(carried.out))
    scores = replace(scores, card={**scores.card, "correlation_frames": 1.9})
    places = scores.arrays["rows/trajectory"].unique(return_inverse=True)[1]
    units = independent_units(scores)
    assert units is not None and torch.equal(units, places)
    assert independent_units(repeated(scores, 9)) is None
    assert independent_units(repeated(scores, 10)) is not None
    blocks = independent_units(one_recording(scores))
    assert blocks is not None and blocks.bincount().tolist() == [6] * 30
    slow = replace(scores, card={**scores.card, "correlation_frames": 5.5})
    blocks = independent_units(one_recording(slow))  # the last of ten has what is left over
    assert blocks is not None and blocks.bincount().tolist() == [17] * 9 + [27]
    unknown = replace(scores, card={**scores.card, "correlation_frames": None})
    assert independent_units(one_recording(unknown)) is None


@pytest.mark.parametrize(("conditions", "count"), [(10, 1), (9, 0)])
def test_fewer_than_ten_conditions_give_no_test(
    conditions: int, count: int, carried: Carried
) -> None:
    jobs = [Job("waves", name, 3) for name in ("pibert", "fno2d")]
    change = partial(repeated, conditions=conditions)
    scores = {job: change(read_scores(job.folder(carried.out))) for job in jobs}
    assert len(paired_tests(scores, "pibert")) == count


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
