"""Legacy VTK files: a header of four lines, then keywords with numbers in ASCII or binary.

Binary numbers are big-endian. Read are STRUCTURED_POINTS, RECTILINEAR_GRID, STRUCTURED_GRID,
UNSTRUCTURED_GRID and POLYDATA (the surfaces that OpenFOAM samples), with cells in the layout before
and after version 5. Format: the VTK file formats chapter of the VTK User's Guide.

Declared counts are compared with the bytes that are left before memory is allocated.
"""

import re
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np

from pibert.data.readers.recordings import PARSING, reading
from pibert.data.readers.shared.files import count_words, parse_numbers
from pibert.data.readers.shared.space import SpaceMesh
from pibert.data.readers.vtk.xml import structured_mesh

HEAD = b"# vtk DataFile"

_SIZES = {"char": 1, "short": 2, "int": 4, "long": 8}
_TYPES = {name: f"i{size}" for name, size in _SIZES.items()}
_TYPES |= {f"unsigned_{name}": f"u{size}" for name, size in _SIZES.items()}
# Whatever the width of a vtkIdType in memory, it is written as an int.
_TYPES |= {"bit": "u1", "vtkidtype": "i4", "vtktypeint64": "i8", "float": "f4", "double": "f8"}
_NEEDS: dict[str, tuple[str, ...]] = {
    "STRUCTURED_POINTS": ("dims",),
    "RECTILINEAR_GRID": ("dims", "X", "Y", "Z"),
    "STRUCTURED_GRID": ("dims", "points"),
    "UNSTRUCTURED_GRID": ("points",),
    "POLYDATA": ("points",),
}
"""The geometry of each kind of data set."""
_WIDTHS = {"SCALARS": 1, "VECTORS": 3, "NORMALS": 3, "TENSORS": 9, "TEXTURE_COORDINATES": 2}
_LONG = 1 << 16
"""The words of longer lines are counted without making them."""
_NOT_BLANK = re.compile(rb"\S")


def read_legacy(path: Path) -> SpaceMesh:
    with reading(path, "this legacy VTK file", remedy="export it again", errors=PARSING):
        return _Parser(path.read_bytes()).mesh()


