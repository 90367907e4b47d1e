"""OpenFOAM's field files: a dictionary with the cell values as ``internalField``, ASCII or binary.

The dimensions are powers of kg, m, s, K, mol, A, cd.
"""

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from pibert.data.sources.assembly.space import SpaceMesh
from pibert.data.sources.recordings import SourceError

_CLASS = re.compile(rb"class\s+vol(Scalar|Vector)Field")
_INTERNAL = re.compile(rb"internalField\s+(uniform|nonuniform)\s+")
_LIST = re.compile(rb"(?:List<\w+>)?\s*(\d+)\s*([({])")
_DIMENSIONS = re.compile(rb"dimensions\s+\[([^\]]*)\]")
_GEOMETRY = ("C", "Cx", "Cy", "Cz", "V", "phi")
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


@dataclass(frozen=True, eq=False)
class FoamField:
    """Cell values (n,) or (n, 3); one row where the field is uniform."""

    values: np.ndarray
    uniform: bool
    unit: str | None


def read_field(path: Path) -> FoamField | None:
    """The cell values of a field file; None where a file holds no such field."""
    data = path.read_bytes()
    kind = _CLASS.search(data[:4000])
    if kind is None:
        return None
    width = 3 if kind[1] == b"Vector" else 1
    found = _INTERNAL.search(data)
    if found is None:
        raise _broken(path, "internalField is missing")
    unit = _unit(data[: found.start()])
    try:
        if found[1] == b"uniform":
            values = _numbers(data[found.end() : data.index(b";", found.end())])
            return FoamField(_shaped(values, 1, width), True, unit)
        head = _LIST.match(data, found.end())
        if head is None:
            raise ValueError("a list of values was expected")
        count, start = int(head[1]), head.end()
        if head[2] == b"{":
            one = _numbers(data[start : data.index(b"}", start)])
            values = np.tile(one, count)
        elif re.search(rb"format\s+binary", data[:4000]):
            size = 4 if b"scalar=32" in data[:4000] else 8
            stored = data[start : start + count * width * size]
            values = np.frombuffer(stored, f"<f{size}").astype(np.float64)
        else:
            end = data.find(b"boundaryField", start)
            end = data.rindex(b")", start, end if end > 0 else len(data))
            values = _numbers(data[start:end])
        return FoamField(_shaped(values, count, width), False, unit)
    except ValueError as error:
        raise _broken(path, str(error)) from error


def find_centres(case: Path, folders: list[Path]) -> Path:
    """The file of cell centres of a case."""
    for folder in (case / "0", case / "constant", *folders):
        if (folder / "C").is_file():
            return folder / "C"
    raise SourceError(
        f"{case}: the centres of its cells are not there; run 'postProcess -func "
        "writeCellCentres' in the case (it writes C into the time folders), or sample a plane"
    )


def read_frame(centres: Path, folder: Path) -> tuple[SpaceMesh, dict[str, str]]:
    """The cell values of a time folder as points, and the units of the fields."""
    points = read_field(centres)
    if points is None or points.uniform or points.values.ndim != 2:
        raise _broken(centres, "it must hold a vector per cell")
    data: dict[str, np.ndarray] = {}
    units: dict[str, str] = {}
    for path in sorted(folder.iterdir()):
        field = read_field(path) if path.is_file() and path.name not in _GEOMETRY else None
        if field is None:
            continue
        count = len(points.values)
        data[path.name] = np.repeat(field.values, count, 0) if field.uniform else field.values
        if field.unit is not None:
            units[path.name] = field.unit
    return SpaceMesh(points=points.values, point_data=data), units


def _numbers(text: bytes) -> np.ndarray:
    return np.array(re.sub(rb"[()]", b" ", text).split(), dtype="S").astype(np.float64)


def _shaped(values: np.ndarray, count: int, width: int) -> np.ndarray:
    if len(values) != count * width:
        raise ValueError(f"{len(values)} numbers where {count * width} were announced")
    return values if width == 1 else values.reshape(count, width)


def _unit(head: bytes) -> str | None:
    found = _DIMENSIONS.search(head)
    if found is None:
        return None
    try:
        powers = tuple(int(word) for word in found[1].split()[:4])
    except ValueError:
        return None
    return _UNITS.get(powers)


def _broken(path: Path, problem: str) -> SourceError:
    return SourceError(f"{path}: this OpenFOAM field cannot be read ({problem}); write it again")
