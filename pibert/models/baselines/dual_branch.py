"""The backbone of FourierFlow: salient flow attention beside Fourier mixing, joined by a gate.

    h    = tok(state) + attention(queries tok(condition), keys and values tok(state))
    e    = MLP(waves(s)) + linear(parameters)
    v_S  = head(salient blocks(h, e)),   v_F = head(norm(mixing blocks(h + e)))
    G    = sigmoid(a v_F + b v_S + c),   v   = G v_S + (1 - G) v_F

Salient flow attention is the difference of two attention maps, the second of local detail:

    A = softmax(Q1 K1^T / sqrt(d)) - lambda softmax(Q2 K2'^T / sqrt(d)),  K2' = K2 - mean_3x3(K2)

Fourier mixing maps every wave of the token lattice by the same complex matrices:

    X = FFT(norm(x));  H = relu(w_1 W_1 X + b_1);  Y = shrink(w_2 W_2 H + b_2);  x + FFT^-1(Y)

with the weights w_i = 1 + gamma_i |X| ("magnitude", as published) or 1 + gamma_i |k|
("wavenumber", |k| = 1 at the Nyquist limit of an axis); gamma is learned and starts at zero.

A backbone that refines a noisy state z_s = (1 - s) z + s eps returns, in place of v,

    q s v + q^2 (1 - s) g(e) z_s,   q = 1 / sqrt((1 - s)^2 + s^2),   g a number per channel

so that v has an error of equal size at all flow times (Karras et al., "Elucidating the design
space", 2022), and close to the data the answer is the state itself. g is learned and starts at 0.

Differences from the published code: the mixing branch knows the flow time and passes gradients on
(``detached_mixing`` restores the detached copy), lambda is trained, and ``cond="crossattn+add"``
adds an embedding of the condition to h. There are no blocks over time: a history is folded into
channels.

References: Wang et al., "FourierFlow", arXiv 2506.00862; Ye et al., "Differential transformer",
arXiv 2410.05258; Guibas et al., "Adaptive Fourier neural operators", arXiv 2111.13587.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, cast, get_args

import torch
import torch.nn.functional as F
from jaxtyping import Complex, Float
from torch import Tensor, nn

from pibert.fields import FieldSpec
from pibert.models.fourier import analyse, synthesise
from pibert.models.layers import (
    Positions,
    constant,
    count,
    from_patches,
    lattice_shape,
    to_patches,
)
from pibert.models.stepper import StepperConfig, at_least_one, zero

Cond = Literal["crossattn", "crossattn+add"]
FreqWeight = Literal["magnitude", "wavenumber"]
_SHRINK = 0.01
_START = 0.5
"""lambda before training: a difference of two maps, in which the first weighs more."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DualBranchConfig(StepperConfig):
    """Sizes and switches of the backbone."""

    width: int = 128
    heads: int = 4
    patch: int = 4
    depth: int = 6
    """Blocks of salient flow attention."""
    mixers: int = 4
    """Blocks of Fourier mixing."""
    blocks: int = 4
    """Blocks on the diagonal of the matrices that mix channels of a wave."""
    mlp_ratio: int = 4
    freq_weight: FreqWeight = "magnitude"
    """What the weight of a wave grows with."""
    trained_lambda: bool = True
    """Off: the weight of the second attention map stays at 0.5."""
    detached_mixing: bool = False
    """Let the mixing branch pass no gradient on to the embeddings, as in the published code."""
    parameters: bool = False
    """Let the parameters of the flow enter, beside the flow time."""

    def __post_init__(self) -> None:
        # Named, as slots make a class that a bare super() does not know.
        StepperConfig.__post_init__(self)
        at_least_one(self, "width", "heads", "patch", "depth", "mixers", "blocks", "mlp_ratio")
        for name in ("heads", "blocks"):
            if self.width % getattr(self, name):
                raise ValueError(
                    f"expected a width that is a multiple of {name} = {getattr(self, name)}, "
                    f"found {self.width}"
                )
        one_of(self, "freq_weight", get_args(FreqWeight))


