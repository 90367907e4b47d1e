"""A smooth guess at unknown pixels: what the reconstruction starts from.

A thin plate through the known pixels: the field of least bending energy

    sum f_xx^2 + 2 f_xy^2 + f_yy^2

with f_xx, f_yy from three pixels in a row and f_xy from the corners of a cell, free at the sides.
It is found by conjugate gradients on the unknown pixels, which stop after a fixed number of steps:
gaps of some ten pixels are then filled to a per cent, larger ones in part. They start from a push
and a pull: fields are averaged over their known pixels, 2 x 2 after 2 x 2, until one pixel is left;
then each level fills what it does not know from the coarser one, interpolated bilinearly.

Known pixels keep their values, and a constant field is filled exactly.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

STEPS = 24

Fields = Float[Tensor, "b c y x"]


def fill_smoothly(
    x: Fields, known: Bool[Tensor, "b y x"], spacing: tuple[float, float] = (1.0, 1.0)
) -> Fields:
    """The field with unknown pixels filled; zero where nothing at all is known.

    Args:
        x: Zero at unknown pixels.
        known: Where it is known.
        spacing: (dy, dx).
    """
    guess = _push_and_pull(x, known)
    if min(x.shape[-2:]) < 3:
        return guess
    unknown = ~known[:, None]
    dy, dx = spacing
    # In units of sqrt(dx dy): f_yy, f_xx times these; f_xy has none.
    factors = dx / dy, dy / dx
    residual = torch.where(unknown, -_bend(guess, factors), 0.0)
    direction, energy = residual, _sum(residual * residual)
    for _ in range(STEPS):
        bent = torch.where(unknown, _bend(direction, factors), 0.0)
        step = _ratio(energy, _sum(direction * bent))
        guess = guess + step * direction
        residual = residual - step * bent
        last, energy = energy, _sum(residual * residual)
        direction = residual + _ratio(energy, last) * direction
    return guess


def _bend(f: Tensor, factors: tuple[float, float]) -> Tensor:
    """The gradient of half the bending energy."""
    along_y, along_x = factors
    yy = (f[..., 2:, :] + f[..., :-2, :]).sub_(f[..., 1:-1, :], alpha=2) * along_y**2
    xx = (f[..., :, 2:] + f[..., :, :-2]).sub_(f[..., :, 1:-1], alpha=2) * along_x**2
    slope = f[..., 1:, :] - f[..., :-1, :]
    xy = 2 * (slope[..., :, 1:] - slope[..., :, :-1])
    # Each difference is laid back on the pixels that it was made of.
    total = F.pad(yy, (0, 0, 2, 0)) + F.pad(yy, (0, 0, 0, 2))
    total.sub_(F.pad(yy, (0, 0, 1, 1)), alpha=2)
    total.add_(F.pad(xx, (2, 0))).add_(F.pad(xx, (0, 2))).sub_(F.pad(xx, (1, 1)), alpha=2)
    back = F.pad(xy, (1, 0)) - F.pad(xy, (0, 1))
    return total.add_(F.pad(back, (0, 0, 1, 0))).sub_(F.pad(back, (0, 0, 0, 1)))


def _sum(f: Tensor) -> Tensor:
    """Over a field, (b, c, 1, 1)."""
    return f.sum((-2, -1), keepdim=True)


def _ratio(above: Tensor, below: Tensor) -> Tensor:
    """Zero where there is nothing left to do."""
    return torch.where(below > 0, above / below, 0.0)


def _push_and_pull(x: Tensor, known: Tensor) -> Tensor:
    share = known[:, None].to(x.dtype)
    levels = [(x, share)]
    while max(levels[-1][0].shape[-2:]) > 1:
        value, share = levels[-1]
        # Averaged together: value is the mean over the known pixels times their share.
        both = torch.cat((value, share), dim=1)
        both = F.pad(both, (0, both.shape[-1] % 2, 0, both.shape[-2] % 2))
        both = F.avg_pool2d(both, 2)
        levels.append((both[:, :-1], both[:, -1:]))
    value, share = levels.pop()
    filled = value / share.clamp(min=torch.finfo(x.dtype).eps)
    for value, share in reversed(levels):
        coarse = F.interpolate(filled, scale_factor=2.0, mode="bilinear", align_corners=False)
        filled = value + (1 - share) * coarse[..., : value.shape[-2], : value.shape[-1]]
    return filled
