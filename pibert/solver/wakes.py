"""Wakes of circular cylinders in a uniform stream: one; two in tandem, the second on a spring."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Self

import torch
from jaxtyping import Float
from torch import Tensor

from pibert.config import Count, NonNegative, Positive
from pibert.fields import Boundary, Spring
from pibert.solver.boundaries import Box, Shape, Side
from pibert.solver.immersed import ImmersedCylinder, Oscillator
from pibert.solver.lattice import Scheme, equilibrium
from pibert.solver.lattice_recipe import Drawn, LatticeRecipe, Scales, build_case, with_sponge
from pibert.solver.recipes import Range, Recipe, generator_of, uniform
from pibert.solver.stepping import Case

View = tuple[float, float, float, float]
"""Left, right, bottom and top of the frames, in D from the centre of the (second) cylinder."""


def cylinder(
    reynolds: Sequence[float],
    *,
    cells: float = 16.0,
    domain: tuple[float, float] = (30.0, 20.0),
    upstream: float = 10.0,
    view: View | None = (-2.0, 6.0, -2.0, 2.0),
    coarsen: int = 1,
    speed: float = 0.1,
    perturbation: float | Sequence[float] = 0.0,
    sides: Literal["slip", "far"] = "far",
    sponge: float = 3.0,
    fixed: float | None = 0.0,
    **options: Any,
) -> Case:
    """A circular cylinder in a uniform stream along x; D is its diameter.

    The flow starts impulsively, from the potential flow around the body.

    Args:
        reynolds: One per sample.
        cells: The diameter in cells; need not be a whole number.
        domain: Length and width of the simulated domain in D. The width sets the blockage.
        upstream: Distance from the inflow to the centre of the cylinder, in D.
        view: The region that frames show; None shows the whole domain.
        coarsen: Cells along a point of a frame.
        speed: U in cells per step.
        perturbation: Largest speed, in U, of a vortex of radius D in the initial flow, one D
            behind the centre, for all samples or for each: it starts the shedding early. Without
            it the flow stays symmetric.
        sides: ``far`` lets sound and displaced fluid pass through bottom and top, as an outflow
            does; ``slip`` walls reflect both, which at these Mach numbers changes the lift.
        sponge: Length of the layer in front of the outflow, in D, in which the viscosity rises to
            that of Re = 10, so that vortices fade before they leave. A layer of one D at the
            inflow suppresses disturbances that would grow at low viscosity.
        fixed: Distance of the fixed cylinder upstream of the centre, in D; None leaves it out.
        options: ``scheme``, ``smagorinsky``, ``dtype`` and ``device`` of ``build_case``.
    """
    columns, rows = (round(length * cells) for length in domain)
    centre = (upstream * cells - 0.5, (rows - 1) / 2)
    left, right, bottom, top = (-1e6, 1e6, -1e6, 1e6) if view is None else view
    body = None if fixed is None else circle(centre[0] - fixed * cells, centre[1], cells / 2)
    return build_case(
        "cylinder",
        reynolds,
        _stream_box(speed, sides),
        start=_potential_flow((rows, columns), centre, cells, speed, perturbation, len(reynolds)),
        cells=cells,
        speed=speed,
        origin=(-centre[0], -centre[1]),
        body=body,
        viscosity=with_sponge(reynolds, columns, cells, speed, outflow=sponge, inflow=1.0),
        view=(
            _cells_between(bottom, top, centre[1], cells, rows, coarsen),
            _cells_between(left, right, centre[0], cells, columns, coarsen),
        ),
        coarsen=coarsen,
        **options,
    )


def tandem(
    reynolds: Sequence[float],
    *,
    mass: Sequence[float],
    reduced_velocity: Sequence[float],
    damping_ratio: Sequence[float],
    cells: float = 16.0,
    gap: float | None = 4.0,
    travel: float = 1.2,
    domain: tuple[float, float] = (32.0, 20.0),
    upstream: float = 12.0,
    view: View | None = (-4.0, 6.0, -2.5, 2.5),
    **stream: Any,
) -> Case:
    """Two cylinders in tandem; the second is on a spring and moves across the stream.

    Args:
        reynolds: One per sample.
        mass: m / (rho D^2) of the second cylinder, per sample.
        reduced_velocity: U / (f D) per sample, f the natural frequency in vacuum.
        damping_ratio: Per sample; 1 is critical.
        cells: The diameter of both in cells.
        gap: Distance of the centres in D; None leaves the first cylinder out.
        travel: The largest displacement in D that can be followed.
        domain: Length and width of the simulated domain in D.
        upstream: Distance from the inflow to the centre of the second cylinder, in D.
        view: As in ``cylinder``.
        stream: Other arguments of ``cylinder``.
    """
    stream |= {"cells": cells, "domain": domain, "upstream": upstream, "view": view}
    case = cylinder(reynolds, fixed=gap, **stream)
    start, solid = case.start, case.solid
    rows, columns = start.shape[2:]
    mount = Oscillator.from_numbers(
        mass_ratio=torch.tensor(mass, dtype=torch.float64),
        reduced_velocity=torch.tensor(reduced_velocity, dtype=torch.float64),
        damping_ratio=torch.tensor(damping_ratio, dtype=torch.float64),
        diameter=cells,
        speed=case.speed,
    )

    def make_mover(compiled: bool) -> ImmersedCylinder:
        return ImmersedCylinder(
            mount,
            centre=(upstream * cells - 0.5, (rows - 1) / 2),
            diameter=cells,
            travel=travel * cells,
            shape=(rows, columns),
            dtype=start.dtype,
            device=start.device,
            compiled=compiled,
        )

    start = start if solid is None else start.masked_fill(solid, 0.0)
    return replace(case, name="tandem", start=start, mover=make_mover)


def _stream_box(speed: float, sides: str) -> Box:
    if sides not in ("slip", "far"):
        raise ValueError(f"sides must be 'slip' or 'far', found {sides!r}")
    stream = (speed, 0.0)
    out = Side(Boundary.OUTFLOW, stream)
    side = Side(Boundary.SLIP) if sides == "slip" else out
    return Box(Side(Boundary.INFLOW, stream), out, side, side)


def circle(x: float, y: float, radius: float) -> Shape:
    """A disc, in cells."""
    return lambda a, b: torch.hypot(a - x, b - y) - radius


def _cells_between(
    low: float, high: float, centre: float, cells: float, size: int, coarsen: int
) -> slice:
    """The cells whose centres lie between two distances from a centre, given in D."""
    first = max(0, math.ceil(centre + low * cells - 1e-6))
    last = min(size, math.ceil(centre + high * cells - 1e-6))
    last -= (last - first) % coarsen
    if last - first < 1:
        raise ValueError(f"the view from {low} to {high} D shows no cell of the domain")
    return slice(first, last)


def _potential_flow(
    shape: tuple[int, int],
    centre: tuple[float, float],
    cells: float,
    speed: float,
    swirl: float | Sequence[float],
    samples: int,
) -> Float[Tensor, "b 9 y x"]:
    """The potential flow around a cylinder, with a vortex of radius D one D behind its centre.

    This is the flow just after an impulsive start. A uniform stream that meets the body would send
    out sound, which returns from the sides of the domain and disturbs the force for a long time.
    """
    amplitude = torch.as_tensor(swirl, dtype=torch.float64).expand(samples)[:, None, None]
    y, x = torch.meshgrid(*(torch.arange(n, dtype=torch.float64) for n in shape), indexing="ij")
    along, across = (x - centre[0]) / cells, (y - centre[1]) / cells
    square = along**2 + across**2
    ratio = torch.where(square > 0.25, 0.25 / square, 0.0) / square.clamp(min=0.25)
    u = torch.where(square > 0.25, 1 - ratio * (along**2 - across**2), 0.0)
    v = -2 * ratio * along * across
    p = torch.where(square > 0.25, 0.5 * (1 - u**2 - v**2), 0.0)
    behind = along - 1
    around = amplitude * torch.exp(0.5 * (1 - behind**2 - across**2))
    u, v = u - around * across, v + around * behind
    return equilibrium(3 * speed**2 * p.expand_as(u), speed * u, speed * v)


COARSE = (5, 6, 7, 8, 10, 12, 14, 17, 20, 24, 28, 33)
"""Cells in D of coarser grids. With fewer, the drag of a circular cylinder is off by a third."""


@dataclass(frozen=True, kw_only=True)
class Wakes(LatticeRecipe):
    """Shared by wakes: the view, the body in it, the much larger domain that is simulated."""

    view: tuple[Count, Count]
    """Rows and columns of a frame."""
    body: tuple[float, float, Positive]
    """Row and column of the centre and diameter of the (second) cylinder, in points of the view."""
    domain: tuple[Positive, Positive]
    """Length and width in D."""
    upstream: Positive
    """Distance from the inflow to the centre of the (second) cylinder, in D."""
    scheme: Scheme = "trt"
    smagorinsky: NonNegative = 0.0

    def checked(self, case: Case) -> Case:
        if case.grid.shape != self.view:
            raise ValueError(
                f"the view of {self.view} points does not lie in the domain of {self.domain} D, "
                f"only {case.grid.shape} of it do; use a larger domain or a smaller view"
            )
        return case

    @property
    def resolution(self) -> str:
        return f"{self.body[2] * self.cells_per_point:g} cells in D"

    def coarser(self) -> tuple[Self, ...]:
        """The same flows on coarser grids, the coarsest first; frames have a point for each cell.

        Their view is two cells wider on every side. The scheme is the one that stays stable.
        """
        row, column, diameter = self.body
        recipes = []
        for cells in COARSE:
            if cells < diameter * self.cells_per_point:
                share = cells / diameter
                rows, columns = (math.ceil(size * share) + 4 for size in self.view)
                place = ((row + 0.5) * share + 1.5, (column + 0.5) * share + 1.5)
                coarse = replace(
                    self,
                    view=(rows, columns),
                    body=(*place, float(cells)),
                    cells_per_point=1,
                    scheme="regularised",
                )
                recipes.append(coarse)
        return tuple(recipes)

    def flow(self, indices: Sequence[int], device: str) -> dict[str, Any]:
        """The arguments that the cases of this module share."""
        (rows, columns), (row, column, diameter) = self.view, self.body
        return {
            "cells": diameter * self.cells_per_point,
            "domain": self.domain,
            "upstream": self.upstream,
            "view": (
                -(column + 0.5) / diameter,
                (columns - column - 0.5) / diameter,
                -(row + 0.5) / diameter,
                (rows - row - 0.5) / diameter,
            ),
            "coarsen": self.cells_per_point,
            "speed": self.speed,
            "perturbation": [self._swirl(index) for index in indices],
            "scheme": self.scheme,
            "smagorinsky": self.smagorinsky,
            "device": device,
        }

    def _swirl(self, index: int) -> float:
        """Strength of the vortex in the initial flow, of either sign."""
        sign = 1.0 if uniform(generator_of(self.seed, index, "sign"), (0.0, 1.0)) < 0.5 else -1.0
        return sign * uniform(generator_of(self.seed, index, "swirl"), (0.2, 0.5))

    def choices(self) -> dict[str, Any]:
        return {"domain": list(self.domain), "upstream": self.upstream}


@dataclass(frozen=True, kw_only=True)
class CylinderWakes(Wakes):
    """Wakes of a circular cylinder in a uniform stream that shed vortices from the first frame."""

    case = "cylinder"
    title = "wake of a circular cylinder in a uniform stream"
    group: Count = 6
    reynolds: Range = (60.0, 200.0)
    frames: Count = 60
    view: tuple[Count, Count] = (32, 64)
    body: tuple[float, float, Positive] = (15.5, 12.5, 10.0)
    domain: tuple[Positive, Positive] = (22.0, 14.0)
    upstream: Positive = 7.0
    warm_up: NonNegative = 40.0

    def draw(self, index: int) -> dict[str, float]:
        return {"Re": self.draw_reynolds(index, self.reynolds)}

    def make_case(self, indices: Sequence[int], drawn: Drawn, device: str) -> Case:
        return self.checked(cylinder(drawn["Re"], **self.flow(indices, device)))


@dataclass(frozen=True, kw_only=True)
class TandemWakes(Wakes):
    """Two cylinders in tandem, the second on a spring that lets it move across the stream.

    Without a gap there is the second alone. Samples cycle through the Reynolds numbers and mass
    ratios. The natural frequency is the same
    for all, so the reduced velocity grows with the stream, as in an experiment. Displacement and
    velocity of the second cylinder and the forces on it are saved with the frames.
    """

    case = "tandem"
    title = "two cylinders in tandem, the second on a spring across the stream"
    moving_radius = 0.5
    samples: Count = 8
    group: Count = 8
    reynolds: tuple[Positive, ...] = (100.0, 120.0, 150.0, 180.0)
    mass_ratios: tuple[Positive, ...] = (2.0, 8.0)
    """Mass of the body over that of the fluid it displaces."""
    damping_ratio: NonNegative = 0.01
    """Share of critical damping."""
    reduced_velocity: Positive = 5.0
    """U / (f D) at the middle of the range of Reynolds numbers; f is the natural frequency."""
    gap: Positive | None = 3.0
    """Distance of the centres, in D; None leaves the first cylinder out."""
    view: tuple[Count, Count] = (40, 64)
    body: tuple[float, float, Positive] = (19.5, 31.5, 8.0)
    domain: tuple[Positive, Positive] = (30.0, 16.0)
    upstream: Positive = 11.0
    warm_up: NonNegative = 30.0

    def draw(self, index: int) -> dict[str, float]:
        turn, which = divmod(index, len(self.mass_ratios))
        reynolds = self.reynolds[turn % len(self.reynolds)]
        middle = 0.5 * (min(self.reynolds) + max(self.reynolds))
        return {
            "Re": reynolds,
            "mass_ratio": self.mass_ratios[which],
            "reduced_velocity": self.reduced_velocity * reynolds / middle,
        }

    @property
    def spring(self) -> Spring:
        return Spring(damping_ratio=self.damping_ratio)

    def make_case(self, indices: Sequence[int], drawn: Drawn, device: str) -> Case:
        case = tandem(
            drawn["Re"],
            mass=[0.25 * math.pi * ratio for ratio in drawn["mass_ratio"]],
            reduced_velocity=drawn["reduced_velocity"],
            damping_ratio=[self.damping_ratio] * len(indices),
            gap=self.gap,
            **self.flow(indices, device),
        )
        return self.checked(case)

    def choices(self) -> dict[str, Any]:
        return {
            **super().choices(),
            "gap": self.gap,
            "damping_ratio": self.damping_ratio,
            "chosen_here": ["gap", "damping_ratio", "reduced_velocity"],
        }


CYLINDER_PRESETS: dict[str, Recipe] = {
    "demo": CylinderWakes(),
    # As in RealPDEBench: a cylinder of 30 mm in water, 20 of its frames apart (50 ms).
    "realpdebench-like": CylinderWakes(
        samples=92,
        group=23,
        reynolds=(1800.0, 12000.0),
        frames=200,
        interval=5.6e-5,
        interval_grows=True,
        view=(64, 128),
        body=(32.0, 32.0, 18.0),
        cells_per_point=2,
        domain=(26.0, 16.0),
        upstream=8.0,
        warm_up=60.0,
        scheme="regularised",
        smagorinsky=0.1,
        scales=Scales(diameter=0.03, viscosity=1.0e-6),
    ),
}

_COUPLED = TandemWakes(
    samples=63,
    group=21,
    reynolds=tuple(map(float, range(60, 181, 6))),
    mass_ratios=(2.0, 4.0, 8.0),
    reduced_velocity=6.0,
    frames=300,
    interval=0.25,
    view=(64, 128),
    body=(31.5, 52.0, 12.0),
    cells_per_point=2,
    warm_up=20.0,
)

TANDEM_PRESETS: dict[str, Recipe] = {
    "demo": TandemWakes(),
    # As in RealPDEBench: two mass ratios, nine stream speeds, pairs of frames 2 ms apart.
    "fsi-like": TandemWakes(
        samples=51,
        group=17,
        reynolds=(3272.0, 3545.0, 3955.0, 4091.0, 4636.0, 5045.0, 5318.0, 6682.0, 9068.0),
        mass_ratios=(18.2, 20.8),
        damping_ratio=0.008,
        frames=400,
        interval=2.2e-6,
        interval_grows=True,
        burst=(2, 10),
        view=(128, 128),
        body=(64.0, 66.0, 24.0),
        cells_per_point=2,
        # Vortices of the two wakes reach four times the stream: at 0.1 that is too fast for the
        # lattice, and a third of the flows was lost.
        speed=0.06,
        warm_up=60.0,
        scheme="regularised",
        smagorinsky=0.1,
        scales=Scales(diameter=0.03, viscosity=1.0e-6),
    ),
    # Consecutive frames for models of flow and structure together. The reduced velocity is 3 to 9:
    # lock-in, and both sides of it. Frames begin while the vibration grows. For a GPU.
    "coupled": _COUPLED,
    "coupled-single": replace(_COUPLED, gap=None, body=(31.5, 28.0, 12.0)),
    # Small enough for two cores: about a minute. Frames begin while the vibration grows.
    "coupled-demo": TandemWakes(
        samples=76,
        group=38,
        reynolds=tuple(map(float, range(80, 153, 4))),
        mass_ratios=(2.0, 3.0, 5.0, 8.0),
        reduced_velocity=5.5,
        gap=None,
        frames=120,
        view=(32, 48),
        body=(15.5, 14.0, 8.0),
        domain=(20.0, 12.0),
        upstream=7.0,
        warm_up=20.0,
    ),
}