class _Parser:
    """Reads text line by line, and numbers by their count."""

    def __init__(self, data: bytes) -> None:
        self.data, self.position = data, 0
        self.binary = False
        self.found: dict[str, Any] = {"ORIGIN": np.zeros(3), "SPACING": np.ones(3)}
        """The geometry, by the names of ``_NEEDS``."""
        self.target: dict[str, np.ndarray] = {}
        self.count = 0
        """Points or cells with data, which ``target`` receives."""

    def mesh(self) -> SpaceMesh:
        if not self.line().encode("latin-1").startswith(HEAD):
            raise ValueError("its first line is not that of a VTK file")
        self.raw_line()  # a title, possibly empty
        coding = self.line().upper()
        if coding not in ("ASCII", "BINARY"):
            raise ValueError(f"the third line must be ASCII or BINARY, found {coding!r}")
        self.binary = coding == "BINARY"
        point_data: dict[str, np.ndarray] = {}
        cell_data: dict[str, np.ndarray] = {}
        while words := self.next_words():
            keyword = words[0].upper()
            if keyword in ("POINT_DATA", "CELL_DATA"):
                self.target = point_data if keyword == "POINT_DATA" else cell_data
                self.count = int(words[1])
            elif keyword == "FIELD":
                self.fields(int(words[2]))
            elif keyword in _WIDTHS:
                self.attribute(keyword, words)
            elif keyword in ("COLOR_SCALARS", "LOOKUP_TABLE"):
                count = int(words[2]) * (self.count if keyword == "COLOR_SCALARS" else 4)
                self.numbers(count, "u1" if self.binary else "f8")
            elif keyword == "METADATA":
                self.skip_paragraph()
            else:
                self.geometry(keyword, words)
        return self.assemble(point_data, cell_data)

    def geometry(self, keyword: str, words: list[str]) -> None:
        if keyword == "DATASET":
            self.found["kind"] = kind = words[1].upper()
            if kind not in _NEEDS:
                raise ValueError(f"a data set of kind {kind}; read are {', '.join(_NEEDS)}")
        elif keyword == "DIMENSIONS":
            self.found["dims"] = int(words[1]), int(words[2]), int(words[3])
        elif keyword in ("ORIGIN", "SPACING", "ASPECT_RATIO"):
            vector = np.array([float(words[1]), float(words[2]), float(words[3])])
            if not np.isfinite(vector).all():
                raise ValueError(f"{keyword} {vector} is not finite")
            self.found["ORIGIN" if keyword == "ORIGIN" else "SPACING"] = vector
        elif keyword in ("X_COORDINATES", "Y_COORDINATES", "Z_COORDINATES"):
            values = self.numbers(int(words[1]), _type_of(words[2]))
            self.found[keyword[0]] = values.astype(np.float64)
        elif keyword == "POINTS":
            values = self.numbers(3 * int(words[1]), _type_of(words[2]))
            self.found["points"] = values.reshape(-1, 3).astype(np.float64)
        elif keyword in ("CELLS", "POLYGONS"):
            self.found["cells"] = self.cells(int(words[1]), int(words[2]))
        elif keyword in ("VERTICES", "LINES", "TRIANGLE_STRIPS"):
            self.cells(int(words[1]), int(words[2]))
        elif keyword == "CELL_TYPES":
            self.numbers(int(words[1]), "i4")
        else:
            raise ValueError(f"an unknown keyword {keyword[:40]!r}")

    def cells(self, count: int, size: int) -> tuple[np.ndarray, np.ndarray]:
        before = self.position
        words = self.next_words()
        if words and words[0].upper() == "OFFSETS":
            # Since version 5: offsets from 0 to the end, then the point numbers.
            offsets = self.numbers(count, _type_of(words[1], whole=True))
            words = self.next_words()
            if not words or words[0].upper() != "CONNECTIVITY":
                raise ValueError("CONNECTIVITY is missing after OFFSETS")
            corners = self.numbers(size, _type_of(words[1], whole=True))
            return corners, offsets[1:].astype(np.int64)
        self.position = before
        # Before version 5: every cell as its number of points followed by them.
        flat = self.numbers(size, "i4").astype(np.int64)
        if not 0 <= count <= size:
            raise ValueError(f"{count} cells in a list of {size} numbers")
        starts = [0]
        for _ in range(count):
            if flat[starts[-1]] < 0:
                raise ValueError(f"a cell of {flat[starts[-1]]} points")
            starts.append(starts[-1] + 1 + int(flat[starts[-1]]))
        ends = np.array(starts[1:], dtype=np.int64) - np.arange(1, count + 1)
        return np.delete(flat, starts[:-1]), ends

    def attribute(self, keyword: str, words: list[str]) -> None:
        kind, width = words[2], _WIDTHS[keyword]
        if keyword == "TEXTURE_COORDINATES":
            width, kind = int(words[2]), words[3]
        elif keyword == "SCALARS":
            width = int(words[3]) if len(words) > 3 else 1
            before = self.position
            table = self.next_words()
            if not table or table[0].upper() != "LOOKUP_TABLE":
                self.position = before
        self.keep(unquote(words[1]), width, self.numbers(self.count * width, _type_of(kind)))

    def fields(self, count: int) -> None:
        for _ in range(count):
            words = self.next_words()
            if words[0].upper() == "METADATA":
                self.skip_paragraph()
                words = self.next_words()
            name, width, tuples = unquote(words[0]), int(words[1]), int(words[2])
            if words[3].lower() == "string":
                self.check_count(width * tuples, 1)
                for _ in range(width * tuples):
                    self.skip_text()
                continue
            values = self.numbers(width * tuples, _type_of(words[3]))
            if self.count:
                self.keep(name, width, values)
            elif name.upper() in ("TIME", "TIMEVALUE") and len(values) == 1:
                self.found["time"] = float(values[0])

    def skip_text(self) -> None:
        """Skip a text: a line, or in binary its length and as many bytes."""
        if self.position >= len(self.data):
            raise ValueError("it ends within a list of texts")
        if not self.binary:
            self.raw_line()
            return
        # The first two bits of the length state how many bytes it takes: 8, 4, 2 or 1.
        size = 8 >> (self.data[self.position] >> 6)
        length = int.from_bytes(self.data[self.position : self.position + size], "big")
        self.position += size + (length & ((1 << (8 * size - 2)) - 1))

    def keep(self, name: str, width: int, values: np.ndarray) -> None:
        if width < 1:
            raise ValueError(f"{name!r} has {width} components")
        self.target[name] = values if width == 1 else values.reshape(-1, width)

    def assemble(
        self, point_data: dict[str, np.ndarray], cell_data: dict[str, np.ndarray]
    ) -> SpaceMesh:
        found = self.found
        if "kind" not in found:
            raise ValueError("the line DATASET is missing")
        kind, needs = found["kind"], _NEEDS[found["kind"]]
        if missing := [need for need in needs if need not in found]:
            raise ValueError(f"a {kind} without {', '.join(missing)}")
        time = found.get("time")
        if kind in ("UNSTRUCTURED_GRID", "POLYDATA"):
            return SpaceMesh(
                points=found["points"],
                cells=found.get("cells"),
                in_order=kind == "POLYDATA",
                point_data=point_data,
                cell_data=cell_data,
                time=time,
            )
        geometry: dict[str, Any] = {"points": found.get("points")}
        if kind == "RECTILINEAR_GRID":
            geometry = {"axes": [found[letter] for letter in "XYZ"]}
        elif kind == "STRUCTURED_POINTS":
            geometry = {"image": (found["ORIGIN"], found["SPACING"])}
        return structured_mesh(found["dims"], point_data, cell_data, time=time, **geometry)

    def check_count(self, count: int, size: int) -> None:
        """Refuse a count of items that take more bytes than are left."""
        left = max(0, len(self.data) - self.position)
        if not 0 <= count * size <= left + 1:
            raise ValueError(f"it declares {count} values where {left} bytes are left")

    def numbers(self, count: int, kind: str) -> np.ndarray:
        """The next numbers; binary ones follow the keyword's line at once."""
        if self.binary:
            dtype = np.dtype(">" + kind)
            self.check_count(count, dtype.itemsize)
            values = np.empty(0, dtype)
            if count:
                values = np.frombuffer(self.data, dtype, count, self.position)
            self.position += values.nbytes
            return values.astype(dtype.newbyteorder("="))
        self.check_count(count, 2)  # a digit and white space, except after the last
        lines: list[bytes] = []
        found = 0
        while found < count:
            if self.position >= len(self.data):
                raise ValueError(f"it ends after {found} of {count} numbers")
            line = self.raw_line()
            lines.append(line)
            found += len(line.split()) if len(line) < _LONG else count_words(line)
        if found > count:
            raise ValueError(f"an array of {found} numbers where {count} were announced")
        return parse_numbers(b"\n".join(lines), kind)

    def next_words(self) -> list[str]:
        """The words of the next line that is not blank; none at the end of the file."""
        found = _NOT_BLANK.search(self.data, self.position)
        self.position = len(self.data) if found is None else found.start()
        words = self.raw_line()[:1000].split() if found else []
        return [word.decode("latin-1") for word in words]

    def skip_paragraph(self) -> None:
        while self.raw_line().strip():
            pass

    def raw_line(self) -> bytes:
        end = self.data.find(b"\n", self.position)
        end = len(self.data) if end < 0 else end
        line = self.data[self.position : end]
        self.position = end + 1
        return line

    def line(self) -> str:
        return self.raw_line()[:1000].decode("latin-1").strip()


def _type_of(word: str, *, whole: bool = False) -> str:
    kind = _TYPES.get(word.lower(), "")
    if not kind or (whole and kind.startswith("f")):
        raise ValueError(f"an unknown or unexpected type {word!r}")
    return kind
