"""Trajectories of RealPDEBench as stored: rows of an Arrow data set, or HDF5 files.

Fields are (t, y, x) arrays named u, v, p and vo; x, y and t may accompany them. Single frames of
single fields are read without the rest. Arrow shards ``data-*.arrow`` (``save_to_disk`` of the
hub's library, listed in ``state.json``) are memory-mapped: a cell is a buffer of the map. Needs
pyarrow (extra ``io``).
"""

import math
import re
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from pibert.data.readers.recordings import SourceError, reading
from pibert.data.readers.shared.stores import Hdf5Store, Where
from pibert.data.wording import import_extra
from pibert.files import parse_json, read_text, require_regular

_END_OF_STREAM = b"\xff\xff\xff\xff\0\0\0\0"
_SHARD = re.compile(r"data-\d{5}-of-(\d{5})\.arrow")
_SHAPE = ("shape_t", "shape_h", "shape_w")


def download_command(path: Path, more: str = "") -> str:
    """The command that completes the download of which a file or folder is a part."""
    folder = next((f.parent for f in (path, *path.parents) if f.name == "hf_dataset"), None)
    where = f"{folder.name} --to {folder.parent}" if folder else "SCENARIO --to FOLDER"
    kind = " --kind numerical" if "numerical" in path.parts[-2:] else ""
    return f"pibert download realpdebench {where}{kind}{more}"


def missing_shards(folder: Path) -> tuple[list[str], list[str]]:
    """The shards that a folder lacks, and all of them.

    ``state.json`` lists them; without it their own names tell how many there are.
    """
    state = folder / "state.json"
    if state.is_file():
        with reading(state, remedy=f"remove it and run: {download_command(folder)}"):
            listed = parse_json(read_text(state))["_data_files"]
            names = [Path(entry["filename"]).name for entry in listed]
    else:
        names = sorted(path.name for path in folder.glob("data-*.arrow"))
        totals = {found[1] for name in names if (found := _SHARD.fullmatch(name))}
        if len(totals) == 1:
            total = totals.pop()
            names = [f"data-{number:05d}-of-{total}.arrow" for number in range(int(total))]
    return [name for name in names if not (folder / name).exists()], names


def shard_paths(folder: Path) -> list[Path]:
    """The shards of a folder; an error names those that are missing."""
    missing, names = missing_shards(folder)
    if missing:
        raise SourceError(
            f"{folder}: {len(missing)} of {len(names)} shards are missing, such as {missing[0]}; "
            f"resume the download: {download_command(folder)}"
        )
    return [folder / name for name in names]


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
                    f"{self.path}: expected a whole Arrow stream, found a part or another file "
                    f"({error}); remove it and resume the download: {download_command(self.path)}"
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


