"""The mesh of a plane case as polygons: one layer of cells between ``empty`` patches, or a wedge.

Such a mesh is defined by its boundary faces (files ``boundary``, ``owner``, ``faces`` and, per
processor, ``pointProcAddressing``): every cell has a face on either side of the layer. A cell is
the polygon of its face on the lower side. A boundary edge is the lower side of a patch's face.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from pibert.data.readers.openfoam.dictionary import Dictionary, Parser
from pibert.data.readers.openfoam.storage import Storage, parsing
from pibert.data.readers.recordings import SourceError
from pibert.data.readers.shared.cells import CellMesh, check_coordinates

_SHEETS = ("empty", "wedge")
"""Types of the patches on either side of the layer."""
_WITHOUT_VALUES = (*_SHEETS, "cyclic", "processor", "processorCyclic", "overset")
"""Types of patches on which fields have no values, or those of cells beyond the patch."""
_FLAT = 1e-6
"""Points lie on one side of the layer within this fraction of the mesh's extent."""
_SAMPLE_IT = (
    "Sample a plane (function object 'surfaces' with 'interpolate true') and give the folder of "
    "the samples"
)


def first_word(stated: Mapping[str, object], key: str) -> str:
    """The first word of an entry; empty if there is none."""
    value = stated.get(key)
    word = value[0] if isinstance(value, list) and value else ""
    return word if isinstance(word, str) else ""


@dataclass(frozen=True, eq=False)
class Patch:
    """A patch of one processor's mesh."""

    processor: int
    name: str
    stated: Dictionary
    faces: slice
    """Among all boundary faces."""
    edges: np.ndarray = field(default_factory=lambda: np.empty((0, 2), int))
    """(k, 2) point numbers; faces parallel to the plane have no edge."""
    owners: np.ndarray = field(default_factory=lambda: np.empty(0, int))
    """(k,) the cells beside the edges."""

    @property
    def kind(self) -> str:
        return first_word(self.stated, "type")

    @property
    def has_values(self) -> bool:
        return self.kind not in _WITHOUT_VALUES and bool(len(self.edges))

    @property
    def keys(self) -> tuple[str, ...]:
        """Names under which a field may state its condition: the patch's, and its groups'."""
        listed = self.stated.get("inGroups")
        words = listed[-1] if isinstance(listed, list) and listed else []
        names = words if isinstance(words, list) else [words]
        return (self.name, *(name for name in names if isinstance(name, str)))


@dataclass(frozen=True, eq=False, kw_only=True)
class BoundaryFaces:
    """The boundary faces of all processors, with global numbers of points and cells."""

    corners: np.ndarray
    """Point numbers of all faces, one face after the other."""
    ends: np.ndarray
    """The end of each face in ``corners``."""
    owners: np.ndarray
    """The cell behind each face."""
    patches: list[Patch]
    cells: tuple[int, ...]
    """Number of cells of every processor."""
    addressing: list[np.ndarray] | None
    """Global numbers of the points of every processor; None if there is one processor."""

    def points(self, pieces: list[np.ndarray]) -> np.ndarray:
        """Join the points of all processors to one array (n, 3)."""
        points = pieces[0]
        if self.addressing is not None:
            if [len(piece) for piece in pieces] != [len(numbers) for numbers in self.addressing]:
                raise ValueError("their number does not fit pointProcAddressing")
            count = max(int(numbers.max(initial=-1)) for numbers in self.addressing) + 1
            if count > sum(len(piece) for piece in pieces):
                raise ValueError(f"pointProcAddressing names point {count - 1}, of fewer points")
            points = np.zeros((count, 3))
            for numbers, piece in zip(self.addressing, pieces, strict=True):
                points[numbers] = piece
        return points

    def sheets(self) -> np.ndarray:
        """Numbers of the faces on either side of the layer; all faces if no patch states them."""
        faces = np.arange(len(self.ends))
        stated = [faces[patch.faces] for patch in self.patches if patch.kind in _SHEETS]
        return np.concatenate(stated) if any(map(len, stated)) else faces


