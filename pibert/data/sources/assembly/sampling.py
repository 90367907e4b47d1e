"""Frames of a mesh on one uniform grid.

The mesh may move: every frame is sampled from its own mesh, so fluid and body move on the grid. How
much of the flow the grid loses is measured: the grid, sampled bilinearly at the centres of the
cells, is compared with the values of the cells.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from pibert.data.sources.assembly.frames import CellPlane, Plane, Series
from pibert.data.sources.assembly.naming import standard_name
from pibert.data.sources.gridding.cells import Axes, CellSampler, choose_axes
from pibert.data.sources.gridding.layout import percent
from pibert.data.sources.gridding.raster import GridError
from pibert.data.sources.recordings import SourceError
from pibert.fields import Boundary, Sides

MASKS = ("body", "valid")
"""Fields that every sampled frame has besides its own."""


class MeshSampler:
    """Reads frames of a mesh and samples them on one grid; may be pickled."""

    def __init__(self, read: Callable[[Path], Plane | CellPlane], axes: Axes, moves: bool) -> None:
        self.read, self.axes, self.moves = read, axes, moves
        self._sampler: CellSampler | None = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_sampler": None}

    def __call__(self, path: Path) -> Plane:
        frame = self.read(path)
        if not isinstance(frame, CellPlane):
            raise SourceError(f"{path}: it holds no mesh, unlike the first frame; leave it out")
        return self.sample(frame, path)

    def sample(self, frame: CellPlane, path: Path) -> Plane:
        """A frame on the grid, with ``body`` and ``valid``; NaN where no cell is."""
        before = self._sampler
        if before is None or not frame.mesh.same_as(before.mesh):
            self._sampler = CellSampler(frame.mesh, self.axes)
        sampler = self._sampler
        assert sampler is not None
        if before and not self.moves and not np.array_equal(before.fluid, sampler.fluid):
            raise SourceError(
                f"{path}: its mesh covers other points than the meshes before it, although the "
                "first and the last frame have one mesh; convert these frames separately"
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
    """How frames of a mesh come onto a grid, the first one there, notes for the file and the user.

    Args:
        name: Of the flow.
        series: Its files.
        frame: The first one.
        shape: Rows and columns, where the user says so.
    """
    moves = _moves(series, frame)
    box = series.box
    if moves and box is None:
        used = frame.mesh.points[frame.mesh.corners]
        box = np.stack([used.min(0), used.max(0)])
    sides: Sides = series.facts.get("sides", Sides())
    periodic = sides.left is Boundary.PERIODIC, sides.bottom is Boundary.PERIODIC
    axes, exact = choose_axes(
        name, frame.mesh, shape, of_cells=bool(frame.cells), box=box, periodic=periodic
    )
    sampler = MeshSampler(series.read, axes, moves)
    first = sampler.sample(frame, series.files[0])
    cells, (rows, columns) = len(frame.mesh.ends), first.fields["body"].shape
    notes: dict[str, Any] = {"method": "none", "cells": cells, "to": [rows, columns]}
    remarks = ["the mesh moves: every frame is sampled from its own mesh"] if moves else []
    if exact and frame.cells:
        remarks.append(f"the grid's points are the centres of the mesh's {cells} cells")
    elif not exact:
        if not (frame.points or frame.edges):
            remarks.append(
                "the values are those of cells, without values on the boundary: next to walls the "
                "values of the nearest cells are used; export point values too, if possible"
            )
        remarks.append(
            f"sampled from {cells} cells to {rows} x {columns} points, linearly between centres "
            "and corners of the cells; --shape ROWSxCOLUMNS chooses another grid"
        )
        notes["method"] = "linear between cell centres and corners"
        notes["error"] = _error(series, frame, sampler)
        remarks.append(_error_in_words(notes["error"]))
    for mask, words in (("body", "in a body"), ("valid", "outside the mesh: marked invalid")):
        share = float((first.fields[mask] == (mask == "body")).mean())
        if share:
            remarks.append(f"{percent(share)} of the grid's points lie {words}")
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
    """The rms error of the grid at the cells of the middle frame over the field's deviation."""
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
        sampler.axes.in_steps(frame.mesh.centres()),
        np.stack([frame.cells[name] for name in names]),
        np.stack([plane.fields[name] for name in names]),
        plane.fields["valid"] & ~plane.fields["body"],
    )
    found = error.report()["error"] or {}
    return {name: e["relative"] for name, e in found.items() if e["relative"] is not None}


def _error_in_words(error: dict[str, float]) -> str:
    if not error:
        return "what the grid loses of the mesh's detail could not be measured"
    worst = max(error, key=lambda channel: error[channel])
    return (
        f"the grid gives the values of the mesh's cells back with an rms error of "
        f"{percent(error[worst])} of the fluctuation of {worst} (the worst channel)"
    )