class Row(ABC):
    """A stored trajectory: a store of its fields by name. It can be pickled.

    With ``every``, only every Nth row and column counts, from the first, as the publishers' loader
    takes them.
    """

    path: Path
    name: str
    where: str
    """For messages."""

    def __init__(self, shape: tuple[int, int, int], every: int) -> None:
        self.stored_shape, self.every = shape, every
        t, ny, nx = shape
        self.shape: tuple[int, int, int] = (t, -(-ny // every), -(-nx // every))
        """(t, y, x) of every field."""

    @abstractmethod
    def _array(self, key: str) -> Any:
        """A field of the stored shape, not read yet; None without one."""

    @abstractmethod
    def _axis(self, name: str) -> np.ndarray | None: ...

    def has(self, key: str) -> bool:
        """Whether there is a field; one of another shape or type is refused."""
        return self._array(key) is not None

    def read(self, key: str, where: Where) -> np.ndarray:
        with reading(self.path):
            return np.asarray(self._array(key)[where])[..., :: self.every, :: self.every]

    def axis(self, name: str) -> np.ndarray | None:
        """The stored x, y or t."""
        axis = self._axis(name)
        if axis is None or name == "t":
            return axis
        return axis[(slice(None, None, self.every),) * axis.ndim]


class ArrowRow(Row):
    """A row whose cells are raw bytes, with the shapes in columns of their own."""

    def __init__(self, shard: Shard, row: int, every: int = 1) -> None:
        self.shard, self.row, self.path = shard, row, shard.path
        self.where = f"{self.path}: row {row}"
        columns = shard.table.column_names
        if missing := [name for name in ("sim_id", "u", "v", *_SHAPE) if name not in columns]:
            raise SourceError(f"{self.path}: the columns {missing} are missing, found {columns}")
        self.name, *shape = (self._value(column) for column in ("sim_id", *_SHAPE))
        if not isinstance(self.name, str) or not self.name:
            raise self._fail("sim_id", f"expected the name of a trajectory, found {self.name!r}")
        if not all(isinstance(n, int) and n > 0 for n in shape):
            raise self._fail("shape_t", f"expected three positive whole numbers, found {shape}")
        super().__init__((shape[0], shape[1], shape[2]), every)

    def _array(self, key: str) -> np.ndarray | None:
        return self._cell(key, self.stored_shape)

    def _axis(self, name: str) -> np.ndarray | None:
        columns = ("t_shape",) if name == "t" else (f"{name}_shape_h", f"{name}_shape_w")
        stated = [self._value(column) for column in columns]
        if not all(n is None or isinstance(n, int) for n in stated):
            raise self._fail(columns[0], f"expected whole numbers, found {stated}")
        if all(n is None for n in stated):
            stated = list(self.stored_shape[:1] if name == "t" else self.stored_shape[1:])
        shape = tuple(n for n in stated if n)  # a width of zero stands for one axis
        return self._cell(name, shape) if shape else None

    def _fail(self, column: str, problem: str) -> SourceError:
        return SourceError(f"{self.where}, column {column!r}: {problem}; get a new copy")

    def _value(self, column: str) -> Any:
        """A number or text; None where it is null or missing."""
        table = self.shard.table
        return table.column(column)[self.row].as_py() if column in table.column_names else None

    def _cell(self, column: str, shape: tuple[int, ...]) -> np.ndarray | None:
        """A binary cell as a float array, a view of the memory map; None if null or missing."""
        buffer = self._buffer(column)
        if buffer is None:
            return None
        count = math.prod(shape) if all(n > 0 for n in shape) else 0
        if not count or buffer.size not in (4 * count, 8 * count):
            expected = f"expected {4 * count} bytes (float32) or {8 * count} (float64)"
            raise self._fail(column, f"{expected} for shape {shape}, found {buffer.size}")
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


class RawRow(Row):
    """An HDF5 file as the publishers' server has it."""

    def __init__(self, path: Path, every: int = 1) -> None:
        self.path, self.store, self.name, self.where = path, Hdf5Store(path), path.name, str(path)
        u, v = (self._find(name) for name in ("u", "v"))
        if u is None or v is None or u.ndim != 3 or not u.size:
            raise SourceError(
                f"{path}: expected the datasets measured_data/u and measured_data/v of shape "
                f"(t, y, x), found {sorted(self.store.open())}"
            )
        super().__init__(u.shape, every)

    def _array(self, key: str) -> h5py.Dataset | None:
        dataset = self._find(key)
        if dataset is not None and dataset.shape != self.stored_shape:
            raise self._fail(dataset, f"numbers of shape {self.stored_shape}")
        return dataset

    def _axis(self, name: str) -> np.ndarray | None:
        """The first frame of an axis that repeats for every frame."""
        dataset = self._find(name)
        if dataset is None:
            return None
        if not dataset.shape:
            raise self._fail(dataset, "an axis of numbers")
        with reading(self.path):
            return np.asarray(dataset[0] if dataset.ndim == 3 else dataset[()])

    def _fail(self, dataset: h5py.Dataset, expected: str) -> SourceError:
        found = f"{dataset.dtype} of shape {dataset.shape}"
        return SourceError(f"{self.path}: expected {expected} in {dataset.name!r}, found {found}")

    def _find(self, name: str) -> Any:
        """The dataset of a name, at the top or among the fields."""
        with reading(self.path):
            found = (self.store.open().get(key) for key in (f"measured_data/{name}", name))
            dataset = next((item for item in found if isinstance(item, h5py.Dataset)), None)
        if dataset is not None and dataset.dtype.kind not in "fiu":
            raise self._fail(dataset, "numbers")
        return dataset
