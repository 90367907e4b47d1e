"""Flows with exact solutions, for the checks of the solver."""

from collections.abc import Sequence

import torch

from pibert.fields import Boundary, Grid
from pibert.solver.boundaries import Box, Side
from pibert.solver.lattice import Scheme, equilibrium
from pibert.solver.lattice_recipe import build_case, viscosity_of
from pibert.solver.stepping import Case
from validation import solutions


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
    grid = Grid.periodic(shape, dx=1 / shape[1], dy=1 / shape[1])
    u, v, p = (field.to(device, dtype)[None] for field in solutions.taylor_green(grid, 0.0, 1.0))
    start = equilibrium(3 * speed**2 * p, speed * u, speed * v)
    return build_case(
        "taylor_green",
        reynolds,
        Box.periodic(),
        start=start.expand(len(reynolds), -1, -1, -1).contiguous(),
        cells=float(shape[1]),
        speed=speed,
        origin=(0.0, 0.0),
        scheme=scheme,
        dtype=dtype,
        device=device,
    )


def channel(
    reynolds: Sequence[float],
    *,
    cells: int = 32,
    columns: int = 8,
    speed: float = 0.05,
    scheme: Scheme = "trt",
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
) -> Case:
    """Flow between walls, driven from rest by a body force; D is their distance.

    The force gives the steady flow the speed U on the centre line.
    """
    wall, ends = Side(Boundary.WALL), Side(Boundary.PERIODIC)
    push = 8 * viscosity_of(reynolds, float(cells), speed, dtype, device) * speed / cells**2
    return build_case(
        "channel",
        reynolds,
        Box(ends, ends, wall, wall),
        start=torch.zeros(len(reynolds), 9, cells, columns),
        cells=float(cells),
        speed=speed,
        scheme=scheme,
        force=torch.stack((push, torch.zeros_like(push))),
        dtype=dtype,
        device=device,
    )
