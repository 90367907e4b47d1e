"""MWT as published: its details are the products of wavelets along both axes, and no others."""

from typing import Any

import numpy as np
import torch

from pibert.fields import Grid
from pibert.models.baselines.mwt import filter_matrix
from pibert.models.baselines.mwt_published import MWTPublishedConfig, PublishedBlock
from tests.helpers import assert_close, randomise, tiny_model, tiny_spec

CONFIG = MWTPublishedConfig(order=2, width=3, modes=2)


def test_a_block_is_the_published_formula() -> None:
    """One level: s = sum H s, d = sum G s over the children, both with Kronecker products."""
    block: Any = randomise(PublishedBlock(CONFIG, Grid((6, 8))).double())
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


def test_a_wave_along_one_axis_alone_is_lost_between_the_levels() -> None:
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


def test_the_same_weights_step_on_other_grids() -> None:
    model = randomise(tiny_model("mwt-published", tiny_spec((16, 24)))).eval()
    for shape in ((16, 24), (12, 40), (5, 9)):
        assert model(torch.randn(1, 2, *shape)).isfinite().all()
