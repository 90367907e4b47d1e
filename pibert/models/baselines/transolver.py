"""Transolver: attention between learned slices of the points instead of between the points.

Every point of the grid is a token. A block is x <- x + PhysicsAttention(norm(x)), then the same
with an MLP. Physics attention is, in every head, with M slices and N points,

    f = conv3x3(x),   g = conv3x3(x)                          features, and features to assign by
    w_ij = softmax_j(W g_i / tau + c),  j = 1 .. M            the share of slice j in point i
    z_j = sum_i w_ij f_i / sum_i w_ij                         a slice is a weighted mean of points
    z' = softmax(q k^T / sqrt(d_h)) v,  q, k, v linear in z   attention between slices
    y_i = sum_j w_ij z'_j                                     back to the points

followed by a linear map over the joined heads. Work and memory are linear in N. The temperature
tau of each head is learned as its logarithm. The base size has 1,552,418 parameters for two
channels in and out.

Reference: H. Wu et al., Transolver: a fast transformer solver for PDEs on general geometries, ICML
2024, in its form for regular grids. Differences: no learned vector is added to all tokens, the
temperature is not clamped, and the convolutions wrap around periodic sides.
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from pibert.fields import FieldSpec, Grid
from pibert.models.layers import Answer, Fields, GridConv2d, Parameters, make_mlp
from pibert.models.stepper import (
    BaselineConfig,
    Stepper,
    check_multiple,
    zero,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class TransolverConfig(BaselineConfig):
    """Sizes; the defaults are the ``base`` preset."""

    width: int = 128
    heads: int = 8
    depth: int = 4
    slices: int = 32
    mlp_ratio: int = 2

    def __post_init__(self) -> None:
        BaselineConfig.__post_init__(self)
        check_multiple(self, "heads")


PRESETS: dict[str, TransolverConfig] = {
    "base": TransolverConfig(),
    "small": TransolverConfig(width=64, heads=4, depth=3, slices=16),
}


class PhysicsAttention(nn.Module):
    """Attention over slices of the points of a grid, tokens as (b, y, x, d)."""

    def __init__(self, config: TransolverConfig, grid: Grid) -> None:
        super().__init__()
        self.heads = config.heads
        width, head_width = config.width, config.width // config.heads
        self.features = GridConv2d(width, width, 3, grid)
        self.assigning = GridConv2d(width, width, 3, grid)
        self.to_slices = nn.Linear(head_width, config.slices)
        self.log_temperature = nn.Parameter(torch.full((config.heads, 1, 1), math.log(0.5)))
        self.to_query = nn.Linear(head_width, head_width, bias=False)
        self.to_key = nn.Linear(head_width, head_width, bias=False)
        self.to_value = nn.Linear(head_width, head_width, bias=False)
        self.join = nn.Linear(width, width)

    def forward(self, tokens: Float[Tensor, "b y x d"]) -> Float[Tensor, "b y x d"]:
        field = tokens.permute(0, 3, 1, 2)
        features = self._heads(self.features(field))  # (b, h, n, e)
        weights = self.slice_weights(field)  # (b, h, n, m)
        # Divided before half precision rounds a sum over thousands of points.
        share = weights / weights.sum(dim=2, keepdim=True)
        slices = share.mT @ features  # (b, h, m, e)
        slices = F.scaled_dot_product_attention(
            self.to_query(slices), self.to_key(slices), self.to_value(slices)
        )
        points = (weights.to(slices.dtype) @ slices).transpose(1, 2)  # (b, n, h, e)
        return self.join(points.reshape(tokens.shape))

    def slice_weights(self, field: Float[Tensor, "b d y x"]) -> Float[Tensor, "b h n m"]:
        """Return the share of each slice in each point, per head; shares sum to one."""
        logits = self.to_slices(self._heads(self.assigning(field)))
        return (logits / self.log_temperature.exp()).softmax(dim=-1)

    def _heads(self, field: Tensor) -> Tensor:
        """Map (b, d, y, x) to (b, h, n, e)."""
        b, d, ny, nx = field.shape
        points = field.permute(0, 2, 3, 1).reshape(b, ny * nx, self.heads, d // self.heads)
        return points.transpose(1, 2)


class Block(nn.Module):
    """Physics attention and an MLP, each with a pre-norm and a skip connection."""

    def __init__(self, config: TransolverConfig, grid: Grid) -> None:
        super().__init__()
        width = config.width
        self.attention_norm = nn.LayerNorm(width)
        self.attention = PhysicsAttention(config, grid)
        self.mlp_norm = nn.LayerNorm(width)
        self.mlp = make_mlp(width, config.mlp_ratio * width)

    def forward(self, tokens: Float[Tensor, "b y x d"]) -> Float[Tensor, "b y x d"]:
        tokens = tokens + self.attention(self.attention_norm(tokens))
        return tokens + self.mlp(self.mlp_norm(tokens))


class Transolver(Stepper):
    """Steps standardised fields (b, history * c, y, x) to (b, horizon * c, y, x)."""

    def __init__(self, config: TransolverConfig, spec: FieldSpec) -> None:
        super().__init__(config, spec)
        width = config.width
        self.embedding = make_mlp(
            self.num_inputs + self.num_coordinates + self.num_parameters, 2 * width, width
        )
        self.blocks = nn.ModuleList(Block(config, spec.grid) for _ in range(config.depth))
        self.norm = nn.LayerNorm(width)
        self.read_out = nn.Linear(width, self.out_channels)
        self.apply(_initialise)
        if config.residual:
            zero(self.read_out)

    def change(self, x: Fields, parameters: Parameters) -> Answer:
        inputs = self.with_parameters(self.with_coordinates(x), parameters)
        tokens = self.embedding(inputs.permute(0, 2, 3, 1))
        for block in self.blocks:
            tokens = block(tokens)
        return self.read_out(self.norm(tokens)).permute(0, 3, 1, 2).contiguous()


def _initialise(module: nn.Module) -> None:
    """Set small linear weights, and slices that differ from the first step on."""
    if isinstance(module, nn.Linear):
        nn.init.trunc_normal_(module.weight, std=0.02)
        if module.bias is not None:
            nn.init.zeros_(module.bias)
    elif isinstance(module, PhysicsAttention):
        nn.init.orthogonal_(module.to_slices.weight)
