"""A plane case: mesh, boundaries and fields at every time, whole or decomposed, compressed or not.

Frames are the times with a velocity ``U``. A time that only the processors have is read from their
folders. The mesh may move.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np

from pibert.data.readers.openfoam.fields import (
    SLIP,
    CaseDictionaries,
    FoamField,
    NotEvaluated,
    case_facts,
    is_field,
    pseudo_time_scheme,
    read_field,
)
from pibert.data.readers.openfoam.mesh import MeshReader, Patch, PolyMesh, first_word
from pibert.data.readers.openfoam.storage import Storage, find_storages
from pibert.data.readers.recordings import Hints, SourceError
from pibert.data.readers.shared.cells import CellMesh
from pibert.data.readers.shared.series import CellPlane, Series
from pibert.data.readers.shared.space import describe_plane
from pibert.fields import Boundary, Sides

_WALLS = ("noSlip", "movingWallVelocity", "rotatingWallVelocity", "translatingWallVelocity")
_OUTLETS = (
    *("zeroGradient", "inletOutlet", "advective", "waveTransmissive"),
    *("pressureInletOutletVelocity", "fluxCorrectedVelocity"),
)
_NEAR = 1e-4
"""An edge lies on a side if its ends are within this fraction of the box's extent from it."""
_WHOLE = 0.99
"""A side has a kind if edges of this kind cover this fraction of it."""

VELOCITY = "U"
_KNOWN = (VELOCITY, "p", "T", "rho")
"""Fields that are read without being named. OpenFOAM's ``omega`` is a property of the turbulence,
not the vorticity, and ``Ux``, ``Uy``, ``Uz`` repeat the velocity."""
_OVERSET = "cellTypes"
_RANKS = {0.0: 1, 1.0: 0}
"""Rank of solved (0) and interpolated (1) cells of an overset mesh; other cells are holes."""
_GEOMETRY = ("C", "Cx", "Cy", "Cz", "V", _OVERSET)
_WEDGE = "a wedge, so the flow is axisymmetric: equations for plane flow do not hold"

_Frames = list[tuple[Storage, str]]
"""The storage of each frame, and the name of its time folder."""


def find_sides(
    mesh: PolyMesh, velocity: FoamField, cells: np.ndarray, box: np.ndarray
) -> tuple[Sides, str]:
    """The kind of each side of a box [[left, bottom], [right, top]], and a note with the patches.

    The velocity's boundary conditions, and its cell values (n, 3), decide the kind of a patch.
    """
    (left, bottom), (right, top) = box
    positions = {"left": (0, left), "right": (0, right), "bottom": (1, bottom), "top": (1, top)}
    kinds, names = {}, {}
    for side, (axis, position) in positions.items():
        across, along = (box[1, a] - box[0, a] for a in (axis, 1 - axis))
        lengths: dict[Boundary, float] = {}
        on_side: dict[str, Boundary] = {}
        for patch in mesh.patches:
            ends = mesh.mesh.points[patch.edges]
            near = (np.abs(ends[..., axis] - position) <= _NEAR * across).all(1)
            if near.any():
                kind = on_side[patch.name] = _kind(patch, mesh, velocity, cells, near)
                length = np.abs(np.diff(ends[near, :, 1 - axis], axis=1)).sum()
                lengths[kind] = lengths.get(kind, 0.0) + float(length)
        whole = [kind for kind, length in lengths.items() if length >= _WHOLE * along]
        kinds[side] = whole[0] if whole else Boundary.OPEN
        names[side] = [n if kind is kinds[side] else f"{n}: {kind}" for n, kind in on_side.items()]
    for one, other in (("left", "right"), ("bottom", "top")):
        if (kinds[one] is Boundary.PERIODIC) != (kinds[other] is Boundary.PERIODIC):
            kinds[one] = kinds[other] = Boundary.OPEN
    listed = (f"{side} {kinds[side]} ({', '.join(names[side]) or 'no patch'})" for side in kinds)
    return Sides(**kinds), f"sides, from the patches: {'; '.join(listed)}"


