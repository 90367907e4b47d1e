"""Coverage and CRPS of prediction intervals, for distributions where both are known."""

import math
from dataclasses import replace

import pytest
import torch

from pibert.evaluation.interval_scores import (
    LEVELS,
    IntervalLeads,
    interval_terms,
)
from pibert.fields import FieldSpec, Grid

SHAPE = (60, 80)
SPEC = FieldSpec(channels=("u", "v"), units=("m/s", "m/s"), grid=Grid(SHAPE, dx=1.0, dy=1.0))


def scores(sigma: float, width: float, shift: float = 0.0) -> dict[tuple[str, str], float]:
    """Errors N(shift, sigma^2), intervals of N(0, width^2)."""
    torch.manual_seed(0)
    truth = torch.randn(3, 2, *SHAPE, dtype=torch.float64) * sigma - shift
    halves = math.sqrt(2) * width * torch.erfinv(torch.tensor(LEVELS, dtype=torch.float64))
    quantiles = halves[:, None, None].expand(-1, 3, 2) * 7  # the common factor does not matter
    half = torch.full_like(truth, float(halves[-1]))
    known = torch.ones(3, *SHAPE, dtype=torch.bool)
    rows = interval_terms(torch.zeros_like(truth), half, truth, known, LEVELS, quantiles)
    measure = IntervalLeads(spec=SPEC)
    values = measure.values(rows.sum(0)).tolist()
    return {(e.metric, e.component): v for e, v in zip(measure.entries, values, strict=True)}


def test_a_calibrated_normal_distribution_has_its_coverage_and_crps() -> None:
    found = scores(2.0, 2.0)
    assert found["coverage", "all"] == pytest.approx(LEVELS[-1], abs=0.01)
    # CRPS of N(0, s^2) against itself: s / sqrt(pi).
    assert found["crps", "u"] == pytest.approx(2.0 / math.sqrt(math.pi), rel=0.01)
    assert found["crps", "all"] == pytest.approx((found["crps", "u"] + found["crps", "v"]) / 2)


def test_intervals_that_are_wrong_have_another_coverage_and_a_larger_crps() -> None:
    right = scores(1.0, 1.0)
    for wrong in (scores(1.0, 0.3), scores(1.0, 4.0), scores(1.0, 1.0, shift=2.0)):
        assert abs(wrong["coverage", "all"] - LEVELS[-1]) > 0.05
        assert wrong["crps", "v"] > 1.1 * right["crps", "v"]


def test_unknown_points_do_not_count_and_lost_frames_are_not_covered() -> None:
    truth = torch.zeros(2, 2, *SHAPE)
    centre = torch.zeros_like(truth)
    centre[1] = math.nan
    centre[0, :, 0, 0] = 100.0
    known = torch.ones(2, *SHAPE, dtype=torch.bool)
    known[:, 0, 0] = False
    quantiles = torch.ones(1, 2, 2)
    rows = interval_terms(centre, torch.ones_like(truth), truth, known, [0.9], quantiles)
    values = IntervalLeads(spec=SPEC).values(rows)
    assert values[0, :3].tolist() == [1.0, 1.0, 1.0]
    assert values[1, :3].tolist() == [0.0, 0.0, 0.0] and bool(values[1, 3:].isinf().all())
    # An error of 0 and a half-width of 1: integrand 0, 0.1 and 0 at levels 0, 0.9 and 1.
    assert values[0, 3].item() == pytest.approx(0.1 / 2)


def test_all_leaves_out_the_state_of_a_structure() -> None:
    spec = replace(SPEC, channels=("u", "v", "lift"), units=("m/s", "m/s", "1"), state=("lift",))
    sums = torch.tensor([[10.0, 9.0, 1.0], [10.0, 9.0, 3.0], [10.0, 0.0, 50.0]]).flatten()
    measure = IntervalLeads(spec=spec)
    values = measure.values(sums.double()).tolist()
    found = {(e.metric, e.component): v for e, v in zip(measure.entries, values, strict=True)}
    assert found["coverage", "lift"] == 0 and found["crps", "lift"] == 5
    assert found["coverage", "all"] == pytest.approx(0.9)
    assert found["crps", "all"] == pytest.approx(0.2)
