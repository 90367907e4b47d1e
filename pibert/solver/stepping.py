"""Run a case: time steps, frames, forces, and which samples diverged.

Frame k of a sample lies ``k * every`` steps after the warm-up; between two steps it is interpolated
linearly, so samples of different Reynolds numbers can share a physical interval.

A sample diverges when a speed anywhere in its domain is not finite or exceeds ``FASTEST``, which is
checked every few hundred steps and at the end. It is then set to rest while the others continue,
and all its frames and forces are NaN.
"""

from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from pibert.fields import Grid
from pibert.solver.boundaries import Links
from pibert.solver.immersed import ImmersedCylinder
from pibert.solver.lattice import Fluid, Populations, interior, make_step, moments, pad
from pibert.solver.recipes import Progress

CHANNELS = ("u", "v", "p")
CHECK_EVERY = 200
"""Steps between two checks for divergence."""
FASTEST = 0.4
"""Cells per step, 0.7 of the speed of sound: beyond it the fluid is not incompressible."""
_MOTION = ("displacement", "velocity", "drag", "lift")


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
    """The grid of the frames, in units of D."""
    view: tuple[slice, slice] = (slice(None), slice(None))
    """Rows and columns of the domain that frames show."""
    coarsen: int = 1
    """A point of a frame is the mean over this number of cells in each direction."""
    solid: Bool[Tensor, "rows columns"] | None = None
    """True inside a body, in the whole domain; the values there are not a flow."""
    mover: Callable[[bool], ImmersedCylinder] | None = None
    """Makes the moving body at its start; the argument is whether to compile it."""

    @property
    def dt(self) -> float:
        """The time of one step in D/U."""
        return self.speed / self.cells

    def steps(self, time: float) -> int:
        """The number of steps nearest to a time in D/U."""
        return round(time / self.dt)


@dataclass(frozen=True, eq=False)
class Solution:
    """The result of a run, in units of D and U; NaN for a sample that diverged."""

    fields: Float[Tensor, "b t 3 y x"]
    """u, v and the pressure p / (rho U^2) in the view; zero inside a fixed body."""
    time: Float[Tensor, "b t"]
    force: Float[Tensor, "b steps 2"]
    """Drag and lift coefficients, 2 F / (U^2 D), of the fixed body after every step that follows
    the warm-up; no steps without a body."""
    diverged: tuple[bool, ...]
    motion: dict[str, Float[Tensor, "b moved"]] = field(default_factory=dict)
    """Of a moving body, after every step that follows the warm-up: ``displacement`` in D,
    ``velocity`` in U, and the coefficients ``drag`` and ``lift``."""

    def at_frames(self, history: Float[Tensor, "b steps"], dt: float) -> Float[Tensor, "b t"]:
        """Interpolate values that follow steps 1, 2 ... of length ``dt`` at the frames."""
        position = (self.time.to(history) / dt - 1).clamp(0, history.shape[1] - 1)
        low = position.floor().long()
        high = (low + 1).clamp(max=history.shape[1] - 1)
        share = position - low
        return (1 - share) * history.gather(1, low) + share * history.gather(1, high)


