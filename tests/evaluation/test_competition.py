"""The competition's scores against values worked out by hand."""

import math
from typing import Any

import pytest
import torch

from pibert.evaluation.measure import Frames
from pibert.evaluation.official import SIGMA, Competition
from pibert.fields import FieldSpec, Grid

SPEC = FieldSpec(
    channels=("u", "v"),
    units=("m/s", "m/s"),
    grid=Grid((32, 64), 0.02, 0.02),
    family="incompressible",
)


def scores_of(truth: torch.Tensor, prediction: torch.Tensor, **changes: Any) -> list[float]:
    given = {
        "truth": truth,
        "prediction": prediction,
        "last": truth,
        "known": torch.ones(len(truth), 32, 64, dtype=torch.bool),
        "body": None,
        "spec": SPEC,
    }
    measure = Competition(spec=SPEC)
    return measure.values(measure.terms(Frames(**{**given, **changes})).sum(0)).tolist()


def window(seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return 0.2 + 0.05 * torch.rand(20, 2, 32, 64, generator=generator, dtype=torch.float64)


def test_a_perfect_prediction_scores_100_but_for_the_width_of_its_intervals() -> None:
    truth = window()
    rel_l2, tke, mvpe, sps = scores_of(truth, truth)
    assert (rel_l2, tke, mvpe) == (100.0, 100.0, 100.0)
    assert sps == pytest.approx(100 * float(torch.exp(-0.1 * truth / SIGMA).mean()), rel=1e-12)


def test_a_scaled_prediction_has_the_error_of_its_scale() -> None:
    truth = window()
    rel_l2, tke, mvpe, sps = scores_of(truth, 1.5 * truth)
    assert rel_l2 == pytest.approx(100 / 1.25, rel=1e-12)
    assert mvpe == pytest.approx(100 / 1.25, rel=1e-12)
    assert tke == pytest.approx(100 / (1 + 0.5 * 1.25), rel=1e-12)  # 1.5^2 - 1
    assert sps == 0.0  # 5 % of the prediction does not reach the truth


def test_intervals_count_where_the_truth_is_not_zero() -> None:
    truth, measure = window(), Competition(spec=SPEC)
    truth[:, :, :16] = 0.0
    width = 0.01
    lower, upper = truth - width / 2, truth + width / 2
    lower[:, :, 16:24], upper[:, :, 16:24] = 1.0, 2.0  # half of the others miss
    score = measure.values(measure.window_terms(truth, truth, lower, upper).sum(0))[3]
    assert float(score) == pytest.approx(50 * math.exp(-width / SIGMA), rel=1e-12)


def test_unknown_points_count_as_zero() -> None:
    truth, known = window(), torch.ones(20, 32, 64, dtype=torch.bool)
    known[:, :, :10] = False
    wrong = truth.clone()
    wrong[..., :10] = 9.0
    assert scores_of(truth, wrong, known=known)[:3] == [100.0, 100.0, 100.0]


def test_another_grid_is_refused() -> None:
    spec = FieldSpec(
        channels=("u", "v"),
        units=("m/s", "m/s"),
        grid=Grid((64, 128), 0.01, 0.01),
        family="incompressible",
    )
    with pytest.raises(ValueError, match=r"32 x 64 .*found \(64, 128\); .*every=2"):
        Competition(spec=spec)
