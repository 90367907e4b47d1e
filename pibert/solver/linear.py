"""Heat and waves, exact in Fourier space for any interval: in a periodic box, or open.

Heat, u_t = alpha lap u: every wave exp(i k . x) decays by exp(-alpha k^2 t). The first state has
random phases and the power exp(-(k l)^2) with the length scale l, mean square 1 and mean 0.

Waves, u_tt = c^2 lap u: a mode of frequency w = c |k| evolves as u(t) = u cos wt + u_t sin(wt) / w.
The first state is a few smooth hills and hollows at rest, each of which becomes a ring. With open
sides the frames show a part of a periodic box that is too large for a wave to come back into view.
"""

import math
from dataclasses import dataclass, field, replace

import torch
from jaxtyping import Float
from torch import Tensor

from pibert.config import ADDED, Count
from pibert.fields import Grid
from pibert.physics import spectral
from pibert.physics.grid import Sides
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
    open_sides: bool = field(default=False, metadata=ADDED)
    """Let the waves leave on all sides; they start in the middle half of the view."""

    case = "wave"
    title = "Waves in a periodic or open box"
    method = "exact in Fourier space"
    channels = ("u", "u_t")
    scalings = {"speed": "linear"}

    @property
    def family(self) -> str | None:
        return "wave-first-order"

    @property
    def grid(self) -> Grid:
        view = super().grid
        return replace(view, sides=Sides()) if self.open_sides else view

    @property
    def box(self) -> Grid:
        """The periodic box of the simulation, whose first rows and columns are the view."""
        view = super().grid
        if not self.open_sides:
            return view
        # The fastest wave must not come back, nor the foot of the widest hill.
        duration = (self.warm_up + self.frames - 1) * self.interval
        way = self.speed[1] * duration + 12 * self.width[1]
        rows, columns = self.shape
        larger = rows + math.ceil(way / view.dy), columns + math.ceil(way / view.dx)
        return Grid.periodic(larger, view.dx, view.dy)

    def shown(self, fields: States) -> Float[Tensor, "b c rows columns"]:
        rows, columns = self.shape
        return fields[..., :rows, :columns]

    def draw(self, index: int) -> Sample:
        generator = generator_of(self.seed, index, self.case)
        speed = uniform(generator, self.speed)
        u = torch.zeros(self.box.shape, dtype=torch.float64)
        for _ in range(whole_number(generator, (1, self.bumps))):
            height = uniform(generator, (-1.0, 1.0))
            height += math.copysign(0.5, height)
            u = u + height * self._hill(generator)
        return Sample({"speed": speed}, torch.stack((u, torch.zeros_like(u))))

    def _hill(self, generator: torch.Generator) -> Float[Tensor, "y x"]:
        width = log_uniform(generator, self.width)
        if not self.open_sides:
            return bump(self.box, generator, width)
        exponent = torch.zeros(self.box.shape, dtype=torch.float64)
        spacing = (self.box.dx, self.box.dy)
        for axis, position in enumerate(self.box.coordinates(torch.float64)):
            length = self.size[1 - axis]
            centre = uniform(generator, (length / 4, 3 * length / 4))
            whole = self.box.shape[1 - axis] * spacing[axis]
            distance = torch.remainder(position - centre + whole / 2, whole) - whole / 2
            exponent = exponent - (distance / width) ** 2 / 2
        return torch.exp(exponent)

    def advance(self, fields: States, parameters: Values) -> States:
        u, u_t = fields.unbind(1)
        return torch.stack(propagate(u, u_t, self.box, parameters["speed"], self.interval), 1)


HEAT_PRESETS: dict[str, Recipe] = {
    "demo": Heat(samples=12, interval=0.02, diffusivity=(1e-3, 1e-2)),
    "standard": Heat(
        samples=100, shape=(128, 128), frames=51, interval=0.01, diffusivity=(1e-3, 1e-2)
    ),
}
WAVE_PRESETS: dict[str, Recipe] = {
    "demo": Wave(samples=12, interval=0.02, speed=(0.5, 2.0)),
    "standard": Wave(samples=100, shape=(128, 128), frames=51, interval=0.02, speed=(0.5, 2.0)),
    # Waves that leave the view: what comes back from a side is an error of the model.
    "open": Wave(
        samples=100,
        group=8,
        shape=(128, 128),
        frames=51,
        interval=0.02,
        speed=(0.5, 2.0),
        open_sides=True,
    ),
}
