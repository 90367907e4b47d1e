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

from pibert.data.sources.gridding.raster import GridError, cover
from pibert.fields import FieldSpec, Grid, Trajectory

Box = tuple[float, float, float, float]
"""Left, right, bottom and top."""


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
    error = GridError(mesh.channels)
    for t in range(mesh.num_frames):
        points = (mesh.positions[t].double().numpy() - grid.origin) / (grid.dx, grid.dy)
        values, types = mesh.fields[t].double().numpy(), mesh.node_types[t].numpy()
        triangles = _fluid_triangles(mesh.triangles[t].numpy(), types)
        found = cover(points[triangles], shape)
        nodes, place = triangles[found.triangle], (found.rows, found.columns)
        fluid[t][place] = True
        states[t][:, *place] = (values[:, nodes] * found.weights).sum(-1)
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
