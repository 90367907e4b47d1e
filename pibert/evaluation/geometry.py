"""The location of a body, and the points at a boundary or near it, in each frame.

Locations are in cells, column 0 and row 0 the first, so that they index fields. Of several bodies
the one farthest downstream is located, since the wake is behind it; bodies are separate where a
column has no point of any, so bodies side by side are one. The diameter is the extent across the
stream, from the lowest to the highest row; the centre is that of the bounding box. A moving body is
located in all frames at once, and nothing here waits for the device.
"""

from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from pibert.evaluation.measure import Frames
from pibert.fields import Grid


class Place(NamedTuple):
    """The bounding box of a body in each frame; of a body at rest, of one for all."""

    present: Bool[Tensor, " t"]
    """Whether there is a body; the rest means something only where there is."""
    centre_x: Float[Tensor, " t"]
    """In cells."""
    centre_y: Float[Tensor, " t"]
    """In cells."""
    last_column: Int[Tensor, " t"]
    """The most downstream one with a point of the body."""
    diameter: Float[Tensor, " t"]
    """A length, in the unit of the grid's spacing."""


def body_of(frames: Frames) -> Bool[Tensor, "#t y x"]:
    """The body of each frame; one for all where it rests, and an empty one where there is none."""
    if frames.body is None:
        return torch.zeros_like(frames.known[:1])
    # A mask that was expanded over the frames is the same in each of them.
    return frames.body[:1] if frames.body.stride(0) == 0 else frames.body


def locate(body: Bool[Tensor, "t y x"], grid: Grid) -> Place:
    """The place of the body farthest downstream in each frame."""
    first, last = _last_run(body.any(-2))
    columns = torch.arange(body.shape[-1], device=body.device)
    lowest, highest = _extent((body & (columns >= first[:, None])[:, None]).any(-1))
    return Place(
        present=body.flatten(1).any(-1),
        centre_x=(first + last).double() / 2,
        centre_y=(lowest + highest).double() / 2,
        last_column=last,
        diameter=(highest - lowest + 1).clamp(min=0).double() * grid.dy,
    )


def _extent(here: Bool[Tensor, "t n"]) -> tuple[Int[Tensor, " t"], Int[Tensor, " t"]]:
    """The first and the last place that is true."""
    size = here.shape[-1]
    places = torch.arange(size, device=here.device)
    first = torch.where(here, places, size).amin(-1)
    return first, torch.where(here, places, -1).amax(-1)


def _last_run(here: Bool[Tensor, "t n"]) -> tuple[Int[Tensor, " t"], Int[Tensor, " t"]]:
    """The first and the last place of the last run of true ones."""
    last = _extent(here)[1]
    places = torch.arange(here.shape[-1], device=here.device)
    gap = ~here & (places < last[:, None])
    return _extent(gap)[1] + 1, last


def nearest_cell(place: Float[Tensor, " t"], size: int) -> Int[Tensor, " t"]:
    """The cell that a place lies in, half-way ones the next, clipped to the grid."""
    return (place + 0.5).floor().long().clamp(0, size - 1)


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
    """The least of the squared distances at other places of a line and of the way there."""
    size = squared.shape[dim]
    places = torch.arange(size, dtype=squared.dtype, device=squared.device)
    shape = [-1 if axis == dim else 1 for axis in range(3)]
    nearest = torch.full_like(squared, torch.inf)
    for other in range(size):
        gap = (places - other).abs()
        if periodic:
            gap = torch.minimum(gap, size - gap)
        way = (gap * step).square().view(shape)
        nearest = torch.minimum(nearest, squared.narrow(dim, other, 1) + way)
    return nearest
