"""The mesh of a plane case: one layer of cells between the faces of ``empty`` patches, or a wedge.

A cell is the polygon of its face on the lower side of the layer, an edge of the boundary the lower
side of a face. The parts of a decomposed mesh are put together by the numbers that their points had
before.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pibert.data.sources.gridding.cells import CellMesh
from pibert.data.sources.openfoam.dictionary import Dictionary, Parser
from pibert.data.sources.openfoam.storage import Storage, broken
from pibert.data.sources.recordings import SourceError

_SHEETS = ("empty", "wedge")
_WITHOUT_VALUES = (*_SHEETS, "cyclic", "processor", "processorCyclic", "overset")
_FLAT = 1e-6
"""Points lie on one side of a layer within this share of the mesh's extent."""


@dataclass(frozen=True, eq=False, kw_only=True)
class Patch:
    """A patch of one part of the mesh."""

    part: int
    name: str
    stated: Mapping[str, object]
    faces: slice
    """Among the faces of the boundary."""
    edges: np.ndarray
    """(k, 2) point numbers; none of the faces before and behind the plane."""
    owners: np.ndarray
    """(k,) numbers of the cells beside the edges."""

    @property
    def kind(self) -> str:
        return first_word(self.stated, "type")

    @property
    def has_values(self) -> bool:
        """Whether fields have values on it, rather than beyond it or none."""
        return self.kind not in _WITHOUT_VALUES and bool(len(self.edges))

    @property
    def neighbour(self) -> str:
        """The patch that a periodic one is joined to."""
        return first_word(self.stated, "neighbourPatch")

    @property
    def keys(self) -> tuple[str, ...]:
        """What a field may call it: its name, or a group that it is in."""
        listed = self.stated.get("inGroups")
        words = listed[-1] if isinstance(listed, list) and listed else []
        return (self.name, *(words if isinstance(words, list) else [words]))


@dataclass(frozen=True, eq=False, kw_only=True)
class PolyMesh:
    """A mesh in its plane."""

    mesh: CellMesh
    """Its edges are those of ``valued``, one patch after the other."""
    patches: tuple[Patch, ...]
    cells: tuple[int, ...]
    """Number of cells of every part."""
    normal: int
    """The axis of space across the plane."""
    position: float
    is_wedge: bool

    @property
    def axes(self) -> tuple[int, int]:
        """The axes of space that are x and y of the plane."""
        first, second = (axis for axis in range(3) if axis != self.normal)
        return first, second

    @property
    def valued(self) -> tuple[Patch, ...]:
        """The patches on which fields have values."""
        return tuple(patch for patch in self.patches if patch.has_values)

    def on_symmetry(self) -> tuple[np.ndarray, np.ndarray]:
        """Points on planes of symmetry across x and across y."""
        found: tuple[list[np.ndarray], list[np.ndarray]] = ([], [])
        for patch in self.patches:
            if patch.kind in ("symmetry", "symmetryPlane") and len(patch.edges):
                outward = np.abs(self.outward(patch))
                for axis in (0, 1):
                    found[axis].append(patch.edges[outward[:, axis] > 1 - _FLAT].reshape(-1))
        x, y = (np.unique(np.concatenate([np.empty(0, int), *points])) for points in found)
        return x, y

    def outward(self, patch: Patch) -> np.ndarray:
        """(k, 2) unit vectors across the edges of a patch, out of the mesh."""
        ends = self.mesh.points[patch.edges]
        along = ends[:, 1] - ends[:, 0]
        across = np.stack([along[:, 1], -along[:, 0]], 1)
        across /= np.maximum(np.linalg.norm(across, axis=1, keepdims=True), np.finfo(float).tiny)
        away = ends.mean(1) - self.mesh.centres()[patch.owners]
        return np.where((across * away).sum(1, keepdims=True) < 0, -across, across)