def read_boundary(storage: Storage, folder: str) -> BoundaryFaces:
    """Read the boundary faces of a mesh in a time folder or ``constant``."""

    def read(what: str, parse: Callable[[Parser], Any]) -> list[Any]:
        name = f"{folder}/polyMesh/{what}"
        with parsing(storage.folders[0] / name):
            return [parse(parser) for parser in storage.read(name)]

    patches, owners = read("boundary", Parser.named), read("owner", _indices)
    addressing = None
    if storage.processors > 1:
        if not storage.has(f"{folder}/polyMesh/pointProcAddressing"):
            raise SourceError(
                f"{storage.folders[0] / folder}: polyMesh/pointProcAddressing is missing; run "
                "reconstructPar"
            )
        addressing = read("pointProcAddressing", _indices)
    faces = read("faces", _faces)
    with parsing(storage.folders[0] / folder / "polyMesh/faces"):
        return _join(patches, owners, faces, addressing)


def _join(
    patches: list[dict[str, Dictionary]],
    owners: list[np.ndarray],
    faces: list[tuple[np.ndarray, np.ndarray]],
    addressing: list[np.ndarray] | None,
) -> BoundaryFaces:
    corners: list[np.ndarray] = []
    ends: list[np.ndarray] = []
    behind: list[np.ndarray] = []
    cells: list[int] = []
    joined: list[Patch] = []
    for processor, (named, owner) in enumerate(zip(patches, owners, strict=True)):
        points, stops = faces[processor]
        spans = {name: _span(patch) for name, patch in named.items()}
        first = min((span.start for span in spans.values()), default=0)
        last = max((span.stop for span in spans.values()), default=0)
        if not 0 <= first <= last <= len(stops) == len(owner):
            raise ValueError(f"{len(stops)} faces, {len(owner)} owners, patches up to {last}")
        if owner.max(initial=0) >= len(owner):
            raise ValueError(f"owner names cell {owner.max()} of a mesh with {len(owner)} faces")
        if sum(map(len, spans.values())) > last - first:
            raise ValueError("its patches overlap")
        start = int(stops[first - 1]) if first else 0
        shift = sum(len(array) for array in ends) - first
        for name, patch in named.items():
            if int(first_word(patch, "neighbProcNo") or -1) >= len(patches):
                raise ValueError(f"{name} leads to a processor that is missing")
            span = slice(spans[name].start + shift, spans[name].stop + shift)
            joined.append(Patch(processor, name, patch, span))
        ends.append(stops[first:] - start + sum(len(array) for array in corners))
        points = points[start:]
        corners.append(points if addressing is None else addressing[processor][points])
        behind.append(owner[first:] + sum(cells))
        cells.append(int(owner.max(initial=-1)) + 1)
    return BoundaryFaces(
        corners=np.concatenate(corners),
        ends=np.concatenate(ends),
        owners=np.concatenate(behind),
        patches=joined,
        cells=tuple(cells),
        addressing=addressing,
    )


def _faces(parser: Parser) -> tuple[np.ndarray, np.ndarray]:
    """Point numbers of all faces, and where each face ends among them."""
    if parser.head.get("class") == ["faceCompactList"]:
        ends = _indices(parser)[1:]
        corners = _indices(parser)
    else:
        corners, ends = parser.counted_lists()
        _check_indices(corners)
    if np.diff(ends, prepend=0).min(initial=0) < 0 or ends.max(initial=0) != len(corners):
        raise ValueError(f"its faces end at {ends.max(initial=0)} of {len(corners)} points")
    return corners, ends


def _indices(parser: Parser) -> np.ndarray:
    """The next list of numbers of points, faces or cells."""
    return _check_indices(parser.mesh_numbers(parser.label))


def _check_indices(values: np.ndarray) -> np.ndarray:
    if values.min(initial=0) < 0:
        raise ValueError(f"it names number {values.min()}, but numbers start from 0")
    return values


