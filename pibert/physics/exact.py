"""Exact and analytic flows, for tests, demonstrations and the validation of solvers.

Each function takes a ``Grid``, whose coordinates it is evaluated on, and a time t: a number gives
fields (y, x), a tensor (t,) of times gives (t, y, x); float64 unless asked otherwise. Periodic
solutions take their wavelengths from the grid's box, (columns * dx) by (rows * dy). The equations
are those of ``pibert.physics.families``.
"""

import math

import torch
from jaxtyping import Float
from torch import Tensor

from pibert.physics.grid import Grid

Times = float | Tensor
Field = Float[Tensor, "*t y x"]
Pair = tuple[float, float]


def _points(grid: Grid, t: Times, dtype: torch.dtype) -> tuple[Tensor, Tensor, Tensor]:
    """Coordinates x, y as (y, x) and times that broadcast against them."""
    x, y = grid.coordinates(dtype)
    return x, y, torch.as_tensor(t, dtype=dtype)[..., None, None]


def _wave_vector(grid: Grid, modes: tuple[int, int]) -> Pair:
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
    dtype: torch.dtype = torch.float64,
) -> tuple[Field, Field, Field]:
    """(u, v, p) of decaying vortices in a periodic box, carried by a uniform stream.

    With the stream function -(A / ky) cos(kx X) cos(ky Y) exp(-nu k^2 t), X = x - stream t, an
    exact Navier-Stokes solution for any kx and ky.
    """
    x, y, time = _points(grid, t, dtype)
    kx, ky = _wave_vector(grid, modes)
    x, y = kx * (x - stream[0] * time), ky * (y - stream[1] * time)
    decay = amplitude * torch.exp(-viscosity * (kx**2 + ky**2) * time)
    u = stream[0] + decay * torch.cos(x) * torch.sin(y)
    v = stream[1] - decay * kx / ky * torch.sin(x) * torch.cos(y)
    p = -density * decay**2 / 4 * (torch.cos(2 * x) + (kx / ky) ** 2 * torch.cos(2 * y))
    return u, v, p


def channel_flow(
    grid: Grid,
    t: Times,
    viscosity: float,
    *,
    speed: float = 1.0,
    dtype: torch.dtype = torch.float64,
) -> tuple[Field, Field, Field]:
    """(u, v, p) of steady Poiseuille flow along x between walls in the first and last row.

    ``speed`` is that on the centre line; density is 1 and p = 0 at x = 0.
    """
    x, y, time = _points(grid, t, dtype)
    height = (grid.shape[0] - 1) * grid.dy
    across = (y - grid.origin[1]) / height
    still = torch.zeros_like(x + time)
    u = still + 4 * speed * across * (1 - across)
    p = still - 8 * viscosity * speed / height**2 * x
    return u, still, p


def travelling_wave(
    grid: Grid,
    t: Times,
    speed: float,
    *,
    amplitude: float = 1.0,
    modes: tuple[int, int] = (1, 0),
    dtype: torch.dtype = torch.float64,
) -> tuple[Field, Field]:
    """(u, u_t) of the plane wave A cos(k . x - c |k| t) in a periodic box."""
    x, y, time = _points(grid, t, dtype)
    kx, ky = _wave_vector(grid, modes)
    frequency = speed * math.hypot(kx, ky)
    phase = kx * x + ky * y - frequency * time
    return amplitude * torch.cos(phase), amplitude * frequency * torch.sin(phase)


def standing_wave(
    grid: Grid,
    t: Times,
    speed: float,
    *,
    amplitude: float = 1.0,
    modes: tuple[int, int] = (1, 1),
    dtype: torch.dtype = torch.float64,
) -> tuple[Field, Field]:
    """(u, u_t) of A cos(kx x) cos(ky y) cos(c |k| t) in a periodic box."""
    x, y, time = _points(grid, t, dtype)
    kx, ky = _wave_vector(grid, modes)
    frequency = speed * math.hypot(kx, ky)
    shape = amplitude * torch.cos(kx * x) * torch.cos(ky * y)
    return shape * torch.cos(frequency * time), -frequency * shape * torch.sin(frequency * time)


def heat_mode(
    grid: Grid,
    t: Times,
    diffusivity: float,
    *,
    amplitude: float = 1.0,
    modes: tuple[int, int] = (1, 1),
    dtype: torch.dtype = torch.float64,
) -> Field:
    """A cos(kx x) cos(ky y) exp(-alpha k^2 t) in a periodic box."""
    x, y, time = _points(grid, t, dtype)
    kx, ky = _wave_vector(grid, modes)
    decay = amplitude * torch.exp(-diffusivity * (kx**2 + ky**2) * time)
    return decay * torch.cos(kx * x) * torch.cos(ky * y)


def heat_kernel(
    grid: Grid,
    t: Times,
    diffusivity: float,
    *,
    centre: Pair = (0.0, 0.0),
    dtype: torch.dtype = torch.float64,
) -> Field:
    """The unit point source after time t > 0 in the plane: exp(-r^2 / 4 alpha t) / 4 pi alpha t."""
    x, y, time = _points(grid, t, dtype)
    width = 4 * diffusivity * time
    return torch.exp(-((x - centre[0]) ** 2 + (y - centre[1]) ** 2) / width) / (math.pi * width)


