"""VTK's XML files: .vti, .vtr, .vts, and .vtu and .vtp in one piece or several.

An array is text, base64 after a header with its length, or stored in one appended block (raw or
base64) at an offset. A compressed array is a header (number of blocks, size of a block, size of the
last one or 0, compressed sizes) and the blocks; in base64 the header is encoded separately. Format:
"VTK XML formats" of the VTK documentation.

Declared sizes are compared with the content of the file before memory is allocated.
"""

import base64
import lzma
import math
import re
import zlib
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np

from pibert.data.readers.recordings import PARSING, SourceError, reading
from pibert.data.readers.shared.files import parse_numbers, unpacked_limit
from pibert.data.readers.shared.space import SpaceMesh

KINDS = ("ImageData", "RectilinearGrid", "StructuredGrid", "UnstructuredGrid", "PolyData")

_TYPES = {f"Int{8 * size}": f"i{size}" for size in (1, 2, 4, 8)}
_TYPES |= {f"UInt{8 * size}": f"u{size}" for size in (1, 2, 4, 8)}
_TYPES |= {"Float32": "f4", "Float64": "f8"}
_DECOMPRESSORS: dict[str, Callable[[], Any]] = {
    "vtkZLibDataCompressor": zlib.decompressobj,
    # The highest preset needs a quarter of this; a damaged header may request gigabytes.
    "vtkLZMADataCompressor": partial(lzma.LZMADecompressor, memlimit=256 << 20),
}
_APPENDED = re.compile(rb"<AppendedData[^<>]*>\s*_")
_MOST_TAGS = 500_000
"""An element takes about 100 bytes of memory, and four bytes of a file."""


def structured_mesh(
    dims: tuple[int, int, int],
    point_data: dict[str, np.ndarray],
    cell_data: dict[str, np.ndarray],
    *,
    image: tuple[np.ndarray, np.ndarray] | None = None,
    axes: Sequence[np.ndarray] | None = None,
    points: np.ndarray | None = None,
    time: float | None = None,
) -> SpaceMesh:
    """A grid with the origin and spacing of an image, or with axes, or with points (n, 3).

    Raises ValueError unless every array has one value per point, or per cell, of the grid. Axes are
    made only where data confirm the size.
    """
    count, cells = math.prod(dims), math.prod(max(1, n - 1) for n in dims)
    wrong = [name for name, values in point_data.items() if len(values) != count]
    wrong += [name for name, values in cell_data.items() if len(values) != cells]
    if min(dims) < 1 or wrong:
        raise ValueError(
            f"a grid of {' x '.join(map(str, dims))} points; arrays that do not fit: {wrong}"
        )
    if image is not None and (point_data or cell_data):
        axes = [o + step * np.arange(n) for o, step, n in zip(*image, dims, strict=True)]
    lengths = None if axes is None else tuple(map(len, axes))
    if lengths not in (None, dims) or (points is not None and len(points) != count):
        raise ValueError(f"a grid of {dims} points does not fit its coordinates")
    return SpaceMesh(
        dims=dims,
        axes=None if axes is None else (axes[0], axes[1], axes[2]),
        points=points,
        point_data=point_data,
        cell_data=cell_data,
        time=time,
    )


def parse(path: Path, text: bytes) -> ElementTree.Element:
    # UTF-16, in which entities are spelt differently, has zero bytes.
    if b"<!DOCTYPE" in text or b"<!ENTITY" in text or b"\0" in text:
        raise SourceError(
            f"{path}: it has a document type, entities or zero bytes; export it again"
        )
    if text.count(b"<") > _MOST_TAGS:
        raise SourceError(
            f"{path}: its XML has more than {_MOST_TAGS} tags; save it in fewer pieces or files"
        )
    try:
        root = ElementTree.fromstring(text)
    except ElementTree.ParseError as error:
        raise SourceError(
            f"{path}: this is not whole XML ({error}); the file is damaged: export it again"
        ) from error
    if root.tag != "VTKFile":
        raise SourceError(f"{path}: an XML file of kind {root.tag!r}, not VTKFile")
    return root


def read_xml(path: Path) -> SpaceMesh:
    with reading(path, "this VTK file", remedy="export it again", errors=PARSING):
        return _Document(path, path.read_bytes()).mesh()


