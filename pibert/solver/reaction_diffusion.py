"""Reaction-diffusion in a periodic box: Gray-Scott patterns and Fisher-KPP fronts.

    dc_i/dt = D_i lap c_i + f_i(c),  f as in ``pibert.physics.families.reaction_diffusion``

Diffusion is exact in Fourier space (integrating factor). The reaction is pointwise in space and is
integrated by the Runge-Kutta method of order 4, in equal steps no longer than ``step``.
"""

import math
from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from jaxtyping import Float
from torch import Tensor

from pibert.config import Count, Positive
from pibert.fields import Grid
from pibert.physics import spectral
from pibert.physics.families.reaction_diffusion import FISHER_KPP, GRAY_SCOTT, Reaction
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


def react_and_diffuse(
    species: Float[Tensor, "b c y x"],
    grid: Grid,
    reaction: Reaction,
    diffusivities: Sequence[Float[Tensor, " b"]],
    coefficients: Mapping[str, Float[Tensor, " b"]],
    time: float,
    steps: int,
) -> Float[Tensor, "b c y x"]:
    """The concentrations after some time."""
    modes = spectral.modes_of(grid, species.device)
    step = time / steps
    rates = torch.stack(tuple(diffusivities), 1)[..., None, None]
    half = torch.exp(-step / 2 * rates * modes.squared)
    factors = {name: value[:, None, None] for name, value in coefficients.items()}

    def rate(state: Tensor) -> Tensor:
        here = modes.field(state).unbind(1)
        return torch.fft.rfft2(torch.stack(reaction.production(here, factors), 1))

    state = torch.fft.rfft2(species)
    for _ in range(steps):
        state = spectral.runge_kutta_step(state, rate, half, step)
    return modes.field(state)


@dataclass(frozen=True, kw_only=True)
class ReactionDiffusion(PeriodicRecipe):
    """Shared by both reactions."""

    step: Positive
    """Longest time step."""
    bumps: Count = 12
    """Largest number of seeds in the first state; the smallest is a third of it."""
    width: Range = (0.03, 0.06)
    """Standard deviation of a seed, drawn log-uniformly."""

    case = "reaction-diffusion"
    method = "exact diffusion in Fourier space, integrating factor and Runge-Kutta of order 4"
    reaction: ClassVar[Reaction]
    diffusivities: ClassVar[tuple[str, ...]]

    @abstractmethod
    def draw_parameters(self, generator: torch.Generator) -> dict[str, float]: ...

    @abstractmethod
    def first_state(self, seeds: Float[Tensor, "y x"]) -> Float[Tensor, "c y x"]:
        """The concentrations for a field of seeds between 0 and 1."""

    def draw(self, index: int) -> Sample:
        generator = generator_of(self.seed, index, self.case)
        parameters = self.draw_parameters(generator)
        bare = torch.ones(self.shape, dtype=torch.float64)
        for _ in range(whole_number(generator, (max(1, self.bumps // 3), self.bumps))):
            bare = bare * (1 - bump(self.grid, generator, log_uniform(generator, self.width)))
        return Sample(parameters, self.first_state(1 - bare))

    def advance(self, fields: States, parameters: Values) -> States:
        return react_and_diffuse(
            fields,
            self.grid,
            self.reaction,
            [parameters[name] for name in self.diffusivities],
            {name: parameters[name] for name in self.reaction.coefficients},
            self.interval,
            math.ceil(self.interval / self.step),
        )


@dataclass(frozen=True, kw_only=True)
class GrayScott(ReactionDiffusion):
    """Channels a, the substrate, and b, which consumes it."""

    step: Positive = 1.0
    diffusivity_a: Range
    """Drawn log-uniformly."""
    ratio: Positive = 2.0
    """Diffusivity of a over that of b."""
    feed: Range
    kill: Range

    title = "Gray-Scott reaction-diffusion in a periodic box"
    channels = ("a", "b")
    scalings = {
        "diffusivity_a": "log",
        "diffusivity_b": "log",
        "feed": "linear",
        "kill": "linear",
    }
    reaction = GRAY_SCOTT
    diffusivities = ("diffusivity_a", "diffusivity_b")

    @property
    def family(self) -> str | None:
        return "gray-scott"

    def draw_parameters(self, generator: torch.Generator) -> dict[str, float]:
        diffusivity = log_uniform(generator, self.diffusivity_a)
        return {
            "diffusivity_a": diffusivity,
            "diffusivity_b": diffusivity / self.ratio,
            "feed": uniform(generator, self.feed),
            "kill": uniform(generator, self.kill),
        }

    def first_state(self, seeds: Float[Tensor, "y x"]) -> Float[Tensor, "c y x"]:
        return torch.stack((1 - 0.5 * seeds, 0.25 * seeds))


@dataclass(frozen=True, kw_only=True)
class FisherKPP(ReactionDiffusion):
    """Channel u, a population that spreads from seeds until it fills the box.

    The empty state is unstable: rounding errors grow like exp(growth t), and become visible in
    single precision where the box stays empty for longer than about 20 / growth.
    """

    step: Positive = 0.05
    diffusivity: Range
    """Drawn log-uniformly."""
    growth: Range

    title = "Fisher-KPP reaction-diffusion in a periodic box"
    channels = ("u",)
    scalings = {"diffusivity": "log", "growth": "linear"}
    reaction = FISHER_KPP
    diffusivities = ("diffusivity",)

    def draw_parameters(self, generator: torch.Generator) -> dict[str, float]:
        return {
            "diffusivity": log_uniform(generator, self.diffusivity),
            "growth": uniform(generator, self.growth),
        }

    def first_state(self, seeds: Float[Tensor, "y x"]) -> Float[Tensor, "c y x"]:
        return seeds[None]


PRESETS: dict[str, Recipe] = {
    "demo": GrayScott(
        samples=12,
        interval=50.0,
        diffusivity_a=(4e-5, 8e-5),
        feed=(0.026, 0.045),
        kill=(0.058, 0.062),
    ),
    "standard": GrayScott(
        samples=100,
        shape=(128, 128),
        frames=51,
        interval=40.0,
        diffusivity_a=(2e-5, 6e-5),
        feed=(0.026, 0.045),
        kill=(0.058, 0.062),
    ),
    "fisher-kpp": FisherKPP(
        samples=100,
        shape=(128, 128),
        frames=51,
        interval=0.1,
        bumps=6,
        diffusivity=(2e-4, 1e-3),
        growth=(1.0, 4.0),
    ),
}
