"""Classic flows, ready to run: one Reynolds number per sample, everything else shared.

Frames come in units of a length D and a speed U, time in D/U; ``cells`` is D in cells and ``speed``
is U in cells per step, both alike for all samples, which differ by their viscosity U D / Re. The
error falls with cells^-2 and with (U / c_s)^2, the square of the Mach number; c_s = 0.577.

Cell centres are the grid points. Walls lie half a cell beyond the outermost centres.
"""

import math
from collections.abc import Sequence
from typing import Literal

import torch
from torch import Tensor

from pibert.fields import Boundary, Grid, Sides
from pibert.physics import exact
from pibert.solver.boundaries import Box, Shape, Side, inside, make_links
from pibert.solver.lattice import Fluid, Scheme, equilibrium
from pibert.solver.stepping import Case


def taylor_green(
    reynolds: Sequence[float],
    *,
    shape: tuple[int, int] = (64, 64),
    speed: float = 0.05,
    scheme: Scheme = "trt",
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
) -> Case:
    """Decaying vortices in a periodic box; D is its length along x, U the largest initial u."""
    rows, columns = shape
    grid = Grid.periodic(shape, dx=1 / columns, dy=1 / columns)
    u, v, p = (part.to(device, dtype)[None] for part in exact.taylor_green(grid, 0.0, 1.0))
    start = equilibrium(3 * speed**2 * p, speed * u, speed * v)
    return Case(
        name="taylor_green",
        reynolds=torch.tensor(reynolds),
        fluid=Fluid(
            viscosity=_viscosity(reynolds, float(columns), speed, dtype, device), scheme=scheme
        ),
        links=make_links(shape, Box.periodic(), None, dtype, device),
        start=start.expand(len(reynolds), -1, -1, -1).contiguous(),
        cells=float(columns),
        speed=speed,
        grid=grid,
    )


def channel(
    reynolds: Sequence[float],
    *,
    cells: int = 32,
    columns: int = 8,
    speed: float = 0.05,
    scheme: Scheme = "trt",
    magic: float = 3 / 16,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
) -> Case:
    """Flow between walls, driven from rest by a body force; D is their distance.

    The force is such that the steady flow has the speed U on the centre line.
    """
    shape = (cells, columns)
    wall, open_ends = Side(Boundary.WALL), Side(Boundary.PERIODIC)
    box = Box(open_ends, open_ends, wall, wall)
    viscosity = _viscosity(reynolds, float(cells), speed, dtype, device)
    push = 8 * viscosity * speed / cells**2
    return Case(
        name="channel",
        reynolds=torch.tensor(reynolds),
        fluid=Fluid(
            viscosity=viscosity,
            scheme=scheme,
            magic=magic,
            force=torch.stack((push, torch.zeros_like(push))),
        ),
        links=make_links(shape, box, None, dtype, device),
        start=torch.zeros(len(reynolds), 9, *shape, dtype=dtype, device=device),
        cells=float(cells),
        speed=speed,
        grid=_grid(shape, box, float(cells), (0.5, 0.5)),
    )


def cavity(
    reynolds: Sequence[float],
    *,
    cells: int = 64,
    coarsen: int = 1,
    speed: float = 0.1,
    scheme: Scheme = "trt",
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
) -> Case:
    """A square box of fluid at rest under a lid that moves along x; D is its side, U the lid's."""
    shape = (cells, cells)
    window = (slice(0, cells - cells % coarsen),) * 2
    wall = Side(Boundary.WALL)
    box = Box(wall, wall, wall, Side(Boundary.WALL, (speed, 0.0)))
    return Case(
        name="cavity",
        reynolds=torch.tensor(reynolds),
        fluid=Fluid(
            viscosity=_viscosity(reynolds, float(cells), speed, dtype, device), scheme=scheme
        ),
        links=make_links(shape, box, None, dtype, device),
        start=torch.zeros(len(reynolds), 9, *shape, dtype=dtype, device=device),
        cells=float(cells),
        speed=speed,
        grid=_grid(shape, box, float(cells), (0.5, 0.5), window, None, coarsen),
        view=window,
        coarsen=coarsen,
    )


