"""Running a case: time steps, sampled frames, forces, and a status for every sample.

Samples advance together but are looked at each in its own rhythm: frame k of a sample lies
``k * every`` steps after the warm-up, and where that is no whole number it is the linear mean of
the two steps around it. So samples of different Reynolds numbers can share a physical interval.

A sample diverges when a speed anywhere in its domain, not only in the view, stops being finite or
passes a bound; that is looked at every few hundred steps and at the end. It is parked as a fluid at
rest while the rest of the batch goes on, all its frames and forces are NaN, and its status says so.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Protocol, runtime_checkable

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from pibert.fields import Grid
from pibert.solver.boundaries import Links
from pibert.solver.lattice import Fluid, Populations, interior, make_step, moments, pad
from pibert.solver.recipes import Progress

CHANNELS = ("u", "v", "p")
LOOK_EVERY = 200
"""Steps between two looks for divergence."""
FASTEST = 0.4
"""Cells per step, 0.7 of the speed of sound: beyond it the fluid is not incompressible."""


@runtime_checkable
class Mover(Protocol):
    """A body that moves with the flow, and its state; lattice units."""

    displacement: Float[Tensor, " b"]
    """Across the stream, from the place of rest."""
    velocity: Float[Tensor, " b"]

    @property
    def lost(self) -> Bool[Tensor, " b"]:
        """Samples whose body is outside the range in which it can be followed."""
        ...

    def advance(self, f: Tensor) -> Float[Tensor, "b 2"]:
        """Move by one step and push the fluid, before ghosts are filled; the force on the body."""
        ...

    def correct(self, velocity: Float[Tensor, "b 2 y x"]) -> None:
        """Make first moments the velocity of the fluid, in place."""
        ...

    def park(self, gone: Bool[Tensor, " b"]) -> None:
        """Put the bodies of these samples to rest."""
        ...


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
    coarsen: int = 1
    """A point of a frame is the mean of so many by so many cells of the view."""
    solid: Bool[Tensor, "rows columns"] | None = None
    """True inside a body, in the whole domain. What the solver holds there is not a flow."""
    mover: Callable[[bool], Mover] | None = None
    """Makes the body that moves, at its start; takes whether to compile it."""

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
    """What a run gives, in units of D and U; NaN where a sample diverged."""

    fields: Float[Tensor, "b t 3 y x"]
    """u, v and the pressure p / (rho U^2) in the view; zero inside a fixed body."""
    time: Float[Tensor, "b t"]
    force: Float[Tensor, "b steps 2"]
    """Drag and lift coefficients, 2 F / (U^2 D), of the fixed body after every step that is
    sampled; no steps without a body."""
    status: tuple[Status, ...]
    grid: Grid
    populations: Float[Tensor, "b 9 rows columns"]
    """The last state: ``replace(case, start=...)`` goes on from there, exactly so where there is no
    outflow, whose memory starts anew, and no body that moves."""
    motion: dict[str, Float[Tensor, "b moved"]] = field(default_factory=dict)
    """Of a body that moves, after every step that is sampled: ``displacement`` in D, ``velocity``
    in U, and its coefficients ``drag`` and ``lift``."""

    def at_frames(self, history: Float[Tensor, "b steps"], dt: float) -> Float[Tensor, "b t"]:
        """A record of every step (the first after one step of ``dt``) at the times of frames."""
        place = (self.time.to(history) / dt - 1).clamp(0, history.shape[1] - 1)
        low = place.floor().long()
        high = (low + 1).clamp(max=history.shape[1] - 1)
        share = place - low
        return (1 - share) * history.gather(1, low) + share * history.gather(1, high)


def run(
    case: Case,
    frames: int,
    every: int | float | Sequence[int | float],
    *,
    warm_up: int = 0,
    burst: tuple[int, int] = (1, 1),
    max_speed: float | None = None,
    raise_on_divergence: bool = True,
    compiled: bool = False,
    progress: Progress | None = None,
) -> Solution:
    """Run a case and sample it.

    Args:
        case: Such as ``pibert.solver.wakes.cylinder`` gives.
        frames: How many frames of each sample; the first is taken after the warm-up.
        every: Steps between two frames, at least one, for all samples or for each; it need not be
            whole.
        warm_up: Steps before the first frame; time counts from there.
        burst: (2, 10) keeps the first two of every ten frames.
        max_speed: In units of U; a sample that is faster anywhere has diverged. None stands for
            ``FASTEST``.
        raise_on_divergence: Raise FloatingPointError when a sample diverges; otherwise go on with
            the others and say so in the status.
        compiled: Compile the step: seconds once, then several times faster.
        progress: Called now and then with the share of steps done.
    """
    batch = len(case.start)
    each = [every] * batch if isinstance(every, int | float) else every
    intervals = [float(interval) for interval in each]
    if frames < 1 or warm_up < 0 or len(intervals) != batch or min(intervals) < 1:
        raise ValueError(
            f"expected frames >= 1, warm_up >= 0 and every >= 1 for {batch} samples, "
            f"found frames={frames}, warm_up={warm_up}, every={every}"
        )
    if not 1 <= burst[0] <= burst[1]:
        raise ValueError(f"a burst keeps 1 or more of as many or more frames, found {burst}")
    kept = torch.arange(frames)
    kept = kept // burst[0] * burst[1] + kept % burst[0]
    due = _schedule(kept.tolist(), intervals, warm_up)
    total = max(due)
    if len(case.links.second) or case.mover is not None:
        total = max(total, warm_up + 1)  # forces are known after a step
    mover = None if case.mover is None else case.mover(compiled)
    limit = FASTEST / case.speed if max_speed is None else max_speed
    watch = _Watch(case, mover, limit, raise_on_divergence)
    step = make_step(case.fluid, compiled=compiled)
    f = pad(case.start)
    case.links.fill(f, f)
    seen = f.new_zeros(batch, frames, len(CHANNELS), *case.grid.shape)
    record = _Record(case, mover, total - warm_up)
    for done in range(total + 1):
        if done:
            before, f = f, step(f)
            pushed = None if mover is None else mover.advance(f)
            force = case.links.fill(f, before)
            record.take(done - warm_up - 1, force, pushed)
        if done in due:
            samples, slots, weights = (
                torch.tensor(column, device=f.device) for column in zip(*due[done], strict=True)
            )
            state = _observe(f, case, mover, samples)
            # No (sample, frame) stands twice in one step, so the order of additions is fixed.
            seen[samples, slots] += weights.to(seen)[:, None, None, None] * state
        if done % LOOK_EVERY == 0 or done == total:
            if watch.look(f, done):
                f = watch.park(f)
                step = make_step(watch.fluid, compiled=compiled)
            if progress is not None:
                progress(done / max(total, 1))

    gone = watch.diverged
    times = torch.tensor(intervals, dtype=torch.float64)[:, None] * kept
    return Solution(
        fields=seen.masked_fill_(gone[:, None, None, None, None], torch.nan).cpu(),
        time=times * case.dt,
        force=record.force.transpose(0, 1).masked_fill(gone[:, None, None], torch.nan).cpu(),
        status=tuple(Status.DIVERGED if bad else Status.COMPLETED for bad in gone.tolist()),
        grid=case.grid,
        populations=interior(f),
        motion={
            name: history.T.masked_fill(gone[:, None], torch.nan).cpu()
            for name, history in record.motion.items()
        },
    )


def _schedule(
    kept: Sequence[int], intervals: Sequence[float], warm_up: int
) -> dict[int, list[tuple[int, int, float]]]:
    """For each step that is looked at: samples, their frames, and the weight of this step."""
    due: dict[int, list[tuple[int, int, float]]] = defaultdict(list)
    for sample, interval in enumerate(intervals):
        for frame, place in enumerate(kept):
            whole, share = divmod(place * interval, 1.0)
            for step, weight in ((int(whole), 1 - share), (int(whole) + 1, share)):
                if weight > 1e-6:
                    due[warm_up + step].append((sample, frame, weight))
    return due


class _Record:
    """Forces and motion after every sampled step, in units of D and U."""

    def __init__(self, case: Case, mover: Mover | None, steps: int) -> None:
        batch, like = len(case.start), case.start
        has_body = len(case.links.second) > 0
        self.case, self.mover = case, mover
        self.force = like.new_zeros(steps if has_body else 0, batch, 2)
        names = () if mover is None else ("displacement", "velocity", "drag", "lift")
        self.motion = {name: like.new_zeros(steps, batch) for name in names}

    def take(self, place: int, force: Tensor | None, pushed: Tensor | None) -> None:
        if place < 0:
            return
        case, mover = self.case, self.mover
        unit = 2 / (case.speed**2 * case.cells)
        if force is not None:
            self.force[place] = force * unit
        if mover is not None and pushed is not None:
            self.motion["displacement"][place] = mover.displacement / case.cells
            self.motion["velocity"][place] = mover.velocity / case.speed
            self.motion["drag"][place] = pushed[:, 0] * unit
            self.motion["lift"][place] = pushed[:, 1] * unit


class _Watch:
    """Which samples have diverged."""

    def __init__(self, case: Case, mover: Mover | None, max_speed: float, raises: bool) -> None:
        self.case, self.mover = case, mover
        self.max_speed, self.raises = max_speed, raises
        self.fluid: Fluid = case.fluid
        self.diverged = torch.zeros(len(case.start), dtype=torch.bool, device=case.start.device)

    def look(self, f: Tensor, step: int) -> bool:
        """Whether a sample has diverged since the last look."""
        _, u, v = moments(interior(f))
        square = u * u + v * v
        if self.case.solid is not None:
            square = square.masked_fill(self.case.solid, 0.0)
        fastest = square.flatten(1).amax(1).sqrt() / self.case.speed  # NaN spreads through amax
        bad = ~(fastest <= self.max_speed)
        if self.mover is not None:
            bad |= self.mover.lost
        bad &= ~self.diverged
        if not bool(bad.any()):
            return False
        if self.raises:
            raise FloatingPointError(_describe(self.case, bad, step, fastest, self.max_speed))
        self.diverged |= bad
        return True

    def park(self, f: Tensor) -> Tensor:
        """Diverged samples at rest, with a viscosity at which nothing grows."""
        gone = self.diverged[:, None, None]
        calm = self.fluid.viscosity.masked_fill(gone, 1 / 6)
        self.fluid = replace(self.fluid, viscosity=calm)
        if self.mover is not None:
            self.mover.park(self.diverged)
        return f.masked_fill(gone[:, None], 0.0)


def _observe(
    f: Tensor, case: Case, mover: Mover | None, samples: Tensor
) -> Float[Tensor, "b 3 y x"]:
    """u, v and p of some samples in the view."""
    if mover is None:
        r, u, v = moments(interior(f)[(..., *case.view)][samples])
    else:
        r, *parts = moments(interior(f))
        velocity = torch.stack(parts, 1)
        mover.correct(velocity)
        r, u, v = (a[(..., *case.view)][samples] for a in (r, *velocity.unbind(1)))
    if case.fluid.is_forced:
        # The stored populations already carry the second half of the force.
        push = torch.as_tensor(case.fluid.force, device=f.device, dtype=f.dtype)
        push = push.reshape(2, -1, 1, 1).expand(2, len(f), 1, 1)[:, samples]
        u, v = u - 0.5 * push[0], v - 0.5 * push[1]
    state = torch.stack((u / case.speed, v / case.speed, r / (3 * case.speed**2)), 1)
    if case.solid is None and case.coarsen == 1:
        return state
    fluid = torch.ones_like(state[:1, :1])
    if case.solid is not None:
        fluid = (~case.solid[case.view]).to(state)[None, None]
        state = torch.where(fluid > 0, state, 0.0)
    if case.coarsen > 1:
        # Where a point is part body, the mean is over its fluid.
        state, fluid = (torch.nn.functional.avg_pool2d(a, case.coarsen) for a in (state, fluid))
        state = torch.where(fluid > 0, state / fluid, 0.0)
    if case.grid.body is not None:
        state = state.masked_fill(case.grid.body.to(f.device), 0.0)
    return state


def _describe(case: Case, bad: Tensor, step: int, fastest: Tensor, bound: float) -> str:
    samples = ", ".join(
        f"sample {i} (Re {case.reynolds[i].item():g}, speed {fastest[i].item():g} U)"
        for i in bad.nonzero()[:, 0].tolist()
    )
    return (
        f"{case.name} diverged by step {step}: {samples}; the bound is {bound:g} U. More cells, "
        "a lower speed, the regularised scheme or a Smagorinsky term help"
    )
