"""Small VTK files as ParaView, VTK and OpenFOAM write them, following the format's description.

A flow in space is given by its three axes and arrays (z, y, x) or (z, y, x, 3); points run x
fastest.
"""

import base64
import struct
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np

_LEGACY = {"f": "float", "d": "double", "i": "int", "q": "long"}
_XML = {"f": "Float32", "d": "Float64", "i": "Int32", "q": "Int64", "b": "Int8", "B": "UInt8"}


def write_legacy(
    path: Path,
    kind: str,
    axes: Sequence[np.ndarray],
    data: Mapping[str, np.ndarray],
    *,
    binary: bool = False,
    on_cells: bool = False,
    field: bool = False,
    time: float | None = None,
    modern_cells: bool = False,
) -> None:
    """A legacy file of any kind; ``field`` writes the arrays as a FIELD, as ParaView does."""
    out = bytearray(f"# vtk DataFile Version {'5.1' if modern_cells else '3.0'}\n".encode())
    out += b"a flow\n" + (b"BINARY\n" if binary else b"ASCII\n") + f"DATASET {kind}\n".encode()

    def put(values: np.ndarray) -> None:
        nonlocal out
        if binary:
            out += values.astype(values.dtype.newbyteorder(">")).tobytes() + b"\n"
        else:
            flat = values.reshape(-1)
            for start in range(0, len(flat), 9):
                out += (" ".join(repr(n.item()) for n in flat[start : start + 9]) + " \n").encode()

    def say(text: str) -> None:
        nonlocal out
        out += text.encode() + b"\n"

    if time is not None:
        say("FIELD FieldData 1\nTIME 1 1 double")
        put(np.array([time]))
    nx, ny, nz = (len(axis) for axis in axes)
    if kind not in ("UNSTRUCTURED_GRID", "POLYDATA"):
        say(f"DIMENSIONS {nx} {ny} {nz}")
    if kind == "STRUCTURED_POINTS":
        steps = [axis[1] - axis[0] if len(axis) > 1 else 1.0 for axis in axes]
        say("SPACING " + " ".join(f"{step:.17g}" for step in steps))
        say("ORIGIN " + " ".join(f"{axis[0]:.17g}" for axis in axes))
    elif kind == "RECTILINEAR_GRID":
        for letter, axis in zip("XYZ", axes, strict=True):
            say(f"{letter}_COORDINATES {len(axis)} double")
            put(axis)
    else:
        say(f"POINTS {nx * ny * nz} double")
        put(points_of(axes))
    if kind in ("UNSTRUCTURED_GRID", "POLYDATA"):
        cells = quads(nx, ny)
        word = "CELLS" if kind == "UNSTRUCTURED_GRID" else "POLYGONS"
        if modern_cells:
            say(f"{word} {len(cells) + 1} {cells.size}\nOFFSETS vtktypeint64")
            put(4 * np.arange(len(cells) + 1))
            # VTK mixes both: vtkIdType is written as int.
            say("CONNECTIVITY vtkIdType")
            put(cells.astype("i4"))
        else:
            say(f"{word} {len(cells)} {5 * len(cells)}")
            put(np.hstack([np.full((len(cells), 1), 4), cells]).astype("i4"))
        if kind == "UNSTRUCTURED_GRID":
            say(f"CELL_TYPES {len(cells)}")
            put(np.full(len(cells), 9, dtype="i4"))
    count = _count(next(iter(data.values())))
    say(f"{'CELL_DATA' if on_cells else 'POINT_DATA'} {count}")
    if field:
        say(f"FIELD FieldData {len(data)}")
    for name, values in data.items():
        width, kind_of = 3 if values.ndim == 4 else 1, _LEGACY[values.dtype.char]
        if field:
            say(f"{name} {width} {count} {kind_of}")
        elif width == 3:
            say(f"VECTORS {name} {kind_of}")
        else:
            say(f"SCALARS {name} {kind_of}\nLOOKUP_TABLE default")
        put(values)
        if field:
            say("METADATA\nINFORMATION 0\n")
    path.write_bytes(bytes(out))