def cylinder(
    reynolds: Sequence[float],
    *,
    cells: float = 16.0,
    domain: tuple[float, float] = (30.0, 20.0),
    upstream: float = 10.0,
    offset: float = 0.0,
    view: tuple[float, float, float, float] | None = (-2.0, 6.0, -2.0, 2.0),
    coarsen: int = 1,
    speed: float = 0.1,
    perturbation: float | Sequence[float] = 0.0,
    sides: Literal["slip", "far"] = "far",
    sponge: float = 3.0,
    scheme: Scheme = "trt",
    smagorinsky: float = 0.0,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
) -> Case:
    """A circular cylinder in a uniform stream along x; D is its diameter.

    The flow starts impulsively, from the potential flow around the body.

    Args:
        reynolds: One per sample.
        cells: The diameter in cells; need not be whole.
        domain: Length and width of the simulated domain in D. The width sets the blockage.
        upstream: From the inflow to the cylinder's centre, in D.
        offset: Of the centre from the middle of the domain along y, in D.
        view: (left, right, bottom, top) of what frames show, in D from the centre; None shows all.
        coarsen: Frames show means over so many by so many cells.
        speed: U in cells per step.
        perturbation: Largest speed, in U, of a vortex of radius D in the initial flow, one D
            behind the centre, for all samples or for each: shedding sets in early. Without it the
            flow stays symmetric.
        sides: ``far`` lets sound and displaced fluid pass through the bottom and top, as an outflow
            does; ``slip`` walls reflect both, which at these Mach numbers changes the lift.
        sponge: Length of the layer in front of the outflow, in D, in which the viscosity rises to
            that of Re = 10 so that vortices fade before they leave. A layer of one D at the inflow
            has it too: the stream is uniform there, and what a low viscosity lets grow is not.
        scheme: ``trt`` is the more accurate one; ``regularised`` stays stable at few cells and
            high Reynolds numbers.
        smagorinsky: The constant of the subgrid term, 0 for none.
        dtype: Of all arrays.
        device: Of all arrays.
    """
    if not sponge > 0:
        raise ValueError(f"the sponge must have a positive length, found {sponge}")
    columns, rows = (round(length * cells) for length in domain)
    shape = (rows, columns)
    centre_x, centre_y = upstream * cells - 0.5, offset * cells + (rows - 1) / 2
    body = circle(centre_x, centre_y, cells / 2)
    stream = (speed, 0.0)
    out = Side(Boundary.OUTFLOW, stream)
    side = Side(Boundary.SLIP) if sides == "slip" else out
    box = Box(Side(Boundary.INFLOW, stream), out, side, side)

    solid = inside(shape, body)
    viscosity = _with_sponge(
        _viscosity(reynolds, cells, speed, torch.float64, "cpu"),
        columns,
        cells,
        thick=speed * cells / 10,
        front=1.0,
        back=sponge,
    )
    left, right, bottom, top = (-1e6, 1e6, -1e6, 1e6) if view is None else view
    window = (
        _window(bottom, top, centre_y, cells, rows, coarsen),
        _window(left, right, centre_x, cells, columns, coarsen),
    )
    return Case(
        name="cylinder",
        reynolds=torch.tensor(reynolds),
        fluid=Fluid(viscosity=viscosity.to(device, dtype), scheme=scheme, smagorinsky=smagorinsky),
        links=make_links(shape, box, body, dtype, device),
        start=_potential_flow(
            shape, (centre_x, centre_y), cells, speed, perturbation, len(reynolds)
        ).to(device, dtype),
        cells=cells,
        speed=speed,
        grid=_grid(shape, box, cells, (-centre_x, -centre_y), window, body, coarsen),
        view=window,
        coarsen=coarsen,
        solid=solid.to(device),
    )


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
        None,
        float(cells),
        cells,
        length,
        sponge,
        coarsen,
        speed,
        scheme,
        dtype,
        device,
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
    rows = round(height * cells)
    return _channel_flow(
        "dam",
        reynolds,
        body,
        float(cells),
        rows,
        length,
        sponge,
        coarsen,
        speed,
        scheme,
        dtype,
        device,
    )


def _channel_flow(
    name: str,
    reynolds: Sequence[float],
    body: Shape | None,
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
    viscosity = _with_sponge(
        _viscosity(reynolds, cells, speed, torch.float64, "cpu"),
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
        grid=_grid(shape, box, cells, (0.5, 0.5), window, body, coarsen),
        view=window,
        coarsen=coarsen,
        solid=None if body is None else solid.to(device),
    )


def circle(x: float, y: float, radius: float) -> Shape:
    """A disc, in cells."""
    return lambda a, b: torch.hypot(a - x, b - y) - radius


def barrier(x: float, width: float, top: float) -> Shape:
    """A rectangle that stands on the bottom, from x on, in cells."""
    return lambda a, b: torch.maximum((a - x - width / 2).abs() - width / 2, b - top)


def _potential_flow(
    shape: tuple[int, int],
    centre: tuple[float, float],
    cells: float,
    speed: float,
    swirl: float | Sequence[float],
    samples: int,
) -> Tensor:
    """The potential flow around a cylinder, with a vortex of radius D one D behind its centre.

    It is what an impulsive start leaves at once. A uniform stream that meets the body would send
    out sound, which comes back from the sides of the domain and is in the force for long.
    """
    amplitude = torch.as_tensor(swirl, dtype=torch.float64).expand(samples)[:, None, None]
    y, x = torch.meshgrid(*(torch.arange(n, dtype=torch.float64) for n in shape), indexing="ij")
    along, across = (x - centre[0]) / cells, (y - centre[1]) / cells
    square = along**2 + across**2
    ratio = torch.where(square > 0.25, 0.25 / square, 0.0) / square.clamp(min=0.25)
    u = torch.where(square > 0.25, 1 - ratio * (along**2 - across**2), 0.0)
    v = -2 * ratio * along * across
    p = torch.where(square > 0.25, 0.5 * (1 - u**2 - v**2), 0.0)
    behind = along - 1
    around = amplitude * torch.exp(0.5 * (1 - behind**2 - across**2))
    u, v = u - around * across, v + around * behind
    return equilibrium(3 * speed**2 * p.expand_as(u), speed * u, speed * v)


def _with_sponge(
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


def _viscosity(
    reynolds: Sequence[float], cells: float, speed: float, dtype: torch.dtype, device: str
) -> Tensor:
    if not reynolds or min(reynolds) <= 0:
        raise ValueError(f"expected one or more positive Reynolds numbers, found {reynolds}")
    return (speed * cells / torch.tensor(reynolds, dtype=dtype, device=device))[:, None, None]


def _window(low: float, high: float, centre: float, cells: float, size: int, coarsen: int) -> slice:
    """The cells whose centres lie between two distances from a centre, given in D."""
    first = max(0, math.ceil(centre + low * cells))
    last = min(size, math.ceil(centre + high * cells))
    last -= (last - first) % coarsen
    if last - first < 1:
        raise ValueError(f"the view from {low} to {high} D shows no cell of the domain")
    return slice(first, last)


def _grid(
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
