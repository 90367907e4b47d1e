import itertools
from collections.abc import Callable

import pytest
import torch

from pibert.pretraining.negatives import Kind
from studies.consistency_metrics import (
    auc,
    probe_auc,
    probe_aucs,
    window_statistics,
)
from tests.pretraining.windows import WindowSet, solver_set, street_set

SETS: dict[str, Callable[[], WindowSet]] = {
    "turbulence": lambda: solver_set("incompressible", 2, 10, 11),
    "heat": lambda: solver_set("heat", 2, 10, 11),
    "street": lambda: street_set(2),
}


def probed(data: WindowSet, kind: Kind, amplitude: float | None = None) -> tuple[float, ...]:
    """Both AUCs of a probe of one kind."""
    batch = data.samples.batch(range(len(data.samples)))
    groups = torch.tensor([data.samples.locate(int(i))[0] for i in batch.sample])
    negatives = data.negatives()
    x, _ = negatives.make(kind, batch, data.model(), amplitude)
    valid, invalid = (window_statistics(f, batch.mask, negatives.channels) for f in (batch.x, x))
    return probe_aucs(valid, invalid, groups)


def test_auc_is_the_share_of_pairs_in_the_right_order() -> None:
    generator = torch.Generator().manual_seed(0)
    scores = torch.randint(0, 6, (40,), generator=generator).float()
    labels = torch.rand(40, generator=generator) < 0.3
    pairs = list(itertools.product(scores[labels].tolist(), scores[~labels].tolist()))
    expected = sum((a > b) + 0.5 * (a == b) for a, b in pairs) / len(pairs)
    assert auc(scores, labels) == pytest.approx(expected, abs=1e-12)
    assert auc(torch.arange(6.0), torch.arange(6) > 2) == 1.0
    assert auc(torch.zeros(6), torch.arange(6) > 2) == 0.5


def test_a_probe_finds_a_shift_and_no_shift() -> None:
    generator = torch.Generator().manual_seed(0)
    groups = torch.arange(20).repeat_interleave(10)
    valid, other = torch.randn(2, 200, 5, generator=generator)
    assert all(0.4 < found < 0.6 for found in probe_aucs(valid, other, groups))
    shifted = other + torch.tensor([0.0, 3.0, 0.0, 0.0, 0.0])
    found = probe_aucs(valid, shifted, groups)
    assert len(found) == 2 and min(found) > 0.95
    assert probe_auc(valid, shifted, groups) == pytest.approx(sum(found) / 2)
    assert min(probe_aucs(valid[:20], shifted[:20], torch.zeros(20, dtype=torch.int64))) > 0.9
    assert probe_auc(valid[:1], shifted[:1], groups[:1]) is None


def test_a_probe_is_evaluated_on_other_trajectories_than_it_was_fitted_on() -> None:
    """A difference that reverses between trajectories does not help the probe."""
    generator = torch.Generator().manual_seed(1)
    groups = torch.arange(2).repeat_interleave(20)
    sign = torch.tensor([1.0, -1.0])[groups]
    valid, invalid = torch.randn(2, 40, 3, generator=generator)
    invalid = invalid + 4 * sign[:, None]
    assert max(probe_aucs(valid, invalid, groups)) < 0.2


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize(
    ("kind", "amplitude"),
    [("noise", 0.1), ("noise", 0.3), ("adversarial", None), ("shuffled", None)],
)
def test_statistics_do_not_separate_matched_negatives(
    name: str, kind: Kind, amplitude: float | None
) -> None:
    for found in probed(SETS[name](), kind, amplitude):
        assert 0.45 <= found <= 0.55
