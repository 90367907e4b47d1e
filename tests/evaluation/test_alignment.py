"""Alignment: planted relations, leaks between folds, targets and fits worked out by hand."""

from typing import Any

import pytest
import torch
from torch import Tensor

from pibert import Normalizer, Trajectory
from pibert.data.dataset import Samples, Window
from pibert.evaluation.alignment import (
    Moments,
    alignment,
    held_out_r2,
    smoothed,
    two_folds,
    vorticity_targets,
)
from pibert.physics import derivatives
from tests.helpers import refused, tiny_spec
from tests.training.setups import batch_of

SHAPE = (14, 22)  # 4 x 6 tokens of 4 x 4 points, the last ones cut
SPEC = tiny_spec(SHAPE)
NORMALIZER = Normalizer((1.1, -0.2), (0.8, 0.5))


def make_trajectory(
    seed: int, frames: int = 8, *, gaps: float = 0.02, speed: float = 0.7
) -> Trajectory:
    """A few waves that drift, with a body and some unknown points that hold nonsense."""
    generator = torch.Generator().manual_seed(seed)
    x, y = SPEC.grid.coordinates(torch.float64)
    time = torch.arange(frames)[:, None, None] * speed
    # Of five waves in two channels, (c, n, t, y, x).
    drawn = torch.rand(4, 2, 5, 1, 1, 1, generator=generator, dtype=torch.float64)
    size, along_x, along_y, phase = drawn
    angle = (4 * along_x - 2) * x + (4 * along_y - 2) * y + time + 6 * phase
    states = ((size + 0.3) * torch.sin(angle)).sum(1).transpose(0, 1).contiguous()
    valid = torch.rand(frames, *SHAPE, generator=generator) > gaps
    body = torch.zeros(SHAPE, dtype=torch.bool)
    body[6:9, 3:6] = True
    states = torch.where(valid[:, None] & ~body, states, 1e6)
    return Trajectory(
        name=str(seed),
        states=states,
        time=torch.arange(frames) * 0.1,
        spec=SPEC,
        parameters={"Re": 100.0 + seed},
        body=body,
        valid=valid,
    )


def make_samples(count: int = 5, *, frames: int = 8, history: int = 1, **more: Any) -> Samples:
    data = [make_trajectory(seed, frames, **more) for seed in range(count)]
    window = Window(history=history, horizon=1)
    return Samples(data, window=window, normalizer=NORMALIZER)


def test_linear_relation_is_recovered_on_held_out_trajectories() -> None:
    """The embedding is a random linear map of scaled vorticity among other numbers."""
    samples = make_samples(4)
    generator = torch.Generator().manual_seed(0)
    mix = torch.randn(6, 6, generator=generator, dtype=torch.float64)

    def embed(x: Tensor, parameters: Tensor | None, mask: Tensor | None) -> Tensor:
        assert mask is not None
        batch = batch_of(x, x[:, None, :2], mask, mask[:, None])
        targets, _ = vorticity_targets(batch, SPEC, NORMALIZER, (1, 2, 4, 8), 4)
        noise = torch.randn(*targets.shape[:3], 2, generator=generator, dtype=torch.float64)
        return (7.0 + torch.cat((targets, noise), dim=-1) @ mix).permute(0, 3, 1, 2)

    found = alignment(embed, samples, patch=4)
    assert list(found) == [1, 2, 4, 8]
    assert all(value == pytest.approx(1.0, abs=1e-4) for value in found.values())


