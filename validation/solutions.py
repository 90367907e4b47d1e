"""The exact solution that the checks of the solver use.

A number t gives fields (y, x), a tensor (t,) of times gives (t, y, x), in float64. Wavelengths are
those of the grid's box, (columns * dx) by (rows * dy). ``tests/physics/exact.py`` has solutions of
the other families.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from pibert.physics.grid import Grid

Times = float | Tensor
Field = Float[Tensor, "*t y x"]
Pair = tuple[float, float]


def points(grid: Grid, t: Times) -> tuple[Tensor, Tensor, Tensor]:
    """Coordinates x, y as (y, x) and times that broadcast against them."""
    x, y = grid.coordinates(torch.float64)
    return x, y, torch.as_tensor(t, dtype=torch.float64)[..., None, None]


def wave_vector(grid: Grid, modes: tuple[int, int]) -> Pair:
    """Wave vector (kx, ky) with this many waves across the box."""
    rows, columns = grid.shape
    return (
        2 * math.pi * modes[0] / (columns * grid.dx),
        2 * math.pi * modes[1] / (rows * grid.dy),
    )


def taylor_green(
    grid: Grid,
    t: Times,
    viscosity: float,
    *,
    amplitude: float = 1.0,
    modes: tuple[int, int] = (1, 1),
    stream: Pair = (0.0, 0.0),
    density: float = 1.0,
) -> tuple[Field, Field, Field]:
    """(u, v, p) of decaying vortices in a periodic box, carried by a uniform stream.

    With the stream function -(A / ky) cos(kx X) cos(ky Y) exp(-nu k^2 t), X = x - stream t, an
    exact Navier-Stokes solution for any kx and ky.
    """
    x, y, time = points(grid, t)
    kx, ky = wave_vector(grid, modes)
    x, y = kx * (x - stream[0] * time), ky * (y - stream[1] * time)
    decay = amplitude * torch.exp(-viscosity * (kx**2 + ky**2) * time)
    u = stream[0] + decay * torch.cos(x) * torch.sin(y)
    v = stream[1] - decay * kx / ky * torch.sin(x) * torch.cos(y)
    p = -density * decay**2 / 4 * (torch.cos(2 * x) + (kx / ky) ** 2 * torch.cos(2 * y))
    return u, v, p
