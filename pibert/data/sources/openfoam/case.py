"""A plane case: mesh and fields at every time, whole or decomposed, compressed or not.

Frames are the times with a velocity ``U``. A time that only the processors have is read from their
folders. The mesh may move.
"""

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from pibert.data.sources.assembly.frames import CellPlane, Series
from pibert.data.sources.assembly.space import describe_plane
from pibert.data.sources.gridding.cells import CellMesh
from pibert.data.sources.openfoam.boundaries import find_sides
from pibert.data.sources.openfoam.fields import NotEvaluated, is_field, read_field
from pibert.data.sources.openfoam.physics import CaseDictionaries, case_facts, pseudo_time_scheme
from pibert.data.sources.openfoam.polymesh import MeshReader, PolyMesh
from pibert.data.sources.openfoam.storage import Storage, find_storages
from pibert.data.sources.recordings import Hints, SourceError

VELOCITY = "U"
_KNOWN = (VELOCITY, "p", "T", "rho")
"""Fields that are read without being named. OpenFOAM's ``omega`` is no vorticity, but a property of
the turbulence, and ``Ux``, ``Uy``, ``Uz`` repeat the velocity."""
_OVERSET = "cellTypes"
_RANKS = {0.0: 1, 1.0: 0}
"""Rank of solved (0) and interpolated (1) cells of an overset mesh; other cells are holes."""
_GEOMETRY = ("C", "Cx", "Cy", "Cz", "V", _OVERSET)

_Frames = list[tuple[Storage, str]]
"""Where each frame is stored, and the name of its time folder."""


class CaseReader:
    """Reads frames of a case, given as paths of their time folders. It can be pickled."""

    def __init__(
        self, storages: list[Storage], fields: tuple[str, ...], *, has_seconds: bool = True
    ) -> None:
        self.fields, self.has_seconds = fields, has_seconds
        self.meshes = {storage.folders[0]: MeshReader(storage) for storage in storages}

    def __call__(self, folder: Path) -> CellPlane:
        reader, time = self.meshes[folder.parent], folder.name
        mesh = reader.read(time)
        cells: dict[str, np.ndarray] = {}
        edges: dict[str, np.ndarray] = {}
        zeros: dict[str, np.ndarray] = {}
        units: dict[str, str] = {}
        for name in self.fields:
            field = read_field(reader.storage, f"{time}/{name}")
            values = field.cells(mesh.cells)
            on_edges = field.edges(mesh, values)
            columns = {name: 0}
            if field.width == 3:
                columns = {f"{name}_{a}": axis for a, axis in zip("xy", mesh.axes, strict=True)}
                zeros |= dict(zip(columns, mesh.on_symmetry(), strict=True))
            for key, column in columns.items():
                cells[key], edges[key] = values[:, column], on_edges[:, column]
                units |= {} if field.unit is None else {key: field.unit}
        if units.get(f"{VELOCITY}_x") == "m/s":
            units |= {"@x": "m", "@y": "m"} | ({"@t": "s"} if self.has_seconds else {})
        return CellPlane(
            mesh=_without_holes(reader.storage, time, mesh),
            cells=cells,
            edges=edges,
            zeros=zeros,
            vectors=tuple(name for name in self.fields if f"{name}_x" in cells),
            units=units,
            place={"normal": "xyz"[mesh.normal], "position": mesh.position},
            remarks=_describe(mesh),
        )


def open_case(path: Path, hints: Hints) -> Series:
    """The frames of a case."""
    case, remarks = path.absolute(), list[str]()
    storages = find_storages(case)
    frames = _frames(storages)
    for storage in storages:
        if incomplete := storage.incomplete_times():
            listed = ", ".join(sorted(incomplete, key=float)[:8])
            if not any(where == storage and float(time) > 0 for where, time in frames):
                raise SourceError(
                    f"{path}: the times {listed} are not in the folders of all processors; copy "
                    "all of them, or run reconstructPar"
                )
            remarks.append(f"left out, as not all processors have them: the times {listed}")
    if not frames:
        if regions := sorted(mesh.parent.name for mesh in (case / "constant").glob("*/polyMesh")):
            raise SourceError(
                f"{path}: the case has several regions ({', '.join(regions)}), which are not read; "
                "sample a plane of one region (postProcess -region NAME, function object "
                "'surfaces' with 'interpolate true') and give the folder of the samples"
            )
        raise SourceError(
            f"{path}: found no time folders with a field {VELOCITY}, and no sampled surfaces "
            "(postProcessing/NAME/TIME/*.raw, .xy, .vtk, .vtp); give the folder of a case"
        )
    parts = max(storage.parts for storage, _ in frames)
    if parts > 1:
        remarks.append(f"the case is decomposed: read from {parts} processors")
    fields = _fields(frames, hints, remarks)
    is_overset = any(storage.has(f"{time}/{_OVERSET}") for storage, time in frames)
    if is_overset:
        frames = _with_holes(frames, remarks)
    stated = CaseDictionaries(case, remarks)
    read = CaseReader(storages, fields, has_seconds=pseudo_time_scheme(stated) is None)
    frames = _evaluated(frames, read, remarks)
    box, moves = _extent(frames, read)
    return Series(
        files=[storage.folders[0] / time for storage, time in frames],
        read=read,
        times=[float(time) for _, time in frames],
        facts=_facts(frames[-1], read, box, stated),
        moves=moves or is_overset,
        box=box if moves else None,
        remarks=tuple(remarks),
    )


