"""Trajectories of RealPDEBench as stored: rows of an Arrow data set, or HDF5 files.

Fields are (t, y, x) arrays named u, v, p and vo; x, y and t may accompany them. Single frames of
single fields are read without the rest. Arrow shards ``data-*.arrow`` (``save_to_disk`` of the
hub's library, listed in ``state.json``) are memory-mapped: a cell is a buffer of the map. Needs
pyarrow (extra ``io``).
"""

import math
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from pibert.data.readers.recordings import SourceError
from pibert.data.readers.shared.stores import Hdf5Store, Where, reading
from pibert.data.wording import import_extra
from pibert.regular_files import require_regular
from pibert.textfiles import parse_json, read_text

KINDS = ("real", "numerical")
_END_OF_STREAM = b"\xff\xff\xff\xff\0\0\0\0"
_SHAPE = ("shape_t", "shape_h", "shape_w")


def bare_name(name: str) -> str:
    """The name of a trajectory without ``.h5``, which some files add."""
    return name.removesuffix(".h5")


def shard_paths(folder: Path) -> list[Path]:
    """The shards of a folder, as its ``state.json`` lists them, or else by name."""
    state = folder / "state.json"
    if not state.is_file():
        return sorted(folder.glob("data-*.arrow"))
    try:
        listed = parse_json(read_text(state))["_data_files"]
        paths = [folder / Path(entry["filename"]).name for entry in listed]
    except (ValueError, KeyError, TypeError) as error:
        raise SourceError(
            f"{state}: expected JSON that lists '_data_files' with a 'filename' each ({error!r}); "
            "download it again, or remove it to read all data-*.arrow files"
        ) from error
    if missing := [path.name for path in paths if not path.is_file()]:
        raise SourceError(
            f"{folder}: state.json lists {len(paths)} shards, but {len(missing)} are missing, such "
            f"as {missing[0]}; resume the download"
        )
    return paths


class Shard:
    """A memory-mapped Arrow file. It can be pickled: every process maps the file for itself."""

    def __init__(self, path: Path) -> None:
        require_regular(path)
        self.path = path.absolute()
        self._stamp = self._current_stamp()
        self._table: Any = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_table": None}

    @property
    def table(self) -> Any:
        """A table whose buffers are the memory map."""
        if self._table is None:
            if self._current_stamp() != self._stamp:
                raise SourceError(f"{self.path}: it was replaced after opening; open it again")
            pa = import_extra("pyarrow", "reading Arrow files")
            try:
                with pa.ipc.open_stream(pa.memory_map(str(self.path))) as stream:
                    table = stream.read_all()
                # Check offsets, names and texts; the bytes of binary cells are not read.
                table.validate(full=True)
                table.column_names  # noqa: B018
            except (pa.ArrowException, OSError, ValueError) as error:
                raise SourceError(
                    f"{self.path}: not an Arrow stream, or a truncated one ({error}); resume the "
                    "download or get a new copy"
                ) from error
            self._table = table
        return self._table

    def is_complete(self) -> bool:
        """Whether the stream has its end mark; without it rows may be missing."""
        with self.path.open("rb") as file:
            file.seek(-min(len(_END_OF_STREAM), self._stamp[0]), 2)
            return file.read() == _END_OF_STREAM

    def _current_stamp(self) -> tuple[int, int]:
        status = self.path.stat()
        return status.st_size, status.st_mtime_ns


