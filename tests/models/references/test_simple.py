"""Persistence, training mean and linear extrapolation; the contract of all references."""

import copy
from typing import Any

import pytest
import torch

from pibert.fields import FieldSpec, Grid, Normalizer
from pibert.models.references.dmd import DMD, DMDConfig
from pibert.models.references.mean_advection import MeanAdvection
from pibert.models.references.simple import (
    LinearExtrapolation,
    LinearExtrapolationConfig,
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
