"""Objectives: rollouts against unrolling by hand, parts of a batch, noise, sums of objectives."""

import math
from dataclasses import replace

import pytest
import torch
from torch import Tensor, nn

from pibert.fields import Batch, FieldSpec, Grid, Normalizer
from pibert.training import losses
from pibert.training.losses import LossScales, LossWeights
from pibert.training.objectives import Objective, in_turns, period_of, supervised, weighted
from pibert.training.rollout import Mode, RolloutConfig, noisy
from tests.helpers import randomise, tiny_model, tiny_spec

WEIGHTS = LossWeights(reg=0.5, div=2.0, lap=3.0, bnd=0.7)
SHAPE = (5, 7)
SPEC = FieldSpec(family="incompressible", grid=Grid(SHAPE, dx=0.5, dy=0.2))
SCALES = LossScales.from_training(SPEC, Normalizer((0.3, -0.1), (0.5, 2.0)))


class Mixer(nn.Module):
    """A pointwise map of channels that is not linear, so that the order of calls matters."""

    def __init__(self, history: int = 1, horizon: int = 1, outputs: int = 2) -> None:
        super().__init__()
        self.spec = SPEC
        self.weight = nn.Parameter(draw(horizon * outputs, history * 2, seed=9) / 2)
        self.inputs: list[Tensor] = []

    def forward(self, x: Tensor, parameters: Tensor, mask: Tensor) -> Tensor:
        self.inputs.append(x)
        return torch.tanh(torch.einsum("kc,bcyx->bkyx", self.weight, x)) + 0.1


