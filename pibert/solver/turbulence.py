"""Turbulence in a periodic box, decaying or driven; pseudo-spectral.

The flow starts from eddies with random phases and the energy spectrum k^4 exp(-2 (k / k0)^2), which
peaks at k0 (``eddies`` of them fit the box along x), and a root mean square speed of 1. Samples
differ by their viscosity and their phases. Without a force the frames obey the family
``incompressible``. A Kolmogorov force (A sin(k y), 0) and a linear drag sustain the flow; no family
has these terms, so such frames name none.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from pibert.config import Positive
from pibert.physics import spectral
from pibert.solver.periodic import PeriodicRecipe, Sample, States, Values, log_uniform
from pibert.solver.recipes import Range, Recipe, generator_of


@dataclass(frozen=True, kw_only=True)
class Turbulence(PeriodicRecipe):
    """Channels u and v."""

    size: tuple[Positive, Positive] = (2 * math.pi, 2 * math.pi)
    viscosity: Range
    """Drawn log-uniformly."""
    eddies: Positive = 4.0
    force: float = 0.0
    """Amplitude A of the force; 0 lets the flow decay."""
    waves: int = 4
    """Waves of the force along y."""
    drag: float = 0.0
    """Rate of the linear drag."""

    case = "turbulence"
    title = "Two-dimensional turbulence in a periodic box"
    method = (
        "pseudo-spectral in vorticity, 2/3 dealiased; integrating factor and Runge-Kutta of order 4"
    )
    channels = ("u", "v")
    scalings = {"viscosity": "log"}

    @property
    def family(self) -> str | None:
        return None if self.force or self.drag else "incompressible"

    def draw(self, index: int) -> Sample:
        generator = generator_of(self.seed, index, self.case)
        viscosity = log_uniform(generator, self.viscosity)
        peak = 2 * math.pi * self.eddies / self.size[1]
        start = spectral.random_velocity(
            self.grid, generator, lambda k: k**4 * torch.exp(-2 * (k / peak) ** 2)
        )
        record = {"eddies": self.eddies}
        if self.force or self.drag:
            record |= {"force": self.force, "waves": self.waves, "drag": self.drag}
        return Sample({"viscosity": viscosity}, start, record)

    def advance(self, fields: States, parameters: Values) -> States:
        modes = spectral.modes_of(self.grid, fields.device)
        vorticity = spectral.vorticity_of(fields, modes)
        force = self._curl_of_force(modes) if self.force else None
        steps = spectral.steps_needed(
            fields, self.grid, self.interval, gain=abs(self.force) * self.interval
        )
        later = spectral.in_groups(
            vorticity,
            steps,
            lambda members, count: spectral.advance_vorticity(
                vorticity[members],
                modes,
                self.interval,
                count,
                viscosity=parameters["viscosity"][members],
                drag=self.drag,
                force=force,
            ),
        )
        return spectral.velocity_of(later, modes)

    def _curl_of_force(self, modes: spectral.Modes) -> Tensor:
        _, y = self.grid.coordinates(torch.float64, modes.kx.device)
        push = self.force * torch.sin(2 * math.pi * self.waves / self.size[0] * y)
        return spectral.vorticity_of(torch.stack((push, torch.zeros_like(push))), modes)


PRESETS: dict[str, Recipe] = {
    "demo": Turbulence(samples=12, interval=0.2, viscosity=(8e-3, 3e-2)),
    "standard": Turbulence(
        samples=100, shape=(128, 128), frames=51, interval=0.2, viscosity=(1.2e-3, 6e-3)
    ),
    "driven": Turbulence(
        samples=100,
        shape=(128, 128),
        frames=51,
        interval=0.2,
        warm_up=50,
        viscosity=(1.2e-3, 6e-3),
        force=0.5,
        drag=0.1,
    ),
}
