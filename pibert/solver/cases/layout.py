"""What cases share: viscosity with sponges, the view and its grid."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from pibert.fields import Boundary, Grid, Sides
from pibert.solver.boundaries import Box, Shape


def with_sponge(
    thin: Tensor,
    columns: int,
    cells: float,
    *,
    thick: float,
    front: float = 0.0,
    back: float,
) -> Tensor:
    """Viscosity (b, 1, x) that rises towards the outflow, and the inflow, over lengths in D."""
    x = torch.arange(columns, dtype=torch.float64)
    depth = (x - (columns - 1 - back * cells)) / (back * cells)
    if front:
        depth = torch.maximum(depth, 1 - x / (front * cells))
    rise = depth.clamp(0, 1) ** 2
    return thin + (thin.clamp(min=thick) - thin) * rise


def viscosity_of(
    reynolds: Sequence[float], cells: float, speed: float, dtype: torch.dtype, device: str
) -> Tensor:
    if not reynolds or min(reynolds) <= 0:
        raise ValueError(f"expected one or more positive Reynolds numbers, found {reynolds}")
    return (speed * cells / torch.tensor(reynolds, dtype=dtype, device=device))[:, None, None]


def window_of(
    low: float, high: float, centre: float, cells: float, size: int, coarsen: int
) -> slice:
    """The cells whose centres lie between two distances from a centre, given in D."""
    first = max(0, math.ceil(centre + low * cells - 1e-6))
    last = min(size, math.ceil(centre + high * cells - 1e-6))
    last -= (last - first) % coarsen
    if last - first < 1:
        raise ValueError(f"the view from {low} to {high} D shows no cell of the domain")
    return slice(first, last)


def grid_of(
    shape: tuple[int, int],
    box: Box,
    cells: float,
    origin: tuple[float, float],
    window: tuple[slice, slice] | None = None,
    body: Shape | None = None,
    coarsen: int = 1,
) -> Grid:
    """The grid of a view in units of D; ``origin`` is that of the domain's first cell, in cells."""
    rows, columns = window or (slice(0, shape[0]), slice(0, shape[1]))
    whole = (
        columns.start == 0,
        columns.stop == shape[1],
        rows.start == 0,
        rows.stop == shape[0],
    )
    sides = (
        side.kind if is_edge else Boundary.OPEN for side, is_edge in zip(box, whole, strict=True)
    )
    # A point of the view lies in the middle of the cells it is the mean of.
    y, x = (
        torch.arange(cut.start, cut.stop, coarsen, dtype=torch.float64) + (coarsen - 1) / 2
        for cut in (rows, columns)
    )
    solid = None if body is None else body(*reversed(torch.meshgrid(y, x, indexing="ij"))) < 0
    return Grid(
        (len(y), len(x)),
        dx=coarsen / cells,
        dy=coarsen / cells,
        sides=Sides(*sides),
        body=solid,
        origin=((origin[0] + float(x[0])) / cells, (origin[1] + float(y[0])) / cells),
    )