def write_xml(
    path: Path,
    axes: Sequence[np.ndarray],
    data: Mapping[str, np.ndarray],
    *,
    form: str = "ascii",
    compressed: bool = False,
    header: str = "UInt32",
    big_endian: bool = False,
    on_cells: bool = False,
) -> None:
    """An XML file of the kind of its suffix, from .vti to .vtp.

    Its form is ascii, binary (inline base64), raw or base64 (both appended); zlib packs 64 bytes.
    """
    writer = _XmlWriter(form, compressed, header, ">" if big_endian else "<")
    nx, ny, nz = (len(axis) for axis in axes)
    extent = f"0 {nx - 1} 0 {ny - 1} 0 {nz - 1}"
    kind = {
        ".vti": "ImageData",
        ".vtr": "RectilinearGrid",
        ".vts": "StructuredGrid",
        ".vtu": "UnstructuredGrid",
        ".vtp": "PolyData",
    }[path.suffix]
    cells = quads(nx, ny)
    piece, whole, geometry = f'Extent="{extent}"', f'WholeExtent="{extent}"', ""
    points = "<Points>" + writer.array("Points", points_of(axes), 3) + "</Points>"
    if kind == "ImageData":
        steps = [axis[1] - axis[0] if len(axis) > 1 else 1.0 for axis in axes]
        whole += ' Origin="' + " ".join(f"{axis[0]:.17g}" for axis in axes) + '"'
        whole += ' Spacing="' + " ".join(f"{step:.17g}" for step in steps) + '"'
    elif kind == "RectilinearGrid":
        arrays = [writer.array(letter, axis) for letter, axis in zip("xyz", axes, strict=True)]
        geometry = "<Coordinates>" + "".join(arrays) + "</Coordinates>"
    elif kind == "StructuredGrid":
        geometry = points
    else:
        tag = "Cells" if kind == "UnstructuredGrid" else "Polys"
        geometry = points + f"<{tag}>"
        geometry += writer.array("connectivity", cells)
        geometry += writer.array("offsets", 4 * np.arange(1, len(cells) + 1))
        if kind == "UnstructuredGrid":
            geometry += writer.array("types", np.full(len(cells), 9, dtype="u1"))
        geometry += f"</{tag}>"
        piece, whole = f'NumberOfPoints="{nx * ny * nz}" NumberOfCells="{len(cells)}"', ""
    tag = "CellData" if on_cells else "PointData"
    fields = f"<{tag}>"
    for name, values in data.items():
        fields += writer.array(name, values, 3 if values.ndim == 4 else 1)
    fields += f"</{tag}>"
    order = "BigEndian" if big_endian else "LittleEndian"
    compressor = ' compressor="vtkZLibDataCompressor"' if compressed else ""
    text = (
        f'<?xml version="1.0"?>\n<VTKFile type="{kind}" version="1.0" byte_order="{order}" '
        f'header_type="{header}"{compressor}>\n<{kind} {whole}><Piece {piece}>'
        f"{geometry}{fields}</Piece></{kind}>\n"
    )
    path.write_bytes(text.encode() + writer.appended_block() + b"</VTKFile>\n")


def write_collection(path: Path, entries: Mapping[float, str]) -> None:
    lines = [f'<DataSet timestep="{t}" group="" part="0" file="{f}"/>' for t, f in entries.items()]
    body = "\n".join(lines)
    path.write_text(
        '<?xml version="1.0"?>\n<VTKFile type="Collection" version="0.1">\n'
        f"<Collection>\n{body}\n</Collection>\n</VTKFile>\n"
    )


class _XmlWriter:
    def __init__(self, form: str, compressed: bool, header: str, order: Literal["<", ">"]) -> None:
        self.form, self.compressed = form, compressed
        self.word = "I" if header == "UInt32" else "Q"
        self.order: Literal["<", ">"] = order
        self.appended = b""

    def array(self, name: str, values: np.ndarray, width: int = 1) -> str:
        kind = _XML[values.dtype.char.replace("l", "q")]
        head = f'<DataArray type="{kind}" Name="{name}" NumberOfComponents="{width}" '
        if self.form == "ascii":
            numbers = " ".join(repr(n.item()) for n in values.reshape(-1))
            return f'{head}format="ascii">\n{numbers}\n</DataArray>'
        data = values.astype(values.dtype.newbyteorder(self.order)).tobytes()
        if self.form == "binary":
            return f'{head}format="binary">\n  {self.encoded(data).decode()}\n</DataArray>'
        offset = len(self.appended)
        stored = b"".join(self.pieces(data)) if self.form == "raw" else self.encoded(data)
        self.appended += stored
        return f'{head}format="appended" offset="{offset}"/>'

    def pieces(self, data: bytes) -> tuple[bytes, bytes]:
        """Header and body."""
        if not self.compressed:
            return struct.pack(self.order + self.word, len(data)), data
        size = 64
        blocks = [data[start : start + size] for start in range(0, len(data), size)]
        packed = [zlib.compress(block) for block in blocks]
        numbers: list[Any] = [len(blocks), size, len(data) % size, *(len(p) for p in packed)]
        return struct.pack(f"{self.order}{len(numbers)}{self.word}", *numbers), b"".join(packed)

    def encoded(self, data: bytes) -> bytes:
        header, body = self.pieces(data)
        if self.compressed:
            return base64.b64encode(header) + base64.b64encode(body)
        return base64.b64encode(header + body)

    def appended_block(self) -> bytes:
        if self.form not in ("raw", "base64"):
            return b""
        head = f'<AppendedData encoding="{self.form}">\n   _'.encode()
        return head + self.appended + b"\n</AppendedData>\n"


def points_of(axes: Sequence[np.ndarray]) -> np.ndarray:
    """All points (n, 3) of three axes, x fastest."""
    z, y, x = np.meshgrid(*axes[::-1], indexing="ij")
    return np.stack([x, y, z], -1).reshape(-1, 3)


def quads(nx: int, ny: int) -> np.ndarray:
    """The four points of every cell of one layer, row by row."""
    corner = np.arange(nx * (ny - 1)).reshape(ny - 1, nx)[:, :-1].reshape(-1)
    return np.stack([corner, corner + 1, corner + nx + 1, corner + nx], 1)


def _count(values: np.ndarray) -> int:
    return int(np.prod(values.shape[:3]))
