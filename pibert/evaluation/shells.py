"""Shells of equal wave number in time and space, counted in waves per window.

The wave number of a wave with i periods in time, j along y and l along x is sqrt(i^2 + j^2 + l^2),
rounded down: a mixture of units, as RealPDEBench has it.
"""

from functools import lru_cache

import torch
from jaxtyping import Float, Int
from torch import Tensor

BANDS = ("low", "mid", "high")


@lru_cache(maxsize=8)
def shell_numbers(t: int, h: int, w: int, *, half: bool) -> Int[Tensor, "i j l"]:
    """The shell of every wave: of the lower half of each axis, or of all by their distance to 0."""
    axes = []
    for n in (t, h, w):
        index = torch.arange(n // 2 if half else n)
        axes.append(index if half else torch.minimum(index, n - index))
    i, j, l_ = torch.meshgrid(*axes, indexing="ij")
    # Exact: the root of a square in double precision is the whole number.
    return (i * i + j * j + l_ * l_).double().sqrt().floor().long()


def shell_sums(
    power: Float[Tensor, "sample t h w c"], shell: Int[Tensor, "i j l"]
) -> Float[Tensor, "sample k c"]:
    """Sums over the shells below half of the shortest axis."""
    i, j, l_ = shell.shape
    shells = min(power.shape[1:4]) // 2
    values = power[:, :i, :j, :l_].flatten(1, 3)
    places = shell.flatten().to(power.device).clamp(max=shells)  # the last collects the corners
    sums = power.new_zeros(len(power), shells + 1, power.shape[-1])
    return sums.index_add(1, places, values)[:, :shells]


def band_means(spectrum: Float[Tensor, "*draws k c"]) -> list[Float[Tensor, "*draws"]]:
    """Means over all shells and over their thirds, and over channels."""
    shells = spectrum.shape[-2]
    ends = [0, round(shells / 3), round(2 * shells / 3), shells]
    parts = [spectrum, *(spectrum[..., a:b, :] for a, b in zip(ends[:-1], ends[1:], strict=True))]
    return [part.mean((-2, -1)) for part in parts]
