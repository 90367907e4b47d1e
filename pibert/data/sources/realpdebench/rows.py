"""One trajectory of RealPDEBench as it is stored: a row of an Arrow data set, or an HDF5 file.

Fields are (t, y, x) arrays named u, v, p and vo; x, y and t may accompany them. Both kinds of row
give single frames of single fields without reading the rest.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import h5py
import numpy as np

from pibert.data.hdf5 import DAMAGED, HDF5Error
from pibert.data.sources.assembly.lazy import Hdf5Store, Where, damaged
from pibert.data.sources.realpdebench.arrow import ArrowRows, Place
from pibert.data.sources.recordings import SourceError


@runtime_checkable
class Row(Protocol):
    """A stored trajectory, a store of its fields by name; it may be pickled."""

    path: Path

    @property
    def where(self) -> str:
        """The file, and the place in it."""
        ...

    shape: tuple[int, int, int]
    """(t, y, x) of every field."""

    def has(self, key: str) -> bool:
        """Whether there is a field; one of another size than the row's shape is refused."""
        ...

    def read(self, key: str, where: Where) -> np.ndarray: ...

    def axis(self, name: str) -> np.ndarray | None:
        """The stored x, y or t; the first frame of one that has frames."""
        ...


_SHAPE = ("shape_t", "shape_h", "shape_w")


@dataclass(eq=False)
class ArrowRow:
    """A row whose cells are raw bytes, with its shapes in columns of their own."""

    path: Path
    rows: ArrowRows
    place: Place
    shape: tuple[int, int, int]

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
        return f"{self.path}: row {self.place.row}"

    def has(self, key: str) -> bool:
        return self.rows.array(self.place, key, self.shape) is not None

    def read(self, key: str, where: Where) -> np.ndarray:
        array = self.rows.array(self.place, key, self.shape)
        assert array is not None
        return array[where]

    def axis(self, name: str) -> np.ndarray | None:
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


def _find(store: Hdf5Store, name: str) -> Any:
    """The dataset of a name, which may lie at the top or with the fields."""
    try:
        for key in (f"measured_data/{name}", name):
            if isinstance(store.open().get(key), h5py.Dataset):
                return store.open()[key]
    except HDF5Error:
        raise
    except DAMAGED as error:
        raise damaged(store.path, error) from error
    return None
