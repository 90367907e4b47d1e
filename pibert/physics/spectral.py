"""Pseudo-spectral tools on a periodic box, and time steps of two-dimensional vorticity.

A field is a sum of waves exp(i (kx x + ky y)); spectra are laid out as ``torch.fft.rfft2`` gives
them. With the vorticity w = v_x - u_y and the stream function psi, lap psi = -w, the velocity is
u = psi_y, v = -psi_x, free of divergence by construction. A flow obeys

    w_t = (d_yy - d_xx)(u v) + d_xy (u^2 - v^2) + nu lap w - mu w + curl f

with viscosity nu, linear drag mu and force f. This form of -(u w_x + v w_y) takes four transforms
(Basdevant, 1983). Waves above two thirds of the resolved ones are zero at all times, so products
are free of aliases, and energy and enstrophy of a flow without viscosity, drag and force change by
the error of time stepping alone. Viscosity and drag are integrated exactly (integrating factor),
the rest by the classical Runge-Kutta method of order 4.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Complex, Float
from torch import Tensor

from pibert.physics.grid import Grid

Spectrum = Complex[Tensor, "*batch ky kx"]
"""In the layout of ``torch.fft.rfft2``."""
Power = Callable[[Float[Tensor, "ky kx"]], Float[Tensor, "ky kx"]]
"""A function of |k|."""
COURANT = 0.5
"""Largest share of a cell that the flow crosses in a time step; 1.35 is the limit of stability."""
MOST_STEPS = 10_000
"""A sample that needs more steps between two frames has diverged."""


@dataclass(frozen=True, eq=False)
class Modes:
    """The Fourier modes of a grid."""

    shape: tuple[int, int]
    kx: Float[Tensor, " kx"]
    ky: Float[Tensor, "ky 1"]
    keep: Bool[Tensor, "ky kx"]
    """False for the upper third of the modes, which products would alias."""

    @property
    def squared(self) -> Float[Tensor, "ky kx"]:
        return self.ky**2 + self.kx**2

    def field(self, spectrum: Spectrum) -> Float[Tensor, "*batch y x"]:
        return torch.fft.irfft2(spectrum, s=self.shape)


def modes_of(grid: Grid, device: torch.device | str = "cpu") -> Modes:
    rows, columns = grid.shape
    kx = torch.fft.rfftfreq(columns, 1 / columns, dtype=torch.float64, device=device)
    ky = torch.fft.fftfreq(rows, 1 / rows, dtype=torch.float64, device=device)[:, None]
    keep = (3 * kx.abs() < columns) & (3 * ky.abs() < rows)
    turn = 2 * math.pi
    return Modes(grid.shape, turn / (columns * grid.dx) * kx, turn / (rows * grid.dy) * ky, keep)


def on_grid(
    fields: Float[Tensor, "*batch y x"], shape: tuple[int, int]
) -> Float[Tensor, "*batch y2 x2"]:
    """Return periodic fields on another grid of the same box, by cutting or padding their waves."""
    (rows, columns), size = shape, tuple(fields.shape[-2:])
    if shape == size:
        return fields
    waves = torch.fft.rfft2(fields)
    other = waves.new_zeros(*waves.shape[:-2], rows, columns // 2 + 1)
    high, wide = min(rows, size[0]) // 2, min(columns, size[1]) // 2
    other[..., :high, :wide] = waves[..., :high, :wide]
    other[..., rows - high + 1 :, :wide] = waves[..., size[0] - high + 1 :, :wide]
    return torch.fft.irfft2(other, s=shape) * (rows * columns / (size[0] * size[1]))


def random_field(grid: Grid, generator: torch.Generator, power: Power) -> Float[Tensor, "y x"]:
    """Return a field with mean 0 and mean square 1 whose modes have random phases.

    ``power`` gives the square of a mode's amplitude as a function of |k| > 0, up to a factor.
    """
    modes = modes_of(grid)
    phases = torch.fft.rfft2(torch.randn(grid.shape, dtype=torch.float64, generator=generator))
    k = modes.squared.sqrt()
    k[0, 0] = 1.0
    amplitude = power(k).sqrt() * modes.keep
    amplitude[0, 0] = 0.0
    field = modes.field(amplitude * phases / phases.abs())
    return field / field.square().mean().sqrt()


def random_velocity(
    grid: Grid, generator: torch.Generator, spectrum: Power
) -> Float[Tensor, "2 y x"]:
    """Return a divergence-free velocity of rms speed 1 with a given kinetic energy spectrum.

    ``spectrum`` is the energy per |k|, up to a factor. A ring in the wave plane has 2 pi k times
    the energy of one mode, and a mode's vorticity is k times its velocity.
    """
    modes = modes_of(grid)
    vorticity = random_field(grid, generator, lambda k: k * spectrum(k))
    velocity = velocity_of(torch.fft.rfft2(vorticity), modes)
    return velocity / velocity.square().sum(0).mean().sqrt()


def velocity_of(vorticity: Spectrum, modes: Modes) -> Float[Tensor, "*batch 2 y x"]:
    """Return (u, v) with zero mean."""
    squared = modes.squared
    squared[0, 0] = 1.0
    stream = 1j * vorticity / squared
    return modes.field(torch.stack((modes.ky * stream, -modes.kx * stream), -3))


def vorticity_of(velocity: Float[Tensor, "*batch 2 y x"], modes: Modes) -> Spectrum:
    """Return the dealiased spectrum of v_x - u_y."""
    u, v = torch.fft.rfft2(velocity).unbind(-3)
    return 1j * modes.keep * (modes.kx * v - modes.ky * u)


def transport(vorticity: Spectrum, modes: Modes) -> Spectrum:
    """Return the spectrum of -(u w_x + v w_y)."""
    u, v = velocity_of(vorticity, modes).unbind(-3)
    stress, difference = torch.fft.rfft2(torch.stack((u * v, u * u - v * v))).unbind(0)
    kx, ky = modes.kx, modes.ky
    return modes.keep * ((kx * kx - ky * ky) * stress - kx * ky * difference)


def runge_kutta_step(
    state: Tensor, rate: Callable[[Tensor], Tensor], half: Tensor, step: float
) -> Tensor:
    """Advance dq/dt = L q + rate(q) by one step, exact in L; ``half`` is exp(L step / 2)."""
    first = rate(state)
    damped = half * state
    second = rate(damped + (step / 2) * half * first)
    third = rate(damped + (step / 2) * second)
    damped = half * damped
    fourth = rate(damped + step * half * third)
    return damped + (step / 6) * (half * (half * first + 2 * (second + third)) + fourth)


def advance_vorticity(
    vorticity: Complex[Tensor, "b ky kx"],
    modes: Modes,
    time: float,
    steps: int,
    *,
    viscosity: Float[Tensor, " b"],
    drag: float = 0.0,
    force: Complex[Tensor, "ky kx"] | None = None,
) -> Complex[Tensor, "b ky kx"]:
    """Advance the vorticity by a time in equal steps; ``force`` is the spectrum of curl f."""
    step = time / steps
    half = torch.exp(-step / 2 * (viscosity[:, None, None] * modes.squared + drag))

    def rate(state: Tensor) -> Tensor:
        change = transport(state, modes)
        return change if force is None else change + force

    for _ in range(steps):
        vorticity = runge_kutta_step(vorticity, rate, half, step)
    return vorticity


def steps_needed(
    velocity: Float[Tensor, "b 2 y x"], grid: Grid, time: float, gain: float = 0.0
) -> list[int]:
    """Return the steps that keep each sample within the Courant number; 0 if it diverged.

    ``gain`` is the speed that a force may add meanwhile. The numbers are 1, 2, 3, 4, 6, 8, 12, ...
    so that samples of similar speed advance together.
    """
    u, v = (velocity.abs() + gain).unbind(1)
    crossed = time * (u / grid.dx + v / grid.dy).flatten(1).amax(1)  # NaN spreads through amax
    return [_round_up(cells / COURANT) for cells in crossed.tolist()]


def in_groups(
    states: Complex[Tensor, "b *modes ky kx"],
    steps: list[int],
    advance: Callable[[list[int], int], Tensor],
) -> Complex[Tensor, "b *modes ky kx"]:
    """Advance samples of equal step count together; NaN for those of 0 steps."""
    later = torch.full_like(states, math.nan)
    for count in sorted(set(steps) - {0}):
        members = [i for i, n in enumerate(steps) if n == count]
        later[members] = advance(members, count)
    return later


def _round_up(least: float) -> int:
    if not least <= MOST_STEPS:
        return 0
    if least <= 1:
        return 1
    octave = 2 ** (math.ceil(math.log2(least)) - 1)
    return next(n for n in (octave * 3 // 2, octave * 2) if n >= least)
