"""Lemma "discrete Green identity (periodic)": sum f lap(g) = -sum grad f . grad g.

Right, with the Laplacian that its proof defines: minus the sum of D^T D of the central differences,
a stencil two cells wide (``wide_laplacian``). It is not the usual compact Laplacian, which the
regulariser uses: that one pairs with forward (or backward) differences, not with central ones.
"""

import pytest
import torch
from torch import Tensor

from pibert.fields import Grid
from pibert.physics.derivatives import ddx, ddy, gradient, laplacian
from tests.paper.helpers import noise

SHAPES = [(8, 6), (7, 9), (5, 12)]


def sides(grid: Grid) -> tuple[Tensor, Tensor]:
    """Two random fields, each with a mean."""
    return 1 + noise(*grid.shape), noise(*grid.shape, seed=1) - 2


def central_product(f: Tensor, g: Tensor, grid: Grid) -> Tensor:
    (f_x, f_y), (g_x, g_y) = gradient(f, grid), gradient(g, grid)
    return (f_x * g_x + f_y * g_y).sum()


def forward_product(f: Tensor, g: Tensor, grid: Grid) -> Tensor:
    along_x, along_y = ((f.roll(-1, a) - f) * (g.roll(-1, a) - g) for a in (1, 0))
    return (along_x / grid.dx**2 + along_y / grid.dy**2).sum()


def wide_laplacian(f: Tensor, grid: Grid) -> Tensor:
    """The divergence of the central gradient."""
    return ddx(ddx(f, grid), grid) + ddy(ddy(f, grid), grid)


@pytest.mark.parametrize("shape", SHAPES)
def test_the_wide_laplacian_pairs_with_central_differences(shape: tuple[int, int]) -> None:
    grid = Grid.periodic(shape, dx=0.3, dy=0.7)
    f, g = sides(grid)
    left = (f * wide_laplacian(g, grid)).sum()
    size = (f * wide_laplacian(g, grid)).abs().sum()
    assert abs(left + central_product(f, g, grid)) < 1e-13 * size


@pytest.mark.parametrize("shape", SHAPES)
def test_the_compact_laplacian_does_not(shape: tuple[int, int]) -> None:
    grid = Grid.periodic(shape, dx=0.3, dy=0.7)
    f, g = sides(grid)
    left, size = (f * laplacian(g, grid)).sum(), (f * laplacian(g, grid)).abs().sum()
    assert abs(left + central_product(f, g, grid)) > 1e-3 * size
    # The highest frequency has a Laplacian but no central gradient.
    stripes = (-1.0) ** torch.arange(12, dtype=torch.float64).expand(5, 12)
    striped = Grid.periodic((5, 12), dx=0.3, dy=0.7)
    assert central_product(stripes, stripes, striped) == 0
    assert (stripes * laplacian(stripes, striped)).mean() == pytest.approx(-4 / 0.3**2)


@pytest.mark.parametrize("shape", SHAPES)
def test_the_compact_laplacian_pairs_with_forward_differences(shape: tuple[int, int]) -> None:
    grid = Grid.periodic(shape, dx=0.3, dy=0.7)
    f, g = sides(grid)
    left, size = (f * laplacian(g, grid)).sum(), (f * laplacian(g, grid)).abs().sum()
    assert abs(left + forward_product(f, g, grid)) < 1e-13 * size


def test_the_identity_needs_the_torus() -> None:
    grid = Grid((8, 6), dx=0.3, dy=0.7)  # open sides: boundary terms remain
    f, g = sides(grid)
    left = (f * wide_laplacian(g, grid)).sum()
    assert abs(left + central_product(f, g, grid)) > 1e-2 * left.abs()
