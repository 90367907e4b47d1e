"""Opens HDF5 files for reading and refuses those that refer to other files or declare too much.

A file from somebody else can name any file of this computer: through external links, external
storage and virtual data sets. HDF5 follows them silently, so a converted file or a served sample
would disclose what they name. A data set can also declare a size that the file does not store; HDF5
would allocate it and return fill values. All readers open HDF5 files here.
"""

import math
import os
from pathlib import Path
from typing import Any

import h5py

from pibert.files import require_regular

MOST_OBJECTS = 100_000
"""Most objects in a file that a client sends."""
_LARGE = 256 << 20
"""Bytes above which the declared size of a data set is compared with the stored size."""
_MOST_PACKED = 2000
"""Largest compression ratio; the filters of h5py reach about 1000."""
_REMEMBERED = 256
_CHECKED: dict[tuple[int, ...], None] = {}
"""Files that passed: several readers examine a file before one of them opens it."""
_COPY = "copy the data into this file (h5py, h5copy) and use that"

DAMAGED = (OSError, RuntimeError, KeyError, ValueError, TypeError, AttributeError, IndexError)
"""Errors of h5py on a damaged file."""


class HDF5Error(ValueError):
    """An HDF5 file that is refused; the message names the file, the object and what to do."""


def open_hdf5(path: Path | str, *, limit: int | None = None, deep: bool = True) -> h5py.File:
    """Open a file for reading after checking that it holds all of its data itself.

    Raises ``HDF5Error`` if it is refused and ``OSError`` if it is not a whole HDF5 file. ``limit``
    is the largest size of a data set in bytes (with at most ``MOST_OBJECTS`` objects). If ``deep``
    is False, only the links of the root group are checked; call ``check_group`` before use.
    """
    require_regular(path)
    # Files are never changed in place, so readers need no lock (and read-only disks have none).
    file = h5py.File(path, "r", locking=False)
    try:
        if deep:
            status = os.fstat(file.id.get_vfd_handle())
            stamp = status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns
            if limit is not None or stamp not in _CHECKED:
                _check_below(path, file, limit)
                _CHECKED[stamp] = None
                if len(_CHECKED) > _REMEMBERED:
                    _CHECKED.pop(next(iter(_CHECKED)))
        else:
            _check_links(path, file, allow_soft=False)
    except HDF5Error:
        file.close()
        raise
    except DAMAGED as error:
        file.close()
        raise OSError(f"damaged: {error}") from error
    return file


class PerProcess:
    """A file that every process opens once, for itself, with ``_open``; it can be pickled."""

    _pid: int = -1
    _file: Any = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_pid": -1, "_file": None}

    def open(self) -> Any:
        if self._file is None or self._pid != os.getpid():
            # A handle that came through a fork shares its descriptor with the parent. Closing it
            # here leaves the parent's open; HDF5 would otherwise hand out the shared one again.
            self.close()
            self._file, self._pid = self._open(), os.getpid()
        return self._file

    def close(self) -> None:
        """Close the file in this process; the next read opens it again."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _open(self) -> Any:
        raise NotImplementedError


def is_hdf5(path: Path | str) -> bool:
    """Whether a regular file has HDF5's signature at its start or after a user block."""
    try:
        require_regular(path)
        return bool(h5py.is_hdf5(path))
    except (OSError, ValueError):
        return False


def check_foreign(path: Path | str, limit: int) -> None:
    """Refuse an HDF5 file from a client that refers to other files or takes too much memory.

    A file of another format passes; its reader checks it.
    """
    if is_hdf5(path):
        try:
            open_hdf5(path, limit=limit).close()
        except OSError as error:
            raise HDF5Error(
                f"{path}: expected a whole HDF5 file ({error}); send it again"
            ) from error


def check_group(path: Path | str, group: h5py.Group) -> None:
    """Refuse a group with an object below it that refers to another file, or elsewhere in this one.

    A soft link could lead through an external link in an unchecked group.
    """
    _check_below(path, group, allow_soft=False)


def check_dataset(path: Path | str, dataset: h5py.Dataset, limit: int | None = None) -> None:
    """Refuse a data set that lies in another file or declares more than the file stores."""
    layout = dataset.id.get_create_plist()
    if layout.get_external_count() or layout.get_layout() == h5py.h5d.VIRTUAL:
        raise HDF5Error(f"{path}: the data set {dataset.name!r} is stored in another file; {_COPY}")
    count = math.prod(dataset.id.shape or ())
    if layout.get_layout() == h5py.h5d.CHUNKED:
        count = max(count, math.prod(layout.get_chunk()))
    size, name = count * dataset.id.get_type().get_size(), dataset.name
    if limit is not None and size > limit:
        raise HDF5Error(
            f"{path}: {name!r}: expected at most {limit / 1e6:.0f} MB, found a data set of "
            f"{size / 1e6:.0f} MB; send fewer frames"
        )
    stored = dataset.id.get_storage_size()
    if size > _LARGE and size > _MOST_PACKED * stored:
        raise HDF5Error(
            f"{path}: the data set {name!r} of shape {dataset.shape} declares {size / 1e6:.0f} MB, "
            f"but the file stores {stored / 1e6:.3g} MB of it; it was not written to the end: "
            "write it again, or delete the data set"
        )


def _check_below(
    path: Path | str, root: h5py.Group, limit: int | None = None, *, allow_soft: bool = True
) -> None:
    """Visit all objects below a group, each once."""
    seen: set[tuple[int, int]] = set()
    count, waiting = 0, [root]
    while waiting:
        group = waiting.pop()
        for name in _check_links(path, group, allow_soft=allow_soft):
            count += 1
            if limit is not None and count > MOST_OBJECTS:
                raise HDF5Error(
                    f"{path}: expected at most {MOST_OBJECTS} objects, found more; send a file "
                    "that holds nothing but the flow"
                )
            try:
                found = h5py.h5o.open(group.id, name)
            except DAMAGED:
                continue  # damaged: readers cannot open it either
            info = h5py.h5o.get_info(found)
            if (info.fileno, info.addr) in seen:
                continue
            seen.add((info.fileno, info.addr))
            if isinstance(found, h5py.h5g.GroupID):
                waiting.append(h5py.Group(found))
            elif isinstance(found, h5py.h5d.DatasetID):
                check_dataset(path, h5py.Dataset(found), limit)


def _check_links(path: Path | str, group: h5py.Group, *, allow_soft: bool) -> list[bytes]:
    """Return the names of the hard links of a group; refuse links that lead out of it."""
    kinds: dict[bytes, int] = {}
    # A callback that returns None continues with the next link.
    group.id.links.iterate(lambda name, info: kinds.update({name: info.type}), info=True)
    for name, kind in kinds.items():
        if kind != h5py.h5l.TYPE_HARD and (kind != h5py.h5l.TYPE_SOFT or not allow_soft):
            target = "elsewhere in it" if kind == h5py.h5l.TYPE_SOFT else "to another file"
            raise HDF5Error(
                f"{path}: {name.decode('utf-8', 'replace')!r} in {group.name!r} is a link "
                f"{target}; {_COPY}"
            )
    return [name for name, kind in kinds.items() if kind == h5py.h5l.TYPE_HARD]
