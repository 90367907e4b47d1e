"""Physics-biased attention: logits q.k / sqrt(d) - lambda R, and the transformer block around it.

A bias that depends on the key alone, R_ij = r_j, is one more product of a query feature and a key
feature: q gets the constant 1 and k gets -lambda r_j sqrt(d). The fused kernels then see ordinary
queries and keys and no N x N bias exists in memory. A general R_ij is passed on as a dense bias.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

CPU_FEATURES = 2
GPU_FEATURES = 8
"""Features that carry the bias; the fused GPU kernels take head widths in multiples of eight."""


def key_biased_attention(
    q: Float[Tensor, "b h n d"],
    k: Float[Tensor, "b h n d"],
    v: Float[Tensor, "b h n d"],
    bias: Float[Tensor, "b n"],
) -> Float[Tensor, "b h n d"]:
    """softmax_j(q_i . k_j / sqrt(d) + bias_j) v_j on the fused kernels."""
    d = q.shape[-1]
    # A shift of the whole row changes nothing in the softmax and saves digits of the bias.
    bias = bias - bias.detach().amax(-1, keepdim=True)
    if not (q.is_cuda or bias.requires_grad):
        # The CPU kernel broadcasts a mask as it reads it: one row serves all queries.
        row = bias[:, None, None, :].to(q.dtype)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=row)
    features = GPU_FEATURES if q.is_cuda else CPU_FEATURES
    q, k = append_bias(q, k, bias, features)
    if _takes_narrow_values(v):
        return F.scaled_dot_product_attention(q, k, v, scale=d**-0.5)
    wide = F.pad(v, (0, features))
    return F.scaled_dot_product_attention(q, k, wide, scale=d**-0.5)[..., :d]


def append_bias(
    q: Float[Tensor, "b h n d"],
    k: Float[Tensor, "b h n d"],
    bias: Float[Tensor, "b n"],
    features: int,
) -> tuple[Float[Tensor, "b h n e"], Float[Tensor, "b h n e"]]:
    """Queries and keys with more features, whose products q.k / sqrt(d) have the bias added."""
    b, h, n, d = q.shape
    # The smallest half-precision number is as good as minus infinity, and finite.
    scaled = (bias * d**0.5).clamp(min=torch.finfo(torch.float16).min)
    coarse = scaled.to(k.dtype)
    # What rounding takes from the bias goes into a second feature: twice the digits.
    fine = (scaled - coarse).to(k.dtype)
    added = torch.stack((coarse, fine, *[torch.zeros_like(fine)] * (features - 2)), dim=-1)
    k = torch.cat((k, added[:, None].expand(b, h, n, features)), dim=-1)
    q = torch.cat((q, q.new_ones(()).expand(b, h, n, features)), dim=-1)
    return q, k


def _takes_narrow_values(v: Tensor) -> bool:
    """Whether the fast kernel allows values narrower than the keys.

    On Hopper and later PyTorch prefers cuDNN's, which does; the flash kernels do not, and would
    give way to a slow one.
    """
    return v.is_cuda and torch.cuda.get_device_properties(v.device).major >= 9


class Attention(nn.Module):
    """Multi-head self-attention with an optional bias on its logits."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        if width % heads:
            raise ValueError(f"width must be a multiple of heads, found {width} and {heads}")
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(
        self, x: Float[Tensor, "b n d"], bias: Tensor | None = None
    ) -> Float[Tensor, "b n d"]:
        """Bias: None, key-wise (b, n), or pairwise, broadcastable to (b, heads, n, n)."""
        b, n, d = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        if bias is None:
            mixed = F.scaled_dot_product_attention(q, k, v)
        elif bias.ndim == 2:
            mixed = key_biased_attention(q, k, v, bias)
        else:
            mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=bias.to(q.dtype))
        return self.out(mixed.transpose(1, 2).reshape(b, n, d))


class RelativeBias(nn.Module):
    """R_ij = rho(r(i) - r(j)) >= 0 on a periodic lattice of tokens: a learned pairwise bias."""

    def __init__(self, shape: tuple[int, int]) -> None:
        super().__init__()
        self.shape = shape
        self.table = nn.Parameter(torch.zeros(shape))
        """rho before the softplus that keeps it nonnegative, by offset (y, x)."""

    def forward(self) -> Float[Tensor, "n n"]:
        ny, nx = self.shape
        rows = torch.arange(ny, device=self.table.device)
        columns = torch.arange(nx, device=self.table.device)
        dy = (rows[:, None] - rows) % ny  # (ny, ny)
        dx = (columns[:, None] - columns) % nx  # (nx, nx)
        offsets = dy[:, None, :, None] * nx + dx[None, :, None, :]  # (ny, nx, ny, nx)
        return F.softplus(self.table).flatten()[offsets.reshape(ny * nx, ny * nx)]


class Block(nn.Module):
    """One pre-norm transformer block."""

    def __init__(self, width: int, heads: int, mlp_ratio: int = 4) -> None:
        super().__init__()
        self.norm_attention = nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.norm_mlp = nn.LayerNorm(width)
        self.mlp = nn.Sequential(
            nn.Linear(width, mlp_ratio * width),
            nn.GELU(),
            nn.Linear(mlp_ratio * width, width),
        )

    def forward(
        self, x: Float[Tensor, "b n d"], bias: Tensor | None = None
    ) -> Float[Tensor, "b n d"]:
        x = x + self.attention(self.norm_attention(x), bias)
        return x + self.mlp(self.norm_mlp(x))
