"""PDE-Transformer: shifted-window attention at several scales, conditioned on the flow.

    field -> patches -> stage 0 -> half as many tokens per side, twice the width -> stage 1 -> ...
          -> bottom stage -> ... -> tokens of the next finer scale, merged with the stage's own
          -> 3x3 convolution, norm, linear map to the values of each patch

A stage is a sequence of blocks x <- x + (1 + g) f(LN(x) (1 + a) + b), where f is attention, then an
MLP of four times the width; shift b, scale a and gate g are linear in an embedding of the flow's
parameters and start at zero (adaLN). Attention acts in windows, every second block in windows moved
by half their size, across periodic sides only. Its logits are cosines of queries and keys times a
learned factor, plus a bias from a small network of the logarithmic distance (Swin v2). Scales
change by a 3x3 convolution with (un)shuffled points; the last stage has twice the width of the
first.

Reference: Holzschuh, Liu, Kohl, Thuerey, PDE-Transformer: Efficient and versatile transformers for
physics simulations, ICML 2025 (arXiv 2505.24717), with details from the authors' published code:
the variant that mixes channels in one token. ``published-s`` has their size S (theirs has 33 M
parameters; its embeddings of time and PDE type, for which there is no use here, are left out).
``base`` is the same structure with about as many parameters as PIBERT and patches of 2 points: the
authors' 4 are for 256 x 256 points. Ours are the wrapping convolutions, windows no larger than the
lattice, and the coordinates as input.
"""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor, nn

from pibert.fields import FieldSpec, Grid
from pibert.models.layers import (
    Answer,
    Fields,
    GridConv2d,
    Parameters,
    constant,
    count,
    from_patches,
    lattice_shape,
    make_mlp,
    padded_to_multiple,
    to_patches,
)
from pibert.models.stepper import (
    BaselineConfig,
    Stepper,
    check_most,
    check_multiple,
    zero,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class PDETransformerConfig(BaselineConfig):
    """Sizes; the defaults are the ``base`` preset."""

    patch: int = 2
    width: int = 32
    """Of the first stage; every coarser one has twice as much."""
    heads: int = 4
    depths: tuple[int, ...] = (2, 2, 2, 2, 2)
    """Blocks of each stage, on the way down, at the bottom and on the way up."""
    window: int = 8
    """Tokens along each side of a window."""

    def __post_init__(self) -> None:
        BaselineConfig.__post_init__(self)
        check_multiple(self, "heads")
        check_most(self, 64, "window", "patch")
        if len(self.depths) % 2 == 0 or not 3 <= len(self.depths) <= 15 or min(self.depths) < 1:
            raise ValueError(
                f"depths must be an odd number of 3 to 15 positive counts, found {self.depths}"
            )
        if max(self.depths) > 64:
            raise ValueError(f"depths must be at most 64 each, found {self.depths}")


PRESETS: dict[str, PDETransformerConfig] = {
    "base": PDETransformerConfig(),
    "small": PDETransformerConfig(width=16, depths=(1, 1, 1, 1, 1)),
    "published-s": PDETransformerConfig(patch=4, width=96, depths=(2, 5, 8, 5, 2)),
}


class WindowAttention(nn.Module):
    """Cosine attention within windows, with a bias that depends on the distance."""

    MOST = math.log(100.0)

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.scale = nn.Parameter(torch.full((heads, 1, 1), math.log(10.0)))
        self.distance = nn.Sequential(
            nn.Linear(2, 512), nn.ReLU(), nn.Linear(512, heads, bias=False)
        )

    def forward(
        self,
        windows: Float[Tensor, "b w n d"],
        sides: tuple[int, int],
        allowed: Bool[Tensor, "w n n"] | None,
    ) -> Float[Tensor, "b w n d"]:
        q, k, v = self.qkv(windows).unflatten(-1, (3, self.heads, -1)).permute(3, 0, 1, 4, 2, 5)
        logits = F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).mT  # (b, w, h, n, n)
        logits = logits * self.scale.clamp(max=self.MOST).exp()
        offsets = _log_distances(sides, windows.dtype, windows.device)
        logits = logits + 16 * self.distance(offsets).sigmoid().permute(2, 0, 1)
        if allowed is not None:
            logits = logits.masked_fill(~allowed[:, None], -1e4)
        return (logits.softmax(-1) @ v).transpose(2, 3).flatten(3)


