"""What models share: types of fields, kept constants, convolutions on a grid, patches as tokens."""

from collections.abc import Callable
from functools import lru_cache, wraps
from typing import ParamSpec

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from pibert.fields import Grid

Arguments = ParamSpec("Arguments")
Fields = Float[Tensor, "b c y x"]
"""Standardised frames folded into channels, the newest last."""
Answer = Float[Tensor, "b k y x"]
"""The next frames, standardised as the input."""
Vector = Float[Tensor, "b q"] | None
"""``FieldSpec.encode_parameters``: at most 16, missing ones are zero, NaN stands for unknown."""
Mask = Tensor | None
"""Not zero where the field is known: (y, x), (b, y, x) or (b, 1, y, x); None: everywhere."""
Parameters = Float[Tensor, "b 16"]
"""A vector that is whole, zero where unknown."""


def constant(function: Callable[Arguments, Tensor]) -> Callable[Arguments, Tensor]:
    """Keep the results of earlier calls; in a captured graph they are computed in place.

    Module buffers would not do: they follow the model's precision, and phases rounded to float32
    or bfloat16 cannot be made exact again.
    """
    cached = lru_cache(maxsize=64)(function)

    @wraps(function)
    def look_up(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Tensor:
        if torch.compiler.is_compiling():
            return function(*args, **kwargs)
        # Made outside any inference mode, so that later calls may differentiate through them.
        with torch.inference_mode(False):
            return cached(*args, **kwargs)  # type: ignore[arg-type]

    return look_up


def count(start: int, stop: int, step: int = 1, *, device: torch.device) -> Tensor:
    """Whole numbers in float64: exact, and no index arithmetic for a compiler to trip over."""
    return torch.arange(start, stop, step, dtype=torch.float64, device=device)


class GridConv2d(nn.Conv2d):
    """A convolution with an odd square kernel that keeps the size and wraps at periodic sides."""

    def __init__(
        self, in_channels: int, out_channels: int, size: int, grid: Grid, groups: int = 1
    ) -> None:
        assert size % 2 == 1, size
        super().__init__(in_channels, out_channels, size, padding=size // 2, groups=groups)
        self.periodic = (grid.periodic_y, grid.periodic_x)

    def forward(self, x: Float[Tensor, "b c y x"]) -> Float[Tensor, "b k y x"]:
        reach = self.kernel_size[0] // 2
        for dim, periodic in zip((2, 3), self.periodic, strict=True):
            x = wrapped(x, reach, dim) if periodic else x
        zeros = [0 if periodic else reach for periodic in self.periodic]
        return F.conv2d(x, self.weight, self.bias, padding=zeros, groups=self.groups)


def wrapped(x: Tensor, reach: int, dim: int) -> Tensor:
    """A periodic field continued by some points at both ends of an axis, also of a shorter one."""
    n = x.shape[dim]
    if reach > n:
        turns = -(-reach // n)
        return torch.cat([x] * (2 * turns + 1), dim).narrow(dim, turns * n - reach, n + 2 * reach)
    return torch.cat((x.narrow(dim, n - reach, reach), x, x.narrow(dim, 0, reach)), dim)


def padded_to_multiple(x: Float[Tensor, "b c y x"], multiple: int) -> Float[Tensor, "b c v w"]:
    """The field with its last row and column repeated until both sizes are a multiple."""
    ny, nx = x.shape[-2:]
    if ny % multiple == 0 and nx % multiple == 0:
        return x
    return F.pad(x, (0, -nx % multiple, 0, -ny % multiple), mode="replicate")


def lattice_shape(shape: tuple[int, int], patch: int) -> tuple[int, int]:
    """Rows and columns of patches that cover a grid."""
    return -(-shape[0] // patch), -(-shape[1] // patch)


def to_patches(x: Float[Tensor, "b c y x"], patch: int) -> Float[Tensor, "b n v"]:
    """The values of every patch, ordered (channel, row, column)."""
    b, c, ny, nx = x.shape
    rows, columns = lattice_shape((ny, nx), patch)
    x = F.pad(x, (0, -nx % patch, 0, -ny % patch), mode="replicate")
    cells = x.reshape(b, c, rows, patch, columns, patch).permute(0, 2, 4, 1, 3, 5)
    return cells.reshape(b, rows * columns, c * patch**2)


def from_patches(
    values: Float[Tensor, "b n v"], patch: int, shape: tuple[int, int]
) -> Float[Tensor, "b c y x"]:
    """The field of a shape whose patches have these values: ``to_patches`` undone."""
    b, _, size = values.shape
    rows, columns = lattice_shape(shape, patch)
    channels = size // patch**2
    cells = values.reshape(b, rows, columns, channels, patch, patch).permute(0, 3, 1, 4, 2, 5)
    field = cells.reshape(b, channels, rows * patch, columns * patch)
    return field[..., : shape[0], : shape[1]]


class Positions(nn.Module):
    """A learned vector per place of the lattice."""

    def __init__(self, shape: tuple[int, int], width: int) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.empty(*shape, width))
        nn.init.trunc_normal_(self.table, std=0.02)

    def forward(self, shape: tuple[int, int]) -> Float[Tensor, "n d"]:
        """Those of a lattice of a shape."""
        table: Tensor = self.table
        if shape != tuple(table.shape[:2]):
            lattice = table.permute(2, 0, 1)[None]
            resized = F.interpolate(lattice, shape, mode="bicubic", align_corners=False)
            table = resized[0].permute(1, 2, 0)
        return table.flatten(0, 1)