class _Document:
    """One file: its XML, and the block of appended data if it has one."""

    def __init__(self, path: Path, data: bytes) -> None:
        self.path, self.appended = path, memoryview(b"")
        self.left = unpacked_limit(len(data))
        found = _APPENDED.search(data)
        if found:
            # Raw bytes are no XML: they are cut out before it is parsed.
            end = data.rfind(b"</AppendedData>")
            if end < found.end():
                raise ValueError("it ends within its appended data")
            self.appended = memoryview(data)[found.end() : end]
            data = data[: found.end()] + data[end:]
        self.root = parse(path, data)
        head = self.root.find("AppendedData")
        self.encoding = "raw" if head is None else head.get("encoding", "raw")
        self.order = "<" if self.root.get("byte_order", "LittleEndian") == "LittleEndian" else ">"
        header = self.root.get("header_type", "UInt32")
        if header not in ("UInt32", "UInt64"):
            raise ValueError(f"header_type must be UInt32 or UInt64, found {header}")
        self.header = np.dtype(self.order + _TYPES[header])
        compressor = self.root.get("compressor")
        if compressor is not None and compressor not in _DECOMPRESSORS:
            raise SourceError(f"{path}: compressed by {compressor}; export it with zlib or without")
        self.decompressor = None if compressor is None else _DECOMPRESSORS[compressor]

    def mesh(self) -> SpaceMesh:
        kind = self.root.get("type", "")
        if kind not in KINDS:
            raise SourceError(
                f"{self.path}: a VTK file of type {kind}; save it as one of {', '.join(KINDS)}"
            )
        body = self.root.find(kind)
        pieces = [] if body is None else body.findall("Piece")
        if body is None or not pieces:
            raise ValueError(f"{kind} has no piece")
        if kind in ("UnstructuredGrid", "PolyData"):
            return self.unstructured(pieces, "Polys" if kind == "PolyData" else "Cells")
        if len(pieces) > 1:
            raise SourceError(
                f"{self.path}: a grid in {len(pieces)} pieces is not read; merge them first"
            )
        return self.structured(kind, body, pieces[0])

    def structured(
        self, kind: str, body: ElementTree.Element, piece: ElementTree.Element
    ) -> SpaceMesh:
        extent = [int(word) for word in (piece.get("Extent") or body.attrib["WholeExtent"]).split()]
        if len(extent) != 6:
            raise ValueError(f"an extent of {len(extent)} numbers, expected 6")
        low, high = extent[::2], extent[1::2]
        dims = (high[0] - low[0] + 1, high[1] - low[1] + 1, high[2] - low[2] + 1)
        geometry: dict[str, Any] = {}
        if kind == "ImageData":
            origin, spacing = _floats(body, "Origin", 0, 0, 0), _floats(body, "Spacing", 1, 1, 1)
            geometry["image"] = origin + spacing * low, spacing
            upright = (1, 0, 0, 0, 1, 0, 0, 0, 1)
            if (_floats(body, "Direction", *upright) != upright).any():
                raise ValueError("a rotated image; resample it to axes along x, y and z")
        elif kind == "RectilinearGrid":
            arrays = [self.array(entry) for entry in piece.findall("Coordinates/DataArray")]
            geometry["axes"] = [array.reshape(-1).astype(np.float64) for array in arrays]
        else:
            geometry["points"] = self.points(piece)
        return structured_mesh(
            dims,
            self.arrays(piece.find("PointData")),
            self.arrays(piece.find("CellData")),
            time=self.time(),
            **geometry,
        )

    def unstructured(self, pieces: list[ElementTree.Element], cells_in: str) -> SpaceMesh:
        points, connectivity, ends = [], [], []
        data: dict[str, list[dict[str, np.ndarray]]] = {"PointData": [], "CellData": []}
        points_before = links_before = 0
        for piece in pieces:
            points.append(self.points(piece))
            cells = self.arrays(piece.find(cells_in))
            corners, stops = cells["connectivity"], cells["offsets"]
            if corners.dtype.kind not in "iu" or stops.dtype.kind not in "iu":
                raise ValueError("its cells are not given as whole numbers")
            connectivity.append(corners.reshape(-1).astype(np.int64) + points_before)
            ends.append(stops.reshape(-1).astype(np.int64) + links_before)
            points_before += len(points[-1])
            links_before += len(connectivity[-1])
            for where, found in data.items():
                found.append(self.arrays(piece.find(where)))
        joined = {
            where: {
                name: np.concatenate([arrays[name] for arrays in found])
                for name in found[0]
                if all(name in arrays for arrays in found)
            }
            for where, found in data.items()
        }
        return SpaceMesh(
            points=np.concatenate(points),
            cells=(np.concatenate(connectivity), np.concatenate(ends)),
            in_order=cells_in == "Polys",
            point_data=joined["PointData"],
            cell_data=joined["CellData"],
            time=self.time(),
        )

    def time(self) -> float | None:
        for entry in self.root.iter("DataArray"):
            if entry.get("Name") in ("TimeValue", "TIME"):
                values = self.array(entry).reshape(-1)
                return float(values[0]) if len(values) == 1 else None
        return None

    def points(self, piece: ElementTree.Element) -> np.ndarray:
        entry = piece.find("Points/DataArray")
        if entry is None:
            raise ValueError("its points are missing")
        return self.array(entry).reshape(-1, 3).astype(np.float64)

    def arrays(self, group: ElementTree.Element | None) -> dict[str, np.ndarray]:
        found = [] if group is None else group.findall("DataArray")
        return {entry.get("Name", ""): self.array(entry) for entry in found}

    def array(self, entry: ElementTree.Element) -> np.ndarray:
        kind = entry.get("type", "")
        if kind not in _TYPES:
            raise ValueError(f"an array of type {kind!r}; read are {', '.join(_TYPES)}")
        dtype = np.dtype(self.order + _TYPES[kind])
        form = entry.get("format", "ascii")
        if form == "ascii":
            values = parse_numbers((entry.text or "").encode(), _TYPES[kind])
        else:
            encoded = True
            if form == "appended":
                start, encoded = int(entry.attrib["offset"]), self.encoding == "base64"
                if not 0 <= start <= len(self.appended):
                    raise ValueError(
                        f"an array at byte {start} of {len(self.appended)} appended bytes"
                    )
                stored = self.appended[start:]
            else:
                stored = memoryview("".join((entry.text or "").split()).encode())
            values = np.frombuffer(self.unpack(stored, encoded, dtype.itemsize), dtype)
        width = int(entry.get("NumberOfComponents") or 1)
        values = values.astype(dtype.newbyteorder("="))
        if width < 1 or len(values) % width:
            raise ValueError(f"{len(values)} numbers are no array of {width} components")
        return values if width == 1 else values.reshape(-1, width)

    def unpack(self, stored: memoryview, encoded: bool, item: int) -> bytes:
        """The bytes of an array, stored after its header; ``item`` is the size of a number."""
        word = self.header.itemsize
        if self.decompressor is None:
            head, rest = _take(stored, word, encoded)
            (size,) = (int(n) for n in np.frombuffer(head, self.header))
            if encoded and b"=" not in bytes(stored[: _encoded(word)]):
                # Header and data are one text, unless the header ends with padding.
                if len(stored) == _encoded(word + size // item):
                    # OpenFOAM v1912 states the size of the corners of surfaces ``item`` times.
                    size //= item
                values = _take(stored, word + size, True)[0][word:]
            else:
                values = _take(rest, size, encoded)[0]
            self.spend(size)
            return values
        count = int(np.frombuffer(_take(stored, word, encoded)[0], self.header)[0])
        head, rest = _take(stored, (3 + count) * word, encoded)
        _, block, last, *sizes = (int(n) for n in np.frombuffer(head, self.header))
        packed = memoryview(_take(rest, sum(sizes), encoded)[0])
        unpacked = [block] * count
        if last and count:
            unpacked[-1] = last
        self.spend(sum(unpacked))
        blocks, start = [], 0
        for size, whole in zip(sizes, unpacked, strict=True):
            blocks.append(self.decompressor().decompress(packed[start : start + size], whole + 1))
            if len(blocks[-1]) != whole:
                raise ValueError(f"a block declares {whole} bytes and unpacks to more or less")
            start += size
        return b"".join(blocks)

    def spend(self, size: int) -> None:
        """Count bytes that the arrays of the file unpack to, and refuse too many."""
        self.left -= size
        if self.left < 0:
            raise ValueError(
                "its arrays unpack to too much for its size; save it without compression"
            )


def _floats(body: ElementTree.Element, key: str, *default: int) -> np.ndarray:
    text = body.get(key)
    values = np.array(default, float) if text is None else parse_numbers(text.encode(), "f8")
    if len(values) != len(default) or not np.isfinite(values).all():
        raise ValueError(f"expected {len(default)} finite numbers as {key}, found {text!r:.60}")
    return values


def _encoded(size: int) -> int:
    """Length of ``size`` bytes in base64."""
    return (size + 2) // 3 * 4


def _take(stored: memoryview, size: int, encoded: bool) -> tuple[bytes, memoryview]:
    """The first ``size`` bytes, and the rest."""
    length = _encoded(size) if encoded else size
    if len(stored) < length:
        raise ValueError(f"an array ends {length - len(stored)} bytes too early")
    data = bytes(stored[:length])
    return (base64.b64decode(data, validate=True)[:size] if encoded else data), stored[length:]
