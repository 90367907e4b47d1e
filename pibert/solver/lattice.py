"""The D2Q9 lattice: populations, moments, and one fused step of streaming and collision.

Populations f_i move along c_i (x, y), one cell per step. Arrays store the deviation f_i - w_i from
a fluid at rest, which keeps float32 accurate. The equilibrium is the incompressible one of He and
Luo (1997): its zeroth moment r is a pressure, p = r / 3, its first the velocity itself.

An array of populations is (b, 9, y + 2, x + 2), with one ring of ghost cells around the flow. A
step pulls f_i from the cell at -c_i and collides. ``pibert.solver.boundaries`` fills the ghosts and
the cells inside a body; the step itself treats all cells alike.

Collision operators, with the relaxation time tau = 3 nu + 1/2:

- ``trt``: two relaxation times (Ginzburg, 2005), tau and tau' such that (tau - 1/2) (tau' - 1/2) is
  the magic number 3/16, which puts a straight wall exactly half-way between cells.
- ``regularised``: recursive regularisation to fourth order (Malaspinas, 2015; Coreixas, 2017): more
  dissipative at the scale of the lattice, and stable at far higher Reynolds numbers.

The Smagorinsky term adds the viscosity (C dx)^2 |S| with the strain rate S from the stress (Hou,
1996). A body force enters as in Guo (2002): half before and half after the collision.
"""

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from pibert.compilation import compile_if_possible

VELOCITIES = ((0, 0), (1, 0), (0, 1), (-1, 0), (0, -1), (-1, -1), (1, -1), (1, 1), (-1, 1))
"""c_i as (x, y). The first is at rest and the last points up: ``_pull`` relies on both."""
WEIGHTS = (4 / 9, *[1 / 9] * 4, *[1 / 36] * 4)
OPPOSITE = tuple(VELOCITIES.index((-x, -y)) for x, y in VELOCITIES)
PAIRS = ((1, 3), (2, 4), (7, 5), (8, 6))
"""Opposite populations along x, y, the rising and the falling diagonal."""
SOUND_SPEED = 1 / math.sqrt(3)
MAGIC = 3 / 16

Populations = Float[Tensor, "b 9 y x"]
Padded = Float[Tensor, "b 9 rows columns"]
"""With the ring of ghosts."""
Scheme = Literal["trt", "regularised"]
Step = Callable[[Tensor], Tensor]
"""Maps populations to the next ones: one time step without the boundaries."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Fluid:
    """Parameters of the collision, in lattice units."""

    viscosity: Float[Tensor, " b #y #x"]
    """Per sample; it may vary in space, as in a sponge."""
    scheme: Scheme = "trt"
    smagorinsky: float = 0.0
    """The constant C, usually 0.1 to 0.2; 0 leaves the term out."""
    force: Float[Tensor, "2 b 1 1"] | None = None
    """Body force per mass along x and y."""

    def __post_init__(self) -> None:
        if self.scheme not in ("trt", "regularised"):
            raise ValueError(f"scheme must be 'trt' or 'regularised', found {self.scheme!r}")
        if not bool((self.viscosity > 0).all()):
            raise ValueError(f"viscosity must be positive, found {self.viscosity.min().item():g}")
        if not self.smagorinsky >= 0:
            raise ValueError(f"smagorinsky must not be negative, found {self.smagorinsky}")


def equilibrium(r: Tensor, u: Tensor, v: Tensor) -> Populations:
    """Equilibrium populations for pressure r / 3 and velocity (u, v), each (b, y, x)."""
    square = 1.5 * (u * u + v * v)
    populations = []
    for (cx, cy), w in zip(VELOCITIES, WEIGHTS, strict=True):
        along = cx * u + cy * v
        populations.append(w * (r + 3 * along + 4.5 * along * along - square))
    return torch.stack(populations, 1)


def moments(f: Populations) -> tuple[Tensor, Tensor, Tensor]:
    """Return (r, u, v); with a body force, u and v are too large by half a step's force."""
    _, east, north, west, south, sw, se, ne, nw = f.unbind(1)
    u = east - west + ((ne - sw) + (se - nw))
    v = north - south + ((ne - sw) + (nw - se))
    return f.sum(1), u, v


