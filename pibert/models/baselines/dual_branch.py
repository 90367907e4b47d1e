"""The backbone of FourierFlow: salient flow attention beside Fourier mixing, joined by a gate.

    h    = tok(state) + attention(queries tok(condition), keys and values tok(state))
    e    = MLP(waves(s)) + linear(parameters)
    v_S  = head(salient blocks(h, e)),   v_F = head(norm(mixing blocks(h + e)))
    G    = sigmoid(a v_F + b v_S + c),   v   = G v_S + (1 - G) v_F

Salient flow attention is the difference of two attention maps, the second of local detail:

    A = softmax(Q1 K1^T / sqrt(d)) - lambda softmax(Q2 K2'^T / sqrt(d)),  K2' = K2 - mean_3x3(K2)

Fourier mixing maps every wave of the token lattice by the same complex matrices:

    X = FFT(norm(x));  H = relu(w_1 W_1 X + b_1);  Y = shrink(w_2 W_2 H + b_2);  x + FFT^-1(Y)

with the weights w_i = 1 + gamma_i |X|; gamma is learned and starts at zero.

A backbone that refines a noisy state z_s = (1 - s) z + s eps returns, instead of v,

    q s v + q^2 (1 - s) g(e) z_s,   q = 1 / sqrt((1 - s)^2 + s^2),   g a number per channel

so that v has an error of equal size at all flow times (Karras et al., "Elucidating the design
space", 2022), and close to the data the output is the state itself. g is learned and starts at 0.

Differences from the published code: the mixing branch knows the flow time and passes gradients to
the embeddings, lambda is trained, and FourierFlow adds an embedding of the condition to h. There
are no blocks over time: a history is folded into channels.

References: Wang et al., "FourierFlow", arXiv 2506.00862; Ye et al., "Differential transformer",
arXiv 2410.05258; Guibas et al., "Adaptive Fourier neural operators", arXiv 2111.13587.
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from pibert.fields import FieldSpec
from pibert.models.fourier import analyse, synthesise
from pibert.models.layers import (
    Positions,
    Tokens,
    constant,
    count,
    from_patches,
    full_precision,
    lattice_shape,
    make_mlp,
    to_patches,
)
from pibert.models.stepper import BaselineConfig, check_multiple, zero

_SHRINK = 0.01
_LAMBDA = 0.5
"""lambda before training: a difference of two maps, in which the first weighs more."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DualBranchConfig(BaselineConfig):
    """Sizes of the backbone."""

    width: int = 128
    heads: int = 4
    patch: int = 4
    depth: int = 6
    """Blocks of salient flow attention."""
    mixers: int = 4
    """Blocks of Fourier mixing."""
    blocks: int = 4
    """Diagonal blocks of the matrices that mix the channels of a wave."""
    mlp_ratio: int = 4

    def __post_init__(self) -> None:
        BaselineConfig.__post_init__(self)
        check_multiple(self, "heads", "blocks")


