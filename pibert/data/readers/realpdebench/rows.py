"""Trajectories of RealPDEBench as they are stored: rows of an Arrow data set, or HDF5 files.

Fields are (t, y, x) arrays named u, v, p and vo; x, y and t may accompany them. Single frames of
single fields are read without the rest. Arrow shards ``data-*.arrow`` (``save_to_disk`` of the
hub's library, listed in ``state.json``) are memory-mapped: a cell is a buffer of the map. Needs
pyarrow (extra ``io``).
"""

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import h5py
import numpy as np

from pibert.data.readers.recordings import SourceError
from pibert.data.readers.shared.stores import Hdf5Store, Where, reading
from pibert.data.wording import import_extra
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
        """A binary cell as an array of floats, a view of the memory map; None if it is null."""
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
    pa = import_extra("pyarrow", "reading Arrow files")
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


_SHAPE = ("shape_t", "shape_h", "shape_w")


@dataclass(eq=False)
class ArrowRow:
    """A row whose cells are raw bytes, with its shapes in columns of their own."""

    path: Path
    rows: ArrowRows
    place: Place
    shape: tuple[int, int, int]
    """(t, y, x) of every field."""

    @classmethod
    def at(cls, rows: ArrowRows, place: Place) -> "ArrowRow":
        missing = [name for name in ("u", "v", *_SHAPE) if name not in rows.columns(place)]
        if missing:
            raise SourceError(
                f"{rows.shards[place.shard]}: columns {missing} are missing; RealPDEBench's flows "
                f"have sim_id, u, v and {', '.join(_SHAPE)}, found {list(rows.columns(place))}"
            )
        t, ny, nx = (rows.value(place, column) for column in _SHAPE)
        if not all(isinstance(n, int) and n > 0 for n in (t, ny, nx)):
            raise SourceError(
                f"{rows.where(place, 'shape_t')}: expected three positive whole numbers in "
                f"{', '.join(_SHAPE)}, found {(t, ny, nx)}; get a new copy"
            )
        return cls(rows.shards[place.shard], rows, place, (t, ny, nx))

    @property
    def where(self) -> str:
        """The file, and the place in it."""
        return f"{self.path}: row {self.place.row}"

    def has(self, key: str) -> bool:
        """Whether there is a field; one of another size than the row's shape is refused."""
        return self.rows.array(self.place, key, self.shape) is not None

    def read(self, key: str, where: Where) -> np.ndarray:
        array = self.rows.array(self.place, key, self.shape)
        assert array is not None
        return array[where]

    def axis(self, name: str) -> np.ndarray | None:
        """The stored x, y or t; the first frame of one that has frames."""
        sizes = ("t_shape",) if name == "t" else (f"{name}_shape_h", f"{name}_shape_w")
        stated = [self.rows.value(self.place, column) for column in sizes]
        if not all(n is None or isinstance(n, int) for n in stated):
            raise SourceError(
                f"{self.rows.where(self.place, sizes[0])}: expected whole numbers in "
                f"{', '.join(sizes)}, found {stated}; get a new copy"
            )
        if all(n is None for n in stated):
            shape: tuple[int, ...] = self.shape[:1] if name == "t" else self.shape[1:]
        else:
            shape = tuple(n for n in stated if n)  # a width of zero stands for one axis
        return self.rows.array(self.place, name, shape) if shape else None


@dataclass(eq=False)
class RawRow:
    """An HDF5 file as the publishers' server has it."""

    path: Path
    store: Hdf5Store
    shape: tuple[int, int, int]

    @classmethod
    def of(cls, path: Path) -> "RawRow":
        store = Hdf5Store(path)
        u, v = (_find(store, name) for name in ("u", "v"))
        if u is None or v is None:
            raise SourceError(
                f"{path}: RealPDEBench's files have the datasets measured_data/u and "
                f"measured_data/v, found {sorted(store.open())}"
            )
        if u.ndim != 3 or not u.size:
            raise SourceError(
                f"{path}: expected measured_data/u of shape (t, y, x), found {u.shape}"
            )
        return cls(path, store, u.shape)

    @property
    def where(self) -> str:
        return str(self.path)

    def has(self, key: str) -> bool:
        dataset = _find(self.store, key)
        if dataset is not None and (dataset.shape != self.shape or dataset.dtype.kind not in "fiu"):
            raise SourceError(
                f"{self.path}: expected numbers of shape {self.shape} in {dataset.name!r}, as u "
                f"has, found {dataset.dtype} of shape {dataset.shape}; get a new copy"
            )
        return dataset is not None

    def read(self, key: str, where: Where) -> np.ndarray:
        return self.store.read(_find(self.store, key).name, where)

    def axis(self, name: str) -> np.ndarray | None:
        dataset = _find(self.store, name)
        if dataset is None:
            return None
        if not dataset.shape or dataset.dtype.kind not in "fiu":
            raise SourceError(
                f"{self.path}: expected an axis of numbers in {dataset.name!r}, found "
                f"{dataset.dtype} of shape {dataset.shape}; get a new copy"
            )
        first = (0,) if dataset.ndim == 3 else (slice(None),) * dataset.ndim
        return self.store.read(dataset.name, first)


Row = ArrowRow | RawRow
"""A stored trajectory, a store of its fields by name; it may be pickled."""


def _find(store: Hdf5Store, name: str) -> Any:
    """The dataset of a name, which may lie at the top or with the fields."""
    with reading(store.path):
        found = (store.open().get(key) for key in (f"measured_data/{name}", name))
        return next((item for item in found if isinstance(item, h5py.Dataset)), None)
