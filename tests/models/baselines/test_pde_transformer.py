"""PDE-Transformer: windows, their movement, sides that do not meet, and the condition."""

import pytest
import torch
from torch import Tensor

from pibert.models.baselines.pde_transformer import Block, WindowAttention, _allowed
from tests.helpers import assert_close, randomise, tiny_model, tiny_spec


def reach(block: Block, *, is_moved: bool, shape: tuple[int, int] = (8, 8)) -> Tensor:
    """Which tokens the first token depends on, (v, w)."""
    x = torch.randn(1, *shape, 8, dtype=torch.float64, requires_grad=True)
    answer = block(x, torch.zeros(1, 8, dtype=torch.float64), 4, is_moved)
    answer[0, 0, 0].square().sum().backward()
    assert x.grad is not None
    return x.grad[0].abs().sum(-1) > 1e-12


def make(periodic: tuple[bool, bool]) -> Block:
    return randomise(Block(8, 2, periodic).double())


def test_attention_stays_in_its_window() -> None:
    seen = reach(make((False, False)), is_moved=False)
    assert seen[:4, :4].all() and seen.sum() == 16


@pytest.mark.parametrize("periodic", [(False, False), (True, True), (False, True)])
def test_moved_windows_cross_periodic_sides_alone(periodic: tuple[bool, bool]) -> None:
    seen = reach(make(periodic), is_moved=True)
    rows = {0, 1, 6, 7} if periodic[0] else {0, 1}
    columns = {0, 1, 6, 7} if periodic[1] else {0, 1}
    expected = torch.zeros(8, 8, dtype=torch.bool)
    for row in rows:
        expected[row, list(columns)] = True
    assert torch.equal(seen, expected)


def test_tokens_that_fill_up_a_window_are_not_seen() -> None:
    allowed = _allowed((3, 6), (3, 4), (0, 0), (False, False), torch.device("cpu"))
    assert allowed.shape == (2, 12, 12)
    assert allowed[0].all()
    real = torch.tensor([column < 2 for _ in range(3) for column in range(4)])
    assert torch.equal(allowed[1], real[:, None] == real)
    seen = reach(make((False, False)), is_moved=False, shape=(3, 6))
    assert seen[:, :4].all() and not seen[:, 4:].any()


def test_attention_is_the_softmax_of_scaled_cosines_and_distances() -> None:
    attention = randomise(WindowAttention(8, 2).double())
    z = torch.randn(1, 1, 4, 8, dtype=torch.float64)
    found = attention(z, (2, 2), None)[0, 0]
    qkv = (z[0, 0] @ attention.qkv.weight.T).view(4, 3, 2, 4)
    place = torch.tensor([[0.0, 0.0], [0.0, 1.0], [1.0, 0.0], [1.0, 1.0]]).double()
    distance = 8 * (place[:, None] - place)
    table = distance.sign() * (1 + distance.abs()).log2() / 3
    bias = 16 * attention.distance(table).sigmoid()
    for head in range(2):
        q, k, v = (qkv[:, part, head] for part in range(3))
        cosines = torch.nn.functional.cosine_similarity(q[:, None], k[None], dim=-1)
        logits = cosines * attention.scale[head, 0, 0].exp().clamp(max=100) + bias[..., head]
        assert_close(found[:, 4 * head : 4 * head + 4], logits.softmax(-1) @ v)


def test_the_condition_starts_without_effect_and_is_learned() -> None:
    spec = tiny_spec((16, 16))
    model = tiny_model("pde-transformer", spec, parameters=True)
    torch.nn.init.normal_(model.head.weight)
    torch.nn.init.zeros_(model.modulation.weight)
    x = torch.randn(2, 2, 16, 16)
    known = torch.tensor([[0.5], [2.0]])
    assert torch.equal(model(x, known), model(x, -known))
    model(x, known).square().mean().backward()
    gradients = [block.modulation.weight.grad for block in model.bottom]
    assert all(gradient is not None and gradient.any() for gradient in gradients)
