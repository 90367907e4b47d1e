"""The ConvNeXt-U-Net: padding, periodic sides, its block."""

from typing import Any

import pytest
import torch
import torch.nn.functional as F

from pibert import FieldSpec, Grid
from pibert.fields import Boundary, Sides
from pibert.models.baselines.unet import Block, UNet, UNetConfig
from pibert.models.layers import GridConv2d
from tests.helpers import randomise


def make(spec: FieldSpec, **options: Any) -> UNet:
    return UNet(UNetConfig(**({"width": 4, "stages": 3, "blocks": 1} | options)), spec)


def test_other_grids_are_extended_by_repetition_and_cropped() -> None:
    model = randomise(make(FieldSpec(grid=Grid((13, 22)))).double()).eval()
    x = torch.randn(2, 2, 13, 22, dtype=torch.float64)
    extended = F.pad(x, (0, 2, 0, 3), mode="replicate")
    assert torch.allclose(model(x), model(extended)[..., :13, :22], atol=1e-12)


def test_a_block_follows_its_equation() -> None:
    block = Block(6, Grid((9, 11))).double()
    torch.nn.init.constant_(block.gamma, 0.75)
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
def test_shifts_commute_across_periodic_sides(sides: Sides, moves: tuple[int, int]) -> None:
    """For shifts by whole cells of the coarsest grid, and not along other axes."""
    model = randomise(make(FieldSpec(grid=Grid((16, 24), sides=sides))).double()).eval()
    x = torch.randn(1, 2, 16, 24, dtype=torch.float64)
    moved = model(x.roll(moves, (2, 3)))
    assert torch.allclose(moved, model(x).roll(moves, (2, 3)), atol=1e-10)
    if 0 in moves:
        other = (8 - moves[0], 8 - moves[1])
        assert not torch.allclose(model(x.roll(other, (2, 3))), model(x).roll(other, (2, 3)))


@pytest.mark.parametrize("shape", [(9, 5), (2, 3), (1, 2)])
def test_a_periodic_convolution_wraps_even_on_tiny_fields(shape: tuple[int, int]) -> None:
    conv = GridConv2d(1, 1, 7, Grid.periodic((8, 8))).double()
    x = torch.randn(1, 1, *shape, dtype=torch.float64)
    expected = torch.zeros_like(x) + conv.bias  # type: ignore[operator]
    for i in range(-3, 4):
        for j in range(-3, 4):
            expected += conv.weight[0, 0, i + 3, j + 3] * x.roll((-i, -j), (2, 3))
    assert torch.allclose(conv(x), expected, atol=1e-12)
