"""Arrays of ``.npy`` and ``.npz`` files, opened without pickle.

Every file of a folder or a pattern of ``.npz`` files is a separate flow. A ``.npy`` file is memory
mapped. The members of an archive may be compressed, so the needed ones are read whole. Modes with
their coefficients are also a flow: they are summed frame by frame.
"""

import math
import zipfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from tokenize import TokenError
from typing import Any

import numpy as np

from pibert.data.readers.recordings import PARSING, Hints, Recordings, SourceError, reading
from pibert.data.readers.shared.assembly import join, make_recordings
from pibert.data.readers.shared.files import expand_pattern, label, shared_folder
from pibert.data.readers.shared.roles import Variable
from pibert.data.readers.shared.stores import MemoryStore, Store, Where
from pibert.files import require_regular

TITLE = "NumPy arrays (.npy, .npz)"
HINTS = ("channels", "axes", "shape")
ISOLATED = False
MEASURED = True
UPLOADS = (".npy", ".npz")

# NumPy's errors on a damaged header, which is a Python literal.
_UNREADABLE = (*PARSING, MemoryError, RuntimeError, TokenError, SyntaxError, zipfile.BadZipFile)
_reading = partial(
    reading,
    what="the array of numbers or archive of arrays",
    remedy="get a new copy of it, or save plain numbers (Python objects are never read)",
    errors=_UNREADABLE,
)
# Deflate packs a run of zeros to about a thousandth.
_MOST_PACKED = 1100


def open_array(path: Path) -> np.ndarray:
    """Open the array of a ``.npy`` file, mapped and read-only."""
    require_regular(path)
    with _reading(path):
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    if not isinstance(array, np.ndarray):
        array.close()
        raise SourceError(f"{path}: expected a single array, found an archive of arrays")
    return array


@contextmanager
def open_archive(path: Path) -> Iterator[np.lib.npyio.NpzFile]:
    """Open a ``.npz`` file; errors in the block become a ``SourceError``."""
    require_regular(path)
    with _reading(path), np.load(path, allow_pickle=False) as archive:
        if isinstance(archive, np.ndarray):
            raise SourceError(f"{path}: expected an archive of arrays, found a single array")
        _check_members(path, archive)
        yield archive


def _check_members(path: Path, archive: np.lib.npyio.NpzFile) -> None:
    """Refuse arrays that declare more than is stored: NumPy would allocate it."""
    assert archive.zip is not None
    for member in archive.zip.infolist():
        if not member.filename.endswith(".npy"):
            continue
        shape, dtype = _read_header(archive.zip, member)
        declared, packed = math.prod(shape) * dtype.itemsize, member.compress_size
        if declared > member.file_size or member.file_size > _MOST_PACKED * packed + 1024:
            raise SourceError(
                f"{path}: {member.filename} declares {declared} bytes, {packed} are stored; get a "
                "new copy"
            )