@constant
def _log_distances(
    sides: tuple[int, int], dtype: torch.dtype, device: torch.device
) -> Float[Tensor, "n n 2"]:
    """Return the signed distances of the tokens of a window, on a logarithmic scale."""
    grid = torch.stack(
        torch.meshgrid(*(count(0, side, device=device) for side in sides), indexing="ij"), dim=-1
    ).flatten(0, 1)
    largest = torch.stack([count(max(side - 1, 1), max(side, 2), device=device) for side in sides])
    distance = 8 * (grid[:, None] - grid) / largest[:, 0]
    return (distance.sign() * (1 + distance.abs()).log2() / 3).to(dtype)


@constant
def _allowed(
    shape: tuple[int, int],
    sides: tuple[int, int],
    moved: tuple[int, int],
    periodic: tuple[bool, bool],
    device: torch.device,
) -> Bool[Tensor, "w n n"]:
    """Return which tokens of each window may attend to each other: neighbours in the flow."""
    regions = []
    for size, side, shift, wraps in zip(shape, sides, moved, periodic, strict=True):
        padded = -(-size // side) * side
        place = (count(0, padded, device=device) + shift).remainder(padded)
        region = torch.where(place >= size, 2.0, 0.0)
        if not wraps:
            region = region + (count(0, padded, device=device) + shift >= padded)
        regions.append(region)
    labels = 10 * regions[0][:, None] + regions[1]
    (height, width), (rows, columns) = sides, labels.shape
    windows = labels.view(rows // height, height, columns // width, width).transpose(1, 2)
    windows = windows.reshape(-1, height * width)
    return windows[:, :, None] == windows[:, None]


class Block(nn.Module):
    """Attention in windows and an MLP, both modulated by the embedding of the flow."""

    def __init__(self, width: int, heads: int, periodic: tuple[bool, bool]) -> None:
        super().__init__()
        self.periodic = periodic
        self.attention = WindowAttention(width, heads)
        self.mlp = make_mlp(width, 4 * width)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.modulation = nn.Linear(width, 6 * width)
        zero(self.modulation)

    def forward(
        self,
        x: Float[Tensor, "b v w d"],
        embedding: Float[Tensor, "b d"],
        window: int,
        is_moved: bool,
    ) -> Float[Tensor, "b v w d"]:
        modulation = self.modulation(F.silu(embedding))[:, None, None].chunk(6, dim=-1)
        for norm, f, (shift, scale, gate) in zip(
            self.norms, (None, self.mlp), (modulation[:3], modulation[3:]), strict=True
        ):
            z = norm(x) * (1 + scale) + shift
            z = self._attended(z, window, is_moved) if f is None else f(z)
            x = x + (1 + gate) * z
        return x

    def _attended(self, z: Tensor, window: int, is_moved: bool) -> Tensor:
        b, rows, columns, d = z.shape
        shape = (rows, columns)
        height, width = min(window, rows), min(window, columns)
        moved = tuple(
            side // 2 if is_moved and side < size else 0
            for side, size in zip((height, width), shape, strict=True)
        )
        z = F.pad(z, (0, 0, 0, -columns % width, 0, -rows % height))
        if any(moved):
            z = z.roll((-moved[0], -moved[1]), (1, 2))
        down, across = z.shape[1] // height, z.shape[2] // width
        cells = z.reshape(b, down, height, across, width, d).transpose(2, 3)
        is_whole = rows % height == 0 and columns % width == 0
        wraps = all(p or not m for p, m in zip(self.periodic, moved, strict=True))
        allowed = None
        if not (is_whole and wraps):
            sides = (height, width)
            allowed = _allowed(shape, sides, (moved[0], moved[1]), self.periodic, z.device)
        cells = cells.reshape(b, down * across, height * width, d)
        cells = self.attention(cells, (height, width), allowed)
        z = cells.view(b, down, across, height, width, d).transpose(2, 3)
        z = z.reshape(b, down * height, across * width, d)
        z = z.roll(moved, (1, 2)) if any(moved) else z
        return z[:, :rows, :columns]


class Embedding(nn.Module):
    """A vector of the flow's parameters for one scale."""

    def __init__(self, parameters: int, width: int) -> None:
        super().__init__()
        self.constant = nn.Parameter(nn.init.normal_(torch.empty(width), std=0.02))
        self.mlp = make_mlp(parameters, width, width) if parameters else None

    def forward(self, parameters: Float[Tensor, "b q"]) -> Float[Tensor, "b d"]:
        constant = self.constant.expand(parameters.shape[0], -1)
        return constant if self.mlp is None else constant + self.mlp(parameters)


class Stage(nn.ModuleList):
    """Blocks of one scale, every second one in moved windows."""

    def __init__(self, width: int, depth: int, config: PDETransformerConfig, grid: Grid) -> None:
        periodic = (grid.periodic_y, grid.periodic_x)
        super().__init__(Block(width, config.heads, periodic) for _ in range(depth))
        self.window = config.window

    def forward(
        self, x: Float[Tensor, "b c v w"], embedding: Float[Tensor, "b c"]
    ) -> Float[Tensor, "b c v w"]:
        tokens = x.permute(0, 2, 3, 1)
        for number, block in enumerate(self):
            tokens = block(tokens, embedding, self.window, number % 2 == 1)
        return tokens.permute(0, 3, 1, 2)


class PDETransformer(Stepper):
    """Steps standardised fields (b, history * c, y, x) to (b, horizon * c, y, x); any grid."""

    def __init__(self, config: PDETransformerConfig, spec: FieldSpec) -> None:
        super().__init__(config, spec)
        grid, area, self.levels = spec.grid, config.patch**2, len(config.depths) // 2
        widths = [config.width * 2**level for level in range(self.levels + 1)]
        self.patches = nn.Linear((self.num_inputs + self.num_coordinates) * area, config.width)
        self.embeddings = nn.ModuleList(Embedding(self.num_parameters, width) for width in widths)
        down, bottom, up = (
            config.depths[: self.levels],
            config.depths[self.levels],
            config.depths[self.levels + 1 :][::-1],
        )
        # The finest stage on the way up has the width of the second.
        up_widths = [widths[1], *widths[1 : self.levels]]
        self.down = nn.ModuleList(
            Stage(width, depth, config, grid) for width, depth in zip(widths, down, strict=False)
        )
        self.halvings = nn.ModuleList(
            nn.Sequential(GridConv2d(width, width // 2, 3, grid), nn.PixelUnshuffle(2))
            for width in widths[:-1]
        )
        self.bottom = Stage(widths[-1], bottom, config, grid)
        self.doublings = nn.ModuleList(
            nn.Sequential(GridConv2d(width, 2 * width, 3, grid), nn.PixelShuffle(2))
            for width in widths[1:]
        )
        self.merges = nn.ModuleList(
            nn.Conv2d(2 * width, out, 1) for width, out in zip(widths, up_widths, strict=False)
        )
        self.up = nn.ModuleList(
            Stage(width, depth, config, grid) for width, depth in zip(up_widths, up, strict=True)
        )
        self.output = GridConv2d(widths[1], widths[1], 3, grid)
        self.norm = nn.LayerNorm(widths[1], elementwise_affine=False)
        self.modulation = nn.Linear(widths[1], 2 * widths[1])
        self.head = nn.Linear(widths[1], self.out_channels * area)
        if config.residual:
            zero(self.head)

    def change(self, x: Fields, parameters: Parameters) -> Answer:
        ny, nx = x.shape[-2:]
        if x.shape[0] == 0:  # torch shuffles empty tensors wrongly
            return x.new_zeros(0, self.out_channels, ny, nx)
        features = self._decoded(x, parameters).permute(0, 2, 3, 1)
        embedding = F.silu(self.embeddings[1](parameters[:, : self.num_parameters]))
        shift, scale = self.modulation(embedding)[:, None, None].chunk(2, dim=-1)
        values = self.head(self.norm(features) * (1 + scale) + shift)
        patch, (rows, columns) = self.config.patch, values.shape[1:3]
        field = from_patches(values.flatten(1, 2), patch, (rows * patch, columns * patch))
        return field[..., :ny, :nx].contiguous()

    def _decoded(self, x: Tensor, parameters: Tensor) -> Tensor:
        """Return the tokens before the head on the extended lattice, (b, 2d, v, w)."""
        patch = self.config.patch
        x = padded_to_multiple(self.with_coordinates(x), patch * 2**self.levels)
        lattice = lattice_shape((x.shape[-2], x.shape[-1]), patch)
        tokens = self.patches(to_patches(x, patch)).mT.unflatten(-1, lattice)
        embeddings = [embed(parameters[:, : self.num_parameters]) for embed in self.embeddings]
        skips = []
        for stage, halving, embedding in zip(self.down, self.halvings, embeddings, strict=False):
            tokens = stage(tokens, embedding)
            skips.append(tokens)
            tokens = halving(tokens)
        tokens = self.bottom(tokens, embeddings[-1])
        for level in reversed(range(self.levels)):
            both = torch.cat((self.doublings[level](tokens), skips[level]), dim=1)
            tokens = self.up[level](self.merges[level](both), embeddings[max(level, 1)])
        return self.output(tokens)