@pytest.mark.parametrize(("count", "frames", "speed"), [(6, 12, 0.02), (1, 62, 0.1)])
def test_embedding_that_only_identifies_its_sample_scores_nothing(
    count: int, frames: int, speed: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A code for every trajectory, or piece of a recording, and every token.

    The flow hardly changes while the code is the same. With samples split at random the code
    predicts the vorticity of its neighbours in time; with whole trajectories it does not.
    """
    samples = make_samples(count, frames=frames, speed=speed)
    generator = torch.Generator().manual_seed(3)
    codes = torch.randn(len(samples), 24, 300, generator=generator, dtype=torch.float64)
    whole = samples.batch(range(len(samples)))
    origin = {
        x.numpy().tobytes(): samples.locate(n)[0] if count > 1 else n // 6
        for n, x in enumerate(whole.x)
    }

    def embed(x: Tensor, parameters: Tensor | None, mask: Tensor | None) -> Tensor:
        rows = codes[[origin[row.numpy().tobytes()] for row in x]]
        return rows.mT.unflatten(-1, (4, 6))

    every = list(range(len(samples)))
    with monkeypatch.context() as patched:
        folds = (every, torch.arange(len(samples)))
        patched.setattr("pibert.evaluation.alignment.two_folds", lambda *_: folds)
        leaky = alignment(embed, samples, patch=4)
    assert all(value > 0.8 for value in leaky.values())
    found = alignment(embed, samples, patch=4)
    assert all(value < 0.02 for value in found.values())


def test_a_single_recording_is_split_in_time_with_a_gap() -> None:
    samples = make_samples(1, frames=22, history=2)  # windows of inputs t, t + 1 with t = 0 ... 19
    chosen, numbers = two_folds(samples)
    # A tenth of 21 input frames are 2, frames 9 and 10: three windows contain one of them.
    early = [s for s, n in zip(chosen, numbers.tolist(), strict=True) if n % 2 == 0]
    late = [s for s, n in zip(chosen, numbers.tolist(), strict=True) if n % 2 == 1]
    assert early == list(range(8)) and late == list(range(11, 20))
    assert numbers.tolist() == [0] * 4 + [2] * 4 + [1] * 5 + [3] * 4
    with refused("both sides"):
        two_folds(make_samples(1, frames=3, history=2))


def test_targets_by_hand() -> None:
    samples = make_samples(2, history=2)
    batch = samples.batch(range(4))
    found, counted = vorticity_targets(batch, SPEC, NORMALIZER, (1, 2, 8), 4)
    assert found.shape == (4, 4, 6, 3)
    for b in range(4):
        index, start = samples.locate(b)
        trajectory = samples.trajectories[index]
        known = trajectory.known(slice(start, start + 2)).all(0)
        u, v = trajectory.read(slice(start + 1, start + 2))[0]
        field = torch.where(known, torch.ones(()).double(), torch.nan)
        curl = derivatives.vorticity(u * field, v * field, SPEC.grid) * field
        coarse = smoothed(curl[None], ~curl[None].isnan(), 8)[0] * field
        for j, i in [(0, 0), (1, 2), (3, 5), (2, 1), (1, 0)]:
            cell = curl[4 * j : 4 * j + 4, 4 * i : 4 * i + 4]
            values = cell[~cell.isnan()]
            assert bool(counted[b, j, i]) == (len(values) >= cell.numel() / 2)
            if counted[b, j, i]:
                assert torch.allclose(found[b, j, i, 0], values.mean(), rtol=1e-5)
                average = coarse[4 * j : 4 * j + 4, 4 * i : 4 * i + 4][~cell.isnan()].mean()
                assert torch.allclose(found[b, j, i, 2], average, rtol=1e-5)
    assert not counted.all() and counted.float().mean() > 0.5


def test_smoothing_by_hand() -> None:
    """Cells of 2 x 2, the last column cut; centres lie between points, weights 1/4 and 3/4."""
    values = torch.tensor(
        [[[1.0, 3.0, 5.0, 7.0, 20.0], [1.0, 3.0, 5.0, 7.0, 20.0]]], dtype=torch.float64
    )
    where = torch.ones(1, 2, 5, dtype=torch.bool)
    row = [2.0, 0.75 * 2 + 0.25 * 6, 0.25 * 2 + 0.75 * 6, 0.75 * 6 + 0.25 * 20, 0.25 * 6 + 15]
    assert torch.allclose(smoothed(values, where, 2), torch.tensor([[row, row]]).double())
    where[0, :, 2:4] = False  # a cell without a point does not take part
    found = smoothed(torch.where(where, values, torch.nan), where, 2)
    assert found[0, 0].tolist() == pytest.approx([2.0, 2.0, 2.0, 20.0, 20.0])
    where[0, 0, 2] = True  # nor do points of a cell that are not there
    found = smoothed(values, where, 2)
    assert found[0, 1, 2] == pytest.approx(0.25 * 2 + 0.75 * 5)
    assert torch.equal(smoothed(values, where, 1), values)


def test_the_fit_from_sums_is_the_closed_form_on_rows() -> None:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(90, 5, generator=generator, dtype=torch.float64)
    x = x @ torch.randn(5, 5, generator=generator, dtype=torch.float64) + 1e3
    y = x[:, :2].sin() + 0.2 * x[:, 3:] + 40.0
    moments = Moments.of(x[:7], y[:7])
    for part in (slice(7, 8), slice(8, 60)):
        moments = moments.merged(Moments.of(x[part], y[part]))
    assert moments.count == 60
    seen, held = slice(0, 60), slice(60, 90)
    mean, std = x[seen].mean(0), x[seen].std(0, correction=0)
    z = (x - mean) / std
    alpha = 2.5
    beta = torch.linalg.solve(
        z[seen].T @ z[seen] + alpha * torch.eye(5).double(), z[seen].T @ (y[seen] - y[seen].mean(0))
    )
    assert torch.allclose(moments.fit(alpha), beta / std[:, None], rtol=1e-8)
    error = y[held] - y[seen].mean(0) - z[held] @ beta
    expected = 1 - error.square().sum(0) / (y[held] - y[held].mean(0)).square().sum(0)
    assert torch.allclose(Moments.of(x[held], y[held]).r2(moments, alpha), expected, rtol=1e-7)


def test_ridge_strength_is_chosen_on_the_fitted_rows_alone() -> None:
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(120, 30, generator=generator, dtype=torch.float64)
    noise = torch.randn(120, 1, generator=generator, dtype=torch.float64)
    y = x[:, :1] + 0.5 * noise
    parts = [Moments.of(x[p], y[p]) for p in (slice(0, 40), slice(40, 80), slice(80, 120))]
    choices = (1e-3, 10.0, 1e9)
    mutual = [float((parts[0].r2(parts[1], a) + parts[1].r2(parts[0], a))[0]) for a in choices]
    assert mutual.index(max(mutual)) == 1
    found = held_out_r2(parts[2:], parts[:2], choices)
    assert torch.allclose(found, parts[2].r2(parts[0].merged(parts[1]), 10.0))
    # Scored rows do not influence the choice.
    spoilt = Moments.of(x[80:], torch.randn(40, 1, generator=generator, dtype=torch.float64))
    found = held_out_r2([spoilt], parts[:2], choices)
    assert torch.allclose(found, spoilt.r2(parts[0].merged(parts[1]), 10.0))
    # With one half there is nothing to choose by.
    assert torch.allclose(held_out_r2(parts[2:], parts[:1], choices), parts[2].r2(parts[0], 1e-3))
