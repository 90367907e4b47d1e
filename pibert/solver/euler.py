"""Compressible Euler equations of an ideal gas in a periodic box, by finite volumes.

The conserved variables (rho, rho u, rho v, E), E = p / (gamma - 1) + rho |u|^2 / 2, change by the
fluxes through the sides of a cell alone, so their totals are conserved to rounding. States at the
sides: the primitive variables (rho, u, v, p) with limited slopes (MUSCL, monotonised central); they
lie between those of neighbouring cells, so density and pressure are positive there. Fluxes: HLLC
(Toro, 2009) with Einfeldt's wave speeds. Time: Runge-Kutta of order 2, strong-stability preserving;
each sample takes its own steps, set anew by its fastest wave. Second order in smooth flow, first
order at shocks and contacts.

Units: the sound speed of the mean state is 1, with density 1 and pressure 1 / gamma.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from pibert.fields import Grid
from pibert.physics.families.euler import conserved_variables
from pibert.physics.spectral import random_field, random_velocity
from pibert.solver.periodic import PeriodicRecipe, Sample, States, Values, log_uniform
from pibert.solver.recipes import Range, Recipe, generator_of, uniform

COURANT = 0.5
"""Cells that the waves along x and y together cross in a time step."""
MOST_STEPS = 10_000
"""A sample that needs more steps between two frames has diverged."""

Gas = Float[Tensor, "b 4 y x"]
"""Density, velocity and pressure, or the conserved variables."""
Start = Literal["smooth", "shear", "riemann"]


def advance(fields: Gas, grid: Grid, gamma: Float[Tensor, " b"], time: float) -> Gas:
    """The primitive fields after some time; NaN in a sample that lost its positivity."""
    g = gamma[:, None, None]
    rho, u, v, p = fields.unbind(1)
    state = torch.stack(conserved_variables(rho, u, v, p, gamma), 1)
    left = torch.full_like(gamma, time)  # remaining time of each sample; NaN once it diverged
    for _ in range(MOST_STEPS):
        (active,) = (left > 0).nonzero(as_tuple=True)
        if not len(active):
            break
        now, left_now, g_now = state[active], left[active], g[active]
        primitive = primitive_of(now, g_now)
        step = torch.minimum(left_now, COURANT / _fastest_rate(primitive, grid, g_now))
        h = step[:, None, None, None]
        ahead = now + h * _rate(primitive, grid, g_now)
        ahead = ahead + h * _rate(primitive_of(ahead, g_now), grid, g_now)
        state[active] = (now + ahead) / 2
        left[active] = left_now - step
    state[left > 0] = math.nan
    return primitive_of(state, g)


def primitive_of(conserved: Gas, gamma: Float[Tensor, "b 1 1"]) -> Gas:
    """(rho, u, v, p); NaN where density or pressure are not positive."""
    rho, mu, mv, energy = conserved.unbind(1)
    u, v = mu / rho, mv / rho
    p = (gamma - 1) * (energy - (mu * u + mv * v) / 2)
    sound = (rho > 0) & (p > 0)
    return torch.stack((rho, u, v, torch.where(sound, p, math.nan)), 1)


def _fastest_rate(primitive: Tensor, grid: Grid, gamma: Tensor) -> Float[Tensor, " b"]:
    """Cells that waves along x and y together cross per time, where that is largest."""
    rho, u, v, p = primitive.unbind(1)
    c = torch.sqrt(gamma * p / rho)
    return ((u.abs() + c) / grid.dx + (v.abs() + c) / grid.dy).flatten(1).amax(1)


def _rate(primitive: Tensor, grid: Grid, gamma: Tensor) -> Gas:
    """Rate of change of the conserved variables: the fluxes into each cell."""
    change = torch.zeros_like(primitive)
    for dim, width, order in ((-1, grid.dx, (0, 1, 2, 3)), (-2, grid.dy, (0, 2, 1, 3))):
        left, right = _sides(primitive, dim)
        # For the flux, u is the velocity across the side.
        along = hllc([left[:, i] for i in order], [right[:, i] for i in order], gamma)
        flux = torch.stack([along[i] for i in order], 1)
        change -= flux.diff(dim=dim) / width
    return change


def _sides(f: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """The states left and right of all cell sides along an axis, from before the first cell on.

    The slope in a cell is the central difference, limited to twice either one-sided difference, and
    zero where these differ in sign.
    """
    size = f.shape[dim]
    wrapped = torch.cat((f.narrow(dim, size - 2, 2), f, f.narrow(dim, 0, 2)), dim)
    steps = wrapped.diff(dim=dim)
    behind, ahead = steps.narrow(dim, 0, size + 2), steps.narrow(dim, 1, size + 2)
    least = torch.maximum(behind, ahead).clamp_(max=0)
    most = torch.minimum(behind, ahead).clamp_(min=0)
    half = ((behind + ahead) / 4).clamp_(least, most)
    cells = wrapped.narrow(dim, 1, size + 2)
    left = (cells + half).narrow(dim, 0, size + 1)
    right = (cells - half).narrow(dim, 1, size + 1)
    return left, right


def hllc(
    left: Sequence[Float[Tensor, "b y x"]],
    right: Sequence[Float[Tensor, "b y x"]],
    gamma: Float[Tensor, "b 1 1"],
) -> tuple[Float[Tensor, "b y x"], ...]:
    """The flux of the conserved variables between two states (rho, u, v, p), u across the side."""
    slow, fast = _signal_speeds(left, right, gamma)
    (rho_l, u_l, _, p_l), (rho_r, u_r, _, p_r) = left, right
    mass_l, mass_r = rho_l * (slow - u_l), rho_r * (fast - u_r)
    contact = (p_r - p_l + mass_l * u_l - mass_r * u_r) / (mass_l - mass_r)

    # Only the state on the upwind side of the contact matters.
    behind = contact >= 0
    rho, u, v, p = (torch.where(behind, a, b) for a, b in zip(left, right, strict=True))
    signal, mass = torch.where(behind, slow, fast), torch.where(behind, mass_l, mass_r)
    energy = p / (gamma - 1) + rho * (u * u + v * v) / 2
    star = mass / (signal - contact)  # the density between contact and signal
    star_energy = star * (energy / rho + (contact - u) * (contact + p / mass))
    # A signal that moves away from the side does not change the flux.
    signal = torch.where(behind, signal.clamp(max=0), signal.clamp(min=0))
    change = signal * (star - rho)
    flow = rho * u
    return (
        flow + change,
        flow * u + p + signal * (star * contact - flow),
        (flow + change) * v,
        (energy + p) * u + signal * (star_energy - energy),
    )


def _signal_speeds(
    left: Sequence[Tensor], right: Sequence[Tensor], gamma: Tensor
) -> tuple[Tensor, Tensor]:
    """Bounds of the waves between two states: those of either state and of Roe's average."""
    (rho_l, u_l, v_l, p_l), (rho_r, u_r, v_r, p_r) = left, right
    c_l, c_r = torch.sqrt(gamma * p_l / rho_l), torch.sqrt(gamma * p_r / rho_r)
    share = 1 / (1 + torch.sqrt(rho_r / rho_l))
    u = share * u_l + (1 - share) * u_r
    jump = (u_l - u_r) ** 2 + (v_l - v_r) ** 2
    # Roe's average enthalpy less the kinetic energy of Roe's average velocity.
    c = torch.sqrt(
        share * c_l**2 + (1 - share) * c_r**2 + (gamma - 1) / 2 * share * (1 - share) * jump
    )
    return torch.minimum(u_l - c_l, u - c), torch.maximum(u_r + c_r, u + c)


