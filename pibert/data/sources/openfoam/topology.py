"""The boundary faces of an OpenFOAM mesh, with those of all processors put together.

A mesh with one layer of cells is known by its boundary: every cell has a face on either side of the
layer. Files: ``boundary``, ``owner``, ``faces`` and, per processor, ``pointProcAddressing``.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from pibert.data.sources.openfoam.dictionary import Dictionary, Parser
from pibert.data.sources.openfoam.storage import Storage, broken
from pibert.data.sources.recordings import SourceError

SHEETS = ("empty", "wedge")
"""Types of the patches on either side of the layer."""


@dataclass(frozen=True, eq=False)
class PatchFaces:
    """A patch of one part of the mesh."""

    part: int
    name: str
    stated: Dictionary
    faces: slice
    """Among all boundary faces."""


@dataclass(frozen=True, eq=False, kw_only=True)
class BoundaryFaces:
    """The boundary faces of all parts, with global numbers of points and cells."""

    corners: np.ndarray
    """Point numbers of all faces, one face after the other."""
    ends: np.ndarray
    """Where each face ends in ``corners``."""
    owners: np.ndarray
    """The cell behind each face."""
    patches: list[PatchFaces]
    cells: tuple[int, ...]
    """Number of cells of every part."""
    numbers: list[np.ndarray] | None
    """Global numbers of the points of every part; None if there is one part."""

    @property
    def sizes(self) -> np.ndarray:
        return np.diff(self.ends, prepend=0)

    def points(self, parts: list[np.ndarray]) -> np.ndarray:
        """One array (n, 3) of the points of all parts."""
        points = parts[0]
        if self.numbers is not None:
            if [len(part) for part in parts] != [len(part) for part in self.numbers]:
                raise ValueError("their number does not fit pointProcAddressing")
            count = max(int(part.max(initial=-1)) for part in self.numbers) + 1
            if count > sum(len(part) for part in parts):
                raise ValueError(f"pointProcAddressing names point {count - 1}, of fewer points")
            points = np.zeros((count, 3))
            for number, part in zip(self.numbers, parts, strict=True):
                points[number] = part
        if self.corners.max(initial=-1) >= len(points):
            raise ValueError(f"faces name point {self.corners.max()} of {len(points)}")
        return points

    def sheets(self) -> np.ndarray:
        """Numbers of the faces on either side of the layer; all faces if no patch states them."""
        found = [
            np.arange(patch.faces.start, patch.faces.stop)
            for patch in self.patches
            if first_word(patch.stated, "type") in SHEETS
        ]
        faces = np.concatenate([np.empty(0, int), *found])
        return faces if len(faces) else np.arange(len(self.ends))


def read_boundary(storage: Storage, folder: str) -> BoundaryFaces:
    """Read the boundary faces of a mesh in a time folder or ``constant``."""
    name = ""

    def read(what: str) -> list[Parser]:
        nonlocal name
        name = f"{folder}/polyMesh/{what}"
        return storage.read(name)

    try:
        patches = [parser.named() for parser in read("boundary")]
        owners = [_whole(parser) for parser in read("owner")]
        numbers = None
        if storage.parts > 1:
            numbers = [_whole(parser) for parser in read("pointProcAddressing")]
        faces = [_faces(parser) for parser in read("faces")]
        return _join(storage.parts, patches, owners, faces, numbers)
    except SourceError as error:
        if not name.endswith("pointProcAddressing"):
            raise
        raise SourceError(
            f"{error} Without it the processors' meshes cannot be put together: run reconstructPar "
            "in the case"
        ) from error
    except (ValueError, IndexError) as error:
        raise SourceError(broken(storage.folders[0] / name, error)) from error


def _join(
    count: int,
    patches: list[dict[str, Dictionary]],
    owners: list[np.ndarray],
    faces: list[tuple[np.ndarray, np.ndarray]],
    numbers: list[np.ndarray] | None,
) -> BoundaryFaces:
    corners: list[np.ndarray] = []
    ends: list[np.ndarray] = []
    behind: list[np.ndarray] = []
    cells: list[int] = []
    joined: list[PatchFaces] = []
    for part, (named, owner, (points, stops)) in enumerate(
        zip(patches, owners, faces, strict=True)
    ):
        first = min((_span(patch).start for patch in named.values()), default=0)
        last = max((_span(patch).stop for patch in named.values()), default=0)
        if not 0 <= first <= last <= len(stops) == len(owner):
            raise ValueError(f"{len(stops)} faces, {len(owner)} owners, patches up to {last}")
        if owner.max(initial=0) >= len(owner):
            raise ValueError(f"owner names cell {owner.max()} of a mesh with {len(owner)} faces")
        if sum(len(_span(patch)) for patch in named.values()) > last - first:
            raise ValueError("its patches overlap")
        if numbers is not None and points.max(initial=-1) >= len(numbers[part]):
            raise ValueError(f"faces name point {points.max()} of {len(numbers[part])}")
        start = int(stops[first - 1]) if first else 0
        own = points[start:]
        before = sum(len(array) for array in ends)
        for name, patch in named.items():
            if int(first_word(patch, "neighbProcNo") or -1) >= count:
                raise ValueError(f"{name} leads to a processor that is missing")
            span = _span(patch)
            place = slice(span.start - first + before, span.stop - first + before)
            joined.append(PatchFaces(part, name, patch, place))
        ends.append(stops[first:] - start + sum(len(array) for array in corners))
        corners.append(own if numbers is None else numbers[part][own])
        behind.append(owner[first:] + sum(cells))
        cells.append(int(owner.max(initial=-1)) + 1)
    return BoundaryFaces(
        corners=np.concatenate(corners),
        ends=np.concatenate(ends),
        owners=np.concatenate(behind),
        patches=joined,
        cells=tuple(cells),
        numbers=numbers,
    )


def _faces(parser: Parser) -> tuple[np.ndarray, np.ndarray]:
    """Point numbers of all faces, and where each face ends among them."""
    if parser.head.get("class") == ["faceCompactList"]:
        ends = _whole(parser)
        corners, ends = _whole(parser), ends[1:]
    else:
        corners, ends = parser.counted_lists()
        _check_whole(corners)
    if np.diff(ends, prepend=0).min(initial=0) < 0 or ends.max(initial=0) != len(corners):
        raise ValueError(f"its faces end at {ends.max(initial=0)} of {len(corners)} points")
    return corners, ends


def _whole(parser: Parser) -> np.ndarray:
    """The next list of numbers of points, faces or cells."""
    return _check_whole(parser.stored(parser.label))


def _check_whole(values: np.ndarray) -> np.ndarray:
    if values.min(initial=0) < 0:
        raise ValueError(f"it names number {values.min()}, but numbers start from 0")
    return values


def first_word(stated: Mapping[str, object], key: str) -> str:
    """The first word of an entry; empty if there is none."""
    value = stated.get(key)
    word = value[0] if isinstance(value, list) and value else ""
    return word if isinstance(word, str) else ""


def _span(stated: Mapping[str, object]) -> range:
    start = int(first_word(stated, "startFace"))
    return range(start, start + int(first_word(stated, "nFaces")))
