"""DMD on planted linear systems and waves."""

import itertools
import math
from collections.abc import Iterator
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from pibert.fields import Batch, FieldSpec, Grid, Normalizer
from pibert.models.references.dmd import DMD, RANKS, RIDGES, DMDConfig
from tests.helpers import refused
from tests.models.recordings import batches_of
from tests.training.setups import batch_of

SPEC = FieldSpec(grid=Grid((5, 8), dx=0.3, dy=0.2), dt=0.1)
NORMALIZER = Normalizer((1.0, -0.5), (2.0, 0.5))
DIM = 2 * 5 * 8


def fit(states: Tensor, valid: Tensor | None = None, *, rank: int, history: int = 1) -> DMD:
    model = DMD(DMDConfig(history=history, rank=rank), SPEC).double()
    batches = batches_of(states, SPEC, NORMALIZER, history=history, valid=valid, size=7)
    model.fit(batches, NORMALIZER)
    return model


def planted(seed: int = 0) -> tuple[Tensor, Tensor]:
    """Four orthonormal directions and a rotation with some decay between them."""
    generator = torch.Generator().manual_seed(seed)
    directions = torch.linalg.qr(torch.randn(DIM, 4, generator=generator, dtype=torch.float64)).Q.mT
    a, b = 0.7, 0.31
    operator = torch.zeros(4, 4, dtype=torch.float64)
    operator[:2, :2] = torch.tensor([[math.cos(a), -math.sin(a)], [math.sin(a), math.cos(a)]])
    operator[2:, 2:] = torch.tensor([[math.cos(b), 0.2], [-math.sin(b), 0.8]])
    return directions, operator


def pairs(directions: Tensor, operator: Tensor, count: int, seed: int = 1) -> list[Batch]:
    """Unrelated states with their successors; their mean is exactly zero."""
    generator = torch.Generator().manual_seed(seed)
    a = torch.randn(count, 4, generator=generator, dtype=torch.float64)
    a = torch.cat((a, -a))
    before, after = ((c @ directions).view(-1, 2, 5, 8) for c in (a, a @ operator.mT))
    known = torch.ones(len(a), 5, 8, dtype=torch.bool)
    whole = batch_of(before, after[:, None], known, known[:, None])
    return [whole.map(lambda t, i=i: t[i : i + 9]) for i in range(0, len(a), 9)]  # type: ignore[misc]


@pytest.mark.parametrize("rank", [4, 16])
def test_a_planted_linear_system_is_recovered(rank: int) -> None:
    directions, operator = planted()
    model = DMD(DMDConfig(rank=rank, horizon=3), SPEC).double()
    model.fit(pairs(directions, operator, 60), NORMALIZER)
    a = torch.randn(6, 4, dtype=torch.float64)
    expected = torch.cat([a @ torch.matrix_power(operator, s).mT for s in (1, 2, 3)], dim=1)
    found = model((a @ directions).view(6, 2, 5, 8)).view(6, 3, DIM) @ directions.mT
    assert torch.allclose(found.flatten(1), expected, atol=1e-9)
    kept = model.modes.flatten(1) @ model.modes.flatten(1).mT
    identity = torch.diag((torch.arange(rank) < 4).double())
    assert torch.allclose(kept, identity, atol=1e-9)
    assert not model.operator[4:].any() and not model.operator[:, 4:].any()
    spectrum = torch.linalg.eigvals(model.operator[:4, :4])
    exact = torch.linalg.eigvals(operator)
    assert (spectrum[:, None] - exact).abs().min(1).values.max() < 1e-9


def wave(phase: Tensor) -> Tensor:
    """A travelling wave with its second harmonic about a mean flow, (t, 2, y, x), physical."""
    x, y = SPEC.grid.coordinates(torch.float64)
    along = 2 * math.pi * x / (8 * SPEC.grid.dx) - phase[:, None, None]
    u = 2.0 + y + (1 + y) * along.cos() + 0.3 * (2 * along + 1).sin()
    v = 0.5 * y * (along + 0.4).sin()
    return torch.stack((u, v.expand_as(u)), dim=1)


@pytest.mark.parametrize("history", [1, 2])
def test_a_travelling_wave_is_predicted_at_phases_never_seen(history: int) -> None:
    step = 2 * math.pi / 12
    # Targets over three whole periods, so that their mean is the mean flow.
    states = wave(step * torch.arange(36 + history, dtype=torch.float64))
    model = fit(states, history=history, rank=8)
    unseen = 0.37 * step + step * torch.arange(6, dtype=torch.float64)
    z = NORMALIZER.apply(wave(unseen))
    found = model(z[None, :history].flatten(1, 2))
    assert torch.allclose(found[0], z[history], atol=1e-7)
    # Persistence is far off.
    assert (z[history] - z[history - 1]).abs().max() > 0.2


def noisy(count: int, seed: int, noise: float) -> list[Batch]:
    """Pairs of the planted system, measured with noise in all directions."""
    generator = torch.Generator().manual_seed(seed)
    batches = pairs(*planted(), count, seed)
    for batch in batches:
        for values in (batch.x, batch.y):
            values += noise * torch.randn(values.shape, generator=generator, dtype=values.dtype)
    return batches


