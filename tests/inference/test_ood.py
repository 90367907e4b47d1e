"""Surprisals and the out-of-distribution warning with and without planted faults."""

import math

import torch

from pibert.inference.conformal import summarise
from pibert.inference.ood import (
    FeatureStatistics,
    OODDetector,
    Surprisal,
    score_names,
    window_features,
    window_scores,
)
from pibert.inference.windows import Windows
from studies.consistency_metrics import auc
from tests.helpers import assert_close, refused
from tests.inference.flows import BODY, flows, spec_of, unit


def detector_of(reference: torch.Tensor, groups: torch.Tensor) -> OODDetector:
    """Of scores (n, score) and (group, window, score)."""
    surprisal = Surprisal.of(reference)
    largest = surprisal.of_scores(groups.flatten(0, 1)).amax(1).unflatten(0, groups.shape[:2])
    atoms = torch.stack([summarise(own, 32) for own in largest])
    names = tuple(f"score {index}" for index in range(reference.shape[1]))
    return OODDetector(names, surprisal, atoms, torch.ones(len(groups)), len(groups))


def draw(*shape: int, seed: int) -> torch.Tensor:
    """Windows of trajectories that differ: (group, window, score)."""
    generator = torch.Generator().manual_seed(seed)
    own = torch.randn(shape[0], 1, shape[2], generator=generator, dtype=torch.float64)
    return own + 0.5 * torch.randn(*shape, generator=generator, dtype=torch.float64)


def test_the_false_alarm_rate_is_at_most_the_accepted_one():
    rate, flagged = 0.1, []
    for seed in range(150):
        groups = draw(60, 6, 3, seed=seed)
        detector = detector_of(groups[:20].flatten(0, 1), groups[20:50])
        flagged.append(detector.detect(groups[50:, 0], rate).flagged.double())
    found = torch.cat(flagged)
    # Windows of one trial share a detector: the trials, not the windows, are independent.
    trials = found.view(150, -1).mean(1)
    assert float(found.mean()) <= rate + 3 * float(trials.std()) / math.sqrt(150)
    assert float(found.mean()) > rate / 3


def test_a_planted_shift_is_flagged_and_its_score_named():
    detector = detector_of(draw(40, 6, 3, seed=0).flatten(0, 1), draw(40, 6, 3, seed=1))
    sound, odd = draw(40, 6, 3, seed=2).flatten(0, 1), draw(40, 6, 3, seed=3).flatten(0, 1)
    odd[:, 1] += 8.0
    largest = torch.cat([detector.surprisal.of_scores(scores).amax(1) for scores in (sound, odd)])
    labels = torch.arange(len(largest)) >= len(sound)
    assert auc(largest, labels) > 0.99
    found = detector.detect(odd, 0.05)
    assert float(found.flagged.double().mean()) > 0.95
    assert found.reasons.count("score 1") > 0.95 * len(odd)


def test_a_rate_below_the_least_p_value_is_refused():
    detector = detector_of(draw(10, 6, 2, seed=0).flatten(0, 1), draw(9, 6, 2, seed=1))
    with refused("0.1", "9 calibration units"):
        detector.detect(draw(1, 2, 2, seed=2)[0], 0.05)


def windows_of(fields: torch.Tensor) -> Windows:
    known = ~BODY.expand(*fields.shape[:2], *fields.shape[-2:])
    hidden = torch.where(known[:, :, None], fields, torch.nan)
    return Windows(fields=hidden, known=known, encoded=torch.zeros(len(fields), 16))


def test_scores_react_to_wrong_units_wrong_signs_and_single_wrong_vectors():
    names = score_names(spec_of(), consistency=True)
    windows = torch.stack([t.read(slice(2, 4)) for t in flows(30)])
    statistics = FeatureStatistics.of(window_features(windows_of(windows), spec_of(), unit()))

    def scores(fields: torch.Tensor) -> dict[str, torch.Tensor]:
        given, consistency = windows_of(fields), torch.full((len(fields),), 0.9)
        found = window_scores(given, consistency, spec_of(), unit(), statistics)
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