def burgers_mode(
    grid: Grid,
    t: Times,
    viscosity: float,
    *,
    amplitude: float = 0.5,
    modes: tuple[int, int] = (1, 1),
    dtype: torch.dtype = torch.float64,
) -> tuple[Field, Field]:
    """(u, v) = -2 nu grad(phi) / phi with phi = 1 + A cos(kx x) cos(ky y) exp(-nu k^2 t), |A| < 1.

    Cole and Hopf: where phi obeys the heat equation, this obeys the Burgers equation.
    """
    x, y, time = _points(grid, t, dtype)
    kx, ky = _wave_vector(grid, modes)
    decay = amplitude * torch.exp(-viscosity * (kx**2 + ky**2) * time)
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
    dtype: torch.dtype = torch.float64,
) -> Field:
    """The Fisher-KPP front of Ablowitz and Zeppetella (1979), at x = ``start`` when t = 0.

    It runs along +x with the speed 5 sqrt(D r / 6) and leaves u = 1 behind.
    """
    x, _, time = _points(grid, t, dtype)
    ahead = (x - start) * math.sqrt(growth / diffusivity) - 5 / math.sqrt(6) * growth * time
    return (1 + torch.exp(ahead / math.sqrt(6))) ** -2


def isentropic_vortex(
    grid: Grid,
    t: Times,
    *,
    strength: float = 5.0,
    radius: float | None = None,
    stream: Pair = (1.0, 0.5),
    gamma: float = 1.4,
    dtype: torch.dtype = torch.float64,
) -> tuple[Field, Field, Field, Field]:
    """(rho, u, v, p) of a vortex carried through a periodic box: exact for the Euler equations.

    The vortex (Shu, 1998) starts in the middle of the box; rho = p = 1 far away. The default
    radius, 1/14 of the shorter side, makes its jump where the box closes smaller than 1e-10.
    """
    x, y, time = _points(grid, t, dtype)
    rows, columns = grid.shape
    length, height = columns * grid.dx, rows * grid.dy
    radius = min(length, height) / 14 if radius is None else radius
    x = torch.remainder(x - grid.origin[0] - stream[0] * time, length) - length / 2
    y = torch.remainder(y - grid.origin[1] - stream[1] * time, height) - height / 2
    x, y = x / radius, y / radius
    swirl = strength / (2 * math.pi) * torch.exp((1 - x**2 - y**2) / 2)
    temperature = 1 - (gamma - 1) / (2 * gamma) * swirl**2
    rho = temperature ** (1 / (gamma - 1))
    return rho, stream[0] - y * swirl, stream[1] + x * swirl, rho * temperature


def vortex_street(
    grid: Grid,
    t: Times,
    *,
    spacing: float | None = None,
    ratio: float = 0.281,
    circulation: float = 1.0,
    core: float | None = None,
    drift: float | None = None,
    stream: float = 1.0,
    dtype: torch.dtype = torch.float64,
) -> tuple[Field, Field]:
    """(u, v) of a von Karman street along the middle of the grid: smooth and divergence-free.

    Two staggered endless rows of vortices, the upper one clockwise as behind a body in a stream
    along +x. Each row is the exact periodic sum, with stream function
    -(Gamma / 4 pi) ln(cosh(2 pi y / a) - cos(2 pi x / a) + e), and e rounds off the cores. It is
    kinematic: the rows move as vortices do, but the cores do not diffuse.

    Args:
        grid: The view; periodic in x when its length is a multiple of the spacing.
        t: Time or times.
        spacing: Distance a of vortices in a row; half the grid's length without it.
        ratio: Distance of the rows over the spacing; 0.281 is von Karman's stable street.
        circulation: Gamma of the lower row; the upper row has -Gamma.
        core: Radius at which the swirl is largest; a tenth of the spacing without it.
        drift: Speed of the pattern; without it that of the vortices in the stream.
        stream: Speed of the uniform stream along x.
        dtype: Of the result.
    """
    x, y, time = _points(grid, t, dtype)
    rows, columns = grid.shape
    a = columns * grid.dx / 2 if spacing is None else spacing
    core = a / 10 if core is None else core
    if drift is None:
        drift = stream - circulation / (2 * a) * math.tanh(math.pi * ratio)
    rounding = 2 * (math.pi * core / a) ** 2
    x = 2 * math.pi / a * (x - grid.origin[0] - drift * time)
    y = 2 * math.pi / a * (y - grid.origin[1] - (rows - 1) * grid.dy / 2)
    offset = math.pi * ratio
    u, v = torch.full_like(x + y, stream), torch.zeros_like(x + y)
    for sign, x_row, y_row in ((-1, x, y - offset), (1, x - math.pi, y + offset)):
        nearness = 1 / (torch.cosh(y_row) - torch.cos(x_row) + rounding)
        swirl = sign * circulation / (2 * a) * nearness
        u = u - swirl * torch.sinh(y_row)
        v = v + swirl * torch.sin(x_row)
    return u, v
