"""Flows in series of files with one frame each, such as those of VTK and OpenFOAM.

Frames are read on demand. Points and grids are those of the first frame. Frames of a mesh are
sampled on one uniform grid; if the mesh moves, each frame is sampled from its mesh, and fluid and
body change from frame to frame.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from pibert.data.readers.recordings import Hints, Recordings, SourceError
from pibert.data.readers.shared.assembly import join, make_recordings
from pibert.data.readers.shared.cells import Axes, CellMesh, CellSampler, choose_axes
from pibert.data.readers.shared.interpolation import GridError, describe_error, percent
from pibert.data.readers.shared.naming import standard_name
from pibert.data.readers.shared.roles import Variable
from pibert.data.readers.shared.stores import Where
from pibert.fields import Boundary, Sides


@dataclass(frozen=True, eq=False, kw_only=True)
class _Frame:
    vectors: tuple[str, ...] = ()
    """Vector fields; their components in the plane are the fields ``NAME_x`` and ``NAME_y``."""
    names: dict[str, str] = field(default_factory=dict)
    """Our names for fields where they differ from those in the file."""
    units: dict[str, str] = field(default_factory=dict)
    """Known units of the fields, and of ``@x``, ``@y`` and ``@t``."""
    time: float | None = None
    placement: Mapping[str, Any] | None = None
    """Position of the plane in space: ``{"normal": "z", "position": 0.5}``."""
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, eq=False, kw_only=True)
class Plane(_Frame):
    """A flow on points: axes (x,) and (y,), meshes (y, x) or scattered (n,), with its fields."""

    x: np.ndarray
    y: np.ndarray
    fields: dict[str, np.ndarray]
    """Scalars by name."""


@dataclass(frozen=True, eq=False, kw_only=True)
class CellPlane(_Frame):
    """A flow on a mesh; a field has cell values (m,), point values (n,), or both."""

    mesh: CellMesh
    cells: dict[str, np.ndarray] = field(default_factory=dict)
    points: dict[str, np.ndarray] = field(default_factory=dict)
    edges: dict[str, np.ndarray] = field(default_factory=dict)
    """Known boundary values on the mesh's edges (f,)."""
    zeros: dict[str, np.ndarray] = field(default_factory=dict)
    """Points at which a field is zero, as the velocity normal to a symmetry plane."""

    @property
    def fields(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys([*self.cells, *self.points]))


@dataclass(frozen=True, eq=False, kw_only=True)
class Series:
    """The files of one flow, one per frame, and their common facts."""

    files: Sequence[Path]
    read: Callable[[Path], Plane | CellPlane]
    """Reads one file. It can be pickled."""
    times: Sequence[float] | None = None
    source: Mapping[str, Any] = field(default_factory=dict)
    facts: Mapping[str, Any] = field(default_factory=dict)
    """Sides, viscosity and parameters, as ``assembly.make_recordings`` takes them; ``counted`` if
    times are numbers of files."""
    moves: bool | None = None
    """Whether the mesh moves; None: compare the meshes of the first and the last frames."""
    box: np.ndarray | None = None
    """[[left, bottom], [right, top]] around a moving mesh in all frames."""
    notes: tuple[str, ...] = ()


MASKS = ("body", "valid")
"""Fields that sampling adds to every frame."""


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
            raise SourceError(f"{path}: points without cells, unlike the first frame; leave it out")
        return self.sample(frame, path)

    def sample(self, frame: CellPlane, path: Path) -> Plane:
        """Return a frame on the grid with masks ``body`` and ``valid``; NaN outside all cells."""
        before = self._sampler
        if before is None or not frame.mesh.same_as(before.mesh):
            try:
                self._sampler = CellSampler(frame.mesh, self.axes)
            except ValueError as error:
                raise SourceError(
                    f"{path}: {error}; give a coarser grid (--shape ROWSxCOLUMNS)"
                ) from error
        sampler = self._sampler
        assert sampler is not None
        if before and not self.moves and not np.array_equal(before.fluid, sampler.fluid):
            raise SourceError(
                f"{path}: its mesh covers other points than the first and last; convert it "
                "separately"
            )
        given = (frame.cells, frame.points, frame.edges, frame.zeros)
        fields = {n: sampler.sample(*(values.get(n) for values in given)) for n in frame.fields}
        fields |= {"body": sampler.body, "valid": sampler.fluid | sampler.body}
        stated = {name: getattr(frame, name) for name in ("vectors", "names", "units", "time")}
        return Plane(x=self.axes.x, y=self.axes.y, fields=fields, **stated)


