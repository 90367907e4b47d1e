import itertools
import math
from collections.abc import Callable
from statistics import NormalDist

import pytest
import torch

from pibert.evaluation.consistency import (
    auc,
    frame_statistics,
    judge_consistency,
    probe_auc,
    probe_aucs,
    window_statistics,
)
from pibert.pretraining.negatives import MATCHED, Kind
from tests.pretraining.windows import WindowSet, solver_set, street_set

SETS: dict[str, Callable[[], WindowSet]] = {
    "turbulence": lambda: solver_set("incompressible", 2, 10, 11),
    "heat": lambda: solver_set("heat", 2, 10, 11),
    "street": lambda: street_set(2),
}


def probed(
    data: WindowSet, kind: Kind, amplitude: float | None = None, *, apart: bool = False
) -> tuple[float, ...]:
    """Both AUCs of a probe of one kind; ``apart``: one that sees every frame."""
    batch = data.samples.batch(range(len(data.samples)))
    groups = torch.tensor([data.samples.locate(int(i))[0] for i in batch.sample])
    see = frame_statistics if apart else window_statistics
    negatives = data.negatives()
    x, _ = negatives.make(kind, batch, data.model(), amplitude)
    valid, invalid = (see(f, batch.mask, negatives.channels) for f in (batch.x, x))
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


def test_auc_needs_both_labels_and_finite_scores() -> None:
    with pytest.raises(ValueError, match="both labels"):
        auc(torch.zeros(3), torch.ones(3, dtype=torch.bool))
    with pytest.raises(ValueError, match="finite"):
        auc(torch.tensor([0.0, math.nan]), torch.tensor([True, False]))


def test_statistics_of_a_window_by_hand() -> None:
    x = torch.arange(24) / 24 * 2 * math.pi
    wave = torch.sin(3 * x)[None].expand(16, 24)
    frames = torch.stack((wave + 1, 2 * wave + 1), 0)  # two frames of one channel
    found = window_statistics(frames[None], torch.ones(1, 16, 24, dtype=torch.bool), 1)[0]
    assert found[0] == pytest.approx(1.0, abs=1e-6)
    assert found[1] == pytest.approx((0.5 + 2.0) / 2, rel=1e-5)
    # Three waves over 24 columns are two over the 16 points of the shorter side.
    assert int(found[2:].argmax()) == 1
    power = found[2:].exp()
    assert power[1] / power.sum() > 0.999


def test_statistics_leave_out_unknown_points() -> None:
    x = torch.randn(2, 3, 12, 10, generator=torch.Generator().manual_seed(0))
    mask = torch.ones(2, 12, 10, dtype=torch.bool)
    mask[:, 3:6, 2:5] = False
    other = torch.where(mask[:, None], x, 7.0)
    mine, theirs = window_statistics(x, mask, 3), window_statistics(other, mask, 3)
    torch.testing.assert_close(mine, theirs)
    torch.testing.assert_close(mine[0, 0], x[0, 0][mask[0]].double().mean())
    torch.testing.assert_close(mine[0, 4], x[0, 1][mask[0]].double().var(correction=0))
    frames = frame_statistics(torch.cat((x, 2 * x), 1), mask, 3)
    torch.testing.assert_close(frames, torch.cat((mine, window_statistics(2 * x, mask, 3)), 1))


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


def test_a_probe_is_judged_on_other_trajectories_than_it_was_fitted_on() -> None:
    """What tells the labels apart within each trajectory is of no use in another one."""
    generator = torch.Generator().manual_seed(1)
    groups = torch.arange(2).repeat_interleave(20)
    sign = torch.tensor([1.0, -1.0])[groups]
    valid, invalid = torch.randn(2, 40, 3, generator=generator)
    invalid = invalid + 4 * sign[:, None]
    assert max(probe_aucs(valid, invalid, groups)) < 0.2


def test_both_halves_of_the_trajectories_span_what_they_are_ordered_by() -> None:
    """Else a probe of the first would tell the last the wrong way round."""
    generator = torch.Generator().manual_seed(1)
    groups = torch.arange(8).repeat_interleave(20)
    sign = torch.where(groups < 4, 1.0, -1.0)
    valid, invalid = torch.randn(2, 160, 3, generator=generator)
    invalid = invalid + 4 * sign[:, None]
    assert all(0.4 < found < 0.6 for found in probe_aucs(valid, invalid, groups))


