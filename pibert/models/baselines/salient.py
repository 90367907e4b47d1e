"""Salient flow attention: the difference of two attention maps, the second of local detail.

    A = softmax(Q1 K1^T / sqrt(d)) - lambda softmax(Q2 K2'^T / sqrt(d)),  K2' = K2 - mean_3x3(K2)

The mean runs over the neighbours on the lattice of tokens, so K2' is what a token's key has that
its neighbourhood has not; on the border the mean is that of the neighbours there are. The output
A V is normalised per head. lambda is a number per head, trained (as in the differential
transformer) or fixed; in the published code it is drawn anew at every call.

A block modulates this and an MLP by an embedding of the flow time (adaLN-Zero): it starts as the
identity.

Reference: Wang, Pan, Wu, Zhang, Wu, "FourierFlow", arXiv 2506.00862; Ye et al., "Differential
transformer", arXiv 2410.05258; Peebles, Xie, "Scalable diffusion models with transformers", 2023.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from pibert.models.stepper import zero

_START = 0.5
"""lambda before training: a difference of two maps, in which the first weighs more."""


def high_passed(keys: Float[Tensor, "b h n d"], shape: tuple[int, int]) -> Float[Tensor, "b h n d"]:
    """Keys less the mean over their 3 x 3 neighbourhood on a lattice of a shape."""
    b, h, n, d = keys.shape
    lattice = keys.transpose(-1, -2).reshape(b, h * d, *shape)
    mean = F.avg_pool2d(lattice, 3, stride=1, padding=1, count_include_pad=False)
    return (lattice - mean).view(b, h, d, n).transpose(-1, -2)


class DifferentialAttention(nn.Module):
    """Self-attention of tokens on a lattice with a high-passed second map."""

    def __init__(self, width: int, heads: int, *, trained_lambda: bool = True) -> None:
        super().__init__()
        if width % heads:
            raise ValueError(f"width must be a multiple of heads, found {width} and {heads}")
        self.heads = heads
        self.project = nn.Linear(width, 5 * width)
        self.subtracted: Tensor
        """lambda of each head."""
        if trained_lambda:
            self.subtracted = nn.Parameter(torch.full((heads,), _START))
        else:
            self.register_buffer("subtracted", torch.full((heads,), _START))
        self.norm = nn.RMSNorm(width // heads, eps=1e-5)
        self.out = nn.Linear(width, width)

    def forward(self, x: Float[Tensor, "b n d"], shape: tuple[int, int]) -> Float[Tensor, "b n d"]:
        b, n, d = x.shape
        parts = self.project(x).view(b, n, 5, self.heads, d // self.heads)
        q1, q2, k1, k2, v = parts.permute(2, 0, 3, 1, 4)
        # A V = A1 V - lambda A2 V: both by the fused kernels, which never hold a map.
        first = F.scaled_dot_product_attention(q1, k1, v)
        second = F.scaled_dot_product_attention(q2, high_passed(k2, shape), v)
        mixed = self.norm(first - self.subtracted[:, None, None] * second)
        return self.out(mixed.transpose(1, 2).reshape(b, n, d))


class SalientBlock(nn.Module):
    """Differential attention and an MLP, both modulated by an embedding (adaLN-Zero)."""

    def __init__(
        self, width: int, heads: int, mlp_ratio: int = 4, *, trained_lambda: bool = True
    ) -> None:
        super().__init__()
        self.modulation = nn.Linear(width, 6 * width)
        zero(self.modulation)
        self.norm = nn.LayerNorm(width, elementwise_affine=False)
        self.attention = DifferentialAttention(width, heads, trained_lambda=trained_lambda)
        self.mlp = make_mlp(width, mlp_ratio)

    def forward(
        self,
        x: Float[Tensor, "b n d"],
        embedding: Float[Tensor, "b d"],
        shape: tuple[int, int],
    ) -> Float[Tensor, "b n d"]:
        numbers = self.modulation(F.silu(embedding))[:, None].chunk(6, dim=-1)
        shift, scale, gate, mlp_shift, mlp_scale, mlp_gate = numbers
        x = x + gate * self.attention(self.norm(x) * (1 + scale) + shift, shape)
        return x + mlp_gate * self.mlp(self.norm(x) * (1 + mlp_scale) + mlp_shift)


class CrossAttention(nn.Module):
    """Multi-head attention whose queries come from one set of tokens, all else from another."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(width, width)
        self.key_value = nn.Linear(width, 2 * width)
        self.out = nn.Linear(width, width)

    def forward(
        self, asking: Float[Tensor, "b n d"], asked: Float[Tensor, "b n d"]
    ) -> Float[Tensor, "b n d"]:
        b, n, d = asking.shape
        q = self.query(asking).view(b, n, self.heads, -1).transpose(1, 2)
        k, v = self.key_value(asked).view(b, n, 2, self.heads, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v)
        return self.out(mixed.transpose(1, 2).reshape(b, n, d))


def make_mlp(width: int, ratio: int) -> nn.Sequential:
    """Two layers with a wider one between."""
    return nn.Sequential(
        nn.Linear(width, ratio * width), nn.GELU(), nn.Linear(ratio * width, width)
    )
