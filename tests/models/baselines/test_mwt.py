"""The multiwavelet operator: filters, perfect reconstruction, the non-standard form."""

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch

from pibert import FieldSpec, Grid
from pibert.models.baselines.mwt import (
    MWT,
    Block,
    Multiwavelets,
    MWTConfig,
    MWTPublished,
    MWTPublishedConfig,
    PublishedBlock,
    filter_matrix,
)
from tests.helpers import assert_close, randomise

ORDERS = [1, 2, 3, 4, 7, 10]


def test_two_polynomials_per_cell_give_alperts_filters() -> None:
    """Worked out by hand: x and its halves, and the hat that is orthogonal to 1, x and x^2."""
    r = math.sqrt(3) / 2
    h0, h1 = [[1, 0], [-r, 0.5]], [[1, 0], [r, 0.5]]
    g0, g1 = [[0, -1], [0.5, r]], [[0, 1], [-0.5, r]]
    expected = np.block([[np.array(h0), np.array(h1)], [np.array(g0), np.array(g1)]])
    assert np.allclose(filter_matrix(2), expected / math.sqrt(2), atol=1e-14)


@pytest.mark.parametrize("order", ORDERS)
def test_the_filters_are_orthogonal(order: int) -> None:
    """H0 H0^T + H1 H1^T = I, G0 G0^T + G1 G1^T = I, H0 G0^T + H1 G1^T = 0, and the columns too."""
    matrix = filter_matrix(order)
    assert np.allclose(matrix @ matrix.T, np.eye(2 * order), atol=1e-12)
    assert np.allclose(matrix.T @ matrix, np.eye(2 * order), atol=1e-12)


def test_the_transform_is_the_sum_over_children_axis_by_axis() -> None:
    k, c = 3, 2
    matrix = filter_matrix(k)
    bands = {"h": (matrix[:k, :k], matrix[:k, k:]), "g": (matrix[k:, :k], matrix[k:, k:])}
    s = torch.randn(1, c * k * k, 4, 6, dtype=torch.float64)
    cells = s.view(c, k, k, 4, 6).numpy()
    averages, details = Multiwavelets(k, c).down(s)
    found = torch.cat((averages.view(c, 1, k, k, 2, 3), details.view(c, 3, k, k, 2, 3)), dim=1)
    for number, (along_y, along_x) in enumerate(itertools.product("hg", repeat=2)):
        expected = np.zeros((c, k, k, 2, 3))
        for row in range(2):
            for column in range(2):
                child = cells[..., row::2, column::2]
                fy, fx = bands[along_y][row], bands[along_x][column]
                expected += np.einsum("ij,mn,cjnyx->cimyx", fy, fx, child)
        assert np.allclose(found[:, number], expected, atol=1e-12)


def test_a_block_that_returns_details_and_averages_is_the_identity() -> None:
    """With A d = d, B = 0, C = 0 and T = 1 the non-standard form is the transform itself."""
    config = MWTConfig(order=2, width=1, kernel_width=24)
    block: Any = Block(config, Grid((8, 16))).double()
    with torch.no_grad():
        for parameter in block.parameters():
            parameter.zero_()
        block.t.weight.copy_(torch.eye(4)[:, :, None, None])
        for channel in range(12):  # d = relu(d) - relu(-d)
            block.a[0].weight[channel, channel, 1, 1] = 1
            block.a[0].weight[channel + 12, channel, 1, 1] = -1
            block.a[2].weight[channel, channel] = 1
            block.a[2].weight[channel, channel + 12] = -1
    s = torch.randn(2, 4, 8, 16, dtype=torch.float64)
    assert torch.allclose(block(s, 3), s, atol=1e-12)


@pytest.mark.parametrize(
    ("shape", "levels"), [((64, 64), 6), ((32, 64), 5), ((13, 22), 4), ((1, 5), 1), ((9, 300), 4)]
)
def test_it_steps_down_to_one_cell_of_the_shorter_side(shape: tuple[int, int], levels: int) -> None:
    for most in (0, 2):
        model = MWT(MWTConfig(order=2, width=2, kernel_width=8, levels=most), FieldSpec())
        assert model.levels(*shape) == min(most or levels, levels)


