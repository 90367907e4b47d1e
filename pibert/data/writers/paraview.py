"""Writers of files for ParaView and VisIt: VTK images (.pvd) and XDMF.

Arrays are those of ``frames.point_arrays``, on one layer at the source's plane in space.

VTK: ``flow.pvd`` names the times and a folder of .vti files, one image of one layer per frame, raw
bytes after the XML (appended, little endian, each behind its length in 8 bytes), x fastest. Format:
"VTK XML formats" of the VTK documentation. The files have
units and source facts in a comment, which our VTK reader parses.

XDMF: ``flow.xdmf`` describes the arrays of ``flow.xdmf.h5``: ``time``, ``x``, ``y``, ``z`` and
fields (t, y, x) or (t, y, x, 3). A frame is a rectilinear grid of one layer (XDMF counts z, y, x)
with values at the points; the frames are a collection in time.
"""

import fnmatch
import math
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from xml.sax.saxutils import escape, quoteattr

import h5py
import numpy as np

from pibert.data.format.reading import frames_in_chunk
from pibert.data.partial import flush_folder, partial_path, replace_file
from pibert.data.provenance import predicted_by
from pibert.data.writers.frames import Block, FrameWriter, point_arrays

_TYPES = {"f4": "Float32", "u1": "UInt8"}
_FRAME = "frame_{:06d}.vti"


class VtkWriter(FrameWriter):
    """A .pvd and its images."""

    @staticmethod
    def targets_of(path: Path) -> tuple[Path, ...]:
        return path, path.with_name(path.stem + "_frames")

    def check(self) -> None:
        super().check()
        folder = self.targets[1]
        inside = {file.name for file in folder.iterdir()} if folder.is_dir() else set()
        others = sorted(inside - {*fnmatch.filter(inside, "frame_*.vti")})
        if others or (folder.exists() and not folder.is_dir()):
            what = others[0] if others else "a file"
            raise FileExistsError(
                f"{folder} has other content than frames ({what}); choose another name"
            )

    def _begin(self) -> None:
        self._times: list[float] = []
        self._partial = partial_path(self.targets[1])
        self._partial.mkdir()
        self.resources.callback(shutil.rmtree, self._partial, ignore_errors=True)

    def _append(self, block: Block) -> None:
        arrays = point_arrays(block, self.about)
        for i, time in enumerate(block.time.tolist()):
            frame = {name: values[i] for name, values in arrays.items()}
            path = self._partial / _FRAME.format(self.count + i)
            with path.open("xb") as file:
                file.writelines(self._image(frame, time))
        self._times += block.time.tolist()

    def _image(self, arrays: dict[str, np.ndarray], time: float) -> list[bytes]:
        grid, plane = self.about.spec.grid, self.about.placement
        (ny, nx), (left, bottom) = grid.shape, grid.origin
        # Points are ordered x first, then y, then z; the axis with one point does not matter.
        extent = " ".join(f"0 {last}" for last in plane.along_axes(nx - 1, ny - 1, 0))
        origin = " ".join(map(repr, plane.along_axes(left, bottom, plane.position)))
        steps = plane.along_axes(grid.dx, grid.dy, min(grid.dx, grid.dy))
        scalars = next((n for n, a in arrays.items() if a.ndim == 2), "")
        shown = f" Scalars={quoteattr(scalars)}"
        shown += ' Vectors="velocity"' if "velocity" in arrays else ""
        lines = [
            '<?xml version="1.0"?>',
            *self._comment(),
            '<VTKFile type="ImageData" version="1.0" byte_order="LittleEndian" '
            'header_type="UInt64">',
            f'<ImageData WholeExtent="{extent}" Origin="{origin}" '
            f'Spacing="{" ".join(map(repr, steps))}">',
            '<FieldData><DataArray type="Float64" Name="TimeValue" NumberOfTuples="1" '
            f'format="ascii">{time!r}</DataArray></FieldData>',
            f'<Piece Extent="{extent}">',
            f"<PointData{shown}>",
        ]
        blocks: list[bytes] = []
        offset = 0
        for name, array in arrays.items():
            data = array.astype(array.dtype.newbyteorder("<")).tobytes()
            lines.append(
                f'<DataArray type="{_TYPES[array.dtype.str[1:]]}" Name={quoteattr(name)} '
                f'NumberOfComponents="{3 if array.ndim == 3 else 1}" format="appended" '
                f'offset="{offset}"/>'
            )
            blocks += [len(data).to_bytes(8, "little"), data]
            offset += 8 + len(data)
        lines += ["</PointData>", "</Piece>", "</ImageData>", '<AppendedData encoding="raw">', "_"]
        return ["\n".join(lines).encode(), *blocks, b"\n</AppendedData>\n</VTKFile>\n"]

    def _comment(self) -> list[str]:
        facts = self.about.to_json().replace("--", "-\\u002d")  # two would end it
        return [f"<!-- PIBERT {facts} -->"]

    def _finish(self) -> None:
        folder = self.targets[1]
        entries = [
            f"<DataSet timestep={quoteattr(repr(time))} part='0' "
            f"file={quoteattr(f'{folder.name}/{_FRAME.format(number)}')}/>"
            for number, time in enumerate(self._times)
        ]
        lines = [
            '<?xml version="1.0" encoding="utf-8"?>',
            *self._comment(),
            '<VTKFile type="Collection" version="1.0" byte_order="LittleEndian">',
            "<Collection>",
            *entries,
            "</Collection>",
            "</VTKFile>\n",
        ]
        old = partial_path(folder)
        if folder.exists():
            os.rename(folder, old)
        try:
            os.rename(self._partial, folder)
            replace_file(self.path, "\n".join(lines).encode())
        except BaseException:
            shutil.rmtree(folder, ignore_errors=True)
            if old.exists():
                os.rename(old, folder)
            raise
        shutil.rmtree(old, ignore_errors=True)


