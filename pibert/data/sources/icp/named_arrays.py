"""Arrays by name, from ``.npz``, HDF5 and MATLAB files alike; a mismatch lists what there is."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import h5py
import numpy as np

from pibert.data.hdf5 import DAMAGED, HDF5Error, is_hdf5, open_hdf5
from pibert.data.sources.arrays import open_archive, require_keys
from pibert.data.sources.matlab import call_scipy
from pibert.data.sources.recordings import SourceError


def read_named(
    path: Path, keys: Sequence[str], *, group: str | None = None, texts: Sequence[str] = ()
) -> dict[str, np.ndarray]:
    """Arrays of numbers by key, with all members of a group, and arrays of texts."""
    with _opened(path) as (names, read):
        members = [] if group is None else [n for n in names if n.startswith(f"{group}/")]
        wanted = [*keys, *texts, *([] if group is None or members else [f"{group}/*"])]
        require_keys(path, wanted, names)
        arrays = {key: read(key) for key in (*keys, *texts, *members)}
    for key, array in arrays.items():
        kinds, what = ("U", "texts") if key in texts else ("fiub", "numbers")
        if array.dtype.kind not in kinds:
            raise SourceError(f"{path}: expected {what} at {key!r}, found {array.dtype}")
    return arrays


@contextmanager
def _opened(path: Path) -> Iterator[tuple[list[str], Callable[[str], np.ndarray]]]:
    """The names in a file and a way to read one."""
    if path.suffix.lower() == ".npz":
        with open_archive(path) as archive:
            yield archive.files, archive.__getitem__
    elif path.suffix.lower() == ".mat" and not is_hdf5(path):
        arrays = call_scipy(path, "loadmat")
        yield [name for name in arrays if not name.startswith("__")], arrays.__getitem__
    else:
        try:
            with open_hdf5(path) as file:
                names: list[str] = []
                file.visititems(
                    lambda name, item: (
                        names.append(name) if isinstance(item, h5py.Dataset) else None
                    )
                )
                yield names, lambda name: _read_dataset(file[name], path)
        except (SourceError, HDF5Error):
            raise
        except DAMAGED as error:
            raise SourceError(
                f"{path}: expected an HDF5 file, but it cannot be read ({error}); get a new copy"
            ) from error


def _read_dataset(dataset: h5py.Dataset, path: Path) -> np.ndarray:
    if h5py.check_string_dtype(dataset.dtype) is not None:
        return np.asarray(dataset.asstr()[()], dtype=str)
    array: np.ndarray = np.asarray(dataset[()])
    # MATLAB writes the axes in reverse.
    return array.T if path.suffix.lower() == ".mat" else array
