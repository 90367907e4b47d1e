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
    weights = _weights(x, spacing[1] / spacing[0])
    residual = torch.where(unknown, -_bend(guess, *weights), 0.0)
    direction, energy = residual, _sum(residual * residual)
    tiny = torch.finfo(x.dtype).tiny
    for _ in range(STEPS):
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


def _push_and_pull(x: Tensor, known: Tensor) -> Tensor:
    share = known[:, None].to(x.dtype)
    levels = [(x, share)]
    while max(levels[-1][0].shape[-2:]) > 1:
        value, share = levels[-1]
        # Averaged together: value is the mean over the known pixels times their share.
        both = torch.cat((value, share), dim=1)
        odd = (0, both.shape[-1] % 2, 0, both.shape[-2] % 2)
        both = F.avg_pool2d(F.pad(both, odd) if any(odd) else both, 2)
        levels.append((both[:, :-1], both[:, -1:]))
    value, share = levels.pop()
    filled = value / share.clamp(min=torch.finfo(x.dtype).eps)
    for value, share in reversed(levels):
        coarse = F.interpolate(filled, scale_factor=2.0, mode="bilinear", align_corners=False)
        coarse = coarse[..., : value.shape[-2], : value.shape[-1]]
        filled = torch.addcmul(value, 1 - share, coarse)
    return filled
