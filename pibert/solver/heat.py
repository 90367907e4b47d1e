"""Heat in a periodic box: u_t = alpha lap u, exact in Fourier space for any interval.

Every wave exp(i k . x) decays by exp(-alpha k^2 t). The first state has random phases and the
power exp(-(k l)^2) with the length scale l, mean square 1 and mean 0.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from pibert.fields import Grid
from pibert.physics import spectral
from pibert.solver.periodic import PeriodicRecipe, Sample, States, Values, log_uniform
from pibert.solver.recipes import Range, Recipe, generator_of


def diffuse(
    u: Float[Tensor, "b y x"], grid: Grid, diffusivity: Float[Tensor, " b"], time: float
) -> Float[Tensor, "b y x"]:
    """The field after some time."""
    modes = spectral.modes_of(grid, u.device)
    decay = torch.exp(-time * diffusivity[:, None, None] * modes.squared)
    return modes.field(decay * torch.fft.rfft2(u))


@dataclass(frozen=True, kw_only=True)
class Heat(PeriodicRecipe):
    """Channel u."""

    diffusivity: Range
    """Drawn log-uniformly."""
    scale: Range = (0.03, 0.06)
    """Length scale of the first state, drawn log-uniformly."""

    case = "heat"
    title = "Heat conduction in a periodic box"
    method = "exact in Fourier space"
    channels = ("u",)
    scalings = {"diffusivity": "log"}

    def draw(self, index: int) -> Sample:
        generator = generator_of(self.seed, index, self.case)
        diffusivity = log_uniform(generator, self.diffusivity)
        scale = log_uniform(generator, self.scale)
        start = spectral.random_field(
            self.grid, generator, lambda k: torch.exp(-((k * scale) ** 2))
        )
        return Sample({"diffusivity": diffusivity}, start[None], {"scale": scale})

    def advance(self, fields: States, parameters: Values) -> States:
        later = diffuse(fields[:, 0], self.grid, parameters["diffusivity"], self.interval)
        return later[:, None]


PRESETS: dict[str, Recipe] = {
    "demo": Heat(samples=12, interval=0.02, diffusivity=(1e-3, 1e-2)),
    "standard": Heat(
        samples=100, shape=(128, 128), frames=51, interval=0.01, diffusivity=(1e-3, 1e-2)
    ),
}