def pad(f: Populations) -> Padded:
    """Add a ring of ghost cells equal to their neighbours."""
    return torch.nn.functional.pad(f, (1, 1, 1, 1), "replicate")


def interior(f: Padded) -> Populations:
    """A view without the ring of ghost cells."""
    return f[..., 1:-1, 1:-1]


def make_step(fluid: Fluid, *, compiled: bool = False) -> Step:
    """Return the step of a fluid; ``compiled`` fuses it into one kernel, which may take minutes."""
    viscosity = fluid.viscosity
    if viscosity.shape[1] > 1 or viscosity.shape[2] > 1:
        ghosts = [int(n > 1) for n in (viscosity.shape[2],) * 2 + (viscosity.shape[1],) * 2]
        viscosity = torch.nn.functional.pad(viscosity[:, None], ghosts, "replicate")[:, 0]
    tau = 3 * viscosity + 0.5
    even = 1 / tau
    odd = 1 / (MAGIC / (tau - 0.5) + 0.5) if fluid.scheme == "trt" else None
    force = None if fluid.force is None else tuple(fluid.force)
    kernel = _compile(_stream_and_collide) if compiled else _stream_and_collide

    def step(f: Tensor) -> Tensor:
        assert f.is_contiguous() and f.storage_offset() == 0  # for the views of ``_pull``
        return kernel(f, even, odd, force, fluid.smagorinsky)

    return step


@functools.cache
def _compile(kernel: Callable[..., Tensor]) -> Callable[..., Tensor]:
    # By default the compiler stores moments that are read often, and the step takes several passes.
    one_pass = {"realize_reads_threshold": 10_000, "realize_opcount_threshold": 10_000}
    return compile_if_possible(kernel, options=one_pass)


def _pull(f: Tensor) -> list[Tensor]:
    """Views of f_i at -c_i for every cell, each (b, y + 2, x + 2).

    Moving the start of a plane shifts it. In ghost cells this reaches past a row or into the next
    plane: they get meaningless values, which no cell of the flow pulls.
    """
    b, _, rows, columns = f.shape
    plane = rows * columns
    return [
        f.as_strided((b, rows, columns), (9 * plane, columns, 1), i * plane - cy * columns - cx)
        for i, (cx, cy) in enumerate(VELOCITIES)
    ]


def _stream_and_collide(
    f: Tensor, even: Tensor, odd: Tensor | None, force: tuple | None, smagorinsky: float
) -> Tensor:
    """One step with the relaxation rates ``even`` and ``odd``; regularised if ``odd`` is None.

    Plain arithmetic that ends in one new array, which a compiler fuses into a single pass.
    """
    g = _pull(f)
    sums = [g[i] + g[j] for i, j in PAIRS]
    differences = [g[i] - g[j] for i, j in PAIRS]
    diagonal = sums[2] + sums[3]
    r = g[0] + sums[0] + sums[1] + diagonal
    u = differences[0] + (differences[2] - differences[3])
    v = differences[1] + (differences[2] + differences[3])
    if force is not None:
        u, v = u + 0.5 * force[0], v + 0.5 * force[1]

    if odd is None or smagorinsky:
        # The stress: second moments less those of the equilibrium.
        s_xx = sums[0] + diagonal - r / 3 - u * u
        s_yy = sums[1] + diagonal - r / 3 - v * v
        s_xy = sums[2] - sums[3] - u * v
        if force is not None:
            s_xx, s_yy = s_xx + u * force[0], s_yy + v * force[1]
            s_xy = s_xy + 0.5 * (u * force[1] + v * force[0])
    if smagorinsky:
        size = torch.sqrt(s_xx * s_xx + s_yy * s_yy + 2 * s_xy * s_xy)
        tau = 1 / even
        tau = 0.5 * (tau + torch.sqrt(tau * tau + 18 * math.sqrt(2) * smagorinsky**2 * size))
        even = 1 / tau
        if odd is not None:
            odd = 1 / (MAGIC / (tau - 0.5) + 0.5)

    if odd is not None:
        new = _relax_pairs(g, sums, differences, (r, u, v), even, odd, force)
    else:
        new = _regularise((r, u, v), (s_xx, s_yy, s_xy), 1 - even, force)
    return torch.stack(new, 1)


