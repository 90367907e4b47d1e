"""Models that correct the frame of DMD: exact on linear flows, in units of its error."""

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from pibert.fields import Batch, FieldSpec, Grid, Normalizer
from pibert.models import build_model
from pibert.models.references.dmd import LEAST_CORRECTION, DMDSkip
from tests.helpers import assert_close, randomise, refused
from tests.models.recordings import batches_of

SPEC = FieldSpec(grid=Grid((8, 12), dx=0.3, dy=0.2), dt=0.1)
NORMALIZER = Normalizer((0.0, 0.0), (1.0, 1.0))
NAMES = ("pibert-mr", "unet", "mwt")


def rotating(count: int, noise: float = 0.0) -> Tensor:
    """A mean and two modes that rotate into each other in 20 frames, (t, 2, y, x), and noise."""
    generator = torch.Generator().manual_seed(0)
    mean, a, b = torch.randn(3, 2, 8, 12, generator=generator, dtype=torch.float64)
    phase = math.pi / 10 * torch.arange(count, dtype=torch.float64)[:, None, None, None]
    states = mean + a * phase.cos() + b * phase.sin()
    return states + noise * torch.randn(states.shape, generator=generator, dtype=torch.float64)


def batches(states: Tensor) -> list[Batch]:
    return list(batches_of(states, SPEC, NORMALIZER, history=1, size=8))


def build(name: str, modes: int = 6) -> Any:
    return build_model(name, preset="small", spec=SPEC, dmd_modes=modes).double()


def skip_of(model: Any) -> DMDSkip:
    skip = model.dmd_skip
    assert isinstance(skip, DMDSkip)
    return skip


@pytest.mark.parametrize("name", NAMES)
def test_the_frame_of_a_linear_flow_needs_no_correction(name: str) -> None:
    model, states = build(name), rotating(41)
    assert_close(model(states[:3]), states[:3])  # without a fit it corrects the last frame
    skip_of(model).fit(batches(states), NORMALIZER)
    assert_close(model(states[5:9]), states[6:10], rtol=1e-9)
    assert bool((skip_of(model).scale == LEAST_CORRECTION).all())


def test_the_network_corrects_in_units_of_the_error_of_dmd() -> None:
    model, states = build("unet"), rotating(200, noise=0.3)
    skip = skip_of(model)
    skip.fit(batches(states), NORMALIZER)
    linear = model(states[:-1])
    error = (linear - states[1:]).square().mean((0, 2, 3)).sqrt()
    assert_close(skip.scale, error, rtol=1e-9)
    randomise(model.head)
    change = model.change(states[:4], torch.zeros(4, 16).double())
    assert change.abs().max() > 0.1
    assert_close(model(states[:4]), linear[:4] + skip.scale[:, None, None] * change, rtol=1e-9)


def test_modes_that_the_data_do_not_have_are_zero_and_weights_fit_another_copy() -> None:
    model, states = build("pibert-mr", modes=20), rotating(61)
    skip = skip_of(model)
    skip.fit(batches(states[:41]), NORMALIZER, batches(states[40:]))
    assert skip.dmd.modes.flatten(1).norm(dim=1).tolist() == pytest.approx([1] * 2 + [0] * 18)
    copy = build("pibert-mr", modes=20)
    copy.load_state_dict(model.state_dict())
    assert_close(copy(states[:4]), model(states[:4]))


def test_unknown_points_do_not_change_the_answer() -> None:
    model, states = build("pibert-mr"), rotating(40)
    skip_of(model).fit(batches(states), NORMALIZER)
    mask = torch.ones(8, 12, dtype=torch.bool)
    mask[2:5, 3:6] = False
    spoilt = torch.where(mask, states[:4], 1e6)
    assert_close(model(spoilt, None, mask), model(states[:4], None, mask), rtol=1e-9)


@pytest.mark.parametrize("name", NAMES)
def test_another_grid_than_that_of_the_modes_is_refused(name: str) -> None:
    with refused("(8, 12)", "(16, 20)"):
        build(name)(torch.randn(1, 2, 16, 20).double())


def test_models_that_correct_no_frame_refuse_it() -> None:
    for name in ("pinn", "pitt", "fourierflow"):
        with refused("dmd_modes", 8):
            build_model(name, dmd_modes=8)
    with refused("dmd_modes", "residual=False"):
        build_model("unet", dmd_modes=8, residual=False)


def test_no_more_modes_are_allocated_than_can_be_chosen() -> None:
    assert len(skip_of(build("unet", modes=512)).dmd.modes) == 2 * 8 * 12
    with refused("dmd_modes", 512, 10**9):
        build("unet", modes=10**9)


def test_few_samples_without_validation_data_are_not_fitted_exactly() -> None:
    model, states = build("unet", modes=64), rotating(61, noise=0.3)
    skip = skip_of(model)
    skip.fit(batches(states[:13]), NORMALIZER)  # twelve samples
    assert int((skip.dmd.modes.flatten(1).norm(dim=1) > 0).sum()) == 6
    assert bool((skip.scale > 0.1).all())  # a correction can be of the size of the noise
    error = (model(states[13:-1]) - states[14:]).square().mean()
    assert error < 0.9 * (states[13:-1] - states[14:]).square().mean()