def _kind(
    patch: Patch, mesh: PolyMesh, velocity: FoamField, cells: np.ndarray, near: np.ndarray
) -> Boundary:
    """The kind of a patch, by its type and the velocity's condition on some of its edges."""
    if patch.kind.startswith("cyclic"):
        return Boundary.PERIODIC
    condition = velocity.condition(patch)
    kind = first_word(condition, "type")
    if patch.kind in SLIP or kind in SLIP:
        return Boundary.SLIP
    if patch.kind == "wall" or kind in _WALLS:
        return Boundary.WALL
    if kind in _OUTLETS:
        return Boundary.OUTFLOW
    if kind.startswith("freestream") or "value" not in condition:
        return Boundary.OPEN
    values = velocity.on_patch(patch, mesh, cells)[near][:, list(mesh.axes)]
    through = (values * mesh.outward(patch)[near]).sum(1)
    if not values.any():
        return Boundary.WALL
    if (np.abs(through) <= 1e-9 * np.abs(values).max()).all():
        return Boundary.WALL if kind == "fixedValue" else Boundary.OPEN
    return Boundary.INFLOW if through.mean() < 0 else Boundary.OUTFLOW


class CaseReader:
    """Reads frames of a case, given as paths of their time folders. It can be pickled."""

    def __init__(
        self, storages: list[Storage], fields: tuple[str, ...], *, has_seconds: bool
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
            mesh=_with_ranks(reader.storage, time, mesh),
            cells=cells,
            edges=edges,
            zeros=zeros,
            vectors=tuple(name for name in self.fields if f"{name}_x" in cells),
            units=units,
            placement={"normal": "xyz"[mesh.normal], "position": mesh.position},
            notes=(*describe_plane(mesh.normal), *[_WEDGE] * mesh.is_wedge),
        )


def open_case(path: Path, hints: Hints) -> Series:
    """Open the frames of a case."""
    case, notes = path.absolute(), list[str]()
    storages = find_storages(case)
    frames = _find_frames(storages)
    for storage in storages:
        if incomplete := storage.incomplete_times():
            listed = ", ".join(incomplete[:8])
            if not any(where == storage and float(time) > 0 for where, time in frames):
                raise SourceError(
                    f"{path}: some processors lack the times {listed}; copy them, or run "
                    "reconstructPar"
                )
            notes.append(f"left out, as not all processors have them: the times {listed}")
    if not frames:
        if regions := sorted(mesh.parent.name for mesh in (case / "constant").glob("*/polyMesh")):
            raise SourceError(
                f"{path}: the case has several regions ({', '.join(regions)}); sample a plane of "
                "one (postProcess -region NAME) and give the folder of the samples"
            )
        raise SourceError(
            f"{path}: found no time folders with a field {VELOCITY}, and no sampled surfaces "
            "(postProcessing/NAME/TIME/*.raw, .xy, .vtk, .vtp); give the folder of a case"
        )
    processors = max(storage.processors for storage, _ in frames)
    if processors > 1:
        notes.append(f"the case is decomposed: read from {processors} processors")
    fields = _choose_fields(frames, hints, notes)
    with_holes = [frame for frame in frames if frame[0].has(f"{frame[1]}/{_OVERSET}")]
    if with_holes:
        if missing := [time for storage, time in frames if (storage, time) not in with_holes]:
            notes.append(f"left out, as {_OVERSET} is missing: the times {', '.join(missing)}")
        frames = with_holes
    stated = CaseDictionaries(case, notes)
    read = CaseReader(storages, fields, has_seconds=pseudo_time_scheme(stated) is None)
    frames = _skip_computed_start(frames, read, notes)
    box, moves = _extent(frames, read)
    storage, time = frames[-1]
    mesh = read.meshes[storage.folders[0]].read(time)
    velocity = read_field(storage, f"{time}/{VELOCITY}")
    sides, note = find_sides(mesh, velocity, velocity.cells(mesh.cells), box)
    notes.append(note)
    return Series(
        files=[storage.folders[0] / time for storage, time in frames],
        read=read,
        times=[float(time) for _, time in frames],
        facts={"sides": sides, **case_facts(stated, is_wedge=mesh.is_wedge)},
        moves=moves or bool(with_holes),
        box=box if moves else None,
        notes=tuple(notes),
    )