def _read_header(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> tuple[tuple[int, ...], Any]:
    form = np.lib.format
    with archive.open(member) as file:
        is_first = form.read_magic(file) == (1, 0)
        read = form.read_array_header_1_0 if is_first else form.read_array_header_2_0
        shape, _, dtype = read(file)
    return shape, dtype


def require_keys(path: Path, wanted: Sequence[str], found: Sequence[str]) -> None:
    """Refuse a file that lacks some of the wanted names, and list those it has."""
    if missing := [key for key in wanted if key not in found]:
        held = ", ".join(sorted(found)) or "nothing"
        raise SourceError(f"{path}: missing {', '.join(missing)}; it holds: {held}")


def _map_array(path: Path, key: str) -> np.ndarray:
    return open_array(path)


def _read_member(path: Path, key: str) -> np.ndarray:
    with open_archive(path) as archive:
        return np.asarray(archive[key])


class ModesStore:
    """Fields as modes (r, ...) times coefficients (t, r), summed over r."""

    def __init__(self, store: Store, coefficients: str, modes: str) -> None:
        self.path, self.store = store.path, store
        self.coefficients, self.modes = coefficients, modes

    def read(self, key: str, where: Where) -> np.ndarray:
        if key != self.modes:
            return self.store.read(key, where)
        chosen = self.store.read(self.coefficients, (where[0], slice(None)))
        modes = self.store.read(self.modes, (slice(None), *where[1:]))
        return np.tensordot(chosen.astype(np.float64), modes.astype(np.float64), 1)


def recognise(path: Path) -> bool:
    if path.is_file():
        return path.suffix.lower() in (".npy", ".npz")
    files = _files(path)
    return bool(files) and all(file.suffix.lower() == ".npz" for file in files)


def open_recordings(path: Path, hints: Hints = Hints()) -> Recordings:
    if path.is_file() and path.suffix.lower() != ".npz":
        array = open_array(path)
        variable = Variable(key=path.stem, shape=array.shape, dtype=array.dtype)
        return make_recordings("arrays", MemoryStore(path, _map_array), [variable], hints)
    files = [path] if path.is_file() else _files(path)
    if not files:
        raise SourceError(f"{path}: there is no .npz file; name a file, its folder or a pattern")
    base = shared_folder(files)
    opened = [_open_file(file, label(file, base), hints) for file in files]
    if len(opened) > 1 and all(flow.num_frames == 1 for flows in opened for flow in flows):
        raise SourceError(
            f"{path}: {len(files)} files of one frame; stack the frames in one file (np.stack)"
        )
    return opened[0] if path.is_file() else join("arrays", path, opened)


def open_memory(arrays: Mapping[str, np.ndarray], hints: Hints, name: str) -> Recordings:
    """Arrays in memory, by the names that they would have in a file."""
    store = MemoryStore(Path(name), lambda path, key: arrays[key])
    store.path = Path(name)  # for messages
    variables = [Variable(key=key, shape=a.shape, dtype=a.dtype) for key, a in arrays.items()]
    return make_recordings("arrays", store, variables, hints)


def _files(path: Path) -> list[Path]:
    """Return the files of a folder or a pattern that are not hidden."""
    found = path.iterdir() if path.is_dir() else expand_pattern(path)
    return sorted(file for file in found if file.is_file() and not file.name.startswith("."))


def _open_file(path: Path, name: str, hints: Hints) -> Recordings:
    variables, store = _headers(path), MemoryStore(path, _read_member)
    pair = _find_modes(variables)
    if pair is None:
        return make_recordings("arrays", store, variables, hints, name=name)
    coefficients, modes = pair
    shape = (coefficients.shape[0], *modes.shape[1:])
    note = f"the fields are {modes.shape[0]} modes {modes.key!r} times {coefficients.key!r}, summed"
    axes = "tcyx" if len(shape) == 4 else "tyx"
    fields = Variable(key=modes.key, shape=shape, dtype=modes.dtype, axes=axes, name="fields")
    named = [fields, *(v for v in variables if v not in pair)]
    summed = ModesStore(store, coefficients.key, modes.key)
    return make_recordings("arrays", summed, named, hints, notes=[note], name=name)


def _headers(path: Path) -> list[Variable]:
    """Read names, shapes and types of the arrays of an archive, not their numbers."""
    variables = []
    with open_archive(path) as archive:
        assert archive.zip is not None
        for name in archive.files:
            shape, dtype = _read_header(archive.zip, archive.zip.getinfo(f"{name}.npy"))
            if dtype.hasobject:
                raise SourceError(
                    f"{path}: {name!r} holds Python objects, which are not read; save numbers"
                )
            variables.append(Variable(key=name, shape=shape, dtype=dtype))
    if not variables:
        raise SourceError(f"{path}: the archive is empty; save the arrays again")
    return variables


def _find_modes(variables: Sequence[Variable]) -> tuple[Variable, Variable] | None:
    """Return matching coefficients (t, r) and modes (r, c, y, x) or (r, y, x)."""
    names = ("coef", "coefs", "coefficients", "coeffs")
    fitting = [v for v in variables if v.plain in names and len(v.shape) == 2]
    stacks = [v for v in variables if v.plain in ("modes", "mode") and len(v.shape) in (3, 4)]
    pairs = ((c, modes) for modes in stacks for c in fitting if c.shape[1] == modes.shape[0])
    return next(pairs, None)
