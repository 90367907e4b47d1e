"""A file that is open for reading, in as many processes as need it.

Every dataset and header carries a checksum, so damaged bytes are found when they are read; what
HDF5 says of them is told with the file and the place.
"""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from pibert.data import hdf5
from pibert.data.format.layout import FORMAT, REWRITE, VERSION, FormatError, as_text

_DAMAGED = "the file is damaged: get a new copy or write it again"


class Storage:
    """The datasets of a file by trajectory; every process opens the file once, for itself."""

    def __init__(self, path: Path | str) -> None:
        self.path = Path(path).absolute()
        self._pid = -1
        self._file: h5py.File | None = None
        self._datasets: dict[tuple[str, str], h5py.Dataset] = {}
        self._stamp = _stamp(self.path)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_pid": -1, "_file": None, "_datasets": {}}

    def close(self) -> None:
        """Close the file in this process; the next read opens it again."""
        self._datasets.clear()
        if self._file is not None:
            self._file.close()
            self._file = None

    def open(self) -> h5py.File:
        """The file, opened first where this process has not done so."""
        if self._file is not None and self._pid == os.getpid():
            return self._file
        # A handle that came through a fork shares its descriptor with the parent. Closing it here
        # leaves the parent's open; HDF5 would otherwise hand out the shared one again.
        self.close()
        if _stamp(self.path) != self._stamp:
            raise FormatError(f"{self.path}: it was replaced after it was opened; open it again")
        self._file, self._pid = _open_checked(self.path), os.getpid()
        return self._file

    def group(self, name: str) -> h5py.Group:
        """The group of a trajectory, once it is known to lie in this file with all it holds."""
        parent = self.open()["trajectories"]
        if not isinstance(parent.get(name, getlink=True), h5py.HardLink):
            raise FormatError(f"{self.path}: trajectory {name!r} is a link; {REWRITE}")
        group = parent[name]
        if not isinstance(group, h5py.Group):
            raise FormatError(f"{self.path}: trajectory {name!r} is not a group; {REWRITE}")
        hdf5.check_group(self.path, group)
        return group

    def read(self, name: str, key: str, frames: slice, channels: Any = None) -> np.ndarray:
        """Frames of a dataset of a trajectory, of some of its channels; all if not given."""
        self.open()  # which forgets the datasets of another process
        with self.blamed(f"trajectory {name!r}: {key!r}"):
            if (name, key) not in self._datasets:
                self._datasets[name, key] = self.group(name)[key]
            dataset = self._datasets[name, key]
            array = dataset[frames] if channels is None else dataset[frames, channels]
        assert isinstance(array, np.ndarray)
        return array

    @contextlib.contextmanager
    def blamed(self, where: str) -> Iterator[None]:
        """What HDF5 says about damaged bytes, with the file and the place."""
        try:
            yield
        except FormatError:
            raise
        except hdf5.HDF5Error as error:
            raise FormatError(str(error)) from error
        except hdf5.DAMAGED as error:
            raise FormatError(
                f"{self.path}: {where} cannot be read ({error}); {_DAMAGED}"
            ) from error


def _open_checked(path: Path) -> h5py.File:
    """Open a file whose header says that it is ours and that we can read it."""
    if not hdf5.is_hdf5(path):
        raise FormatError(
            f"{path}: this is not an HDF5 file, or its head is damaged; bring data of other kinds "
            f"into the format with: pibert convert {path.name} OUT.h5 (docs/data-format.md)"
        )
    try:
        file = hdf5.open_hdf5(path, deep=False)
    except hdf5.HDF5Error as error:
        raise FormatError(str(error)) from error
    except (OSError, RuntimeError) as error:
        problem = "truncated" if "truncated" in str(error) else f"not readable ({error})"
        raise FormatError(f"{path}: the file is {problem}: get a new copy of it") from error
    try:
        name, version = file.attrs.get("format"), file.attrs.get("version")
        if name is None or as_text(name) != FORMAT or version is None:
            raise FormatError(f"{path}: an HDF5 file, but not of the format {FORMAT!r}; {REWRITE}")
        if int(version) > VERSION:
            raise FormatError(
                f"{path}: format version {version}, but this PIBERT reads up to {VERSION}; "
                "install a newer PIBERT"
            )
        # Not a data set, whose values would pass for names: nobody has checked where it is stored.
        if file.get("trajectories", getclass=True) is not h5py.Group:
            raise FormatError(f"{path}: the group 'trajectories' is missing; {REWRITE}")
    except FormatError:
        file.close()
        raise
    except (*hdf5.DAMAGED, OverflowError) as error:  # a version may be infinite
        file.close()
        raise FormatError(f"{path}: its header cannot be read ({error}); {_DAMAGED}") from error
    return file


def _stamp(path: Path) -> tuple[int, int]:
    if not path.is_file():
        raise FileNotFoundError(f"{path}: there is no such file")
    status = path.stat()
    return status.st_size, status.st_mtime_ns