_NUMBERS = {"f4": ("Float", 4), "f8": ("Float", 8), "u1": ("UChar", 1)}


class XdmfWriter(FrameWriter):
    """An .xdmf and its arrays."""

    @staticmethod
    def targets_of(path: Path) -> tuple[Path, ...]:
        return path, path.with_name(path.name + ".h5")

    def _begin(self) -> None:
        grid, plane = self.about.spec.grid, self.about.placement
        self._arrays: dict[str, tuple[str, tuple[int, ...]]] = {}
        self._output = self.grow(
            self.targets[1], lambda sink: h5py.File(sink, "w", libver=("v110", "v110"))
        )
        with self._output.changed() as file:
            x = grid.origin[0] + grid.dx * np.arange(grid.shape[1])
            y = grid.origin[1] + grid.dy * np.arange(grid.shape[0])
            file["x"], file["y"], file["z"] = plane.along_axes(x, y, np.array([plane.position]))

    def _append(self, block: Block) -> None:
        values = {"time": block.time.double().numpy(), **point_arrays(block, self.about)}
        with self._output.changed() as file:
            for name, array in values.items():
                if name not in file:
                    frame = array.shape[1:]
                    size = array.itemsize * math.prod(frame)
                    sizes = {"maxshape": (None, *frame), "chunks": (frames_in_chunk(size), *frame)}
                    file.create_dataset(name, (0, *frame), array.dtype, **sizes)
                    self._arrays[name] = array.dtype.str[1:], frame
                file[name].resize(self.count + len(array), axis=0)
                file[name][self.count :] = array

    def _finish(self) -> None:
        with self._output.changed() as file:
            times = file["time"][...]
        self._output.close()
        partial = partial_path(self.path)
        self.resources.callback(partial.unlink, missing_ok=True)
        with partial.open("x", encoding="utf-8") as text:
            text.writelines(f"{line}\n" for line in self._lines(times))
            text.flush()
            os.fsync(text.fileno())
        # The arrays first: the XML never exists without them.
        self._output.publish()
        os.replace(partial, self.path)
        flush_folder(self.path.parent)

    def _lines(self, times: np.ndarray) -> Iterator[str]:
        ny, nx = self.about.spec.grid.shape
        counts = self.about.placement.along_axes(nx, ny, 1)
        name = quoteattr(self.about.name)
        yield '<?xml version="1.0" encoding="utf-8"?>'
        yield '<Xdmf Version="3.0">'
        yield "<Domain>"
        yield f'<Grid Name={name} GridType="Collection" CollectionType="Temporal">'
        origin = predicted_by(self.about.source)
        if origin is not None:
            yield f'<Information Name="source" Value={quoteattr(f"PIBERT, {origin}")}/>'
        for number, time in enumerate(times.tolist()):
            yield f'<Grid Name="frame {number}" GridType="Uniform">'
            yield f'<Time Value="{time!r}"/>'
            yield f'<Topology TopologyType="3DRectMesh" Dimensions="{_spaced(counts[::-1])}"/>'
            yield '<Geometry GeometryType="VXVYVZ">'
            for axis, count in zip("xyz", counts, strict=True):
                yield self._item(axis, (count,), "f8")
            yield "</Geometry>"
            for key, (code, frame) in self._arrays.items():
                if key != "time":
                    yield from self._attribute(key, code, frame, number, len(times))
            yield "</Grid>"
        yield from ("</Grid>", "</Domain>", "</Xdmf>")

    def _attribute(
        self, key: str, code: str, frame: tuple[int, ...], number: int, count: int
    ) -> Iterator[str]:
        """Select one frame of an array of all frames."""
        kind = "Vector" if len(frame) == 3 else "Scalar"
        start = (number, *(0 for _ in frame))
        rows = (start, (1,) * len(start), (1, *frame))
        yield f'<Attribute Name={quoteattr(key)} AttributeType="{kind}" Center="Node">'
        ny, nx, *vector = frame
        shape = (*self.about.placement.along_axes(nx, ny, 1)[::-1], *vector)
        yield f'<DataItem ItemType="HyperSlab" Dimensions="{_spaced(shape)}">'
        yield f'<DataItem Dimensions="3 {len(start)}" Format="XML" NumberType="Int">'
        yield " ".join(_spaced(row) for row in rows)
        yield "</DataItem>"
        yield self._item(key, (count, *frame), code)
        yield "</DataItem>"
        yield "</Attribute>"

    def _item(self, key: str, shape: tuple[int, ...], code: str) -> str:
        number, precision = _NUMBERS[code]
        path = escape(f"{self.targets[1].name}:/{key}")
        return (
            f'<DataItem Dimensions="{_spaced(shape)}" Format="HDF" NumberType="{number}" '
            f'Precision="{precision}">{path}</DataItem>'
        )


def _spaced(numbers: tuple[int, ...]) -> str:
    return " ".join(map(str, numbers))