def _span(stated: Mapping[str, object]) -> range:
    start = int(first_word(stated, "startFace"))
    return range(start, start + int(first_word(stated, "nFaces")))


@dataclass(frozen=True, eq=False, kw_only=True)
class PolyMesh:
    """A mesh in its plane."""

    mesh: CellMesh
    """Its edges are those of ``valued``, one patch after the other."""
    patches: tuple[Patch, ...]
    cells: tuple[int, ...]
    """Number of cells of every processor."""
    normal: int
    """The axis normal to the plane."""
    position: float
    is_wedge: bool

    @property
    def axes(self) -> tuple[int, int]:
        """The axes of space that become x and y."""
        first, second = (axis for axis in range(3) if axis != self.normal)
        return first, second

    @property
    def valued(self) -> tuple[Patch, ...]:
        """The patches on which fields have values."""
        return tuple(patch for patch in self.patches if patch.has_values)

    def on_symmetry(self) -> tuple[np.ndarray, np.ndarray]:
        """Points on symmetry planes normal to x, and on those normal to y."""
        found: tuple[list[np.ndarray], list[np.ndarray]] = ([], [])
        for patch in self.patches:
            if patch.kind in ("symmetry", "symmetryPlane") and len(patch.edges):
                outward = np.abs(self.outward(patch))
                for axis in (0, 1):
                    found[axis].append(patch.edges[outward[:, axis] > 1 - _FLAT].reshape(-1))
        x, y = (np.unique(np.concatenate([np.empty(0, int), *points])) for points in found)
        return x, y

    def outward(self, patch: Patch) -> np.ndarray:
        """(k, 2) unit normals of a patch's edges, out of the mesh."""
        ends = self.mesh.points[patch.edges]
        along = ends[:, 1] - ends[:, 0]
        across = np.stack([along[:, 1], -along[:, 0]], 1)
        across /= np.maximum(np.linalg.norm(across, axis=1, keepdims=True), np.finfo(float).tiny)
        away = ends.mean(1) - self.mesh.centres[patch.owners]
        return np.where((across * away).sum(1, keepdims=True) < 0, -across, across)


class MeshReader:
    """Reads the mesh of each time, and again only what changes. It can be pickled."""

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        self._written: dict[str, list[str]] = {}
        self._boundary: tuple[str, BoundaryFaces] | None = None
        self._last: tuple[tuple[str, str], PolyMesh] | None = None

    def __getstate__(self) -> dict[str, object]:
        return self.__dict__ | {"_boundary": None, "_last": None}

    def read(self, time: str) -> PolyMesh:
        """The mesh at a time, given as the name of its folder."""
        points, faces = self.instance("points", time), self.instance("faces", time)
        if points != time and self.storage.has(f"{time}/meshPhi"):
            raise SourceError(
                f"{self.storage.folders[0] / time}: the mesh moves (meshPhi), but polyMesh/points "
                "is missing; give the case before decomposePar"
            )
        if self._last is None or self._last[0] != (points, faces):
            if self._boundary is None or self._boundary[0] != faces:
                self._boundary = faces, read_boundary(self.storage, faces)
            coordinates, folder = self.points(points), self.storage.folders[0]
            with parsing(folder / points / "polyMesh/points"):
                mesh = _assemble(folder, self._boundary[1], coordinates)
            self._last = (points, faces), mesh
        return self._last[1]

    def instance(self, name: str, time: str) -> str:
        """The folder of the latest version of a mesh file at a time."""
        if name not in self._written:
            times = self.storage.times()
            found = [t for t in times if self.storage.has(f"{t}/polyMesh/{name}")]
            self._written[name] = sorted(found, key=lambda t: times[t])
        until = [t for t in self._written[name] if float(t) <= float(time)]
        return until[-1] if until else "constant"

    def points(self, folder: str) -> list[np.ndarray]:
        """The points (n, 3) of every processor."""
        name = f"{folder}/polyMesh/points"
        with parsing(self.storage.folders[0] / name):
            pieces = [parser.mesh_numbers(parser.scalar, 3) for parser in self.storage.read(name)]
            for piece in pieces:
                check_coordinates(piece)
            return pieces