@dataclass(frozen=True, kw_only=True)
class CompressibleEuler(PeriodicRecipe):
    """Channels rho, u, v, p. Samples cycle through the starts."""

    gamma: Range = (1.2, 1.67)
    mach: Range = (0.2, 0.8)
    """Speed of the first state over that of sound, drawn log-uniformly."""
    starts: tuple[Start, ...] = ("smooth", "shear", "riemann")
    """smooth: random eddies with this root mean square speed; shear: layers with this difference
    in speed that roll up (Kelvin-Helmholtz); riemann: rectangles of uniform states with up to this
    speed along x and y, whose sides emit shocks."""

    case = "euler"
    title = "Compressible flow in a periodic box"
    method = "finite volumes: MUSCL, HLLC, Runge-Kutta of order 2"
    channels = ("rho", "u", "v", "p")
    scalings = {"gamma": "linear", "mach": "log"}

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.gamma[0] > 1:
            raise ValueError(f"gamma must be above 1, found {self.gamma}")
        if not self.starts:
            raise ValueError(f"starts must be some of {', '.join(STARTS)}, found none")

    def draw(self, index: int) -> Sample:
        generator = generator_of(self.seed, index, self.case)
        start = self.starts[index % len(self.starts)]
        gamma, mach = uniform(generator, self.gamma), log_uniform(generator, self.mach)
        rho, u, v, p = STARTS[start](self.grid, generator, mach)
        fields = torch.stack((rho, u, v, p / gamma))
        return Sample({"gamma": gamma, "mach": mach}, fields, {"start": start})

    def advance(self, fields: States, parameters: Values) -> States:
        return advance(fields, self.grid, parameters["gamma"], self.interval)