class MeshReader:
    """Reads the meshes of a case; what does not change with time is read once."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        self._written: dict[str, list[str]] = {}
        self._boundary: tuple[str, _Boundary] | None = None
        self._last: tuple[tuple[str, str], PolyMesh] | None = None

    def __getstate__(self) -> dict[str, object]:
        return self.__dict__ | {"_boundary": None, "_last": None}

    def read(self, time: str) -> PolyMesh:
        """The mesh at a time, which is the name of its folder."""
        points, faces = self.instance("points", time), self.instance("faces", time)
        if points != time and self.storage.has(f"{time}/meshPhi"):
            raise SourceError(
                f"{self.storage.folders[0] / time}: the mesh moves (meshPhi), but its points at this "
                "time (polyMesh/points) were not written, as decomposePar leaves them out; give the "
                "case as it was before, or its reconstruction"
            )
        if self._last is None or self._last[0] != (points, faces):
            if self._boundary is None or self._boundary[0] != faces:
                self._boundary = faces, _read_boundary(self.storage, faces)
            boundary = self._boundary[1]
            mesh = _assemble(self.storage.folders[0], boundary, self.points(points))
            self._last = (points, faces), mesh
        return self._last[1]

    def instance(self, name: str, time: str) -> str:
        """The folder that holds a file of the mesh: that of the last time it was written."""
        if name not in self._written:
            times = self.storage.times()
            found = [t for t in times if self.storage.has(f"{t}/polyMesh/{name}")]
            self._written[name] = sorted(found, key=lambda t: times[t])
        until = [t for t in self._written[name] if float(t) <= float(time)]
        return until[-1] if until else "constant"

    def points(self, folder: str) -> list[np.ndarray]:
        """The points (n, 3) of every part."""
        name = f"{folder}/polyMesh/points"
        try:
            return [parser.numbers(parser.scalar, 3) for parser in self.storage.read(name)]
        except ValueError as error:
            raise _failed(self.storage, name, error) from error


@dataclass(frozen=True, eq=False, kw_only=True)
class _Boundary:
    """The faces on the boundary of all parts, with global numbers of points and cells."""

    corners: np.ndarray
    ends: np.ndarray
    owners: np.ndarray
    patches: list[tuple[int, str, Dictionary, slice]]
    """Part, name, what is stated, faces."""
    cells: tuple[int, ...]
    numbers: list[np.ndarray] | None
    """Of the points of every part, where there are several."""

    def points(self, folder: Path, parts: list[np.ndarray]) -> np.ndarray:
        """One list of the points of all parts."""
        points = parts[0]
        if self.numbers is not None:
            if [len(part) for part in parts] != [len(part) for part in self.numbers]:
                raise SourceError(broken(folder, "its points do not fit pointProcAddressing"))
            points = np.zeros((max(int(part.max()) for part in self.numbers) + 1, 3))
            for number, part in zip(self.numbers, parts, strict=True):
                points[number] = part
        if self.corners.max(initial=-1) >= len(points):
            raise SourceError(broken(folder, "its faces name points that are not there"))
        return points

    def sheets(self) -> np.ndarray:
        """Numbers of the faces before and behind the plane; all where no patch says so."""
        found = [
            np.arange(faces.start, faces.stop)
            for _, _, stated, faces in self.patches
            if first_word(stated, "type") in _SHEETS
        ]
        faces = np.concatenate([np.empty(0, int), *found])
        return faces if len(faces) else np.arange(len(self.ends))


def _read_boundary(storage: Storage, folder: str) -> _Boundary:
    name = ""

    def read(what: str) -> list[Parser]:
        nonlocal name
        name = f"{folder}/polyMesh/{what}"
        return storage.read(name)

    corners, ends, owners, patches, cells = [], [], [], [], []
    numbers: list[np.ndarray] | None = None
    try:
        stated = [parser.named() for parser in read("boundary")]
        all_owners = [parser.numbers(parser.label) for parser in read("owner")]
        if storage.parts > 1:
            if not storage.has(f"{folder}/polyMesh/pointProcAddressing"):
                raise SourceError(
                    f"{storage.folders[0]}: the file {folder}/polyMesh/pointProcAddressing is "
                    "missing, so the parts of the mesh cannot be put together; run reconstructPar "
                    "in the case"
                )
            numbers = [parser.numbers(parser.label) for parser in read("pointProcAddressing")]
        all_faces = [_faces(parser) for parser in read("faces")]
        before = (0, 0, 0)
        for part, (patch_list, owner, faces) in enumerate(
            zip(stated, all_owners, all_faces, strict=True)
        ):
            first = min((_span(patch).start for patch in patch_list.values()), default=0)
            last = max((_span(patch).stop for patch in patch_list.values()), default=0)
            if not 0 <= first <= last <= len(faces[1]) == len(owner):
                raise ValueError(f"{len(faces[1])} faces, {len(owner)} owners, patches to {last}")
            start = int(faces[1][first - 1]) if first else 0
            own = faces[0][start:]
            corners.append(own if numbers is None else numbers[part][own])
            ends.append(faces[1][first:] - start + before[0])
            owners.append(owner[first:] + before[1])
            for patch_name, patch in patch_list.items():
                if int(first_word(patch, "neighbProcNo") or -1) >= storage.parts:
                    raise ValueError(f"it meets a processor that is missing, in {patch_name}")
                span, shift = _span(patch), before[2] - first
                place = slice(span.start + shift, span.stop + shift)
                patches.append((part, patch_name, patch, place))
            cells.append(int(owner.max(initial=-1)) + 1)
            before = (before[0] + len(own), before[1] + cells[-1], before[2] + len(ends[-1]))
    except SourceError:
        raise
    except (ValueError, IndexError) as error:
        raise _failed(storage, name, error) from error
    return _Boundary(
        corners=np.concatenate(corners),
        ends=np.concatenate(ends),
        owners=np.concatenate(owners),
        patches=patches,
        cells=tuple(cells),
        numbers=numbers,
    )


def _faces(parser: Parser) -> tuple[np.ndarray, np.ndarray]:
    """The points of all faces in a row, and where each face ends in it."""
    if parser.head.get("class") == ["faceCompactList"]:
        ends = parser.numbers(parser.label)
        return parser.numbers(parser.label), ends[1:]
    return parser.counted_lists()


def _assemble(folder: Path, boundary: _Boundary, parts: list[np.ndarray]) -> PolyMesh:
    points = boundary.points(folder, parts)
    corners, ends, owners = boundary.corners, boundary.ends, boundary.owners
    sizes = np.diff(ends, prepend=0)
    sheets = boundary.sheets()
    normal = _normal(folder, points, corners[(ends - sizes)[sheets][:, None] + [0, 1, 2]])
    across = points[:, normal]
    position = (float(across.min()) + float(across.max())) / 2
    of_corner = np.repeat(np.arange(len(ends)), sizes)
    low = across[corners] <= position + _FLAT * np.ptp(points, axis=0).max()
    below = np.bincount(of_corner[low], minlength=len(ends))
    lower = sheets[below[sheets] == sizes[sheets]]
    if not np.array_equal(np.sort(owners[lower]), np.arange(sum(boundary.cells))):
        raise SourceError(
            f"{folder}: a flow in space, {sum(boundary.cells)} cells that are not one layer. "
            "Sample a plane of it (function object 'surfaces' with 'interpolate true') and name the "
            "folder of the samples"
        )
    lower = lower[np.argsort(owners[lower])]
    polygon_ends = np.cumsum(sizes[lower])
    shift = np.repeat((ends - sizes)[lower] - (polygon_ends - sizes[lower]), sizes[lower])
    edge = np.full((len(ends), 2), -1)
    edge[below == 2] = corners[low & (below == 2)[of_corner]].reshape(-1, 2)
    patches = []
    for part, name, stated, faces in boundary.patches:
        beside = edge[faces, 0] >= 0
        edges, cells = edge[faces][beside], owners[faces][beside]
        patches.append(
            Patch(part=part, name=name, stated=stated, faces=faces, edges=edges, owners=cells)
        )
    valued = [patch for patch in patches if patch.has_values]
    plane = np.delete(points, normal, axis=1)
    return PolyMesh(
        mesh=CellMesh(
            points=plane,
            corners=corners[shift + np.arange(len(shift))],
            ends=polygon_ends,
            depth=np.abs(across - position),
            edges=np.concatenate([np.empty((0, 2), int), *(p.edges for p in valued)]),
            walls=np.array([p.kind == "wall" for p in valued for _ in p.edges], bool),
            twins=_twins(plane, patches),
        ),
        patches=tuple(patches),
        cells=boundary.cells,
        normal=normal,
        position=position,
        is_wedge=any(p.kind == "wedge" for p in patches),
    )


def _normal(folder: Path, points: np.ndarray, sheets: np.ndarray) -> int:
    """The axis across the plane, from three points of every face before and behind it."""
    a, b, c = (points[sheets[:, corner]] for corner in range(3))
    area = np.abs(np.cross(b - a, c - a)).sum(0)
    # Without patches that say where the plane is, the axis with two layers of points is across it.
    extent = np.ptp(points, axis=0)
    if np.sort(area)[1] > 0.1 * area.max():
        steps = _FLAT * extent.max()
        layers = [len(np.unique(np.round(points[:, axis] / steps))) for axis in range(3)]
        if 2 not in layers:
            raise SourceError(
                f"{folder}: a flow in space, or a plane that is not normal to x, y or z. Sample a "
                "plane of it (function object 'surfaces' with 'interpolate true') and name the "
                "folder of the samples"
            )
        return max(axis for axis in range(3) if layers[axis] == 2)
    return int(area.argmax())


def _twins(points: np.ndarray, patches: list[Patch]) -> tuple[np.ndarray, ...]:
    """The points that periodic patches with matching faces join, pair by pair."""
    found = []
    matching = {(p.part, p.name): p for p in patches if p.kind == "cyclic" and len(p.edges)}
    for (part, name), patch in matching.items():
        other = matching.get((part, patch.neighbour))
        if other is None or name > other.name or len(patch.edges) != len(other.edges):
            continue
        here, there = points[patch.edges], points[other.edges]
        moved = here + (there.mean(1) - here.mean(1)).mean(0)
        same = np.abs(moved - there).sum((1, 2)) <= np.abs(moved - there[:, ::-1]).sum((1, 2))
        partners = np.where(same[:, None], other.edges, other.edges[:, ::-1])
        twin = np.full(len(points), -1)
        twin[patch.edges], twin[partners] = partners, patch.edges
        found.append(twin)
    return tuple(found)


def first_word(stated: Mapping[str, object], key: str) -> str:
    """The first word of an entry; empty where there is none."""
    value = stated.get(key)
    return str(value[0]) if isinstance(value, list) and value else ""


def _span(stated: Mapping[str, object]) -> range:
    start = int(first_word(stated, "startFace"))
    return range(start, start + int(first_word(stated, "nFaces")))


def _failed(storage: Storage, name: str, error: Exception) -> SourceError:
    return SourceError(broken(storage.folders[0] / name, error))
