"""XDMF: an XML file that describes the arrays of an HDF5 file beside it, for ParaView and VisIt.

``flow.xdmf`` goes with ``flow.xdmf.h5``, which holds ``time``, ``x``, ``y``, ``z`` and the arrays
of ``arrays.point_arrays``, (t, y, x) or (t, y, x, 3). A frame is a rectilinear grid of one layer
(XDMF counts z, y, x), where the source had its plane in space, with values at the points; the
frames are a collection in time, whose Information ``source`` says what made them.
"""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from xml.sax.saxutils import escape, quoteattr

import h5py
import numpy as np

from pibert.data.partial import flush_folder, partial_path
from pibert.data.provenance import predicted_by
from pibert.data.writers.arrays import point_arrays
from pibert.data.writers.frames import Block, FrameWriter
from pibert.data.writers.growing import GrowingFile, frames_per_chunk

_NUMBERS = {"f4": ("Float", 4), "f8": ("Float", 8), "u1": ("UChar", 1)}


class XdmfWriter(FrameWriter):
    """An .xdmf and its arrays."""

    _output: GrowingFile | None = None
    _partial: Path | None = None

    @property
    def targets(self) -> tuple[Path, ...]:
        return self.path, self.path.with_name(self.path.name + ".h5")

    def _begin(self) -> None:
        grid, place = self.about.spec.grid, self.about.placement
        self._arrays: dict[str, tuple[str, tuple[int, ...]]] = {}
        self._output = GrowingFile(
            self.targets[1], lambda sink: h5py.File(sink, "w", libver=("v110", "v110"))
        )
        with self._output.changed() as file:
            x = grid.origin[0] + grid.dx * np.arange(grid.shape[1])
            y = grid.origin[1] + grid.dy * np.arange(grid.shape[0])
            axes = place.along_axes(x, y, np.array([place.position]))
            for name, values in zip("xyz", axes, strict=True):
                file[name] = values

    def _append(self, block: Block) -> None:
        assert self._output is not None
        values = {"time": block.time.double().numpy(), **point_arrays(block, self.about)}
        with self._output.changed() as file:
            for name, array in values.items():
                if name not in file:
                    frame = array.shape[1:]
                    size = array.itemsize * int(np.prod(frame))
                    chunks = (frames_per_chunk(size), *frame)
                    limits = (None, *frame)
                    file.create_dataset(
                        name, (0, *frame), array.dtype, maxshape=limits, chunks=chunks
                    )
                    self._arrays[name] = array.dtype.str[1:], frame
                file[name].resize(self.count + len(array), axis=0)
                file[name][self.count :] = array

    def _finish(self) -> None:
        assert self._output is not None
        with self._output.changed() as file:
            times = file["time"][...]
        self._output.close()
        self._partial = partial_path(self.path)
        with self._partial.open("x", encoding="utf-8") as text:
            text.writelines(f"{line}\n" for line in self._lines(times))
            text.flush()
            os.fsync(text.fileno())
        # The arrays first: the XML is never there without them.
        self._output.publish()
        os.replace(self._partial, self.path)
        flush_folder(self.path.parent)

    def _lines(self, times: np.ndarray) -> Iterator[str]:
        ny, nx = self.about.spec.grid.shape
        counts = self.about.placement.along_axes(nx, ny, 1)
        name = quoteattr(self.about.name)
        yield '<?xml version="1.0" encoding="utf-8"?>'
        yield '<Xdmf Version="3.0">'
        yield "<Domain>"
        yield f'<Grid Name={name} GridType="Collection" CollectionType="Temporal">'
        made = predicted_by(self.about.source)
        if made is not None:
            yield f'<Information Name="source" Value={quoteattr(f"PIBERT, {made}")}/>'
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
        """One frame out of an array of all of them."""
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
        place = escape(f"{self.targets[1].name}:/{key}")
        return (
            f'<DataItem Dimensions="{_spaced(shape)}" Format="HDF" NumberType="{number}" '
            f'Precision="{precision}">{place}</DataItem>'
        )

    def _discard(self) -> None:
        if self._output is not None:
            self._output.discard()
        if self._partial is not None:
            with contextlib.suppress(OSError):
                self._partial.unlink(missing_ok=True)


def _spaced(numbers: tuple[int, ...]) -> str:
    return " ".join(map(str, numbers))
