"""A stream that enters between two walls: an empty tube, and a dam on the bottom."""

from collections.abc import Sequence

import torch

from pibert.fields import Boundary
from pibert.solver.boundaries import Box, Shape, Side, inside, make_links
from pibert.solver.cases.layout import grid_of, viscosity_of, with_sponge
from pibert.solver.lattice import Fluid, Scheme, equilibrium
from pibert.solver.stepping import Case


def tube(
    reynolds: Sequence[float],
    *,
    cells: int = 32,
    length: float = 8.0,
    sponge: float = 1.0,
    coarsen: int = 1,
    speed: float = 0.1,
    scheme: Scheme = "trt",
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
) -> Case:
    """A uniform stream enters between two walls and becomes Poiseuille flow; D is their distance.

    Args:
        reynolds: One per sample, with the speed of the stream.
        cells: D in cells.
        length: Of the view, in D.
        sponge: Length of the layer behind the view in front of the outflow, in D.
        coarsen: Frames show means over so many by so many cells.
        speed: U in cells per step.
        scheme: See ``cylinder``.
        dtype: Of all arrays.
        device: Of all arrays.
    """
    return _channel_flow(
        "tube",
        reynolds,
        cells=float(cells),
        rows=cells,
        length=length,
        sponge=sponge,
        coarsen=coarsen,
        speed=speed,
        scheme=scheme,
        dtype=dtype,
        device=device,
    )


def dam(
    reynolds: Sequence[float],
    *,
    cells: int = 16,
    height: float = 4.0,
    length: float = 15.0,
    position: float = 5.0,
    width: float = 0.5,
    sponge: float = 3.0,
    coarsen: int = 1,
    speed: float = 0.1,
    scheme: Scheme = "regularised",
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
) -> Case:
    """A channel with a barrier on its bottom; D is the height of the barrier.

    Args:
        reynolds: One per sample, with the speed of the stream that enters.
        cells: D in cells.
        height: Of the channel, in D.
        length: Of the view, in D.
        position: From the inflow to the barrier, in D.
        width: Of the barrier along the stream, in D.
        sponge: Length of the layer behind the view in front of the outflow, in D.
        coarsen: Frames show means over so many by so many cells.
        speed: U in cells per step.
        scheme: See ``cylinder``.
        dtype: Of all arrays.
        device: Of all arrays.
    """
    body = barrier(position * cells - 0.5, width * cells, cells - 0.5)
    return _channel_flow(
        "dam",
        reynolds,
        body=body,
        cells=float(cells),
        rows=round(height * cells),
        length=length,
        sponge=sponge,
        coarsen=coarsen,
        speed=speed,
        scheme=scheme,
        dtype=dtype,
        device=device,
    )


def _channel_flow(
    name: str,
    reynolds: Sequence[float],
    *,
    body: Shape | None = None,
    cells: float,
    rows: int,
    length: float,
    sponge: float,
    coarsen: int,
    speed: float,
    scheme: Scheme,
    dtype: torch.dtype,
    device: str,
) -> Case:
    if not sponge > 0:
        raise ValueError(f"the sponge must have a positive length, found {sponge}")
    seen, columns = round(length * cells), round((length + sponge) * cells)
    shape = (rows, columns)
    stream, wall = (speed, 0.0), Side(Boundary.WALL)
    box = Box(Side(Boundary.INFLOW, stream), Side(Boundary.OUTFLOW, stream), wall, wall)
    viscosity = with_sponge(
        viscosity_of(reynolds, cells, speed, torch.float64, "cpu"),
        columns,
        cells,
        thick=speed * cells / 10,
        back=sponge,
    )
    solid = inside(shape, body)
    window = (slice(0, rows - rows % coarsen), slice(0, seen - seen % coarsen))
    stream_speed = torch.full((len(reynolds), *shape), speed, dtype=torch.float64)
    rest = torch.zeros_like(stream_speed)
    start = equilibrium(rest, stream_speed, rest)
    return Case(
        name=name,
        reynolds=torch.tensor(reynolds),
        fluid=Fluid(viscosity=viscosity.to(device, dtype), scheme=scheme),
        links=make_links(shape, box, body, dtype, device),
        start=start.to(device, dtype),
        cells=cells,
        speed=speed,
        grid=grid_of(shape, box, cells, (0.5, 0.5), window, body, coarsen),
        view=window,
        coarsen=coarsen,
        solid=None if body is None else solid.to(device),
    )


def barrier(x: float, width: float, top: float) -> Shape:
    """A rectangle that stands on the bottom, from x on, in cells."""
    return lambda a, b: torch.maximum((a - x - width / 2).abs() - width / 2, b - top)
