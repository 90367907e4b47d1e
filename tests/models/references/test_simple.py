"""Predictors without training: exact cases of each, and the contract of all."""

import copy
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from pibert.fields import FieldSpec, Grid, Normalizer
from pibert.models.references.dmd import DMD, DMDConfig
from pibert.models.references.simple import (
    LinearExtrapolation,
    LinearExtrapolationConfig,
    MeanAdvection,
    Persistence,
    Reference,
    ReferenceConfig,
    TrainingMean,
)
from tests.helpers import refused
from tests.models.recordings import batches_of

SPEC = FieldSpec(channels=("p", "u", "v"), grid=Grid((6, 9), dx=0.3, dy=0.2), dt=0.1)
NORMALIZER = Normalizer((1.0, -2.0, 0.5), (2.0, 0.5, 3.0))
KINDS: list[tuple[type[Reference], Any]] = [
    (Persistence, ReferenceConfig()),
    (TrainingMean, ReferenceConfig()),
    (LinearExtrapolation, LinearExtrapolationConfig()),
    (MeanAdvection, ReferenceConfig()),
    (DMD, DMDConfig(rank=4)),
]
every_kind = pytest.mark.parametrize(("kind", "config"), KINDS, ids=lambda v: str(v)[:25])


def frames(count: int = 14, seed: int = 0) -> torch.Tensor:
    """Noise in physical units, (t, c, y, x)."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, 3, 6, 9, generator=generator) * 2 + 1


def fitted(kind: type[Reference], config: Any) -> Reference:
    reference = kind(config, SPEC)
    reference.fit(
        batches_of(frames(), SPEC, NORMALIZER, history=config.history, horizon=config.horizon),
        NORMALIZER,
    )
    return reference


def test_persistence_repeats_the_newest_frame_exactly() -> None:
    x = torch.randn(2, 9, 6, 9)
    model = Persistence(ReferenceConfig(history=3, horizon=2), SPEC)
    assert torch.equal(model(x), x[:, 6:].repeat(1, 2, 1, 1))
    # It needs no fit, and runs on any grid.
    assert torch.equal(model(x[..., :4, :5]), x[:, 6:, :4, :5].repeat(1, 2, 1, 1))


def test_the_training_mean_is_that_of_the_known_targets() -> None:
    states = frames()
    generator = torch.Generator().manual_seed(1)
    valid = torch.rand(14, 6, 9, generator=generator) > 0.4
    valid[:, 2, 3] = False  # never known
    broken = torch.where(valid[:, None], states, torch.nan)
    model = TrainingMean(ReferenceConfig(horizon=2), SPEC)
    model.fit(batches_of(broken, SPEC, NORMALIZER, horizon=2, valid=valid), NORMALIZER)
    # Windows of three frames: the targets of window i are the frames i + 1 and i + 2.
    targets = [f for i in range(12) for f in (i + 1, i + 2)]
    known = valid[targets][:, None].double()
    z = NORMALIZER.apply(states.double())[targets] * known
    expected = z.sum(0) / known.sum(0).clamp(min=1)
    assert torch.allclose(model.mean.double(), expected, atol=1e-6)
    assert not model.mean[:, 2, 3].any()
    x = torch.randn(3, 3, 6, 9)
    assert torch.equal(model(x), model.mean.repeat(3, 2, 1, 1))


@pytest.mark.parametrize("history", [2, 4])
def test_extrapolation_is_exact_where_fields_are_linear_in_time(history: int) -> None:
    start, slope = torch.randn(2, 3, 6, 9, dtype=torch.float64)
    times = torch.arange(history + 3)[:, None, None, None]
    z = (start + slope * times)[None]
    model = LinearExtrapolation(LinearExtrapolationConfig(history=history, horizon=3), SPEC)
    found = model(z[:, :history].flatten(1, 2))
    assert torch.allclose(found, z[:, history:].flatten(1, 2), atol=1e-12)


@every_kind
def test_references_with_a_mean_must_be_fitted(kind: type[Reference], config: Any) -> None:
    model, x = fitted(kind, config), torch.randn(2, 3 * config.history, 6, 9)
    assert not list(model.parameters())
    assert torch.equal(copy.deepcopy(model)(x), model(x))
    model.load_state_dict(kind(config, SPEC).state_dict())
    if not kind.needs_fit:
        assert model(x).shape == (2, 3, 6, 9)
        return
    with refused("call fit"):
        model(x)


@every_kind
def test_values_at_unknown_points_do_not_matter(kind: type[Reference], config: Any) -> None:
    model = fitted(kind, config)
    x = torch.randn(2, 3 * config.history, 6, 9)
    mask = torch.rand(2, 6, 9) > 0.3
    broken = torch.where(mask[:, None], x, torch.nan)
    assert torch.equal(model(broken, mask=mask), model(torch.where(mask[:, None], x, 7), mask=mask))


@pytest.mark.parametrize(("kind", "config"), [KINDS[1], KINDS[3], KINDS[4]])
def test_grids_and_batches_of_other_data_are_refused(kind: type[Reference], config: Any) -> None:
    with refused((6, 9), (9, 6)):
        fitted(kind, config)(torch.randn(1, 3, 9, 6))
    model = kind(config, SPEC)
    with refused("targets", "none"):
        model.fit([], NORMALIZER)
    batches = batches_of(frames(), SPEC, NORMALIZER, history=2)
    with refused("1 frames", (5, 6, 6, 9)):
        model.fit(batches, NORMALIZER)


# Mean advection


NY, NX, DX, DY, DT = 20, 36, 0.25, 0.4, 0.1
PERIODIC = FieldSpec(grid=Grid.periodic((NY, NX), DX, DY), dt=DT)
VELOCITY = Normalizer((3.0, -1.0), (2.0, 0.5))


def translating(flow: tuple[float, float], count: int, waves: tuple[int, int] = (2, 1)) -> Tensor:
    """A mean flow and a wave that runs with it, (t, 2, y, x); its time mean is the mean flow.

    The recording lasts a whole number of periods of the wave.
    """
    grid = PERIODIC.grid
    x, y = grid.coordinates(torch.float64)
    kx = 2 * math.pi * waves[0] / (NX * grid.dx)
    ky = 2 * math.pi * waves[1] / (NY * grid.dy)
    t = torch.arange(count, dtype=torch.float64)[:, None, None] * DT
    phase = kx * (x - flow[0] * t) + ky * (y - flow[1] * t)
    return torch.stack((flow[0] + 0.3 * phase.cos(), flow[1] + 0.2 * (phase + 1).sin()), dim=1)


def periods(flow: tuple[float, float], waves: tuple[int, int]) -> int:
    """Frames of one period of the wave, which must be a whole number."""
    turns = DT * (flow[0] * waves[0] / (NX * DX) + flow[1] * waves[1] / (NY * DY))
    count = abs(1 / turns)
    assert abs(count - round(count)) < 1e-9
    return round(count)


def advection_of(states: Tensor, spec: FieldSpec = PERIODIC) -> MeanAdvection:
    model = MeanAdvection(ReferenceConfig(), spec).double()
    model.fit(batches_of(states, spec, VELOCITY), VELOCITY)
    return model


def test_a_shift_by_whole_cells_is_exact() -> None:
    flow = (2 * DX / DT, -DY / DT)
    waves = (2, 2)
    states = translating(flow, periods(flow, waves) + 1, waves)
    z = VELOCITY.apply(states)
    assert torch.allclose(advection_of(states)(z[:1]), z[:1].roll((-1, 2), (2, 3)), atol=1e-9)


def still(flow: tuple[float, float], spec: FieldSpec) -> MeanAdvection:
    """Fitted on frames of one uniform flow."""
    states = torch.tensor(flow, dtype=torch.float64)[:, None, None].expand(2, *spec.grid.shape)
    return advection_of(states.expand(4, -1, -1, -1).contiguous(), spec)


def test_open_sides_do_not_wrap() -> None:
    spec = FieldSpec(grid=Grid((8, 10), dx=0.5, dy=0.2), dt=0.1)
    model = still((10.0, 0.0), spec)  # two columns right
    z = model.mean[None].clone()
    z[0, 1, 3, 9] += 1.0  # leaves the domain
    assert torch.allclose(model(z), model.mean[None], atol=1e-9)
    z = model.mean[None].clone()
    z[0, 1, :, 0] += 1.0
    found = model(z) - model.mean
    expected = torch.zeros_like(found)
    expected[0, 1, :, :3] = 1.0
    assert torch.allclose(found, expected, atol=1e-9)


def test_cubic_polynomials_are_interpolated_exactly() -> None:
    spec = FieldSpec(grid=Grid((9, 11)), dt=1.0)
    model = MeanAdvection(ReferenceConfig(), spec).double()
    model.load_state_dict(model.state_dict() | {"fitted": torch.tensor(True)})
    generator = torch.Generator().manual_seed(0)
    fractions = torch.rand(2, 9, 11, generator=generator, dtype=torch.float64)
    model.departure.copy_(fractions * torch.tensor((10.0, 8.0))[:, None, None])

    def field(x: Tensor, y: Tensor) -> Tensor:
        x, y = x / 10, y / 8
        return (1 + x - y) ** 3 + x**3 * y**3

    x, y = spec.grid.coordinates(torch.float64)
    z = field(x, y).expand(1, 2, 9, 11).contiguous()
    assert torch.allclose(model(z)[0, 0], field(*model.departure), atol=1e-12)


def test_points_that_are_never_known_have_no_velocity_and_unknown_ones_no_fluctuation() -> None:
    spec = FieldSpec(grid=Grid((8, 10), dx=0.5, dy=0.2), dt=0.1)
    states = torch.tensor((10.0, 2.0), dtype=torch.float64)[:, None, None].repeat(4, 1, 8, 10)
    valid = torch.ones(8, 10, dtype=torch.bool)
    valid[3:5, 4:6] = False
    model = MeanAdvection(ReferenceConfig(), spec).double()
    model.fit(batches_of(states, spec, VELOCITY, valid=valid), VELOCITY)
    x, y = torch.arange(10.0), torch.arange(8.0)
    shift = torch.where(valid, 1.0, 0.0)
    assert torch.allclose(model.departure[0], (x - 2 * shift).double())
    assert torch.allclose(model.departure[1], (y[:, None] - shift).double())
    found = model(torch.randn(1, 2, 8, 10, dtype=torch.float64), mask=torch.zeros(8, 10))
    assert torch.equal(found, model.mean[None])
