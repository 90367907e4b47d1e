"""What solutions of a PDE family satisfy, measured on frames; ``Family.diagnostics`` uses it.

Waves: dispersion and reflection at a side. Concentrations: positivity, conservation, and the
maximum principle of diffusion.
"""

import math
from collections.abc import Sequence
from typing import Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from pibert.physics.derivatives import Order, ddx, ddy
from pibert.physics.families.family import Coefficient, spread
from pibert.physics.grid import Grid

Frames = Float[Tensor, "*batch t y x"]
Side = Literal["left", "right", "bottom", "top"]
SIDES: tuple[Side, ...] = ("left", "right", "bottom", "top")


class Dispersion(NamedTuple):
    """Angular frequency of every Fourier mode, in the layout of ``torch.fft.rfft2``."""

    wavenumber: Float[Tensor, "ky kx"]
    """Length |k| of the wave vector."""
    exact: Float[Tensor, "*batch ky kx"]
    """c |k|."""
    measured: Float[Tensor, "*batch ky kx"]
    """NaN for modes that hold no energy."""


def dispersion(
    frames: Frames, grid: Grid, dt: float, speed: Coefficient, floor: float = 1e-6
) -> Dispersion:
    """Measured frequency against c |k| of a wave field on a periodic box, three frames or more.

    In every Fourier mode a[n+1] - 2 a[n] + a[n-1] = -4 sin^2(w dt / 2) a[n] holds exactly for any
    mix of waves that travel both ways, so w is fitted by least squares over the frames. It is
    unique for w dt < pi. Modes with less than the share ``floor`` of the strongest mode's energy
    are not measured.
    """
    if not (grid.periodic_x and grid.periodic_y):
        raise ValueError("dispersion is measured on a doubly periodic grid only")
    if frames.shape[-3] < 3:
        raise ValueError(f"dispersion needs at least 3 frames, found {frames.shape[-3]}")
    ny, nx = frames.shape[-2:]
    kx = 2 * math.pi * torch.fft.rfftfreq(nx, grid.dx, dtype=frames.dtype, device=frames.device)
    ky = 2 * math.pi * torch.fft.fftfreq(ny, grid.dy, dtype=frames.dtype, device=frames.device)
    wavenumber = torch.hypot(ky[:, None], kx)
    modes = torch.fft.rfft2(frames)  # (*batch, t, ky, kx)
    now = modes[..., 1:-1, :, :]
    bend = modes[..., 2:, :, :] - 2 * now + modes[..., :-2, :, :]
    energy = now.abs().square().sum(-3)
    sine = (-(now.conj() * bend).real.sum(-3) / (4 * energy)).clamp(0, 1).sqrt()
    strong = energy > floor * energy.amax((-2, -1), keepdim=True)
    measured = torch.where(strong, 2 / dt * torch.asin(sine), math.nan)
    exact = (spread(speed) * wavenumber).expand_as(measured)
    return Dispersion(wavenumber, exact, measured)


def boundary_reflection(
    frames: Frames,
    grid: Grid,
    dt: float,
    speed: Coefficient,
    side: Side = "right",
    distance: int = 4,
    order: Order = 2,
) -> Float[Tensor, "*batch"]:
    """Share of the outgoing wave energy that comes back from a side: 0 open, 1 a hard wall.

    On a line ``distance`` points inside the side, with n pointing outwards, u_t - c u_n holds the
    outgoing wave and u_t + c u_n the incoming one. The ratio of their squares, summed over the line
    and all frames (three or more at equal intervals), is the energy reflection coefficient. The
    frames must cover the passage out and back. The split is exact at normal incidence; waves at the
    angle a to the normal count as reflected by at least ((1 - cos a) / (1 + cos a))^2.
    """
    if side not in SIDES:
        raise ValueError(f"side must be left, right, bottom or top, found {side!r}")
    if frames.shape[-3] < 3:
        raise ValueError(f"boundary_reflection needs at least 3 frames, found {frames.shape[-3]}")
    dim, derivative = (-1, ddx) if side in ("left", "right") else (-2, ddy)
    outward = 1 if side in ("right", "top") else -1
    index = frames.shape[dim] - 1 - distance if outward > 0 else distance
    u_t = (frames[..., 2:, :, :] - frames[..., :-2, :, :]).select(dim, index) / (2 * dt)
    u_n = outward * derivative(frames[..., 1:-1, :, :], grid, order).select(dim, index)
    c = spread(speed)
    incoming = (u_t + c * u_n).square().sum((-2, -1))
    outgoing = (u_t - c * u_n).square().sum((-2, -1))
    return incoming / outgoing


def positivity(concentration: Float[Tensor, "*batch y x"]) -> Float[Tensor, "*batch"]:
    """Mean depth below zero, which is zero for a valid concentration.

    Concentrations that start non-negative stay so, with any boundaries that let no negative
    concentration in.
    """
    return (-concentration).clamp(min=0).mean((-2, -1))


def species_conservation(species: Sequence[Frames], grid: Grid) -> Float[Tensor, "*batch t"]:
    """Change of the total amount of all species since the first frame, relative to that frame.

    Zero for periodic or no-flux sides if the reaction is conservative: diffusion alone, or species
    that turn into each other. Every point stands for an equal cell; cells of the grid's body do not
    count.
    """
    total = sum(species[1:], start=species[0])
    if grid.body is not None and grid.body.shape == total.shape[-2:]:
        total = torch.where(grid.body_on(total.device), 0.0, total)
    amount = total.sum((-2, -1))  # (*batch, t)
    scale = total[..., :1, :, :].abs().sum((-2, -1))
    return (amount - amount[..., :1]) / scale


def overshoot(field: Frames) -> Float[Tensor, "*batch"]:
    """How far values leave the range of the first frame, relative to that range.

    Zero for diffusion with periodic or no-flux sides: no new maximum or minimum appears.
    """
    first = field[..., 0, :, :]
    low, high = first.amin((-2, -1)), first.amax((-2, -1))
    above, below = field.amax((-3, -2, -1)) - high, low - field.amin((-3, -2, -1))
    return torch.maximum(above, below).clamp(min=0) / (high - low)
