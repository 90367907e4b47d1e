"""DMD on planted linear systems and waves."""

import math

import pytest
import torch
from torch import Tensor

from pibert.fields import Batch, FieldSpec, Grid, Normalizer
from pibert.models.references.dmd import DMD, DMDConfig
from tests.models.recordings import batches_of

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
    numbers = torch.arange(len(a))
    whole = Batch(
        x=before,
        y=after[:, None],
        parameters=torch.zeros(len(a), 16),
        mask=known,
        target_mask=known[:, None],
        sample=numbers,
        seeds=numbers,
    )
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
