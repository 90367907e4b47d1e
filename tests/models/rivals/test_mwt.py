"""The multiwavelet operator: filters, perfect reconstruction, the non-standard form, size."""

import itertools
import math
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from pibert import FieldSpec, Grid
from pibert.models import count_parameters
from pibert.models.rivals.mwt import (
    MWT,
    PRESETS,
    Block,
    Multiwavelets,
    MWTConfig,
    filter_bank,
    filter_matrix,
    legendre,
)
from tests.models.stepping import CHECKS, drawn

COUNTS = {"base": 1_545_494, "small": 326_636}
ORDERS = [1, 2, 3, 4, 7, 10]


def make(spec: FieldSpec, **options: Any) -> MWT:
    small = {"order": 2, "width": 2, "blocks": 2, "kernel_width": 8, "head_width": 8}
    return MWT(MWTConfig(**(small | options)), spec)


@pytest.mark.parametrize("check", CHECKS)
def test_it_is_a_model_of_the_next_frame(check: str) -> None:
    torch.manual_seed(0)
    CHECKS[check](make)


def test_presets_have_the_stated_number_of_parameters() -> None:
    assert next(iter(PRESETS)) == "base"
    found = {name: count_parameters(MWT(PRESETS[name], FieldSpec())) for name in PRESETS}
    assert found == COUNTS


def test_one_polynomial_per_cell_gives_the_haar_wavelet() -> None:
    expected = np.array([[1, 1], [-1, 1]]) / math.sqrt(2)
    assert np.allclose(filter_matrix(1), expected, atol=1e-15)


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


@pytest.mark.parametrize("order", ORDERS)
def test_the_low_pass_filters_refine_the_polynomials(order: int) -> None:
    matrix, x = filter_matrix(order), np.linspace(0.01, 0.49, 13)
    h0, h1 = matrix[:order, :order], matrix[:order, order:]
    left = math.sqrt(2) * h0 @ legendre(order, 2 * x)
    right = math.sqrt(2) * h1 @ legendre(order, 2 * (x + 0.5) - 1)
    assert np.allclose(legendre(order, x), left, atol=1e-11)
    assert np.allclose(legendre(order, x + 0.5), right, atol=1e-11)


@pytest.mark.parametrize("order", [1, 2, 3, 5])
def test_the_wavelets_vanish_on_one_more_degree_each(order: int) -> None:
    matrix = filter_matrix(order)
    nodes, weights = np.polynomial.legendre.leggauss(3 * order)
    t, weights = (nodes + 1) / 2, weights / 2
    for i, (g0, g1) in enumerate(zip(matrix[order:, :order], matrix[order:, order:], strict=True)):
        # psi on the two halves; the quadrature of each half is scaled by its length.
        psi = [math.sqrt(2) * g @ legendre(order, t) for g in (g0, g1)]
        moments = [
            sum((w * weights / 2 * ((t + side) / 2) ** p).sum() for side, w in enumerate(psi))
            for p in range(order + i + 1)
        ]
        assert np.allclose(moments[:-1], 0, atol=1e-13)
        assert abs(moments[-1]) > 1e-7


@pytest.mark.parametrize(("order", "channels"), [(1, 3), (3, 2), (4, 1)])
def test_levels_down_and_up_again_give_the_field_and_keep_its_energy(
    order: int, channels: int
) -> None:
    wavelets = Multiwavelets(order, channels)
    s = field = torch.randn(2, channels * order**2, 8, 24, dtype=torch.float64)
    levels = []
    for _ in range(3):
        s, d = wavelets.down(s)
        levels.append(d)
    assert s.shape == (2, channels * order**2, 1, 3)
    energy = s.square().sum() + sum(d.square().sum() for d in levels)
    assert torch.isclose(energy, field.square().sum(), rtol=1e-12)
    for d in reversed(levels):
        s = wavelets.up(s, d)
    assert torch.allclose(s, field, atol=1e-12)


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