def _assemble(folder: Path, boundary: BoundaryFaces, pieces: list[np.ndarray]) -> PolyMesh:
    points = boundary.points(pieces)
    corners, ends, owners = boundary.corners, boundary.ends, boundary.owners
    sizes, sheets = np.diff(ends, prepend=0), boundary.sheets()
    normal = _normal(folder, points, corners[(ends - sizes)[sheets][:, None] + [0, 1, 2]])
    across = points[:, normal]
    position = (float(across.min()) + float(across.max())) / 2
    of_corner = np.repeat(np.arange(len(ends)), sizes)
    low = across[corners] <= position + _FLAT * np.ptp(points, axis=0).max()
    num_low = np.bincount(of_corner[low], minlength=len(ends))
    lower = sheets[num_low[sheets] == sizes[sheets]]
    count = sum(boundary.cells)
    if len(lower) != count or not np.array_equal(np.sort(owners[lower]), np.arange(count)):
        raise SourceError(
            f"{folder}: a 3-D mesh: its {count} cells are not one layer. {_SAMPLE_IT}"
        )
    lower = lower[np.argsort(owners[lower])]
    polygon_ends = np.cumsum(sizes[lower])
    shift = np.repeat((ends - sizes)[lower] - (polygon_ends - sizes[lower]), sizes[lower])
    edges = np.full((len(ends), 2), -1)
    edges[num_low == 2] = corners[low & (num_low == 2)[of_corner]].reshape(-1, 2)
    patches = []
    for patch in boundary.patches:
        sides, behind = edges[patch.faces], owners[patch.faces]
        upright = sides[:, 0] >= 0
        patches.append(replace(patch, edges=sides[upright], owners=behind[upright]))
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
        is_wedge=any(patch.kind == "wedge" for patch in patches),
    )


def _normal(folder: Path, points: np.ndarray, sheets: np.ndarray) -> int:
    """The axis normal to the plane, from three points of every face parallel to it."""
    a, b, c = (points[sheets[:, corner]] for corner in range(3))
    area = np.abs(np.cross(b - a, c - a)).sum(0)
    if np.sort(area)[1] <= 0.1 * area.max():
        return int(area.argmax())
    # No patch states the plane: take the axis along which the points have two levels.
    step = _FLAT * np.ptp(points, axis=0).max()
    levels = [len(np.unique(np.round(points[:, axis] / step))) for axis in range(3)]
    if 2 not in levels:
        raise SourceError(
            f"{folder}: a 3-D mesh, or a plane that is not normal to x, y or z. {_SAMPLE_IT}"
        )
    return max(axis for axis in range(3) if levels[axis] == 2)


def _twins(points: np.ndarray, patches: list[Patch]) -> tuple[np.ndarray, ...]:
    """The points that periodic patches with matching faces connect, for each pair of patches."""
    twins = []
    cyclic = {(p.processor, p.name): p for p in patches if p.kind == "cyclic" and len(p.edges)}
    for (processor, name), patch in cyclic.items():
        other = cyclic.get((processor, first_word(patch.stated, "neighbourPatch")))
        if other is None or name > other.name or len(patch.edges) != len(other.edges):
            continue
        near, far = points[patch.edges], points[other.edges]
        moved = near + (far.mean(1) - near.mean(1)).mean(0)
        same = np.abs(moved - far).sum((1, 2)) <= np.abs(moved - far[:, ::-1]).sum((1, 2))
        partners = np.where(same[:, None], other.edges, other.edges[:, ::-1])
        twin = np.full(len(points), -1)
        twin[patch.edges], twin[partners] = partners, patch.edges
        twins.append(twin)
    return tuple(twins)
