"""Square patches of a field as tokens, row by row, and learned positions on their lattice.

A grid that is no multiple of the patch is extended by repeating its last row and column, and what
comes back is cropped. On another lattice than their own the positions are interpolated.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn


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