def test_a_polynomial_of_low_degree_has_no_details() -> None:
    """Coefficients of x^2 y on 4 x 8 cells, by quadrature, are all averages."""
    k, ny, nx = 3, 4, 8
    nodes, weights = np.polynomial.legendre.leggauss(4)
    t, weights = (nodes + 1) / 2, weights / 2
    basis = legendre(k, t) * weights
    x, y = (np.arange(nx)[:, None] + t) / nx, (np.arange(ny)[:, None] + t) / ny
    along_x, along_y = basis @ (x**2).T / math.sqrt(nx), basis @ y.T / math.sqrt(ny)
    s = np.einsum("iy,jx->ijyx", along_y, along_x).reshape(1, k * k, ny, nx)
    coarse, d = Multiwavelets(k, 1).down(torch.from_numpy(s))
    assert d.abs().max() < 1e-14 < coarse.abs().max()
    along_x = basis @ ((np.arange(nx // 2)[:, None] + t) / (nx // 2)).T ** 2 / math.sqrt(nx // 2)
    assert torch.allclose(coarse[0, :3, 0, 1] / coarse[0, 0, 0, 1], _ratio(along_x[:, 1]))


def _ratio(column: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(column / column[0])


def test_a_block_with_no_networks_keeps_the_coarsest_average_alone() -> None:
    block = Block(MWTConfig(order=2, width=1, kernel_width=4), Grid((8, 16))).double()
    with torch.no_grad():
        for network in (block.a, block.b, block.c):
            for parameter in network.parameters():
                parameter.zero_()
        block.t.weight.copy_(torch.eye(4)[:, :, None, None])
        block.t.bias.zero_()  # type: ignore[union-attr]
    s = torch.randn(1, 4, 8, 16, dtype=torch.float64)
    once = block(s, 3)
    assert not torch.allclose(once, s) and torch.allclose(block(once, 3), once, atol=1e-12)
    # The mean of phi_0 over each 8 x 8 cell survives.
    assert torch.allclose(F.avg_pool2d(once, 8)[:, 0], F.avg_pool2d(s, 8)[:, 0], atol=1e-12)


def test_a_block_that_hands_back_details_and_averages_is_the_identity() -> None:
    """With A d = d, B = 0, C = 0 and T = 1 the non-standard form is the transform itself."""
    config = MWTConfig(order=2, width=1, kernel_width=24)
    block = Block(config, Grid((8, 16))).double()
    with torch.no_grad():
        for parameter in block.parameters():
            parameter.zero_()
        block.t.weight.copy_(torch.eye(4)[:, :, None, None])
        for channel in range(12):  # d = relu(d) - relu(-d)
            block.a[0].weight[channel, channel, 1, 1] = 1  # type: ignore[operator]
            block.a[0].weight[channel + 12, channel, 1, 1] = -1  # type: ignore[operator]
            block.a[2].weight[channel, channel] = 1  # type: ignore[operator]
            block.a[2].weight[channel, channel + 12] = -1  # type: ignore[operator]
    s = torch.randn(2, 4, 8, 16, dtype=torch.float64)
    assert torch.allclose(block(s, 3), s, atol=1e-12)


def test_the_filters_are_no_weights_and_stay_exact_in_double_precision() -> None:
    model = make(FieldSpec()).double()
    assert not any("wavelets" in name for name in model.state_dict())
    exact = filter_bank(2).repeat(2, 1, 1, 1)
    for block in model.blocks:
        assert isinstance(block, Block)
        found = block.wavelets._weight(torch.zeros(1, dtype=torch.float64))
        assert torch.equal(found, exact)


@pytest.mark.parametrize(
    ("shape", "levels"), [((64, 64), 6), ((32, 64), 5), ((13, 22), 4), ((1, 5), 1), ((9, 300), 4)]
)
def test_it_steps_down_until_the_shorter_side_is_one_cell(
    shape: tuple[int, int], levels: int
) -> None:
    assert make(FieldSpec()).levels(*shape) == levels
    assert make(FieldSpec(), levels=2).levels(*shape) == min(2, levels)


def test_on_a_periodic_grid_the_block_moves_with_whole_coarse_cells() -> None:
    torch.manual_seed(0)
    block = Block(MWTConfig(order=2, width=2, kernel_width=8), Grid.periodic((8, 16))).double()
    s = torch.randn(1, 8, 8, 16, dtype=torch.float64)
    moved = block(s.roll((4, 8), (2, 3)), 2)
    assert torch.allclose(moved, block(s, 2).roll((4, 8), (2, 3)), atol=1e-12)


def test_other_grids_are_extended_by_repetition_and_cropped() -> None:
    model = drawn(make, FieldSpec(grid=Grid((13, 22))))
    sizes: list[tuple[int, ...]] = []
    (first, *_) = model.get_submodule("blocks").children()
    first.register_forward_pre_hook(lambda _, inputs: sizes.append(tuple(inputs[0].shape[-2:])))
    assert model(torch.randn(1, 2, 13, 22, dtype=torch.float64)).shape == (1, 2, 13, 22)
    assert sizes == [(16, 32)]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"order": 0}, "order must be at least 1, found 0"),
        ({"order": 11}, "order must be at most 10, found 11"),
        ({"levels": 0}, "levels must be at least 1 or None, found 0"),
    ],
)
def test_a_wrong_choice_says_what_was_expected(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        MWTConfig(**options)