def test_each_half_is_judged_by_the_other() -> None:
    generator = torch.Generator().manual_seed(1)
    groups = torch.arange(2).repeat_interleave(2000)
    rough = torch.tensor([1.0, 20.0])[groups][:, None]
    valid, invalid = rough * torch.randn(2, 4000, 1, generator=generator)
    found = probe_aucs(valid, invalid + 4, groups)
    # The difference of two normal numbers has the spread sqrt(2).
    expected = [NormalDist().cdf(4 / (spread * 2**0.5)) for spread in (1, 20)]
    assert found == pytest.approx(expected, abs=0.03)


@pytest.mark.parametrize("name", SETS)
@pytest.mark.parametrize(
    ("kind", "amplitude"),
    [("noise", 0.1), ("noise", 0.3), ("adversarial", None), ("shuffled", None)],
)
def test_statistics_do_not_tell_matched_negatives_apart(
    name: str, kind: Kind, amplitude: float | None
) -> None:
    assert kind in MATCHED
    for found in probed(SETS[name](), kind, amplitude):
        assert 0.45 <= found <= 0.55


@pytest.mark.parametrize("name", SETS)
def test_noise_and_adversarial_windows_are_matched_frame_by_frame(name: str) -> None:
    for kind, amplitude in (("noise", 0.3), ("adversarial", None)):
        for found in probed(SETS[name](), kind, amplitude, apart=True):  # type: ignore[arg-type]
            assert 0.45 <= found <= 0.55, kind


@pytest.mark.parametrize("name", SETS)
def test_the_order_of_frames_shows_in_their_statistics_where_a_flow_decays(name: str) -> None:
    found = probed(SETS[name](), "shuffled", apart=True)
    if name == "street":  # goes on for ever as it is
        assert all(0.4 < one < 0.6 for one in found)
    else:
        assert min(found) > 0.98


def test_a_probe_tells_white_noise_apart() -> None:
    """Else its silence about matched negatives would say nothing."""
    data = street_set(2)
    batch = data.samples.batch(range(0, len(data.samples), 2))
    groups = torch.tensor([data.samples.locate(int(i))[0] for i in batch.sample])
    noise = torch.randn(batch.x.shape, generator=torch.Generator().manual_seed(0))
    noisy = torch.where(batch.mask[:, None], batch.x + 0.1 * noise, 0.0)
    valid, invalid = (window_statistics(x, batch.mask, 2) for x in (batch.x, noisy))
    assert min(probe_aucs(valid, invalid, groups)) > 0.9


def test_the_records_name_kinds_and_amplitudes_and_leave_the_model_alone() -> None:
    data = street_set(1)
    model = data.model().train()
    records = judge_consistency(
        model, data.samples, data.negatives(), (0.05, 0.2), most=24, batch_size=10
    )
    assert [(record.kind, record.amplitude) for record in records] == [
        ("noise", 0.05),
        ("noise", 0.2),
        ("adversarial", None),
        ("parameters", None),
        ("boundary", 0.05),
        ("boundary", 0.2),
        ("omitted", 0.05),
        ("omitted", 0.2),
    ]
    assert model.training and all(module.training for module in model.modules())
    for record in records:
        assert record.n == 24
        assert 0 <= record.auc <= 1 and 0 <= record.accuracy <= 1
        assert record.frame_probe_auc is None  # a window is one frame
        # The fields of wrong parameters are the same.
        assert (record.probe_auc is None) == (record.kind == "parameters")
    strong = next(r for r in records if r.kind == "omitted" and r.amplitude == 0.2)
    assert strong.probe_auc is not None
    assert strong.probe_auc > 0.6  # not matched, and the probe says so


def test_a_record_of_several_frames_has_both_probes() -> None:
    data = SETS["heat"]()
    negatives = data.negatives(kinds=("shuffled", "parameters"))
    records = judge_consistency(data.model(), data.samples, negatives)
    shuffled, parameters = ((record.probe_auc, record.frame_probe_auc) for record in records)
    assert parameters == (None, None)
    assert shuffled[0] == pytest.approx(0.5, abs=0.01)
    assert shuffled[1] == pytest.approx(1.0, abs=0.02)


def test_the_parts_that_windows_are_judged_in_do_not_matter() -> None:
    data = street_set(1)
    negatives = data.negatives(kinds=("noise", "boundary"))
    model = data.model()
    whole, parts = (
        judge_consistency(model, data.samples, negatives, (0.1,), most=20, batch_size=size)
        for size in (20, 7)
    )
    assert [r.auc for r in whole] == pytest.approx([r.auc for r in parts], abs=0.02)