def draw(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def make_batch(size: int = 3, history: int = 1, frames: int = 1, channels: int = 2) -> Batch:
    """Samples with different numbers of unknown points, one of them without a known target."""
    thresholds = torch.linspace(-2.5, -0.5, size)
    mask = draw(size, *SHAPE, seed=1) > thresholds.view(-1, 1, 1)
    target_mask = draw(size, frames, *SHAPE, seed=2) > thresholds.view(-1, 1, 1, 1)
    target_mask[-1] = False
    x, y = draw(size, history * 2, *SHAPE, seed=3), draw(size, frames, channels, *SHAPE, seed=4)
    return Batch(
        x=torch.where(mask[:, None], x, 0.0),
        y=torch.where(target_mask[:, :, None], y, 0.0),
        parameters=torch.zeros(size, 16),
        mask=mask,
        target_mask=target_mask,
        sample=torch.arange(size),
        seeds=1000 + torch.arange(size),
    )


def part(batch: Batch, where: slice) -> Batch:
    return batch.map(lambda tensor: tensor[where])


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
    other = replace(SCALES, spec=replace(SPEC, channels=("v", "u")))
    assert "persistence" not in supervised(other, WEIGHTS)(model, batch)[1]


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


def test_several_frames_ahead_are_unfolded_frame_by_frame() -> None:
    model, batch = Mixer(history=2, horizon=3), make_batch(history=2, frames=3)
    folded = model(batch.x, batch.parameters, batch.mask)
    frames = torch.stack((folded[:, :2], folded[:, 2:4], folded[:, 4:]), 1)
    loss, _ = supervised(SCALES, WEIGHTS)(model, batch)
    torch.testing.assert_close(loss, by_hand(frames, batch, slice(None)))


def test_targets_may_be_other_channels_than_the_inputs_in_one_step() -> None:
    spec = FieldSpec(family="incompressible", channels=("p",), grid=SPEC.grid)
    scales = LossScales.from_training(spec, Normalizer.identity(1))
    model, batch = Mixer(outputs=1), make_batch(channels=1, frames=2)
    loss, _ = supervised(scales, LossWeights(bnd=1.0))(model, batch)
    assert loss.isfinite()
    with pytest.raises(ValueError, match=r"channels that the model takes, \('u', 'v'\), found"):
        supervised(scales, LossWeights(), RolloutConfig(steps=2))(model, batch)


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


def test_in_evaluation_every_frame_of_a_pushforward_counts() -> None:
    model, batch = Mixer().eval(), make_batch(frames=3)
    config = RolloutConfig(steps=3, mode="pushforward", noise=1.0)
    loss, _ = supervised(SCALES, WEIGHTS, config)(model, batch)
    full, _ = supervised(SCALES, WEIGHTS, RolloutConfig(steps=3))(model, batch)
    assert torch.equal(loss, full)


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


def test_unknown_points_stay_unknown_in_a_rollout_of_pibert() -> None:
    spec = tiny_spec((8, 12))
    model = randomise(tiny_model(spec=spec, history=2))
    batch = make_batch(2, history=2, frames=2)
    mask = torch.ones(2, 8, 12, dtype=torch.bool)
    mask[0, 2:5, 3] = False
    batch = replace(
        batch,
        x=draw(2, 4, 8, 12).float(),
        y=torch.zeros(2, 2, 2, 8, 12),
        mask=mask,
        target_mask=mask[:, None].repeat(1, 2, 1, 1),
    )
    objective = supervised(
        LossScales.from_training(spec, Normalizer.identity(2)), WEIGHTS, RolloutConfig(steps=2)
    )
    loss, _ = objective(model, batch)
    noise = torch.where(mask[:, None], batch.x, 5.0)
    torch.testing.assert_close(objective(model, replace(batch, x=noise))[0], loss)


def test_too_few_target_frames_are_named_and_more_are_not_used() -> None:
    model, batch = Mixer(horizon=2), make_batch(frames=3)
    with pytest.raises(ValueError, match="at least 4 target frames for 2 steps of 2 frames"):
        supervised(SCALES, WEIGHTS, RolloutConfig(steps=2))(model, batch)
    shorter = replace(batch, y=batch.y[:, :2], target_mask=batch.target_mask[:, :2])
    objective = supervised(SCALES, WEIGHTS, RolloutConfig(steps=2), steps=1)
    assert torch.equal(objective(model, batch)[0], objective(model, shorter)[0])
    with pytest.raises(ValueError, match="a multiple of the 3 of the targets, found 4"):
        objective(model, make_batch(frames=2, channels=3))


def test_the_curriculum_grows_evenly_to_all_steps() -> None:
    config = RolloutConfig(steps=4, curriculum_epochs=6)
    assert [config.steps_at(epoch) for epoch in range(9)] == [1, 1, 2, 2, 3, 3, 4, 4, 4]
    assert RolloutConfig(steps=4).steps_at(0) == 4
    with pytest.raises(ValueError, match="expected 1 to 4 rollout steps, found 5"):
        supervised(SCALES, WEIGHTS, config, steps=5)


def test_wrong_rollouts_are_named() -> None:
    with pytest.raises(ValueError, match="steps must be 1 or more, found 0"):
        RolloutConfig(steps=0)
    with pytest.raises(ValueError, match="noise must be zero or positive, found -1"):
        RolloutConfig(noise=-1.0)
    with pytest.raises(ValueError, match="curriculum epochs must be zero or more, found -1"):
        RolloutConfig(curriculum_epochs=-1)


# Parts of a batch, noise


@pytest.mark.parametrize("mode", ["full", "pushforward"])
def test_parts_of_a_batch_weighted_by_their_samples_give_the_whole_gradient(mode: Mode) -> None:
    model, batch = Mixer(history=2), make_batch(size=5, history=2, frames=2)
    config = RolloutConfig(steps=2, mode=mode, noise=0.3)
    objective = weighted({"supervised": (2.0, supervised(SCALES, WEIGHTS, config))})
    loss, logs = objective(model, batch)
    parts = [part(batch, slice(0, 2)), part(batch, slice(2, 5))]
    outcomes = [objective(model, piece) for piece in parts]
    shares = [2 / 5, 3 / 5]
    summed = sum(
        share * gradient(value, model) for share, (value, _) in zip(shares, outcomes, strict=True)
    )
    torch.testing.assert_close(summed, gradient(loss, model))
    for name, entry in logs.items():
        mean = sum(share * log[name] for share, (_, log) in zip(shares, outcomes, strict=True))
        torch.testing.assert_close(mean, entry, msg=name)


def test_noise_has_its_size_is_drawn_per_sample_and_leaves_unknown_points_alone() -> None:
    batch = make_batch(size=4, history=50)
    noise = noisy(batch, 0.25).x - batch.x
    known = batch.mask[:, None].expand_as(noise)
    assert (noise[~known] == 0).all()
    assert math.isclose(noise[known].std().item(), 0.25, rel_tol=0.05)
    assert abs(noise[known].mean().item()) < 0.02
    torch.testing.assert_close(noisy(part(batch, slice(2, 3)), 0.25).x - batch.x[2:3], noise[2:3])
    assert not torch.equal(noise[0], noise[1])


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


def test_a_sum_without_a_weight_is_refused() -> None:
    with pytest.raises(ValueError, match=r"a weight above zero, found \['mpp'\]"):
        weighted({"mpp": (0.0, refuses)})
    with pytest.raises(ValueError, match="'mpp' must be zero or positive: nan"):
        weighted({"mpp": (math.nan, refuses)})


def test_the_period_of_a_sum_is_the_least_that_all_of_its_parts_have() -> None:
    turns = {period: in_turns(constant(1.0), period) for period in (4, 5, 6)}
    whole = weighted(
        {
            "a": (1.0, turns[4]),
            "b": (2.0, turns[6]),
            "c": (1.0, constant(1.0)),
            "d": (0.0, turns[5]),
        }
    )
    assert period_of(whole) == 12  # a part that is left out has no say
    assert period_of(weighted({"c": (1.0, constant(1.0))})) == 1
