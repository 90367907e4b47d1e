"""An HDF5 file from somebody else, checked before anything of it is read.

HDF5 files may point at other files (external links, external storage, virtual datasets) and may
declare more than they hold, which takes memory when it is read.
"""

import itertools
import math
from pathlib import Path

import h5py

from pibert.data.format import FormatError

MOST_OBJECTS = 100_000


def check_foreign(path: Path | str, limit: int) -> None:
    """Refuse an HDF5 file that leads elsewhere, or declares a dataset of more than ``limit`` bytes.

    A file of another format passes: its reader finds out what is wrong with it.
    """
    try:
        if not h5py.is_hdf5(path):
            return
        with h5py.File(path, "r", locking=False) as file:
            count = itertools.count(1)
            # A visit ends with the first thing that is wrong.
            wrong = file.visititems_links(lambda name, link: _wrong_link(name, link, next(count)))
            wrong = wrong or file.visititems(lambda name, own: _wrong_dataset(name, own, limit))
    except (OSError, RuntimeError, KeyError, ValueError, TypeError) as error:
        raise FormatError(f"{path}: expected a whole HDF5 file ({error}); send it again") from error
    if wrong:
        raise FormatError(f"{path}: {wrong}")


def _wrong_link(name: str, link: object, number: int) -> str | None:
    if number > MOST_OBJECTS:
        return f"expected at most {MOST_OBJECTS} objects, found more"
    # A soft link stays in the file; what it leads to is seen where it lies.
    if not isinstance(link, h5py.HardLink | h5py.SoftLink):
        return f"{name!r} is a link to another file; send the file whole"
    return None


def _wrong_dataset(name: str, member: object, limit: int) -> str | None:
    if not isinstance(member, h5py.Dataset):
        return None
    if member.external or member.is_virtual:
        return f"{name!r} lies in another file; send it whole"
    shapes = [shape for shape in (member.shape, member.chunks) if shape is not None]
    largest = max((math.prod(shape) for shape in shapes), default=0) * member.dtype.itemsize
    if largest > limit:
        return (
            f"{name!r}: expected at most {limit / 1e6:.0f} MB, found a dataset of "
            f"{largest / 1e6:.0f} MB; send fewer frames"
        )
    return None