def open_mesh(
    name: str, series: Series, frame: CellPlane, shape: tuple[int, int] | None
) -> tuple[MeshSampler, Plane, dict[str, Any], tuple[str, ...]]:
    """Choose the grid for the frames of a mesh, with ``shape`` rows and columns if given.

    Returns the reader of sampled frames, the first of them, the record for ``local``, and notes.
    """
    moves, box = series.moves, series.box
    if moves is None:
        # A mesh that moves has moved in the second frame or in the last.
        others = [series.read(file) for file in {*series.files[1:2], *series.files[1:][-1:]}]
        meshes = [other.mesh for other in others if isinstance(other, CellPlane)]
        moves = not all(mesh.same_as(frame.mesh) for mesh in meshes)
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
    record: dict[str, Any] = {"method": "none", "from": cells, "to": [rows, columns]}
    notes = ["the mesh moves: each frame is sampled from its mesh"] if moves else []
    if not exact:
        record["method"] = "linear between cell centres and corners"
        record["error"] = _error(series, frame, sampler)
        notes.append(
            f"sampled from {cells} cells to {rows} x {columns} points (--shape ROWSxCOLUMNS: "
            "another grid)"
        )
        notes.append(describe_error(record["error"]))
        if not (frame.points or frame.edges):
            notes.append(
                "near walls the nearest cell's value is used: the file has no point values"
            )
    elif frame.cells:
        notes.append(f"the grid points are the centres of the {cells} cells")
    for mask, words in (("body", "in a body"), ("valid", "outside the mesh (marked invalid)")):
        share = float((first.fields[mask] == (mask == "body")).mean())
        if share:
            notes.append(f"{percent(share)} of the grid points lie {words}")
    return sampler, first, record, tuple(notes)


def _error(series: Series, first: CellPlane, sampler: MeshSampler) -> dict[str, float]:
    """Return the relative rms error of the grid at the cell centres, in the middle frame."""
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
    return error.relative


class SeriesStore:
    """The fields of a series as arrays over its frames, with coordinates ``@x``, ``@y``, ``@t``."""

    def __init__(
        self,
        path: Path,
        files: Sequence[Path],
        read: Callable[[Path], Any],
        first: Plane,
        times: Sequence[float] | None,
    ) -> None:
        self.path, self.times, self.first = path.absolute(), times, first
        self.files, self.read_plane = [file.absolute() for file in files], read
        # Keep the frames of the last call: often another channel of them is read next.
        self._held: dict[int, Plane] = {}

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_held": {}}

    def read(self, key: str, where: Where) -> np.ndarray:
        if key == "@t":
            return np.asarray(self.times)[where]
        if key in ("@x", "@y"):
            return (self.first.x if key == "@x" else self.first.y)[where]
        if len(where) == self.first.fields[key].ndim:
            return self.first.fields[key][where]  # a mask that is the same in all frames
        assert isinstance(where[0], slice)
        wanted = range(*where[0].indices(len(self.files)))
        self._held = {frame: self._held.get(frame) or self._frame(frame) for frame in wanted}
        blocks = [self._held[frame].fields[key][where[1:]] for frame in wanted]
        return np.stack(blocks) if blocks else np.empty((0, *self.first.fields[key].shape))

    def _frame(self, frame: int) -> Plane:
        plane, file = self.read_plane(self.files[frame]), self.files[frame]
        if not isinstance(plane, Plane):
            raise SourceError(f"{file}: it holds a mesh, unlike the first frame; leave it out")
        if missing := [name for name in self.first.fields if name not in plane.fields]:
            raise SourceError(
                f"{file}: the field {missing[0]!r} of {self.files[0].name} is missing; leave it out"
            )
        for points, first in ((plane.x, self.first.x), (plane.y, self.first.y)):
            near = 1e-6 * np.ptp(first)
            if points.shape != first.shape or not np.allclose(points, first, atol=near):
                raise SourceError(
                    f"{file}: its points differ from those of {self.files[0].name}; export the "
                    "cells too"
                )
        return plane


