"""Windows whose newest frame comes from the governing equation without one of its terms.

With two frames or more, and a known time step, the last frame but one is stepped to the last:

    incompressible      pressure:   u_t = -(u . grad) u + nu lap u
                        advection:  u_t = nu lap u
                        diffusion:  the true last frame less the integral of nu lap u
    heat                diffusion:  u_t = 0
    wave                restoring:  u_tt = 0
    reaction-diffusion  reaction:   c_t = D lap c
                        diffusion:  c_t = f(c)
    euler               pressure:   rho_t = -div(rho u), u_t = -(u . grad) u,
                                    p_t = -u . grad p - gamma p div u

Incompressible flow known by one frame is moved along -(u . grad) u + nu lap u, without the pressure
that would keep it free of divergence, for as long as makes the change as large as asked for.

How frames are stepped: ``stepping``. In a periodic box reaction-diffusion is stepped in Fourier
space, diffusion exactly.
"""

from collections.abc import Mapping
from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from pibert import draws
from pibert.fields import PARAMETER_WIDTH, FieldSpec, Grid, Normalizer
from pibert.physics import find_family, where_defined
from pibert.physics.coefficients import known_coefficients
from pibert.physics.derivatives import divergence, gradient, laplacian
from pibert.physics.families import (
    Euler,
    Family,
    Heat,
    Incompressible,
    ReactionDiffusion,
    Wave,
)
from pibert.pretraining.stepping import ORDER, StepPlan, plan_steps, step, step_in_box

State = Float[Tensor, "b c y x"]
Keep = Mapping[str, Float[Tensor, " b"]]
"""For each term, 0 in the samples that go without it and 1 in the others."""
REACTION_STEPS = 24
"""Sub-steps of a reaction, which is stiff in time alone."""


