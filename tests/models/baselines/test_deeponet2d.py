"""DeepONet2d: size, persistence at the start, rank, what branch and trunk see, grids, options."""

from typing import Any

import pytest
import torch
from torch import Tensor

from pibert.fields import FieldSpec, Grid
from pibert.models import count_parameters
from pibert.models.baselines.deeponet2d import PRESETS, DeepONet2d, DeepONet2dConfig
from tests.helpers import tiny_spec
from tests.models.stepping import (
    check_every_parameter_of_the_spec_enters,
    check_other_channels_train_in_every_part,
)

SMALL: dict[str, Any] = {
    "rank": 3,
    "channels": (4, 5),
    "branch_width": 16,
    "trunk_width": 12,
    "trunk_depth": 2,
}


def make(spec: FieldSpec | None = None, seed: int = 0, **options: Any) -> DeepONet2d:
    """A small one whose coefficients are not zero, so that there is something to see."""
    torch.manual_seed(seed)
    model = DeepONet2d(DeepONet2dConfig(**(SMALL | options)), spec or tiny_spec((12, 20)))
    torch.nn.init.normal_(model.branch[-1].weight)  # type: ignore[arg-type]
    torch.nn.init.normal_(model.offset)
    return model.double()


def fields(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(shape, generator=generator, dtype=torch.float64)


@pytest.mark.parametrize(
    ("preset", "count", "rank"),
    [("base", 150_674, 16), ("rank64", 151_122, 64), ("wide", 618_786, 128)],
)
def test_presets_have_the_stated_number_of_parameters_and_rank(
    preset: str, count: int, rank: int
) -> None:
    model = DeepONet2d(PRESETS[preset], FieldSpec(grid=Grid((64, 64))))
    assert count_parameters(model) == count and model.rank == rank
    x = torch.randn(1, 2, 64, 64)
    assert torch.equal(model(x), x)  # and starts as persistence


def test_persistence_at_the_start_is_for_the_skip_alone() -> None:
    spec, x = tiny_spec((12, 20)), torch.randn(2, 6, 12, 20)
    model = DeepONet2d(DeepONet2dConfig(**SMALL, history=3, horizon=2), spec)
    assert torch.equal(model(x), x[:, -2:].repeat(1, 2, 1, 1))
    plain = DeepONet2d(DeepONet2dConfig(**SMALL, history=3, horizon=2, residual=False), spec)
    assert plain(x).std(0).max() > 0


def test_answers_span_as_many_directions_per_channel_as_the_rank_and_no_more() -> None:
    model = make(residual=False)
    with torch.no_grad():
        y = model(fields(40, 2, 12, 20)) - model.offset[:, None, None]
    for channel in range(2):
        values = torch.linalg.svdvals(y[:, channel].flatten(1))
        assert values[2] > 1e-4 * values[0]
        assert values[3] < 1e-12 * values[0]
    # Both channels have functions and coefficients of their own.
    together = torch.linalg.svdvals(y.transpose(0, 1).flatten(0, 1).flatten(1))
    assert together[5] > 1e-4 * together[0] and together[6] < 1e-12 * together[0]


def test_the_answer_is_a_sum_of_products_and_an_offset() -> None:
    model, x = make(residual=False), fields(2, 2, 12, 20)
    coefficients = model.branch(model.convolutions(x).flatten(1)).view(2, 2, 3)
    for row, column in ((0, 0), (4, 17), (11, 19)):
        place = torch.tensor([2 * (column + 0.5) / 20 - 1, 2 * (row + 0.5) / 12 - 1]).double()
        functions = model.trunk(place).view(2, 3)
        expected = (coefficients * functions).sum(-1) + model.offset
        assert torch.allclose(model(x)[:, :, row, column], expected, atol=1e-6)


def test_the_trunk_is_asked_once_for_all_samples_and_never_sees_the_field() -> None:
    model = make()
    seen: list[Tensor] = []
    model.trunk.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    model(fields(5, 2, 12, 20))
    model(fields(5, 2, 12, 20, seed=1))
    assert len(seen) == 2 and seen[0].shape == (12 * 20, 2)
    assert torch.equal(seen[0], seen[1])


def test_the_trunk_starts_with_functions_that_differ() -> None:
    torch.manual_seed(0)
    model = DeepONet2d(PRESETS["base"], FieldSpec(grid=Grid((64, 64))))
    with torch.no_grad():
        basis = model.basis((64, 64), like=torch.zeros(1))[0]
    places = torch.linspace(-1, 1, 64)
    linear = torch.stack((torch.ones(4096), places.repeat(64), places.repeat_interleave(64)), dim=1)
    bent = basis.mT - linear @ torch.linalg.lstsq(linear, basis.mT).solution
    size = bent.square().mean(0).sqrt()
    assert size.min() > 0.05
    values = torch.linalg.svdvals(bent / size)
    assert (values > 0.02 * values[0]).sum() >= 8


def test_a_far_pixel_reaches_every_output() -> None:
    model = make()
    x = fields(1, 2, 12, 20).requires_grad_()
    model(x)[0, 0, 1, 1].backward()
    assert x.grad is not None and x.grad[0, :, 10, 18].abs().min() > 1e-9


def test_where_something_is_matters_to_the_branch() -> None:
    model = make(residual=False)
    x = torch.zeros(2, 2, 12, 20, dtype=torch.float64)
    x[0, 0, 4, 4], x[1, 0, 8, 12] = 1, 1  # whole strides apart
    y = model(x)
    assert not torch.allclose(y[0], y[1])


@pytest.mark.parametrize("shape", [(12, 20), (11, 7), (3, 5), (1, 1)])
def test_any_grid_of_the_spec_goes_through(shape: tuple[int, int]) -> None:
    y = make(tiny_spec(shape))(fields(2, 2, *shape))
    assert y.shape == (2, 2, *shape) and torch.isfinite(y).all()


def test_another_grid_than_that_of_the_spec_is_refused() -> None:
    # As many points and, flattened, as many features: only the message tells.
    with pytest.raises(ValueError, match="grid of the spec, 12 x 20, found 20 x 12"):
        make()(fields(1, 2, 20, 12))


def test_parameters_enter_as_many_as_the_spec_has_if_asked() -> None:
    check_every_parameter_of_the_spec_enters(make, added=2 * SMALL["branch_width"])


@pytest.mark.parametrize("channels", [1, 3])
def test_other_numbers_of_channels_and_frames_train_in_every_part(channels: int) -> None:
    check_other_channels_train_in_every_part(make, channels)


def test_the_model_runs_in_half_precision_autocast() -> None:
    model, x = make().float(), fields(2, 2, 12, 20).float()
    with torch.no_grad():
        full = model(x)
        with torch.autocast("cpu", torch.bfloat16):
            half = model(x)
    assert (half - full).norm() < 3e-2 * full.norm()


def test_the_model_is_captured_as_one_graph(no_shape_checks: None) -> None:
    model, x = make().eval(), fields(2, 2, 12, 20)
    program = torch.export.export(model, (x,))
    assert torch.allclose(program.module()(x), model(x), atol=1e-12)


def test_sizes_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ValueError, match="rank must be at least 1, found 0"):
        DeepONet2dConfig(rank=0)
    with pytest.raises(ValueError, match=r"channels must be one or more .* found \(\)"):
        DeepONet2dConfig(channels=())
