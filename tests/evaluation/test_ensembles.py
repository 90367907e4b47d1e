"""Ensembles: CRPS by brute force, and sums over known points by hand."""

import math
from itertools import permutations
from typing import Any, cast

import pytest
import torch
from torch import Tensor

from pibert.data.dataset import Samples, Window
from pibert.evaluation.ensembles import (
    METRICS,
    crps,
    entries_of,
    score_ensemble,
    terms_of,
    values_of,
)
from pibert.evaluation.scoring import seen_by
from pibert.fields import FieldSpec, Grid, Normalizer
from pibert.inference import Predictor
from tests.comparison.setups import SHAPE as WAVES
from tests.comparison.setups import wave
from tests.helpers import randomise, tiny_model

SHAPE = (3, 5)


def normal(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize("count", [2, 3, 8])
def test_crps_is_the_fair_estimate_over_pairs_of_members(count: int) -> None:
    drawn, truth = normal(2, count, 2, *SHAPE), normal(2, 2, *SHAPE, seed=1)
    drawn[0, 1] = drawn[0, 0]  # equal members
    found = crps(drawn, truth)
    for place in ((0, 0, 1, 2), (1, 1, 2, 4), (0, 1, 0, 0)):
        own = drawn[place[0], :, *place[1:]].tolist()
        error = sum(abs(x - truth[place].item()) for x in own) / count
        pairs = sum(abs(a - b) for a, b in permutations(own, 2)) / (2 * count * (count - 1))
        assert found[place].item() == pytest.approx(error - pairs, abs=1e-12)


def value_of(values: Tensor, metric: str, component: int = -1) -> float:
    return values[METRICS.index(metric), component].item()


def test_values_by_hand_over_known_points_and_channels_of_different_units() -> None:
    spec = FieldSpec(channels=("u", "T"), grid=Grid(SHAPE), units=("m/s", "K"), family=None)
    normalizer = Normalizer((0.0, 0.0), (2.0, 10.0))
    drawn, truth = normal(2, 3, 2, *SHAPE), normal(2, 2, *SHAPE, seed=1)
    drawn[:, :, 1] *= 10
    known = torch.rand(2, *SHAPE, generator=torch.Generator().manual_seed(0)) > 0.3
    nonsense = torch.where(known[:, None, None], drawn, 1e9)
    values = values_of(terms_of(nonsense, truth, known, spec, normalizer), 3)
    x, y = drawn.movedim(1, 0).movedim(2, 0), truth.movedim(1, 0)  # channel first
    x, y = x[..., known], y[:, known]  # (channel, draw, point), (channel, point)
    scales = torch.tensor([2.0, 10.0], dtype=torch.float64)
    single = (x - y[:, None]).square().mean((1, 2)) / y.square().mean(1)
    assert values[METRICS.index("draw_nmse"), :2].tolist() == pytest.approx(single.tolist())
    assert value_of(values, "draws_spread", 1) == pytest.approx(x[1].var(0).mean().sqrt().item())
    pooled, wanted = (x / scales[:, None, None]).mean(1), y / scales[:, None]
    error = (pooled - wanted).square()
    assert value_of(values, "draws_mean_nmse") == pytest.approx(
        (error.sum() / wanted.square().sum()).item()
    )
    ranked = torch.stack([value for value in values[METRICS.index("crps"), :2] / scales]).mean()
    assert value_of(values, "crps") == pytest.approx(ranked.item())
    units = {(e.metric, e.component): e.unit for e in entries_of(spec)}
    assert units["crps", "T"] == "K" and units["crps", "all"] == "1"
    assert units["spread_skill", "u"] == "1"


def make_predictor(name: str) -> tuple[Predictor, Samples]:
    trajectories = [wave(number, 9) for number in range(3)]
    normalizer = Normalizer((1.0, 0.1), (0.6, 0.2))
    spec = trajectories[0].spec
    model = randomise(tiny_model(name, spec)).eval()
    samples = Samples(trajectories, window=Window(history=2), normalizer=normalizer)
    return Predictor(model, normalizer), samples


def test_ensemble_is_scored_in_physical_units() -> None:
    predictor, samples = make_predictor("fourierflow")
    entries, values = score_ensemble(predictor, samples, frames=6, members=3)
    assert (entries, values) == score_ensemble(predictor, samples, frames=6, members=3)
    rows = [place * len(samples) // 6 for place in range(6)]
    total = torch.zeros(2, *WAVES, dtype=torch.float64)
    energy, error = 0.0, 0.0
    for row in rows:
        seen = seen_by(predictor, samples, [row])
        with torch.no_grad():
            drawn = cast(Any, predictor.model).samples(seen.x, seen.parameters, seen.mask, 3)[0]
        drawn, truth = (predictor.normalizer.invert(own.double()) for own in (drawn, seen.truth[0]))
        known = seen.known[0]
        total += torch.where(known, drawn.var(0), 0.0)
        energy += float(truth[:, known].square().sum())
        error += float((drawn[..., known] - truth[:, known]).square().sum()) / 3
    points = 2 * 6 * (WAVES[0] * WAVES[1] - 1)  # one was never measured
    found = {(e.metric, e.component): v for e, v in zip(entries, values, strict=True)}
    assert found["draws_spread", "all"] == pytest.approx(math.sqrt(float(total.sum()) / points))
    assert found["draw_nmse", "all"] == pytest.approx(error / energy)