class DualBranch(nn.Module):
    """Patch values of two branches, and the gate between them.

    Args:
        config: Sizes.
        spec: Channels, grid and parameters of the fields.
        channels: Channels of the state, of the condition and of the output.
        generative: The state is noisy and is kept in part, and the condition is added to the
            tokens.
    """

    def __init__(
        self,
        config: DualBranchConfig,
        spec: FieldSpec,
        channels: tuple[int, int, int],
        *,
        generative: bool = False,
    ) -> None:
        super().__init__()
        d, pixels = config.width, config.patch**2
        state, condition, out = channels
        self.config = config
        self.embed = nn.Linear(state * pixels, d)
        # None: the condition shares the embedding of the state.
        self.embed_condition = nn.Linear(condition * pixels, d) if condition != state else None
        self.positions = Positions(lattice_shape(spec.grid.shape, config.patch), d)
        self.cross = CrossAttention(d, config.heads)
        self.added = nn.Linear(condition * pixels, d) if generative else None
        self.flow_time = nn.Sequential(nn.Linear(d, d), nn.SiLU(), nn.Linear(d, d))
        self.num_parameters = len(spec.parameters) if config.parameters else 0
        self.embed_parameters = nn.Linear(self.num_parameters, d) if self.num_parameters else None
        self.salient = nn.ModuleList(
            SalientBlock(d, config.heads, config.mlp_ratio) for _ in range(config.depth)
        )
        self.mixing = nn.ModuleList(
            FourierMixing(d, config.blocks, config.mlp_ratio) for _ in range(config.mixers)
        )
        self.norm = nn.LayerNorm(d)
        self.head = nn.Linear(d, out * pixels)
        self.gate = nn.Linear(2 * config.horizon, 1)
        self.kept = nn.Linear(d, out) if generative else None
        """g."""
        for layer in (self.head, self.gate, self.kept):
            if layer is not None:
                zero(layer)

    def forward(
        self,
        state: Float[Tensor, "b m y x"],
        s: Float[Tensor, " b"],
        condition: Float[Tensor, "b c y x"],
        parameters: Float[Tensor, "b q"],
        aligned: int | None = None,
    ) -> tuple[Float[Tensor, "b k y x"], Tokens]:
        """Return the field of the fused branches, and the tokens after a salient block.

        Args:
            state: The noisy field, or the condition again.
            s: Flow time, 1 for noise and 0 for data.
            condition: The last frames.
            parameters: Flow parameters, zero where unknown.
            aligned: Return the tokens after this number of salient blocks; None: after the last.
        """
        ny, nx = condition.shape[-2:]
        lattice = lattice_shape((ny, nx), self.config.patch)
        tokens = self._tokens(state, condition, lattice)
        embedding = self._embedding(s, parameters)
        features = salient = tokens
        for number, block in enumerate(self.salient, start=1):
            salient = block(salient, embedding, lattice)
            if aligned is None or number <= aligned:
                features = salient
        mixed = tokens + embedding[:, None]
        for block in self.mixing:
            mixed = block(mixed, lattice)
        values = self._fused(salient, self.norm(mixed))
        field = from_patches(values, self.config.patch, (ny, nx))
        return self._refined(field, state, s, embedding), features

    def _tokens(self, state: Tensor, condition: Tensor, lattice: tuple[int, int]) -> Tensor:
        with torch.autocast(state.device.type, enabled=False):
            patches = to_patches(condition, self.config.patch)
            positions = self.positions(lattice)
            tokens = self.embed(to_patches(state, self.config.patch)) + positions
            queries = (self.embed_condition or self.embed)(patches) + positions
            added = 0.0 if self.added is None else self.added(patches)
        return tokens + self.cross(queries, tokens) + added

    def _embedding(self, s: Tensor, parameters: Tensor) -> Tensor:
        with torch.autocast(s.device.type, enabled=False):
            embedding: Tensor = self.flow_time(waves(s, self.config.width))
            if self.embed_parameters is not None:
                embedding = embedding + self.embed_parameters(parameters[:, : self.num_parameters])
        return embedding

    def _fused(self, salient: Tensor, mixed: Tensor) -> Tensor:
        """Return the patch values (b, n, v), ordered (frame, channel, row, column)."""
        dtype = self.head.weight.dtype
        with torch.autocast(salient.device.type, enabled=False):
            frames = (-1, (self.config.horizon, -1))
            from_salient = self.head(salient.to(dtype)).unflatten(*frames)
            from_mixed = self.head(mixed.to(dtype)).unflatten(*frames)
            both = torch.cat((from_mixed, from_salient), dim=-2).mT
            gate = torch.sigmoid(self.gate(both)).mT
            return (gate * from_salient + (1 - gate) * from_mixed).flatten(-2)

    def _refined(self, field: Tensor, state: Tensor, s: Tensor, embedding: Tensor) -> Tensor:
        """Weight the field by its flow time and add the part of the state that is kept."""
        if self.kept is None:
            return field
        with torch.autocast(state.device.type, enabled=False):
            s = s[:, None, None, None]
            square = 1 / ((1 - s).square() + s.square())
            kept = self.kept(embedding)[..., None, None] * state
            return square.sqrt() * s * field + square * (1 - s) * kept