def _relax_pairs(
    g: list[Tensor],
    sums: list[Tensor],
    differences: list[Tensor],
    state: tuple[Tensor, Tensor, Tensor],
    even: Tensor,
    odd: Tensor,
    force: tuple | None,
) -> list[Tensor]:
    """The two-relaxation-time collision."""
    r, u, v = state
    base = r - 1.5 * (u * u + v * v)
    half_even, half_odd = 0.5 * even, 0.5 * odd
    new = [g[0] + even * (WEIGHTS[0] * base - g[0])] + [g[0]] * 8
    if force is not None:
        work = u * force[0] + v * force[1]
        new[0] = new[0] - (1 - half_even) * (3 * WEIGHTS[0]) * work
    for (i, j), total, difference in zip(PAIRS, sums, differences, strict=True):
        (cx, cy), w = VELOCITIES[i], WEIGHTS[i]
        along = cx * u + cy * v
        symmetric = half_even * ((2 * w) * (base + 4.5 * along * along) - total)
        antisymmetric = half_odd * ((6 * w) * along - difference)
        if force is not None:
            push = cx * force[0] + cy * force[1]
            symmetric = symmetric + (1 - half_even) * (3 * w) * (3 * along * push - work)
            antisymmetric = antisymmetric + (1 - half_odd) * (3 * w) * push
        new[i] = g[i] + (symmetric + antisymmetric)
        new[j] = g[j] + (symmetric - antisymmetric)
    return new


def _regularise(
    state: tuple[Tensor, Tensor, Tensor],
    stress: tuple[Tensor, Tensor, Tensor],
    keep: Tensor,
    force: tuple | None,
) -> list[Tensor]:
    """The recursive regularised collision: populations rebuilt from their Hermite moments.

    ``keep`` is the share of the stress that remains after the collision. The moments of third and
    fourth order follow from those below (Coreixas, 2017, for D2Q9).
    """
    r, u, v = state
    s_xx, s_yy, s_xy = (keep * s for s in stress)
    a_xxy = u * (u * v + 2 * s_xy) + v * s_xx
    a_xyy = v * (u * v + 2 * s_xy) + u * s_yy
    n_xxy = 2 * u * s_xy + v * s_xx
    a_xxyy = u * v * (u * v + 2 * s_xy) + u * u * s_yy + v * n_xxy
    a_xx, a_yy, a_xy = u * u + s_xx, v * v + s_yy, u * v + s_xy
    if force is not None:
        # The other half of the force, and what it does to the second moments.
        a_xx, a_yy = a_xx + u * force[0], a_yy + v * force[1]
        a_xy = a_xy + 0.5 * (u * force[1] + v * force[0])
        u, v = u + 0.5 * force[0], v + 0.5 * force[1]
    w, axis, corner = WEIGHTS[0], WEIGHTS[1], WEIGHTS[5]
    trace = 1.5 * (a_xx + a_yy)
    base = r - trace
    quarter = 20.25 * a_xxyy
    new = [w * (base + quarter / 9)] + [r] * 8
    for (i, j), a, along, cubic in (
        (PAIRS[0], a_xx, u, a_xyy),
        (PAIRS[1], a_yy, v, a_xxy),
    ):
        symmetric = axis * (base + 4.5 * a - (2 / 9) * quarter)
        antisymmetric = axis * (3 * along - 4.5 * cubic)
        new[i], new[j] = symmetric + antisymmetric, symmetric - antisymmetric
    for (i, j), sign in ((PAIRS[2], 1.0), (PAIRS[3], -1.0)):
        symmetric = corner * (base + 4.5 * (a_xx + a_yy) + (9 * sign) * a_xy + (4 / 9) * quarter)
        antisymmetric = corner * (3 * (sign * u + v) + 9 * (a_xxy + sign * a_xyy))
        new[i], new[j] = symmetric + antisymmetric, symmetric - antisymmetric
    return new
