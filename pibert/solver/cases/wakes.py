"""Circular cylinders in a uniform stream: one, or two in tandem of which the second may move."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from pibert.fields import Boundary
from pibert.solver.boundaries import Box, Shape, Side, inside, make_links
from pibert.solver.cases.layout import grid_of, viscosity_of, window_of, with_sponge
from pibert.solver.immersed import ImmersedCylinder, Oscillator
from pibert.solver.lattice import Fluid, Scheme, equilibrium
from pibert.solver.stepping import Case


def cylinder(
    reynolds: Sequence[float],
    *,
    cells: float = 16.0,
    domain: tuple[float, float] = (30.0, 20.0),
    upstream: float = 10.0,
    offset: float = 0.0,
    view: tuple[float, float, float, float] | None = (-2.0, 6.0, -2.0, 2.0),
    coarsen: int = 1,
    speed: float = 0.1,
    perturbation: float | Sequence[float] = 0.0,
    sides: Literal["slip", "far"] = "far",
    sponge: float = 3.0,
    scheme: Scheme = "trt",
    smagorinsky: float = 0.0,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
) -> Case:
    """A circular cylinder in a uniform stream along x; D is its diameter.

    The flow starts impulsively, from the potential flow around the body.

    Args:
        reynolds: One per sample.
        cells: The diameter in cells; need not be whole.
        domain: Length and width of the simulated domain in D. The width sets the blockage.
        upstream: From the inflow to the cylinder's centre, in D.
        offset: Of the centre from the middle of the domain along y, in D.
        view: (left, right, bottom, top) of what frames show, in D from the centre; None shows all.
        coarsen: Frames show means over so many by so many cells.
        speed: U in cells per step.
        perturbation: Largest speed, in U, of a vortex of radius D in the initial flow, one D
            behind the centre, for all samples or for each: shedding sets in early. Without it the
            flow stays symmetric.
        sides: ``far`` lets sound and displaced fluid pass through the bottom and top, as an outflow
            does; ``slip`` walls reflect both, which at these Mach numbers changes the lift.
        sponge: Length of the layer in front of the outflow, in D, in which the viscosity rises to
            that of Re = 10 so that vortices fade before they leave. A layer of one D at the inflow
            has it too: the stream is uniform there, and what a low viscosity lets grow is not.
        scheme: ``trt`` is the more accurate one; ``regularised`` stays stable at few cells and
            high Reynolds numbers.
        smagorinsky: The constant of the subgrid term, 0 for none.
        dtype: Of all arrays.
        device: Of all arrays.
    """
    if not sponge > 0:
        raise ValueError(f"the sponge must have a positive length, found {sponge}")
    columns, rows = (round(length * cells) for length in domain)
    shape = (rows, columns)
    centre_x, centre_y = upstream * cells - 0.5, offset * cells + (rows - 1) / 2
    body = circle(centre_x, centre_y, cells / 2)
    box = _stream_box(speed, sides)

    solid = inside(shape, body)
    viscosity = with_sponge(
        viscosity_of(reynolds, cells, speed, torch.float64, "cpu"),
        columns,
        cells,
        thick=speed * cells / 10,
        front=1.0,
        back=sponge,
    )
    left, right, bottom, top = (-1e6, 1e6, -1e6, 1e6) if view is None else view
    window = (
        window_of(bottom, top, centre_y, cells, rows, coarsen),
        window_of(left, right, centre_x, cells, columns, coarsen),
    )
    return Case(
        name="cylinder",
        reynolds=torch.tensor(reynolds),
        fluid=Fluid(viscosity=viscosity.to(device, dtype), scheme=scheme, smagorinsky=smagorinsky),
        links=make_links(shape, box, body, dtype, device),
        start=_potential_flow(
            shape, (centre_x, centre_y), cells, speed, perturbation, len(reynolds)
        ).to(device, dtype),
        cells=cells,
        speed=speed,
        grid=grid_of(shape, box, cells, (-centre_x, -centre_y), window, body, coarsen),
        view=window,
        coarsen=coarsen,
        solid=solid.to(device),
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
    view: tuple[float, float, float, float] | None = (-4.0, 6.0, -2.5, 2.5),
    coarsen: int = 1,
    speed: float = 0.1,
    perturbation: float | Sequence[float] = 0.0,
    sponge: float = 3.0,
    scheme: Scheme = "trt",
    smagorinsky: float = 0.0,
    dtype: torch.dtype = torch.float32,
    device: str = "cpu",
) -> Case:
    """Two cylinders behind each other; the second one is on a spring and moves across the stream.

    Args:
        reynolds: One per sample.
        mass: Of the second cylinder per sample, m / (rho D^2).
        reduced_velocity: U / (f D) per sample, f the natural frequency in vacuum.
        damping_ratio: Per sample, 1 is critical.
        cells: The diameter of both in cells.
        gap: From centre to centre in D; None leaves the first cylinder out.
        travel: The largest displacement in D that can be followed.
        domain: Length and width of the simulated domain in D.
        upstream: From the inflow to the centre of the second cylinder, in D.
        view: As in ``cylinder``, from the centre of the second cylinder at rest.
        coarsen: Frames show means over so many by so many cells.
        speed: U in cells per step.
        perturbation: As in ``cylinder``.
        sponge: As in ``cylinder``.
        scheme: As in ``cylinder``.
        smagorinsky: As in ``cylinder``.
        dtype: Of all arrays.
        device: Of all arrays.
    """
    alone = cylinder(
        reynolds,
        cells=cells,
        domain=domain,
        upstream=upstream,
        view=view,
        coarsen=coarsen,
        speed=speed,
        perturbation=perturbation,
        sponge=sponge,
        scheme=scheme,
        smagorinsky=smagorinsky,
        dtype=dtype,
        device=device,
    )
    rows, columns = alone.start.shape[2:]
    centre = (upstream * cells - 0.5, (rows - 1) / 2)
    body = None if gap is None else circle(centre[0] - gap * cells, centre[1], cells / 2)
    box = _stream_box(speed, "far")
    solid = None if body is None else inside((rows, columns), body)
    start = alone.start
    if solid is not None:
        start = start.masked_fill(solid.to(device), 0.0)
    mount = Oscillator.from_numbers(
        mass_ratio=torch.tensor(mass, dtype=torch.float64),
        reduced_velocity=torch.tensor(reduced_velocity, dtype=torch.float64),
        damping_ratio=torch.tensor(damping_ratio, dtype=torch.float64),
        diameter=cells,
        speed=speed,
    )

    def make_mover(compiled: bool) -> ImmersedCylinder:
        return ImmersedCylinder(
            mount,
            centre=centre,
            diameter=cells,
            travel=travel * cells,
            shape=(rows, columns),
            dtype=dtype,
            device=device,
            compiled=compiled,
        )

    origin = (-centre[0], -centre[1])
    return replace(
        alone,
        name="tandem",
        links=make_links((rows, columns), box, body, dtype, device),
        start=start,
        grid=grid_of((rows, columns), box, cells, origin, alone.view, body, coarsen),
        solid=None if solid is None else solid.to(device),
        mover=make_mover,
    )


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


def _potential_flow(
    shape: tuple[int, int],
    centre: tuple[float, float],
    cells: float,
    speed: float,
    swirl: float | Sequence[float],
    samples: int,
) -> Tensor:
    """The potential flow around a cylinder, with a vortex of radius D one D behind its centre.

    It is what an impulsive start leaves at once. A uniform stream that meets the body would send
    out sound, which comes back from the sides of the domain and is in the force for long.
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
