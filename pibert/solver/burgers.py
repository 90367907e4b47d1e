"""Burgers flow in a periodic box, pseudo-spectral: u_t + (u . grad) u = nu lap u.

Waves above two thirds of the resolved ones are zero at all times. Viscosity is integrated exactly
(integrating factor), the rest by the classical Runge-Kutta method of order 4. The first state is
the gradient of a potential with random phases and the power exp(-(k l)^2) with the length scale l,
and has a root mean square speed of 1. It steepens into fronts of the thickness nu / speed, which
the grid must resolve: a sample that needs too many steps has diverged.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Complex, Float
from torch import Tensor

from pibert.physics import spectral
from pibert.solver.periodic import PeriodicRecipe, Sample, States, Values, log_uniform
from pibert.solver.recipes import Range, Recipe, generator_of


def advance_velocity(
    velocity: Complex[Tensor, "b 2 ky kx"],
    modes: spectral.Modes,
    time: float,
    steps: int,
    viscosity: Float[Tensor, " b"],
) -> Complex[Tensor, "b 2 ky kx"]:
    """The spectrum of the velocity after some time, in equal steps."""
    step = time / steps
    half = torch.exp(-step / 2 * viscosity[:, None, None, None] * modes.squared)

    def rate(state: Tensor) -> Tensor:
        u, v = modes.field(state).unbind(1)
        along_x, along_y = modes.field(1j * torch.stack((modes.kx * state, modes.ky * state)))
        return modes.keep * torch.fft.rfft2(-u[:, None] * along_x - v[:, None] * along_y)

    for _ in range(steps):
        velocity = spectral.runge_kutta_step(velocity, rate, half, step)
    return velocity


@dataclass(frozen=True, kw_only=True)
class Burgers(PeriodicRecipe):
    """Channels u and v."""

    viscosity: Range
    """Drawn log-uniformly."""
    scale: Range = (0.06, 0.12)
    """Length scale of the first potential, drawn log-uniformly."""

    case = "burgers"
    title = "Burgers flow in a periodic box"
    method = "pseudo-spectral, 2/3 dealiased; integrating factor and Runge-Kutta of order 4"
    channels = ("u", "v")
    scalings = {"viscosity": "log"}

    def draw(self, index: int) -> Sample:
        generator = generator_of(self.seed, index, self.case)
        viscosity = log_uniform(generator, self.viscosity)
        scale = log_uniform(generator, self.scale)
        potential = spectral.random_field(
            self.grid, generator, lambda k: torch.exp(-((k * scale) ** 2))
        )
        modes, spectrum = spectral.modes_of(self.grid), torch.fft.rfft2(potential)
        start = modes.field(1j * torch.stack((modes.kx * spectrum, modes.ky * spectrum)))
        start = start / start.square().sum(0).mean().sqrt()
        return Sample({"viscosity": viscosity}, start, {"scale": scale})

    def advance(self, fields: States, parameters: Values) -> States:
        modes = spectral.modes_of(self.grid, fields.device)
        spectrum = modes.keep * torch.fft.rfft2(fields)
        steps = spectral.steps_needed(fields, self.grid, self.interval)
        later = spectral.in_groups(
            spectrum,
            steps,
            lambda members, count: advance_velocity(
                spectrum[members], modes, self.interval, count, parameters["viscosity"][members]
            ),
        )
        return modes.field(later)


PRESETS: dict[str, Recipe] = {
    "demo": Burgers(samples=12, interval=0.01, viscosity=(2e-2, 8e-2)),
    "standard": Burgers(
        samples=100, shape=(128, 128), frames=51, interval=0.01, viscosity=(1e-2, 4e-2)
    ),
}
