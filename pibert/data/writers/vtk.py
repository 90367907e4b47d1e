"""VTK images for ParaView: ``flow.pvd``, which names the times, and a folder of .vti files.

Every frame is an image of one layer with data at its points: the arrays of ``arrays.point_arrays``,
raw bytes after the XML (appended, little endian, each behind its length in 8 bytes), x fastest. The
layer lies where the source had its plane in space. Format: "VTK XML formats" of the VTK
documentation. Source facts of predicted frames stand in a comment of every file, which our own
reader looks for.
"""

import contextlib
import json
import os
import shutil
from pathlib import Path
from xml.sax.saxutils import quoteattr

import numpy as np

from pibert.data.partial import partial_path, replace_file
from pibert.data.provenance import predicted_by
from pibert.data.writers.arrays import point_arrays
from pibert.data.writers.frames import Block, FrameWriter

_TYPES = {"f4": "Float32", "u1": "UInt8"}
_FRAME = "frame_{:06d}.vti"


class VtkWriter(FrameWriter):
    """A .pvd and its images."""

    _partial: Path | None = None

    @property
    def targets(self) -> tuple[Path, ...]:
        return self.path, self.path.with_name(self.path.stem + "_frames")

    def check(self) -> None:
        super().check()
        folder = self.targets[1]
        others = [] if not folder.is_dir() else [f for f in folder.iterdir() if not _is_frame(f)]
        if others or (folder.exists() and not folder.is_dir()):
            what = others[0].name if others else "a file"
            raise FileExistsError(
                f"{folder} is not a folder of frames alone ({what}); choose another name"
            )

    def _begin(self) -> None:
        folder = self.targets[1]
        _remove_dead(folder)
        self._times: list[float] = []
        self._partial = partial_path(folder)
        self._partial.mkdir()

    def _append(self, block: Block) -> None:
        assert self._partial is not None
        arrays = point_arrays(block, self.about)
        for place, time in enumerate(block.time.tolist()):
            frame = {name: values[place] for name, values in arrays.items()}
            path = self._partial / _FRAME.format(self.count + place)
            with path.open("xb") as file:
                file.writelines(self._image(frame, time))
        self._times += block.time.tolist()

    def _image(self, arrays: dict[str, np.ndarray], time: float) -> list[bytes]:
        grid, place = self.about.spec.grid, self.about.placement
        (ny, nx), (left, bottom) = grid.shape, grid.origin
        # Points are counted x first, then y, then z: an axis with one point changes nothing.
        extent = " ".join(f"0 {last}" for last in place.along_axes(nx - 1, ny - 1, 0))
        origin = " ".join(map(repr, place.along_axes(left, bottom, place.position)))
        steps = place.along_axes(grid.dx, grid.dy, min(grid.dx, grid.dy))
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
        if predicted_by(self.about.source) is None:
            return []
        facts = json.dumps({"source": dict(self.about.source)})
        return ["<!-- PIBERT {} -->".format(facts.replace("--", "-\\u002d"))]  # two would end it

    def _finish(self) -> None:
        assert self._partial is not None
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

    def _discard(self) -> None:
        if self._partial is not None:
            shutil.rmtree(self._partial, ignore_errors=True)


def _is_frame(path: Path) -> bool:
    return path.name.startswith("frame_") and path.suffix == ".vti"


def _remove_dead(folder: Path) -> None:
    """Remove what writers of the same folder left behind when they died."""
    for partial in folder.parent.glob(".*.partial"):
        stem, _, mark = partial.name.removesuffix(".partial").rpartition(".")
        pid = mark.partition("-")[0]
        if stem == f".{folder.name}" and pid.isdecimal() and partial.is_dir():
            if not Path(f"/proc/{pid}").exists():
                with contextlib.suppress(OSError):
                    shutil.rmtree(partial)
