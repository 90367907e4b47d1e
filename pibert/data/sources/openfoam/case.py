"""A plane case itself: mesh and fields of every time, whole or decomposed, compressed or not.

Frames are the times with a velocity ``U``. Each is taken from the case or, where only the processors
have it, from their folders. The mesh may move.
"""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from pibert.data.sources.assembly.frames import CellPlane, Series
from pibert.data.sources.assembly.naming import standard_name
from pibert.data.sources.gridding.cells import CellMesh
from pibert.data.sources.openfoam.boundaries import find_sides
from pibert.data.sources.openfoam.fields import NotEvaluated, is_field, read_field
from pibert.data.sources.openfoam.polymesh import MeshReader, PolyMesh, first_word
from pibert.data.sources.openfoam.storage import Storage, find_storages
from pibert.data.sources.recordings import Hints, SourceError

VELOCITY = "U"
_OVERSET = "cellTypes"
_RANKS = {0: 1, 1: 0}
"""Of solved and interpolated cells of an overset mesh; all others are holes."""
_GEOMETRY = ("C", "Cx", "Cy", "Cz", "V", _OVERSET)


class CaseReader:
    """Reads frames of a case, named by their time folders; may be pickled."""

    def __init__(self, storages: list[Storage], fields: tuple[str, ...]) -> None:
        self.fields = fields
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
            units |= {"@x": "m", "@y": "m", "@t": "s"}
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
    case = path.absolute()
    storages = find_storages(case)
    frames = _frames(storages)
    if not frames:
        raise SourceError(
            f"{path}: no sampled surfaces (postProcessing/NAME/TIME/*.raw, .xy, .vtk) and no time "
            f"folders with a field {VELOCITY}"
        )
    remarks: list[str] = []
    parts = max(storage.parts for storage, _ in frames)
    if parts > 1:
        remarks.append(f"the case is decomposed: read from the folders of {parts} processors")
    fields = _fields(frames, hints, remarks)
    if _has(frames, _OVERSET):
        kept = [(storage, time) for storage, time in frames if storage.has(f"{time}/{_OVERSET}")]
        gone = [time for storage, time in frames if (storage, time) not in kept]
        if gone:
            remarks.append(f"times without {_OVERSET}, the holes of the mesh: {', '.join(gone)}")
        frames = kept
    read = CaseReader(storages, fields)
    frames = _evaluated(frames, read, remarks)
    times = [float(time) for _, time in frames]
    boxes, moves = _boxes(frames, read)
    facts = _facts(case, frames[-1], read, boxes, remarks)
    return Series(
        files=[storage.folders[0] / time for storage, time in frames],
        read=read,
        times=times,
        facts=facts,
        moves=moves or _has(frames, _OVERSET),
        box=boxes if moves else None,
        remarks=tuple(remarks),
    )


def has_results(path: Path) -> bool:
    """Whether a folder holds times with a velocity."""
    return any(
        storage.has(f"{time}/{VELOCITY}")
        for storage in find_storages(path)
        for time in storage.times()
    )


_Frames = list[tuple[Storage, str]]
"""Where each frame lies, and the name of its time."""


def _frames(storages: list[Storage]) -> _Frames:
    found: dict[float, tuple[Storage, str]] = {}
    for storage in storages:
        for name, time in storage.times().items():
            if storage.has(f"{name}/{VELOCITY}"):
                found.setdefault(time, (storage, name))
    return [found[time] for time in sorted(found)]


def _has(frames: _Frames, field: str) -> bool:
    return any(storage.has(f"{time}/{field}") for storage, time in frames)


def _fields(frames: _Frames, hints: Hints, remarks: list[str]) -> tuple[str, ...]:
    """The fields to read: those with a meaning, or that the user names, at all times."""
    names = [storage.names(time) for storage, time in frames]
    named = {part for name in hints.channels.values() for part in (name, name[:-2])}
    wanted, idle, rare = [], [], []
    for name in sorted(set.union(*names) - set(_GEOMETRY)):
        storage, time = frames[next(i for i, there in enumerate(names) if name in there)]
        if not storage.has(f"{time}/{name}") or not is_field(storage, f"{time}/{name}"):
            continue
        if not all(name in there for there in names):
            rare.append(name)
        elif name in named or standard_name(name)[0] is not None:
            wanted.append(name)
        else:
            idle.append(name)
    if rare:
        remarks.append(f"not read, as they are not at all times: {', '.join(rare)}")
    if idle:
        remarks.append(f"not read: {', '.join(idle)}")
    return tuple(wanted)