class Omission:
    """Last frames without a term, for windows of one spec.

    Args:
        spec: Names the family.
        normalizer: Between standardised and physical units.
        history: Frames of a window.
        parameter_table: Standardised parameters of the training data, which tell how many sub-steps
            are needed.

    Raises:
        ValueError: Where no term can be left out, with the reason.
    """

    def __init__(
        self,
        spec: FieldSpec,
        normalizer: Normalizer,
        history: int,
        parameter_table: Float[Tensor, "n 16"] | None = None,
    ) -> None:
        if spec.family is None:
            raise ValueError("the field spec names no PDE family")
        self.family: Family = find_family(spec.family)
        missing = [name for name in self.family.channels if name not in spec.channels]
        if missing:
            raise ValueError(f"family {self.family.name!r} needs channels {missing}")
        self.spec, self.normalizer = spec, normalizer
        incompressible = isinstance(self.family, Incompressible)
        self.single = incompressible and (history < 2 or spec.dt is None)
        """Whether the last frame alone is changed, by an amount that is asked for."""
        if spec.dt is None and not self.single:
            raise ValueError("the time step is not known")
        table = torch.zeros(1, PARAMETER_WIDTH) if parameter_table is None else parameter_table
        coefficients = known_coefficients(self.family, spec, table)
        self.terms = self._terms(tuple(coefficients))
        """What is left out, each in its share of the samples."""
        if not self.terms:
            raise ValueError(f"the coefficients of {self.family.name!r} are not known")
        self._plan = None if self.single else self._make_plan(coefficients)

    def _terms(self, known: tuple[str, ...]) -> tuple[str, ...]:
        match self.family:
            case Incompressible():
                stepped = not self.single and "viscosity" in known
                return ("pressure", "advection", "diffusion") if stepped else ("pressure",)
            case ReactionDiffusion(diffusivities=spreading, reaction=reaction):
                needs = {"reaction": spreading, "diffusion": reaction.coefficients}
                return tuple(term for term, names in needs.items() if set(names) <= set(known))
            case Heat():
                return ("diffusion",)
            case Euler():
                return ("pressure",)
            case Wave():
                return ("restoring",)
        raise ValueError(f"no term of {self.family.name!r} can be left out")

    def _make_plan(self, coefficients: Mapping[str, Any]) -> StepPlan:
        """Sub-steps for the fastest of the training data."""
        dt, mean, std = self.spec.dt, self.normalizer.mean, self.normalizer.std
        assert dt is not None
        u, v = self.spec.velocity or (None, None)
        fastest = [0.0 if i is None else abs(mean[i]) + 2 * std[i] for i in (u, v)]
        spreading = [
            float(torch.as_tensor(value).max())
            for name, value in coefficients.items()
            if name.startswith(("viscosity", "diffusivity"))
        ]
        return plan_steps(self.spec.grid, dt, (fastest[0], fastest[1]), max(spreading, default=0.0))

    def change(
        self,
        frames: Float[Tensor, "b h c y x"],
        parameters: Float[Tensor, "b q"],
        known: Bool[Tensor, "b y x"],
        seeds: Int[Tensor, " b"],
    ) -> State:
        """What to add to the last standardised frame, zero where not known."""
        mean, std = self.normalizer.mean, self.normalizer.std
        physical = torch.stack(
            [frames[:, :, i] * std[i] + mean[i] for i in range(frames.shape[2])], dim=2
        )
        factors = known_coefficients(self.family, self.spec, parameters)
        lot = draws.whole(seeds, "omitted", len(self.terms))
        keep = {term: (lot != i).to(frames.dtype) for i, term in enumerate(self.terms)}
        match self.family:
            case Incompressible() if self.single:
                change = self._without_pressure(physical, factors, known)
            case Incompressible():
                change = self._incompressible(physical, factors, known, keep)
            case ReactionDiffusion():
                change = self._reaction_diffusion(physical, factors, known, keep)
            case Heat():
                change = physical[:, -2] - physical[:, -1]
            case Euler():
                change = self._euler(physical, factors, known)
            case _:
                change = self._wave(physical)
        scaled = torch.stack([change[:, i] / std[i] for i in range(change.shape[1])], dim=1)
        return torch.where(known[:, None], scaled, 0.0)

    def _places(self, *names: str) -> list[int]:
        return [self.spec.channels.index(name) for name in names]

    def _transport(self, velocity: Tensor, grid: Grid) -> Tensor:
        """-(u . grad) u."""
        along_x, along_y = gradient(velocity, grid, ORDER)
        return -(velocity[:, :1] * along_x + velocity[:, 1:] * along_y)

    def _without_pressure(
        self, frames: Tensor, factors: Mapping[str, Any], known: Tensor
    ) -> Tensor:
        places, grid = self._places("u", "v"), self.spec.grid
        viscosity = _column(factors.get("viscosity", 0.0))
        rate, _ = where_defined(
            lambda f: self._transport(f, grid) + viscosity * laplacian(f, grid, ORDER),
            _picked(frames[:, -1], places),
            known=known[:, None],
        )
        return _in_place(rate, places, frames[:, -1])

    def _incompressible(
        self, frames: Tensor, factors: Mapping[str, Any], known: Tensor, keep: Keep
    ) -> Tensor:
        assert self._plan is not None
        grid, places, plan = self.spec.grid, self._places("u", "v"), self._plan
        viscosity = _column(factors.get("viscosity", 0.0))
        carried, wrapped = _column(keep.get("advection", 1.0)), plan.wrapped
        before, now = _picked(frames[:, -2], places), _picked(frames[:, -1], places)
        stepped = step(
            before,
            now,
            known,
            lambda f: (
                carried * self._transport(f, wrapped)
                + plan.diffusion * viscosity * laplacian(f, wrapped, ORDER)
            ),
            plan,
        )
        change = stepped - now
        if "diffusion" in keep:
            # The mean of both frames is near the mean over the step.
            diffused, _ = where_defined(
                lambda f: viscosity * laplacian(f, grid, ORDER),
                (before + now) / 2,
                known=known[:, None],
            )
            change = torch.where(_column(keep["diffusion"]) > 0, change, -plan.dt * diffused)
        return _in_place(change, places, frames[:, -1])

    def _reaction_diffusion(
        self, frames: Tensor, factors: Mapping[str, Any], known: Tensor, keep: Keep
    ) -> Tensor:
        family, grid, plan = self.family, self.spec.grid, self._plan
        assert isinstance(family, ReactionDiffusion) and plan is not None
        places = self._places(*family.channels)
        before, now = _picked(frames[:, -2], places), _picked(frames[:, -1], places)
        local = {n: _column(factors.get(n, 0.0), 2) for n in family.reaction.coefficients}
        spreading = torch.stack(
            [_per_sample(factors.get(name, 0.0), now) for name in family.diffusivities], dim=1
        )[..., None, None] * _column(keep.get("diffusion", 1.0))
        reacting = _column(keep.get("reaction", 1.0))

        def react(state: Tensor) -> Tensor:
            made = family.reaction.production(state.unbind(1), local)
            return reacting * torch.stack(made, dim=1)

        if grid.periodic_x and grid.periodic_y:
            stepped = step_in_box(before, react, spreading, grid, plan.dt, REACTION_STEPS)
        else:
            allowed, wrapped = plan.diffusion * spreading, plan.wrapped
            stepped = step(
                before,
                now,
                known,
                lambda f: react(f) + allowed * laplacian(f, wrapped, ORDER),
                plan.at_least(REACTION_STEPS),
                slack=1.0,
            )
        return _in_place(stepped - now, places, frames[:, -1])

    def _euler(self, frames: Tensor, factors: Mapping[str, Any], known: Tensor) -> Tensor:
        assert self._plan is not None
        grid, places = self._plan.wrapped, self._places("rho", "u", "v", "p")
        gamma = _column(factors.get("gamma", self.family.coefficients["gamma"]), 2)

        def rate(state: Tensor) -> Tensor:
            rho, u, v, p = state.unbind(1)
            along_x, along_y = gradient(state, grid, ORDER)
            moved = -(u[:, None] * along_x + v[:, None] * along_y)
            still = torch.zeros_like(rho)
            squeezed = torch.stack((rho, still, still, gamma * p), dim=1)
            return moved - squeezed * divergence(u, v, grid, ORDER)[:, None]

        before, now = _picked(frames[:, -2], places), _picked(frames[:, -1], places)
        stepped = step(before, now, known, rate, self._plan, slack=0.5)
        return _in_place(stepped - now, places, frames[:, -1])

    def _wave(self, frames: Tensor) -> Tensor:
        """The displacement goes on as it went."""
        (u,), now = self._places("u"), frames[:, -1]
        if "u_t" not in self.spec.channels:
            free = 2 * frames[:, -2, u] - frames[:, -3, u]
            return _in_place((free - now[:, u])[:, None], [u], now)
        assert self.spec.dt is not None
        (u_t,) = self._places("u_t")
        rate = frames[:, -2, u_t]
        free = torch.stack((frames[:, -2, u] + self.spec.dt * rate, rate), dim=1)
        return _in_place(free - _picked(now, [u, u_t]), [u, u_t], now)


def _picked(frame: Tensor, places: list[int]) -> Tensor:
    """Some channels of a frame (b, c, y, x); indexing by a list would wait for the device."""
    return torch.stack([frame[:, place] for place in places], dim=1)


def _in_place(change: Tensor, places: list[int], frame: Tensor) -> State:
    """Changes of some channels as changes of all."""
    whole = torch.zeros_like(frame)
    for column, place in enumerate(places):  # indexing by a list would wait for the device
        whole[:, place] = change[:, column]
    return whole


def _column(value: Any, axes: int = 3) -> Any:
    """A coefficient of each sample that multiplies fields; a number as it is."""
    return value.view(-1, *[1] * axes) if isinstance(value, Tensor) else value


def _per_sample(value: Any, like: Tensor) -> Float[Tensor, " b"]:
    return value if isinstance(value, Tensor) else like.new_full((len(like),), value)
