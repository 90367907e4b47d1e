"""VTK files that declare too much, refer to other files, or would take forever."""

import json
import lzma
import struct
import tracemalloc
import zlib
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from pibert.data.readers import vtk
from pibert.data.readers.recordings import SourceError
from pibert.data.readers.shared.cells import cover
from tests.lookalikes.flow import X, Y, vectors
from tests.lookalikes.vtk import write_collection, write_legacy, write_xml

PLANE = (X, Y, np.zeros(1))
SQUARE = "0 1 0 1 0 0"
LEGACY = "# vtk DataFile Version 3.0\na flow\nASCII\n"
COMPRESSORS: dict[str, Callable[[bytes], bytes]] = {
    "vtkZLibDataCompressor": zlib.compress,
    "vtkLZMADataCompressor": lambda data: lzma.compress(data, preset=0),
}


def array(text: str, name: str = "u", kind: str = "Float64", width: object = 1) -> str:
    head = f'type="{kind}" Name="{name}" NumberOfComponents="{width}" format="ascii"'
    return f"<DataArray {head}>{text}</DataArray>"


def image(
    path: Path, extent: str, arrays: str, attributes: str = "", appended: bytes = b""
) -> Path:
    head = f'<VTKFile type="ImageData" byte_order="LittleEndian" header_type="UInt32" {attributes}>'
    body = (
        f'{head}<ImageData WholeExtent="{extent}"><Piece Extent="{extent}"><PointData>{arrays}'
        "</PointData></Piece></ImageData>"
    )
    tail = b'<AppendedData encoding="raw">_' + appended + b"</AppendedData></VTKFile>"
    path.write_bytes(body.encode() + tail)
    return path


def compressed(path: Path, name: str, block: bytes, *, count: int, declared: int) -> Path:
    """An image with an array in equal blocks."""
    packed = COMPRESSORS[name](block)
    head = struct.pack(f"<{3 + count}I", count, declared, 0, *[len(packed)] * count)
    return image(
        path,
        f"0 {count * declared // 8 - 1} 0 0 0 0",
        '<DataArray type="Float64" Name="u" format="appended" offset="0"/>',
        f'compressor="{name}"',
        head + packed * count,
    )


def refused(path: Path) -> str:
    with pytest.raises(SourceError) as found:
        vtk.open_recordings(path)[0].read()
    assert path.name in str(found.value)
    return str(found.value)


@pytest.mark.parametrize("name", COMPRESSORS)
def test_a_small_file_does_not_unpack_to_hundreds_of_megabytes(tmp_path: Path, name: str) -> None:
    size = 16 << 20
    path = compressed(tmp_path / "a.vti", name, bytes(size), count=20, declared=size)
    assert path.stat().st_size < size / 20
    tracemalloc.start()
    try:
        assert "without compression" in refused(path)
        assert tracemalloc.get_traced_memory()[1] < size
    finally:
        tracemalloc.stop()


@pytest.mark.parametrize("name", COMPRESSORS)
@pytest.mark.parametrize("size", [1 << 20, 8])
def test_a_block_unpacks_to_the_size_that_it_declares(tmp_path: Path, name: str, size: int) -> None:
    path = compressed(tmp_path / "a.vti", name, bytes(size), count=1, declared=64)
    assert "declares 64 bytes and unpacks to" in refused(path)


