"""Fields of a case: cell values, and values on the edges of the boundary.

Dimensions are powers of kg, m, s, K, mol, A, cd.
"""

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pibert.data.sources.openfoam.dictionary import UNKNOWN, Dictionary
from pibert.data.sources.openfoam.polymesh import Patch, PolyMesh
from pibert.data.sources.openfoam.storage import Storage, broken
from pibert.data.sources.openfoam.topology import first_word
from pibert.data.sources.recordings import SourceError

SLIP = ("slip", "symmetry", "symmetryPlane", "basicSymmetry")
"""Conditions, and types of patches, that remove the normal velocity alone."""
_WIDTHS = {"volScalarField": 1, "volVectorField": 3}
_UNITS: dict[tuple[float, ...], str] = {
    (0, 0, 0, 0): "1",
    (0, 1, 0, 0): "m",
    (0, 1, -1, 0): "m/s",
    (0, 0, -1, 0): "1/s",
    (0, 2, -1, 0): "m2/s",
    (0, 2, -2, 0): "m2/s2",
    (1, -1, -2, 0): "Pa",
    (1, -3, 0, 0): "kg/m3",
    (0, 0, 0, 1): "K",
}
_NAMED_UNITS = {
    "dimensionless": "1",
    "velocity": "m/s",
    "kinematicPressure": "m2/s2",
    "pressure": "Pa",
    "density": "kg/m3",
    "temperature": "K",
}
"""Names that newer versions write instead of powers."""


class NotEvaluated(SourceError):
    """A field whose values only OpenFOAM can compute (``#calc``, ``#codeStream``)."""


@dataclass(frozen=True, eq=False)
class FoamField:
    """One field in all parts of a case."""

    path: Path
    """Of the first part's file."""
    width: int
    """Components: 1 or 3."""
    unit: str | None
    parts: tuple[Dictionary, ...]

    def cells(self, counts: tuple[int, ...]) -> np.ndarray:
        """(n, width) values of the cells of all parts, given the number of cells of each."""
        found = []
        for part, count in zip(self.parts, counts, strict=True):
            values = self._values(part.get("internalField"), count)
            if values is None:
                raise NotEvaluated(
                    f"{self.path}: internalField is not given as numbers; OpenFOAM computes it"
                )
            found.append(values)
        return np.concatenate(found)

    def condition(self, patch: Patch) -> Dictionary:
        """The boundary condition on a patch; empty if none is stated."""
        boundary = self.parts[patch.part].get("boundaryField")
        try:
            found = boundary.find(*patch.keys) if isinstance(boundary, Dictionary) else None
        except ValueError as error:
            raise SourceError(broken(self.path, error)) from error
        return found if isinstance(found, Dictionary) else Dictionary()

    def edges(self, mesh: PolyMesh, cells: np.ndarray) -> np.ndarray:
        """(f, width) values on the mesh's edges."""
        found = [self.on_patch(patch, mesh, cells) for patch in mesh.valued]
        return np.concatenate([np.empty((0, self.width)), *found])

    def on_patch(self, patch: Patch, mesh: PolyMesh, cells: np.ndarray) -> np.ndarray:
        """(k, width) values on a patch: those stated, else those of the cells beside it."""
        condition, count = self.condition(patch), len(patch.edges)
        kind, beside = first_word(condition, "type"), cells[patch.owners]
        if kind == "noSlip":
            return np.zeros((count, self.width))
        if kind in SLIP or patch.kind in SLIP:
            if self.width == 3:
                outward = np.zeros((count, 3))
                outward[:, list(mesh.axes)] = mesh.outward(patch)
                beside = beside - (beside * outward).sum(1, keepdims=True) * outward
            return beside
        stated = self._values(condition.get("value"), count)
        return beside if stated is None else stated

    def _values(self, entry: object, count: int) -> np.ndarray | None:
        try:
            return _values(entry, count, self.width)
        except ValueError as error:
            raise SourceError(broken(self.path, error)) from error


def read_field(storage: Storage, name: str) -> FoamField:
    """Read a scalar or vector field of the cells, named by time folder and file."""
    path = storage.folders[0] / name
    try:
        parsers = storage.read(name)
        kind = first_word(parsers[0].head, "class")
        if kind not in _WIDTHS:
            raise ValueError(f"its class is {kind!r}, expected one of {', '.join(_WIDTHS)}")
        parts = tuple(parser.entries() for parser in parsers)
        if any("internalField" not in part for part in parts):
            raise ValueError("internalField is missing")
        return FoamField(path, _WIDTHS[kind], _unit(parts[0]), parts)
    except SourceError:
        raise
    except ValueError as error:
        raise SourceError(broken(path, error)) from error


def is_field(storage: Storage, name: str) -> bool:
    """Whether a file holds a scalar or vector field of the cells."""
    return first_word(storage.read(name)[0].head, "class") in _WIDTHS


def _values(entry: object, count: int, width: int) -> np.ndarray | None:
    """(count, width) from ``uniform VALUE`` or ``nonuniform LIST``; None if it is not stated."""
    if not isinstance(entry, list) or len(entry) < 2:
        return None
    values = next((word for word in entry if isinstance(word, np.ndarray)), None)
    if values is not None:
        if values.size != count * width:
            raise ValueError(f"found {values.size} numbers, expected {count} x {width}")
        return values.reshape(count, width)
    words = entry[1] if isinstance(entry[1], list) else entry[1:2]
    if entry[0] != "uniform" or UNKNOWN in words:
        return None
    if not all(isinstance(word, str) for word in words):
        raise ValueError("a uniform value holds something other than numbers")
    numbers = np.array([float(word) for word in words])
    if len(numbers) != width:
        raise ValueError(f"a uniform value has {len(numbers)} numbers, expected {width}")
    return np.broadcast_to(numbers, (count, width))


def _unit(stated: Dictionary) -> str | None:
    listed = stated.get("dimensions")
    words = listed[0] if isinstance(listed, list) and listed else []
    if not isinstance(words, list) or not all(isinstance(word, str) for word in words):
        return None
    if len(words) == 1:
        return _NAMED_UNITS.get(words[0])
    try:
        return _UNITS.get(tuple(float(word) for word in words[:4]))
    except ValueError:
        return None
