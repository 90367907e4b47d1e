"""Flowers: a network of learned warps, which fetch features from where they come from.

    field, coordinates, parameters -> 1x1 lift
          -> levels of one block each, followed by a halving (2x2 convolution, ReLU) that doubles
             the channels; a block at the bottom
          -> for each level, from the bottom up: block, doubling (transposed convolution, ReLU),
             joined by the input of the level's block
          -> 1x1 head with one hidden layer

A block is GELU(norm(W u + warp(u))). The warp has several heads; head h moves its channels v_h by a
displacement field r_h, both functions of the features at the point alone:

    warp_h(x) = v_h(x + r_h(x)),     v = V u,     r = R_2 ReLU(R_1 u)

by bilinear interpolation, around periodic sides, and with zeros beyond others. Displacements are in
units of half the domain. The norm is over groups of channels; with parameters its scale and offset
are linear in them (FiLM).

Reference: Muser, Spitzer, Lassas, de Hoop, Dokmanic, Flowers: A warp drive for neural PDE solvers,
ICML 2026 (arXiv 2603.04430), with details from the authors' published code. ``published`` has
their size, 17 M parameters; ``base`` is narrower, with about as many parameters as PIBERT. Ours are
grids of any size (extended by repetition) and a FiLM scale that starts at 1.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from pibert.fields import FieldSpec, Grid
from pibert.models.layers import (
    Answer,
    Fields,
    Parameters,
    constant,
    count,
    full_precision,
    padded_to_multiple,
    wrapped,
)
from pibert.models.stepper import (
    BaselineConfig,
    Stepper,
    check_most,
    check_multiple,
    zero,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class FlowersConfig(BaselineConfig):
    """Sizes; the defaults are the ``base`` preset."""

    width: int = 48
    """Channels of the finest level; every coarser one has twice as many."""
    heads: int = 12
    """Displacement fields of each warp, and groups of each norm."""
    levels: int = 4

    def __post_init__(self) -> None:
        BaselineConfig.__post_init__(self)
        check_multiple(self, "heads")
        check_most(self, 12, "levels")


PRESETS: dict[str, FlowersConfig] = {
    "base": FlowersConfig(),
    "published": FlowersConfig(width=160, heads=40),
}


class Warp(nn.Module):
    """Moves the channels of each head by a displacement field."""

    def __init__(self, num_in: int, num_out: int, heads: int, grid: Grid) -> None:
        super().__init__()
        self.heads, self.periodic = heads, (grid.periodic_x, grid.periodic_y)
        self.displacement = nn.Sequential(
            nn.Conv2d(num_in, num_out, 1), nn.ReLU(), nn.Conv2d(num_out, 2 * heads, 1)
        )
        self.value = nn.Conv2d(num_in, num_out, 1)

    def forward(self, u: Float[Tensor, "b c y x"]) -> Float[Tensor, "b k y x"]:
        b, _, ny, nx = u.shape
        if b == 0:  # torch refuses to interpolate empty tensors
            return self.value(u)
        displacement = full_precision(self.displacement(u))
        value = full_precision(self.value(u))
        with torch.autocast(u.device.type, enabled=False):  # half precision blurs positions
            value = value.reshape(b * self.heads, -1, ny, nx)
            displacement = displacement.reshape(b * self.heads, 2, ny, nx).permute(0, 2, 3, 1)
            places, sizes = [], (nx, ny)
            base = _points(ny, nx, value.dtype, value.device)
            for axis, (size, wraps) in enumerate(zip(sizes, self.periodic, strict=True)):
                place = base[..., axis] + displacement[..., axis] * ((size - 1) / 2)
                if wraps:
                    place = place.remainder(size)
                    value = wrapped(value, 1, 3 - axis).narrow(3 - axis, 1, size + 1)
                last = size if wraps else max(size - 1, 1)
                places.append(2 * place / last - 1)
            source = torch.stack(places, dim=-1)
            moved = F.grid_sample(value, source, align_corners=True)
            return moved.reshape(b, -1, ny, nx)


@constant
def _points(ny: int, nx: int, dtype: torch.dtype, device: torch.device) -> Float[Tensor, "1 y x 2"]:
    """Return column and row of every point."""
    x, y = count(0, nx, device=device), count(0, ny, device=device)[:, None]
    return torch.stack((x.expand(ny, nx), y.expand(ny, nx)), dim=-1)[None].to(dtype)


class Block(nn.Module):
    """A warp beside a pointwise map, then norm and GELU."""

    def __init__(self, num_in: int, num_out: int, heads: int, parameters: int, grid: Grid) -> None:
        super().__init__()
        self.warp = Warp(num_in, num_out, heads, grid)
        self.skip = nn.Conv2d(num_in, num_out, 1)
        self.norm = nn.GroupNorm(heads, num_out, affine=not parameters)
        self.film = nn.Linear(parameters, 2 * num_out) if parameters else None
        if self.film is not None:
            with torch.no_grad():
                self.film.bias[:num_out] = 1.0
                self.film.bias[num_out:] = 0.0

    def forward(
        self, u: Float[Tensor, "b c y x"], parameters: Float[Tensor, "b q"]
    ) -> Float[Tensor, "b k y x"]:
        features = self.norm(self.warp(u) + self.skip(u))
        if self.film is not None:
            scale, offset = self.film(parameters)[:, :, None, None].chunk(2, dim=1)
            features = scale * features + offset
        return F.gelu(features)


class Flowers(Stepper):
    """Steps standardised fields (b, history * c, y, x) to (b, horizon * c, y, x); any grid."""

    def __init__(self, config: FlowersConfig, spec: FieldSpec) -> None:
        super().__init__(config, spec)
        widths = [config.width * 2**level for level in range(config.levels)]

        def block(num_in: int, num_out: int) -> Block:
            return Block(num_in, num_out, config.heads, self.num_parameters, spec.grid)

        self.lift = nn.Conv2d(
            self.num_inputs + self.num_coordinates + self.num_parameters, config.width, 1
        )
        self.down = nn.ModuleList(block(width, width) for width in widths[:-1])
        self.halvings = nn.ModuleList(
            nn.Conv2d(width, 2 * width, 2, stride=2) for width in widths[:-1]
        )
        self.bottom = block(widths[-1], widths[-1])
        # All but the bottom are joined with the input of the level below.
        below = [2 * width for width in widths[1:-1]] + [widths[-1]]
        self.up = nn.ModuleList(
            block(num_in, width) for num_in, width in zip(below, widths, strict=False)
        )
        self.doublings = nn.ModuleList(
            nn.ConvTranspose2d(width, width, 2, stride=2) for width in widths[:-1]
        )
        joined = 2 * config.width if config.levels > 1 else config.width
        self.head = nn.Sequential(
            nn.Conv2d(joined, config.width, 1),
            nn.ReLU(),
            nn.Conv2d(config.width, self.out_channels, 1),
        )
        if config.residual:
            zero(self.head[-1])

    def change(self, x: Fields, parameters: Parameters) -> Answer:
        ny, nx = x.shape[-2:]
        known = parameters[:, : self.num_parameters]
        inputs = self.with_parameters(self.with_coordinates(x), parameters)
        u = self.lift(padded_to_multiple(inputs, 2 ** (self.config.levels - 1)))
        skips = []
        for block, halving in zip(self.down, self.halvings, strict=True):
            skips.append(u)
            u = F.relu(halving(block(u, known)))
        u = self.bottom(u, known)
        for level in reversed(range(len(skips))):
            u = F.relu(self.doublings[level](self.up[level](u, known)))
            u = torch.cat((u, skips[level]), dim=1)
        return self.head(u[..., :ny, :nx]).contiguous()
