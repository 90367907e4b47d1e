"""Building blocks of several models: types, cached constants, grid convolutions, patches."""

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
"""The next frames, standardised like the input."""
Vector = Float[Tensor, "b q"] | None
"""``FieldSpec.encode_parameters``: at most 16, missing ones are zero, NaN means unknown."""
Mask = Tensor | None
"""Nonzero at known points: (y, x), (b, y, x) or (b, 1, y, x); None: all points are known."""
Tokens = Float[Tensor, "b n d"]
Parameters = Float[Tensor, "b 16"]
"""The complete parameter vector, zero where unknown."""


def constant(function: Callable[Arguments, Tensor]) -> Callable[Arguments, Tensor]:
    """Cache the tensors that a function returns; a captured graph computes them instead.

    Module buffers would not do: they follow the model's precision, and phases rounded to float32
    or bfloat16 cannot be made exact again.
    """
    cached = lru_cache(maxsize=64)(function)

    @wraps(function)
    def look_up(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Tensor:
        if torch.compiler.is_compiling():
            return function(*args, **kwargs)
        # Outside any inference mode, so that later calls can differentiate through them.
        with torch.inference_mode(False):
            return cached(*args, **kwargs)  # type: ignore[arg-type]

    return look_up


def count(start: int, stop: int, step: int = 1, *, device: torch.device) -> Tensor:
    """Return integers as float64: exact, and without index arithmetic that compilers fail on."""
    return torch.arange(start, stop, step, dtype=torch.float64, device=device)


def count_coordinates(grid: Grid) -> int:
    """Return the number of channels of ``point_coordinates``."""
    return 2 + grid.periodic_x + grid.periodic_y


def point_coordinates(
    grid: Grid, shape: tuple[int, int], like: Tensor, *, start: float = 0.0
) -> Float[Tensor, "1 k y x"]:
    """Return the coordinates of the cell centres that every model gets, of x, then of y.

    On an axis between two sides the coordinate runs from ``start`` to 1. On a periodic axis it
    is an angle from -pi to pi, given as cosine and sine, which have no seam.

    Args:
        grid: Says which axes are periodic.
        shape: Rows and columns, also other ones than those of the grid.
        like: Has the type and the device of the result.
        start: 0 or -1. A first layer absorbs the difference; saved models depend on it.
    """
    periodic = (grid.periodic_y, grid.periodic_x)
    return _coordinates(periodic, shape, start, like.dtype, like.device)


@constant
def _coordinates(
    periodic: tuple[bool, bool],
    shape: tuple[int, int],
    start: float,
    dtype: torch.dtype,
    device: torch.device,
) -> Float[Tensor, "1 k y x"]:
    y, x = ((count(0, size, device=device) + 0.5) / size for size in shape)
    channels: list[Tensor] = []
    for place, is_periodic in ((x, periodic[1]), (y[:, None], periodic[0])):
        angle = torch.pi * (2 * place - 1)
        between = start + (1 - start) * place
        channels += (angle.cos(), angle.sin()) if is_periodic else (between,)
    return torch.stack([channel.expand(shape) for channel in channels])[None].to(dtype)


def full_precision(x: Tensor) -> Tensor:
    """Return half-precision tensors as float32 and others unchanged."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def is_captured(x: Tensor) -> bool:
    """Return whether a graph is being captured, which cannot branch on values."""
    if torch.compiler.is_compiling():
        return True
    return x.is_cuda and torch.cuda.is_current_stream_capturing()


def make_mlp(width: int, hidden: int, out: int | None = None) -> nn.Sequential:
    """Return two linear layers with GELU between them."""
    return nn.Sequential(nn.Linear(width, hidden), nn.GELU(), nn.Linear(hidden, out or width))


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
    """Extend a periodic field by ``reach`` points at both ends of an axis of any length."""
    n = x.shape[dim]
    if reach > n:
        turns = -(-reach // n)
        return torch.cat([x] * (2 * turns + 1), dim).narrow(dim, turns * n - reach, n + 2 * reach)
    return torch.cat((x.narrow(dim, n - reach, reach), x, x.narrow(dim, 0, reach)), dim)


def padded_to_multiple(x: Float[Tensor, "b c y x"], multiple: int) -> Float[Tensor, "b c v w"]:
    """Repeat the last row and column until both sizes are a multiple."""
    ny, nx = x.shape[-2:]
    if ny % multiple == 0 and nx % multiple == 0:
        return x
    return F.pad(x, (0, -nx % multiple, 0, -ny % multiple), mode="replicate")


def lattice_shape(shape: tuple[int, int], patch: int) -> tuple[int, int]:
    """Return the rows and columns of patches that cover a grid."""
    return -(-shape[0] // patch), -(-shape[1] // patch)


def to_patches(x: Float[Tensor, "b c y x"], patch: int) -> Float[Tensor, "b n v"]:
    """Return the values of every patch, ordered (channel, row, column)."""
    x = padded_to_multiple(x, patch)
    b, c, ny, nx = x.shape
    cells = x.reshape(b, c, ny // patch, patch, nx // patch, patch).permute(0, 2, 4, 1, 3, 5)
    return cells.reshape(b, (ny // patch) * (nx // patch), c * patch**2)


def from_patches(
    values: Float[Tensor, "b n v"], patch: int, shape: tuple[int, int]
) -> Float[Tensor, "b c y x"]:
    """Invert ``to_patches`` for a grid of the given shape."""
    b, _, size = values.shape
    rows, columns = lattice_shape(shape, patch)
    channels = size // patch**2
    cells = values.reshape(b, rows, columns, channels, patch, patch).permute(0, 3, 1, 4, 2, 5)
    field = cells.reshape(b, channels, rows * patch, columns * patch)
    return field[..., : shape[0], : shape[1]]


def resize_tokens(
    tokens: Tokens, shape: tuple[int, int], wanted: tuple[int, int], mode: str = "bicubic"
) -> Float[Tensor, "b m d"]:
    """Interpolate tokens from a lattice of one shape to one of another."""
    if shape == wanted:
        return tokens
    lattice = tokens.mT.unflatten(-1, shape)
    return F.interpolate(lattice, wanted, mode=mode, align_corners=False).flatten(2).mT


class Positions(nn.Module):
    """A learned vector for every site of a token lattice, interpolated to other lattices."""

    def __init__(self, shape: tuple[int, int], width: int) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.empty(*shape, width))
        nn.init.trunc_normal_(self.table, std=0.02)

    def forward(self, shape: tuple[int, int]) -> Float[Tensor, "n d"]:
        ny, nx, _ = self.table.shape
        return resize_tokens(self.table.flatten(0, 1)[None], (ny, nx), shape)[0]