def one_of(config: DualBranchConfig, name: str, choices: tuple[str, ...]) -> None:
    """Refuse what is not among the choices."""
    if getattr(config, name) not in choices:
        raise ValueError(
            f"expected another {name}, found {getattr(config, name)!r}; choose from: "
            f"{', '.join(choices)}"
        )


class DualBranch(nn.Module):
    """Patch values of two branches, and the gate between them.

    Args:
        config: Sizes and switches.
        spec: What the fields are.
        channels: Of the state, of the condition and of the output.
        cond: How the condition enters.
        keeps_state: Whether the state is noisy, and kept as far as it is not.
    """

    def __init__(
        self,
        config: DualBranchConfig,
        spec: FieldSpec,
        channels: tuple[int, int, int],
        cond: Cond = "crossattn",
        *,
        keeps_state: bool = False,
    ) -> None:
        super().__init__()
        d, pixels = config.width, config.patch**2
        state, condition, out = channels
        self.config = config
        self.embed = nn.Linear(state * pixels, d)
        # None: the state's.
        self.embed_condition = nn.Linear(condition * pixels, d) if condition != state else None
        self.positions = Positions(lattice_shape(spec.grid.shape, config.patch), d)
        self.cross = CrossAttention(d, config.heads)
        self.added = nn.Linear(condition * pixels, d) if cond == "crossattn+add" else None
        self.flow_time = nn.Sequential(nn.Linear(d, d), nn.SiLU(), nn.Linear(d, d))
        self.num_parameters = len(spec.parameters) if config.parameters else 0
        self.embed_parameters = nn.Linear(self.num_parameters, d) if self.num_parameters else None
        self.salient = nn.ModuleList(
            SalientBlock(d, config.heads, config.mlp_ratio, trained_lambda=config.trained_lambda)
            for _ in range(config.depth)
        )
        self.mixing = nn.ModuleList(
            FourierMixing(d, config.blocks, config.mlp_ratio, config.freq_weight)
            for _ in range(config.mixers)
        )
        self.norm = nn.LayerNorm(d)
        self.head = nn.Linear(d, out * pixels)
        self.gate = nn.Linear(2 * config.horizon, 1)
        self.kept = nn.Linear(d, out) if keeps_state else None
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
    ) -> tuple[Float[Tensor, "b k y x"], Float[Tensor, "b n d"]]:
        """The field of the fused branches, and the tokens after a salient block.

        Args:
            state: What is refined: the noisy field, or the condition again.
            s: Flow time, 1 for noise and 0 for data.
            condition: The last frames.
            parameters: Of the flow; zero where unknown.
            aligned: After how many salient blocks the tokens are taken; None: after the last.
        """
        ny, nx = condition.shape[-2:]
        lattice = lattice_shape((ny, nx), self.config.patch)
        tokens = self._tokens(state, condition, lattice)
        embedding = self._embedding(s, parameters)
        taken = salient = tokens
        for number, block in enumerate(self.salient, start=1):
            salient = block(salient, embedding, lattice)
            if aligned is None or number <= aligned:
                taken = salient
        mixed = tokens.detach() if self.config.detached_mixing else tokens
        mixed = mixed + embedding[:, None]
        for block in self.mixing:
            mixed = block(mixed, lattice)
        values = self._fused(salient, self.norm(mixed))
        field = from_patches(values, self.config.patch, (ny, nx))
        return self._refined(field, state, s, embedding), taken

    def _tokens(self, state: Tensor, condition: Tensor, lattice: tuple[int, int]) -> Tensor:
        with torch.autocast(state.device.type, enabled=False):
            patches = to_patches(condition, self.config.patch)
            places = self.positions(lattice)
            tokens = self.embed(to_patches(state, self.config.patch)) + places
            given = (self.embed_condition or self.embed)(patches) + places
            added = 0.0 if self.added is None else self.added(patches)
        return tokens + self.cross(given, tokens) + added

    def _embedding(self, s: Tensor, parameters: Tensor) -> Tensor:
        with torch.autocast(s.device.type, enabled=False):
            embedding: Tensor = self.flow_time(waves(s, self.config.width))
            if self.embed_parameters is not None:
                embedding = embedding + self.embed_parameters(parameters[:, : self.num_parameters])
        return embedding

    def _fused(self, salient: Tensor, mixed: Tensor) -> Tensor:
        """Patch values (b, n, v), ordered (frame, channel, row, column)."""
        dtype = self.head.weight.dtype
        with torch.autocast(salient.device.type, enabled=False):
            frames = (-1, (self.config.horizon, -1))
            ours = self.head(salient.to(dtype)).unflatten(*frames)
            theirs = self.head(mixed.to(dtype)).unflatten(*frames)
            both = torch.cat((theirs, ours), dim=-2).mT
            gate = torch.sigmoid(self.gate(both)).mT
            return (gate * ours + (1 - gate) * theirs).flatten(-2)

    def _refined(self, field: Tensor, state: Tensor, s: Tensor, embedding: Tensor) -> Tensor:
        """The field weighted for its flow time, and the state that is kept."""
        if self.kept is None:
            return field
        with torch.autocast(state.device.type, enabled=False):
            s = s[:, None, None, None]
            square = 1 / ((1 - s).square() + s.square())
            kept = self.kept(embedding)[..., None, None] * state
            return square.sqrt() * s * field + square * (1 - s) * kept


