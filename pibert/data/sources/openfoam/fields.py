"""Fields of a case: the values of its cells and those on the edges of its boundary.

The dimensions are powers of kg, m, s, K, mol, A, cd.
"""

from dataclasses import dataclass

import numpy as np

from pibert.data.sources.openfoam.dictionary import UNKNOWN, Dictionary
from pibert.data.sources.openfoam.polymesh import Patch, PolyMesh, first_word
from pibert.data.sources.openfoam.storage import Storage, broken
from pibert.data.sources.recordings import SourceError

SLIDING = ("slip", "symmetry", "symmetryPlane", "basicSymmetry")
"""Conditions that leave the velocity along the boundary alone."""
_WIDTHS = {"volScalarField": 1, "volVectorField": 3}
_UNITS: dict[tuple[int, ...], str] = {
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


class NotEvaluated(SourceError):
    """A field whose values only OpenFOAM could compute (``#calc``, ``#codeStream``)."""


@dataclass(frozen=True, eq=False)
class FoamField:
    """The field of every part of a case."""

    name: str
    width: int
    unit: str | None
    parts: tuple[Dictionary, ...]

    def cells(self, counts: tuple[int, ...]) -> np.ndarray:
        """(n, width) values of the cells of all parts."""
        found = [
            _values(part.get("internalField"), count, self.width)
            for part, count in zip(self.parts, counts, strict=True)
        ]
        if any(values is None for values in found):
            raise NotEvaluated(
                f"{self.name}: the values of its cells are not stated as numbers (OpenFOAM would "
                "compute them)"
            )
        return np.concatenate(found)  # type: ignore[arg-type]

    def condition(self, patch: Patch) -> Dictionary:
        """What is stated for a patch; nothing where there is no entry."""
        boundary = self.parts[patch.part].get("boundaryField")
        found = boundary.find(*patch.keys) if isinstance(boundary, Dictionary) else None
        return found if isinstance(found, Dictionary) else Dictionary()

    def edges(self, mesh: PolyMesh, cells: np.ndarray) -> np.ndarray:
        """(f, width) values on the edges of the boundary, in the order of the mesh."""
        found = [self.on_patch(patch, mesh, cells) for patch in mesh.valued]
        return np.concatenate([np.empty((0, self.width)), *found])

    def on_patch(self, patch: Patch, mesh: PolyMesh, cells: np.ndarray) -> np.ndarray:
        """(k, width) values on the edges of a patch: those stated, else those of the cells."""
        condition, count = self.condition(patch), len(patch.edges)
        kind, beside = first_word(condition, "type"), cells[patch.owners]
        if kind == "noSlip":
            return np.zeros((count, self.width))
        if kind in SLIDING or patch.kind in SLIDING:
            if self.width == 3:
                outward = np.zeros((count, 3))
                outward[:, list(mesh.axes)] = mesh.outward(patch)
                beside = beside - (beside * outward).sum(1, keepdims=True) * outward
            return beside
        stated = _values(condition.get("value"), count, self.width)
        return beside if stated is None else stated


def read_field(storage: Storage, name: str) -> FoamField:
    """A scalar or vector field of the cells."""
    try:
        parsers = storage.read(name)
        kind = first_word(parsers[0].head, "class")
        if kind not in _WIDTHS:
            raise ValueError(f"its class is {kind!r}, expected one of {', '.join(_WIDTHS)}")
        parts = tuple(parser.entries() for parser in parsers)
        if any("internalField" not in part for part in parts):
            raise ValueError("internalField is missing")
        return FoamField(name, _WIDTHS[kind], _unit(parts[0]), parts)
    except SourceError:
        raise
    except ValueError as error:
        raise SourceError(broken(storage.folders[0] / name, error)) from error


def is_field(storage: Storage, name: str) -> bool:
    """Whether a file holds a scalar or vector of the cells."""
    return first_word(storage.read(name)[0].head, "class") in _WIDTHS


def _values(entry: object, count: int, width: int) -> np.ndarray | None:
    """(count, width) of ``uniform VALUE`` or ``nonuniform LIST``; None where it is not stated."""
    if not isinstance(entry, list) or len(entry) < 2 or UNKNOWN in (str(e) for e in entry[:2]):
        return None
    if entry[0] == "uniform":
        value = entry[1] if isinstance(entry[1], list) else entry[1:2]
        if any(word == UNKNOWN for word in value):
            return None
        numbers = np.array([float(word) for word in value])
        if len(numbers) != width:
            raise ValueError(f"a uniform value of {len(numbers)} numbers, expected {width}")
        return np.broadcast_to(numbers, (count, width))
    values = next((word for word in entry if isinstance(word, np.ndarray)), None)
    if values is None:
        return None
    if values.size != count * width:
        raise ValueError(f"{values.size} numbers for {count} cells or faces of {width} each")
    return values.reshape(count, width)


def _unit(stated: Dictionary) -> str | None:
    listed = stated.get("dimensions")
    words = listed[0] if isinstance(listed, list) and listed else []
    if not isinstance(words, list) or len(words) < 4:
        return None
    try:
        return _UNITS.get(tuple(int(float(word)) for word in words[:4]))
    except ValueError:
        return None
