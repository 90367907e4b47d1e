"""Opens HDF5 files for reading and refuses those that read other files or declare too much.

A file that somebody else wrote can name any file of this computer: through external links,
external storage and virtual data sets. HDF5 follows them silently, so a converted file or a served
sample would disclose what they name. A data set can also declare a size that the file does not
store; HDF5 would allocate it and return fill values. All readers open HDF5 files here.
"""

import math
import os
from pathlib import Path

import h5py

from pibert.regular_files import require_regular

MOST_OBJECTS = 100_000
"""In a file that a client sends."""
_LARGE = 256 << 20
"""Bytes of a data set from which on the declared size is compared with what is stored."""
_MOST_PACKED = 2000
"""Largest compression ratio; that of the filters which h5py brings along is about 1000."""
_REMEMBERED = 256
_CHECKED: dict[tuple[int, ...], None] = {}
"""Files that passed: several readers look at a file before one of them takes it."""
_WHOLE = "copy the data into this file (h5py, h5copy) and use that"


DAMAGED = (OSError, RuntimeError, KeyError, ValueError, TypeError, AttributeError, IndexError)
"""What h5py raises when it reads a damaged file."""


class HDF5Error(ValueError):
    """An HDF5 file that is refused; the message names the file, the object and what to do."""


def open_hdf5(path: Path | str, *, limit: int | None = None, deep: bool = True) -> h5py.File:
    """Open a file for reading, once it is known to hold all of its data itself.

    Raises ``HDF5Error`` if it is refused and ``OSError`` if it is not a whole HDF5 file.

    Args:
        path: The file.
        limit: Most bytes of a data set and ``MOST_OBJECTS`` objects. None: no limit.
        deep: Check all objects. If False, check the links of the root group only; call
            ``check_group`` for each group before use.
    """
    require_regular(path)
    # Files are never changed in place, so readers need no lock (and read-only disks have none).
    file = h5py.File(path, "r", locking=False)
    try:
        if deep:
            stamp = _stamp(file)
            if limit is not None or stamp not in _CHECKED:
                _Walk(path, limit).check(file)
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


def is_hdf5(path: Path | str) -> bool:
    """Whether a regular file has HDF5's signature at its start or after a user block."""
    try:
        require_regular(path)
        return bool(h5py.is_hdf5(path))
    except (OSError, ValueError):
        return False


def check_foreign(path: Path | str, limit: int) -> None:
    """Refuse an HDF5 file that a client sent if it leads to other files or takes too much memory.

    A file of another format passes: its reader finds out what is wrong with it.
    """
    if is_hdf5(path):
        try:
            open_hdf5(path, limit=limit).close()
        except OSError as error:
            raise HDF5Error(
                f"{path}: expected a whole HDF5 file ({error}); send it again"
            ) from error


def check_group(path: Path | str, group: h5py.Group) -> None:
    """Refuse a group below which an object leads to another file, or elsewhere in this one.

    A soft link could lead through an external link in a group that nobody checked.
    """
    _Walk(path, None, allow_soft=False).check(group)


def check_dataset(path: Path | str, dataset: h5py.Dataset, limit: int | None = None) -> None:
    """Refuse a data set that lies in another file or declares more than the file stores."""
    layout = dataset.id.get_create_plist()
    if layout.get_external_count() or layout.get_layout() == h5py.h5d.VIRTUAL:
        raise HDF5Error(
            f"{path}: the data set {dataset.name!r} is stored in another file; {_WHOLE}"
        )
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


class _Walk:
    """A visit to all objects below a group, each once."""

    def __init__(self, path: Path | str, limit: int | None, *, allow_soft: bool = True) -> None:
        self.path, self.limit, self.allow_soft = path, limit, allow_soft
        self.seen: set[tuple[int, int]] = set()
        self.count = 0

    def check(self, root: h5py.Group) -> None:
        waiting = [root]
        while waiting:
            group = waiting.pop()
            for name in _check_links(self.path, group, allow_soft=self.allow_soft):
                self.count += 1
                if self.limit is not None and self.count > MOST_OBJECTS:
                    raise HDF5Error(
                        f"{self.path}: expected at most {MOST_OBJECTS} objects, found more; send "
                        "a file with the flow alone"
                    )
                try:
                    found = h5py.h5o.open(group.id, name)
                except DAMAGED:
                    continue  # damaged: readers cannot open it either
                info = h5py.h5o.get_info(found)
                if (info.fileno, info.addr) in self.seen:
                    continue
                self.seen.add((info.fileno, info.addr))
                if isinstance(found, h5py.h5g.GroupID):
                    waiting.append(h5py.Group(found))
                elif isinstance(found, h5py.h5d.DatasetID):
                    check_dataset(self.path, h5py.Dataset(found), self.limit)


def _check_links(path: Path | str, group: h5py.Group, *, allow_soft: bool) -> list[bytes]:
    """The names of the hard links of a group, once no other link leads out of it."""
    names: list[bytes] = []
    kinds: list[tuple[bytes, int]] = []

    def note(name: bytes, info: h5py.h5l.LinkInfo) -> None:
        kinds.append((name, info.type))

    group.id.links.iterate(note, info=True)
    for name, kind in kinds:
        if kind == h5py.h5l.TYPE_HARD:
            names.append(name)
        elif kind != h5py.h5l.TYPE_SOFT or not allow_soft:
            where = "elsewhere in it" if kind == h5py.h5l.TYPE_SOFT else "to another file"
            raise HDF5Error(
                f"{path}: {name.decode('utf-8', 'replace')!r} in {group.name!r} is a link "
                f"{where}; {_WHOLE}"
            )
    return names


def _stamp(file: h5py.File) -> tuple[int, ...]:
    status = os.fstat(file.id.get_vfd_handle())
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns
