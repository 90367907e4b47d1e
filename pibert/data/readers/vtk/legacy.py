"""Legacy VTK files: a header of four lines, then keywords with numbers in ASCII or binary.

Binary numbers are big-endian. Read are STRUCTURED_POINTS, RECTILINEAR_GRID, STRUCTURED_GRID,
UNSTRUCTURED_GRID and POLYDATA (the surfaces that OpenFOAM samples), with cells in the layout before
and after version 5. Format: the VTK file formats chapter of the VTK User's Guide.

Counts that a file declares are compared with what it holds before anything of that size is made.
"""

import math
import re
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import numpy as np

from pibert.data.readers.recordings import SourceError
from pibert.data.readers.shared.files import count_words, parse_numbers
from pibert.data.readers.shared.space import SpaceMesh
from pibert.data.readers.vtk.xml import Dims, check_dims

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
"""What each kind of data set consists of."""
_LONG = 1 << 16
"""The words of longer lines are counted without making them."""
_NOT_BLANK = re.compile(rb"\S")


def read_legacy(path: Path) -> SpaceMesh:
    parser = _Parser(path, path.read_bytes())
    try:
        return parser.mesh()
    except SourceError:
        raise
    except IndexError as error:
        raise parser.fail("a line or the file ends too early") from error
    except (ValueError, ArithmeticError) as error:
        raise parser.fail(str(error)) from error


class _Parser:
    """Walks through the bytes: text line by line, numbers by their count."""

    def __init__(self, path: Path, data: bytes) -> None:
        self.path, self.data, self.place = path, data, 0
        self.binary = False
        self.found: dict[str, Any] = {}
        self.target: dict[str, np.ndarray] = {}
        self.count = 0

    def mesh(self) -> SpaceMesh:
        if not self.line().encode("latin-1").startswith(HEAD):
            raise self.fail("its first line is not that of a VTK file")
        self.raw_line()  # a title, possibly empty
        coding = self.line().upper()
        if coding not in ("ASCII", "BINARY"):
            raise self.fail(f"the third line must be ASCII or BINARY, found {coding!r}")
        self.binary = coding == "BINARY"
        point_data: dict[str, np.ndarray] = {}
        cell_data: dict[str, np.ndarray] = {}
        while self.skip_blank():
            words = self.line().split()
            keyword = words[0].upper()
            if keyword in ("POINT_DATA", "CELL_DATA"):
                self.target = point_data if keyword == "POINT_DATA" else cell_data
                self.count = int(words[1])
            elif keyword == "FIELD":
                self.fields(int(words[2]))
            elif keyword in ("SCALARS", "VECTORS", "NORMALS", "TENSORS", "TEXTURE_COORDINATES"):
                self.attribute(keyword, words)
            elif keyword == "COLOR_SCALARS":
                self.numbers(self.count * int(words[2]), "u1" if self.binary else "f8")
            elif keyword == "LOOKUP_TABLE":
                self.numbers(4 * int(words[2]), "u1" if self.binary else "f8")
            elif keyword == "METADATA":
                self.skip_paragraph()
            else:
                self.geometry(keyword, words)
        return self.assemble(point_data, cell_data)

    def geometry(self, keyword: str, words: list[str]) -> None:
        if keyword == "DATASET":
            kind = words[1].upper()
            if kind not in _NEEDS:
                raise self.fail(f"a data set of kind {kind}; read are {', '.join(_NEEDS)}")
            self.found["kind"] = kind
        elif keyword == "DIMENSIONS":
            self.found["dims"] = int(words[1]), int(words[2]), int(words[3])
        elif keyword in ("ORIGIN", "SPACING", "ASPECT_RATIO"):
            three = [float(words[place]) for place in (1, 2, 3)]
            if not all(math.isfinite(number) for number in three):
                raise self.fail(f"{keyword} {three} is not finite")
            self.found["ORIGIN" if keyword == "ORIGIN" else "SPACING"] = three
        elif keyword in ("X_COORDINATES", "Y_COORDINATES", "Z_COORDINATES"):
            self.found[keyword[0]] = self.numbers(int(words[1]), self.type_of(words[2]))
        elif keyword == "POINTS":
            values = self.numbers(3 * int(words[1]), self.type_of(words[2]))
            self.found["points"] = values.reshape(-1, 3)
        elif keyword in ("CELLS", "POLYGONS"):
            self.found["cells"] = self.cells(int(words[1]), int(words[2]))
        elif keyword in ("VERTICES", "LINES", "TRIANGLE_STRIPS"):
            self.cells(int(words[1]), int(words[2]))
        elif keyword == "CELL_TYPES":
            self.numbers(int(words[1]), "i4")
        else:
            raise self.fail(f"an unknown keyword {keyword[:40]!r}")

    def cells(self, count: int, size: int) -> tuple[np.ndarray, np.ndarray]:
        before = self.place
        words = self.line().split() if self.skip_blank() else []
        if words and words[0].upper() == "OFFSETS":
            # Since version 5: offsets from 0 to the end, then the point numbers.
            offsets = self.numbers(count, self.whole_type(words[1]))
            words = self.line().split() if self.skip_blank() else []
            if not words or words[0].upper() != "CONNECTIVITY":
                raise self.fail("CONNECTIVITY is missing after OFFSETS")
            return self.numbers(size, self.whole_type(words[1])), offsets[1:].astype(np.int64)
        self.place = before
        # Before: every cell as its number of points followed by them.
        flat = self.numbers(size, "i4").astype(np.int64)
        keep, ends, start = np.ones(size, dtype=bool), [], 0
        if not 0 <= count <= size:
            raise self.fail(f"{count} cells in a list of {size} numbers")
        for index in range(count):
            if flat[start] < 0:
                raise self.fail(f"a cell of {flat[start]} points")
            keep[start] = False
            start += 1 + int(flat[start])
            ends.append(start - index - 1)
        return flat[keep], np.array(ends, dtype=np.int64)

    def attribute(self, keyword: str, words: list[str]) -> None:
        name, kind = unquote(words[1]), words[2]
        width = {"SCALARS": 1, "VECTORS": 3, "NORMALS": 3, "TENSORS": 9}.get(keyword, 2)
        if keyword == "TEXTURE_COORDINATES":
            width, kind = int(words[2]), words[3]
        elif keyword == "SCALARS":
            width = int(words[3]) if len(words) > 3 else 1
            before = self.place
            if not (self.skip_blank() and self.line().upper().startswith("LOOKUP_TABLE")):
                self.place = before
        self.keep(name, width, self.numbers(self.count * width, self.type_of(kind)))

    def fields(self, count: int) -> None:
        for _ in range(count):
            self.skip_blank()
            words = self.line().split()
            if words[0].upper() == "METADATA":
                self.skip_paragraph()
                self.skip_blank()
                words = self.line().split()
            name, width, tuples = unquote(words[0]), int(words[1]), int(words[2])
            if words[3].lower() == "string":
                self.check_count(width * tuples, 1)
                for _ in range(width * tuples):
                    self.skip_text()
                continue
            values = self.numbers(width * tuples, self.type_of(words[3]))
            if self.count:
                self.keep(name, width, values)
            elif name.upper() in ("TIME", "TIMEVALUE") and len(values) == 1:
                self.found["time"] = float(values[0])

    def skip_text(self) -> None:
        """Pass a text: a line, or in binary its length and so many bytes."""
        if self.place >= len(self.data):
            raise self.fail("it ends within a list of texts")
        if not self.binary:
            self.raw_line()
            return
        # The first two bits of the length say how many bytes it takes: 8, 4, 2 or 1.
        size = 8 >> (self.data[self.place] >> 6)
        length = int.from_bytes(self.data[self.place : self.place + size], "big")
        self.place += size + (length & ((1 << (8 * size - 2)) - 1))

    def keep(self, name: str, width: int, values: np.ndarray) -> None:
        if width < 1:
            raise self.fail(f"{name!r} has {width} components")
        self.target[name] = values if width == 1 else values.reshape(-1, width)

    def assemble(
        self, point_data: dict[str, np.ndarray], cell_data: dict[str, np.ndarray]
    ) -> SpaceMesh:
        found = self.found
        kind = found.get("kind")
        if kind is None:
            raise self.fail("the line DATASET is missing")
        needs = _NEEDS[kind]
        if missing := [need for need in needs if need not in found]:
            raise self.fail(f"a {kind} without {', '.join(missing)}")
        # A mesh of cells has no dimensions, whatever its file states.
        dims: Dims | None = found["dims"] if "dims" in needs else None
        axes: Any = None
        if dims is not None:
            check_dims(dims, point_data, cell_data)
        if kind == "RECTILINEAR_GRID":
            axes = tuple(found[letter].astype(np.float64) for letter in "XYZ")
            if tuple(len(axis) for axis in axes) != dims:
                raise self.fail(f"DIMENSIONS {dims} do not fit the coordinates")
        elif kind == "STRUCTURED_POINTS":
            assert dims is not None
            if not point_data and not cell_data:
                return SpaceMesh(dims=dims)  # nothing vouches for its size
            origin, spacing = found.get("ORIGIN", [0.0] * 3), found.get("SPACING", [1.0] * 3)
            axes = tuple(origin[i] + spacing[i] * np.arange(dims[i]) for i in range(3))
        elif dims is not None and math.prod(dims) != len(found["points"]):
            raise self.fail(f"DIMENSIONS {dims} do not fit {len(found['points'])} points")
        points = found["points"].astype(np.float64) if axes is None else None
        return SpaceMesh(
            dims=dims,
            axes=axes,
            points=points,
            cells=found.get("cells"),
            in_order=kind == "POLYDATA",
            point_data=point_data,
            cell_data=cell_data,
            time=found.get("time"),
        )

    def type_of(self, word: str) -> str:
        if word.lower() not in _TYPES:
            raise self.fail(f"an unknown type {word!r}")
        return _TYPES[word.lower()]

    def whole_type(self, word: str) -> str:
        kind = self.type_of(word)
        if kind.startswith("f"):
            raise self.fail(f"cells given as {word}, not as whole numbers")
        return kind

    def check_count(self, count: int, size: int) -> None:
        """Refuse a count of items that take more bytes than are left."""
        left = max(0, len(self.data) - self.place)
        if not 0 <= count * size <= left + 1:
            raise self.fail(f"it declares {count} values where {left} bytes are left")

    def numbers(self, count: int, kind: str) -> np.ndarray:
        """The next numbers; binary ones follow the keyword's line at once."""
        if self.binary:
            dtype = np.dtype(">" + kind)
            self.check_count(count, dtype.itemsize)
            end = self.place + count * dtype.itemsize
            if end > len(self.data):
                raise self.fail(f"it ends within an array, {end - len(self.data)} bytes early")
            values = np.frombuffer(self.data, dtype, count, self.place)
            self.place = end
            return values.astype(dtype.newbyteorder("="))
        self.check_count(count, 2)  # a digit and white space, save after the last
        lines: list[bytes] = []
        found = 0
        while found < count:
            if self.place >= len(self.data):
                raise self.fail(f"it ends after {found} of {count} numbers")
            line = self.raw_line()
            lines.append(line)
            found += len(line.split()) if len(line) < _LONG else count_words(line)
        if found > count:
            raise self.fail(f"an array of {found} numbers where {count} were announced")
        return parse_numbers(b"\n".join(lines), kind)

    def skip_blank(self) -> bool:
        """Go to the next line that is not empty; False at the end of the file."""
        found = _NOT_BLANK.search(self.data, self.place)
        self.place = len(self.data) if found is None else found.start()
        return found is not None

    def skip_paragraph(self) -> None:
        while self.raw_line().strip():
            pass

    def raw_line(self) -> bytes:
        end = self.data.find(b"\n", self.place)
        end = len(self.data) if end < 0 else end
        line = self.data[self.place : end]
        self.place = end + 1
        return line

    def line(self) -> str:
        return self.raw_line()[:1000].decode("latin-1").strip()

    def fail(self, problem: str) -> SourceError:
        return SourceError(
            f"{self.path}: this legacy VTK file cannot be read ({problem}, near byte {self.place})"
            "; export it again"
        )