def has_results(path: Path) -> bool:
    """Whether a folder holds times with a velocity."""
    return bool(_frames(find_storages(path)))


def _frames(storages: list[Storage]) -> _Frames:
    found: dict[float, tuple[Storage, str]] = {}
    for storage in storages:
        for name, time in storage.times().items():
            if storage.has(f"{name}/{VELOCITY}"):
                found.setdefault(time, (storage, name))
    return [found[time] for time in sorted(found)]


def _fields(frames: _Frames, hints: Hints, remarks: list[str]) -> tuple[str, ...]:
    """The fields to read: those that all times have, with a known or stated meaning."""
    names = [storage.names(time) for storage, time in frames]
    named = {part for name in hints.channels.values() for part in (name, name[:-2])}
    wanted, others, partial = [], [], []
    for name in sorted(set.union(*names) - set(_GEOMETRY)):
        storage, time = frames[next(i for i, there in enumerate(names) if name in there)]
        if not storage.has(f"{time}/{name}") or not is_field(storage, f"{time}/{name}"):
            continue
        if not all(name in there for there in names):
            partial.append(name)
        elif name in named or name in _KNOWN:
            wanted.append(name)
        else:
            others.append(name)
    if partial:
        lacking = [t for (_, t), there in zip(frames, names, strict=True) if set(partial) - there]
        more = " ..." if len(lacking) > 8 else ""
        remarks.append(
            f"not read, because they are missing at the times {', '.join(lacking[:8])}{more}: "
            f"{', '.join(partial)}"
        )
    if others:
        remarks.append(
            f"not read: {', '.join(others)}; to keep one, name all channels, such as --channels "
            f"u={VELOCITY}_x,v={VELOCITY}_y,{others[0]}={others[0]}"
        )
    return tuple(wanted)


def _with_holes(frames: _Frames, remarks: list[str]) -> _Frames:
    """The frames of an overset mesh that state its holes."""
    kept = [(storage, time) for storage, time in frames if storage.has(f"{time}/{_OVERSET}")]
    gone = [time for storage, time in frames if (storage, time) not in kept]
    if gone:
        remarks.append(
            f"left out, as {_OVERSET} (the holes of the overset mesh) is missing: the times "
            f"{', '.join(gone)}"
        )
    return kept


def _evaluated(frames: _Frames, read: CaseReader, remarks: list[str]) -> _Frames:
    """Without a start that OpenFOAM computes when it runs."""
    for place, (storage, time) in enumerate(frames):
        try:
            read(storage.folders[0] / time)
            return frames[place:]
        except NotEvaluated as error:
            remarks.append(f"the time {time} was left out: {error}")
    raise SourceError(f"{frames[0][0].folders[0]}: {remarks[-1]}, and there is no other time")


def _extent(frames: _Frames, read: CaseReader) -> tuple[np.ndarray, bool]:
    """[[left, bottom], [right, top]] of the meshes of all frames, and whether the mesh moves."""
    storage, time = frames[0]
    axes = list(read.meshes[storage.folders[0]].read(time).axes)
    low, high = np.full(2, np.inf), np.full(2, -np.inf)
    seen: dict[tuple[Path, str], None] = {}
    for storage, time in frames:
        reader = read.meshes[storage.folders[0]]
        folder = reader.instance("points", time)
        if (storage.folders[0], folder) not in seen:
            seen[storage.folders[0], folder] = None
            for points in reader.points(folder):
                low = np.minimum(low, points[:, axes].min(0, initial=np.inf))
                high = np.maximum(high, points[:, axes].max(0, initial=-np.inf))
    return np.stack([low, high]), len({folder for _, folder in seen}) > 1


def _facts(
    frame: tuple[Storage, str], read: CaseReader, box: np.ndarray, stated: CaseDictionaries
) -> dict[str, Any]:
    """Sides and physics, as ``Series.facts``."""
    storage, time = frame
    mesh = read.meshes[storage.folders[0]].read(time)
    velocity = read_field(storage, f"{time}/{VELOCITY}")
    sides, note = find_sides(mesh, velocity, velocity.cells(mesh.cells), box)
    stated.remarks.append(note)
    return {"sides": sides, **case_facts(stated, is_wedge=mesh.is_wedge)}


def _without_holes(storage: Storage, time: str, mesh: PolyMesh) -> CellMesh:
    """The mesh, with ranks of its cells if it is an overset mesh."""
    if not storage.has(f"{time}/{_OVERSET}"):
        return mesh.mesh
    kinds = read_field(storage, f"{time}/{_OVERSET}").cells(mesh.cells)[:, 0]
    ranks = [_RANKS.get(float(kind), -1) for kind in np.rint(kinds)]
    return replace(mesh.mesh, rank=np.array(ranks))


def _describe(mesh: PolyMesh) -> tuple[str, ...]:
    remarks = describe_plane(mesh.normal)
    if mesh.is_wedge:
        remarks.append("a wedge, so the flow is axisymmetric: equations for plane flow do not hold")
    return tuple(remarks)