def test_a_block_on_a_periodic_grid_is_equivariant_to_shifts_by_coarse_cells() -> None:
    torch.manual_seed(0)
    block = Block(MWTConfig(order=2, width=2, kernel_width=8), Grid.periodic((8, 16))).double()
    s = torch.randn(1, 8, 8, 16, dtype=torch.float64)
    moved = block(s.roll((4, 8), (2, 3)), 2)
    assert torch.allclose(moved, block(s, 2).roll((4, 8), (2, 3)), atol=1e-12)


def test_a_published_block_is_the_published_formula() -> None:
    """One level: s = sum H s, d = sum G s over the children, both with Kronecker products."""
    block: Any = randomise(
        PublishedBlock(MWTPublishedConfig(order=2, width=3, modes=2), Grid((6, 8))).double()
    )
    fine = torch.randn(2, 12, 6, 8, dtype=torch.float64)
    found = block(fine, 1)
    k, matrix = 2, filter_matrix(2)
    h, g = ((matrix[:k, :k], matrix[:k, k:]), (matrix[k:, :k], matrix[k:, k:]))
    children = fine.view(2, 3, 4, 6, 8)
    s = torch.zeros(2, 3, 4, 3, 4, dtype=torch.float64)
    d = torch.zeros_like(s)
    for row in (0, 1):
        for column in (0, 1):
            child = children[..., row::2, column::2]
            for sums, filters in ((s, h), (d, g)):
                both = torch.from_numpy(np.kron(filters[row], filters[column]))
                sums += torch.einsum("ij,bcjyx->bciyx", both, child)
    s, d = s.flatten(1, 2), d.flatten(1, 2)
    details, averages = block.a(d) + block.b(s), block.c(d) + block.t(s)
    for row in (0, 1):
        for column in (0, 1):
            expected: Any = 0
            for coarse, filters in ((averages, h), (details, g)):
                both = torch.from_numpy(np.kron(filters[row], filters[column]))
                cells = coarse.view(2, 3, 4, 3, 4)
                expected = expected + torch.einsum("ji,bcjyx->bciyx", both, cells)
            part = found.view(2, 3, 4, 6, 8)[..., row::2, column::2]
            assert_close(part, expected, rtol=1e-10)


def test_published_weights_start_by_xaviers_rule() -> None:
    torch.manual_seed(0)
    config = MWTPublishedConfig(order=3, width=4, modes=8, residual=False)
    model: Any = MWTPublished(config, FieldSpec())
    authors = torch.empty(36, 36, 8, 8, dtype=torch.cfloat)
    torch.nn.init.xavier_normal_(authors)
    size = torch.view_as_real(authors).std().item()
    for block in model.blocks:
        assert block.a.spectral.weight.mean().abs() < 0.02 * size
        assert block.a.spectral.weight.std().item() == pytest.approx(size, rel=0.02)
        assert block.t.weight.std().item() == pytest.approx(36**-0.5, rel=0.1)
    for layer, fans in ((model.head[0], 36 + 128), (model.head[-1], 128 + 2)):
        assert layer.weight.std().item() == pytest.approx((2 / fans) ** 0.5, rel=0.2)


def test_a_published_block_loses_waves_along_one_axis_alone() -> None:
    """The products G x H are dropped: cells that differ along x alone have no details."""
    block: Any = PublishedBlock(MWTPublishedConfig(order=1, width=1, modes=2), Grid((4, 4)))
    with torch.no_grad():
        for weight in block.parameters():
            weight.zero_()
        block.t.weight.fill_(1.0)
    along = torch.tensor([1.0, -1.0, 1.0, -1.0])
    assert not block(along.expand(1, 1, 4, 4).contiguous(), 1).any()
    means = torch.ones(1, 1, 4, 4)
    assert_close(block(means, 2), means)
