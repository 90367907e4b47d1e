"""Rows of an Arrow data set on disk, memory-mapped: only the bytes asked for are touched.

The layout is that of ``save_to_disk`` of the hub's library: shards ``data-*.arrow``, each an Arrow
IPC stream, listed in ``state.json``. A cell is a buffer of the memory map, so a window of an array
is read without its row. Needs pyarrow (extra ``io``).
"""

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from pibert.data.sources.recordings import SourceError
from pibert.regular_files import require_regular

# What closes a stream; without it the rest of the rows may be missing.
_END_OF_STREAM = b"\xff\xff\xff\xff\0\0\0\0"


class Place(NamedTuple):
    """Where a row lies."""

    shard: int
    row: int


def shard_paths(folder: Path) -> tuple[Path, ...]:
    """The shards of a folder, as its ``state.json`` lists them, or else by name."""
    state = folder / "state.json"
    if not state.is_file():
        return tuple(sorted(folder.glob("data-*.arrow")))
    try:
        names = [entry["filename"] for entry in json.loads(state.read_text())["_data_files"]]
        paths = tuple(folder / Path(name).name for name in names)
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise SourceError(
            f"{state}: expected JSON that lists '_data_files' with a 'filename' each ({error!r}); "
            "download it again, or remove it to read all data-*.arrow files"
        ) from error
    missing = [path.name for path in paths if not path.is_file()]
    if missing:
        raise SourceError(
            f"{folder}: state.json lists {len(paths)} shards, but {len(missing)} are missing, such "
            f"as {missing[0]}; resume the download"
        )
    return paths


class ArrowRows:
    """All rows of some shards; may be pickled: every process maps the files for itself."""

    def __init__(self, shards: tuple[Path, ...]) -> None:
        self.shards = tuple(path.absolute() for path in shards)
        for path in self.shards:
            require_regular(path)
        self._stamps = [_stamp(path) for path in self.shards]
        self._tables: dict[int, Any] = {}

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_tables": {}}

    def places(self) -> Iterator[Place]:
        for shard in range(len(self.shards)):
            for row in range(self.table(shard).num_rows):
                yield Place(shard, row)

    def where(self, place: Place, column: str) -> str:
        """A cell in words, for messages."""
        return f"{self.shards[place.shard]}: row {place.row}, column {column!r}"

    def columns(self, place: Place) -> tuple[str, ...]:
        return tuple(self.table(place.shard).column_names)

    def value(self, place: Place, column: str) -> Any:
        """A small cell, such as a name or a number; None where it is null or there is none."""
        if column not in self.columns(place):
            return None
        return self.table(place.shard).column(column)[place.row].as_py()

    def array(self, place: Place, column: str, shape: tuple[int, ...]) -> np.ndarray | None:
        """A binary cell as an array of float32 or float64, whichever fits; nothing is copied.

        Returns:
            A view of the memory map; None where the cell is null or there is none.
        """
        buffer = self._buffer(place, column)
        if buffer is None:
            return None
        count = math.prod(shape) if all(n > 0 for n in shape) else 0
        if not count or buffer.size not in (4 * count, 8 * count):
            raise SourceError(
                f"{self.where(place, column)}: expected {4 * count} bytes (float32) or {8 * count} "
                f"(float64) for shape {shape}, found {buffer.size}; the row does not hold what its "
                "shape columns say: get a new copy"
            )
        dtype = "<f8" if buffer.size == 8 * count else "<f4"
        return np.frombuffer(buffer, dtype=dtype, count=count).reshape(shape)

    def _buffer(self, place: Place, column: str) -> Any:
        """The bytes of a cell in the memory map; a scalar of Arrow's would be a copy of them."""
        import pyarrow as pa

        if column not in self.columns(place):
            return None
        chunks, row = self.table(place.shard).column(column), place.row
        if chunks.type not in (pa.binary(), pa.large_binary()):
            raise SourceError(
                f"{self.where(place, column)}: expected binary data, found {chunks.type}; this is "
                "not the layout of RealPDEBench"
            )
        for chunk in chunks.iterchunks():
            if row < len(chunk):
                break
            row -= len(chunk)
        if chunk.slice(row, 1).null_count:
            return None
        _, offsets, data = chunk.buffers()
        width = np.int64 if chunks.type == pa.large_binary() else np.int32
        first, last = np.frombuffer(offsets, width, count=row + 2)[row:].tolist()
        if data is None or not 0 <= first <= last <= data.size:
            raise SourceError(
                f"{self.where(place, column)}: expected bytes {first} to {last} of the column, "
                f"which has {0 if data is None else data.size}; the file is damaged: get a new copy"
            )
        return data.slice(first, last - first)

    def ends_well(self, shard: int) -> bool:
        """Whether a shard carries its end mark."""
        with self.shards[shard].open("rb") as file:
            file.seek(-min(len(_END_OF_STREAM), self._stamps[shard][0]), 2)
            return file.read() == _END_OF_STREAM

    def table(self, shard: int) -> Any:
        """A shard as a table whose buffers are the memory map."""
        if shard not in self._tables:
            path = self.shards[shard]
            if _stamp(path) != self._stamps[shard]:
                raise SourceError(f"{path}: it was replaced after it was opened; open it again")
            self._tables[shard] = _map(path)
        return self._tables[shard]


def _map(path: Path) -> Any:
    try:
        import pyarrow as pa
    except ImportError as error:
        raise ImportError(
            "reading Arrow files needs pyarrow: pip install 'pibert-cfd[io]'"
        ) from error
    try:
        with pa.ipc.open_stream(pa.memory_map(str(path))) as stream:
            table = stream.read_all()
            # Offsets, names and texts; the bytes of binary cells are not looked at.
            table.validate(full=True)
            table.column_names  # noqa: B018
            return table
    except (pa.ArrowException, OSError, ValueError) as error:
        raise SourceError(
            f"{path}: not an Arrow stream, or a truncated one ({error}); resume the download or "
            "get a new copy"
        ) from error


def _stamp(path: Path) -> tuple[int, int]:
    """Size and time of change: whether a file is still the one that was described."""
    status = path.stat()
    return status.st_size, status.st_mtime_ns
