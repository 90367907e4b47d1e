"""Objectives: rollouts against unrolling by hand, parts of a batch, noise, sums of objectives."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from pibert.experiments.experiment import ModelConfig
from pibert.fields import Batch, FieldSpec, Grid, Normalizer
from pibert.training import losses
from pibert.training.losses import LossScales, LossWeights
from pibert.training.objectives import (
    LARGEST_ERROR,
    Mode,
    Objective,
    RolloutConfig,
    free_rollout,
    noisy,
    supervised,
    weighted,
)
from tests.helpers import TINY_OPTIONS, assert_close, randomise, refused, tiny_model, tiny_spec
from tests.training.setups import assert_pieces_add_up, batch_of, draw

WEIGHTS = LossWeights(reg=0.5, div=2.0, lap=3.0, bnd=0.7)
SHAPE = (5, 7)
SPEC = FieldSpec(family="incompressible", grid=Grid(SHAPE, dx=0.5, dy=0.2))
SCALES = LossScales.from_training(SPEC, Normalizer((0.3, -0.1), (0.5, 2.0)))


class Mixer(nn.Module):
    """A pointwise map of channels that is not linear, so that the order of calls matters."""

    def __init__(self, history: int = 1, horizon: int = 1, outputs: int = 2) -> None:
        super().__init__()
        self.weight = nn.Parameter(draw(horizon * outputs, history * 2, seed=9) / 2)
        self.inputs: list[Tensor] = []

    def forward(self, x: Tensor, parameters: Tensor, mask: Tensor) -> Tensor:
        self.inputs.append(x)
        return torch.tanh(torch.einsum("kc,bcyx->bkyx", self.weight, x)) + 0.1


def make_batch(
    size: int = 3,
    history: int = 1,
    frames: int = 1,
    channels: int = 2,
    shape: tuple[int, int] = SHAPE,
) -> Batch:
    """Samples with different numbers of unknown points, one of them without a known target."""
    thresholds = torch.linspace(-2.5, -0.5, size)
    mask = draw(size, *shape, seed=1) > thresholds.view(-1, 1, 1)
    target_mask = draw(size, frames, *shape, seed=2) > thresholds.view(-1, 1, 1, 1)
    target_mask[-1] = False
    x, y = draw(size, history * 2, *shape, seed=3), draw(size, frames, channels, *shape, seed=4)
    return batch_of(x, y, mask, target_mask)


def by_hand(prediction: Tensor, batch: Batch, frames: slice) -> Tensor:
    return losses.total_loss(
        prediction,
        batch.y[:, frames],
        scales=SCALES,
        weights=WEIGHTS,
        known=batch.target_mask[:, frames],
    )[0]


def gradient(loss: Tensor, model: Mixer) -> Tensor:
    return torch.autograd.grad(loss, model.weight)[0]


# One call


def test_a_validation_has_the_error_of_persistence_on_the_same_frames() -> None:
    model, batch = Mixer(history=2).eval(), make_batch(history=2, frames=2)
    _, logs = supervised(SCALES, WEIGHTS, RolloutConfig(steps=2))(model, batch)
    newest = batch.x[:, -2:].unsqueeze(1).expand_as(batch.y)
    expected = losses.reconstruction(newest, batch.y, batch.target_mask)
    torch.testing.assert_close(logs["persistence"], expected)


def test_one_step_is_the_plain_loss_of_one_call() -> None:
    model, batch = Mixer(), make_batch()
    loss, logs = supervised(SCALES, WEIGHTS)(model, batch)
    plain = model(batch.x, batch.parameters, batch.mask)[:, None]
    expected = by_hand(plain, batch, slice(None))
    assert torch.equal(loss, expected)
    assert torch.equal(gradient(loss, model), gradient(expected, model))
    assert set(logs) == {"loss", "reconstruction", "divergence", "laplacian", "boundary"}
    assert not any(entry.requires_grad or entry.ndim for entry in logs.values())
    assert set(supervised(SCALES, LossWeights())(model, batch)[1]) == {"loss", "reconstruction"}


# Rollouts


def unrolled(model: nn.Module, batch: Batch, steps: int) -> list[Tensor]:
    x, frames = batch.x, []
    for _ in range(steps):
        frames.append(model(x, batch.parameters, batch.mask))
        x = frames[-1] * batch.mask[:, None]
    return frames


def test_a_full_rollout_is_the_unrolled_model() -> None:
    model, batch = Mixer(), make_batch(frames=3)
    loss, _ = supervised(SCALES, WEIGHTS, RolloutConfig(steps=3))(model, batch)
    expected = by_hand(torch.stack(unrolled(model, batch, 3), 1), batch, slice(None))
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(gradient(loss, model), gradient(expected, model))


def test_pushforward_counts_the_last_step_and_stops_the_gradient_before_it() -> None:
    model, batch = Mixer(), make_batch(frames=3)
    loss, _ = supervised(SCALES, WEIGHTS, RolloutConfig(steps=3, mode="pushforward"))(model, batch)
    start = unrolled(model, batch, 2)[1].detach() * batch.mask[:, None]
    last = model(start, batch.parameters, batch.mask)[:, None]
    expected = by_hand(last, batch, slice(2, 3))
    torch.testing.assert_close(loss, expected)
    by_the_last = gradient(expected, model)
    torch.testing.assert_close(gradient(loss, model), by_the_last)
    through_all = by_hand(unrolled(model, batch, 3)[2][:, None], batch, slice(2, 3))
    assert not torch.allclose(gradient(through_all, model), by_the_last)


@pytest.mark.parametrize(("history", "horizon"), [(3, 1), (3, 2), (2, 3)])
def test_a_history_slides_over_the_predictions(history: int, horizon: int) -> None:
    model = Mixer(history, horizon)
    batch = make_batch(history=history, frames=3 * horizon)
    supervised(SCALES, WEIGHTS, RolloutConfig(steps=3))(model, batch)
    frames = list(batch.x.split(2, 1))
    for x in model.inputs:
        torch.testing.assert_close(x, torch.cat(frames[-history:], 1))
        predicted = torch.tanh(torch.einsum("kc,bcyx->bkyx", model.weight, x)) + 0.1
        frames += [frame * batch.mask[:, None] for frame in predicted.split(2, 1)]
    assert len(model.inputs) == 3


def test_too_few_target_frames_are_named_and_more_are_not_used() -> None:
    model, batch = Mixer(horizon=2), make_batch(frames=3)
    with refused("4 target frames", "2 steps of 2"):
        supervised(SCALES, WEIGHTS, RolloutConfig(steps=2))(model, batch)
    shorter = replace(batch, y=batch.y[:, :2], target_mask=batch.target_mask[:, :2])
    objective = supervised(SCALES, WEIGHTS, RolloutConfig(steps=2), steps=1)
    assert torch.equal(objective(model, batch)[0], objective(model, shorter)[0])
    with refused("multiple of 3", "found 4"):
        objective(model, make_batch(frames=2, channels=3))


def gradients_of(model: nn.Module, batch: Batch, weights: LossWeights, **how: Any) -> list[Tensor]:
    """Of a rollout; the same whether activations are kept or computed again."""
    found = []
    for recompute in (False, True):
        config = RolloutConfig(recompute=recompute, **how)
        torch.manual_seed(1)
        model.zero_grad()
        loss, _ = supervised(SCALES, weights, config)(model, batch)
        loss.backward()
        found.append([p.grad.clone() for p in model.parameters() if p.grad is not None])
    for kept, computed in zip(*found, strict=True):
        torch.testing.assert_close(computed, kept)
    return found[0]


@pytest.mark.parametrize("mode", ["full", "pushforward"])
@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_activations_that_are_computed_again_give_the_same_gradient(
    mode: Mode, dropout: float
) -> None:
    model = randomise(tiny_model(spec=tiny_spec((8, 12)), dropout=dropout)).double().train()
    assert gradients_of(model, make_batch(2, frames=3), WEIGHTS, steps=3, mode=mode)


LEARNERS = [
    name
    for name in TINY_OPTIONS
    if ModelConfig(name=name).learns_rollouts and name not in ("neuraloperator", "pibert")
]


@pytest.mark.parametrize("name", LEARNERS)
def test_every_model_is_unrolled_over_a_history_and_several_frames_a_call(name: str) -> None:
    """The gradient of two calls reaches the weights, and is the same when they are recomputed."""
    torch.manual_seed(0)
    model = tiny_model(name, spec=tiny_spec((16, 16)), history=2, horizon=2).double().train()
    batch = make_batch(2, history=2, frames=4, shape=(16, 16))
    found = gradients_of(model, batch, LossWeights(), steps=2)
    assert any(bool(gradient.any()) for gradient in found)


def kept_for_the_gradient(steps: int, *, recompute: bool) -> int:
    """Most bytes that a rollout and its gradient keep at once, apart from the weights."""
    model = tiny_model("unet", spec=tiny_spec((16, 16))).double().train()
    batch = make_batch(2, frames=steps, shape=(16, 16))
    weights = {p.untyped_storage().data_ptr() for p in model.parameters()}
    alive = most = 0

    class Kept:
        def __init__(self, tensor: Tensor) -> None:
            nonlocal alive, most
            self.tensor, storage = tensor, tensor.untyped_storage()
            self.size = 0 if storage.data_ptr() in weights else storage.nbytes()
            alive += self.size
            most = max(most, alive)

        def __del__(self) -> None:
            nonlocal alive
            alive -= self.size

    with torch.autograd.graph.saved_tensors_hooks(Kept, lambda kept: kept.tensor):
        config = RolloutConfig(steps=steps, recompute=recompute)
        loss, _ = supervised(SCALES, LossWeights(), config)(model, batch)
        loss.backward()
    return most


def test_recomputed_rollouts_of_eight_calls_take_about_the_memory_of_one() -> None:
    one = kept_for_the_gradient(1, recompute=False)
    assert kept_for_the_gradient(8, recompute=False) > 7 * one
    assert kept_for_the_gradient(8, recompute=True) < 1.5 * one


def test_a_rollout_that_runs_away_has_a_finite_loss_and_gradient() -> None:
    class Explosion(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.factor = nn.Parameter(torch.tensor(1e6, dtype=torch.float64))

        def forward(self, x: Tensor, parameters: Tensor, mask: Tensor) -> Tensor:
            return self.factor * x

    model, batch = Explosion(), make_batch(2, frames=8)
    batch = replace(batch, target_mask=torch.ones_like(batch.target_mask))
    loss, _ = supervised(SCALES, LossWeights(), RolloutConfig(steps=8))(model, batch)
    loss.backward()
    slope = model.factor.grad
    assert slope is not None and bool(loss.isfinite()) and bool(slope.isfinite()) and slope > 0
    _, logs = free_rollout(SCALES, 8)(model.eval(), batch)
    assert logs["reconstruction"] == LARGEST_ERROR


def test_a_validation_rollout_is_the_mean_error_of_its_frames() -> None:
    """A model that adds one to every frame; the truth stays zero."""

    class Counter(nn.Module):
        def forward(self, x: Tensor, parameters: Tensor, mask: Tensor) -> Tensor:
            return x + 1

    batch = make_batch(2, frames=4)
    mask, target_mask = torch.ones_like(batch.mask), torch.ones_like(batch.target_mask)
    x, y = torch.zeros_like(batch.x), torch.zeros_like(batch.y)
    batch = replace(batch, x=x, y=y, mask=mask, target_mask=target_mask)
    loss, logs = free_rollout(SCALES, 4)(Counter().eval(), batch)
    # Squares 1, 4, 9 and 16, the last of which counts with the largest error.
    assert loss == pytest.approx((1 + 4 + 9 + LARGEST_ERROR) / 4)
    assert logs["first_step"] == pytest.approx(1.0) and logs["persistence"] == 0


def test_the_curriculum_doubles_the_steps() -> None:
    config = RolloutConfig(steps=8, first=2, curriculum_epochs=4)
    assert [config.steps_at(epoch) for epoch in range(7)] == [2, 2, 4, 4, 8, 8, 8]
    config = RolloutConfig(steps=5, curriculum_epochs=3)
    assert [config.steps_at(epoch) for epoch in range(5)] == [1, 2, 4, 5, 5]
    config = RolloutConfig(steps=4, curriculum_epochs=6)
    assert RolloutConfig(steps=4).steps_at(0) == 4
    with refused("1 to 2", "found 3"):
        RolloutConfig(steps=2, first=3)
    with refused("1 to 4", "found 5"):
        supervised(SCALES, WEIGHTS, config, steps=5)


# Parts of a batch, noise


@pytest.mark.parametrize("mode", ["full", "pushforward"])
def test_pieces_of_a_batch_add_up_to_the_whole(mode: Mode) -> None:
    model, batch = Mixer(history=2), make_batch(size=5, history=2, frames=2)
    config = RolloutConfig(steps=2, mode=mode, noise=0.3)
    objective = weighted({"supervised": (2.0, supervised(SCALES, WEIGHTS, config))})
    assert_pieces_add_up(objective, model, batch, (2,))


def test_noise_comes_in_training_alone_and_from_the_seeds() -> None:
    model, batch = Mixer(), make_batch()
    objective = supervised(SCALES, WEIGHTS, RolloutConfig(noise=0.5))
    plain = supervised(SCALES, WEIGHTS)(model, batch)[0]
    first = objective(model, batch)[0]
    assert first != plain
    torch.manual_seed(123)
    assert objective(model, batch)[0] == first
    assert objective(model, replace(batch, seeds=batch.seeds + 7))[0] != first
    assert objective(model.eval(), batch)[0] == plain


def test_noise_with_a_spread_has_a_strength_of_its_own_in_every_sample() -> None:
    batch = make_batch(size=2000)
    equal, spread = (noisy(batch, 0.1, SPEC, spread=factor).x - batch.x for factor in (1.0, 10.0))
    known = batch.mask[:, None].expand_as(equal)
    assert not equal[~known].any() and not spread[~known].any()
    ratio = (spread[known] / equal[known]).log10()
    assert float(ratio.min()) >= -1.001 and float(ratio.max()) <= 1.001
    quarter = ratio.sort().values[len(ratio) // 4]
    assert float(quarter) == pytest.approx(-0.5, abs=0.1)  # log-uniform
    one = (spread[0] / equal[0])[known[0]]
    assert_close(one, one.mean().expand_as(one), rtol=1e-3)


# Sums of objectives


def constant(value: float, **logs: float) -> Objective:
    def objective(model: nn.Module, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
        entries = {name: torch.tensor(entry) for name, entry in logs.items()}
        return torch.tensor(value, requires_grad=True), entries

    return objective


def refuses(model: nn.Module, batch: Batch) -> tuple[Tensor, dict[str, Tensor]]:
    raise AssertionError("called although its weight is zero")


def test_joint_training_adds_the_parts_with_their_weights() -> None:
    objective = weighted(
        {
            "supervised": (1.0, constant(3.0, loss=3.0, reconstruction=2.0, divergence=1.0)),
            "mpp": (1.0, constant(5.0, loss=5.0, mpp=5.0, divergence=4.0)),
            "ecp": (0.1, constant(7.0, accuracy=0.5)),
            "off": (0.0, refuses),
        }
    )
    loss, logs = objective(Mixer(), make_batch())
    assert math.isclose(loss.item(), 3.0 + 5.0 + 0.7, rel_tol=1e-6)
    assert loss.requires_grad and not any(entry.requires_grad for entry in logs.values())
    found = {name: round(entry.item(), 5) for name, entry in logs.items()}
    assert found == {
        "supervised": 3.0,
        "reconstruction": 2.0,
        "divergence": 1.0,
        "mpp": 5.0,
        "mpp divergence": 4.0,
        "ecp": 7.0,
        "accuracy": 0.5,
        "loss": 8.7,
    }
