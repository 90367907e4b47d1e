"""A native file from somebody else, checked before anything of it is read.

HDF5 files may point at other files (external links, external storage, virtual datasets) and may
declare more than they hold, which takes memory when it is read. Neither is part of the format.
"""

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py

from pibert.data.format import FormatError

MOST_TRAJECTORIES = 10_000


def check_foreign(path: Path | str, limit: int) -> None:
    """Refuse a file that leads elsewhere, or declares a dataset of more than ``limit`` bytes.

    Only what ``pibert.data.format.Reader`` looks at counts; it finds what else is wrong.
    """
    try:
        with h5py.File(path, "r", locking=False) as file:
            for name, dataset in _datasets(file, path):
                shapes = [dataset.shape, dataset.chunks or ()]
                if dataset.external or dataset.is_virtual:
                    raise FormatError(f"{path}: {name!r} lies in another file; send it whole")
                if None in shapes or dataset.dtype.hasobject:
                    raise FormatError(f"{path}: {name!r}: expected plain numbers, found others")
                largest = max(math.prod(s) for s in shapes) * dataset.dtype.itemsize
                if largest > limit:
                    raise FormatError(
                        f"{path}: {name!r}: expected at most {limit / 1e6:.0f} MB, found a dataset "
                        f"of {largest / 1e6:.0f} MB; send fewer frames"
                    )
    except FormatError:
        raise
    except (OSError, RuntimeError, KeyError, ValueError, TypeError) as error:
        raise FormatError(f"{path}: expected a whole HDF5 file ({error}); send it again") from error


def _datasets(file: h5py.File, path: Path | str) -> Iterator[tuple[str, h5py.Dataset]]:
    group = _member(file, "trajectories", path)
    if not isinstance(group, h5py.Group):
        return
    if len(group) > MOST_TRAJECTORIES:
        raise FormatError(
            f"{path}: expected at most {MOST_TRAJECTORIES} trajectories, found {len(group)}"
        )
    for name in group:
        trajectory = _member(group, name, path)
        if not isinstance(trajectory, h5py.Group):
            continue
        for key in trajectory:
            member = _member(trajectory, key, path)
            if isinstance(member, h5py.Dataset):
                yield f"{name}/{key}", member
            elif isinstance(member, h5py.Group):
                for inner in member:
                    found = _member(member, inner, path)
                    if isinstance(found, h5py.Dataset):
                        yield f"{name}/{key}/{inner}", found


def _member(group: Any, key: str, path: Path | str) -> Any:
    link = group.get(key, getlink=True)
    if link is not None and not isinstance(link, h5py.HardLink):
        raise FormatError(f"{path}: {key!r} is a link to another place; send the file whole")
    return group.get(key)
