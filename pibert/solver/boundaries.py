"""Boundaries as a table of links: the populations that arrive from a side or a body.

A cell next to a boundary pulls some populations from a ghost cell, or from a cell inside a body. A
link defines the value there: a combination of populations that have just collided. All links
together are one gather and one scatter per step, whatever the boundaries are.

- periodic: the population that leaves on the opposite side;
- wall, inflow: half-way bounce-back, f_i = f_-i + 6 w_i c_i . velocity, half a cell beyond the last
  cells, with the velocity of the wall or the stream (Ladd, 1994);
- slip: the mirrored population;
- outflow: incoming populations leave with the fastest wave, df/dt + (c_s + U) df/dx = 0, implicit
  upwind, so that sound passes; a faint pull towards the undisturbed stream keeps the mean pressure.
  It also serves as a far field. Vortices need a sponge of higher viscosity in front of it;
- body: interpolated bounce-back, linear (Bouzidi, 2001), with the distance q from cell to surface
  along the link; where there is no room to interpolate, half-way bounce-back.

The force on the body is the momentum exchanged over its links (Ladd, 1994), in lattice units with
density 1. A uniform pressure adds nothing where the surface is closed.
"""

import functools
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from pibert.fields import Boundary
from pibert.solver.lattice import OPPOSITE, SOUND_SPEED, VELOCITIES, WEIGHTS, equilibrium

Shape = Callable[[Tensor, Tensor], Tensor]
"""A body: continuous in (x, y), counted in cells, negative inside and positive outside."""

PRESSURE_PULL = 0.01
MIRROR_X = tuple(VELOCITIES.index((-x, y)) for x, y in VELOCITIES)
MIRROR_Y = tuple(VELOCITIES.index((x, -y)) for x, y in VELOCITIES)


@dataclass(frozen=True)
class Side:
    """The boundary of one side, and the velocity of its wall or stream."""

    kind: Boundary
    velocity: tuple[float, float] = (0.0, 0.0)


class Box(NamedTuple):
    """The four sides of the simulated domain."""

    left: Side
    right: Side
    bottom: Side
    top: Side

    @classmethod
    def periodic(cls) -> "Box":
        return cls(*[Side(Boundary.PERIODIC)] * 4)


@dataclass(frozen=True, eq=False)
class Links:
    """Sources of incoming populations; indices into flattened (9, y + 2, x + 2).

    The body's links come first, those of outflows last.
    """

    target: Int[Tensor, " n"]
    source: Int[Tensor, " n"]
    weight: Float[Tensor, " n"]
    constant: Float[Tensor, " n"]
    second: Int[Tensor, " body"]
    """The other population of the interpolation at a body, and its weight."""
    second_weight: Float[Tensor, " body"]
    direction: Float[Tensor, "body 2"]
    """From the fluid into the body."""
    memory: Float[Tensor, " outflow"]
    """Weight of the value a step ago."""

    def fill(self, f: Tensor, before: Tensor) -> Tensor | None:
        """Fill the ghosts of f, given the populations a step ago; returns the force on a body."""
        flat = f.flatten(1)
        taken = flat[:, self.source]
        value = torch.addcmul(self.constant, taken, self.weight)
        bodies, outflows = len(self.second), len(self.memory)
        if outflows:
            last = before.flatten(1)[:, self.target[-outflows:]]
            value[:, -outflows:] += self.memory * last
        force = None
        if bodies:
            value[:, :bodies] += self.second_weight * flat[:, self.second]
            force = (taken[:, :bodies] + value[:, :bodies]) @ self.direction
        flat.index_copy_(1, self.target, value)
        return force


def inside(shape: tuple[int, int], body: Shape | None) -> Bool[Tensor, "y x"]:
    """True in the cells whose centres lie in the body; cell (row, column) has x = column."""
    if body is None:
        return torch.zeros(shape, dtype=torch.bool)
    rows, columns = (torch.arange(n, dtype=torch.float64) for n in shape)
    y, x = torch.meshgrid(rows, columns, indexing="ij")
    return body(x, y) < 0


def make_links(
    shape: tuple[int, int],
    box: Box,
    body: Shape | None = None,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
) -> Links:
    """The links of a domain of (rows, columns) cells with at most one body shape in it."""
    solid = inside(shape, body)
    _check_room(solid, box)
    on_body = _body_links(solid, body) if body is not None else []
    on_sides = [_side_link(shape, box, cell, i) for cell, i in _arrivals_from_outside(shape)]
    links = on_body + sorted(on_sides, key=lambda link: link.memory > 0)
    outflows = [link for link in links if link.memory > 0]

    def index(slots: Iterable[tuple[int, int, int]]) -> Tensor:
        rows, columns = shape[0] + 2, shape[1] + 2
        flat = [(i * rows + y) * columns + x for i, y, x in slots]
        return torch.tensor(flat, dtype=torch.long, device=device)

    def real(values: list[float]) -> Tensor:
        return torch.tensor(values, dtype=dtype, device=device)

    directions = [VELOCITIES[OPPOSITE[link.target[0]]] for link in on_body]
    return Links(
        target=index(link.target for link in links),
        source=index(link.source for link in links),
        weight=real([link.weight for link in links]),
        constant=real([link.constant for link in links]),
        second=index(link.second for link in on_body),
        second_weight=real([link.second_weight for link in on_body]),
        direction=torch.tensor(directions, dtype=dtype, device=device).reshape(-1, 2),
        memory=real([link.memory for link in outflows]),
    )


