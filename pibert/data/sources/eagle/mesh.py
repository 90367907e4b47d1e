"""A flow on a triangle mesh that changes from frame to frame, and its way to a uniform grid.

Rasterising is exact for what a mesh of linear triangles means: the value at a grid point is the
barycentric interpolation in the triangle, of that frame's list, that holds the point. A point is
fluid where such a triangle has no disabled node and is not spanned by walls alone. Other points
within the mesh's own bounds are body, which moves with the mesh; beyond them nothing is known.

What the grid cannot hold is measured: the grid is sampled bilinearly at the mesh's nodes, where all
four points around a node are fluid, and compared with the nodes' own values.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from pibert.fields import FieldSpec, Grid, Trajectory

Box = tuple[float, float, float, float]
"""Left, right, bottom and top."""

# Of the barycentric weights, so that a point on an edge lies in both triangles.
_TOLERANCE = 1e-9


class NodeType(IntEnum):
    """The codes of EAGLE's nodes that matter here; 0 is fluid, 4 an inlet, 5 an outlet."""

    DISABLED = 2
    WALL = 6


@dataclass(frozen=True, eq=False, kw_only=True)
class MeshTrajectory:
    """One flow on a mesh: nodes move, and every frame has triangles of its own."""

    name: str
    channels: tuple[str, ...]
    positions: Float[Tensor, "t n 2"]
    triangles: Int[Tensor, "t f 3"]
    fields: Float[Tensor, "t c n"]
    node_types: Int[Tensor, "t n"]
    """Codes of ``NodeType``."""
    source: Mapping[str, Any] = field(default_factory=dict)

    @property
    def num_frames(self) -> int:
        return len(self.positions)

    @property
    def bounds(self) -> Box:
        """The box that holds the mesh in all frames."""
        used = self.positions[self.node_types != NodeType.DISABLED].double()
        (left, bottom), (right, top) = used.amin(0).tolist(), used.amax(0).tolist()
        return left, right, bottom, top


def rasterise(mesh: MeshTrajectory, shape: tuple[int, int], box: Box | None = None) -> Trajectory:
    """The flow at the cell centres of a grid, in memory, with a mask that moves.

    Args:
        mesh: The flow.
        shape: Rows and columns of the grid.
        box: What the grid covers; the bounds of the mesh if not given.
    """
    bounds = mesh.bounds
    grid = _grid_over(bounds if box is None else box, shape)
    states = np.full((mesh.num_frames, len(mesh.channels), *shape), np.nan, dtype=np.float32)
    fluid = np.zeros((mesh.num_frames, *shape), dtype=bool)
    error = _NodeError(mesh.channels)
    for t in range(mesh.num_frames):
        points = (mesh.positions[t].double().numpy() - grid.origin) / (grid.dx, grid.dy)
        values, types = mesh.fields[t].double().numpy(), mesh.node_types[t].numpy()
        triangles = _fluid_triangles(mesh.triangles[t].numpy(), types)
        rows, columns, nodes, weights = _cover(points, triangles, shape)
        fluid[t, rows, columns] = True
        states[t][:, rows, columns] = (values[:, nodes] * weights).sum(-1)
        error.add(points[types == 0], values[:, types == 0], states[t], fluid[t])
    x, y = grid.coordinates(torch.float64)
    left, right, bottom, top = bounds
    inside = (x >= left) & (x <= right) & (y >= bottom) & (y <= top)
    known = torch.from_numpy(fluid)
    finite = torch.from_numpy(states).isfinite().all(1)
    return Trajectory(
        name=mesh.name,
        states=torch.from_numpy(states),
        time=torch.arange(mesh.num_frames, dtype=torch.float64),
        spec=FieldSpec(
            channels=mesh.channels,
            units=("unknown",) * len(mesh.channels),
            grid=grid,
        ),
        body=~known & inside,
        valid=(finite | ~known) & (known | inside),
        source=mesh.source,
        local={"rasterised": {"method": "barycentric, each frame's triangles"} | error.report()},
    )


def _grid_over(box: Box, shape: tuple[int, int]) -> Grid:
    left, right, bottom, top = box
    if not (left < right and bottom < top):
        raise ValueError(f"expected a box (left, right, bottom, top) with an area, found {box}")
    dx, dy = (right - left) / shape[1], (top - bottom) / shape[0]
    return Grid(shape, dx, dy, origin=(left + dx / 2, bottom + dy / 2))


