"""Exact solutions of the PDE families, and a vortex street, for tests.

Each function evaluates a solution at the points of a ``Grid``, as ``validation.solutions`` does.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from pibert.fields import Grid
from validation.solutions import Pair, Times, points, taylor_green, wave_vector

__all__ = ["taylor_green"]

Field = Float[Tensor, "*t y x"]
GAMMA = 1.4
"""Ratio of specific heats of air."""


def travelling_wave(
    grid: Grid,
    t: Times,
    speed: float,
    *,
    modes: tuple[int, int] = (1, 0),
) -> tuple[Field, Field]:
    """(u, u_t) of the plane wave cos(k . x - c |k| t) in a periodic box."""
    x, y, time = points(grid, t)
    kx, ky = wave_vector(grid, modes)
    frequency = speed * math.hypot(kx, ky)
    phase = kx * x + ky * y - frequency * time
    return torch.cos(phase), frequency * torch.sin(phase)


def standing_wave(
    grid: Grid,
    t: Times,
    speed: float,
    *,
    modes: tuple[int, int] = (1, 1),
) -> tuple[Field, Field]:
    """(u, u_t) of cos(kx x) cos(ky y) cos(c |k| t) in a periodic box."""
    x, y, time = points(grid, t)
    kx, ky = wave_vector(grid, modes)
    frequency = speed * math.hypot(kx, ky)
    shape = torch.cos(kx * x) * torch.cos(ky * y)
    return shape * torch.cos(frequency * time), -frequency * shape * torch.sin(frequency * time)


def heat_mode(
    grid: Grid,
    t: Times,
    diffusivity: float,
    *,
    modes: tuple[int, int] = (1, 1),
) -> Field:
    """cos(kx x) cos(ky y) exp(-alpha k^2 t) in a periodic box."""
    x, y, time = points(grid, t)
    kx, ky = wave_vector(grid, modes)
    decay = torch.exp(-diffusivity * (kx**2 + ky**2) * time)
    return decay * torch.cos(kx * x) * torch.cos(ky * y)


def heat_kernel(
    grid: Grid,
    t: Times,
    diffusivity: float,
    *,
    centre: Pair = (0.0, 0.0),
) -> Field:
    """The unit point source after time t > 0 in the plane: exp(-r^2 / 4 alpha t) / 4 pi alpha t."""
    x, y, time = points(grid, t)
    width = 4 * diffusivity * time
    return torch.exp(-((x - centre[0]) ** 2 + (y - centre[1]) ** 2) / width) / (math.pi * width)


def burgers_mode(
    grid: Grid,
    t: Times,
    viscosity: float,
    *,
    modes: tuple[int, int] = (1, 1),
) -> tuple[Field, Field]:
    """(u, v) = -2 nu grad(phi) / phi with phi = 1 + cos(kx x) cos(ky y) exp(-nu k^2 t) / 2.

    Cole and Hopf: where phi obeys the heat equation, this obeys the Burgers equation.
    """
    x, y, time = points(grid, t)
    kx, ky = wave_vector(grid, modes)
    decay = 0.5 * torch.exp(-viscosity * (kx**2 + ky**2) * time)
    scale = 2 * viscosity * decay / (1 + decay * torch.cos(kx * x) * torch.cos(ky * y))
    u = scale * kx * torch.sin(kx * x) * torch.cos(ky * y)
    return u, scale * ky * torch.cos(kx * x) * torch.sin(ky * y)


def fisher_front(
    grid: Grid,
    t: Times,
    diffusivity: float,
    growth: float,
    *,
    start: float = 0.0,
) -> Field:
    """The Fisher-KPP front of Ablowitz and Zeppetella (1979), at x = ``start`` when t = 0.

    It runs along +x with the speed 5 sqrt(D r / 6) and leaves u = 1 behind.
    """
    x, _, time = points(grid, t)
    ahead = (x - start) * math.sqrt(growth / diffusivity) - 5 / math.sqrt(6) * growth * time
    return (1 + torch.exp(ahead / math.sqrt(6))) ** -2


def isentropic_vortex(
    grid: Grid,
    t: Times,
    *,
    strength: float = 5.0,
    radius: float | None = None,
    stream: Pair = (1.0, 0.5),
) -> tuple[Field, Field, Field, Field]:
    """(rho, u, v, p) of a vortex carried through a periodic box: exact for the Euler equations.

    The vortex (Shu, 1998) starts in the middle of the box; rho = p = 1 far away. The default
    radius, 1/14 of the shorter side, makes its jump where the box closes smaller than 1e-10.
    """
    x, y, time = points(grid, t)
    rows, columns = grid.shape
    length, height = columns * grid.dx, rows * grid.dy
    radius = min(length, height) / 14 if radius is None else radius
    x = torch.remainder(x - grid.origin[0] - stream[0] * time, length) - length / 2
    y = torch.remainder(y - grid.origin[1] - stream[1] * time, height) - height / 2
    x, y = x / radius, y / radius
    swirl = strength / (2 * math.pi) * torch.exp((1 - x**2 - y**2) / 2)
    temperature = 1 - (GAMMA - 1) / (2 * GAMMA) * swirl**2
    rho = temperature ** (1 / (GAMMA - 1))
    return rho, stream[0] - y * swirl, stream[1] + x * swirl, rho * temperature


def vortex_street(
    grid: Grid,
    t: Times,
    *,
    spacing: float,
    circulation: float = 1.0,
    core: float | None = None,
) -> tuple[Field, Field]:
    """(u, v) of a von Karman street in a stream of speed 1: smooth and divergence-free.

    Two staggered endless rows of vortices along the middle of the grid, the upper one clockwise as
    behind a body. Each row is the exact periodic sum with the stream function
    -(Gamma / 4 pi) ln(cosh(2 pi y / a) - cos(2 pi x / a) + e), and e rounds off the cores. It is
    kinematic: the rows move as vortices do, but the cores do not diffuse.

    Args:
        grid: The view; periodic in x when its length is a multiple of the spacing.
        t: Time or times.
        spacing: Distance a of vortices in a row; the rows are 0.281 a apart (von Karman's ratio).
        circulation: Gamma of the lower row; the upper row has -Gamma.
        core: Radius of largest swirl; a tenth of the spacing by default.
    """
    x, y, time = points(grid, t)
    a, offset = spacing, math.pi * 0.281
    rounding = 2 * (math.pi * (a / 10 if core is None else core) / a) ** 2
    drift = 1 - circulation / (2 * a) * math.tanh(offset)
    x = 2 * math.pi / a * (x - grid.origin[0] - drift * time)
    y = 2 * math.pi / a * (y - grid.origin[1] - (grid.shape[0] - 1) * grid.dy / 2)
    u, v = torch.ones_like(x + y), torch.zeros_like(x + y)
    for sign, x_row, y_row in ((-1, x, y - offset), (1, x - math.pi, y + offset)):
        nearness = 1 / (torch.cosh(y_row) - torch.cos(x_row) + rounding)
        swirl = sign * circulation / (2 * a) * nearness
        u = u - swirl * torch.sinh(y_row)
        v = v + swirl * torch.sin(x_row)
    return u, v