class ArrowRow:
    """A row whose cells are raw bytes, with the shapes in columns of their own."""

    def __init__(self, shard: Shard, row: int) -> None:
        self.shard, self.row, self.path = shard, row, shard.path
        columns = shard.table.column_names
        if missing := [name for name in ("sim_id", "u", "v", *_SHAPE) if name not in columns]:
            raise SourceError(
                f"{self.path}: columns {missing} are missing; RealPDEBench's flows have sim_id, u, "
                f"v and {', '.join(_SHAPE)}, found {columns}"
            )
        self.name, *shape = (self._value(column) for column in ("sim_id", *_SHAPE))
        if not isinstance(self.name, str) or not self.name:
            raise self._fail("sim_id", f"expected the name of a trajectory, found {self.name!r}")
        if not all(isinstance(n, int) and n > 0 for n in shape):
            raise self._fail("shape_t", f"expected three positive whole numbers, found {shape}")
        self.shape: tuple[int, int, int] = (shape[0], shape[1], shape[2])
        """(t, y, x) of every field."""

    @property
    def where(self) -> str:
        return f"{self.path}: row {self.row}"

    def has(self, key: str) -> bool:
        """Whether there is a field; one of another size than the row's shape is refused."""
        return self._array(key, self.shape) is not None

    def read(self, key: str, where: Where) -> np.ndarray:
        array = self._array(key, self.shape)
        assert array is not None
        return array[where]

    def axis(self, name: str) -> np.ndarray | None:
        """The stored x, y or t."""
        columns = ("t_shape",) if name == "t" else (f"{name}_shape_h", f"{name}_shape_w")
        stated = [self._value(column) for column in columns]
        if not all(n is None or isinstance(n, int) for n in stated):
            raise self._fail(columns[0], f"expected whole numbers, found {stated}")
        if all(n is None for n in stated):
            shape: tuple[int, ...] = self.shape[:1] if name == "t" else self.shape[1:]
        else:
            shape = tuple(n for n in stated if n)  # a width of zero stands for one axis
        return self._array(name, shape) if shape else None

    def _fail(self, column: str, problem: str) -> SourceError:
        return SourceError(f"{self.where}, column {column!r}: {problem}; get a new copy")

    def _value(self, column: str) -> Any:
        """A number or text; None where it is null or missing."""
        table = self.shard.table
        return table.column(column)[self.row].as_py() if column in table.column_names else None

    def _array(self, column: str, shape: tuple[int, ...]) -> np.ndarray | None:
        """A binary cell as a float array, a view of the memory map; None if null or missing."""
        buffer = self._buffer(column)
        if buffer is None:
            return None
        count = math.prod(shape) if all(n > 0 for n in shape) else 0
        if not count or buffer.size not in (4 * count, 8 * count):
            raise self._fail(
                column,
                f"expected {4 * count} bytes (float32) or {8 * count} (float64) for shape {shape}, "
                f"found {buffer.size}",
            )
        dtype = "<f8" if buffer.size == 8 * count else "<f4"
        return np.frombuffer(buffer, dtype=dtype, count=count).reshape(shape)

    def _buffer(self, column: str) -> Any:
        """The bytes of a cell in the memory map; an Arrow scalar would be a copy of them."""
        import pyarrow as pa

        if column not in self.shard.table.column_names:
            return None
        chunks, row = self.shard.table.column(column), self.row
        if chunks.type not in (pa.binary(), pa.large_binary()):
            raise self._fail(column, f"expected binary data, found {chunks.type}")
        for chunk in chunks.iterchunks():
            if row < len(chunk):
                break
            row -= len(chunk)
        if chunk.slice(row, 1).null_count:
            return None
        _, offsets, data = chunk.buffers()
        width = np.int64 if chunks.type == pa.large_binary() else np.int32
        first, last = np.frombuffer(offsets, width, count=row + 2)[row:].tolist()
        size = 0 if data is None else data.size
        if data is None or not 0 <= first <= last <= size:
            raise self._fail(column, f"expected bytes {first} to {last} of a column of {size}")
        return data.slice(first, last - first)


class RawRow:
    """An HDF5 file as the publishers' server has it."""

    def __init__(self, path: Path) -> None:
        self.path, self.store, self.name = path, Hdf5Store(path), path.name
        u, v = (self._find(name) for name in ("u", "v"))
        if u is None or v is None or u.ndim != 3 or not u.size:
            raise SourceError(
                f"{path}: RealPDEBench's files have the datasets measured_data/u and "
                f"measured_data/v of shape (t, y, x), found {sorted(self.store.open())}"
            )
        self.shape: tuple[int, int, int] = u.shape

    @property
    def where(self) -> str:
        return str(self.path)

    def has(self, key: str) -> bool:
        dataset = self._find(key)
        if dataset is not None and (dataset.shape != self.shape or dataset.dtype.kind not in "fiu"):
            raise self._fail(dataset, f"numbers of shape {self.shape}")
        return dataset is not None

    def read(self, key: str, where: Where) -> np.ndarray:
        return self.store.read(self._find(key).name, where)

    def axis(self, name: str) -> np.ndarray | None:
        """The stored x, y or t; the first frame of one that repeats for every frame."""
        dataset = self._find(name)
        if dataset is None:
            return None
        if not dataset.shape or dataset.dtype.kind not in "fiu":
            raise self._fail(dataset, "an axis of numbers")
        first = (0,) if dataset.ndim == 3 else (slice(None),) * dataset.ndim
        return self.store.read(dataset.name, first)

    def _fail(self, dataset: Any, expected: str) -> SourceError:
        return SourceError(
            f"{self.path}: expected {expected} in {dataset.name!r}, found {dataset.dtype} of shape "
            f"{dataset.shape}; get a new copy"
        )

    def _find(self, name: str) -> Any:
        """The dataset of a name, at the top or among the fields."""
        with reading(self.path):
            found = (self.store.open().get(key) for key in (f"measured_data/{name}", name))
            return next((item for item in found if isinstance(item, h5py.Dataset)), None)


class ThinnedRow:
    """Every Nth row and column of another row, from the first, as the publishers' loader takes."""

    def __init__(self, row: ArrowRow | RawRow, every: int) -> None:
        self.row, self.every, self.path, self.name = row, every, row.path, row.name
        t, ny, nx = row.shape
        self.shape: tuple[int, int, int] = (t, -(-ny // every), -(-nx // every))

    @property
    def where(self) -> str:
        return self.row.where

    def has(self, key: str) -> bool:
        return self.row.has(key)

    def read(self, key: str, where: Where) -> np.ndarray:
        return self.row.read(key, where)[..., :: self.every, :: self.every]

    def axis(self, name: str) -> np.ndarray | None:
        axis = self.row.axis(name)
        if axis is None or name == "t":
            return axis
        return axis[(slice(None, None, self.every),) * axis.ndim]


Row = ArrowRow | RawRow | ThinnedRow
"""A stored trajectory, a store of its fields by name; it may be pickled."""
