"""Convolutions on a grid whose sides may be periodic, and grids made to fit a number of halvings.

A convolution here keeps the size of the field. Beyond a periodic side it sees the other end of the
field, beyond any other side zeros.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn

from pibert.fields import Grid


class GridConv2d(nn.Conv2d):
    """A convolution with an odd square kernel that keeps the size and knows the grid's sides.

    Args:
        in_channels: Channels in.
        out_channels: Channels out.
        size: Points along a side of the kernel, odd.
        grid: Says which sides are periodic.
        groups: As in ``nn.Conv2d``.
    """

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