def waves(s: Float[Tensor, " b"], width: int) -> Float[Tensor, "b d"]:
    """Cosines and sines of the flow time, of periods from 2 pi / 1000 to 20 pi."""
    angles = s[:, None] * _frequencies(width // 2, device=s.device, dtype=s.dtype)
    numbers = torch.cat((angles.cos(), angles.sin()), dim=-1)
    return nn.functional.pad(numbers, (0, width % 2))


@constant
def _frequencies(number: int, *, device: torch.device, dtype: torch.dtype) -> Tensor:
    """From 1000 down to 0.1, evenly in the logarithm."""
    places = count(0, number, device=device) / max(1, number)
    return (1000 * torch.exp(-math.log(1e4) * places)).to(dtype)


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
        width = d // self.heads
        q = self.query(asking).view(b, n, self.heads, width).transpose(1, 2)
        k, v = self.key_value(asked).view(b, n, 2, self.heads, width).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v)
        return self.out(mixed.transpose(1, 2).reshape(b, n, d))


def make_mlp(width: int, ratio: int) -> nn.Sequential:
    """Two layers with a wider one between."""
    return nn.Sequential(
        nn.Linear(width, ratio * width), nn.GELU(), nn.Linear(ratio * width, width)
    )


class BlockLinear(nn.Module):
    """A complex matrix, block-diagonal over the channels; the numbers are stored as real pairs."""

    spectral_weights = ("weight",)

    def __init__(self, width: int, blocks: int) -> None:
        super().__init__()
        if width % blocks:
            raise ValueError(f"width must be a multiple of blocks, found {width} and {blocks}")
        size = width // blocks
        self.weight = nn.Parameter(torch.randn(blocks, size, size, 2) * (2 * size) ** -0.5)
        self.bias = nn.Parameter(torch.zeros(blocks, size, 2))

    def forward(
        self, x: Complex[Tensor, "b ky kx d"], scale: Tensor
    ) -> Complex[Tensor, "b ky kx d"]:
        """The product times a scale that broadcasts to it, plus the bias."""
        weight, bias = torch.view_as_complex(self.weight), torch.view_as_complex(self.bias)
        parts = x.unflatten(-1, weight.shape[:2])
        product = torch.einsum("...gi,gio->...go", parts, weight).flatten(-2)
        return product * scale + bias.flatten()

    def paired(self, re: Tensor, im: Tensor, scale: Tensor) -> tuple[Tensor, Tensor]:
        """The same of real and imaginary part, each (b, ky, kx, d)."""
        w_re, w_im = self.weight.unbind(-1)
        bias_re, bias_im = self.bias.flatten(0, 1).unbind(-1)

        def product(x: Tensor, weight: Tensor) -> Tensor:
            parts = x.unflatten(-1, weight.shape[:2])
            return torch.einsum("byxgi,gio->byxgo", parts, weight).flatten(-2)

        return (
            (product(re, w_re) - product(im, w_im)) * scale + bias_re,
            (product(re, w_im) + product(im, w_re)) * scale + bias_im,
        )


