"""Physics-biased attention: logits q.k / sqrt(d) - lambda r_j, the block around it, and r itself.

r_j measures how badly the patch of token j violates the governing equations (``PhysicsBias``): the
input is converted to physical units, the residuals of the PDE family are evaluated on the grid,
each is divided by its scale over the training set, and the sum of their magnitudes is averaged over
every patch. Stencils that touch an unknown point or the body do not count.

A bias that depends on the key alone is one more product of a query feature and a key feature: q
gets the constant 1 and k gets -lambda r_j sqrt(d). The fused kernels then see ordinary queries and
keys and no N x N bias exists in memory.
"""

import math
from dataclasses import replace

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from pibert.fields import FieldSpec, Grid, Normalizer
from pibert.fields.equations import window_residuals
from pibert.models.layers import Tokens, full_precision, make_mlp
from pibert.notes import warn
from pibert.physics import find_family, magnitude

Heads = Float[Tensor, "b h n d"]
"""Queries, keys or values of every head."""
CPU_FEATURES = 2
GPU_FEATURES = 8
"""Features that carry the bias; the fused GPU kernels take head widths in multiples of eight."""
CHUNK = 256
"""Samples whose residuals are calibrated at once."""


def key_biased_attention(q: Heads, k: Heads, v: Heads, bias: Float[Tensor, "b n"]) -> Heads:
    """Return softmax_j(q_i . k_j / sqrt(d) + bias_j) v_j, computed by the fused kernels."""
    d = q.shape[-1]
    # A shift of the whole row changes nothing in the softmax and saves digits of the bias.
    bias = bias - bias.detach().amax(-1, keepdim=True)
    if not (q.is_cuda or bias.requires_grad):
        # The CPU kernel broadcasts a mask as it reads it: one row serves all queries.
        row = bias[:, None, None, :].to(q.dtype)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=row)
    features = GPU_FEATURES if q.is_cuda else CPU_FEATURES
    q, k = append_bias(q, k, bias, features)
    # On Hopper and later PyTorch prefers the cuDNN kernel, which allows values narrower than the
    # keys. The flash kernels do not, and a slow one would replace them.
    if v.is_cuda and torch.cuda.get_device_properties(v.device).major >= 9:
        return F.scaled_dot_product_attention(q, k, v, scale=d**-0.5)
    wide = F.pad(v, (0, features))
    return F.scaled_dot_product_attention(q, k, wide, scale=d**-0.5)[..., :d]


def append_bias(
    q: Heads, k: Heads, bias: Float[Tensor, "b n"], features: int
) -> tuple[Float[Tensor, "b h n e"], Float[Tensor, "b h n e"]]:
    """Return queries and keys with added features: q.k / sqrt(d) then includes the bias."""
    b, h, n, d = q.shape
    # The smallest half-precision number is as good as minus infinity, and finite.
    scaled = (bias * d**0.5).clamp(min=torch.finfo(torch.float16).min)
    coarse = scaled.to(k.dtype)
    # A second feature holds the rounding error of the first: twice the digits.
    fine = (scaled - coarse).to(k.dtype)
    added = torch.stack((coarse, fine, *[torch.zeros_like(fine)] * (features - 2)), dim=-1)
    k = torch.cat((k, added[:, None].expand(b, h, n, features)), dim=-1)
    q = torch.cat((q, q.new_ones(()).expand(b, h, n, features)), dim=-1)
    return q, k


class Attention(nn.Module):
    """Multi-head self-attention with an optional bias on its logits."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        if width % heads:
            raise ValueError(f"width must be a multiple of heads, found {width} and {heads}")
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)

    def forward(self, x: Tokens, bias: Tensor | None = None) -> Tokens:
        """Attend with no bias, a key-wise (b, n) one, or a dense one for (b, heads, n, n)."""
        b, n, d = x.shape
        q, k, v = self.qkv(x).view(b, n, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        if bias is not None and bias.ndim == 2:
            mixed = key_biased_attention(q, k, v, bias)
        else:
            dense = None if bias is None else bias.to(q.dtype)
            mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=dense)
        return self.out(mixed.transpose(1, 2).reshape(b, n, d))

    def weights(self, x: Tokens, bias: Tensor | None = None) -> Float[Tensor, "b h n n"]:
        """Return each query's weights of all keys, which the fused kernels do not return."""
        b, n, d = x.shape
        width = d // self.heads
        q, k, _ = self.qkv(x).view(b, n, 3, self.heads, width).permute(2, 0, 3, 1, 4)
        logits = (q * width**-0.5) @ k.mT
        if bias is not None:
            logits = logits + (bias[:, None, None, :] if bias.ndim == 2 else bias)
        return logits.softmax(-1)


