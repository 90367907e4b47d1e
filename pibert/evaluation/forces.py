"""The mean force on bodies at rest, from the momentum balance of a control volume around them.

With <> the mean over a time T, m = <u>, nu the kinematic viscosity, n the outward normal of a
rectangle S around all bodies, and unit density,

    t_ij = <u_i u_j> - nu (d m_i / dx_j + d m_j / dx_i),   a = (u(T) - u(0)) / T
    F_i  = - integral over S of (t_ij n_j + p n_i) - integral over its inside of a_i.

The mean pressure p comes from the momentum equation along S, dp/dx_i = -d t_ij / dx_j - a_i; the
difference that remains after a full turn is distributed evenly over it. F is the force of the fluid
on the bodies: the drag, in the direction of x, is positive behind a body that slows the flow.
"""

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from pibert.fields import Grid
from pibert.physics import derivatives

MARGIN = 1.0
"""Distance of the rectangle from the bodies, in their height, where the grid reaches so far."""
LEAST_MARGIN = 3
"""Points between a body and the rectangle, so that no stencil reaches the body."""
STENCIL = 2
"""Points between the rectangle and the border."""

Rectangle = tuple[int, int, int, int]
"""First and last row, first and last column."""


def rectangle_around(
    body: Bool[Tensor, "y x"], known: Bool[Tensor, "y x"], grid: Grid
) -> Rectangle | None:
    """The rectangle around all bodies; None if it does not fit, or lies on unknown points.

    ``known`` is where, outside bodies, the velocity is known at all times.
    """
    ends = []
    height = body.any(1).sum() * grid.dy
    for axis, step in ((0, grid.dy), (1, grid.dx)):
        inside = body.any(1 - axis).nonzero()[:, 0]
        if not len(inside):
            return None
        reach = max(LEAST_MARGIN, round(MARGIN * float(height) / step))
        first = max(STENCIL, int(inside[0]) - reach)
        last = min(body.shape[axis] - 1 - STENCIL, int(inside[-1]) + reach)
        if first > int(inside[0]) - LEAST_MARGIN or last < int(inside[-1]) + LEAST_MARGIN:
            return None
        ends += [first, last]
    top, bottom, left, right = ends
    near = torch.zeros_like(body)
    near[top - STENCIL : bottom + STENCIL + 1, left - STENCIL : right + STENCIL + 1] = True
    near[top + STENCIL + 1 : bottom - STENCIL, left + STENCIL + 1 : right - STENCIL] = False
    return None if bool((near & ~known).any()) else (top, bottom, left, right)


def mean_force(
    velocity: Float[Tensor, "t 2 y x"],
    around: Rectangle,
    grid: Grid,
    *,
    viscosity: float,
    dt: float,
) -> Float[Tensor, "2"]:
    """The mean force per density and depth, (x, y), from the balance of a control volume.

    The velocity is zero inside bodies and where not known; the viscosity is kinematic.
    """
    u = velocity.double()
    mean = u.mean(0)
    slopes = torch.stack(derivatives.gradient(mean, grid))  # (direction, component, y, x)
    flux = torch.einsum("tiyx,tjyx->ijyx", u, u) / len(u)
    flux = flux - viscosity * (slopes + slopes.transpose(0, 1))
    rate = (u[-1] - u[0]) / (dt * max(1, len(u) - 1))
    spread = derivatives.ddx(flux[:, 0], grid) + derivatives.ddy(flux[:, 1], grid)
    push = -spread - rate  # the gradient of the pressure

    top, bottom, left, right = around
    rows, columns = torch.arange(top, bottom + 1), torch.arange(left, right + 1)
    # Counter-clockwise: along the lowest row, up, back, and down.
    sides = (
        (rows.new_full(columns.shape, top), columns, (1, 0)),
        (rows, columns.new_full(rows.shape, right), (0, 1)),
        (rows.new_full(columns.shape, bottom), columns.flip(0), (-1, 0)),
        (rows.flip(0), columns.new_full(rows.shape, left), (0, -1)),
    )
    pressures, start, length = [], torch.zeros((), dtype=u.dtype), 0.0
    for row, column, (x, y) in sides:
        step = grid.dx if x else grid.dy
        along = x * push[0, row, column] + y * push[1, row, column]
        steps = torch.cumulative_trapezoid(along, dx=step)
        pressures.append(torch.cat((start[None], start + steps)))
        start, length = pressures[-1][-1], length + step * len(steps)
    force, passed = torch.zeros(2, dtype=u.dtype), 0.0
    for pressure, (row, column, (x, y)) in zip(pressures, sides, strict=True):
        step = grid.dx if x else grid.dy
        run = passed + step * torch.arange(len(row), dtype=u.dtype)
        pressure = pressure - start * run / length
        normal = torch.tensor((y, -x), dtype=u.dtype)  # outward of a counter-clockwise turn
        through = torch.einsum("ijn,j->in", flux[:, :, row, column], normal)
        force = force - torch.trapezoid(through + pressure * normal[:, None], dx=step)
        passed = float(run[-1])
    inside = rate[:, top : bottom + 1, left : right + 1]
    area = torch.trapezoid(torch.trapezoid(inside, dx=grid.dx), dx=grid.dy)
    return force - area
