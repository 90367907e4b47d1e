"""Arrays of ``.npy`` and ``.npz`` files: opened without pickle, refused in words.

A ``.npy`` file is mapped: only what is sliced is read. An archive cannot be mapped (its members may
be compressed), so its arrays are read whole, but only those that are needed. Modes with their
coefficients are a flow too: they are added up frame by frame.
"""

import math
import zipfile
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tokenize import TokenError
from typing import Any

import numpy as np

from pibert.data.sources.assembly.lazy import Where
from pibert.data.sources.assembly.roles import Variable
from pibert.data.sources.assembly.trajectory import make_recordings
from pibert.data.sources.recordings import Hints, Recordings, SourceError
from pibert.regular_files import require_regular

TITLE = "NumPy arrays (.npy, .npz)"

# What NumPy makes of a damaged head, which is a Python literal.
_UNREADABLE = (OSError, ValueError, EOFError, OverflowError, MemoryError, TokenError, SyntaxError)
# Deflate packs a run of zeros to about a thousandth.
_MOST_PACKED = 1100


def open_array(path: Path) -> np.ndarray:
    """The array of a ``.npy`` file, mapped and read-only."""
    require_regular(path)
    try:
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except FileNotFoundError:
        raise SourceError(f"{path}: there is no such file") from None
    except _UNREADABLE as error:
        raise SourceError(
            f"{path}: expected an array of numbers in NumPy's format, found none ({error}); "
            "fetch the file again (arrays of Python objects are never read)"
        ) from error
    if not isinstance(array, np.ndarray):
        array.close()
        raise SourceError(f"{path}: expected a single array, found an archive of arrays")
    return array


@contextmanager
def open_archive(path: Path) -> Iterator[np.lib.npyio.NpzFile]:
    """A ``.npz`` file; whatever goes wrong with it in the block is told in our words."""
    require_regular(path)
    try:
        with np.load(path, allow_pickle=False) as archive:
            if isinstance(archive, np.ndarray):
                raise SourceError(f"{path}: expected an archive of arrays, found a single array")
            _check_members(path, archive)
            yield archive
    except SourceError:
        raise
    except FileNotFoundError:
        raise SourceError(f"{path}: there is no such file") from None
    except (*_UNREADABLE, zipfile.BadZipFile, zlib.error, KeyError, RuntimeError) as error:
        raise SourceError(
            f"{path}: expected an archive of arrays of numbers (.npz), but it cannot be read "
            f"({error}); fetch the file again (arrays of Python objects are never read)"
        ) from error


def _check_members(path: Path, archive: np.lib.npyio.NpzFile) -> None:
    """Refuse arrays that declare more than their member holds: NumPy would allocate it."""
    assert archive.zip is not None
    for member in archive.zip.infolist():
        if not member.filename.endswith(".npy"):
            continue
        shape, dtype = _read_header(archive.zip, member)
        declared, packed = math.prod(shape) * dtype.itemsize, member.compress_size
        if declared > member.file_size or member.file_size > _MOST_PACKED * packed + 1024:
            raise SourceError(
                f"{path}: the array {member.filename.removesuffix('.npy')!r} of shape {shape} "
                f"declares {declared} bytes, but only {packed} are stored; the file is damaged: "
                "fetch it again"
            )


def _read_header(archive: zipfile.ZipFile, member: zipfile.ZipInfo) -> tuple[tuple[int, ...], Any]:
    """The shape and the type of an array in an archive."""
    with archive.open(member) as file:
        version = np.lib.format.read_magic(file)
        read = (
            np.lib.format.read_array_header_1_0
            if version == (1, 0)
            else np.lib.format.read_array_header_2_0
        )
        shape, _, dtype = read(file)
    return shape, dtype


def require_keys(path: Path, wanted: Sequence[str], found: Sequence[str]) -> None:
    """Refuse a file that lacks some of the wanted names, and list those it has."""
    missing = [key for key in wanted if key not in found]
    if missing:
        there = ", ".join(sorted(found)) or "nothing"
        raise SourceError(f"{path}: missing {', '.join(missing)}; it holds: {there}")


