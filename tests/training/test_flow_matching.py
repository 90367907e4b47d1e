"""Flow matching: the loss by hand, what counts, what learns, and that a flow is learned."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import pytest
import torch
from torch import Tensor, nn

from pibert import sample_rng
from pibert.fields import Batch
from pibert.models.baselines.fourierflow import FLOOR, FourierFlow, FourierFlowConfig
from pibert.training.flow_matching import flow_matching
from pibert.training.optimizers import trained_parameters
from tests.helpers import randomise, tiny_spec
from tests.training.setups import assert_pieces_add_up, batch_of

SHAPE = (8, 12)
SMALL = FourierFlowConfig(
    width=16,
    heads=2,
    depth=3,
    mixers=1,
    blocks=2,
    align_at=2,
    sampler_steps=3,
    draws=2,
    encoder_depth=1,
    decoder_depth=1,
)


def make(**changes: Any) -> FourierFlow:
    return FourierFlow(replace(SMALL, **changes), tiny_spec(SHAPE))


def random(**changes: Any) -> FourierFlow:
    return cast(FourierFlow, randomise(cast(Any, make(**changes))))


def make_batch(b: int = 5, frames: int = 1, shape: tuple[int, int] = SHAPE) -> Batch:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(b, 2, *shape, generator=generator)
    y = torch.randn(b, frames, 2, *shape, generator=generator)
    mask = torch.rand(b, *shape, generator=generator) > 0.2
    target_mask = torch.rand(b, frames, *shape, generator=generator) > 0.3
    return batch_of(x, y, mask, target_mask).reseeded(3, 1)


@pytest.mark.parametrize(("residual", "horizon"), [(True, 1), (False, 1), (True, 2)])
def test_the_loss_is_that_of_the_velocity_at_known_points(residual: bool, horizon: int) -> None:
    model = random(residual=residual, horizon=horizon).double()
    model.set_increment_scale(torch.tensor([0.4, 1.5]))
    batch = _double(make_batch(5, frames=3))
    loss, logs = flow_matching(0.0)(model, batch)
    scale = torch.tensor([0.4, 1.5])[:, None, None]
    means = []
    for i in range(5):
        alone = batch.seeds[i : i + 1]
        s = 1 - sample_rng.uniform(alone, "flow time").double()
        assert s > FLOOR  # below it, both velocities are taken over the floor
        noise = sample_rng.normal(alone, "flow noise", 2 * horizon, *SHAPE).double()
        x = batch.x[i : i + 1]
        known = batch.target_mask[i, :horizon, None].expand(-1, 2, -1, -1)
        clean = (batch.y[i, :horizon] - (x if residual else 0.0)) / scale
        clean = (known * clean).flatten(0, 1)[None]
        noisy = (1 - s) * clean + s * noise
        velocity, _ = model.velocity(noisy, s, x, torch.zeros(1, 16).double())
        error = (velocity - (noise - clean)).view(horizon, 2, *SHAPE).square()
        means += [error[t][known[t]].mean() for t in range(horizon)]
    assert loss.item() == pytest.approx(torch.stack(means).mean().item(), rel=1e-5)
    assert set(logs) == ({"flow", "loss"}) and not logs["flow"].requires_grad


@pytest.mark.parametrize("training", [True, False])
def test_pieces_of_a_batch_add_up_to_the_whole(training: bool) -> None:
    model = random(horizon=2).double().train(training)
    logs = assert_pieces_add_up(flow_matching(0.3), model, _double(make_batch(6, 2)), (3, 4))
    assert ("reconstruction" in logs) is not training


def test_alignment_is_the_distance_of_unit_features_at_tokens_with_a_known_point() -> None:
    model, batch = random(align_at=1), make_batch(3)
    hidden = batch.target_mask.clone()
    hidden[:, :, :4, :8] = False  # the first two of six tokens
    hidden[2] = False  # and a sample of which nothing is known: it adds zero
    batch = replace(batch, target_mask=hidden)
    taken: list[Tensor] = []
    assert model.alignment_head is not None and model.autoencoder is not None
    model.alignment_head.register_forward_hook(lambda m, i, out: taken.append(out))
    _, logs = flow_matching(1.0)(model, batch)
    aims, _ = model.autoencoder.features(batch.y[:, 0], batch.target_mask[:, 0])
    cosines = torch.cosine_similarity(taken[0], aims, dim=-1)[:2, 2:]
    expected = (2 - 2 * cosines).mean(1).sum() / 3
    assert float(logs["alignment"]) == pytest.approx(expected.item(), rel=1e-4)


def test_a_flow_learns_mean_and_spread_of_what_follows() -> None:
    """The change is a number of the input plus noise: draws must show both."""
    torch.manual_seed(0)
    shape = (4, 4)
    model = FourierFlow(
        replace(SMALL, depth=2, align=0.0, sampler_steps=20, draws=64), tiny_spec(shape)
    )
    model.set_increment_scale(torch.tensor([0.5, 0.5]))
    generator = torch.Generator().manual_seed(1)
    objective = flow_matching(0.0)

    def batch(step: int, b: int = 64) -> Batch:
        sign = torch.randint(0, 2, (b, 1, 1, 1), generator=generator) * 2.0 - 1
        x = sign.expand(b, 2, *shape)
        noise = torch.randn(b, 2, 1, 1, generator=generator)
        y = x + 0.4 * sign + 0.3 * noise
        known = torch.ones(b, *shape, dtype=torch.bool)
        numbers = torch.arange(b)
        made = Batch(x, y[:, None], torch.zeros(b, 16), known, known[:, None], numbers, numbers)
        return made.reseeded(0, step)

    _learn(model, lambda step: objective(model, batch(step))[0], 200, rate=8e-3)
    model.eval()
    x = torch.tensor([1.0, -1.0])[:, None, None, None].expand(2, 2, *shape)
    with torch.no_grad():
        changes = model.samples(x) - x[:, None]
    assert torch.allclose(changes.mean((1, 2, 3, 4)), torch.tensor([0.4, -0.4]), atol=0.1)
    spread = changes.mean((3, 4)).std(1).mean()
    assert spread.item() == pytest.approx(0.3, abs=0.1)


def _learn(
    model: nn.Module, loss_at: Callable[[int], Tensor], steps: int, rate: float = 3e-3
) -> list[float]:
    optimizer = torch.optim.Adam(trained_parameters(model).values(), rate)
    losses = []
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = rate * (1 - step / steps)
        loss = loss_at(step)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def _double(batch: Batch) -> Batch:
    return batch.map(lambda t: t.double() if t.is_floating_point() else t)
