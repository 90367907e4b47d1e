"""Reaction-diffusion equations for one or more species c_i with diffusivities D_i.

reaction_diffusion:  dc_i/dt - D_i lap c_i - f_i(c) = 0, one component per species

Fisher-KPP:   f = r u (1 - u)
Gray-Scott:   f_a = -a b^2 + F (1 - a),  f_b = a b^2 - (F + k) b
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from pibert.physics.derivatives import Order, laplacian
from pibert.physics.families.family import (
    Coefficient,
    Coefficients,
    Family,
    Frames,
    Omission,
    Residuals,
    midpoint,
    spread,
    stacked,
)
from pibert.physics.grid import Grid
from pibert.physics.stepping import ORDER, step, step_in_box

REACTION_STEPS = 24
"""Sub-steps of a reaction, which is stiff only in time."""


@dataclass(frozen=True, kw_only=True)
class Reaction:
    """Local production of each species."""

    species: tuple[str, ...]
    coefficients: tuple[str, ...]
    production: Callable[[Sequence[Tensor], Mapping[str, Coefficient]], tuple[Tensor, ...]]
    """Maps concentrations and coefficients that multiply fields; a missing one counts as zero."""
    equation: str = "unknown"
    """As ``Family.equation``, with the diffusion."""
    symbols: Mapping[str, str] = field(default_factory=dict, compare=False)


def _fisher_kpp(species: Sequence[Tensor], k: Mapping[str, Coefficient]) -> tuple[Tensor, ...]:
    (u,) = species
    return (k.get("growth", 0.0) * u * (1 - u),)


def _gray_scott(species: Sequence[Tensor], k: Mapping[str, Coefficient]) -> tuple[Tensor, ...]:
    a, b = species
    feed, kill = k.get("feed", 0.0), k.get("kill", 0.0)
    conversion = a * b**2
    return feed * (1 - a) - conversion, conversion - (feed + kill) * b


FISHER_KPP = Reaction(
    species=("u",),
    coefficients=("growth",),
    production=_fisher_kpp,
    equation="ddt u = D Delta u + r u ( 1 - u )",
    symbols={"diffusivity": "D", "growth": "r"},
)
GRAY_SCOTT = Reaction(
    species=("a", "b"),
    coefficients=("feed", "kill"),
    production=_gray_scott,
    equation="ddt a = D a Delta a - a b b + F ( 1 - a ) & "
    "ddt b = D b Delta b + a b b - ( F + k ) b",
    symbols={"feed": "F", "kill": "k", "diffusivity_a": "D a", "diffusivity_b": "D b"},
)


class ReactionDiffusion(Family):
    """Term ``reaction_diffusion`` (one component per species).

    Coefficients: ``diffusivity`` for one species, ``diffusivity_<species>`` for several, and
    those of the reaction.
    """

    terms = ("reaction_diffusion",)
    diagnostic_names = ("negativity",)

    def diagnostics(
        self, fields: Frames, grid: Grid, *, dt: float | None, **coefficients: Coefficient
    ) -> dict[str, Tensor]:
        """Mean depth of the concentrations below zero."""
        depths = [(-fields[name]).clamp(min=0).mean((-3, -2, -1)) for name in self.channels]
        return {"negativity": torch.stack(depths).mean(0)}

    def __init__(self, name: str, reaction: Reaction) -> None:
        self.name, self.reaction, self.channels = name, reaction, reaction.species
        self.equation, self.symbols = reaction.equation, reaction.symbols
        several = len(self.channels) > 1
        self.diffusivities = tuple(
            f"diffusivity_{species}" if several else "diffusivity" for species in self.channels
        )
        self.coefficients = dict.fromkeys(self.diffusivities + reaction.coefficients, 0.0)

    def _residuals(
        self, fields: Frames, grid: Grid, dt: float | None, order: Order, factors: Coefficients
    ) -> Residuals:
        factors = {name: spread(value) for name, value in factors.items()}
        values, rates = zip(*(midpoint(fields[name], dt) for name in self.channels), strict=True)
        components = []
        production = self.reaction.production(values, factors)
        for c, rate, produced, name in zip(
            values, rates, production, self.diffusivities, strict=True
        ):
            residual = -produced if rate is None else rate - produced
            if name in factors:
                residual = residual - factors[name] * laplacian(c, grid, order)
            components.append(residual)
        return {"reaction_diffusion": torch.stack(components, dim=-3)}

    def omissible_terms(self, known: Collection[str], has_steps: bool) -> tuple[str, ...]:
        needs = {"reaction": self.diffusivities, "diffusion": self.reaction.coefficients}
        return tuple(term for term, names in needs.items() if set(names) <= set(known))

    def change_without(self, omission: Omission) -> dict[str, Tensor]:
        """Without reaction c_t = D lap c; without diffusion c_t = f(c)."""
        plan, grid, factors = omission.plan, omission.grid, omission.coefficients
        assert plan is not None
        before, now = (stacked(omission.fields, self.channels, frame) for frame in (-2, -1))
        local = {name: spread(factors.get(name, 0.0)) for name in self.reaction.coefficients}
        rates = [factors.get(name, 0.0) for name in self.diffusivities]
        rates = [r if isinstance(r, Tensor) else now.new_full((len(now),), r) for r in rates]
        spreading = torch.stack(rates, dim=1)[..., None, None]
        spreading = spreading * spread(omission.keep.get("diffusion", 1.0), 3)
        reacting = spread(omission.keep.get("reaction", 1.0), 3)

        def react(state: Tensor) -> Tensor:
            produced = self.reaction.production(state.unbind(1), local)
            return reacting * torch.stack(produced, dim=1)

        if grid.periodic_x and grid.periodic_y:
            later = step_in_box(before, react, spreading, grid, plan.dt, REACTION_STEPS)
        else:
            allowed, wrapped = plan.diffusion * spreading, plan.wrapped
            later = step(
                before,
                now,
                omission.known,
                lambda f: react(f) + allowed * laplacian(f, wrapped, ORDER),
                plan.at_least(REACTION_STEPS),
                slack=1.0,
            )
        return dict(zip(self.channels, (later - now).unbind(1), strict=True))
