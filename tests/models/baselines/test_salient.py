"""Salient flow attention: the two maps against brute force, heads, and the start as identity."""

import pytest
import torch

from pibert.models.baselines.salient import (
    CrossAttention,
    DifferentialAttention,
    SalientBlock,
    high_passed,
)
from tests.helpers import assert_close

SHAPE = (3, 5)


def test_constant_keys_have_no_high_passed_part_and_a_spike_keeps_eight_ninths() -> None:
    keys = torch.randn(2, 4, 1, 8).expand(-1, -1, 15, -1)
    assert high_passed(keys, SHAPE).abs().max() < 1e-5 * keys.abs().max()
    spike = torch.zeros(1, 1, 15, 1)
    spike[0, 0, 7] = 9.0  # row 1, column 2: the only interior row
    expected = torch.zeros(3, 5)
    expected[:, 1:4] = -1.0
    expected[[0, 2], 1:4] = -1.5  # a border has six neighbours, itself included
    expected[1, 2] = 8.0
    assert torch.allclose(high_passed(spike, SHAPE)[0, 0, :, 0].view(SHAPE), expected)


def test_attention_is_the_difference_of_two_maps_head_by_head() -> None:
    torch.manual_seed(0)
    layer = DifferentialAttention(8, 2).double()
    with torch.no_grad():
        layer.subtracted.copy_(torch.tensor([0.3, 0.9], dtype=torch.float64))
    x = torch.randn(2, 15, 8, dtype=torch.float64)
    q1, q2, k1, k2, v = layer.project(x).chunk(5, dim=-1)
    neighbours = torch.zeros(15, 15, dtype=torch.float64)
    for i in range(15):
        for j in range(15):
            near = abs(i // 5 - j // 5) <= 1 and abs(i % 5 - j % 5) <= 1
            neighbours[i, j] = float(near)
    neighbours /= neighbours.sum(1, keepdim=True)
    k2 = k2 - neighbours @ k2
    heads = []
    for head, share in ((slice(0, 4), 0.3), (slice(4, 8), 0.9)):
        first = (q1[..., head] @ k1[..., head].mT / 2).softmax(-1)
        second = (q2[..., head] @ k2[..., head].mT / 2).softmax(-1)
        mixed = (first - share * second) @ v[..., head]
        heads.append(mixed / (mixed.square().mean(-1, keepdim=True) + 1e-5).sqrt())
    expected = layer.out(torch.cat(heads, -1))
    assert torch.allclose(layer(x, SHAPE), expected, atol=1e-10)


def test_lambda_is_trained_or_fixed_and_never_random() -> None:
    torch.manual_seed(0)
    trained, fixed = (DifferentialAttention(8, 2, trained_lambda=t) for t in (True, False))
    assert "subtracted" in dict(trained.named_parameters())
    assert "subtracted" not in dict(fixed.named_parameters())
    assert "subtracted" in fixed.state_dict()
    x = torch.randn(1, 15, 8)
    assert torch.equal(fixed(x, SHAPE), fixed(x, SHAPE))
    trained(x, SHAPE).square().sum().backward()
    assert trained.subtracted.grad is not None and trained.subtracted.grad.all()


def test_a_block_starts_as_the_identity_and_then_heeds_its_embedding() -> None:
    torch.manual_seed(0)
    block = SalientBlock(8, 2)
    x, embedding = torch.randn(3, 15, 8), torch.randn(3, 8)
    assert torch.equal(block(x, embedding, SHAPE), x)
    torch.nn.init.normal_(block.modulation.weight)
    changed = block(x, embedding.roll(1, 0), SHAPE) - block(x, embedding, SHAPE)
    assert (changed.abs().amax((1, 2)) > 1e-3).all()


def test_cross_attention_takes_values_from_the_other_tokens_alone() -> None:
    torch.manual_seed(0)
    layer = CrossAttention(8, 2)
    asking, asked = torch.randn(1, 6, 8), torch.randn(1, 1, 8).expand(1, 6, 8)
    # All values are the same: whatever is asked, the answer is the same.
    first, second = layer(asking, asked), layer(torch.randn(1, 6, 8), asked)
    assert_close(first, second)
    assert_close(first, first[:, :1].expand_as(first))


def test_heads_must_divide_the_width() -> None:
    with pytest.raises(ValueError, match="multiple of heads"):
        DifferentialAttention(8, 3)
