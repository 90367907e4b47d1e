"""Transolver: its attention against the plain sums."""

import math
from typing import Any

import torch
from torch import Tensor

from pibert import Grid
from pibert.models.baselines.transolver import PhysicsAttention, TransolverConfig

SMALL: dict[str, Any] = {"width": 16, "heads": 2, "depth": 2, "slices": 5}


def attention(**options: Any) -> PhysicsAttention:
    torch.manual_seed(0)
    return PhysicsAttention(TransolverConfig(**(SMALL | options)), Grid((6, 9))).double()


def by_hand(layer: PhysicsAttention, tokens: Tensor) -> Tensor:
    """Physics attention of one sample, head by head and slice by slice."""
    field = tokens.permute(2, 0, 1)[None]
    features = layer.features(field)[0].flatten(1).T  # (n, d)
    assigning = layer.assigning(field)[0].flatten(1).T
    answers = []
    for head in range(layer.heads):
        channels = slice(8 * head, 8 * head + 8)
        tau = layer.log_temperature[head].exp()
        weights = (layer.to_slices(assigning[:, channels]) / tau).softmax(1)
        z = torch.stack(
            [(w[:, None] * features[:, channels]).sum(0) / w.sum() for w in weights.T]
        )  # (m, e)
        logits = layer.to_query(z) @ layer.to_key(z).T / math.sqrt(8)
        answers.append(weights @ (logits.softmax(1) @ layer.to_value(z)))
    return layer.join(torch.cat(answers, dim=1)).view(tokens.shape)


def test_physics_attention_follows_its_equations() -> None:
    layer = attention()
    with torch.no_grad():
        layer.log_temperature.copy_(torch.tensor([-0.3, 0.4])[:, None, None])
    tokens = torch.randn(2, 6, 9, 16, dtype=torch.float64)
    expected = torch.stack([by_hand(layer, sample) for sample in tokens])
    assert torch.allclose(layer(tokens), expected, atol=1e-12)