def _check_room(solid: Tensor, box: Box) -> None:
    """A body may stand on a wall; from all else it keeps two cells away."""
    edges = (solid[:, :2], solid[:, -2:], solid[:2], solid[-2:])
    for name, side, edge in zip(Box._fields, box, edges, strict=True):
        if side.kind is not Boundary.WALL and bool(edge.any()):
            raise ValueError(
                f"the body must stay two cells away from the {name} side, which is {side.kind}"
            )


class _Link(NamedTuple):
    """One row of the table; a slot is (direction, padded row, padded column)."""

    target: tuple[int, int, int]
    source: tuple[int, int, int]
    weight: float = 1.0
    constant: float = 0.0
    memory: float = 0.0
    second: tuple[int, int, int] = (0, 0, 0)
    second_weight: float = 0.0


def _arrivals_from_outside(shape: tuple[int, int]) -> Iterable[tuple[tuple[int, int], int]]:
    """Every (cell, direction) that pulls from a ghost; cells in padded indices, from 1."""
    rows, columns = shape
    border = {(y, x) for y in range(1, rows + 1) for x in (1, columns)}
    border |= {(y, x) for y in (1, rows) for x in range(1, columns + 1)}
    for y, x in sorted(border):
        for i, (cx, cy) in enumerate(VELOCITIES):
            if not (1 <= x - cx <= columns and 1 <= y - cy <= rows):
                yield (y, x), i


def _side_link(shape: tuple[int, int], box: Box, cell: tuple[int, int], i: int) -> _Link:
    """The link of population i that arrives at a cell across a side, or two in a corner."""
    rows, columns = shape
    (cx, cy), w = VELOCITIES[i], WEIGHTS[i]
    y, x = cell[0] - cy, cell[1] - cx
    target = (i, y, x)
    crossed = [
        (side, axis)
        for side, axis, out in (
            (box.left, "x", x < 1),
            (box.right, "x", x > columns),
            (box.bottom, "y", y < 1),
            (box.top, "y", y > rows),
        )
        if out
    ]
    # In a corner an inflow overrides a wall, so that exactly the stream enters, and both override
    # sides that let populations pass.
    for kind in (Boundary.INFLOW, Boundary.WALL):
        for side, _ in crossed:
            if side.kind is kind:
                push = 6 * w * (cx * side.velocity[0] + cy * side.velocity[1])
                return _Link(target, (OPPOSITE[i], *cell), constant=push)
    weight, constant, memory = 1.0, 0.0, 0.0
    for side, axis in crossed:
        wraps = side.kind is Boundary.PERIODIC
        if axis == "x":
            x = (x - 1) % columns + 1 if wraps else min(max(x, 1), columns)
        else:
            y = (y - 1) % rows + 1 if wraps else min(max(y, 1), rows)
        if side.kind is Boundary.SLIP:
            i = (MIRROR_X if axis == "x" else MIRROR_Y)[i]
        elif side.kind is Boundary.OUTFLOW:
            wave = SOUND_SPEED + abs(side.velocity[0 if axis == "x" else 1])
            weight = (1 - PRESSURE_PULL) * wave / (1 + wave)
            memory = (1 - PRESSURE_PULL) / (1 + wave)
            constant = PRESSURE_PULL * _stream(side.velocity)[target[0]]
    return _Link(target, (i, y, x), weight, constant, memory)


@functools.cache
def _stream(velocity: tuple[float, float]) -> list[float]:
    """The populations of an undisturbed stream."""
    state = (torch.full((1, 1, 1), value, dtype=torch.float64) for value in (0.0, *velocity))
    return equilibrium(*state).flatten().tolist()


def _body_links(solid: Tensor, body: Shape) -> list[_Link]:
    links = []
    padded = torch.nn.functional.pad(solid, (1, 1, 1, 1))
    # Ghosts are not fluid: they send nothing into the body, and no interpolation uses them.
    ghost = torch.nn.functional.pad(torch.zeros_like(solid), (1, 1, 1, 1), value=True)
    fluid = ~(padded | ghost)
    for i, (cx, cy) in enumerate(VELOCITIES[1:], start=1):
        ahead = padded.roll((-cy, -cx), (0, 1))
        behind = ~fluid.roll((cy, cx), (0, 1))
        y, x = (fluid & ahead).nonzero(as_tuple=True)
        distances = _surface(body, x - 1.0, y - 1.0, cx, cy)
        back = OPPOSITE[i]
        for q, row, column, blocked in zip(
            distances.tolist(), y.tolist(), x.tolist(), behind[y, x].tolist(), strict=True
        ):
            here = (i, row, column)
            if q >= 0.5:
                second, weight = (back, row, column), 0.5 / q
            elif blocked:
                second, weight = here, 1.0
            else:
                second, weight = (i, row - cy, column - cx), 2 * q
            target = (back, row + cy, column + cx)
            links.append(_Link(target, here, weight, second=second, second_weight=1 - weight))
    return links


def _surface(body: Shape, x: Tensor, y: Tensor, cx: int, cy: int) -> Float[Tensor, " n"]:
    """Position of the surface between (x, y) outside and (x + cx, y + cy) inside, 0 to 1."""
    x, y = x.double(), y.double()
    near, far = torch.zeros_like(x), torch.ones_like(x)
    for _ in range(50):
        middle = 0.5 * (near + far)
        is_inside = body(x + middle * cx, y + middle * cy) < 0
        near, far = torch.where(is_inside, near, middle), torch.where(is_inside, middle, far)
    return 0.5 * (near + far)