def _evaluated(frames: _Frames, read: CaseReader, remarks: list[str]) -> _Frames:
    """Without first frames that OpenFOAM would have to compute, such as a start by ``#calc``."""
    for place, (storage, time) in enumerate(frames):
        try:
            read(storage.folders[0] / time)
            return frames[place:]
        except NotEvaluated as error:
            remarks.append(f"the frame at time {time} was left out: {error}")
    raise SourceError(f"{frames[0][0].folders[0]}: no time has fields that are stated as numbers")


def _boxes(frames: _Frames, read: CaseReader) -> tuple[np.ndarray, bool]:
    """[[left, bottom], [right, top]] around the meshes of all frames, and whether they differ."""
    meshes: dict[tuple[Path, str], list[np.ndarray]] = {}
    for storage, time in frames:
        reader = read.meshes[storage.folders[0]]
        folder = reader.instance("points", time)
        if (storage.folders[0], folder) not in meshes:
            meshes[storage.folders[0], folder] = reader.points(folder)
    first = read.meshes[frames[0][0].folders[0]].read(frames[0][1])
    everything = np.concatenate([points for parts in meshes.values() for points in parts])
    plane = everything[:, list(first.axes)]
    return np.stack([plane.min(0), plane.max(0)]), len({folder for _, folder in meshes}) > 1


def _facts(
    case: Path, frame: tuple[Storage, str], read: CaseReader, box: np.ndarray, remarks: list[str]
) -> dict[str, Any]:
    """Sides and viscosity."""
    storage, time = frame
    mesh = read.meshes[storage.folders[0]].read(time)
    velocity = read_field(storage, f"{time}/{VELOCITY}")
    sides, noticed = find_sides(mesh, velocity, velocity.cells(mesh.cells), box)
    remarks += noticed
    facts: dict[str, Any] = {"sides": sides}
    viscosity = _viscosity(case, remarks)
    if viscosity is not None:
        facts |= {"viscosity": viscosity, "parameters": {"viscosity": viscosity}}
    return facts


def _viscosity(case: Path, remarks: list[str]) -> float | None:
    """The kinematic viscosity of a Newtonian fluid; None where a model changes it."""
    constant = Storage((case / "constant",))

    def stated(*names: str) -> Mapping[str, Any]:
        name = next((name for name in names if constant.has(name)), None)
        try:
            return {} if name is None else constant.read(name)[0].entries()
        except ValueError as error:
            remarks.append(f"constant/{name} was not read: {error}")
            return {}

    fluid = stated("transportProperties", "physicalProperties")
    model = first_word(fluid, "transportModel") or first_word(fluid, "viscosityModel")
    if model not in ("", "Newtonian", "constant") or "nu" not in fluid:
        return None
    turbulence = first_word(stated("turbulenceProperties", "momentumTransport"), "simulationType")
    if turbulence not in ("", "laminar"):
        remarks.append(f"the viscosity is left open: the case has a turbulence model ({turbulence})")
        return None
    try:
        value = float(fluid["nu"][-1])
    except (TypeError, ValueError):
        return None
    return value if value > 0 else None


def _without_holes(storage: Storage, time: str, mesh: PolyMesh) -> CellMesh:
    """The cells of an overset mesh that are part of the flow."""
    if not storage.has(f"{time}/{_OVERSET}"):
        return mesh.mesh
    field = read_field(storage, f"{time}/{_OVERSET}")
    kinds = field.cells(mesh.cells)[:, 0]
    return replace(mesh.mesh, rank=np.array([_RANKS.get(round(kind), -1) for kind in kinds]))


def _describe(mesh: PolyMesh) -> tuple[str, ...]:
    remarks = []
    if mesh.normal != 2:
        first, second = ("xyz"[axis] for axis in mesh.axes)
        remarks.append(f"the plane is {first}{second}: {first} became x and {second} became y")
    if mesh.is_wedge:
        remarks.append(
            "the case is a wedge, an axisymmetric flow: equations in the plane do not hold for it"
        )
    return tuple(remarks)