def error(model: DMD, batches: list[Batch]) -> float:
    squares = [(model(batch.x) - batch.y[:, 0]).square().sum() for batch in batches]
    return float(torch.stack(squares).sum())


@pytest.mark.parametrize(("count", "noise"), [(30, 0.3), (200, 0.05)])
def test_validation_data_choose_rank_and_ridge(count: int, noise: float) -> None:
    train, valid, test = (noisy(n, seed, noise) for n, seed in ((count, 1), (200, 2), (200, 3)))
    chosen = DMD(DMDConfig(), SPEC).double()
    chosen.fit(train, NORMALIZER, valid)
    assert chosen.config.rank in RANKS and chosen.config.ridge in RIDGES
    assert len(chosen.modes) == chosen.config.rank
    fixed = {}
    for rank, ridge in itertools.product(RANKS[:3], RIDGES):
        model = DMD(DMDConfig(rank=rank, ridge=ridge), SPEC).double()
        model.fit(train, NORMALIZER)
        fixed[rank, ridge] = error(model, valid)
    # Fixed ranks track fewer directions of the data.
    assert error(chosen, valid) <= 1.01 * min(fixed.values())
    plain = DMD(DMDConfig(rank=64, ridge=0.0), SPEC).double()
    plain.fit(train, NORMALIZER)
    assert error(chosen, test) < 0.97 * error(plain, test)


def test_what_is_given_is_not_chosen_and_without_validation_data_nothing_is() -> None:
    train, valid = noisy(40, 1, 0.3), noisy(40, 2, 0.3)
    for given, found in (
        (DMDConfig(rank=5, ridge=0.5), (5, 0.5)),
        (DMDConfig(rank=5, ridge=0.0), (5, 0.0)),
    ):
        model = DMD(given, SPEC).double()
        model.fit(train, NORMALIZER, valid)
        assert (model.config.rank, model.config.ridge) == found
    model = DMD(DMDConfig(), SPEC).double()
    model.fit(train, NORMALIZER)
    assert (model.config.rank, model.config.ridge) == (40, 0.0)  # of 80 samples
    with refused("rank", "at least 1", "0"):
        DMDConfig(rank=0)
    with refused("ridge", "-1"):
        DMDConfig(ridge=-1.0)


@pytest.mark.parametrize("history", [1, 2])
def test_flows_outside_the_modes_of_training_persist_if_validation_flows_do(history: int) -> None:
    generator = torch.Generator().manual_seed(5)
    directions = torch.linalg.qr(torch.randn(DIM, DIM, generator=generator, dtype=torch.float64)).Q
    decay = 1 - 0.02 * torch.rand(DIM, 1, generator=generator, dtype=torch.float64)

    def flows(count: int) -> list[Batch]:
        """Slowly decaying flows, each from random values in all directions."""
        found = []
        for _ in range(count):
            start = torch.randn(DIM, 1, generator=generator, dtype=torch.float64)
            states = (directions @ (start * decay ** torch.arange(8))).mT.reshape(8, 2, 5, 8)
            found += batches_of(states, SPEC, NORMALIZER, history=history, size=7)
        return found

    train, valid, test = flows(10), flows(4), flows(4)
    chosen = DMD(DMDConfig(history=history), SPEC).double()
    chosen.fit(train, NORMALIZER, valid)
    assert chosen.config.rest_persists
    last = [(batch.x[:, -2:] - batch.y[:, 0]).square().sum() for batch in test]
    assert error(chosen, test) < 1.05 * float(torch.stack(last).sum())
    dropped = DMD(DMDConfig(history=history, rest_persists=False), SPEC).double()
    dropped.fit(train, NORMALIZER, valid)
    assert error(dropped, test) > 100 * error(chosen, test)


def test_batches_that_can_be_read_only_once_are_refused() -> None:
    def once() -> Iterator[Batch]:
        yield from batches_of(wave(torch.arange(5.0, dtype=torch.float64)), SPEC, NORMALIZER)

    with refused("twice", "iterator"):
        DMD(DMDConfig(), SPEC).fit(once(), NORMALIZER)


def test_the_state_of_a_moving_body_is_known_at_hidden_points() -> None:
    channels = ("u", "v", "displacement", "speed")
    spec = replace(SPEC, channels=channels, units=("1",) * 4, state=channels[2:])
    turn, count = 2 * math.pi / 15, 60
    angle = turn * torch.arange(count + 1, dtype=torch.float64)
    fields = torch.stack((torch.cos(angle), torch.sin(angle)) * 2, 1)
    frames = fields[..., None, None].expand(-1, -1, 5, 8).clone()
    rows = (2 + torch.cos(angle)).round().long()  # the body hides one row, which moves
    known = torch.ones(count + 1, 5, 8, dtype=torch.bool)
    known[torch.arange(count + 1), rows] = False
    frames[:, :2] = 0.0  # the state alone moves: hidden fields must not disturb it
    frames = torch.where(known[:, None], frames, 0.0)
    batch = batch_of(frames[:-1], frames[1:, None], known[:-1], known[1:, None])
    model = DMD(DMDConfig(rank=4), spec).double()
    model.fit([batch], NORMALIZER)
    found = model(batch.x, mask=batch.mask)[:, 2:]
    expected = fields[1:, 2:, None, None].expand_as(found)
    assert torch.allclose(found, expected, atol=1e-9)