class Block(nn.Module):
    """A pre-norm transformer block; without heads, an MLP alone."""

    def __init__(self, width: int, heads: int, mlp_ratio: int = 4) -> None:
        super().__init__()
        self.norm_attention = nn.LayerNorm(width) if heads else nn.Identity()
        self.attention = Attention(width, heads) if heads else None
        self.norm_mlp = nn.LayerNorm(width)
        self.mlp = make_mlp(width, mlp_ratio * width)

    def forward(self, x: Tokens, bias: Tensor | None = None) -> Tokens:
        if self.attention is not None:
            x = x + self.attention(self.norm_attention(x), bias)
        return x + self.mlp(self.norm_mlp(x))


class PhysicsBias(nn.Module):
    """The residual of a PDE family averaged over patches, r_j >= 0 for every patch.

    Normaliser, spacing, scales and weights are buffers: a saved or exported model carries them.
    """

    mean: Tensor
    std: Tensor
    scales: Tensor
    weights: Tensor
    spacing: Tensor

    def __init__(
        self,
        spec: FieldSpec,
        patch: int,
        *,
        history: int = 1,
        family: str | None = None,
        weights: tuple[float, ...] | None = None,
    ) -> None:
        super().__init__()
        name = family or spec.family
        if name is None:
            raise ValueError("the field spec names no PDE family, so it has no residual")
        self.family = find_family(name)
        missing = [channel for channel in self.family.channels if channel not in spec.channels]
        if missing:
            raise ValueError(
                f"the residual of {name!r} needs channels {list(self.family.channels)}, "
                f"found {list(spec.channels)}; give the field spec another family or None, or set "
                f"attention_bias=0"
            )
        terms = self.family.terms
        weights = weights or (1.0,) * len(terms)
        if len(weights) != len(terms) or not all(0 <= weight < math.inf for weight in weights):
            raise ValueError(
                f"expected a weight, zero or positive, for each of {list(terms)}, found {weights}"
            )
        self.spec, self.patch = spec, patch
        self.frames = min(history, self.family.frames)
        self.register_buffer("mean", torch.zeros(len(spec.channels)))
        self.register_buffer("std", torch.ones(len(spec.channels)))
        self.register_buffer("scales", torch.ones(len(terms)))
        self.register_buffer("weights", torch.tensor(weights))
        self.register_buffer("spacing", torch.tensor([spec.grid.dy, spec.grid.dx]))
        self.register_load_state_dict_post_hook(_keep_spacing)
        self._guess_scales()

    def set_normalizer(self, normalizer: Normalizer) -> None:
        """Set the physical units of standardised values."""
        if len(normalizer.mean) != len(self.mean):
            raise ValueError(
                f"expected a normalizer of {len(self.mean)} channels, found {len(normalizer.mean)}"
            )
        self.mean.copy_(torch.tensor(normalizer.mean))
        self.std.copy_(torch.tensor(normalizer.std))
        self._guess_scales()

    def _guess_scales(self) -> None:
        """Set the scales to those of white noise until ``calibrate`` measures them."""
        if self.mean.is_meta:  # the model is built for its shapes only
            return
        channels = self.frames * len(self.spec.channels)
        generator = torch.Generator().manual_seed(0)
        noise = torch.randn(4, channels, *self.spec.grid.shape, generator=generator)
        self.calibrate(noise.to(self.mean))

    @torch.no_grad()
    def calibrate(
        self,
        x: Float[Tensor, "n c y x"],
        parameters: Float[Tensor, "n q"] | None = None,
        mask: Tensor | None = None,
    ) -> None:
        """Set each residual's scale to its root mean square over standardised training samples."""
        if mask is not None:
            mask = _per_point(mask, (len(x), *x.shape[-2:]))
        energy = torch.zeros_like(self.scales, dtype=torch.float64)
        count = torch.zeros_like(energy)
        for start in range(0, len(x), CHUNK):
            chunk = slice(start, start + CHUNK)
            residuals, defined = self._residuals(
                x[chunk],
                None if parameters is None else parameters[chunk],
                None if mask is None else mask[chunk],
            )
            for index, term in enumerate(self.family.terms):
                energy[index] += (residuals[term].square() * defined[term]).double().sum()
                count[index] += defined[term].expand(residuals[term].shape).sum()
        rms = (energy / count.clamp(min=1)).sqrt()
        if not bool(torch.isfinite(rms).all()):
            raise ValueError(
                f"expected finite training samples, found residuals {rms.tolist()}; "
                f"pass a mask that is 0 at missing points"
            )
        # A residual that vanishes on the training set keeps the guess.
        self.scales.copy_(torch.where(rms > 0, rms, self.scales))

    def forward(
        self,
        x: Float[Tensor, "b c y x"],
        parameters: Float[Tensor, "b q"] | None = None,
        mask: Tensor | None = None,
        patch: int | None = None,
    ) -> Float[Tensor, "b n"]:
        """Return r_j of every patch in token order, for standardised x with folded history.

        ``patch`` replaces the patch size of the model where that depends on the grid.
        """
        patch = patch or self.patch
        residuals, defined = self._residuals(x, parameters, mask)
        stacked = torch.stack([residuals[term] for term in self.family.terms], dim=1)
        counted = torch.stack([defined[term] for term in self.family.terms], dim=1)
        share = (self.weights / self.scales).to(stacked.dtype)
        ny, nx = x.shape[-2:]
        margin = (0, -nx % patch, 0, -ny % patch)
        # Residuals are zero where they do not count, and so is the padding beyond the grid.
        both = torch.cat((stacked, counted.to(stacked.dtype)), dim=1)
        if any(margin):
            both = F.pad(both, margin)
        total, fraction = F.avg_pool2d(both, patch).chunk(2, dim=1)
        pooled = total / fraction.clamp(min=0.5 / patch**2)  # (b, terms, y, x)
        # Not an einsum: autocast would round it to half precision.
        return (pooled * share[:, None, None]).sum(1).flatten(1)

    def _residuals(
        self, x: Tensor, parameters: Tensor | None, mask: Tensor | None
    ) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """Return the magnitude of every residual term on the grid, and where its stencil counts."""
        x = full_precision(x)
        b, channels, ny, nx = x.shape
        names = self.spec.channels
        frames = x.view(b, channels // len(names), len(names), ny, nx)[:, -self.frames :]
        mean, std = (s.to(x.dtype)[:, None, None] for s in (self.mean, self.std))
        residuals, defined = window_residuals(
            torch.addcmul(mean, frames, std),
            self.spec,
            parameters,
            None if mask is None else _per_point(mask, (b, ny, nx)),
            family=self.family,
            grid=at_resolution(self.spec.grid, (ny, nx)),
        )
        return {term: magnitude(value) for term, value in residuals.items()}, defined


def at_resolution(grid: Grid, shape: tuple[int, int]) -> Grid:
    """Return the same domain with another number of points; the body covers any cell it touches."""
    if grid.shape == shape:
        return grid
    (ny, nx), body = shape, grid.body
    if body is not None:
        body = F.adaptive_max_pool2d(body[None].float(), shape)[0] > 0
    dy, dx = grid.dy * grid.shape[0] / ny, grid.dx * grid.shape[1] / nx
    return replace(grid, shape=shape, dx=dx, dy=dy, body=body)


def _keep_spacing(module: PhysicsBias, _: object) -> None:
    """Restore the spacing of the field spec after loading weights of another grid, and warn."""
    expected = torch.tensor([module.spec.grid.dy, module.spec.grid.dx]).to(module.spacing)
    if not torch.allclose(module.spacing, expected, rtol=1e-6, atol=0.0):
        warn(
            "the weights belong to a grid of spacing (dy, dx) = "
            f"{_digits(module.spacing)}, but this model has {_digits(expected)} and keeps it; "
            "calibrate the model on its data"
        )
        module.spacing.copy_(expected)


def _digits(values: Tensor) -> str:
    return f"({', '.join(f'{value:.4g}' for value in values.tolist())})"


def _per_point(mask: Tensor, shape: tuple[int, int, int]) -> Tensor:
    """Return a mask (y, x), (b, y, x) or (b, 1, y, x) as bool (b, y, x)."""
    if mask.ndim == 4:
        mask = mask[:, 0]
    return mask.expand(shape).to(torch.bool)
