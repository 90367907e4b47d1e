"""Running a case: time steps, sampled frames, forces, and a status for every sample.

A sample diverges when a speed anywhere in its domain, not only in the view, stops being finite or
passes a bound. That is looked at with every frame. From then on its frames are NaN, as is its whole
record of forces; it is parked as a fluid at rest while the rest of the batch goes on, and its
status says so.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import StrEnum

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from pibert.fields import Grid
from pibert.solver.boundaries import Links
from pibert.solver.lattice import Fluid, Populations, interior, make_step, moments, pad


@dataclass(frozen=True, eq=False, kw_only=True)
class Case:
    """A flow ready to run. Lattice units inside; outside, units of a length D and a speed U."""

    name: str
    reynolds: Float[Tensor, " b"]
    fluid: Fluid
    links: Links
    start: Populations
    """Without ghosts."""
    cells: float
    """Cells in the reference length D."""
    speed: float
    """The reference speed U in cells per step."""
    grid: Grid
    """The view that frames show, in units of D."""
    view: tuple[slice, slice] = (slice(None), slice(None))
    """Where the view lies in the domain: rows, columns."""
    solid: Bool[Tensor, "rows columns"] | None = None
    """True inside a body, in the whole domain. What the solver holds there is no flow."""

    @property
    def dt(self) -> float:
        """The time D/U of one step."""
        return self.speed / self.cells

    def steps(self, time: float) -> int:
        """The steps nearest to a time in D/U."""
        return round(time / self.dt)


class Status(StrEnum):
    """How a sample ended."""

    COMPLETED = "completed"
    DIVERGED = "diverged"


@dataclass(frozen=True, eq=False)
class Solution:
    """What a run gives, in units of D and U."""

    fields: Float[Tensor, "b t 2 y x"]
    """(u, v) in the view, zero inside a body; NaN from where a sample diverged."""
    time: Float[Tensor, " t"]
    force: Float[Tensor, "b steps 2"]
    """Drag and lift coefficients, 2 F / (U^2 D), after every step; no steps without a body."""
    status: tuple[Status, ...]
    grid: Grid
    populations: Float[Tensor, "b 9 rows columns"]
    """The last state: ``replace(case, start=...)`` goes on from there, exactly so where there is no
    outflow, whose memory starts anew."""


def run(
    case: Case,
    steps: int,
    every: int,
    *,
    warm_up: int = 0,
    max_speed: float = 4.0,
    raise_on_divergence: bool = True,
    compiled: bool = False,
    progress: Callable[[int, int], None] | None = None,
) -> Solution:
    """Run a case and sample it.

    Args:
        case: From ``pibert.solver.cases``.
        steps: Time steps that are sampled.
        every: A frame is taken at the start and after every so many steps.
        warm_up: Steps before the first frame; time counts from there.
        max_speed: In units of U; a sample that is faster anywhere has diverged.
        raise_on_divergence: Raise FloatingPointError when a sample diverges; otherwise go on with
            the others and say so in the status.
        compiled: Compile the step: seconds once, then several times faster.
        progress: Called with (steps done, steps in all) at every frame.
    """
    if every < 1 or steps < 0 or warm_up < 0:
        raise ValueError(
            "expected every >= 1 and steps, warm_up >= 0, "
            f"found every={every}, steps={steps}, warm_up={warm_up}"
        )
    fluid, links = case.fluid, case.links
    step = make_step(fluid, compiled=compiled)
    f = pad(case.start)
    links.fill(f, f)
    batch = len(f)
    diverged = torch.zeros(batch, dtype=torch.bool, device=f.device)
    frames: list[Tensor] = []
    forces: list[Tensor] = []

    # What is due, in order: looks during the warm-up, then frames.
    looks = [*range(every, warm_up, every), *range(warm_up, warm_up + steps + 1, every)]
    total, done = looks[-1], 0
    for look in looks:
        sampled = done >= warm_up
        for _ in range(look - done):
            before, f = f, step(f)
            force = links.fill(f, before)
            if force is not None and sampled:
                forces.append(force * (2 / (case.speed**2 * case.cells)))
        done = look
        velocity = _velocity(f, case)
        fastest = velocity.square().sum(1).flatten(1).amax(1).sqrt()  # NaN spreads through amax
        bad = ~(fastest <= max_speed) & ~diverged
        if bool(bad.any()):
            if raise_on_divergence:
                raise FloatingPointError(_describe(case, bad, look, fastest, max_speed))
            diverged |= bad
            fluid, f = _park(fluid, f, diverged)
            step = make_step(fluid, compiled=compiled)
        if look >= warm_up:
            frame = velocity[(..., *case.view)]
            frames.append(frame.masked_fill(diverged[:, None, None, None], torch.nan).cpu())
        if progress is not None:
            progress(done, total)

    force_history = torch.stack(forces, 1) if forces else f.new_zeros(batch, 0, 2)
    return Solution(
        fields=torch.stack(frames, 1),
        time=torch.arange(len(frames), dtype=torch.float64) * every * case.dt,
        force=force_history.masked_fill(diverged[:, None, None], torch.nan).cpu(),
        status=tuple(Status.DIVERGED if bad else Status.COMPLETED for bad in diverged.tolist()),
        grid=case.grid,
        populations=interior(f),
    )


def _velocity(f: Tensor, case: Case) -> Float[Tensor, "b 2 y x"]:
    """In units of U."""
    _, u, v = moments(interior(f))
    if case.fluid.is_forced:
        # The stored populations already carry the second half of the force.
        u, v = u - 0.5 * case.fluid.force[0], v - 0.5 * case.fluid.force[1]
    velocity = torch.stack((u, v), 1) / case.speed
    return velocity if case.solid is None else velocity.masked_fill(case.solid, 0.0)


def _park(fluid: Fluid, f: Tensor, diverged: Tensor) -> tuple[Fluid, Tensor]:
    """Diverged samples at rest, with a viscosity at which nothing grows."""
    gone = diverged[:, None, None]
    calm = fluid.viscosity.masked_fill(gone, 1 / 6)
    return replace(fluid, viscosity=calm), f.masked_fill(gone[:, None], 0.0)


def _describe(case: Case, bad: Tensor, step: int, fastest: Tensor, bound: float) -> str:
    samples = ", ".join(
        f"sample {i} (Re {case.reynolds[i].item():g}, speed {fastest[i].item():g} U)"
        for i in bad.nonzero()[:, 0].tolist()
    )
    return (
        f"{case.name} diverged by step {step}: {samples}; the bound is {bound:g} U. More cells, "
        "a lower speed, the regularised scheme or a Smagorinsky term help"
    )