class NpyStore:
    """The array of a ``.npy`` file, mapped by every process for itself."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self._array: np.ndarray | None = None

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_array": None}

    def read(self, key: str, where: Where) -> np.ndarray:
        if self._array is None:
            self._array = open_array(self.path)
        return np.array(self._array[where])


class NpzStore:
    """The arrays of a ``.npz`` file; those that were asked for stay in memory."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self._arrays: dict[str, np.ndarray] = {}

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_arrays": {}}

    def read(self, key: str, where: Where) -> np.ndarray:
        if key not in self._arrays:
            with open_archive(self.path) as archive:
                self._arrays[key] = archive[key]
        return np.asarray(self._arrays[key][where])


class ModesStore:
    """Fields given by modes (r, ...) and coefficients (t, r): their products, summed over r."""

    def __init__(self, store: NpzStore, coefficients: str, modes: str) -> None:
        self.path, self.store = store.path, store
        self.coefficients, self.modes = coefficients, modes

    def read(self, key: str, where: Where) -> np.ndarray:
        if key != self.modes:
            return self.store.read(key, where)
        chosen = self.store.read(self.coefficients, (where[0], slice(None)))
        modes = self.store.read(self.modes, (slice(None), *where[1:]))
        return np.tensordot(chosen.astype(np.float64), modes.astype(np.float64), 1)


def recognise(path: Path) -> bool:
    return path.suffix.lower() in (".npy", ".npz") and path.is_file()


def open_recordings(path: Path, hints: Hints = Hints()) -> Recordings:
    if path.suffix.lower() != ".npz":
        array = open_array(path)
        variable = Variable(key=path.stem, shape=array.shape, dtype=array.dtype)
        return make_recordings("arrays", NpyStore(path), [variable], hints)
    variables = _headers(path)
    store, remarks = NpzStore(path), ["an .npz archive is read array by array, as a whole"]
    pair = _find_modes(variables)
    if pair is None:
        return make_recordings("arrays", store, variables, hints, remarks=remarks)
    coefficients, modes = pair
    shape = (coefficients.shape[0], *modes.shape[1:])
    remarks.append(
        f"the fields are {modes.shape[0]} modes, {modes.key!r}, times {coefficients.key!r}, added "
        "up frame by frame"
    )
    axes = "tcyx"[: 1 + len(shape) - 3] + "yx"
    others = [v for v in variables if v not in pair]
    fields = Variable(key=modes.key, shape=shape, dtype=modes.dtype, axes=axes, name="fields")
    return make_recordings(
        "arrays",
        ModesStore(store, coefficients.key, modes.key),
        [fields, *others],
        hints,
        remarks=remarks,
    )


def _headers(path: Path) -> list[Variable]:
    """Names, shapes and types of the arrays of an archive; their numbers are not read."""
    variables = []
    with open_archive(path) as archive:
        assert archive.zip is not None
        for name in archive.files:
            shape, dtype = _read_header(archive.zip, archive.zip.getinfo(f"{name}.npy"))
            if dtype.hasobject:
                raise SourceError(
                    f"{path}: {name!r} holds Python objects, which may carry code and are not "
                    "read; save plain numbers"
                )
            variables.append(Variable(key=name, shape=shape, dtype=dtype))
    if not variables:
        raise SourceError(f"{path}: the archive is empty; save the arrays again")
    return variables


def _find_modes(variables: Sequence[Variable]) -> tuple[Variable, Variable] | None:
    """Coefficients (t, r) and modes (r, c, y, x) or (r, y, x) that belong together."""
    for modes in variables:
        for coefficients in variables:
            if (
                modes.plain in ("modes", "mode")
                and coefficients.plain in ("coef", "coefs", "coefficients", "coeffs")
                and len(coefficients.shape) == 2
                and len(modes.shape) in (3, 4)
                and coefficients.shape[1] == modes.shape[0]
            ):
                return coefficients, modes
    return None