def open_series(
    kind: str, path: Path, series: Series, hints: Hints, *, name: str | None = None
) -> Recordings:
    """Return the flow in a series of files; ``path`` is the one that the user gave."""
    frame = series.read(series.files[0])
    if not frame.fields:
        raise SourceError(f"{series.files[0]}: it holds no scalar or vector field; export it again")
    notes = [*series.notes, *frame.notes]
    local = dict(series.facts.get("local", {}))
    if frame.placement is not None:
        local["plane"] = dict(frame.placement)
    read: Callable[[Path], Any] = series.read
    if isinstance(frame, CellPlane):
        read, frame, record, noticed = open_mesh(f"{series.files[0]}", series, frame, hints.shape)
        hints = replace(hints, shape=None)
        local["gridding"] = record
        notes += noticed
    times = series.times
    if times is None and len(series.files) == 1 and frame.time is not None:
        times = [frame.time]
    store = SeriesStore(path, series.files, read, frame, times)
    return make_recordings(
        kind,
        store,
        _variables(store, rests=isinstance(read, MeshSampler) and not read.moves),
        hints,
        source=series.source,
        facts={**series.facts, "local": local},
        notes=notes,
        name=name,
    )


def join_series(kind: str, path: Path, series: Mapping[str, Series], hints: Hints) -> Recordings:
    """Join several series by name; those without a plane flow are left out, with a note."""
    flows: list[Recordings] = []
    errors: list[SourceError] = []
    for name, one in series.items():
        try:
            flows.append(open_series(kind, path, one, hints, name=name))
        except SourceError as error:
            errors.append(error)
    if not flows:
        raise errors[0]
    joined = join(kind, path, flows)
    left_out = tuple(f"left out: {error}" for error in errors)
    return replace(joined, notes=(*joined.notes, *left_out))


def _variables(store: SeriesStore, *, rests: bool) -> list[Variable]:
    """Describe the arrays of a series; masks of a mesh at rest have one frame."""
    first, count, times = store.first, len(store.files), store.times
    axes = {"x": first.x, "y": first.y} | ({} if times is None else {"t": np.asarray(times)})
    found = []
    for letter, axis in axes.items():
        key, unit = f"@{letter}", first.units.get(f"@{letter}")
        found.append(Variable(key=key, shape=axis.shape, dtype=axis.dtype, unit=unit, name=letter))
    names = dict(first.names)
    if len(first.vectors) == 1 and not {"u", "v"} & {standard_name(k)[0] for k in first.fields}:
        # A single vector is the velocity, whatever its name.
        names = {f"{first.vectors[0]}_x": "u", f"{first.vectors[0]}_y": "v"} | names
    for key, values in first.fields.items():
        still = rests and key in MASKS
        if still and (values == (key == "valid")).all():
            continue  # nothing is masked
        found.append(
            Variable(
                key=key,
                shape=values.shape if still else (count, *values.shape),
                dtype=values.dtype,
                unit=first.units.get(key),
                # Scattered points lie along x.
                axes="yx" if still else "tyx" if values.ndim == 2 else "tx",
                name=names.get(key),
            )
        )
    return found
