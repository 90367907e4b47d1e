"""Waves in a periodic box: u_tt = c^2 lap u, exact in Fourier space for any interval.

A mode of frequency w = c |k| evolves as u(t) = u cos wt + u_t sin(wt) / w. The first state is a few
smooth hills and hollows at rest, each of which becomes a ring.
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor

from pibert.config import Count
from pibert.fields import Grid
from pibert.physics import spectral
from pibert.solver.periodic import (
    PeriodicRecipe,
    Sample,
    States,
    Values,
    bump,
    log_uniform,
    whole_number,
)
from pibert.solver.recipes import Range, Recipe, generator_of, uniform


def propagate(
    u: Float[Tensor, "b y x"],
    u_t: Float[Tensor, "b y x"],
    grid: Grid,
    speed: Float[Tensor, " b"],
    time: float,
) -> tuple[Float[Tensor, "b y x"], Float[Tensor, "b y x"]]:
    """Displacement and its rate after some time."""
    modes = spectral.modes_of(grid, u.device)
    frequency = speed[:, None, None] * modes.squared.sqrt()
    cosine, sine = torch.cos(frequency * time), torch.sin(frequency * time)
    drift = time * torch.sinc(frequency * (time / math.pi))  # sin(wt) / w, and t for the mean
    value, rate = torch.fft.rfft2(u), torch.fft.rfft2(u_t)
    return (
        modes.field(cosine * value + drift * rate),
        modes.field(cosine * rate - frequency * sine * value),
    )


@dataclass(frozen=True, kw_only=True)
class Wave(PeriodicRecipe):
    """Channels u, the displacement, and u_t, its rate."""

    speed: Range
    bumps: Count = 4
    """Largest number of hills and hollows in a sample."""
    width: Range = (0.03, 0.08)
    """Standard deviation of a hill, drawn log-uniformly."""

    case = "wave"
    title = "Waves in a periodic box"
    method = "exact in Fourier space"
    channels = ("u", "u_t")
    scalings = {"speed": "linear"}

    @property
    def family(self) -> str | None:
        return "wave-first-order"

    def draw(self, index: int) -> Sample:
        generator = generator_of(self.seed, index, self.case)
        speed = uniform(generator, self.speed)
        u = torch.zeros(self.shape, dtype=torch.float64)
        for _ in range(whole_number(generator, (1, self.bumps))):
            height = uniform(generator, (-1.0, 1.0))
            height += math.copysign(0.5, height)
            u = u + height * bump(self.grid, generator, log_uniform(generator, self.width))
        return Sample({"speed": speed}, torch.stack((u, torch.zeros_like(u))))

    def advance(self, fields: States, parameters: Values) -> States:
        u, u_t = fields.unbind(1)
        return torch.stack(propagate(u, u_t, self.grid, parameters["speed"], self.interval), 1)


PRESETS: dict[str, Recipe] = {
    "demo": Wave(samples=12, interval=0.02, speed=(0.5, 2.0)),
    "standard": Wave(samples=100, shape=(128, 128), frames=51, interval=0.02, speed=(0.5, 2.0)),
}
