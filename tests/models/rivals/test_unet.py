"""The ConvNeXt-U-Net: size, padding, periodic sides, its block by hand."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from pibert import FieldSpec, Grid
from pibert.fields import Boundary, Sides
from pibert.models import count_parameters
from pibert.models.convolution import GridConv2d
from pibert.models.rivals.unet import PRESETS, Block, UNet, UNetConfig
from tests.models.stepping import CHECKS, drawn

COUNTS = {"base": 1_685_810, "wide": 6_596_194, "small": 545_600}


def make(spec: FieldSpec, **options: Any) -> UNet:
    return UNet(UNetConfig(**({"width": 4, "stages": 3, "blocks": 1} | options)), spec)


@pytest.mark.parametrize("check", CHECKS)
def test_it_is_a_model_of_the_next_frame(check: str) -> None:
    torch.manual_seed(0)
    CHECKS[check](make)


def test_presets_have_the_stated_number_of_parameters() -> None:
    assert next(iter(PRESETS)) == "base"
    found = {name: count_parameters(UNet(PRESETS[name], FieldSpec())) for name in PRESETS}
    assert found == COUNTS


def test_coordinates_tell_the_model_where_a_point_is() -> None:
    spec = FieldSpec(grid=Grid.periodic((16, 24)))
    x = torch.randn(1, 2, 16, 24, dtype=torch.float64)
    for coordinates in (False, True):
        model = drawn(make, spec, coordinates=coordinates)
        moved = model(x.roll((8, 16), (2, 3))).roll((-8, -16), (2, 3))
        assert torch.allclose(moved, model(x), rtol=1e-10) != coordinates


def test_other_grids_are_extended_by_repetition_and_cropped() -> None:
    model = drawn(make, FieldSpec(grid=Grid((13, 22))))
    x = torch.randn(2, 2, 13, 22, dtype=torch.float64)
    extended = F.pad(x, (0, 2, 0, 3), mode="replicate")
    assert torch.allclose(model(x), model(extended)[..., :13, :22], atol=1e-12)


def test_a_block_is_what_its_equation_says() -> None:
    block = Block(6, UNetConfig(layer_scale=0.75), Grid((9, 11))).double()
    x = torch.randn(2, 6, 9, 11, dtype=torch.float64)
    y = torch.zeros_like(x)
    wide = F.pad(x, (3, 3, 3, 3))
    for i in range(7):
        for j in range(7):
            y += (
                block.spread.weight[None, :, 0, i, j, None, None] * wide[..., i : i + 9, j : j + 11]
            )
    y += block.spread.bias[None, :, None, None]  # type: ignore[index]
    y = (y - y.mean(1, keepdim=True)) / (y.var(1, keepdim=True, unbiased=False) + 1e-5).sqrt()
    hidden = F.gelu(
        torch.einsum("kc,bcyx->bkyx", block.widen.weight, y) + block.widen.bias[:, None, None]
    )
    out = torch.einsum("ck,bkyx->bcyx", block.narrow.weight, hidden)
    out = x + 0.75 * (out + block.narrow.bias[:, None, None])
    assert torch.allclose(block(x), out, atol=1e-10)


PERIODIC, WALL = Boundary.PERIODIC, Boundary.WALL


@pytest.mark.parametrize(
    ("sides", "moves"),
    [
        (Sides(PERIODIC, PERIODIC, WALL, WALL), (0, 8)),
        (Sides(WALL, WALL, PERIODIC, PERIODIC), (8, 0)),
        (Sides(PERIODIC, PERIODIC, PERIODIC, PERIODIC), (8, 16)),
    ],
)
def test_across_periodic_sides_the_model_moves_with_the_field(
    sides: Sides, moves: tuple[int, int]
) -> None:
    """Whole steps of the coarsest grid; along axes that are not periodic it must not."""
    model = drawn(make, FieldSpec(grid=Grid((16, 24), sides=sides)))
    x = torch.randn(1, 2, 16, 24, dtype=torch.float64)
    moved = model(x.roll(moves, (2, 3)))
    assert torch.allclose(moved, model(x).roll(moves, (2, 3)), atol=1e-10)
    if 0 in moves:
        other = (8 - moves[0], 8 - moves[1])
        assert not torch.allclose(model(x.roll(other, (2, 3))), model(x).roll(other, (2, 3)))


@pytest.mark.parametrize("shape", [(9, 5), (2, 3), (1, 2)])
def test_a_convolution_wraps_around_also_where_the_kernel_is_wider_than_the_field(
    shape: tuple[int, int],
) -> None:
    conv = GridConv2d(1, 1, 7, Grid.periodic((8, 8))).double()
    x = torch.randn(1, 1, *shape, dtype=torch.float64)
    expected = torch.zeros_like(x) + conv.bias  # type: ignore[operator]
    for i in range(-3, 4):
        for j in range(-3, 4):
            expected += conv.weight[0, 0, i + 3, j + 3] * x.roll((-i, -j), (2, 3))
    assert torch.allclose(conv(x), expected, atol=1e-12)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"width": 0}, "width must be at least 1, found 0"),
        ({"history": 0}, "history must be at least 1, found 0"),
        ({"kernel": 6}, "kernel must be odd, found 6"),
        ({"layer_scale": 0.0}, "layer_scale must be positive, found 0.0"),
    ],
)
def test_a_wrong_choice_says_what_was_expected(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        UNetConfig(**options)
