"""Flows in a box: periodic vortices, a driven channel, a lid-driven cavity."""

from collections.abc import Sequence

import torch

from pibert.fields import Boundary, Grid
from pibert.physics import exact
from pibert.solver.boundaries import Box, Side, make_links
from pibert.solver.cases.layout import grid_of, viscosity_of
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
            viscosity=viscosity_of(reynolds, float(columns), speed, dtype, device), scheme=scheme
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
    viscosity = viscosity_of(reynolds, float(cells), speed, dtype, device)
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
        grid=grid_of(shape, box, float(cells), (0.5, 0.5)),
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
            viscosity=viscosity_of(reynolds, float(cells), speed, dtype, device), scheme=scheme
        ),
        links=make_links(shape, box, None, dtype, device),
        start=torch.zeros(len(reynolds), 9, *shape, dtype=dtype, device=device),
        cells=float(cells),
        speed=speed,
        grid=grid_of(shape, box, float(cells), (0.5, 0.5), window, None, coarsen),
        view=window,
        coarsen=coarsen,
    )