def test_many_arrays_cannot_share_one_block_of_data(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pibert.data.readers.shared.files._ALWAYS", 0)
    data = bytes(1 << 16)
    arrays = (
        f'<DataArray type="Float64" Name="u{i}" format="appended" offset="0"/>' for i in range(50)
    )
    stored = struct.pack("<I", len(data)) + data
    path = image(tmp_path / "a.vti", "0 8191 0 0 0 0", "".join(arrays), "", stored)
    assert "too much for its size" in refused(path)


@pytest.mark.parametrize(
    ("extent", "problem"),
    [
        ("0 99999999999 0 1 0 0", "grid of 100000000000 x 2 x 1 points"),
        ("0 1 0", "an extent of 3 numbers"),
    ],
)
def test_an_extent_is_compared_with_the_data(tmp_path: Path, extent: str, problem: str) -> None:
    assert problem in refused(image(tmp_path / "a.vti", extent, array("1 2 3 4")))
    assert "without data" in refused(image(tmp_path / "b.vti", "0 999999999999 0 1 0 0", ""))


@pytest.mark.parametrize(
    ("arrays", "problem"),
    [
        (array("1 2 3 4", width=10**30), "no array of"),
        (array("1 2 3 99999999999", kind="Int32"), "out of the range of int32"),
        # One long word among many: as texts of one width they would take gigabytes.
        (array("1 " * 20000 + "0" * 500_000), "do not fit: ['u']"),
        ('<DataArray type="Float64" Name="u" format="appended" offset="-4"/>', "byte -4"),
        ('<DataArray type="String" Name="u"/>', "type 'String'"),
    ],
)
def test_damaged_arrays_are_refused(tmp_path: Path, arrays: str, problem: str) -> None:
    assert problem in refused(image(tmp_path / "a.vti", SQUARE, arrays))


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (b'<!DOCTYPE a [<!ENTITY b "c">]><VTKFile>&b;</VTKFile>', "entities"),
        ('<!DOCTYPE a [<!ENTITY b "c">]><VTKFile>&b;</VTKFile>'.encode("utf-16"), "entities"),
        (b'<!DOCTYPE a SYSTEM "/etc/passwd"><VTKFile/>', "document type"),
        (b"<VTKFile>" + b"<a>" * 600_000, "500000 tags"),
        (b"<AppendedData" * 40_000, "not whole XML"),
    ],
)
def test_hostile_xml_is_refused(tmp_path: Path, data: bytes, problem: str) -> None:
    path = tmp_path / "a.vti"
    path.write_bytes(data)
    assert problem in refused(path)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("DATASET POLYDATA\nFIELD F 1\ns 1 1000000000000 string\n", "1000000000000 values"),
        ("DATASET POLYDATA\nPOINTS 100000000000 float\n1 2 3\n", "300000000000 values"),
        ("DATASET POLYDATA\nPOINTS 1 float\n1 1-1\n", "ends after 2 of 3"),
        ("DATASET POLYDATA\nPOLYGONS 1000000000000 3\n-1 -1 -1\n", "1000000000000 cells"),
        ("DATASET STRUCTURED_POINTS\nDIMENSIONS 2 2\n", "ends too early"),
        (
            "DATASET STRUCTURED_POINTS\nDIMENSIONS 100000000000 2 1\nPOINT_DATA 3\n"
            "SCALARS u float\n1 2 3\n",
            "grid of 100000000000 x 2 x 1 points",
        ),
        ("DATASET STRUCTURED_POINTS\nSPACING nan 1 1\n", "not finite"),
        ("\n" * 3_000_000, "DATASET is missing"),
    ],
)
def test_counts_of_legacy_files_are_compared_with_the_bytes_left(
    tmp_path: Path, text: str, problem: str
) -> None:
    path = tmp_path / "a.vtk"
    path.write_text(LEGACY + text)
    assert problem in refused(path)


@pytest.mark.parametrize("coordinate", ["nan", "inf", "1e300"])
def test_coordinates_are_finite_numbers_of_a_sensible_size(tmp_path: Path, coordinate: str) -> None:
    path = tmp_path / "a.vts"
    write_xml(path, PLANE, {"U": vectors()})
    text = path.read_text()
    first = repr(float(X[0]))
    path.write_text(text.replace(first, coordinate, 1))
    assert "coordinates reach" in refused(path)


@pytest.mark.parametrize("kind", ["pvd", "series", "vtm"])
@pytest.mark.parametrize("where", ["below/../../flow.vtk", "{}/flow.vtk"])
def test_lists_of_files_do_not_lead_out_of_their_folder(
    tmp_path: Path, kind: str, where: str
) -> None:
    write_legacy(tmp_path / "flow.vtk", "STRUCTURED_POINTS", PLANE, {"U": vectors()})
    folder = tmp_path / "given"
    (folder / "below").mkdir(parents=True)
    path, name = folder / f"list.{kind}", where.format(tmp_path)
    if kind == "pvd":
        write_collection(path, {0.0: name})
    elif kind == "series":
        path.write_text(json.dumps({"files": [{"name": name, "time": 0.0}]}))
    else:
        path.write_text(f'<VTKFile type="x"><DataSet name="internal" file="{name}"/></VTKFile>')
    assert "outside its folder" in refused(path)


def test_slivers_across_a_grid_are_refused() -> None:
    sliver = np.array([[0.0, 0.0], [999.0, 999.0], [999.5, 999.0]])
    with pytest.raises(ValueError, match="overlap or are slivers"):
        cover(np.repeat(sliver[None], 5000, 0), (1000, 1000))
