"""Frames of a mesh, sampled on one uniform grid.

If the mesh moves, each frame is sampled from its own mesh; fluid and body change from frame to
frame. The loss of detail is measured: the grid is interpolated bilinearly at the cell centres and
compared with the cell values.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from pibert.data.sources.assembly.frames import CellPlane, Plane, Series
from pibert.data.sources.assembly.naming import standard_name
from pibert.data.sources.gridding.cell_sampling import CellSampler
from pibert.data.sources.gridding.cells import Axes, choose_axes
from pibert.data.sources.gridding.layout import percent
from pibert.data.sources.gridding.raster import GridError
from pibert.data.sources.recordings import SourceError
from pibert.fields import Boundary, Sides

MASKS = ("body", "valid")
"""Fields that every sampled frame has besides its own."""


class MeshSampler:
    """Reads frames of a mesh and samples them on one grid. It can be pickled."""

    def __init__(self, read: Callable[[Path], Plane | CellPlane], axes: Axes, moves: bool) -> None:
        self.read, self.axes, self.moves = read, axes, moves
        self._sampler: CellSampler | None = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_sampler": None}

    def __call__(self, path: Path) -> Plane:
        frame = self.read(path)
        if not isinstance(frame, CellPlane):
            raise SourceError(
                f"{path}: it holds points without cells, but the first frame is a mesh; leave the "
                "file out or export it like the others"
            )
        return self.sample(frame, path)

    def sample(self, frame: CellPlane, path: Path) -> Plane:
        """A frame on the grid with the masks ``body`` and ``valid``; NaN where no cell is."""
        before = self._sampler
        if before is None or not frame.mesh.same_as(before.mesh):
            try:
                self._sampler = CellSampler(frame.mesh, self.axes)
            except ValueError as error:
                raise SourceError(
                    f"{path}: {error}; give a coarser grid with --shape ROWSxCOLUMNS, or mend the "
                    "mesh and export it again"
                ) from error
        sampler = self._sampler
        assert sampler is not None
        if before and not self.moves and not np.array_equal(before.fluid, sampler.fluid):
            raise SourceError(
                f"{path}: its mesh covers other points than the meshes before it, although the "
                "first and the last frame have the same mesh; convert these frames separately"
            )
        fields = {
            name: sampler.sample(
                frame.cells.get(name),
                frame.points.get(name),
                frame.edges.get(name),
                frame.zeros.get(name),
            )
            for name in frame.fields
        }
        fields |= {"body": sampler.body, "valid": sampler.fluid | sampler.body}
        stated = {name: getattr(frame, name) for name in ("vectors", "names", "units", "time")}
        return Plane(x=self.axes.x, y=self.axes.y, fields=fields, **stated)


def open_mesh(
    name: str, series: Series, frame: CellPlane, shape: tuple[int, int] | None
) -> tuple[MeshSampler, Plane, dict[str, Any], tuple[str, ...]]:
    """Choose the grid for the frames of a mesh.

    Args:
        name: Of the first file, for messages.
        series: Its files.
        frame: The first frame.
        shape: Rows and columns that the user asks for.

    Returns:
        The reader of sampled frames, the first one, and notes for the file and for the user.
    """
    moves, box = _moves(series, frame), series.box
    if moves and box is None:
        used = frame.mesh.points[frame.mesh.corners]
        box = np.stack([used.min(0), used.max(0)])
    sides: Sides = series.facts.get("sides", Sides())
    periodic = sides.left is Boundary.PERIODIC, sides.bottom is Boundary.PERIODIC
    axes, exact = choose_axes(
        name, frame.mesh, shape, on_cells=bool(frame.cells), box=box, periodic=periodic
    )
    sampler = MeshSampler(series.read, axes, moves)
    first = sampler.sample(frame, series.files[0])
    cells, (rows, columns) = len(frame.mesh.ends), first.fields["body"].shape
    notes: dict[str, Any] = {"method": "none", "from": cells, "to": [rows, columns]}
    remarks = ["the mesh moves: each frame is sampled from its own mesh"] if moves else []
    if not exact:
        notes["method"] = "linear between cell centres and corners"
        notes["error"] = _error(series, frame, sampler)
        remarks.append(
            f"sampled from {cells} cells to {rows} x {columns} points, linearly between cell "
            "centres and corners; choose another grid with --shape ROWSxCOLUMNS"
        )
        remarks.append(_error_in_words(notes["error"]))
        if not (frame.points or frame.edges):
            remarks.append(
                "the file has cell values only: next to walls the nearest cell's value is used; "
                "export point values too, if possible"
            )
    elif frame.cells:
        remarks.append(f"the grid points are the centres of the {cells} cells")
    for mask, words in (("body", "in a body"), ("valid", "outside the mesh (marked invalid)")):
        share = float((first.fields[mask] == (mask == "body")).mean())
        if share:
            remarks.append(f"{percent(share)} of the grid points lie {words}")
    return sampler, first, notes, tuple(remarks)


def _moves(series: Series, frame: CellPlane) -> bool:
    if series.moves is not None:
        return series.moves
    # A mesh that moves has moved in the second frame or in the last.
    others = (series.read(file) for file in {*series.files[1:2], *series.files[1:][-1:]})
    return any(
        isinstance(other, CellPlane) and not other.mesh.same_as(frame.mesh) for other in others
    )


def _error(series: Series, first: CellPlane, sampler: MeshSampler) -> dict[str, float]:
    """Rms error of the grid at the cell centres over the field's deviation, in the middle frame."""
    middle = len(series.files) // 2
    file = series.files[middle]
    frame = series.read(file) if middle else first
    if not isinstance(frame, CellPlane):
        return {}
    names = [n for n in frame.cells if standard_name(n)[0] or n.removesuffix("_x") in frame.vectors]
    if not names:
        return {}
    plane = sampler.sample(frame, file)
    error = GridError(tuple(standard_name(name)[0] or name for name in names))
    error.add(
        sampler.axes.to_grid(frame.mesh.centres),
        np.stack([frame.cells[name] for name in names]),
        np.stack([plane.fields[name] for name in names]),
        plane.fields["valid"] & ~plane.fields["body"],
    )
    found = error.report()["error"] or {}
    return {name: e["relative"] for name, e in found.items() if e["relative"] is not None}


def _error_in_words(error: dict[str, float]) -> str:
    if not error:
        return "the loss of detail on the grid could not be measured"
    worst = max(error, key=lambda channel: error[channel])
    return (
        f"the grid reproduces the cell values with an rms error of {percent(error[worst])} of the "
        f"fluctuation of {worst} (the worst channel)"
    )
