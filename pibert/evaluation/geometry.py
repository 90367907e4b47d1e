"""The location of a body, and the points at a boundary or near it, in each frame.

Locations are in cells, so that they index fields. Of several bodies the one farthest downstream is
located, since the wake is behind it; bodies are separate if a column without body points lies
between them. The diameter is the extent across the stream, from the lowest to the highest row; the
centre is that of the bounding box. A moving body is located in all frames at once, without waiting
for the device.
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from pibert.evaluation.measure import Frames
from pibert.fields import Grid


class BodyBox(NamedTuple):
    """The bounding box of a body in each frame; a single one for a body at rest."""

    present: Bool[Tensor, " t"]
    """Whether there is a body; the other members are valid only where there is one."""
    centre_x: Float[Tensor, " t"]
    """In cells."""
    centre_y: Float[Tensor, " t"]
    """In cells."""
    last_column: Int[Tensor, " t"]
    """The most downstream one with a point of the body."""
    diameter: Float[Tensor, " t"]
    """A length, in the unit of the grid's spacing."""


def body_of(frames: Frames) -> Bool[Tensor, "#t y x"]:
    """The body of each frame; a single mask for a body at rest, an empty one without a body."""
    if frames.body is None:
        return torch.zeros_like(frames.known[:1])
    # A mask that was expanded over the frames is the same in each of them.
    return frames.body[:1] if frames.body.stride(0) == 0 else frames.body


def locate(body: Bool[Tensor, "t y x"], grid: Grid) -> BodyBox:
    """The box of the body farthest downstream in each frame."""
    first, last = _last_run(body.any(-2))
    columns = torch.arange(body.shape[-1], device=body.device)
    lowest, highest = _extent((body & (columns >= first[:, None])[:, None]).any(-1))
    return BodyBox(
        present=body.flatten(1).any(-1),
        centre_x=(first + last).double() / 2,
        centre_y=(lowest + highest).double() / 2,
        last_column=last,
        diameter=(highest - lowest + 1).clamp(min=0).double() * grid.dy,
    )


def _extent(mask: Bool[Tensor, "t n"]) -> tuple[Int[Tensor, " t"], Int[Tensor, " t"]]:
    """The first and the last index that is true."""
    size = mask.shape[-1]
    index = torch.arange(size, device=mask.device)
    first = torch.where(mask, index, size).amin(-1)
    return first, torch.where(mask, index, -1).amax(-1)


def _last_run(mask: Bool[Tensor, "t n"]) -> tuple[Int[Tensor, " t"], Int[Tensor, " t"]]:
    """The first and the last index of the last run of true values."""
    last = _extent(mask)[1]
    index = torch.arange(mask.shape[-1], device=mask.device)
    gap = ~mask & (index < last[:, None])
    return _extent(gap)[1] + 1, last


def nearest_cell(position: Float[Tensor, " t"], size: int) -> Int[Tensor, " t"]:
    """The index of the nearest cell, the next one half-way between two, clipped to the grid."""
    return (position + 0.5).floor().long().clamp(0, size - 1)


def boundary_points(body: Bool[Tensor, "t y x"], grid: Grid) -> Bool[Tensor, "t y x"]:
    """A border of one point, and the points outside a body that share an edge with it.

    Periodic sides have no border, and a body there has neighbours across them.
    """
    mask = torch.zeros_like(body)
    if not grid.periodic_x:
        mask[..., 0] = mask[..., -1] = True
    if not grid.periodic_y:
        mask[:, 0] = mask[:, -1] = True
    for dim, periodic in ((1, grid.periodic_y), (2, grid.periodic_x)):
        for shift in (1, -1):
            neighbour = body.roll(shift, dim)
            if not periodic:
                neighbour.select(dim, 0 if shift == 1 else -1).fill_(False)
            mask = mask | neighbour
    return mask & ~body


def distance(body: Bool[Tensor, "t y x"], grid: Grid) -> Float[Tensor, "t y x"]:
    """Euclidean distance of every point to the nearest point of the body; infinite without one.

    Exact: the squared distance is a minimum over rows of minima along them.
    """
    squared = torch.where(body, 0.0, torch.inf).double()
    for dim, step, periodic in ((2, grid.dx, grid.periodic_x), (1, grid.dy, grid.periodic_y)):
        squared = _nearest_along(squared, dim, step, periodic)
    return squared.sqrt()


def _nearest_along(squared: Tensor, dim: int, step: float, periodic: bool) -> Tensor:
    """The least of squared distance at another point of a line plus that to this point."""
    size = squared.shape[dim]
    index = torch.arange(size, dtype=squared.dtype, device=squared.device)
    shape = [-1 if axis == dim else 1 for axis in range(3)]
    nearest = torch.full_like(squared, torch.inf)
    for other in range(size):
        gap = (index - other).abs()
        if periodic:
            gap = torch.minimum(gap, size - gap)
        along = (gap * step).square().view(shape)
        nearest = torch.minimum(nearest, squared.narrow(dim, other, 1) + along)
    return nearest