def run(
    case: Case,
    frames: int,
    every: int | float | Sequence[int | float],
    *,
    warm_up: int = 0,
    burst: tuple[int, int] = (1, 1),
    raise_on_divergence: bool = True,
    compiled: bool = False,
    progress: Progress | None = None,
) -> Solution:
    """Run a case and return its frames.

    Args:
        case: The flow, for example from ``pibert.solver.wakes.cylinder``.
        frames: Number of frames of each sample; the first comes after the warm-up.
        every: Steps between two frames, at least one, for all samples or for each; it need not be
            a whole number.
        warm_up: Steps before the first frame; time counts from there.
        burst: (2, 10) keeps the first two of every ten frames.
        raise_on_divergence: Raise FloatingPointError when a sample diverges; otherwise continue
            with the others.
        compiled: Compile the step: seconds once, then several times faster.
        progress: Called now and then with the completed share of the steps.
    """
    batch = len(case.start)
    intervals = [float(n) for n in ([every] * batch if isinstance(every, int | float) else every)]
    if frames < 1 or warm_up < 0 or len(intervals) != batch or min(intervals) < 1:
        raise ValueError(
            f"expected frames >= 1, warm_up >= 0 and every >= 1 for {batch} samples, "
            f"found frames={frames}, warm_up={warm_up}, every={every}"
        )
    if not 1 <= burst[0] <= burst[1]:
        raise ValueError(f"expected a burst (kept, of) with 1 <= kept <= of, found {burst}")
    kept = torch.arange(frames)
    kept = kept // burst[0] * burst[1] + kept % burst[0]
    due = _schedule(kept.tolist(), intervals, warm_up)
    total = max(due)
    if len(case.links.second) or case.mover is not None:
        total = max(total, warm_up + 1)  # forces are known after a step
    body = None if case.mover is None else case.mover(compiled)
    fluid, step = case.fluid, make_step(case.fluid, compiled=compiled)
    f = pad(case.start)
    case.links.fill(f, f)
    seen = f.new_zeros(batch, frames, len(CHANNELS), *case.grid.shape)
    diverged = torch.zeros(batch, dtype=torch.bool, device=f.device)
    # Allocated at once: a small tensor kept at every step would keep the allocator from using the
    # memory of the populations again.
    after = total - warm_up
    forces = f.new_zeros(batch, after if len(case.links.second) else 0, 2)
    motion = f.new_zeros(batch, after if body is not None else 0, len(_MOTION))
    unit = 2 / (case.speed**2 * case.cells)
    for done in range(total + 1):
        if done:
            before, f = f, step(f)
            pushed = None if body is None else body.advance(f)
            force = case.links.fill(f, before)
            if force is not None and done > warm_up:
                forces[:, done - warm_up - 1] = force * unit
            if body is not None and pushed is not None and done > warm_up:
                state = (body.displacement / case.cells, body.velocity / case.speed)
                motion[:, done - warm_up - 1] = torch.stack((*state, *(pushed * unit).unbind(1)), 1)
        if done in due:
            samples, slots, weights = (
                torch.tensor(column, device=f.device) for column in zip(*due[done], strict=True)
            )
            # No (sample, frame) stands twice in one step, so the order of additions is fixed.
            seen[samples, slots] += weights.to(seen)[:, None, None, None] * _observe(
                f, case, body, samples
            )
        if done % CHECK_EVERY == 0 or done == total:
            bad = _too_fast(f, case, body) & ~diverged
            if bool(bad.any()):
                if raise_on_divergence:
                    raise FloatingPointError(_describe(case, bad, done))
                diverged |= bad
                # At rest, with a viscosity at which nothing grows.
                f = f.masked_fill(diverged[:, None, None, None], 0.0)
                calm = fluid.viscosity.masked_fill(diverged[:, None, None], 1 / 6)
                fluid = replace(fluid, viscosity=calm)
                step = make_step(fluid, compiled=compiled)
                if body is not None:
                    body.park(diverged)
            if progress is not None:
                progress(done / max(total, 1))

    def finished(values: Tensor) -> Tensor:
        return values.masked_fill(diverged.view(-1, *[1] * (values.ndim - 1)), torch.nan).cpu()

    times = torch.tensor(intervals, dtype=torch.float64)[:, None] * kept
    return Solution(
        fields=finished(seen),
        time=times * case.dt,
        force=finished(forces),
        diverged=tuple(diverged.tolist()),
        motion={n: finished(motion[..., i]) for i, n in enumerate(_MOTION) if body is not None},
    )


def _schedule(
    kept: Sequence[int], intervals: Sequence[float], warm_up: int
) -> dict[int, list[tuple[int, int, float]]]:
    """For each step that is observed: samples, their frames, and the weight of this step."""
    due: dict[int, list[tuple[int, int, float]]] = defaultdict(list)
    for sample, interval in enumerate(intervals):
        for frame, number in enumerate(kept):
            whole, share = divmod(number * interval, 1.0)
            for step, weight in ((int(whole), 1 - share), (int(whole) + 1, share)):
                if weight > 1e-6:
                    due[warm_up + step].append((sample, frame, weight))
    return due


def _too_fast(f: Tensor, case: Case, body: ImmersedCylinder | None) -> Bool[Tensor, " b"]:
    """Samples that are faster than ``FASTEST`` somewhere, not finite, or have lost their body."""
    _, u, v = moments(interior(f))
    square = u * u + v * v
    if case.solid is not None:
        square = square.masked_fill(case.solid, 0.0)
    bad = ~(square.flatten(1).amax(1).sqrt() <= FASTEST)  # NaN spreads through amax
    return bad if body is None else bad | body.lost


def _observe(
    f: Tensor, case: Case, body: ImmersedCylinder | None, samples: Tensor
) -> Float[Tensor, "b 3 y x"]:
    """u, v and p of some samples in the view."""
    if body is None:
        r, u, v = moments(interior(f)[(..., *case.view)][samples])
    else:
        r, *components = moments(interior(f))
        velocity = torch.stack(components, 1)
        body.correct(velocity)
        r, u, v = (a[(..., *case.view)][samples] for a in (r, *velocity.unbind(1)))
    if case.fluid.force is not None:
        # The stored populations already carry the second half of the force.
        push = case.fluid.force[:, samples]
        u, v = u - 0.5 * push[0], v - 0.5 * push[1]
    state = torch.stack((u / case.speed, v / case.speed, r / (3 * case.speed**2)), 1)
    if case.solid is None and case.coarsen == 1:
        return state
    fluid = torch.ones_like(state[:1, :1])
    if case.solid is not None:
        fluid = (~case.solid[case.view]).to(state)[None, None]
        state = torch.where(fluid > 0, state, 0.0)
    if case.coarsen > 1:
        # A point that lies partly in a body shows the mean over its fluid.
        state, fluid = (torch.nn.functional.avg_pool2d(a, case.coarsen) for a in (state, fluid))
        state = torch.where(fluid > 0, state / fluid, 0.0)
    if case.grid.body is not None:
        state = state.masked_fill(case.grid.body.to(f.device), 0.0)
    return state


def _describe(case: Case, bad: Tensor, step: int) -> str:
    samples = ", ".join(
        f"sample {i} (Re {case.reynolds[i].item():g})" for i in bad.nonzero()[:, 0].tolist()
    )
    return (
        f"{case.name} diverged by step {step}: {samples} exceeded {FASTEST / case.speed:g} U; use "
        "more cells, a lower speed, the regularised scheme or a Smagorinsky term"
    )