def has_results(path: Path) -> bool:
    """Whether a folder holds times with a velocity."""
    return bool(_find_frames(find_storages(path)))


def _find_frames(storages: list[Storage]) -> _Frames:
    found: dict[float, tuple[Storage, str]] = {}
    for storage in storages:
        for name, time in storage.times().items():
            if storage.has(f"{name}/{VELOCITY}"):
                found.setdefault(time, (storage, name))
    return [found[time] for time in sorted(found)]


def _choose_fields(frames: _Frames, hints: Hints, notes: list[str]) -> tuple[str, ...]:
    """The fields to read: those that all times have, with a known or stated meaning."""
    names = [storage.names(time) for storage, time in frames]
    # The user may name a component, U_x.
    known = {*_KNOWN, *hints.channels.values(), *(name[:-2] for name in hints.channels.values())}
    wanted: list[str] = []
    others: list[str] = []
    partial: list[str] = []
    for name in sorted(set.union(*names) - set(_GEOMETRY)):
        storage, time = next(f for f, present in zip(frames, names, strict=True) if name in present)
        if storage.has(f"{time}/{name}") and is_field(storage, f"{time}/{name}"):
            is_whole = all(name in present for present in names)
            (partial if not is_whole else wanted if name in known else others).append(name)
    if partial:
        times = [t for (_, t), present in zip(frames, names, strict=True) if set(partial) - present]
        more = " ..." if len(times) > 8 else ""
        notes.append(
            f"not read, because they are missing at the times {', '.join(times[:8])}{more}: "
            f"{', '.join(partial)}"
        )
    if others:
        notes.append(
            f"not read: {', '.join(others)}; to keep one, name all channels, such as --channels "
            f"u={VELOCITY}_x,v={VELOCITY}_y,{others[0]}={others[0]}"
        )
    return tuple(wanted)


def _skip_computed_start(frames: _Frames, read: CaseReader, notes: list[str]) -> _Frames:
    """The frames without a start that OpenFOAM computes when it runs."""
    for index, (storage, time) in enumerate(frames):
        try:
            read(storage.folders[0] / time)
            return frames[index:]
        except NotEvaluated as error:
            notes.append(f"the time {time} was left out: {error}")
    raise SourceError(f"{frames[0][0].folders[0]}: {notes[-1]}, and there is no other time")


def _extent(frames: _Frames, read: CaseReader) -> tuple[np.ndarray, bool]:
    """[[left, bottom], [right, top]] of the meshes of all frames, and whether the mesh moves."""
    storage, time = frames[0]
    axes = list(read.meshes[storage.folders[0]].read(time).axes)
    low, high = np.full(2, np.inf), np.full(2, -np.inf)
    seen: set[tuple[Path, str]] = set()
    for storage, time in frames:
        reader = read.meshes[storage.folders[0]]
        instance = storage.folders[0], reader.instance("points", time)
        if instance not in seen:
            seen.add(instance)
            for points in reader.points(instance[1]):
                low = np.minimum(low, points[:, axes].min(0, initial=np.inf))
                high = np.maximum(high, points[:, axes].max(0, initial=-np.inf))
    return np.stack([low, high]), len({folder for _, folder in seen}) > 1


def _with_ranks(storage: Storage, time: str, mesh: PolyMesh) -> CellMesh:
    """The mesh, with ranks of its cells if it is an overset mesh."""
    if not storage.has(f"{time}/{_OVERSET}"):
        return mesh.mesh
    kinds = read_field(storage, f"{time}/{_OVERSET}").cells(mesh.cells)[:, 0]
    ranks = [_RANKS.get(float(kind), -1) for kind in np.rint(kinds)]
    return replace(mesh.mesh, rank=np.array(ranks))