class FourierMixing(nn.Module):
    """One block: mixing of waves with a skip, then an MLP with a skip."""

    def __init__(
        self,
        width: int,
        blocks: int,
        mlp_ratio: int = 4,
        freq_weight: FreqWeight = "magnitude",
    ) -> None:
        super().__init__()
        self.freq_weight = freq_weight
        self.evaluation: Literal["fft", "dft"] = "fft"
        self.norm = nn.LayerNorm(width)
        self.maps = nn.ModuleList(BlockLinear(width, blocks) for _ in range(2))
        self.gain = nn.Parameter(torch.zeros(2))
        """gamma of each map."""
        self.norm_mlp = nn.LayerNorm(width)
        self.mlp = make_mlp(width, mlp_ratio)

    def forward(self, x: Float[Tensor, "b n d"], shape: tuple[int, int]) -> Float[Tensor, "b n d"]:
        x = x + self.mix(self.norm(x), shape)
        return x + self.mlp(self.norm_mlp(x))

    def mix(self, x: Float[Tensor, "b n d"], shape: tuple[int, int]) -> Float[Tensor, "b n d"]:
        """What the waves make of tokens on a lattice of a shape."""
        with torch.autocast(x.device.type, enabled=False):
            x = x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
            if self.evaluation == "dft":
                return self._mix_by_products(x, shape)
            if x.shape[0] == 0:  # Fourier transforms of nothing are refused
                return x
            spectrum = torch.fft.rfft2(x.unflatten(1, shape), dim=(1, 2), norm="ortho")
            frequency = self._frequency(spectrum.abs, shape, x)
            hidden = self.maps[0](spectrum, 1 + self.gain[0] * frequency)
            hidden = torch.view_as_complex(F.relu(torch.view_as_real(hidden)))
            mixed = self.maps[1](hidden, 1 + self.gain[1] * frequency)
            mixed = torch.view_as_complex(F.softshrink(torch.view_as_real(mixed), _SHRINK))
            field = torch.fft.irfft2(mixed, s=shape, dim=(1, 2), norm="ortho")
        return field.flatten(1, 2)

    def _mix_by_products(self, x: Tensor, shape: tuple[int, int]) -> Tensor:
        whole, every = math.sqrt(math.prod(shape)), 2 * max(shape)  # as many modes as there are
        parts = analyse(x.mT.unflatten(-1, shape), every)  # (b, d, ky, kx)
        re, im = (part.permute(0, 2, 3, 1) / whole for part in parts)
        frequency = self._frequency((re.square() + im.square()).sqrt, shape, x)
        first, second = (cast(BlockLinear, part).paired for part in self.maps)
        re, im = (F.relu(part) for part in first(re, im, 1 + self.gain[0] * frequency))
        parts = second(re, im, 1 + self.gain[1] * frequency)
        re, im = (F.softshrink(part, _SHRINK).permute(0, 3, 1, 2) for part in parts)
        return (synthesise(re, im, every, shape) * whole).flatten(2).mT

    def _frequency(
        self, magnitude: Callable[[], Tensor], shape: tuple[int, int], x: Tensor
    ) -> Tensor:
        if self.freq_weight == "magnitude":
            return magnitude()
        return wavenumbers(*shape, device=x.device, dtype=x.dtype)


@constant
def wavenumbers(ny: int, nx: int, *, device: torch.device, dtype: torch.dtype) -> Tensor:
    """|k| of the waves of a real lattice, (y, x / 2 + 1, 1); 1 at the Nyquist limit of an axis."""
    rows = count(0, ny, device=device)
    ky = torch.minimum(rows, ny - rows) / ny
    kx = count(0, nx // 2 + 1, device=device) / nx
    return (2 * torch.hypot(ky[:, None], kx))[..., None].to(dtype)