def waves(s: Float[Tensor, " b"], width: int) -> Float[Tensor, "b d"]:
    """Return cosines and sines of the flow time, of periods from 2 pi / 1000 to 20 pi."""
    angles = s[:, None] * _frequencies(width // 2, device=s.device, dtype=s.dtype)
    return F.pad(torch.cat((angles.cos(), angles.sin()), dim=-1), (0, width % 2))


@constant
def _frequencies(number: int, *, device: torch.device, dtype: torch.dtype) -> Tensor:
    """Return frequencies from 1000 down to 0.1, evenly spaced in the logarithm."""
    fractions = count(0, number, device=device) / max(1, number)
    return (1000 * torch.exp(-math.log(1e4) * fractions)).to(dtype)


def high_passed(keys: Float[Tensor, "b h n d"], shape: tuple[int, int]) -> Float[Tensor, "b h n d"]:
    """Subtract from keys on a lattice the mean over their 3 x 3 neighbourhood."""
    b, h, n, d = keys.shape
    lattice = keys.transpose(-1, -2).reshape(b, h * d, *shape)
    mean = F.avg_pool2d(lattice, 3, stride=1, padding=1, count_include_pad=False)
    return (lattice - mean).view(b, h, d, n).transpose(-1, -2)


class DifferentialAttention(nn.Module):
    """Self-attention of tokens on a lattice with a high-passed second map."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.project = nn.Linear(width, 5 * width)
        self.subtracted = nn.Parameter(torch.full((heads,), _LAMBDA))
        """lambda of each head."""
        self.norm = nn.RMSNorm(width // heads, eps=1e-5)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tokens, shape: tuple[int, int]) -> Tokens:
        b, n, d = x.shape
        projected = self.project(x).view(b, n, 5, self.heads, d // self.heads)
        q1, q2, k1, k2, v = projected.permute(2, 0, 3, 1, 4)
        # A V = A1 V - lambda A2 V by the fused kernels, which never store a map.
        first = F.scaled_dot_product_attention(q1, k1, v)
        second = F.scaled_dot_product_attention(q2, high_passed(k2, shape), v)
        mixed = self.norm(first - self.subtracted[:, None, None] * second)
        return self.out(mixed.transpose(1, 2).reshape(b, n, d))


class SalientBlock(nn.Module):
    """Differential attention and an MLP, both modulated by an embedding (adaLN-Zero)."""

    def __init__(self, width: int, heads: int, mlp_ratio: int) -> None:
        super().__init__()
        self.modulation = nn.Linear(width, 6 * width)
        zero(self.modulation)
        self.norm = nn.LayerNorm(width, elementwise_affine=False)
        self.attention = DifferentialAttention(width, heads)
        self.mlp = make_mlp(width, mlp_ratio * width)

    def forward(self, x: Tokens, embedding: Float[Tensor, "b d"], shape: tuple[int, int]) -> Tokens:
        modulation = self.modulation(F.silu(embedding))[:, None].chunk(6, dim=-1)
        shift, scale, gate, mlp_shift, mlp_scale, mlp_gate = modulation
        x = x + gate * self.attention(self.norm(x) * (1 + scale) + shift, shape)
        return x + mlp_gate * self.mlp(self.norm(x) * (1 + mlp_scale) + mlp_shift)


class CrossAttention(nn.Module):
    """Multi-head attention with queries from one set of tokens, keys and values from another."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(width, width)
        self.key_value = nn.Linear(width, 2 * width)
        self.out = nn.Linear(width, width)

    def forward(self, queries: Tokens, tokens: Tokens) -> Tokens:
        b, n, d = queries.shape
        width = d // self.heads
        q = self.query(queries).view(b, n, self.heads, width).transpose(1, 2)
        k, v = self.key_value(tokens).view(b, n, 2, self.heads, width).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v)
        return self.out(mixed.transpose(1, 2).reshape(b, n, d))


class BlockLinear(nn.Module):
    """A complex matrix, block-diagonal over the channels, and a bias, stored as real pairs."""

    spectral_weights = ("weight",)

    def __init__(self, width: int, blocks: int) -> None:
        super().__init__()
        size = width // blocks
        self.weight = nn.Parameter(torch.empty(blocks, size, size, 2))
        nn.init.normal_(self.weight, std=(2 * size) ** -0.5)
        self.bias = nn.Parameter(torch.zeros(blocks, size, 2))

    def forward(
        self, waves: Float[Tensor, "b 2 d k"], scale: Float[Tensor, "b 1 d k"]
    ) -> Float[Tensor, "b 2 d k"]:
        """Return the product times a scale, plus the bias, for real and imaginary part."""
        re, im = self.weight.unbind(-1)
        # (block, in, re and im in, out, re and im out)
        weight = torch.stack((torch.stack((re, im), -1), torch.stack((-im, re), -1)), 2)
        blocks = waves.unflatten(2, self.bias.shape[:2])
        product = torch.einsum("bpgik,gipoq->bqgok", blocks, weight).flatten(2, 3)
        return product * scale + self.bias.flatten(0, 1).mT[..., None]


class FourierMixing(nn.Module):
    """One block: mixing of waves with a skip, then an MLP with a skip."""

    def __init__(self, width: int, blocks: int, mlp_ratio: int = 4) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.maps = nn.ModuleList(BlockLinear(width, blocks) for _ in range(2))
        self.gain = nn.Parameter(torch.zeros(2))
        """gamma of each map."""
        self.norm_mlp = nn.LayerNorm(width)
        self.mlp = make_mlp(width, mlp_ratio * width)

    def forward(self, x: Tokens, shape: tuple[int, int]) -> Tokens:
        x = x + self.mix(self.norm(x), shape)
        return x + self.mlp(self.norm_mlp(x))

    def mix(self, x: Tokens, shape: tuple[int, int]) -> Tokens:
        """Return the mixed waves of tokens on a lattice, as tokens."""
        with torch.autocast(x.device.type, enabled=False):
            norm = math.sqrt(math.prod(shape))  # an orthonormal transform
            modes = max(shape)  # all that the lattice has
            field = full_precision(x).mT.unflatten(-1, shape)
            bins = torch.stack(analyse(field, modes, modes), dim=1) / norm  # (b, 2, d, ky, kx)
            waves = bins.flatten(3)
            # The square root of zero would have a gradient of NaN.
            energy = waves.square().sum(1, keepdim=True)
            magnitude = energy.clamp(min=torch.finfo(energy.dtype).tiny).sqrt()
            waves = F.relu(self.maps[0](waves, 1 + self.gain[0] * magnitude))
            waves = F.softshrink(self.maps[1](waves, 1 + self.gain[1] * magnitude), _SHRINK)
            re, im = waves.view_as(bins).unbind(1)
            return (synthesise(re, im, modes, modes, shape) * norm).flatten(2).mT
