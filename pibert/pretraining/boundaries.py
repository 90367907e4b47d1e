"""Wrong boundary conditions: additions near a side or a body that violate what holds there.

With the distance d from the side or the surface, a reach delta, the bump f(s) = (1 - s^2)^3 for
s < 1 and zero beyond, and a plane wave S along a random direction, a velocity is changed by

    u += psi_y,  v -= psi_x,  psi = f(d / delta) (a d + b S / |k|).

The change has no divergence, fades out within delta, and violates the condition at d = 0: a is a
velocity along the surface (slip), b one through it (leak, wrong inflow). It is the same in all
frames of a window. Other fields are offset by f(d / delta) (1 + S / 2).

Walls, slip walls, inflows, the surface of a body and the closure of a periodic box can be violated.
A side that is open or an outflow has no condition.
"""

import math
from dataclasses import replace

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from pibert import sample_rng
from pibert.fields import Boundary, FieldSpec, Grid, Normalizer, Sides
from pibert.physics.derivatives import ddx, ddy

UNCONDITIONAL = (Boundary.OPEN, Boundary.OUTFLOW)
REACH = (0.1, 0.25)
"""Range of delta, as a share of the shorter side of the grid."""
LEAST_CELLS = 3.0
"""Smallest delta in cells."""


class BrokenBoundaries:
    """Additions to windows of one spec.

    Args:
        spec: Its grid gives sides, spacing and the body that all samples share.
        normalizer: Statistics of the channels.
        solid_unknown: Unknown points of a sample are its body, if the grid has none.
    """

    def __init__(
        self, spec: FieldSpec, normalizer: Normalizer, *, solid_unknown: bool = False
    ) -> None:
        self.spec, self.normalizer = spec, normalizer
        grid = spec.grid
        ny, nx = grid.shape
        side = min(ny * grid.dy, nx * grid.dx)
        low, high = (share * side for share in REACH)
        least = LEAST_CELLS * max(grid.dx, grid.dy)
        self.reach = (max(low, least), max(high, least))
        distances = side_distances(grid)
        self.targets = tuple(distances)
        """Conditions that can be violated: names of sides, and "body"."""
        fixed = list(distances.values())
        if grid.body is not None and bool(grid.body.any()):
            self.targets = (*self.targets, "body")
            fixed.append(surface_distance(grid.body[None], grid, self.reach[1])[0])
        elif solid_unknown:
            self.targets = (*self.targets, "body")
        self._per_sample = len(self.targets) > len(fixed)
        self._fixed = torch.stack(fixed) if fixed else torch.zeros(0, ny, nx)

    def addition(
        self, known: Bool[Tensor, "b y x"], seeds: Int[Tensor, " b"]
    ) -> Float[Tensor, "b c y x"]:
        """A change of a standardised frame, of any size, zero where not known."""
        d = self._distance(known, seeds)
        low, high = self.reach
        chance = sample_rng.uniform(seeds, "boundary", 4)
        delta = low * (high / low) ** chance[:, 0]
        near = (1 - (d / delta[:, None, None]).square()).clamp(min=0) ** 3
        length = delta * (1 + 2 * chance[:, 1])  # of the wave, one to three reaches
        wave = self._wave(length, 2 * math.pi * chance[:, 2:])
        strength = sample_rng.normal(seeds, "boundary strength", max(2, len(self.spec.channels)))
        size = strength[..., None, None]
        if self.spec.velocity is None:
            change = size[:, : len(self.spec.channels)] * (near * (1 + wave / 2))[:, None]
        else:
            crest = wave * (length / (2 * math.pi))[:, None, None]
            change = self._solenoidal(near * (size[:, 0] * d + size[:, 1] * crest))
        return torch.where(known[:, None], change, 0.0)

    def _distance(self, known: Tensor, seeds: Tensor) -> Tensor:
        """Distance from the side or body that each sample violates."""
        if self._fixed.device != known.device:
            self._fixed = self._fixed.to(known.device)
        lot = sample_rng.integer(seeds, "boundary target", len(self.targets))
        if not len(self._fixed):
            return surface_distance(~known, self.spec.grid, self.reach[1])
        fixed = self._fixed[lot.clamp(max=len(self._fixed) - 1)]
        if not self._per_sample:
            return fixed
        from_body = surface_distance(~known, self.spec.grid, self.reach[1])
        return torch.where((lot == len(self._fixed))[:, None, None], from_body, fixed)

    def _wave(self, length: Tensor, angles: Tensor) -> Tensor:
        """sin(k . x + phase) of each sample."""
        x, y = self.spec.grid.coordinates(device=length.device)
        direction, phase = angles[:, 0], angles[:, 1]
        k = 2 * math.pi / length
        kx, ky = k * torch.cos(direction), k * torch.sin(direction)
        return torch.sin(kx[:, None, None] * x + ky[:, None, None] * y + phase[:, None, None])

    def _solenoidal(self, psi: Tensor) -> Tensor:
        """Standardised velocity of a stream function that need not be periodic."""
        assert self.spec.velocity is not None
        opened = replace(self.spec.grid, sides=Sides(), body=None)
        u, v = self.spec.velocity
        channels = [torch.zeros_like(psi) for _ in self.spec.channels]
        channels[u] = ddy(psi, opened) / self.normalizer.std[u]
        channels[v] = -ddx(psi, opened) / self.normalizer.std[v]
        return torch.stack(channels, dim=1)


def side_distances(grid: Grid) -> dict[str, Float[Tensor, "y x"]]:
    """Distance of every point from each side that has a condition."""
    ny, nx = grid.shape
    column = grid.dx * torch.arange(nx, dtype=torch.float32).expand(ny, nx)
    row = grid.dy * torch.arange(ny, dtype=torch.float32)[:, None].expand(ny, nx)
    distances = {"left": column, "right": column.flip(1), "bottom": row, "top": row.flip(0)}
    return {
        name: distances[name].contiguous()
        for name, kind in zip(Sides._fields, grid.sides, strict=True)
        if kind not in UNCONDITIONAL
    }


def surface_distance(
    body: Bool[Tensor, "b y x"], grid: Grid, reach: float
) -> Float[Tensor, "b y x"]:
    """Distance from the surface of a body, negative inside, no more than the reach.

    The surface lies half a cell outside the points of the body. Exact between points (Euclidean,
    axis by axis), periodic sides included.
    """
    half = grid.cell_length / 2
    outside = _distance_to(body, grid, reach + half) - half
    inside = _distance_to(~body, grid, reach + half) - half
    return torch.where(body, -inside, outside).clamp(-reach, reach)


def _distance_to(points: Tensor, grid: Grid, reach: float) -> Tensor:
    """Distance from the nearest of the points, no more than the reach."""
    squared = torch.where(points, 0.0, reach**2)
    for dim, step, periodic in ((1, grid.dy, grid.periodic_y), (2, grid.dx, grid.periodic_x)):
        size = squared.shape[dim]
        radius = min(math.ceil(reach / step), size - 1)
        low, high = squared.narrow(dim, size - radius, radius), squared.narrow(dim, 0, radius)
        if not periodic:
            low = high = torch.full_like(low, reach**2)
        windows = torch.cat((low, squared, high), dim).unfold(dim, 2 * radius + 1, 1)
        shift = torch.arange(-radius, radius + 1, dtype=squared.dtype, device=squared.device)
        squared = (windows + (step * shift).square()).amin(-1)
    return squared.sqrt().clamp(max=reach)
