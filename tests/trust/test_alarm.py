"""Surprises and alarms on planted oddities and on none."""

import math

import pytest
import torch

from pibert.evaluation.consistency import auc
from pibert.trust.alarm import NEGLIGIBLE, Surprise, Watch
from pibert.trust.conformal import summarise
from pibert.trust.oddity import Looks, Typical, part_names, part_scores, window_features
from tests.helpers import assert_close
from tests.trust.flows import BODY, flows, spec_of, unit


def watch_of(reference: torch.Tensor, groups: torch.Tensor) -> Watch:
    """Of scores (n, part) and (group, window, part)."""
    surprise = Surprise.of(reference)
    largest = surprise.parts(groups.flatten(0, 1)).amax(1).unflatten(0, groups.shape[:2])
    atoms = torch.stack([summarise(own, 32) for own in largest])
    names = tuple(f"part {place}" for place in range(reference.shape[1]))
    return Watch(names, surprise, atoms, torch.ones(len(groups)), len(groups))


def draw(*shape: int, seed: int) -> torch.Tensor:
    """Windows of trajectories that differ: (group, window, part)."""
    generator = torch.Generator().manual_seed(seed)
    own = torch.randn(shape[0], 1, shape[2], generator=generator, dtype=torch.float64)
    return own + 0.5 * torch.randn(*shape, generator=generator, dtype=torch.float64)


def test_false_alarms_are_as_rare_as_was_asked():
    rate, alarms = 0.1, []
    for seed in range(150):
        groups = draw(60, 6, 3, seed=seed)
        watch = watch_of(groups[:20].flatten(0, 1), groups[20:50])
        alarms.append(watch.judge(groups[50:, 0], rate).raised.double())
    found = torch.cat(alarms)
    # Windows judged by one watch share its chances: the trials, not the windows, are independent.
    trials = found.view(150, -1).mean(1)
    assert float(found.mean()) <= rate + 3 * float(trials.std()) / math.sqrt(150)
    assert float(found.mean()) > rate / 3


def test_a_planted_shift_is_told_apart_and_its_part_is_named():
    watch = watch_of(draw(40, 6, 3, seed=0).flatten(0, 1), draw(40, 6, 3, seed=1))
    sound, odd = draw(40, 6, 3, seed=2).flatten(0, 1), draw(40, 6, 3, seed=3).flatten(0, 1)
    odd[:, 1] += 8.0
    largest = torch.cat([watch.surprise.parts(scores).amax(1) for scores in (sound, odd)])
    labels = torch.arange(len(largest)) >= len(sound)
    assert auc(largest, labels) > 0.99
    alarm = watch.judge(odd, 0.05)
    assert float(alarm.raised.double().mean()) > 0.95
    assert alarm.parts.count("part 1") > 0.95 * len(odd)


def test_surprise_grows_with_the_score_and_does_not_saturate():
    surprise = Surprise.of(torch.randn(500, 1, generator=torch.Generator().manual_seed(0)))
    found = surprise.parts(torch.linspace(-4, 40, 300)[:, None])[:, 0]
    assert bool((found.diff() > -1e-6).all())
    assert float(found[-1]) > 2 * float(found[150]) > 2 * math.log(501)
    assert float(found[0]) == pytest.approx(0.0, abs=1e-6)


def test_scores_that_never_vary_do_not_divide_by_zero():
    surprise = Surprise.of(torch.full((50, 1), 2.0))
    found = surprise.parts(torch.tensor([[2.0], [2.5]]))[:, 0]
    assert float(found[0]) == pytest.approx(0.0, abs=1e-6) and float(found[1]) > 5


def test_a_rate_that_the_count_cannot_tell_is_refused():
    watch = watch_of(draw(10, 6, 2, seed=0).flatten(0, 1), draw(9, 6, 2, seed=1))
    with pytest.raises(ValueError, match="from 0.1, the least that 9 calibration units"):
        watch.judge(draw(1, 2, 2, seed=2)[0], 0.05)


def test_a_few_unknown_points_leave_no_part_out():
    watch = watch_of(draw(40, 6, 2, seed=0).flatten(0, 1), draw(40, 6, 2, seed=1))
    shares = torch.tensor([0.0, 0.5, 1.5], dtype=torch.float64) * NEGLIGIBLE
    alarm = watch.judge(draw(3, 1, 2, seed=2)[:, 0], unknown=shares)
    assert alarm.limited.tolist() == [False, False, True]


def test_distance_is_that_of_mahalanobis():
    generator = torch.Generator().manual_seed(0)
    mixed = torch.randn(4000, 3, generator=generator, dtype=torch.float64) @ torch.tensor(
        [[2.0, 0.5, 0.0], [0.0, 1.0, 0.3], [0.0, 0.0, 0.1]], dtype=torch.float64
    )
    typical = Typical.of(mixed)
    covariance = torch.cov(mixed.T) + torch.diag(0.01 * mixed.var(0))
    apart = mixed[:5] - mixed.mean(0)
    expected = (apart @ torch.linalg.inv(covariance) * apart).sum(1).sqrt()
    torch.testing.assert_close(typical.distance(mixed[:5]), expected, rtol=1e-3, atol=0.0)


def looks(fields: torch.Tensor) -> Looks:
    seen = ~BODY.expand(len(fields), *fields.shape[-2:])
    return Looks(
        fields=torch.where(seen[:, None, None], fields, torch.nan),
        seen=seen,
        parameters=torch.zeros(len(fields), 16),
        consistency=torch.full((len(fields),), 0.9),
    )


def test_parts_see_wrong_units_wrong_signs_and_single_wrong_vectors():
    names = part_names(spec_of(), consistency=True)
    windows = torch.stack([t.read(slice(2, 4)) for t in flows(30)])
    typical = Typical.of(window_features(looks(windows), spec_of(), unit()))

    def scores(fields: torch.Tensor) -> dict[str, torch.Tensor]:
        found = part_scores(looks(fields), spec_of(), unit(), typical)
        assert bool(found.isfinite().all())
        return dict(zip(names, found.T, strict=True))

    sound = scores(windows)
    for factor in (0.1, 1000.0):
        assert float(scores(factor * windows)["fields"].min()) > float(sound["fields"].max())
    turned = windows * torch.tensor([1.0, -1.0])[:, None, None]
    assert float(scores(turned)["divergence"].min()) > float(sound["divergence"].max())
    spurious = windows.clone()
    spurious[:, -1, :, 6, 8] += 20.0
    assert float(scores(spurious)["extremes"].min()) > float(sound["extremes"].max())
    assert float(scores(spurious)["divergence peak"].min()) > float(sound["divergence peak"].max())
    assert_close(sound["consistency"], torch.full((30,), -math.log(9)).double())