def _smooth(grid: Grid, generator: torch.Generator, mach: float) -> tuple[Tensor, ...]:
    """Eddies of root mean square speed ``mach``; entropy and pressure vary by a fifth of it."""
    k0 = 2 * math.pi * 3 / (grid.shape[1] * grid.dx)

    def hills(k: Tensor) -> Tensor:
        return torch.exp(-((k / k0) ** 2))

    u, v = mach * random_velocity(grid, generator, lambda k: k**4 * torch.exp(-2 * (k / k0) ** 2))
    rho = torch.exp(0.2 * mach * random_field(grid, generator, hills))
    p = torch.exp(0.2 * mach * random_field(grid, generator, hills))
    return rho, u, v, p


def _shear(grid: Grid, generator: torch.Generator, mach: float) -> tuple[Tensor, ...]:
    """A band, twice as dense, that slides past the rest at speed ``mach``; waves disturb it."""
    x, y = grid.coordinates(torch.float64)
    x, y = x / (grid.shape[1] * grid.dx), y / (grid.shape[0] * grid.dy)
    thickness = uniform(generator, (0.02, 0.05))
    band = (torch.tanh((y - 0.25) / thickness) - torch.tanh((y - 0.75) / thickness)) / 2
    across = torch.zeros_like(x)  # the same for all y: free of divergence
    for waves in (1, 2, 3):
        across = across + torch.sin(2 * math.pi * (waves * x + uniform(generator, (0.0, 1.0))))
    rho = (1 + band) / 1.5
    return rho, mach * (band - 0.5), 0.05 * mach * across, torch.ones_like(rho)


def _riemann(grid: Grid, generator: torch.Generator, mach: float) -> tuple[Tensor, ...]:
    """Four rectangles of uniform states at a random position."""
    rows, columns = grid.shape
    states = torch.rand(4, 2, 2, dtype=torch.float64, generator=generator)
    shifts = [round(uniform(generator, (0.0, float(n)))) for n in (rows, columns)]
    sizes = [(n // 2, n - n // 2) for n in (rows, columns)]
    for axis, halves in zip((1, 2), sizes, strict=True):
        states = states.repeat_interleave(torch.tensor(halves), dim=axis)
    rho, u, v, p = states.roll(shifts, (1, 2))
    return 0.4 + 1.2 * rho, mach * (2 * u - 1), mach * (2 * v - 1), 0.3 + 1.4 * p


STARTS = {"smooth": _smooth, "shear": _shear, "riemann": _riemann}

PRESETS: dict[str, Recipe] = {
    "demo": CompressibleEuler(samples=12, interval=0.075),
    "standard": CompressibleEuler(samples=100, shape=(128, 128), frames=51, interval=0.04),
}