def _fluid_triangles(triangles: np.ndarray, types: np.ndarray) -> np.ndarray:
    corners = types[triangles]
    disabled = (corners == NodeType.DISABLED).any(1)
    solid = (corners == NodeType.WALL).all(1)
    return triangles[~disabled & ~solid]


def _cover(
    points: np.ndarray, triangles: np.ndarray, shape: tuple[int, int]
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """The grid points inside triangles, as (row, column, nodes, weights).

    Positions are in units of the grid: point (row, column) lies at (column, row). Every triangle is
    tried on the grid points of its bounding box, all triangles at once.
    """
    a, b, c = (points[triangles[:, corner]] for corner in range(3))
    area = _cross(b - a, c - a)
    whole = area != 0
    triangles, a, b, c, area = triangles[whole], a[whole], b[whole], c[whole], area[whole]
    corners = np.stack([a, b, c])
    limits = np.array(shape[::-1]) - 1
    low = np.clip(np.ceil(corners.min(0) - _TOLERANCE), 0, limits + 1).astype(np.int64)
    high = np.clip(np.floor(corners.max(0) + _TOLERANCE), -1, limits).astype(np.int64)
    wide, tall = np.maximum(high - low + 1, 0).T
    count = wide * tall
    owner = np.repeat(np.arange(len(triangles)), count)
    place = np.arange(len(owner)) - np.repeat(np.cumsum(count) - count, count)
    columns = low[owner, 0] + place % wide[owner]
    rows = low[owner, 1] + place // wide[owner]
    arm = np.stack([columns, rows], 1) - a[owner]
    to_b = _cross(arm, (c - a)[owner]) / area[owner]
    to_c = _cross((b - a)[owner], arm) / area[owner]
    weights = np.stack([1 - to_b - to_c, to_b, to_c], 1)
    inside = weights.min(1) >= -_TOLERANCE
    return rows[inside], columns[inside], triangles[owner[inside]], weights[inside]


def _cross(p: np.ndarray, q: np.ndarray) -> np.ndarray:
    product: np.ndarray = p[:, 0] * q[:, 1] - p[:, 1] * q[:, 0]
    return product


class _NodeError:
    """Sums up how far the grid, sampled at the nodes, is from the nodes' values."""

    def __init__(self, channels: tuple[str, ...]) -> None:
        self.channels = channels
        self.nodes = self.tested = 0
        self.squares, self.total, self.total_squares = np.zeros((3, len(channels)))

    def add(
        self, points: np.ndarray, values: np.ndarray, states: np.ndarray, fluid: np.ndarray
    ) -> None:
        self.nodes += len(points)
        ny, nx = fluid.shape
        column, row = np.floor(points).astype(np.int64).T
        ok = (column >= 0) & (column < nx - 1) & (row >= 0) & (row < ny - 1)
        ok[ok] = np.all([fluid[row[ok] + i, column[ok] + j] for i in (0, 1) for j in (0, 1)], 0)
        row, column, values = row[ok], column[ok], values[:, ok]
        right, up = points[ok, 0] - column, points[ok, 1] - row
        below, above = (
            (1 - right) * states[:, row + i, column] + right * states[:, row + i, column + 1]
            for i in (0, 1)
        )
        difference = (1 - up) * below + up * above - values
        finite = np.isfinite(difference).all(0)
        values, difference = values[:, finite], difference[:, finite]
        self.tested += values.shape[1]
        self.squares += (difference**2).sum(1)
        self.total += values.sum(1)
        self.total_squares += (values**2).sum(1)

    def report(self) -> dict[str, Any]:
        """Error per channel, rms over the tested nodes, and as a share of the field's deviation."""
        if not self.tested:
            return {"error": None, "nodes_tested": 0.0}
        rms = np.sqrt(self.squares / self.tested)
        variance = self.total_squares / self.tested - (self.total / self.tested) ** 2
        deviation = np.sqrt(np.maximum(variance, 0.0))
        error = {
            name: {"rms": float(r), "relative": float(r / d) if d > 0 else None}
            for name, r, d in zip(self.channels, rms, deviation, strict=True)
        }
        return {"error": error, "nodes_tested": self.tested / self.nodes}
